//! Records that are whole, lost, peeked at, late and hostile.

use super::*;

fn bytes(header: BatchHeader, entries: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(header.sequence.to_ne_bytes());
    out.extend(header.lost.to_ne_bytes());
    for word in [header.cpu, entries.len() as u32, header.flags, header.sent] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(header.anchor.to_ne_bytes());
    for (ts, prev, next) in entries {
        out.extend(ts.to_ne_bytes());
        out.extend(0u64.to_ne_bytes());
        out.extend(prev.to_ne_bytes());
        out.extend(next.to_ne_bytes());
    }
    out
}

fn header(sequence: u64, lost: u64) -> BatchHeader {
    BatchHeader { sequence, lost, ..BatchHeader::default() }
}

fn times(batch: &SwitchBatch) -> Vec<u64> {
    batch.entries.iter().map(|e| e.ts.0).collect()
}

#[test]
fn a_record_becomes_a_block() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let head = BatchHeader { flags: FLAG_TICK, ..header(0, 0) };
    streams.record(&bytes(head, &[(10, 1, 2), (20, 2, 2)]), &mut batch);
    assert_eq!(times(&batch), [10, 20]);
    assert_eq!(batch.blocks[0].len, 2);
    assert!(batch.blocks[0].tick_last && !batch.blocks[0].has_cycles);
    assert_eq!(streams.counts.switches, 1, "a tick is no switch");
}

#[test]
fn cycles_are_told_while_every_cpu_has_them() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let mut check = |sequence, uncounted| {
        let head = BatchHeader { flags: FLAG_CYCLES, ..header(sequence, 0) };
        streams.uncounted = uncounted;
        streams.record(&bytes(head, &[(sequence, 1, 2)]), &mut batch);
        assert_eq!(batch.blocks.last().map(|b| b.has_cycles), Some(!uncounted));
    };
    check(1, false);
    check(2, true);
    check(3, false);
}

#[test]
fn lost_entries_are_told_once_with_the_last_known_time() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    streams.record(&bytes(header(0, 0), &[(10, 1, 2)]), &mut batch);
    streams.record(&bytes(header(3, 256), &[(50, 2, 1)]), &mut batch);
    streams.record(&bytes(header(4, 256), &[(60, 1, 2)]), &mut batch);
    let lost: Vec<_> = batch.blocks.iter().map(|b| (b.lost, b.lost_ts.0)).collect();
    assert_eq!(lost, [(0, 0), (256, 10), (0, 50)]);
    assert_eq!(streams.counts.lost, 256);
}

#[test]
fn what_a_peek_delivered_is_not_delivered_again() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let seen = |ts| Entry { ts, cycles: 0, prev: 1, next: 0 };
    let head = BatchHeader { count: 2, ..header(0, 0) };
    streams.peeked(&head, 0, &[seen(10), seen(20)], &mut batch);
    let head = BatchHeader { count: 3, ..header(0, 0) };
    assert_eq!(streams.taken(0, 0), 2);
    streams.peeked(&head, 2, &[seen(30)], &mut batch);
    let all = [(10, 1, 0), (20, 1, 0), (30, 1, 0), (40, 0, 1)];
    streams.record(&bytes(header(0, 0), &all), &mut batch);
    streams.peeked(&head, 2, &[seen(30)], &mut batch);
    assert_eq!(times(&batch), [10, 20, 30, 40]);
}

#[test]
fn a_peeked_batch_that_is_lost_later_counts_only_its_rest() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let head = BatchHeader { count: 1, ..header(0, 0) };
    let seen = Entry { ts: 10, cycles: 0, prev: 1, next: 0 };
    streams.peeked(&head, 0, &[seen], &mut batch);
    streams.record(&bytes(header(1, 128), &[(500, 1, 2)]), &mut batch);
    assert_eq!(streams.counts.lost, 127);
}

#[test]
fn an_entry_from_before_a_settled_edge_moves_up_to_it() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    streams.record(&bytes(header(0, 0), &[(10, 1, 2)]), &mut batch);
    streams.settle(100);
    streams.record(&bytes(header(1, 0), &[(99, 2, 1), (101, 1, 2), (100, 2, 1)]), &mut batch);
    assert_eq!(times(&batch), [10, 100, 101, 101]);
    assert_eq!(streams.counts.late, 2);
}

#[test]
fn the_run_queue_s_clock_becomes_monotonic_and_stolen_time_nobody_s() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let head = |sequence, anchor, flags| BatchHeader { anchor, flags, ..header(sequence, 0) };
    // 1,000,000 behind; then 5,000 are stolen; a tick bears the other clock already.
    streams.record(&bytes(head(0, 1_010_000, 0), &[(10_000, 1, 2), (20_000, 2, 1)]), &mut batch);
    let next = [(40_000, 1, 2), (1_060_000, 2, 2)];
    streams.record(&bytes(head(1, 1_045_000, FLAG_TICK), &next), &mut batch);
    streams.record(&bytes(head(2, 1_075_100, 0), &[(70_000, 2, 1)]), &mut batch);
    assert_eq!(
        times(&batch),
        [1_010_000, 1_020_000, 1_040_000, 1_045_000, 1_045_000, 1_060_000, 1_075_000]
    );
    let stolen = (batch.entries[2].next, batch.entries[3].prev, batch.entries[3].next);
    assert_eq!(stolen, (Tgid::NOBODY, Tgid::NOBODY, Tgid(1)));
    assert_eq!(streams.counts.switches, 4);
    assert_eq!(streams.counts.late, 0);
}

#[test]
fn a_batch_without_an_anchor_goes_on_with_the_offset() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let head = |sequence, anchor, flags| BatchHeader { anchor, flags, ..header(sequence, 0) };
    streams.record(&bytes(head(0, 1_010_000, 0), &[(10_000, 1, 2)]), &mut batch);
    // Nobody else had the CPU up to an edge; then a switch was put back in.
    streams.record(&bytes(head(1, 0, FLAG_TICK), &[(1_060_000, 2, 2)]), &mut batch);
    streams.record(&bytes(head(2, 0, 0), &[(70_000, 2, 1), (80_000, 1, 2)]), &mut batch);
    streams.record(&bytes(head(3, 1_090_000, 0), &[(90_000, 2, 1)]), &mut batch);
    assert_eq!(times(&batch), [1_010_000, 1_060_000, 1_070_000, 1_080_000, 1_090_000]);
    assert!(batch.entries.iter().all(|e| e.next != Tgid::NOBODY));
    assert_eq!(streams.counts.late, 0);
}

#[test]
fn clocks_half_the_range_apart_are_taken_as_they_are() {
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    for (sequence, anchor) in [(0, 20), (1, 20 + (1 << 63))] {
        let head = BatchHeader { anchor, ..header(sequence, 0) };
        streams.record(&bytes(head, &[(10, 1, 2)]), &mut batch);
    }
    assert_eq!(streams.counts.switches, 2);
}

#[test]
fn hostile_records_are_counted_and_change_nothing() {
    let whole = bytes(header(0, 0), &[(10, 1, 2), (20, 2, 1)]);
    for length in 0..whole.len() {
        let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
        streams.record(&whole[..length], &mut batch);
        assert_eq!((batch, streams.counts.malformed), (SwitchBatch::default(), 1));
    }
    for cpu in [1, u32::MAX] {
        let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
        let head = BatchHeader { cpu, ..header(0, 0) };
        streams.record(&bytes(head, &[(10, 1, 2)]), &mut batch);
        assert_eq!((batch, streams.counts.malformed), (SwitchBatch::default(), 1));
    }
    let (mut streams, mut batch) = (Streams::new(1), SwitchBatch::default());
    let mut liar = whole.clone();
    liar[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    streams.record(&liar, &mut batch);
    streams.record(&bytes(header(u64::MAX, u64::MAX), &[(1, 1, 2)]), &mut batch);
    assert_eq!(streams.counts.malformed, 1);
}
