//! What the kernel itself counts: schedstat, cgroups, stolen time.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::agent::unix_now;

/// Time on a CPU, Σ over the threads of a process, in nanoseconds. A thread that has ended is missing
/// in it.
pub fn schedstat(pid: u32) -> u64 {
    schedstat_field(pid, 0).iter().sum()
}

/// Time that its threads could have run and waited for a CPU: they hand on to one another what they do,
/// so that each one's wait counts.
pub fn waited(pid: u32) -> u64 {
    schedstat_field(pid, 1).iter().sum()
}

fn schedstat_field(pid: u32, field: usize) -> Vec<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a living process");
    tasks
        .flatten()
        .map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).expect("schedstat");
            text.split(' ').nth(field).and_then(|n| n.trim().parse().ok()).expect("a number")
        })
        .collect()
}

/// Nanoseconds of all CPUs that schedstat may leave out, in steps of 10 ms: stolen by the hypervisor,
/// or in interrupts (kernels with IRQ_TIME_ACCOUNTING). A task on a CPU cannot be told apart from
/// running by the switches alone.
pub fn left_out() -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let cpu = stat.lines().next().expect("the CPUs' line");
    // user nice system idle iowait irq softirq steal
    let ticks = cpu.split_whitespace().skip(6).take(3).map(|t| t.parse::<u64>().expect("a number"));
    ticks.sum::<u64>() * 10_000_000
}

/// A cgroup whose CPU time the kernel counts: in the cpuacct hierarchy, else in v2.
pub struct Cgroup {
    path: PathBuf,
    own: bool,
}

impl Cgroup {
    pub fn root() -> Self {
        let v1 = PathBuf::from("/sys/fs/cgroup/cpuacct");
        let path = if v1.join("cpuacct.usage").exists() { v1 } else { "/sys/fs/cgroup".into() };
        Self { path, own: false }
    }

    pub fn new(name: &str) -> Self {
        let path = Self::root().path.join(name);
        fs::create_dir(&path).expect("a new cgroup (are we root?)");
        Self { path, own: true }
    }

    pub fn add(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("a move to the cgroup");
    }

    /// Nanoseconds used so far.
    pub fn usage(&self) -> u64 {
        if let Ok(text) = fs::read_to_string(self.path.join("cpuacct.usage")) {
            return text.trim().parse().expect("a number");
        }
        let text = fs::read_to_string(self.path.join("cpu.stat")).expect("cpu.stat");
        let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        usage.and_then(|u| u.parse::<u64>().ok()).expect("a number") * 1000
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.own {
            for _ in 0..100 {
                if fs::remove_dir(&self.path).is_ok() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
            eprintln!("the cgroup {} could not be removed", self.path.display());
        }
    }
}

/// A reading of the machine's counters.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: u64,
    usage: u64,
    left_out: u64,
}

/// Reads the machine's counters all the time, so that they can be told for any moment afterwards.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Sample>>>,
}

/// What a [`Sampler`] has seen.
pub struct Samples(Vec<Sample>);

impl Sampler {
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let root = Cgroup::root();
            let mut samples = Vec::new();
            while !flag.load(Ordering::Relaxed) {
                samples.push(Sample { at: unix_now(), usage: root.usage(), left_out: left_out() });
                thread::sleep(Duration::from_millis(5));
            }
            samples
        });
        Self { stop, thread: Some(thread) }
    }

    pub fn finish(mut self) -> Samples {
        self.stop.store(true, Ordering::Relaxed);
        Samples(self.thread.take().and_then(|t| t.join().ok()).expect("samples"))
    }
}

impl Samples {
    /// Machine-wide CPU time, and what schedstat may leave out, between two moments (unix ns), by interpolation.
    pub fn between(&self, from: u64, to: u64) -> (u64, u64) {
        let at = |moment: u64| {
            let next = self.0.partition_point(|s| s.at < moment).clamp(1, self.0.len() - 1);
            let (a, b) = (self.0[next - 1], self.0[next]);
            let share = (moment.saturating_sub(a.at)) as f64 / (b.at - a.at).max(1) as f64;
            let usage = a.usage as f64 + (b.usage - a.usage) as f64 * share;
            (usage, a.left_out)
        };
        let ((usage_a, left_a), (usage_b, left_b)) = (at(from), at(to));
        ((usage_b - usage_a) as u64, left_b - left_a)
    }

    /// What schedstat may leave out of the whole of the sampled time.
    pub fn left_out(&self) -> u64 {
        let [first, .., last] = self.0.as_slice() else { return 0 };
        last.left_out - first.left_out
    }
}
