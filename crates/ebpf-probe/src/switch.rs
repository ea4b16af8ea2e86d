//! `sched_switch`: one run per context switch, so every instruction here is paid a million times a
//! second. Variants are separate programs; userland loads one.

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::{btf_tracepoint, raw_tracepoint},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use wattpipe_ebpf_probe_common::{Entry, FLAG_CYCLES};

use crate::{
    access::{Access, Direct, Helper},
    batch,
    globals::offset,
    untraced,
};

/// Where an event's time comes from.
trait Clock {
    /// It is not `CLOCK_MONOTONIC`: each batch tells what that is at its first entry.
    const ANCHORED: bool;

    unsafe fn now<A: Access>(prev: *const u8, next: *const u8) -> u64;
}

/// `CLOCK_MONOTONIC`.
struct Monotonic;

impl Clock for Monotonic {
    const ANCHORED: bool = false;

    #[inline(always)]
    unsafe fn now<A: Access>(_prev: *const u8, _next: *const u8) -> u64 {
        unsafe { bpf_ktime_get_ns() }
    }
}

/// The run queue's clock: the class that just ran or is about to has stamped it into `exec_start`.
struct Scheduler;

impl Clock for Scheduler {
    const ANCHORED: bool = true;

    #[inline(always)]
    unsafe fn now<A: Access>(prev: *const u8, next: *const u8) -> u64 {
        let at = offset!(task_exec_start);
        let (prev, next) = unsafe { (A::read::<u64>(prev, at), A::read::<u64>(next, at)) };
        if prev > next { prev } else { next }
    }
}

/// The clock comes first: reading it waits for all that is before it, and what is after it runs
/// beside it. Then what needs a call, so that few values have to survive one.
#[inline(always)]
unsafe fn on_switch<A: Access, C: Clock, const CYCLES: bool>(
    prev: *const u8,
    next: *const u8,
) -> i32 {
    let ts = unsafe { C::now::<A>(prev, next) };
    let cycles = if CYCLES { batch::cycles() } else { 0 };
    let Some(batch) = batch::current() else { return 0 };
    let at = offset!(task_tgid);
    if batch.last_task != prev as u64 {
        let tgid = unsafe { A::read(prev, at) };
        untraced::put_back::<CYCLES>(batch, Entry { ts, cycles, prev: tgid, next: tgid });
    }
    batch.last_task = next as u64;
    let entry = unsafe { Entry { ts, cycles, prev: A::read(prev, at), next: A::read(next, at) } };
    if C::ANCHORED && batch.used == 0 {
        batch.header.anchor = unsafe { bpf_ktime_get_ns() };
    }
    let used = batch::push::<CYCLES>(batch, entry);
    batch::pushed(batch, used, if CYCLES { FLAG_CYCLES } else { 0 });
    0
}

macro_rules! variants {
    ($($btf:ident, $raw:ident: $clock:ty, $cycles:literal;)*) => {$(
        #[btf_tracepoint(function = "sched_switch")]
        pub fn $btf(ctx: BtfTracePointContext) -> i32 {
            // SAFETY: arguments 1 and 2 of the tracepoint are the tasks.
            unsafe { on_switch::<Direct, $clock, $cycles>(ctx.arg(1), ctx.arg(2)) }
        }

        #[raw_tracepoint(tracepoint = "sched_switch")]
        pub fn $raw(ctx: RawTracePointContext) -> i32 {
            // SAFETY: arguments 1 and 2 of the tracepoint are the tasks.
            unsafe { on_switch::<Helper, $clock, $cycles>(ctx.arg(1), ctx.arg(2)) }
        }
    )*};
}

variants! {
    switch_btf, switch_raw: Monotonic, false;
    switch_btf_cycles, switch_raw_cycles: Monotonic, true;
    switch_btf_sched, switch_raw_sched: Scheduler, false;
    switch_btf_sched_cycles, switch_raw_sched_cycles: Scheduler, true;
}
