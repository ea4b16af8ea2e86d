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
            anchor: self.memory.u64(head + 32)?.load(Ordering::Relaxed),
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

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::fd::{AsFd, FromRawFd},
        sync::atomic::AtomicBool,
    };

    use super::*;

    fn memory() -> File {
        // SAFETY: a valid name; the descriptor is new and ours.
        let file = unsafe {
            File::from_raw_fd(libc::memfd_create(c"batches".as_ptr(), libc::MFD_CLOEXEC))
        };
        file.set_len(BATCH_STRIDE.next_multiple_of(page_size()) as u64).unwrap();
        file
    }

    /// Writes as the probe does: entry, then size; size cleared, then sequence.
    struct Writer {
        memory: Mapping,
        written: u64,
    }

    impl Writer {
        fn new(file: &File) -> Self {
            let bytes = BATCH_STRIDE.next_multiple_of(page_size());
            Self { memory: Mapping::new(file.as_fd(), 0, bytes, true).unwrap(), written: 0 }
        }

        fn push(&mut self, limit: u64) {
            self.written += 1;
            let used = self.memory.u64(USED_OFFSET).unwrap();
            let at = used.load(Ordering::Relaxed) as usize;
            let place = HEADER_OFFSET + HEADER_BYTES + at;
            self.memory.u64(place).unwrap().store(self.written, Ordering::Relaxed);
            let next = self.memory.u32(place + 20).unwrap();
            next.store(self.written as u32, Ordering::Relaxed);
            let now = (at + ENTRY_BYTES) as u64;
            if now < limit * ENTRY_BYTES as u64 {
                used.store(now, Ordering::Release);
                return;
            }
            self.memory.u32(HEADER_OFFSET + 28).unwrap().store(limit as u32, Ordering::Relaxed);
            used.store(0, Ordering::Release);
            let sequence = self.memory.u64(HEADER_OFFSET).unwrap();
            sequence.store(sequence.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
    }

    #[test]
    fn what_is_there_is_seen() {
        let file = memory();
        let (batches, mut writer) = (Batches::new(file.as_fd(), 1).unwrap(), Writer::new(&file));
        assert_eq!(batches.newest(0), None);
        let mut entries = Vec::new();
        for written in 1..=10 {
            writer.push(4);
            assert_eq!(batches.newest(0), Some(Newest { next: written, ts: written.into() }));
            let header = batches.copy(0, 1, &mut entries).unwrap();
            assert_eq!((header.sequence, header.count), (u64::from(written / 4), written % 4));
            assert_eq!(entries.len(), (written % 4).saturating_sub(1) as usize);
        }
        assert_eq!(batches.newest(1), None, "no such CPU");
        assert!(batches.copy(1, 0, &mut entries).is_none());
    }

    #[test]
    fn a_copy_is_never_torn() {
        let file = memory();
        let (batches, mut writer) = (Batches::new(file.as_fd(), 1).unwrap(), Writer::new(&file));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    writer.push(100);
                }
                done.store(true, Ordering::Release);
            });
            let mut entries = Vec::new();
            while !done.load(Ordering::Acquire) {
                if let Some(header) = batches.copy(0, 0, &mut entries) {
                    let first = header.sequence * 100 + 1;
                    for (entry, expected) in entries.iter().zip(first..) {
                        assert_eq!((entry.ts, u64::from(entry.next)), (expected, expected));
                    }
                    assert_eq!(entries.len(), header.count as usize);
                }
                if let Some(newest) = batches.newest(0) {
                    assert_eq!(newest.ts, u64::from(newest.next));
                }
            }
        });
    }
}
