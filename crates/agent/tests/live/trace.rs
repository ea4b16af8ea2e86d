//! An independent witness: the kernel's own trace of `sched_switch`, in a tracefs instance of its
//! own with CLOCK_MONOTONIC's time, summed by process here.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Command,
};

const TRACEFS: &str = "/sys/kernel/tracing";

/// A running trace. Whatever happens, its instance goes with it.
pub struct Trace {
    dir: PathBuf,
    mounted: bool,
}

impl Trace {
    pub fn start(buffer_kib: u32) -> Self {
        let mounted = !Path::new(TRACEFS).join("instances").exists();
        if mounted {
            let status = Command::new("mount").args(["-t", "tracefs", "none", TRACEFS]).status();
            assert!(status.is_ok_and(|s| s.success()), "tracefs cannot be mounted");
        }
        let dir = Path::new(TRACEFS).join(format!("instances/wattpipe-{}", std::process::id()));
        fs::create_dir(&dir).expect("a tracefs instance (are we root?)");
        let trace = Self { dir, mounted };
        trace.set("trace_clock", "mono");
        trace.set("buffer_size_kb", &buffer_kib.to_string());
        trace.set("events/sched/sched_switch/enable", "1");
        trace.set("events/task/task_newtask/enable", "1");
        trace
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.dir.join(file), value).unwrap_or_else(|e| panic!("{file}: {e}"));
    }

    /// Stops, and sums by process. Right for processes that
    /// are off every CPU both at the trace's start and at its end.
    pub fn finish(self) -> BTreeMap<u32, Traced> {
        self.set("tracing_on", "0");
        for cpu in fs::read_dir(self.dir.join("per_cpu")).expect("CPUs").flatten() {
            let stats = fs::read_to_string(cpu.path().join("stats")).expect("statistics");
            let overrun = stats.lines().find(|line| line.starts_with("overrun"));
            assert_eq!(overrun, Some("overrun: 0"), "the trace did not fit its buffer");
        }
        let trace = fs::File::open(self.dir.join("trace")).expect("the trace");
        let mut sums = Sums::default();
        for line in BufReader::with_capacity(1 << 20, trace).lines() {
            sums.line(&line.expect("text"));
        }
        sums.by_process
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("events/enable"), "0");
        if fs::remove_dir(&self.dir).is_err() {
            eprintln!("the tracefs instance {} could not be removed", self.dir.display());
        }
        if self.mounted {
            let _ = Command::new("umount").arg(TRACEFS).status();
        }
    }
}

#[derive(Default)]
struct Sums {
    /// Who runs on a CPU, and since when.
    running: HashMap<u32, (u32, u64)>,
    /// Thread to process, for threads that were born in the trace.
    process: HashMap<u32, u32>,
    by_process: BTreeMap<u32, Traced>,
}

/// What the trace has of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traced {
    /// Nanoseconds from each switch to it to the next on that CPU.
    pub time: u64,
    /// Nanoseconds before a switch away from it that follows no switch to it: some kernels do not
    /// trace every switch, and somewhere in this time it came onto the CPU.
    pub unknown: u64,
    /// Switches away from it.
    pub switches: u64,
}

impl Sums {
    /// `  name-123     [001] d..2.  1234.567890: sched_switch: prev_comm=… prev_pid=1 …`
    fn line(&mut self, line: &str) {
        let Some((head, event, body)) = split(line) else { return };
        let Some(ts) = nanos(head.rsplit(' ').next().unwrap_or_default()) else { return };
        match event {
            "sched_switch" => {
                let cpu = head.rsplit_once(']').and_then(|(h, _)| h.rsplit_once('['));
                let cpu = cpu.and_then(|(_, cpu)| cpu.parse().ok()).expect("a CPU");
                let prev = field(body, " prev_pid=").expect("prev_pid");
                let next = field(body, " next_pid=").expect("next_pid");
                let process = self.process.get(&prev).copied().unwrap_or(prev);
                let sum = self.by_process.entry(process).or_default();
                sum.switches += 1;
                if let Some((tid, since)) = self.running.insert(cpu, (next, ts)) {
                    if tid == prev { sum.time += ts - since } else { sum.unknown += ts - since }
                }
            }
            "task_newtask" => {
                const CLONE_THREAD: u64 = 0x10000;
                let child = field(body, "pid=").expect("pid");
                let flags = body.split("clone_flags=").nth(1).expect("flags");
                let flags = flags.split(' ').next().expect("flags");
                let flags = u64::from_str_radix(flags, 16).expect("flags");
                let parent: u32 = head
                    .rsplit_once('[')
                    .and_then(|(h, _)| h.trim_end().rsplit('-').next()?.parse().ok())
                    .expect("the parent");
                let process = if flags & CLONE_THREAD == 0 {
                    child
                } else {
                    self.process.get(&parent).copied().unwrap_or(parent)
                };
                self.process.insert(child, process);
            }
            _ => {}
        }
    }
}

/// Before the time's end, the event's name, what follows.
fn split(line: &str) -> Option<(&str, &str, &str)> {
    ["sched_switch", "task_newtask"].into_iter().find_map(|event| {
        let at = line.find(&format!(": {event}: "))?;
        Some((&line[..at], event, &line[at + event.len() + 3..]))
    })
}

/// `1234.567890` as nanoseconds.
fn nanos(text: &str) -> Option<u64> {
    let (seconds, micros) = text.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1000)
}

fn field(body: &str, key: &str) -> Option<u32> {
    // Names may hold anything; the numbers stand last.
    let (_, rest) = body.rsplit_once(key)?;
    rest.split(' ').next()?.parse().ok()
}
