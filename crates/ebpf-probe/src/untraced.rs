//! Switches that the tracepoint does not show.
//!
//! On some kernels a few tasks leave the CPU without `sched_switch` firing (seen: threads of pid 1 of
//! a microVM). The next switch then leaves from another task than the last one went to. Left alone,
//! the task would seem to run until that next switch; so the missing switch is put back in, at the
//! time that the scheduler's own accounting tells.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use wattpipe_ebpf_probe_common::{Batch, Entry, FLAG_CYCLES};

use crate::{
    batch,
    globals::{counters, offset},
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
    let between = now.ts.saturating_sub(last.ts);
    let ran = ran(batch.last_task).min(between);
    let cycles = if CYCLES {
        // In proportion; scaled down so that nothing overflows.
        let rate = now.cycles.saturating_sub(last.cycles) / ((between >> 10) | 1);
        (last.cycles + rate * (ran >> 10)).min(now.cycles)
    } else {
        0
    };
    let missed = Entry { ts: last.ts + ran, cycles, prev: last.next, next: now.prev };
    let used = batch::push::<CYCLES>(batch, missed);
    batch::pushed(batch, used, if CYCLES { FLAG_CYCLES } else { 0 });
    if let Some(counters) = counters() {
        counters.untraced += 1;
    }
}

/// How long a task ran when it last had a CPU, by the scheduler. The task may be gone: the helper
/// reads what is there, and the caller limits the result.
#[inline(always)]
fn ran(task: u64) -> u64 {
    let task = task as *const u8;
    let read = |at: usize| {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(task.wrapping_add(at).cast::<u64>()) }.unwrap_or(0)
    };
    read(offset!(task_sum_exec)).saturating_sub(read(offset!(task_prev_sum_exec)))
}
