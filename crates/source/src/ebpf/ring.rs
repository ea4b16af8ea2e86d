//! Reading a BPF ring buffer.
//!
//! aya has a reader; this one differs in what the merge of two rings needs: it tells the producer's
//! position, and drains up to a position instead of to the end. What the records hold is decoded
//! elsewhere, from plain slices, so that it can be tested on hostile input.

use std::{io, os::fd::BorrowedFd, sync::atomic::Ordering};

use super::sys::{Mapping, page_size};

/// The record is still being written.
const BUSY: u32 = 1 << 31;
/// The record was given up by its writer.
const DISCARDED: u32 = 1 << 30;
const RECORD_HEADER: usize = 8;
/// A writer holds a record for the length of a copy, with interrupts off, so it is done in a moment,
/// unless the hypervisor has stopped its CPU. Past this many turns the drain goes on without it.
const PATIENCE: u32 = if cfg!(test) { 1_000 } else { 200_000 };

/// A ring, as its only reader.
pub(crate) struct Ring {
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    mask: usize,
    /// Where this reader is: the kernel's copy is only ever written.
    position: usize,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// All records up to the position asked for were read.
    Complete,
    /// A record before it stayed unfinished, or the ring made no sense; the rest is still there.
    Stuck,
}

impl Ring {
    /// Maps the ring `fd` of `bytes` bytes.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let page = page_size();
        // The data pages are mapped twice in a row, so that no record is ever split.
        let consumer = Mapping::new(fd, 0, page, true)?;
        let producer = Mapping::new(fd, page, page + 2 * bytes, false)?;
        let position = consumer.word(0).map_or(0, |w| w.load(Ordering::Acquire));
        Ok(Self { consumer, producer, page, mask: bytes - 1, position })
    }

    /// Up to where writers have reserved.
    pub(crate) fn head(&self) -> usize {
        // Acquire: the headers of the records before this position are visible.
        self.producer.word(0).map_or(self.position, |w| w.load(Ordering::Acquire))
    }

    /// Bytes that wait to be read.
    pub(crate) fn pending(&self) -> usize {
        self.head().wrapping_sub(self.position)
    }

    /// Whether every record up to `limit` has been read.
    pub(crate) fn reached(&self, limit: usize) -> bool {
        limit.wrapping_sub(self.position).cast_signed() <= 0
    }

    /// Hands every record up to `limit` to `each`; its memory is free for writers afterwards.
    pub(crate) fn drain_to(&mut self, limit: usize, each: impl FnMut(&[u8])) -> Drained {
        self.drain_some(limit, usize::MAX, each).0
    }

    /// The same, but stops once `bytes` were read; whether it stopped short of `limit`.
    pub(crate) fn drain_some(
        &mut self,
        limit: usize,
        bytes: usize,
        mut each: impl FnMut(&[u8]),
    ) -> (Drained, bool) {
        let waiting = limit.wrapping_sub(self.position);
        let (limit, short) = if waiting.cast_signed() > 0 && waiting > bytes {
            (self.position.wrapping_add(bytes), true)
        } else {
            (limit, false)
        };
        let mut end = Drained::Complete;
        while !self.reached(limit) {
            let Some((length, discarded)) = self.next_length() else {
                end = Drained::Stuck;
                break;
            };
            let at = self.page + (self.position & self.mask) + RECORD_HEADER;
            if !discarded {
                let Some(data) = self.producer.at::<u8>(at, length) else {
                    end = Drained::Stuck;
                    break;
                };
                // SAFETY: inside the mapping; the record is committed, so no one writes to it until
                // the consumer's position has passed it, which happens below.
                each(unsafe { std::slice::from_raw_parts(data, length) });
            }
            self.position =
                self.position.wrapping_add((RECORD_HEADER + length).next_multiple_of(8));
            if let Some(position) = self.consumer.word(0) {
                // Release: the record has been read before a writer may reuse its memory.
                position.store(self.position, Ordering::Release);
            }
        }
        (end, short && end == Drained::Complete)
    }

    /// Length of the next record and whether it was discarded, once it is finished.
    fn next_length(&self) -> Option<(usize, bool)> {
        let header = self.producer.u32(self.page + (self.position & self.mask))?;
        for turn in 0..PATIENCE {
            // Acquire: pairs with the writer's commit.
            let word = header.load(Ordering::Acquire);
            if word & BUSY == 0 {
                let length = (word & !DISCARDED) as usize;
                return (length <= self.mask).then_some((length, word & DISCARDED != 0));
            }
            if turn > 100 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        None
    }
}

#[cfg(test)]
mod memory;

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::{
            fd::{AsFd, FromRawFd},
            unix::fs::FileExt,
        },
    };

    use super::*;

    /// A file laid out like a ring: consumer's page, producer's page, the data twice.
    struct Fake {
        file: File,
        bytes: usize,
    }

    impl Fake {
        fn new() -> Self {
            // SAFETY: a valid name; the descriptor is new and ours.
            let file = unsafe {
                File::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC))
            };
            let bytes = page_size();
            file.set_len((2 * page_size() + 2 * bytes) as u64).unwrap();
            Self { file, bytes }
        }

        fn ring(&self) -> Ring {
            Ring::new(self.file.as_fd(), self.bytes).unwrap()
        }

        fn head(&self, position: usize) {
            self.file.write_all_at(&position.to_ne_bytes(), page_size() as u64).unwrap();
        }

        fn consumed(&self) -> usize {
            let mut word = [0; size_of::<usize>()];
            self.file.read_exact_at(&mut word, 0).unwrap();
            usize::from_ne_bytes(word)
        }

        /// Writes a record at a position, in both copies of the data.
        fn record(&self, position: usize, header: u32, data: &[u8]) {
            for (i, byte) in header
                .to_ne_bytes()
                .into_iter()
                .chain([0; 4])
                .chain(data.iter().copied())
                .enumerate()
            {
                let at = (position + i) % self.bytes;
                for copy in [0, self.bytes] {
                    let offset = 2 * page_size() + copy + at;
                    self.file.write_all_at(&[byte], offset as u64).unwrap();
                }
            }
        }
    }

    fn drain(ring: &mut Ring, limit: usize) -> (Drained, Vec<Vec<u8>>) {
        let mut records = Vec::new();
        let end = ring.drain_to(limit, |record| records.push(record.to_vec()));
        (end, records)
    }

    #[test]
    fn records_are_read_up_to_the_limit_and_freed() {
        let fake = Fake::new();
        fake.record(0, 4, b"abcd");
        fake.record(16, 10, b"0123456789");
        fake.record(40, 1, b"x");
        fake.head(56);
        let mut ring = fake.ring();
        assert_eq!((ring.head(), ring.pending()), (56, 56));
        assert_eq!(drain(&mut ring, 40).1, [b"abcd".to_vec(), b"0123456789".to_vec()]);
        assert_eq!((fake.consumed(), ring.pending()), (40, 16));
        assert_eq!(drain(&mut ring, 40), (Drained::Complete, vec![]));
        assert_eq!(drain(&mut ring, 56), (Drained::Complete, vec![b"x".to_vec()]));
        assert_eq!(fake.consumed(), 56);
    }

    #[test]
    fn a_record_may_cross_the_end_and_one_may_be_discarded() {
        let fake = Fake::new();
        let skip = fake.bytes - 16;
        fake.record(0, DISCARDED | (skip as u32 - 8), b"");
        fake.head(skip);
        let mut ring = fake.ring();
        assert_eq!(drain(&mut ring, skip), (Drained::Complete, vec![]));
        fake.record(skip, 12, b"over the end");
        fake.head(skip + 24);
        assert_eq!(
            drain(&mut ring, skip + 24),
            (Drained::Complete, vec![b"over the end".to_vec()])
        );
        assert_eq!(ring.pending(), 0);
    }

    #[test]
    fn an_unfinished_or_senseless_record_stops_the_drain_and_nothing_else() {
        for header in [BUSY | 4, u32::MAX, (DISCARDED - 1), page_size() as u32] {
            let fake = Fake::new();
            fake.record(0, 1, b"a");
            fake.record(16, header, b"");
            fake.head(64);
            let mut ring = fake.ring();
            let (end, records) = drain(&mut ring, 64);
            assert_eq!((end, records), (Drained::Stuck, vec![b"a".to_vec()]), "{header:#x}");
            assert!(ring.reached(16) && !ring.reached(64));
            assert_eq!(fake.consumed(), 16);
        }
    }

    #[test]
    fn a_part_is_drained_at_a_time() {
        let fake = Fake::new();
        for i in 0..8 {
            fake.record(16 * i, 1, &[i as u8]);
        }
        fake.head(128);
        let mut ring = fake.ring();
        let mut count = 0;
        while ring.drain_some(128, 40, |_| count += 1).1 {}
        assert_eq!((count, ring.pending()), (8, 0));
    }
}
