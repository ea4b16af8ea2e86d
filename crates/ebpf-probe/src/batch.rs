//! A CPU's batch: how entries get in and how it gets out.
//!
//! Written only by `switch` and `flush`, both on their own CPU with interrupts off, so there is one
//! writer and no lock. Userland reads it while it is written (see `ebpf/peek.rs`): entries are stored
//! before the count that covers them, and the count is cleared before the sequence moves on.

use core::{
    mem::MaybeUninit,
    sync::atomic::{Ordering, compiler_fence},
};

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, bpf_perf_event_value},
    helpers::{bpf_get_smp_processor_id, bpf_perf_event_read_value},
};
use wattpipe_ebpf_probe_common::{Batch, ENTRY_BYTES, Entry, HEADER_BYTES, MAX_BATCH};

use crate::globals::{BATCHES, CYCLES, SWITCHES, watermark};

/// This CPU's batch.
#[inline(always)]
pub(crate) fn current() -> Option<&'static mut Batch> {
    let cpu = unsafe { bpf_get_smp_processor_id() };
    // SAFETY: the element of this CPU, which only programs on this CPU with interrupts off write.
    BATCHES.get_ptr_mut(cpu).map(|batch| unsafe { &mut *batch })
}

/// Appends an entry and returns how many there are now.
#[inline(always)]
pub(crate) fn push(batch: &mut Batch, entry: Entry) -> u32 {
    // The mask is for the verifier: the count is below MAX_BATCH after every run.
    let index = batch.header.count as usize & (MAX_BATCH - 1);
    // SAFETY: masked to the array's length.
    unsafe { *batch.entries.as_mut_ptr().add(index) = entry };
    index as u32 + 1
}

/// Publishes the count, after the entries it covers.
#[inline(always)]
pub(crate) fn publish(batch: &mut Batch, count: u32) {
    compiler_fence(Ordering::Release);
    // SAFETY: a field of a valid batch; volatile so that it stays after the fence.
    unsafe { core::ptr::write_volatile(&raw mut batch.header.count, count) };
}

/// Sends the first `count` entries. The reader is woken once much is waiting, otherwise it comes by
/// itself at the next window's edge: its own wakeups are switches too.
#[inline(always)]
pub(crate) fn output(batch: &mut Batch, count: u32, flags: u32) -> bool {
    let count = if count > MAX_BATCH as u32 { MAX_BATCH as u32 } else { count };
    batch.header.cpu = unsafe { bpf_get_smp_processor_id() };
    batch.header.flags = flags;
    batch.header.count = count;
    let bytes = HEADER_BYTES + count as usize * ENTRY_BYTES;
    let wakeup = if SWITCHES.query(BPF_RB_AVAIL_DATA.into()) >= watermark() {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    // SAFETY: `bytes` is at most the size of the batch.
    let data =
        unsafe { core::slice::from_raw_parts((&raw const batch.header).cast::<u8>(), bytes) };
    SWITCHES.output::<[u8]>(data, wakeup.into()).is_ok()
}

/// Opens the next batch.
#[inline(always)]
pub(crate) fn next(batch: &mut Batch, sent: u32) {
    batch.header.sent = sent;
    publish(batch, 0);
    compiler_fence(Ordering::Release);
    let sequence = batch.header.sequence + 1;
    // SAFETY: a field of a valid batch; volatile so that it stays after the fence.
    unsafe { core::ptr::write_volatile(&raw mut batch.header.sequence, sequence) };
}

/// This CPU's cycle counter; 0 when it cannot be read.
#[inline(always)]
pub(crate) fn cycles() -> u64 {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    let mut value = MaybeUninit::<bpf_perf_event_value>::uninit();
    // SAFETY: the map is a perf event array and the buffer has the size given; the helper fills it
    // in any case, with zeros when it fails.
    unsafe {
        bpf_perf_event_read_value(
            (&raw const CYCLES).cast_mut().cast(),
            CURRENT_CPU,
            value.as_mut_ptr(),
            size_of::<bpf_perf_event_value>() as u32,
        );
        (*value.as_ptr()).counter
    }
}

/// Sends the batch, counts it as lost where that fails, and opens the next.
#[inline(always)]
pub(crate) fn send(batch: &mut Batch, count: u32, flags: u32) {
    let sent = output(batch, count, flags);
    next(batch, count);
    if !sent {
        // After the sequence has moved on, so that a peek never takes these for a loss before them.
        batch.header.lost += u64::from(count);
    }
}

/// The batch's newest entry, sent or not.
#[inline(always)]
pub(crate) fn newest(batch: &Batch) -> Entry {
    let valid = if batch.header.count > 0 { batch.header.count } else { batch.header.sent };
    let index = valid.wrapping_sub(1) as usize & (MAX_BATCH - 1);
    // SAFETY: masked to the array's length.
    unsafe { *batch.entries.as_ptr().add(index) }
}
