//! What flows through a pipeline: a closed set of typed batches.
//!
//! [`SwitchBatch`] is raw and hot (up to millions of entries a second, 24 bytes each);
//! [`UsageBatch`] is one window's rows, small. Both are shared behind an `Arc`: fan-out costs a
//! reference, and a processor that changes a batch pays for a copy only where it is shared.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    identity::{AttributeSet, Process},
    units::{Cpu, Nanos, Package, Tgid},
};

/// What flows between components.
#[derive(Clone, Debug)]
pub enum Batch {
    /// Raw scheduler records.
    Switches(Arc<SwitchBatch>),
    /// One window's usage.
    Usage(Arc<UsageBatch>),
}

/// The kind of a batch: what a component says it takes and emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BatchKind {
    /// [`Batch::Switches`].
    Switches,
    /// [`Batch::Usage`].
    Usage,
}

impl std::fmt::Display for BatchKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Switches => "switches",
            Self::Usage => "usage",
        })
    }
}

impl Batch {
    /// Its kind.
    pub fn kind(&self) -> BatchKind {
        match self {
            Self::Switches(_) => BatchKind::Switches,
            Self::Usage(_) => BatchKind::Usage,
        }
    }

    /// Items it holds, for the `incoming`/`outgoing` counters: switches, or rows.
    pub fn items(&self) -> u64 {
        match self {
            Self::Switches(b) => b.entries.len() as u64,
            Self::Usage(b) => b.rows.len() as u64,
        }
    }
}

/// One switch on one CPU: `prev` left it and `next` got it at `ts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// When.
    pub ts: Nanos,
    /// The CPU's cycle counter at that moment; meaningful where the block says so.
    pub cycles: u64,
    /// Who left.
    pub prev: Tgid,
    /// Who came. Equal to `prev` for a switch between threads of one process.
    pub next: Tgid,
}

/// A run of consecutive entries of one CPU, in time order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBlock {
    /// Whose they are.
    pub cpu: Cpu,
    /// How many of [`SwitchBatch::entries`] follow for this block.
    pub len: u32,
    /// The last entry is a tick: who runs now (`prev == next`), no switch.
    pub tick_last: bool,
    /// `cycles` of the entries are readings of the counter.
    pub has_cycles: bool,
    /// Switches of this CPU that were lost before this block's first entry.
    pub lost: u64,
    /// From when they may have been lost: live, the CPU's last delivered entry; in a recording,
    /// the `lost` record's own time. Only meaningful with `lost > 0`.
    pub lost_ts: Nanos,
}

/// What happened to a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessEvent {
    /// When.
    pub ts: Nanos,
    /// What.
    pub kind: ProcessEventKind,
    /// Who, with whatever the record tells; fields it does not know are `None`.
    pub process: Process,
}

/// The kinds of [`ProcessEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEventKind {
    /// State as found: at start, after lost life-cycle records, or after a move between cgroups.
    Snapshot,
    /// A new process. It owns what is switched in under its pid from here on.
    Fork,
    /// The same process with another program.
    Exec,
    /// Its last thread has exited; time until it is off every CPU is still its own.
    Exit,
}

/// The CPUs and the clock, from here on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The online CPUs, by number.
    pub cpus: Vec<CpuInfo>,
    /// Unix time in nanoseconds of `CLOCK_MONOTONIC` 0. A live source takes it anew each window
    /// and sends a new topology only when it has moved noticeably (suspend, clock step).
    pub boot_unix_ns: u64,
}

/// Where a CPU sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuInfo {
    /// Its number.
    pub cpu: Cpu,
    /// Its package (socket).
    pub package: Package,
    /// Its core within the package. CPUs with the same package and core are SMT siblings.
    pub core: u32,
}

/// An energy meter: one zone of one kind of hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    /// `package-0`, `dram-0`, `psys`, `host`; unique on the host.
    pub name: Arc<str>,
    /// `hw.type` of the semantic conventions: `cpu`, `memory`, `gpu`, ...
    pub hw_type: Arc<str>,
    /// The package it belongs to; `None` for one that spans the host.
    pub package: Option<Package>,
    /// `rapl`, `hwmon`, ... or `estimate`.
    pub source: Arc<str>,
    /// Name of the zone that contains this one: never added to it.
    pub contained_in: Option<Arc<str>>,
    /// The counter wraps beyond this many microjoules.
    pub max_energy_range_uj: Option<u64>,
    /// The most this zone can plausibly draw (constraint of the hardware), in watts.
    pub max_watts: Option<f64>,
}

/// A cumulative energy counter's value at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct MeterReading {
    /// When. With an edge's `ts` it is that edge's reading; otherwise it ends a slice.
    pub ts: Nanos,
    /// Of which zone. Readings of one zone share the `Arc`.
    pub zone: Arc<Zone>,
    /// The counter in microjoules.
    pub energy_uj: u64,
}

/// A window edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Every CPU's running interval is cut exactly here.
    pub ts: Nanos,
}

/// Raw records from a source.
///
/// Rules that sources keep and `delta` relies on:
/// - entries of one CPU are in time order, over blocks and batches;
/// - a life-cycle event stands in this batch or an earlier one when a switch that depends on it
///   does (a fork before its child's first switch-in); it may well come before older switches;
/// - a meter reading stands in this batch or an earlier one when an entry later than it does;
/// - an edge closes a window: all records up to its `ts` are in this batch or earlier ones, and
///   only a batch with an edge may hold entries later than that edge, and none later than the
///   edge after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwitchBatch {
    /// CPUs and clock, where they changed; holds before everything else in the batch.
    pub topology: Option<Arc<Topology>>,
    /// Life-cycle events, in time order.
    pub processes: Vec<ProcessEvent>,
    /// Meter readings, in time order.
    pub readings: Vec<MeterReading>,
    /// Runs of entries, each of one CPU.
    pub blocks: Vec<CpuBlock>,
    /// All entries, block by block.
    pub entries: Vec<Switch>,
    /// The window edge that this batch completes.
    pub edge: Option<Edge>,
    /// From this host now, rather than from a recording: only then may `/proc`, sockets and the
    /// like be asked about its processes.
    pub live: bool,
}

impl SwitchBatch {
    /// Appends a block of `entries` (its `len` is set here).
    pub fn push_block(&mut self, mut block: CpuBlock, entries: &[Switch]) {
        block.len = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        self.blocks.push(block);
        self.entries.extend_from_slice(&entries[..block.len as usize]);
    }

    /// The blocks with their entries.
    pub fn iter_blocks(&self) -> impl Iterator<Item = (&CpuBlock, &[Switch])> {
        let mut at = 0;
        self.blocks.iter().map(move |block| {
            let entries = &self.entries[at..at + block.len as usize];
            at += block.len as usize;
            (block, entries)
        })
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.topology = None;
        self.processes.clear();
        self.readings.clear();
        self.blocks.clear();
        self.entries.clear();
        self.edge = None;
    }
}

/// The accounting of one window over all CPUs: `busy + idle + unattributed = cpus × duration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Start, `CLOCK_MONOTONIC`.
    pub start: Nanos,
    /// End, `CLOCK_MONOTONIC`.
    pub end: Nanos,
    /// Unix time of `CLOCK_MONOTONIC` 0 that holds for this window.
    pub boot_unix_ns: u64,
    /// CPUs online at its start.
    pub cpus: u32,
    /// Time that processes ran.
    pub busy: Nanos,
    /// Time that CPUs were idle.
    pub idle: Nanos,
    /// Time of which it is not known who had the CPU.
    pub unattributed: Nanos,
    /// Switches in the window.
    pub switches: u64,
    /// Switches known to be lost.
    pub lost: u64,
    /// Nothing was lost or dropped and all time is known.
    pub complete: bool,
}

impl Window {
    /// Its length.
    pub fn duration(&self) -> Nanos {
        self.end.since(self.start)
    }

    /// Unix time in nanoseconds of a monotonic moment of this window.
    pub fn unix_ns(&self, ts: Nanos) -> u64 {
        self.boot_unix_ns.saturating_add(ts.0)
    }
}

/// Whether a workload goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It lives on.
    Running,
    /// This is its last row.
    Exited,
}

/// One workload's usage in one window.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageRow {
    /// The process, where the row is one process's; `None` once rows were aggregated.
    pub process: Option<Arc<Process>>,
    /// What it is called. `delta` and `procfs` set pid, creation time and name; `attribution` the rest.
    pub attributes: Arc<AttributeSet>,
    /// Running or exited.
    pub state: State,
    /// Time on CPUs.
    pub cpu: Nanos,
    /// CPU cycles, where counters worked.
    pub cycles: Option<u64>,
    /// Switches away from it, where the source sees them.
    pub switches: Option<u64>,
    /// Energy per zone, by index into [`UsageBatch::zones`].
    pub energy: SmallVec<[RowEnergy; 2]>,
    /// How far its power could be told from the others'; `None` where nothing is learnt.
    pub confidence: Option<f32>,
}

/// A row's share of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowEnergy {
    /// Index into [`UsageBatch::zones`].
    pub zone: u16,
    /// Joules for what it did.
    pub active: f64,
    /// Joules of the idle floor shared out to it (only where switched on).
    pub idle: f64,
}

/// What the idle part of a zone rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleBasis {
    /// The learnt baseline.
    Baseline,
    /// The operator's figure.
    Configured,
    /// In proportion to idle time.
    Proportional,
    /// No idle part is split off.
    None,
}

/// One zone's energy in one window: `active + idle + unattributed = joules`, where `active`
/// holds all rows' active joules.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneUsage {
    /// Which.
    pub zone: Arc<Zone>,
    /// From when the energy counts: the window's start, or the zone's last reading at an edge.
    pub start: Nanos,
    /// What this window's idle part rests on.
    pub idle_basis: IdleBasis,
    /// Measured (or estimated) joules.
    pub joules: f64,
    /// Joules of workloads.
    pub active: f64,
    /// Joules of the idle floor.
    pub idle: f64,
    /// Joules of time nobody is known for.
    pub unattributed: f64,
    /// Whether it counts towards a row's `joules_total`: it is contained in no other zone that does.
    pub in_total: bool,
}

/// Usage of one row within one slice and package: what the power model weighs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// Index into [`UsageBatch::rows`].
    pub row: u32,
    /// Time on the package's CPUs.
    pub cpu: Nanos,
    /// The part of `cpu` during which a sibling thread of the same core was busy too.
    pub shared: Nanos,
    /// Cycles, where counted.
    pub cycles: u64,
    /// The part of `cpu` that `cycles` and `square` cover.
    pub counted: Nanos,
    /// Σ cycles²/ns over the intervals of `counted`: time weighted by the square of frequency.
    pub square: f64,
    /// The part of `square` while a sibling was busy.
    pub square_shared: f64,
}

/// One package within one slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Domain {
    /// Which package.
    pub package: Package,
    /// CPUs of it that the window accounts for.
    pub cpus: u32,
    /// Time its CPUs were idle.
    pub idle: Nanos,
    /// Time of its CPUs nobody is known for.
    pub unattributed: Nanos,
    /// Time during which at least one of its CPUs was busy (to 1 µs).
    pub any_busy: Nanos,
    /// Core time with at least two siblings busy (core-seconds, each pair once).
    pub pair_busy: Nanos,
    /// The rows that ran there.
    pub cells: Vec<Cell>,
}

/// A stretch of a window between meter readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    /// Its end; it starts where the one before ends, the first at the window's start.
    pub end: Nanos,
    /// Per package.
    pub domains: Vec<Domain>,
}

/// One window: accounting, rows, meters.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageBatch {
    /// The window.
    pub window: Window,
    /// Usage per workload.
    pub rows: Vec<UsageRow>,
    /// Energy per zone; the power model fills it.
    pub zones: Vec<ZoneUsage>,
    /// Meter readings of the window (edges and slices), in time order, as the source took them.
    pub readings: Vec<MeterReading>,
    /// Usage per slice and package, for the power model. Empty once rows were merged or dropped.
    pub slices: Vec<Slice>,
    /// See [`SwitchBatch::live`].
    pub live: bool,
}

impl UsageBatch {
    /// A row's joules over the zones that count towards the total; `None` where no zone does.
    pub fn joules_total(&self, row: &UsageRow) -> Option<f64> {
        let mut total = None;
        for e in &row.energy {
            if self.zones.get(e.zone as usize).is_some_and(|z| z.in_total) {
                *total.get_or_insert(0.0) += e.active + e.idle;
            }
        }
        total
    }

    /// The interval of a zone line: `watts` is `joules` over it.
    pub fn zone_seconds(&self, zone: &ZoneUsage) -> f64 {
        self.window.end.since(zone.start).as_secs_f64()
    }
}
