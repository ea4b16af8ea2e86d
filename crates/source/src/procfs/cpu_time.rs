//! CPU time of a process, as finely as this host tells it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use nix::{
    libc::{clockid_t, pid_t},
    time::ClockId,
};
use wattpipe_pipeline::units::{Nanos, Tgid};

use super::details::read_stat;

/// How CPU time is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The process's CPU clock: nanoseconds, threads that have ended included, no privilege. One
    /// system call. Only for pids of our own PID namespace.
    Clock,
    /// The run time in `task/*/schedstat`: nanoseconds of the threads that still are.
    Schedstat,
    /// `stat`: ticks of 10 ms, threads that have ended included.
    Stat,
}

impl Method {
    /// What works for the procfs at `procfs`.
    pub fn of(procfs: &Path) -> Self {
        let own = std::process::id();
        // `self` is our pid as that mount numbers it: the same pid is the same namespace.
        let same = fs::read_link(procfs.join("self"))
            .is_ok_and(|l| l.to_str().and_then(|l| l.parse().ok()) == Some(own));
        if same && clock(Tgid(own)).is_some() {
            Self::Clock
        } else if procfs.join("self/schedstat").exists() {
            Self::Schedstat
        } else {
            Self::Stat
        }
    }
}

/// The CPU clock of a process; `None` where it is gone.
pub fn clock(pid: Tgid) -> Option<Nanos> {
    /// The low bits of a CPU clock's id: scheduler time of a whole process.
    const SCHED: clockid_t = 2;
    let pid = pid_t::try_from(pid.0).ok().filter(|pid| *pid > 0)?;
    let time = ClockId::from_raw((!pid << 3) | SCHED).now().ok()?;
    let (seconds, nanos) =
        (u64::try_from(time.tv_sec()).ok()?, u64::try_from(time.tv_nsec()).ok()?);
    Some(Nanos(seconds.checked_mul(1_000_000_000)? + nanos))
}

/// The CPU time of one process so far, as a count that never falls.
#[derive(Clone, Debug, Default)]
pub struct CpuTime {
    /// Up to the last reading.
    pub total: Nanos,
    /// Per thread, for [`Method::Schedstat`].
    threads: HashMap<u32, u64>,
}

impl CpuTime {
    /// Reads again. `None` where the process is gone; `false` where nothing was used since. A reading
    /// below the last one is another process's, to be looked at closely.
    pub fn advance(&mut self, method: Method, procfs: &Path, pid: Tgid) -> Option<bool> {
        let before = self.total;
        let read = match method {
            Method::Clock => clock(pid)?,
            Method::Schedstat => {
                self.add_threads(&procfs.join(pid.to_string()))?;
                self.total
            }
            Method::Stat => {
                let stat = read_stat(&procfs.join(pid.to_string())).ok()?;
                let tick = 1_000_000_000 / procfs_crate::ticks_per_second().max(1);
                Nanos(stat.utime.saturating_add(stat.stime).saturating_mul(tick))
            }
        };
        self.total = self.total.max(read);
        Some(read != before)
    }

    /// Adds what each living thread ran since the last reading. The last stretch of a thread that
    /// has ended is not told.
    fn add_threads(&mut self, directory: &Path) -> Option<()> {
        let mut threads = HashMap::with_capacity(self.threads.len());
        for entry in fs::read_dir(directory.join("task")).ok()?.flatten() {
            let Some(tid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let Some(ran) = run_time(&entry.path().join("schedstat")) else { continue };
            let before = self.threads.get(&tid).copied().unwrap_or(0);
            // A reused thread id starts again.
            self.total.0 += if ran >= before { ran - before } else { ran };
            threads.insert(tid, ran);
        }
        self.threads = threads;
        Some(())
    }
}

fn run_time(schedstat: &PathBuf) -> Option<u64> {
    fs::read_to_string(schedstat).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_clock_runs() {
        assert_eq!(Method::of(Path::new("/proc")), Method::Clock);
        let own = Tgid(std::process::id());
        let before = clock(own).unwrap();
        let mut work = 0u64;
        while clock(own).unwrap() == before {
            work = std::hint::black_box(work + 1);
        }
        assert!(clock(own).unwrap() > before && before.0 > 0);
        assert_eq!(clock(Tgid(0)), None);
        assert_eq!(clock(Tgid(u32::MAX)), None);
    }

    #[test]
    fn the_ways_agree_for_a_process_with_threads() {
        let own = Tgid(std::process::id());
        let read = |method| {
            let mut time = CpuTime::default();
            time.advance(method, Path::new("/proc"), own).unwrap();
            time.total.0
        };
        let (clock, stat) = (read(Method::Clock), read(Method::Stat));
        // Two ticks of rounding, and what other test threads do between the two readings.
        assert!(stat <= clock + 500_000_000 && clock <= stat + 500_000_000, "{clock} {stat}");
        assert!(read(Method::Schedstat) > 0);
    }

    #[test]
    fn threads_add_up_and_never_fall() {
        let dir = tempfile::tempdir().unwrap();
        let task = dir.path().join("7/task");
        let set = |tid: u32, ran: u64| {
            fs::create_dir_all(task.join(tid.to_string())).unwrap();
            fs::write(task.join(tid.to_string()).join("schedstat"), format!("{ran} 5 1\n"))
                .unwrap();
        };
        let mut time = CpuTime::default();
        let mut check = |expected_total: u64, used: Option<bool>| {
            assert_eq!(time.advance(Method::Schedstat, dir.path(), Tgid(7)), used);
            assert_eq!(time.total.0, expected_total);
        };
        set(7, 100);
        set(8, 50);
        check(150, Some(true));
        check(150, Some(false));
        fs::remove_dir_all(task.join("8")).unwrap();
        set(7, 130);
        set(9, 20);
        check(200, Some(true));
        set(9, 5);
        check(205, Some(true));
        fs::remove_dir_all(dir.path().join("7")).unwrap();
        check(205, None);
    }
}
