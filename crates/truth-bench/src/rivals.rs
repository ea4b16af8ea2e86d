//! The usual formulas, each in a few lines: energy per workload from what its kind of tool sees.

use crate::sim::{Polled, Slice};

/// Joules per workload and block that a formula gives; active and, where it shares it out, idle.
pub type Given = Vec<Vec<f64>>;

/// What the formulas are fed: zones of one kind, one per socket.
pub struct Seen<'a> {
    pub slices: &'a [Slice],
    /// `/proc` every five seconds.
    pub polls: &'a [Polled],
    /// True floor in watts per socket, for those that are given it.
    pub floor: f64,
    /// Index of socket 0's zone, and distance to the next socket's.
    pub zone: usize,
    pub stride: usize,
    pub workloads: usize,
    pub cpus: usize,
}

const POLL_SLICES: usize = 50;
const BLOCK_SLICES: usize = 100;

impl Seen<'_> {
    fn sockets(&self) -> usize {
        self.slices.first().map_or(0, |s| s.time.len())
    }

    fn joules(&self, slice: &Slice, socket: usize) -> f64 {
        slice.joules.get(self.zone + socket * self.stride).copied().unwrap_or(0.0)
    }

    fn host_joules(&self, slices: &[Slice]) -> f64 {
        slices.iter().map(|s| (0..self.sockets()).map(|k| self.joules(s, k)).sum::<f64>()).sum()
    }

    /// CPU time per workload between two polls, of processes that are there at the second.
    fn polled(&self, at: usize) -> Vec<f64> {
        let mut time = vec![0.0; self.workloads];
        let (Some(now), Some(before)) = (self.polls.get(at + 1), self.polls.get(at)) else {
            return time;
        };
        for (pid, (workload, ns)) in now {
            let since = before.get(pid).map_or(0, |(_, ns)| *ns);
            time[*workload] += (ns - since) as f64;
        }
        time
    }

    /// Runs a formula over five-second intervals: it gets polled time, the interval's joules and
    /// CPU-seconds available, and gives joules per workload.
    fn by_poll(&self, formula: impl Fn(&[f64], f64, f64) -> Vec<f64>) -> Given {
        let mut given = Given::new();
        for (at, slices) in self.slices.chunks_exact(POLL_SLICES).enumerate() {
            let time = self.polled(at);
            let online = 5e9 * self.cpus as f64;
            let joules = formula(&time, self.host_joules(slices), online);
            let block = at * POLL_SLICES / BLOCK_SLICES;
            given.resize(block + 1, vec![0.0; self.workloads]);
            for (sum, j) in given[block].iter_mut().zip(joules) {
                *sum += j;
            }
        }
        given
    }

    /// All energy by share of CPU time (Scaphandre's way).
    pub fn all_by_time(&self) -> Given {
        self.by_poll(|time, joules, _| split(joules, time))
    }

    /// Energy times utilisation by share of CPU time (Kepler 0.10's way).
    pub fn utilisation(&self) -> Given {
        self.by_poll(|time, joules, online| split(joules * time.iter().sum::<f64>() / online, time))
    }

    /// Energy above a floor found offline, by share of CPU time.
    pub fn above_floor(&self) -> Given {
        let floor = 5.0 * self.floor * self.sockets() as f64;
        self.by_poll(|time, joules, _| split((joules - floor).max(0.0), time))
    }

    /// As above, and the floor in equal parts to whoever is there.
    pub fn equal_idle(&self) -> Given {
        let floor = 5.0 * self.floor * self.sockets() as f64;
        self.by_poll(|time, joules, _| {
            let there = time.iter().filter(|t| **t > 0.0).count().max(1) as f64;
            let active = split((joules - floor).max(0.0), time);
            let idle = joules.min(floor) / there;
            let each = active.iter().zip(time);
            each.map(|(a, t)| if *t > 0.0 { a + idle } else { *a }).collect()
        })
    }

    /// Exact cycles per second and socket, 11/20 beside a busy sibling (DEEP-mon's way).
    pub fn deep_mon(&self) -> Given {
        self.by_slices(10, |slice, socket| &slice.cycles[socket])
    }

    /// Exact time per slice and socket.
    pub fn exact(&self) -> Given {
        self.by_slices(1, |slice, socket| &slice.time[socket])
    }

    fn by_slices(&self, many: usize, weight: impl Fn(&Slice, usize) -> &Vec<f64>) -> Given {
        let mut given = Given::new();
        for (at, slices) in self.slices.chunks(many).enumerate() {
            let block = at * many / BLOCK_SLICES;
            given.resize(block + 1, vec![0.0; self.workloads]);
            for socket in 0..self.sockets() {
                let mut weights = vec![0.0; self.workloads];
                for slice in slices {
                    for (sum, w) in weights.iter_mut().zip(weight(slice, socket)) {
                        *sum += w;
                    }
                }
                let joules: f64 = slices.iter().map(|s| self.joules(s, socket)).sum();
                let floor = self.floor * 0.1 * slices.len() as f64;
                let active = split((joules - floor).max(0.0), &weights);
                for (sum, j) in given[block].iter_mut().zip(active) {
                    *sum += j;
                }
            }
        }
        given
    }
}

fn split(joules: f64, by: &[f64]) -> Vec<f64> {
    let sum: f64 = by.iter().sum();
    by.iter().map(|w| if sum > 0.0 { joules * w / sum } else { 0.0 }).collect()
}
