//! One zone: its readings become intervals, each interval's energy is split over what ran on the
//! zone's CPUs meanwhile, and an edge closes the account into a line.

use std::sync::Arc;

use wattpipe_pipeline::{
    batch::{Domain, IdleBasis, MeterReading, Slice, Zone, ZoneUsage},
    units::{Nanos, Package},
};

use super::{
    config::{Idle, PowerModelConfig, Smt, Weight},
    counter::{Counter, Delta},
    idle::Floor,
    interval::{Account, Usage},
    rows::RowKey,
    weights::{Frequency, SHARED_CORE, Scale},
};

/// The package of usage that could not be told by package: every zone's.
pub(super) const ANY_PACKAGE: Package = Package(u32::MAX);

/// How fast the recent busy fraction forgets, per second.
const BUSY_DECAY: f64 = 0.1;

/// Readings that gave no energy, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) reset: u64,
    pub(super) implausible: u64,
    pub(super) stale: u64,
    /// Taken, but the counter may have wrapped more than once.
    pub(super) ambiguous: u64,
}

/// One window as all zones see it.
pub(super) struct View<'a> {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) slices: &'a [Slice],
    pub(super) readings: &'a [MeterReading],
    /// Rows of the window and rows carried over.
    pub(super) rows: usize,
    /// The window has no usage by slice and package: only its edges' readings can be used.
    pub(super) coarse: bool,
}

/// A zone with all that is remembered about it.
#[derive(Clone, Debug)]
pub(super) struct ZoneState {
    pub(super) zone: Arc<Zone>,
    counter: Counter,
    /// From when the account's energy counts.
    since: Option<Nanos>,
    pub(super) usage: Usage,
    pub(super) account: Account,
    /// What outlives the window: (row, weight and time since the last reading, active joules and
    /// weight since the last edge).
    pub(super) carried: Vec<(RowKey, [f64; 4])>,
    weight: Weight,
    idle: Idle,
    idle_watts: Option<f64>,
    max_watts: Option<f64>,
    shared: f64,
    /// Joules the floor is still owed.
    owed: f64,
    /// Fraction of known time that was busy, lately.
    recent_busy: Option<f64>,
    frequency: Option<Frequency>,
    pub(super) dropped: Dropped,
}

impl ZoneState {
    pub(super) fn new(zone: Arc<Zone>, config: &PowerModelConfig) -> Self {
        let name = &*zone.name;
        let shared = if config.smt == Smt::None { 1.0 } else { SHARED_CORE };
        Self {
            idle_watts: config.idle_watts.get(name).copied(),
            max_watts: config.max_watts.get(name).copied(),
            weight: config.weight,
            idle: config.idle,
            shared,
            counter: Counter::default(),
            since: None,
            usage: Usage::default(),
            account: Account::default(),
            carried: Vec::new(),
            owed: 0.0,
            recent_busy: None,
            frequency: None,
            dropped: Dropped::default(),
            zone,
        }
    }

    /// Forgets everything but what it is: its next reading is its first.
    pub(super) fn restart(&mut self) {
        self.counter = Counter::default();
        self.since = None;
        self.usage.clear();
        self.account.clear();
        self.carried.clear();
        self.owed = 0.0;
    }

    /// When it was read last.
    pub(super) fn last_reading(&self) -> Option<Nanos> {
        self.counter.last_ts()
    }

    /// Walks through the window's slices and this zone's readings in time order.
    pub(super) fn run(&mut self, view: &View<'_>) {
        self.resize(view.rows);
        let own = view.readings.iter().filter(|r| same(&r.zone, &self.zone));
        let mut readings = own
            .filter(|r| !view.coarse || r.ts <= view.start || r.ts >= view.end)
            .collect::<Vec<_>>()
            .into_iter()
            .peekable();
        let mut start = view.start;
        for slice in view.slices {
            while let Some(r) = readings.next_if(|r| r.ts <= start) {
                self.read(r);
            }
            self.add(slice);
            while let Some(r) = readings.next_if(|r| r.ts <= slice.end) {
                self.read(r);
            }
            start = slice.end;
        }
        for r in readings {
            self.read(r);
        }
    }

    pub(super) fn resize(&mut self, rows: usize) {
        self.usage.resize(rows);
        self.account.resize(rows);
    }

    /// Adds a slice's usage of this zone's CPUs.
    pub(super) fn add(&mut self, slice: &Slice) {
        let package = self.zone.package;
        let own =
            move |d: &&Domain| package.is_none_or(|p| d.package == p) || d.package == ANY_PACKAGE;
        if self.weight != Weight::CpuTime {
            let seen = Frequency::of(slice.domains.iter().filter(own))
                .or_else(|| Frequency::of(slice.domains.iter()));
            self.frequency = seen.or(self.frequency);
        }
        let scale = self.scale();
        let mut domains = 0.0;
        let mut any_busy = 0.0;
        for domain in slice.domains.iter().filter(own) {
            let totals = &mut self.usage.totals;
            totals.idle += domain.idle.0 as f64;
            totals.lost += domain.unattributed.0 as f64;
            totals.pair_busy += domain.pair_busy.0 as f64;
            domains += 1.0;
            any_busy += domain.any_busy.0 as f64;
            for cell in &domain.cells {
                let time = cell.cpu.0 as f64;
                self.usage.totals.busy += time;
                self.usage.add(cell.row, scale.weigh(cell), time);
            }
        }
        if domains > 0.0 {
            self.usage.totals.any_busy += any_busy / domains;
        }
    }

    fn scale(&self) -> Scale {
        Scale { weight: self.weight, frequency: self.frequency, shared: self.shared }
    }

    /// Takes a reading: the energy since the one before belongs to the usage since then.
    fn read(&mut self, reading: &MeterReading) {
        let last = self.counter.last_ts();
        match self.counter.read(&self.zone, self.max_watts, reading.ts, reading.energy_uj) {
            Delta::First => {
                self.usage.clear();
                self.since = Some(reading.ts);
            }
            Delta::Stale => self.dropped.stale += 1,
            Delta::Reset => {
                self.dropped.reset += 1;
                self.forget_interval(reading.ts);
            }
            Delta::Implausible => {
                self.dropped.implausible += 1;
                self.forget_interval(reading.ts);
            }
            Delta::Energy { joules, ambiguous } => {
                self.dropped.ambiguous += u64::from(ambiguous);
                let elapsed = reading.ts.since(last.unwrap_or(reading.ts));
                self.usage.totals.set_elapsed(elapsed);
                self.close(joules, self.floor());
            }
        }
    }

    fn forget_interval(&mut self, ts: Nanos) {
        self.usage.clear();
        if self.account.intervals == 0 {
            self.since = Some(ts);
        }
    }

    /// What the idle part rests on now.
    fn floor(&self) -> Floor {
        match (self.idle_watts, self.idle) {
            (Some(watts), _) => Floor::Configured(watts),
            (None, Idle::None) => Floor::None,
            (None, Idle::Proportional | Idle::Baseline) => Floor::Proportional,
        }
    }

    /// Books an interval's energy and starts the next.
    pub(super) fn close(&mut self, joules: f64, floor: Floor) {
        let totals = self.usage.totals;
        // An exact share stands on its interval alone.
        let carry = (self.weight == Weight::Auto).then_some(&mut self.owed);
        let idle = floor.split(joules, &totals, carry);
        let lost = totals.lost * self.lost_busy();
        self.account.book(&self.usage, joules, idle, lost, |_| 1.0);
        self.learn_busy();
        self.usage.clear();
    }

    /// How much of lost time counts as busy: all of it for an exact share, else as much as the
    /// zone's CPUs were busy lately.
    pub(super) fn lost_busy(&self) -> f64 {
        match (self.weight, self.recent_busy) {
            (Weight::Auto, Some(fraction)) => fraction,
            _ => 1.0,
        }
    }

    fn learn_busy(&mut self) {
        let t = &self.usage.totals;
        let known = t.busy + t.idle;
        if known > 0.0 {
            let now = t.busy / known;
            let keep = (-BUSY_DECAY * t.seconds()).exp();
            self.recent_busy =
                Some(self.recent_busy.map_or(now, |b| b * keep + now * (1.0 - keep)));
        }
    }

    /// At a window's end: the zone's line, where it was read at the edge and has energy to tell.
    /// The account stays until [`Self::settle`].
    pub(super) fn line(&self, end: Nanos) -> Option<ZoneUsage> {
        let read_at_edge = self.counter.last_ts().is_some_and(|ts| ts >= end);
        (read_at_edge && self.account.intervals > 0)
            .then(|| self.usage_line(self.since.unwrap_or(end), self.floor().basis()))
    }

    /// The account as a line.
    pub(super) fn usage_line(&self, start: Nanos, idle_basis: IdleBasis) -> ZoneUsage {
        ZoneUsage {
            zone: self.zone.clone(),
            start,
            idle_basis,
            joules: self.account.joules,
            active: self.account.active_sum(),
            idle: self.account.idle,
            unattributed: self.account.unattributed,
            in_total: true,
        }
    }

    /// After the line is out, or where there is none: keeps what outlives the window, by `key`.
    pub(super) fn settle(&mut self, end: Nanos, key: impl Fn(u32) -> RowKey) {
        self.carried.clear();
        if self.counter.last_ts().is_some_and(|ts| ts >= end) {
            self.since = Some(end);
            self.usage.clear();
            self.account.clear();
            return;
        }
        if self.counter.last_ts().is_none() {
            self.usage.clear();
            return;
        }
        let (usage, account) = (&mut self.usage, &mut self.account);
        let mut rows: Vec<u32> = usage.touched.iter().chain(&account.touched).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        for row in rows {
            let at = row as usize;
            let kept = [usage.weight[at], usage.time[at], account.active[at], account.weight[at]];
            self.carried.push((key(row), kept));
            (usage.weight[at], usage.time[at]) = (0.0, 0.0);
            (account.active[at], account.weight[at]) = (0.0, 0.0);
        }
        usage.touched.clear();
        account.touched.clear();
    }

    /// At the next window's start: puts what was kept to where its rows are now.
    pub(super) fn load(&mut self, row_of: impl Fn(&RowKey) -> Option<u32>) {
        for (key, [weight, time, active, account_weight]) in std::mem::take(&mut self.carried) {
            if let Some(row) = row_of(&key) {
                self.usage.add(row, weight, time);
                self.account.put(row, active, account_weight);
            }
        }
    }
}

/// Whether two zones are one, cheaply where they share the `Arc`.
pub(super) fn same(a: &Arc<Zone>, b: &Arc<Zone>) -> bool {
    Arc::ptr_eq(a, b) || a.name == b.name
}
