//! From the probe's records to the pipeline's batches: one stream of entries per CPU, in time order,
//! each entry once, each lost one counted.

use std::mem::size_of;

use wattpipe_ebpf_probe_common::{
    BatchHeader, ENTRY_BYTES, Entry, FLAG_CYCLES, FLAG_TICK, HEADER_BYTES, MAX_BATCH,
};
use wattpipe_pipeline::{
    batch::{CpuBlock, Switch, SwitchBatch},
    units::{Cpu, Nanos, Tgid},
};

/// What a CPU has delivered so far.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Nothing earlier than this may follow: the last entry's time, or the last edge's.
    floor: u64,
    /// Time of the last entry.
    last: u64,
    /// The batch that comes next.
    sequence: u64,
    /// Entries of that batch that a peek has delivered already.
    taken: u32,
    /// Lost entries reported so far.
    lost: u64,
    /// What to add to the run queue's clock to get `CLOCK_MONOTONIC`; `None` before its first batch.
    offset: Option<i64>,
}

/// The offset is known to some hundred nanoseconds, the time between the scheduler's look at its
/// clock and the probe's at the other. It moves by more when time was stolen.
const OFFSET_NOISE: u64 = 2_000;

impl Stream {
    /// Takes in that `anchor` and the run queue's `first` are the same moment, and returns the time
    /// that nobody had since the last batch: stolen by the hypervisor or taken by interrupts.
    fn anchor(&mut self, anchor: u64, first: u64) -> u64 {
        let measured = anchor.wrapping_sub(first).cast_signed();
        let grown = measured.wrapping_sub(*self.offset.get_or_insert(measured));
        if grown.unsigned_abs() <= OFFSET_NOISE {
            return 0;
        }
        self.offset = Some(measured);
        u64::try_from(grown).unwrap_or(0)
    }
}

/// Counts of one window or run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamCounts {
    /// Switches delivered.
    pub(crate) switches: u64,
    /// Switches lost.
    pub(crate) lost: u64,
    /// Entries that carried a time before what was already settled, and were moved up to it.
    pub(crate) late: u64,
    /// Records that made no sense.
    pub(crate) malformed: u64,
}

/// All CPUs' streams.
pub(crate) struct Streams {
    cpus: Vec<Stream>,
    pub(crate) counts: StreamCounts,
    /// CPUs whose cycle counter stood still while they switched: see `cycles.rs`.
    pub(crate) frozen: Vec<u32>,
    /// Not every CPU's cycles are counted: nobody's are told.
    pub(crate) uncounted: bool,
}

impl Streams {
    /// Streams for CPU numbers below `cpus`.
    pub(crate) fn new(cpus: u32) -> Self {
        Self {
            cpus: vec![Stream::default(); cpus as usize],
            counts: StreamCounts::default(),
            frozen: Vec::new(),
            uncounted: false,
        }
    }

    /// CPU numbers are below this.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.cpus.len()).unwrap_or(u32::MAX)
    }

    /// Entries of the CPU's open batch that have been delivered.
    pub(crate) fn taken(&self, cpu: u32, sequence: u64) -> u32 {
        self.cpus.get(cpu as usize).map_or(0, |s| if s.sequence == sequence { s.taken } else { 0 })
    }

    /// Everything up to `ts` has been delivered; what still turns up from before counts from `ts`.
    pub(crate) fn settle(&mut self, ts: u64) {
        for stream in &mut self.cpus {
            stream.floor = stream.floor.max(ts);
        }
    }

    /// Takes in a record of the ring.
    pub(crate) fn record(&mut self, record: &[u8], batch: &mut SwitchBatch) {
        let Some((header, entries)) = parse(record) else {
            self.counts.malformed += 1;
            return;
        };
        let taken = self.taken(header.cpu, header.sequence);
        let Some(stream) = self.cpus.get_mut(header.cpu as usize) else {
            self.counts.malformed += 1;
            return;
        };
        if header.sequence < stream.sequence {
            self.counts.malformed += 1;
            return;
        }
        let entries = entries.skip(taken as usize);
        self.append(&header, taken, entries, batch);
        if let Some(stream) = self.cpus.get_mut(header.cpu as usize) {
            stream.sequence = header.sequence.saturating_add(1);
            stream.taken = 0;
        }
    }

    /// Takes in what a peek saw of an open batch: `entries` from `from` on. The same entries come
    /// again with their batch, and are skipped then.
    pub(crate) fn peeked(
        &mut self,
        header: &BatchHeader,
        from: u32,
        entries: &[Entry],
        batch: &mut SwitchBatch,
    ) {
        let known = self.taken(header.cpu, header.sequence);
        let Some(stream) = self.cpus.get(header.cpu as usize) else { return };
        if header.sequence < stream.sequence {
            return;
        }
        let skip = known.saturating_sub(from) as usize;
        let header = BatchHeader { flags: header.flags & !FLAG_TICK, ..*header };
        self.append(&header, from.max(known), entries.iter().copied().skip(skip), batch);
        if let Some(stream) = self.cpus.get_mut(header.cpu as usize) {
            stream.sequence = header.sequence;
            stream.taken = header.count.max(known);
        }
    }

    /// Appends a block, unless there is nothing to say; `entries` come after the batch's first
    /// `skipped`.
    fn append(
        &mut self,
        header: &BatchHeader,
        skipped: u32,
        entries: impl Iterator<Item = Entry>,
        batch: &mut SwitchBatch,
    ) {
        let whole = skipped == 0;
        let Some(stream) = self.cpus.get_mut(header.cpu as usize) else { return };
        let mut lost = header.lost.saturating_sub(stream.lost);
        if header.sequence != stream.sequence {
            // What a peek had delivered of a batch that was lost afterwards is not lost.
            lost = lost.saturating_sub(stream.taken.into());
        }
        stream.lost = header.lost.max(stream.lost);
        let lost_ts = stream.last;
        let start = batch.entries.len();
        let mut entries = entries.peekable();
        let mut invented = 0;
        if header.anchor != 0
            && whole
            && let Some(first) = entries.peek()
        {
            let stolen = stream.anchor(header.anchor, first.ts);
            if stolen > 0 && stream.last > 0 && lost == 0 {
                invented = nobodys(stream, first, stolen, &mut batch.entries);
            }
        }
        // A batch without an anchor goes on with what is known; by the monotonic clock nothing ever is.
        let offset = stream.offset.unwrap_or(0);
        let mut floor = stream.floor;
        let mut late = 0;
        let tick = if header.flags & FLAG_TICK != 0 { header.count } else { 0 };
        let mut number = skipped;
        batch.entries.extend(entries.map(|entry| {
            number += 1;
            // A tick bears the monotonic clock in any case.
            let ts = if offset == 0 || number == tick {
                entry.ts
            } else {
                entry.ts.wrapping_add_signed(offset)
            };
            late += u64::from(ts < floor);
            floor = floor.max(ts);
            Switch {
                ts: Nanos(floor),
                cycles: entry.cycles,
                prev: Tgid(entry.prev),
                next: Tgid(entry.next),
            }
        }));
        let has_cycles = header.flags & FLAG_CYCLES != 0 && !self.uncounted;
        let new = &batch.entries[start..];
        let len = u32::try_from(new.len()).unwrap_or(u32::MAX);
        if let (Some(first), Some(newest)) = (new.first(), new.last()) {
            stream.floor = floor;
            stream.last = newest.ts.0;
            if has_cycles && first.cycles == newest.cycles && first.ts != newest.ts {
                self.frozen.push(header.cpu);
            }
        }
        let tick_last = len > 0 && header.flags & FLAG_TICK != 0;
        self.counts.late += late;
        self.counts.lost = self.counts.lost.saturating_add(lost);
        self.counts.switches += u64::from(len) - u64::from(tick_last) - invented;
        if len > 0 || lost > 0 {
            batch.blocks.push(CpuBlock {
                cpu: Cpu(header.cpu),
                len,
                tick_last,
                has_cycles,
                lost,
                lost_ts: Nanos(lost_ts),
            });
        }
    }
}

/// Says that the last `stolen` nanoseconds before `first` were nobody's, after what is settled, and
/// returns how many entries that took.
fn nobodys(stream: &mut Stream, first: &Entry, stolen: u64, out: &mut Vec<Switch>) -> u64 {
    let end = first.ts.wrapping_add_signed(stream.offset.unwrap_or(0));
    let start = end.saturating_sub(stolen).max(stream.floor);
    if start >= end {
        return 0;
    }
    let process = Tgid(first.prev);
    let entry = |ts, prev, next| Switch { ts: Nanos(ts), cycles: first.cycles, prev, next };
    out.push(entry(start, process, Tgid::NOBODY));
    out.push(entry(end, Tgid::NOBODY, process));
    stream.floor = end;
    2
}

/// Takes a record apart; `None` where it is not what it should be. The ring is ours alone, but it
/// is memory that others write.
fn parse(record: &[u8]) -> Option<(BatchHeader, impl Iterator<Item = Entry> + '_)> {
    let (head, rest) = record.split_at_checked(HEADER_BYTES)?;
    let header = BatchHeader {
        sequence: u64_at(head, 0)?,
        lost: u64_at(head, 8)?,
        cpu: u32_at(head, 16)?,
        count: u32_at(head, 20)?,
        flags: u32_at(head, 24)?,
        sent: u32_at(head, 28)?,
        anchor: u64_at(head, 32)?,
    };
    let count = header.count as usize;
    if count == 0 || count > MAX_BATCH || rest.len() != count * ENTRY_BYTES {
        return None;
    }
    Some((header, rest.as_chunks::<{ size_of::<Entry>() }>().0.iter().map(entry)))
}

fn entry(bytes: &[u8; ENTRY_BYTES]) -> Entry {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let half = |at: usize| {
        let mut half = [0; 4];
        half.copy_from_slice(&bytes[at..at + 4]);
        u32::from_ne_bytes(half)
    };
    Entry { ts: word(0), cycles: word(8), prev: half(16), next: half(20) }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
