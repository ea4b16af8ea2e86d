//! The ring's reader on memory of its own, where the test plays the kernel's side: what miri can run.
//! (`cargo +nightly miri test -p wattpipe-source --lib ebpf::ring::memory`.)

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
