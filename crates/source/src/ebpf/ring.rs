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
        while limit.wrapping_sub(self.position).cast_signed() > 0 {
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
mod tests {
    use super::*;

    const BYTES: usize = 4096;

    /// A ring whose writer is the test: one page that only the reader writes to, one that only the
    /// writer does, and the data twice in a row.
    fn ring() -> Ring {
        let page = page_size();
        Ring {
            consumer: Mapping::anonymous(page),
            producer: Mapping::anonymous(page + 2 * BYTES),
            page,
            mask: BYTES - 1,
            position: 0,
        }
    }

    /// Writes a record's header and data at the writer's position, in both copies of the data.
    fn write(ring: &Ring, header: u32, data: &[u8]) {
        let head = ring.head();
        for (i, byte) in data.iter().enumerate() {
            for copy in [0, BYTES] {
                let at = ((head & ring.mask) + RECORD_HEADER + i) % BYTES + copy;
                let at = ring.producer.at::<u8>(ring.page + at, 1).unwrap();
                // SAFETY: inside the mapping, which is the test's own; no reference to it lives now.
                unsafe { at.cast_mut().write(*byte) };
            }
        }
        for copy in [0, BYTES] {
            let at = ring.page + (head & ring.mask) + copy;
            ring.producer.u32(at).unwrap().store(header, Ordering::Release);
        }
        let next = head + (RECORD_HEADER + data.len()).next_multiple_of(8);
        ring.producer.word(0).unwrap().store(next, Ordering::Release);
    }

    fn drain(ring: &mut Ring, limit: usize) -> (Vec<Vec<u8>>, Drained) {
        let mut records = Vec::new();
        let end = ring.drain_to(limit, |record| records.push(record.to_vec()));
        (records, end)
    }

    #[test]
    fn records_come_whole_across_the_end_of_the_memory() {
        let mut ring = ring();
        for round in 0..9u8 {
            let data: Vec<u8> = (0..1000).map(|i| (i as u8) ^ round).collect();
            write(&ring, 1000, &data);
            let head = ring.head();
            assert_eq!(drain(&mut ring, head), (vec![data], Drained::Complete));
            let consumed = ring.consumer.word(0).unwrap().load(Ordering::Acquire);
            assert_eq!(consumed, head, "the writer may use the memory again");
        }
    }

    #[test]
    fn a_limit_ends_the_drain_and_discarded_records_are_skipped() {
        let mut ring = ring();
        write(&ring, 3, b"one");
        let limit = ring.head();
        write(&ring, 3 | DISCARDED, b"two");
        write(&ring, 5, b"three");
        assert_eq!(drain(&mut ring, limit).0, [b"one".to_vec()]);
        let head = ring.head();
        assert_eq!(drain(&mut ring, head).0, [b"three".to_vec()]);
        assert_eq!(ring.pending(), 0);
    }

    #[test]
    fn what_makes_no_sense_stops_the_drain() {
        for header in [BUSY | 8, u32::MAX, BYTES as u32, (BYTES as u32) << 4] {
            let mut ring = ring();
            write(&ring, 3, b"one");
            write(&ring, header, b"12345678");
            let head = ring.head();
            // Waiting for a writer takes long under miri.
            if !(cfg!(miri) && header & BUSY != 0) {
                assert_eq!(drain(&mut ring, head), (vec![b"one".to_vec()], Drained::Stuck));
            }
        }
    }
}
