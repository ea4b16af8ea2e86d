//! Looking into a CPU's open batch while the CPU may be writing it: how the entries of an idle CPU
//! are fetched without waking it.
//!
//! The kernel side is the only writer (`ebpf-probe/src/batch.rs`). Of one batch, entries are only
//! appended; what was read is good if the batch was still the same afterwards, told by its sequence
//! number. A write that is under way on another CPU may be seen late, never half: entries are
//! stored before the count that covers them.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::atomic::{Ordering, fence},
};

use wattpipe_ebpf_probe_common::{
    BATCH_STRIDE, BatchHeader, ENTRY_BYTES, Entry, HEADER_BYTES, HEADER_OFFSET, MAX_BATCH,
    USED_OFFSET,
};

use super::sys::{Mapping, page_size};

/// More than enough: a batch goes out once in many switches.
const ATTEMPTS: usize = 8;

/// The mapped batches of all CPUs.
pub(crate) struct Batches {
    memory: Mapping,
    cpus: u32,
}

/// The newest entry a CPU has written, whether sent or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    /// The process that got the CPU; 0 for idle.
    pub(crate) next: u32,
    /// When.
    pub(crate) ts: u64,
}

impl Batches {
    pub(crate) fn new(fd: BorrowedFd<'_>, cpus: u32) -> io::Result<Self> {
        let bytes = (cpus as usize * BATCH_STRIDE).next_multiple_of(page_size());
        Ok(Self { memory: Mapping::new(fd, 0, bytes, false)?, cpus })
    }

    /// What the CPU has done last; `None` before its first entry, or when it writes too fast to see.
    pub(crate) fn newest(&self, cpu: u32) -> Option<Newest> {
        (0..ATTEMPTS).find_map(|_| {
            let header = self.header(cpu)?;
            let valid = if header.count > 0 { header.count } else { header.sent };
            let entry = self.entry(cpu, valid.checked_sub(1)? as usize)?;
            self.unchanged(cpu, &header).then_some(Some(Newest { next: entry.next, ts: entry.ts }))
        })?
    }

    /// Copies the entries of the open batch from `from` on into `out`.
    pub(crate) fn copy(&self, cpu: u32, from: u32, out: &mut Vec<Entry>) -> Option<BatchHeader> {
        (0..ATTEMPTS).find_map(|_| {
            out.clear();
            let header = self.header(cpu)?;
            for index in from..header.count.min(MAX_BATCH as u32) {
                out.push(self.entry(cpu, index as usize)?);
            }
            self.same_batch(cpu, &header).then_some(header)
        })
    }

    fn base(&self, cpu: u32) -> Option<usize> {
        (cpu < self.cpus).then_some(cpu as usize * BATCH_STRIDE)
    }

    fn header(&self, cpu: u32) -> Option<BatchHeader> {
        let base = self.base(cpu)?;
        let head = base + HEADER_OFFSET;
        let sequence = self.memory.u64(head)?.load(Ordering::Acquire);
        let lost = self.memory.u64(head + 8)?.load(Ordering::Acquire);
        let used = self.memory.u64(base + USED_OFFSET)?.load(Ordering::Acquire);
        Some(BatchHeader {
            sequence,
            lost,
            cpu,
            count: u32::try_from(used / ENTRY_BYTES as u64).unwrap_or(0),
            flags: self.memory.u32(head + 24)?.load(Ordering::Relaxed),
            sent: self.memory.u32(head + 28)?.load(Ordering::Relaxed),
        })
    }

    fn entry(&self, cpu: u32, index: usize) -> Option<Entry> {
        if index >= MAX_BATCH {
            return None;
        }
        let at = self.base(cpu)? + HEADER_OFFSET + HEADER_BYTES + index * ENTRY_BYTES;
        Some(Entry {
            ts: self.memory.u64(at)?.load(Ordering::Relaxed),
            cycles: self.memory.u64(at + 8)?.load(Ordering::Relaxed),
            prev: self.memory.u32(at + 16)?.load(Ordering::Relaxed),
            next: self.memory.u32(at + 20)?.load(Ordering::Relaxed),
        })
    }

    fn same_batch(&self, cpu: u32, before: &BatchHeader) -> bool {
        fence(Ordering::Acquire);
        self.header(cpu).is_some_and(|now| now.sequence == before.sequence)
    }

    fn unchanged(&self, cpu: u32, before: &BatchHeader) -> bool {
        fence(Ordering::Acquire);
        self.header(cpu)
            .is_some_and(|now| now.sequence == before.sequence && now.count == before.count)
    }
}
