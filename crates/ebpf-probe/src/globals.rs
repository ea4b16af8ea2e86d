//! Constants that userland sets before the programs are loaded, and the maps.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    helpers::bpf_get_smp_processor_id,
    macros::map,
    maps::{Array, PerfEventArray, RingBuf},
};
use wattpipe_ebpf_probe_common::{Batch, Counters, Offsets};

/// Offsets of kernel structures, from BTF.
#[unsafe(no_mangle)]
pub(crate) static OFFSETS: Offsets = Offsets {
    task_tgid: 0,
    task_pid: 0,
    task_start_time: 0,
    task_group_leader: 0,
    task_real_parent: 0,
    task_cred: 0,
    task_cgroups: 0,
    task_flags: 0,
    task_comm: 0,
    task_signal: 0,
    task_exec_start: 0,
    task_sum_exec: 0,
    task_prev_sum_exec: 0,
    signal_live: 0,
    cred_uid: 0,
    css_set_dfl_cgrp: 0,
    css_set_subsys: 0,
    css_set_cgrp_links: 0,
    css_cgroup: 0,
    cgroup_kn: 0,
    cgroup_root: 0,
    root_hierarchy_id: 0,
    link_cgrp: 0,
    link_cgrp_link: 0,
    kn_id: 0,
    cgroup_hierarchy: 0,
    cgroup_key: 0,
    reserved: 0,
};

/// Switches a CPU collects before it sends them, 1 to `MAX_BATCH`.
#[unsafe(no_mangle)]
static BATCH_EVENTS: u32 = 128;

/// Bytes waiting in the switch ring from which on a batch wakes the reader.
#[unsafe(no_mangle)]
static WATERMARK: u64 = 1 << 21;

/// The same for the life-cycle ring.
#[unsafe(no_mangle)]
static LIFE_WATERMARK: u64 = 1 << 16;

/// 1 where entries bear the run queue's clock.
#[unsafe(no_mangle)]
static SCHEDULER_CLOCK: u32 = 0;

/// Reads a constant that userland may have overridden; volatile, or the compiler would use the
/// value above.
#[inline(always)]
pub(crate) fn constant<T: Copy>(place: &'static T) -> T {
    // SAFETY: a valid reference, to what no program writes.
    unsafe { core::ptr::read_volatile(place) }
}

#[inline(always)]
pub(crate) fn batch_events() -> u32 {
    constant(&BATCH_EVENTS)
}

#[inline(always)]
pub(crate) fn watermark() -> u64 {
    constant(&WATERMARK)
}

#[inline(always)]
pub(crate) fn life_watermark() -> u64 {
    constant(&LIFE_WATERMARK)
}

#[inline(always)]
pub(crate) fn scheduler_clock() -> bool {
    constant(&SCHEDULER_CLOCK) != 0
}

/// One of the offsets: `offset!(task_tgid)`.
macro_rules! offset {
    ($field:ident) => {
        $crate::globals::constant(&$crate::globals::OFFSETS.$field) as usize
    };
}
pub(crate) use offset;

/// Batches on their way to userland. Userland sets the size.
#[map]
pub(crate) static SWITCHES: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

/// Each CPU's open batch, by CPU number. A plain array, for two reasons: userland maps it and peeks
/// without a system call, and its look-up is inlined by every kernel, which that of a per-CPU array
/// is only from 6.10 on. Userland sets the number of CPUs.
#[map]
pub(crate) static BATCHES: Array<Batch> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Life-cycle records on their way to userland.
#[map]
pub(crate) static LIFE: RingBuf = RingBuf::with_byte_size(1 << 18, 0);

/// Counters of rare events, by CPU number.
#[map]
pub(crate) static COUNTERS: Array<Counters> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// This CPU's counters. Programs that count cannot be preempted by others that do.
#[inline(always)]
pub(crate) fn counters() -> Option<&'static mut Counters> {
    let cpu = unsafe { bpf_get_smp_processor_id() };
    // SAFETY: this CPU's element.
    COUNTERS.get_ptr_mut(cpu).map(|counters| unsafe { &mut *counters })
}

/// The cycle counter of each CPU. Userland opens the events and sets the number of CPUs.
#[map]
pub(crate) static CYCLES: PerfEventArray<u32> = PerfEventArray::new(0);
