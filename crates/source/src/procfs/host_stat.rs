//! `/proc/stat`: what each CPU did. Its ticks are 10 ms, so a window's figures are rounded; the
//! poller carries the rest over.

use std::{collections::BTreeMap, fs, io, path::Path};

use wattpipe_pipeline::units::{Cpu, Nanos};

/// One CPU's time since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// Idle, waiting for I/O included.
    pub idle: Nanos,
    /// All that is neither idle nor stolen.
    pub busy: Nanos,
}

/// All CPUs that are online, and all switches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostStat {
    /// By number.
    pub cpus: BTreeMap<Cpu, CpuTicks>,
    /// Switches since boot.
    pub switches: u64,
}

impl HostStat {
    /// Reads `/proc/stat`.
    pub fn read(procfs: &Path) -> io::Result<Self> {
        fs::read_to_string(procfs.join("stat"))
            .map(|text| Self::parse(&text, 1_000_000_000 / procfs_crate::ticks_per_second().max(1)))
    }

    fn parse(text: &str, tick: u64) -> Self {
        let mut stat = Self::default();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(name) = fields.next() else { continue };
            if name == "ctxt" {
                stat.switches = fields.next().and_then(|n| n.parse().ok()).unwrap_or(0);
            } else if let Some(Ok(cpu)) = name.strip_prefix("cpu").map(str::parse) {
                let mut ticks = [0u64; 8];
                for (slot, field) in ticks.iter_mut().zip(fields) {
                    *slot = field.parse().unwrap_or(0);
                }
                let [user, nice, system, idle, iowait, irq, softirq, _steal] = ticks;
                let nanos = |ticks: u64| Nanos(ticks.saturating_mul(tick));
                let of = CpuTicks {
                    idle: nanos(idle + iowait),
                    busy: nanos(user + nice + system + irq + softirq),
                };
                stat.cpus.insert(Cpu(cpu), of);
            }
        }
        stat
    }

    /// What each CPU did since `before`; a CPU that was not there before did nothing. `iowait` may
    /// fall by the kernel's own account, which counts as nothing.
    pub fn since(&self, before: &Self) -> BTreeMap<Cpu, CpuTicks> {
        self.cpus
            .iter()
            .filter_map(|(cpu, now)| {
                let before = before.cpus.get(cpu)?;
                let (idle, busy) = (now.idle.since(before.idle), now.busy.since(before.busy));
                Some((*cpu, CpuTicks { idle, busy }))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_with_holes() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu3 1 0 0 10 0 0 0 0 0 0\nintr 5\nctxt 77\n";
        let stat = HostStat::parse(text, 10);
        let of = |idle, busy| CpuTicks { idle: Nanos(idle), busy: Nanos(busy) };
        assert_eq!(stat.cpus, [(Cpu(0), of(450, 190)), (Cpu(3), of(100, 10))].into());
        assert_eq!(stat.switches, 77);
        let later =
            HostStat::parse("cpu0 2 2 3 41 5 6 7 8 0 0\ncpu1 5 0 0 0 0 0 0 0 0 0\nctxt 80\n", 10);
        assert_eq!(later.since(&stat), [(Cpu(0), of(10, 10))].into());
    }
}
