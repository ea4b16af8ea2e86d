//! A CPU's batch: how entries get in and how it gets out.
//!
//! Written only by `switch` and `flush`, both on their own CPU with interrupts off, so there is one
//! writer and no lock. Userland reads it while it is written (see `ebpf/peek.rs`): entries are stored
//! before the size that covers them, and the size is cleared before the sequence moves on.

use core::{
    mem::MaybeUninit,
    sync::atomic::{Ordering, compiler_fence},
};

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, bpf_perf_event_value},
    helpers::{bpf_get_smp_processor_id, bpf_perf_event_read_value},
};
use wattpipe_ebpf_probe_common::{Batch, ENTRY_BYTES, Entry, HEADER_BYTES, MAX_BATCH};

use crate::globals::{BATCHES, CYCLES, SWITCHES, batch_events, watermark};

const ENTRY: u64 = ENTRY_BYTES as u64;
/// Where the last entry that fits begins.
const LAST: u64 = (MAX_BATCH as u64 - 1) * ENTRY;

/// This CPU's batch.
#[inline(always)]
pub(crate) fn current() -> Option<&'static mut Batch> {
    let cpu = unsafe { bpf_get_smp_processor_id() };
    // SAFETY: the element of this CPU, which only programs on this CPU with interrupts off write.
    BATCHES.get_ptr_mut(cpu).map(|batch| unsafe { &mut *batch })
}

/// Appends an entry and returns the bytes used by then. Without cycles their place is left alone: it
/// is 0 from the beginning.
#[inline(always)]
pub(crate) fn push<const CYCLES: bool>(batch: &mut Batch, entry: Entry) -> u64 {
    // The comparison is for the verifier: a batch is sent before it is full.
    let used = if batch.used > LAST { 0 } else { batch.used };
    // SAFETY: at or before the last entry.
    unsafe {
        let place = batch.entries.as_mut_ptr().byte_add(used as usize);
        (*place).ts = entry.ts;
        if CYCLES {
            (*place).cycles = entry.cycles;
        }
        (*place).prev = entry.prev;
        (*place).next = entry.next;
    }
    used + ENTRY
}

/// Publishes the size, after the entries it covers.
#[inline(always)]
pub(crate) fn publish(batch: &mut Batch, used: u64) {
    compiler_fence(Ordering::Release);
    // SAFETY: a field of a valid batch; volatile so that it stays after the fence.
    unsafe { core::ptr::write_volatile(&raw mut batch.used, used) };
}

/// What to do once an entry has been pushed.
#[inline(always)]
pub(crate) fn pushed(batch: &mut Batch, used: u64, flags: u32) {
    if used < batch.limit {
        publish(batch, used);
    } else {
        full(batch, used, flags);
    }
}

/// Sends the batch, counts it as lost where that fails, and opens the next. The very first entry gets
/// here too, and sets the limit.
#[inline(always)]
fn full(batch: &mut Batch, used: u64, flags: u32) {
    batch.limit = u64::from(batch_events()) * ENTRY;
    if used < batch.limit {
        return publish(batch, used);
    }
    let sent = output(batch, used, flags);
    let count = batch.header.count;
    next(batch);
    if !sent {
        // After the sequence has moved on, so that a peek never takes these for a loss before them.
        batch.header.lost += u64::from(count);
    }
}

/// Sends the first `used` bytes. The reader is woken once much is waiting, otherwise it comes by
/// itself at the next window's edge: its own wakeups are switches too.
#[inline(always)]
pub(crate) fn output(batch: &mut Batch, used: u64, flags: u32) -> bool {
    batch.header.cpu = unsafe { bpf_get_smp_processor_id() };
    batch.header.flags = flags;
    let wakeup = if SWITCHES.query(BPF_RB_AVAIL_DATA.into()) >= watermark() {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    // For the verifier, and after the call above: before 5.11 it forgets the bounds of what has to
    // be kept on the stack meanwhile.
    let used = core::hint::black_box(used);
    let used = if used > LAST + ENTRY { LAST + ENTRY } else { used };
    batch.header.count = (used / ENTRY) as u32;
    let bytes = HEADER_BYTES + used as usize;
    // SAFETY: head and entries follow one another, and `bytes` ends with the last entry.
    let data =
        unsafe { core::slice::from_raw_parts((&raw const batch.header).cast::<u8>(), bytes) };
    SWITCHES.output::<[u8]>(data, wakeup.into()).is_ok()
}

/// Opens the next batch, after one of `header.count` entries.
#[inline(always)]
pub(crate) fn next(batch: &mut Batch) {
    batch.header.sent = batch.header.count;
    publish(batch, 0);
    compiler_fence(Ordering::Release);
    let sequence = batch.header.sequence + 1;
    // SAFETY: a field of a valid batch; volatile so that it stays after the fence.
    unsafe { core::ptr::write_volatile(&raw mut batch.header.sequence, sequence) };
}

/// The batch's newest entry, sent or not.
#[inline(always)]
pub(crate) fn newest(batch: &Batch) -> Entry {
    let valid = if batch.used > 0 { (batch.used / ENTRY) as u32 } else { batch.header.sent };
    let index = valid.wrapping_sub(1) as usize & (MAX_BATCH - 1);
    // SAFETY: masked to the array's length.
    unsafe { *batch.entries.as_ptr().add(index) }
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
