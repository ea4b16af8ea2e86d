//! The simulated machine's power law: the truth that models are judged by. Fixed before the model
//! was tuned, and richer than the model on purpose.
//!
//! Figures are of the size that published measurements of servers give: a package floor of 20 to
//! 40 W; waking the uncore costs some watts as soon as any core runs; a core draws a few watts at
//! base frequency, going with V²f, V rising linearly with f; a second thread of a core adds about a
//! tenth of what two cores would draw; memory power goes with traffic above its refresh floor, and
//! flattens; stalled cores draw less and feel frequency less.

/// Sizes and constants of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    pub sockets: usize,
    pub cores: usize,
    pub threads: usize,
    /// Watts of a package with everything asleep.
    pub floor: f64,
    /// Slow drift of the floor: relative size.
    pub floor_drift: f64,
    /// Watts of the uncore while any core runs.
    pub wakeup: f64,
    /// Further uncore watts at full activity, going with the square root of active cores.
    pub uncore: f64,
    /// Watts of a core at base frequency for power factor 1.
    pub core: f64,
    /// Weight of each of two threads of a core.
    pub shared: f64,
    /// GHz: base, one core active, all cores active.
    pub base: f64,
    pub turbo_one: f64,
    pub turbo_all: f64,
    /// Voltage at base is 1; slope per relative frequency.
    pub volt_slope: f64,
    /// Watts of memory at rest, and at one unit of traffic; traffic at which it flattens.
    pub dram_floor: f64,
    pub dram_unit: f64,
    pub dram_knee: f64,
    /// Relative noise of a reading over 100 ms.
    pub noise: f64,
    /// The last cores are small ones: how many, and their power relative to a big one's.
    pub small_cores: usize,
    pub small_power: f64,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            sockets: 1,
            cores: 8,
            threads: 1,
            floor: 28.0,
            floor_drift: 0.01,
            wakeup: 6.0,
            uncore: 4.0,
            core: 5.5,
            shared: 0.56,
            base: 2.4,
            turbo_one: 3.5,
            turbo_all: 2.9,
            volt_slope: 0.45,
            dram_floor: 4.0,
            dram_unit: 3.0,
            dram_knee: 8.0,
            noise: 0.003,
            small_cores: 0,
            small_power: 0.4,
        }
    }
}

/// Who runs on a hardware thread, as far as power goes.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub workload: usize,
    /// Power factor.
    pub kappa: f64,
    /// Memory traffic in units.
    pub traffic: f64,
    /// Fraction of time stalled on memory: draws half and does not feel frequency.
    pub stalled: f64,
}

/// Watts of one socket, by owner.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// Package: floor, and (workload, watts).
    pub floor: f64,
    pub active: Vec<(usize, f64)>,
    /// Memory: floor, and (workload, watts).
    pub dram_floor: f64,
    pub dram: Vec<(usize, f64)>,
}

impl Machine {
    /// Hardware threads.
    pub fn cpus(&self) -> usize {
        self.sockets * self.cores * self.threads
    }

    /// (socket, core within it) of a CPU. Siblings are numbered as Linux does: second threads
    /// after all first ones.
    pub fn place(&self, cpu: usize) -> (usize, usize) {
        let core = cpu % (self.sockets * self.cores);
        (core / self.cores, core % self.cores)
    }

    /// The frequency that a socket with this many active cores goes to.
    pub fn target(&self, active: usize) -> f64 {
        if active == 0 {
            return self.base;
        }
        let depth = (active as f64 - 1.0) / (self.cores as f64 - 1.0).max(1.0);
        self.turbo_one + (self.turbo_all - self.turbo_one) * depth
    }

    /// Relative dynamic power at `ghz`: V²f.
    fn dynamic(&self, ghz: f64) -> f64 {
        let f = ghz / self.base;
        let volt = 1.0 + self.volt_slope * (f - 1.0);
        volt * volt * f
    }

    fn thread_watts(&self, core: usize, load: &Load, ghz: f64) -> f64 {
        let small = core >= self.cores - self.small_cores;
        let size = if small { self.small_power } else { 1.0 };
        let running = (1.0 - load.stalled) * self.dynamic(ghz) + load.stalled * 0.5;
        self.core * size * load.kappa * running
    }

    /// Splits a socket's power. `cores` holds what runs on each core's threads; `drift` scales
    /// the floor. A process owns its core's power, a pair is split by power factor, wake-up and
    /// uncore by 1/n of who runs, memory by traffic.
    pub fn split(&self, cores: &[Vec<Load>], ghz: f64, drift: f64, out: &mut Split) {
        out.active.clear();
        out.dram.clear();
        out.floor = self.floor * drift;
        out.dram_floor = self.dram_floor;
        let running: usize = cores.iter().map(Vec::len).sum();
        if running == 0 {
            return;
        }
        let active = cores.iter().filter(|c| !c.is_empty()).count();
        let busy = active as f64 / self.cores as f64;
        let each = (self.wakeup + self.uncore * busy.sqrt()) / running as f64;
        let mut traffic = 0.0;
        for (core, loads) in cores.iter().enumerate() {
            let scale = if loads.len() > 1 { self.shared } else { 1.0 };
            for load in loads {
                let watts = scale * self.thread_watts(core, load, ghz);
                out.active.push((load.workload, watts + each));
                traffic += load.traffic;
            }
        }
        if traffic > 0.0 {
            let watts = self.dram_unit * self.dram_knee * (1.0 - (-traffic / self.dram_knee).exp());
            for load in cores.iter().flatten() {
                out.dram.push((load.workload, watts * load.traffic / traffic));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(workload: usize, kappa: f64) -> Load {
        Load { workload, kappa, traffic: 1.0, stalled: 0.0 }
    }

    #[test]
    fn a_pair_is_split_by_power_factor_and_draws_less_than_two_cores() {
        let machine =
            Machine { cores: 2, threads: 2, wakeup: 0.0, uncore: 0.0, ..Machine::default() };
        let mut split = Split::default();
        machine.split(&[vec![load(0, 1.0), load(1, 2.0)], vec![]], machine.base, 1.0, &mut split);
        let pair: f64 = split.active.iter().map(|(_, w)| w).sum();
        assert!((split.active[1].1 / split.active[0].1 - 2.0).abs() < 1e-12);
        machine.split(&[vec![load(0, 1.0)], vec![load(1, 2.0)]], machine.base, 1.0, &mut split);
        let apart: f64 = split.active.iter().map(|(_, w)| w).sum();
        assert!((pair / apart - machine.shared).abs() < 1e-12);
    }

    #[test]
    fn turbo_costs_more_than_it_gives() {
        let machine = Machine::default();
        let ratio = machine.dynamic(machine.turbo_one) / machine.dynamic(machine.base);
        assert!(ratio > 1.5 * machine.turbo_one / machine.base / 1.2, "{ratio}");
        assert!(machine.target(1) > machine.target(8));
    }
}
