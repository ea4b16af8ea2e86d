//! `flush`: run by userland on a chosen CPU (BPF_PROG_TEST_RUN) right after it has taken an edge.
//! It appends who runs now, which also proves that nothing of that CPU's past is still to come, and
//! sends what there is.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, bpf_ktime_get_ns};
use wattpipe_ebpf_probe_common::{Entry, FLAG_CYCLES, FLAG_TICK};

use crate::{batch, globals::scheduler_clock, untraced};

/// 1: sent. 0: the ring is full, nothing has changed, and userland can drain it and ask again.
#[inline(always)]
fn flush_now<const CYCLES: bool>() -> i32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let entry = Entry {
        ts: unsafe { bpf_ktime_get_ns() },
        cycles: if CYCLES { batch::cycles() } else { 0 },
        prev: tgid,
        next: tgid,
    };
    let Some(batch) = batch::current() else { return 0 };
    let current = unsafe { bpf_get_current_task() };
    if batch.last_task != current {
        // Other entries than a tick bear the clock of switches; by that one, the task that runs had
        // the CPU when it was last accounted for.
        let ts = if scheduler_clock() { untraced::accounted(current) } else { entry.ts };
        untraced::put_back::<CYCLES>(batch, Entry { ts, ..entry });
        batch.last_task = current;
    }
    if batch.used == 0 {
        batch.header.anchor = 0;
    }
    let before = batch.used;
    let used = batch::push::<CYCLES>(batch, entry);
    let flags = FLAG_TICK | if CYCLES { FLAG_CYCLES } else { 0 };
    if batch::output(batch, used, flags) {
        batch::next(batch);
        1
    } else {
        batch::publish(batch, before);
        0
    }
}

/// The return value is the answer to userland, which the attribute macro would throw away.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
pub extern "C" fn flush(_ctx: *mut c_void) -> i32 {
    flush_now::<false>()
}

/// `flush` where cycles are counted.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
pub extern "C" fn flush_cycles(_ctx: *mut c_void) -> i32 {
    flush_now::<true>()
}
