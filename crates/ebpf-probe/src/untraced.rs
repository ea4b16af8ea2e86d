//! Switches that the tracepoint does not show.
//!
//! On some kernels a few tasks leave the CPU without `sched_switch` firing (seen: threads of pid 1 of
//! a microVM). The next switch then leaves from another task than the last one went to. Left alone,
//! the task would seem to run until that next switch; so the missing switch is put back in, at the
//! time that the scheduler's own accounting tells: by the monotonic clock after what the task ran, by
//! the run queue's clock when it was last accounted for.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use wattpipe_ebpf_probe_common::{Batch, Entry, FLAG_CYCLES, FLAG_TICK};

use crate::{
    batch,
    globals::{counters, offset, scheduler_clock},
};

/// Puts the switch from the last task to `now.prev` before `now`. Cold: never runs on most kernels.
#[inline(always)]
pub(crate) fn put_back<const CYCLES: bool>(batch: &mut Batch, now: Entry) {
    if CYCLES {
        put_back_with_cycles(batch, now.ts, now.prev, now.cycles);
    } else {
        put_back_plain(batch, now.ts, now.prev);
    }
}

// Functions of their own, so that the hot path stays short; with plain names, since a mangled one
// would hold a hash of the build's directory.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn put_back_plain(batch: &mut Batch, ts: u64, prev: u32) {
    insert::<false>(batch, Entry { ts, cycles: 0, prev, next: prev });
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn put_back_with_cycles(batch: &mut Batch, ts: u64, prev: u32, cycles: u64) {
    insert::<true>(batch, Entry { ts, cycles, prev, next: prev });
}

#[inline(always)]
fn insert<const CYCLES: bool>(batch: &mut Batch, now: Entry) {
    if batch.last_task == 0 {
        return;
    }
    let last = batch::newest(batch);
    let (since, ran) = if scheduler_clock() {
        let left = accounted(batch.last_task).min(now.ts);
        // A tick bears the other clock: how long the task ran since is not known then, but when it
        // left is.
        let tick = batch.used == 0 && batch.header.flags & FLAG_TICK != 0;
        let since = if tick { left } else { last.ts };
        (since, left.saturating_sub(since))
    } else {
        (last.ts, ran(batch.last_task))
    };
    let between = now.ts.saturating_sub(since);
    let ran = ran.min(between);
    if batch.used == 0 {
        // What `CLOCK_MONOTONIC` was then is not known.
        batch.header.anchor = 0;
    }
    let cycles = if CYCLES {
        // In proportion; scaled down so that nothing overflows.
        let rate = now.cycles.saturating_sub(last.cycles) / ((between >> 10) | 1);
        (last.cycles + rate * (ran >> 10)).min(now.cycles)
    } else {
        0
    };
    let missed = Entry { ts: since + ran, cycles, prev: last.next, next: now.prev };
    let used = batch::push::<CYCLES>(batch, missed);
    batch::pushed(batch, used, if CYCLES { FLAG_CYCLES } else { 0 });
    if let Some(counters) = counters() {
        counters.untraced += 1;
    }
}

/// How long a task ran when it last had a CPU, by the scheduler. The caller limits the result.
#[inline(always)]
fn ran(task: u64) -> u64 {
    read(task, offset!(task_sum_exec)).saturating_sub(read(task, offset!(task_prev_sum_exec)))
}

/// When a task's run time was last accounted for, by the run queue's clock: for one that has left its
/// CPU, when it did.
#[inline(always)]
pub(crate) fn accounted(task: u64) -> u64 {
    read(task, offset!(task_exec_start))
}

/// The number at `offset` of a task, which may be gone: what is there then, or 0.
#[inline(always)]
fn read(task: u64, offset: usize) -> u64 {
    let place = (task as *const u8).wrapping_add(offset).cast::<u64>();
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(place) }.unwrap_or(0)
}
