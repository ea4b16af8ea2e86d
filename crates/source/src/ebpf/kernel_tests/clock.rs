//! CPU time by either clock against the kernel's own account of a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use wattpipe_pipeline::{batch::SwitchBatch, units::Tgid};

use super::{
    super::{Clock, EbpfConfig},
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
    // SAFETY: the child only computes, sleeps and ends.
    let pid = match unsafe { libc::fork() } {
        0 => {
            let end = std::time::Instant::now() + Duration::from_secs(2);
            let mut x = 1u64;
            while std::time::Instant::now() < end {
                for i in 0..200_000 {
                    x = std::hint::black_box(x.wrapping_mul(i | 1));
                }
                std::thread::sleep(Duration::from_micros(300));
            }
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
async fn compare(clock: Clock) -> (u64, u64, u64) {
    let (tell, told) = std::sync::mpsc::channel();
    let (batches, counts) =
        record(EbpfConfig { clock, ..config() }, move || tell.send(work()).unwrap()).await;
    check_promises(&batches);
    let (pid, kernel) = told.recv().unwrap();
    let ours = by_stream(&batches, pid);
    println!("{clock:?}: stream {ours} ns, kernel {kernel} ns, {counts:?}");
    let untraced =
        counts.iter().find(|(name, _)| name.ends_with("untraced_switches_total")).unwrap().1;
    (ours, kernel, untraced * 4_000_000)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn the_scheduler_s_clock_agrees_with_the_scheduler_s_account() {
    let (ours, kernel, hidden) = compare(Clock::Scheduler).await;
    // The kernel's figure is in whole microseconds, and misses the last moments of a process.
    assert!(ours.abs_diff(kernel) <= 300_000 + kernel / 2000 + hidden, "{ours} and {kernel}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn the_monotonic_clock_counts_stolen_time_too() {
    let (ours, kernel, hidden) = compare(Clock::Monotonic).await;
    // Time stolen between the scheduler's look at its clock and the probe's is not the process's here.
    assert!(ours + 300_000 + kernel / 200 + hidden >= kernel, "{ours} and {kernel}");
}
