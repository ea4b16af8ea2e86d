//! What the kernel programs write and userland reads: the one place where the event layout lives.
//!
//! Everything here is plain old data in native byte order, `#[repr(C)]`, without padding that could
//! carry uninitialised bytes. The layout changes only here; the tests pin it.
//!
//! Names: the kernel's `pid` is a thread, its `tgid` a process. A `prev`/`next` of 0 is the idle task.

#![no_std]

/// The most entries one batch can hold; `batch_events` chooses how many are collected.
pub const MAX_BATCH: usize = 128;

/// Bytes of one element of the batch map. A power of two, so that finding it takes no
/// multiplication; whole cache lines, so that two CPUs never write to the same one.
pub const BATCH_STRIDE: usize = 4096;

/// The last entry of the batch is a tick: it tells who runs on the CPU, it is no switch.
pub const FLAG_TICK: u32 = 1;
/// The entries' `cycles` are readings of the hardware's cycle counter.
pub const FLAG_CYCLES: u32 = 1 << 1;

/// Head of a batch of switches of one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchHeader {
    /// Number of this batch on its CPU, counted from 0; batches that were lost count too.
    pub sequence: u64,
    /// Switches of this CPU that were lost up to this batch, ever.
    pub lost: u64,
    /// The CPU.
    pub cpu: u32,
    /// Entries in this batch.
    pub count: u32,
    /// `FLAG_…` bits.
    pub flags: u32,
    /// Entries of the batch before this one: where, in the map, the newest entry lies while this one
    /// is empty.
    pub sent: u32,
    /// `CLOCK_MONOTONIC` at the first entry, where entries bear the run queue's clock; 0 where it was
    /// not read (the first entry is a tick or was put back), and with the other clock.
    pub anchor: u64,
}

/// One switch: `prev` leaves the CPU, `next` gets it. In a tick both are the running process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Nanoseconds of `CLOCK_MONOTONIC`, or of the run queue's clock (a tick: always of the former).
    pub ts: u64,
    /// The CPU's cycle counter, cumulative; 0 where the variant without it is loaded.
    pub cycles: u64,
    /// Process switched away from.
    pub prev: u32,
    /// Process switched to.
    pub next: u32,
}

/// What a CPU collects: an element of the batch map. A record of the ring is the part from the head
/// to the last entry.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub struct Batch {
    /// Address of the `task_struct` that got the CPU last; 0 before the first switch. Where the next
    /// switch leaves from another, one in between was not traced.
    pub last_task: u64,
    /// Bytes of `entries` that are valid.
    pub used: u64,
    /// Bytes of `entries` from which on the batch is sent; 0 before the first switch.
    pub limit: u64,
    /// The head; `count` and `flags` are set when it is sent.
    pub header: BatchHeader,
    /// The entries.
    pub entries: [Entry; MAX_BATCH],
}

/// Where, in an element of the batch map, the head lies.
pub const HEADER_OFFSET: usize = core::mem::offset_of!(Batch, header);
/// Where, in an element of the batch map, the number of valid bytes lies.
pub const USED_OFFSET: usize = core::mem::offset_of!(Batch, used);
/// Bytes of a batch's head.
pub const HEADER_BYTES: usize = size_of::<BatchHeader>();
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = size_of::<Entry>();

/// Bytes of a record that holds `count` entries.
#[inline(always)]
#[must_use]
pub const fn record_bytes(count: usize) -> usize {
    HEADER_BYTES + count * ENTRY_BYTES
}

/// What happened to a process.
pub mod life {
    /// It was there when the agent looked.
    pub const SNAPSHOT: u32 = 0;
    /// It was created.
    pub const FORK: u32 = 1;
    /// It runs another program now.
    pub const EXEC: u32 = 2;
    /// Its last thread has ended.
    pub const EXIT: u32 = 3;
    /// It was moved to another cgroup.
    pub const CGROUP: u32 = 4;
}

/// The process is a kernel thread.
pub const LIFE_KTHREAD: u32 = 1;

/// One event in the life of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeRecord {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub ts: u64,
    /// When the process began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_time: u64,
    /// Id (inode) of its cgroup in the hierarchy in use; 0 where unknown.
    pub cgroup: u64,
    /// The process.
    pub pid: u32,
    /// Its parent process.
    pub ppid: u32,
    /// Its real user id in the initial user namespace.
    pub uid: u32,
    /// One of `life`.
    pub kind: u32,
    /// `LIFE_…` bits.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
    /// Its name, padded with zeros.
    pub comm: [u8; 16],
}

/// Per-CPU counters of rare events, a cache line each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Life-cycle records that found the ring full.
    pub life_lost: u64,
    /// Switches that the tracepoint did not show, and that were put back in.
    pub untraced: u64,
}

/// Which cgroup of a task counts.
pub mod hierarchy {
    /// The unified hierarchy.
    pub const V2: u32 = 0;
    /// The v1 hierarchy of the controller whose index is in `Offsets::cgroup_key`.
    pub const SUBSYS: u32 = 1;
    /// The v1 hierarchy whose id is in `Offsets::cgroup_key` (`name=systemd` has no controller).
    pub const NAMED: u32 = 2;
}

/// Where things lie in the running kernel's structures, in bytes; userland fills it in from the
/// kernel's BTF, the verifier sees constants.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each field is named after the kernel's: structure_member")]
pub struct Offsets {
    pub task_tgid: u32,
    pub task_pid: u32,
    pub task_start_time: u32,
    pub task_group_leader: u32,
    pub task_real_parent: u32,
    pub task_cred: u32,
    pub task_cgroups: u32,
    pub task_flags: u32,
    pub task_comm: u32,
    pub task_signal: u32,
    pub task_exec_start: u32,
    pub task_sum_exec: u32,
    pub task_prev_sum_exec: u32,
    pub signal_live: u32,
    pub cred_uid: u32,
    pub css_set_dfl_cgrp: u32,
    pub css_set_subsys: u32,
    pub css_set_cgrp_links: u32,
    pub css_cgroup: u32,
    pub cgroup_kn: u32,
    pub cgroup_root: u32,
    pub root_hierarchy_id: u32,
    pub link_cgrp: u32,
    pub link_cgrp_link: u32,
    pub kn_id: u32,
    /// One of `hierarchy`.
    pub cgroup_hierarchy: u32,
    /// Controller index or hierarchy id, see `hierarchy`.
    pub cgroup_key: u32,
    pub reserved: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{align_of, offset_of};

    #[test]
    fn batch_layout_is_pinned() {
        assert_eq!(HEADER_BYTES, 40);
        assert_eq!(ENTRY_BYTES, 24);
        assert_eq!(offset_of!(BatchHeader, sequence), 0);
        assert_eq!(offset_of!(BatchHeader, lost), 8);
        assert_eq!(offset_of!(BatchHeader, cpu), 16);
        assert_eq!(offset_of!(BatchHeader, count), 20);
        assert_eq!(offset_of!(BatchHeader, flags), 24);
        assert_eq!(offset_of!(BatchHeader, sent), 28);
        assert_eq!(offset_of!(BatchHeader, anchor), 32);
        assert_eq!(offset_of!(Entry, ts), 0);
        assert_eq!(offset_of!(Entry, cycles), 8);
        assert_eq!(offset_of!(Entry, prev), 16);
        assert_eq!(offset_of!(Entry, next), 20);
        assert_eq!(offset_of!(Batch, used), 8);
        assert_eq!(HEADER_OFFSET, 24);
        assert_eq!(offset_of!(Batch, entries), HEADER_OFFSET + HEADER_BYTES);
        assert_eq!(size_of::<Batch>(), BATCH_STRIDE);
        assert_eq!(record_bytes(MAX_BATCH), 3112);
    }

    #[test]
    fn life_layout_is_pinned() {
        assert_eq!(size_of::<LifeRecord>(), 64);
        assert_eq!(align_of::<LifeRecord>(), 8);
        assert_eq!(offset_of!(LifeRecord, pid), 24);
        assert_eq!(offset_of!(LifeRecord, kind), 36);
        assert_eq!(offset_of!(LifeRecord, comm), 48);
        assert_eq!(size_of::<Counters>(), 64);
        assert_eq!(size_of::<Offsets>() % 8, 0);
    }
}
