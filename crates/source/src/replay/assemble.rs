//! From records in file order to batches that keep the rules of `SwitchBatch`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use wattpipe_pipeline::{
    batch::{CpuBlock, Edge, MeterReading, ProcessEvent, Switch, SwitchBatch, Topology, Zone},
    recording::{self, Record},
    units::{Cpu, Nanos, Tgid},
};

/// Entries of one batch; a larger window takes several.
const MAX_ENTRIES: usize = 1 << 16;
/// Edges, and records between them, that wait for the counter reading after them.
const MAX_PENDING: usize = 1024;
const MAX_WAITING: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch,
    Tick,
    Lost(u64),
}

#[derive(Clone, Copy, Debug)]
struct Item {
    ts: Nanos,
    prev: Tgid,
    next: Tgid,
    cycles: Option<u64>,
    kind: Kind,
}

/// What is still due of one CPU, in order of time.
#[derive(Debug, Default)]
struct Stream {
    items: Vec<Item>,
    latest: Nanos,
    /// The last that was given out.
    given: Option<Item>,
}

impl Stream {
    /// Its last record up to `ts`, and the place of the one after.
    fn at(&self, ts: Nanos) -> (Option<&Item>, usize) {
        let due = self.items.partition_point(|i| i.ts <= ts);
        (due.checked_sub(1).map_or(self.given.as_ref(), |last| self.items.get(last)), due)
    }

    /// A process has the CPU at `edge`, and how many cycles it took until then is not known yet.
    fn is_open(&self, edge: Nanos, newest: Nanos) -> bool {
        let (last, next) = self.at(edge);
        last.is_some_and(|i| i.ts <= edge && i.cycles.is_some() && i.next != Tgid(0))
            && self.items.get(next).is_none_or(|i| i.ts > newest)
    }

    /// What the counter must have read at `edges` in the interval around the first of them: by time,
    /// as ticks. A batch holds nothing beyond the next edge, so it cannot have the interval's end.
    fn interpolate(&mut self, edges: impl Iterator<Item = Nanos>) {
        let mut edges = edges.peekable();
        let Some((Some(&from), next)) = edges.peek().map(|first| self.at(*first)) else { return };
        let Some(&to) = self.items.get(next) else { return };
        let (Some(start), Some(end)) = (from.cycles, to.cycles) else { return };
        let known = |i: &Item| !matches!(i.kind, Kind::Lost(_));
        if !known(&from) || !known(&to) || from.next == Tgid(0) || end < start || to.ts <= from.ts {
            return;
        }
        let ticks = edges.skip(1).take_while(|edge| *edge < to.ts).map(|ts| {
            let part = u128::from(end - start) * u128::from(ts.since(from.ts).0)
                / u128::from(to.ts.since(from.ts).0);
            let cycles = Some(start + part as u64);
            Item { ts, prev: from.next, next: from.next, cycles, kind: Kind::Tick }
        });
        let ticks: Vec<Item> = ticks.collect();
        self.items.splice(next..next, ticks);
    }
}

/// An edge that has been read, waiting for the counter readings that follow it.
#[derive(Debug)]
struct PendingEdge {
    ts: Nanos,
    topology: Option<Arc<Topology>>,
}

/// Collects records and gives batches at edges.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    topology: Option<Arc<Topology>>,
    knows_host: bool,
    /// An edge came before any `topology`: there are no CPUs yet whose time it could cut.
    pub(super) adrift: bool,
    processes: Vec<ProcessEvent>,
    readings: Vec<MeterReading>,
    cpus: BTreeMap<Cpu, Stream>,
    /// Records that go back in time: those of a CPU count as of the moment of the one before, window
    /// edges not at all.
    pub(super) late: usize,
    zones: Vec<Arc<Zone>>,
    any_cycles: bool,
    pending: VecDeque<PendingEdge>,
    newest_edge: Nanos,
}

impl Assembler {
    /// Takes in a record; at an edge, gives the batches that it completes.
    pub(super) fn take(&mut self, record: Record<'_>) -> Vec<SwitchBatch> {
        match record {
            Record::Topology { cpus, boot_unix_ns } => {
                self.knows_host = true;
                self.topology = Some(Arc::new(recording::topology(&cpus, boot_unix_ns)));
            }
            Record::Process(p) => self.processes.push(p.to_event()),
            Record::Switch { ts, cpu, prev, next, cycles } => {
                self.any_cycles |= cycles.is_some();
                self.push(cpu, Item { ts, prev, next, cycles, kind: Kind::Switch });
            }
            Record::Tick { ts, cpu, tgid, cycles } => {
                self.push(cpu, Item { ts, prev: tgid, next: tgid, cycles, kind: Kind::Tick });
            }
            Record::Lost { ts, cpu, count } => {
                let kind = Kind::Lost(count);
                self.push(cpu, Item { ts, prev: Tgid(0), next: Tgid(0), cycles: None, kind });
            }
            Record::Meter(m) => {
                let zone = self.zone(m.to_zone());
                self.readings.push(MeterReading { ts: m.ts, zone, energy_uj: m.energy_uj });
            }
            Record::Window { ts } => return self.edge(ts),
        }
        Vec::new()
    }

    /// The end of the recording: what is still due, and how many records belong to no window.
    pub(super) fn finish(mut self) -> (Vec<SwitchBatch>, usize) {
        let mut batches = Vec::new();
        while !self.pending.is_empty() {
            self.give(Nanos(u64::MAX), &mut batches);
        }
        let left = self.cpus.values().map(|stream| stream.items.len()).sum();
        (batches, left)
    }

    fn push(&mut self, cpu: Cpu, mut item: Item) {
        let stream = self.cpus.entry(cpu).or_default();
        self.late += usize::from(item.ts < stream.latest);
        item.ts = item.ts.max(stream.latest);
        stream.latest = item.ts;
        stream.items.push(item);
    }

    /// Readings of one zone share its `Arc`.
    fn zone(&mut self, zone: Zone) -> Arc<Zone> {
        if let Some(known) = self.zones.iter().find(|z| ***z == zone) {
            return known.clone();
        }
        let zone = Arc::new(zone);
        // A zone per reading would be a broken recording; it costs sharing, not memory.
        if self.zones.len() < 1024 {
            self.zones.push(zone.clone());
        }
        zone
    }

    fn edge(&mut self, ts: Nanos) -> Vec<SwitchBatch> {
        if ts < self.newest_edge {
            self.late += 1;
            return Vec::new();
        }
        self.newest_edge = ts;
        self.adrift |= !self.knows_host;
        self.pending.push_back(PendingEdge { ts, topology: self.topology.take() });
        let mut batches = Vec::new();
        while let Some(first) = self.pending.front().map(|edge| edge.ts) {
            let waiting: usize = self.cpus.values().map(|s| s.items.len()).sum();
            let full = self.pending.len() > MAX_PENDING || waiting > MAX_WAITING;
            let open = self.any_cycles && self.cpus.values().any(|s| s.is_open(first, ts));
            if open && !full {
                break;
            }
            self.give(ts, &mut batches);
        }
        batches
    }

    /// The batches of the first edge that waits. Records up to `newest` are all there.
    fn give(&mut self, newest: Nanos, batches: &mut Vec<SwitchBatch>) {
        let edges = self.pending.iter().map(|edge| edge.ts);
        if self.any_cycles {
            self.cpus.values_mut().for_each(|stream| stream.interpolate(edges.clone()));
        }
        let ahead = self.pending.get(1).map_or(newest, |edge| edge.ts);
        if let Some(edge) = self.pending.pop_front() {
            batches.extend(self.emit(edge, ahead));
        }
    }

    /// The batches of the window that ends at `edge`. With counters, each CPU's next record up to
    /// `ahead` comes along, since cycles of the interval that the edge cuts are split by it.
    fn emit(&mut self, edge: PendingEdge, ahead: Nanos) -> Vec<SwitchBatch> {
        let mut batches = vec![SwitchBatch { topology: edge.topology, ..SwitchBatch::default() }];
        let mut horizon = edge.ts;
        let mut beyond = Vec::new();
        for (cpu, Stream { items, given, .. }) in &mut self.cpus {
            let due = items.partition_point(|i| i.ts <= edge.ts);
            push_items(&mut batches, *cpu, &items[..due]);
            *given = items.drain(..due).next_back().or(*given);
            if self.any_cycles
                && items.first().is_some_and(|i| i.ts <= ahead && !matches!(i.kind, Kind::Lost(_)))
            {
                let next = items.remove(0);
                horizon = horizon.max(next.ts);
                *given = Some(next);
                beyond.push((*cpu, next));
            }
        }
        // Only the batch with the edge may hold what is later than it, so these come last, together.
        if batches.last().is_some_and(|b| b.entries.len() + beyond.len() > MAX_ENTRIES) {
            batches.push(SwitchBatch::default());
        }
        for (cpu, next) in beyond {
            push_items(&mut batches, cpu, &[next]);
        }
        self.processes.sort_by_key(|e| e.ts);
        self.readings.sort_by_key(|r| r.ts);
        let first = &mut batches[0];
        let due = self.processes.partition_point(|e| e.ts <= horizon);
        first.processes.extend(self.processes.drain(..due));
        let due = self.readings.partition_point(|r| r.ts <= horizon);
        first.readings.extend(self.readings.drain(..due));
        Self::close(&mut batches, edge.ts);
        batches
    }

    /// Puts the edge on the last batch. Only that one may hold what is later than the edge, so the
    /// later part of life-cycle records and readings moves there.
    fn close(batches: &mut [SwitchBatch], edge: Nanos) {
        let Some((last, before)) = batches.split_last_mut() else { return };
        last.edge = Some(Edge { ts: edge });
        if let Some(first) = before.first_mut() {
            let at = first.processes.partition_point(|e| e.ts <= edge);
            last.processes.extend(first.processes.drain(at..));
            let at = first.readings.partition_point(|r| r.ts <= edge);
            last.readings.extend(first.readings.drain(at..));
        }
    }
}

/// Appends items as blocks: a tick ends a block, a loss begins one.
fn push_items(batches: &mut Vec<SwitchBatch>, cpu: Cpu, items: &[Item]) {
    let mut at = 0;
    while at < items.len() {
        let mut block = CpuBlock { cpu, ..CpuBlock::default() };
        if let Kind::Lost(count) = items[at].kind {
            (block.lost, block.lost_ts) = (count, items[at].ts);
            at += 1;
        }
        let mut entries: Vec<Switch> = Vec::new();
        while let Some(item) = items.get(at) {
            let has_cycles = item.cycles.is_some();
            if matches!(item.kind, Kind::Lost(_))
                || entries.len() == MAX_ENTRIES
                || !entries.is_empty() && has_cycles != block.has_cycles
            {
                break;
            }
            block.has_cycles = has_cycles;
            entries.push(Switch {
                ts: item.ts,
                cycles: item.cycles.unwrap_or_default(),
                prev: item.prev,
                next: item.next,
            });
            at += 1;
            if matches!(item.kind, Kind::Tick) {
                block.tick_last = true;
                break;
            }
        }
        place(batches, block, &entries);
    }
}

fn place(batches: &mut Vec<SwitchBatch>, block: CpuBlock, entries: &[Switch]) {
    let full = batches.last().is_none_or(|b| b.entries.len() + entries.len() > MAX_ENTRIES);
    if full && batches.last().is_some_and(|b| !b.entries.is_empty()) {
        batches.push(SwitchBatch::default());
    }
    if let Some(batch) = batches.last_mut() {
        batch.push_block(block, entries);
    }
}
