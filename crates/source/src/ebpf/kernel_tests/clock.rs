//! CPU time by either clock against the kernel's own account of a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use wattpipe_pipeline::{
    batch::SwitchBatch,
    units::{ConfigDuration, Tgid},
};

use super::{
    super::{Clock, EbpfConfig, sys},
    whole::{check_promises, config, record},
};

/// CPU time of a process by the stream.
fn by_stream(batches: &[Arc<SwitchBatch>], pid: u32) -> u64 {
    let mut running = HashMap::new();
    let mut sum = 0;
    for (block, entries) in batches.iter().flat_map(|b| b.iter_blocks()) {
        for entry in entries {
            let (who, since) =
                running.insert(block.cpu, (entry.next, entry.ts.0)).unwrap_or_default();
            if who == Tgid(pid) {
                sum += entry.ts.0 - since;
            }
        }
    }
    sum
}

/// Works and sleeps in turn for two seconds in a child; pid and CPU time by the kernel.
fn work() -> (u32, u64) {
    measured(|| {
        let end = std::time::Instant::now() + Duration::from_secs(2);
        while std::time::Instant::now() < end {
            compute(200_000);
            std::thread::sleep(Duration::from_micros(300));
        }
    })
}

/// Keeps a CPU for stretches that hold several short windows, each of them without a switch.
fn keep_a_cpu() -> (u32, u64) {
    measured(|| {
        // SAFETY: plain data, valid for the calls; this process alone is changed.
        let allowed = unsafe {
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu().cast_unsigned() as usize, &mut cpus);
            let priority = libc::sched_param { sched_priority: 1 };
            // A cgroup may have no time for real-time processes: the nicest to itself comes near.
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus) == 0
                && (libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0
                    || libc::setpriority(libc::PRIO_PROCESS, 0, -20) == 0)
        };
        for _ in 0..20 {
            // By its own time: what the hypervisor takes makes a stretch longer.
            let end = sys::thread_cpu() + 45_000_000;
            while allowed && sys::thread_cpu() < end {
                compute(20_000);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    })
}

fn compute(rounds: u64) {
    let mut x = 1u64;
    for i in 0..rounds {
        x = std::hint::black_box(x.wrapping_mul(i | 1));
    }
}

/// Runs `load` in a child; pid and CPU time by the kernel.
fn measured(load: impl FnOnce()) -> (u32, u64) {
    // SAFETY: the child only computes, sleeps and ends.
    let pid = match unsafe { libc::fork() } {
        0 => {
            load();
            // SAFETY: ends this process without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    };
    // SAFETY: plain data, filled in by the call below.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: our own child, and a valid structure to write to.
    unsafe { libc::wait4(pid, std::ptr::null_mut(), 0, &raw mut usage) };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    (u32::try_from(pid).unwrap(), ns(usage.ru_utime) + ns(usage.ru_stime))
}

/// Ours, the kernel's, and what may lie between them because of switches that the kernel does not
/// trace: each is put back by a stamp that may be as old as the last tick (4 ms at 250 Hz).
async fn compare(config: EbpfConfig, load: fn() -> (u32, u64)) -> (u64, u64, u64) {
    let (tell, told) = std::sync::mpsc::channel();
    let clock = config.clock;
    let (batches, counts) = record(config, move || tell.send(load()).unwrap()).await;
    check_promises(&batches);
    let (pid, kernel) = told.recv().unwrap();
    let ours = by_stream(&batches, pid);
    println!("{clock:?}: stream {ours} ns, kernel {kernel} ns, {counts:?}");
    let untraced =
        counts.iter().find(|(name, _)| name.ends_with("untraced_switches_total")).unwrap().1;
    (ours, kernel, untraced * 4_000_000)
}

fn of(clock: Clock) -> EbpfConfig {
    EbpfConfig { clock, ..config() }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn the_scheduler_s_clock_agrees_with_the_scheduler_s_account() {
    let (ours, kernel, hidden) = compare(of(Clock::Scheduler), work).await;
    // The kernel's figure is in whole microseconds, and misses the last moments of a process.
    assert!(ours.abs_diff(kernel) <= 300_000 + kernel / 2000 + hidden, "{ours} and {kernel}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn the_monotonic_clock_counts_stolen_time_too() {
    let (ours, kernel, hidden) = compare(of(Clock::Monotonic), work).await;
    // Time stolen between the scheduler's look at its clock and the probe's is not the process's here.
    assert!(ours + 300_000 + kernel / 200 + hidden >= kernel, "{ours} and {kernel}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn windows_without_a_switch_take_nothing_from_who_has_the_cpu() {
    let window = ConfigDuration::from_millis(10);
    let config = EbpfConfig { window, ..of(Clock::Scheduler) };
    let (ours, kernel, hidden) = compare(config, keep_a_cpu).await;
    assert!(kernel > 300_000_000, "{kernel} ns: it had no CPU to itself");
    assert!(ours.abs_diff(kernel) <= 300_000 + kernel / 200 + hidden, "{ours} and {kernel}");
}
