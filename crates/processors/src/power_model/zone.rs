//! One zone: its readings become intervals, each interval's energy is split over what ran on the
//! zone's CPUs meanwhile, and an edge closes the account into a line.

use std::sync::Arc;

use wattpipe_pipeline::{
    batch::{Domain, IdleBasis, MeterReading, Slice, Zone, ZoneUsage},
    units::{Nanos, Package},
};

use super::{
    baseline::Baseline,
    config::{Idle, PowerModelConfig, Smt, Weight},
    counter::{Counter, Delta},
    idle::{Drift, Floor, Owed},
    interval::{Account, Ran, Usage},
    keys::Slot,
    learn::{Interval, Learner},
    rows::RowKey,
    smt::SharedCore,
    weights::{Frequency, SHARED_CORE, Scale},
};

/// The package of usage that could not be told by package: every zone's.
pub(super) const ANY_PACKAGE: Package = Package(u32::MAX);

/// Longer intervals mix too much to learn from; shorter ones are mostly the counter's steps.
const LEARN_SECONDS: std::ops::RangeInclusive<f64> = 0.02..=5.0;
/// How far the operator's idle power is trusted: floors drift with temperature.
const FLOOR_ERROR: f64 = 0.02;

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
    /// Whose coefficient each row takes.
    pub(super) slots: &'a [Slot],
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
    baseline: Option<Baseline>,
    smt: Option<SharedCore>,
    learner: Option<Learner>,
    features: Interval,
    by_slot: Vec<f64>,
    coefficients: Vec<f64>,
    /// What each touched row takes of an interval.
    shares: Vec<f64>,
    /// Nothing in the account is in doubt.
    clean: bool,
    owed: Owed,
    drift: Drift,
    /// Fraction of known time that was busy, lately.
    recent_busy: Option<f64>,
    frequency: Option<Frequency>,
    pub(super) dropped: Dropped,
}

impl ZoneState {
    /// `number`: which of the zones it is, so that their dear work falls into different windows.
    pub(super) fn new(zone: Arc<Zone>, config: &PowerModelConfig, number: usize) -> Self {
        let name = &*zone.name;
        let shared = if config.smt == Smt::None { 1.0 } else { SHARED_CORE };
        let auto = config.weight == Weight::Auto;
        let learns_floor = config.idle == Idle::Baseline && !config.idle_watts.contains_key(name);
        Self {
            baseline: learns_floor.then(Baseline::default),
            smt: (auto && config.smt == Smt::Auto).then(SharedCore::default),
            learner: auto.then(|| Learner::new(number)),
            features: Interval::default(),
            by_slot: Vec::new(),
            coefficients: Vec::new(),
            shares: Vec::new(),
            clean: true,
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
            owed: Owed::default(),
            drift: Drift::default(),
            recent_busy: None,
            frequency: None,
            dropped: Dropped::default(),
            zone,
        }
    }

    /// Nothing is learnt: an estimate would only teach its own formula.
    pub(super) fn unlearning(mut self) -> Self {
        (self.baseline, self.smt, self.learner) = (None, None, None);
        self
    }

    /// Forgets everything but what it is: its next reading is its first.
    pub(super) fn restart(&mut self) {
        self.counter = Counter::default();
        self.since = None;
        self.usage.clear();
        self.account.clear();
        self.carried.clear();
        self.owed = Owed::default();
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
                self.read(r, view);
            }
            self.add(slice);
            while let Some(r) = readings.next_if(|r| r.ts <= slice.end) {
                self.read(r, view);
            }
            start = slice.end;
        }
        for r in readings {
            self.read(r, view);
        }
        let floor = self.floor();
        if self.counter.last_ts().is_some_and(|ts| ts >= view.end) && !self.exact(floor) {
            let above = self.account.above;
            let back = self.owed.settle(self.account.shortfall, above, floor);
            self.account.settle(above - back);
        }
    }

    /// An exact share with a given floor: every interval stands on its own.
    fn exact(&self, floor: Floor) -> bool {
        self.weight != Weight::Auto && !matches!(floor, Floor::Baseline(_))
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
        let auto = self.weight == Weight::Auto;
        let shared = self.smt.as_ref().map_or(self.shared, SharedCore::weight);
        let scale = Scale { weight: self.weight, frequency: self.frequency, shared };
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
                let totals = &mut self.usage.totals;
                if cell.row as usize >= self.usage.rows.len() {
                    totals.lost += time;
                    continue;
                }
                let weight = if auto {
                    let (alone, shared) = scale.parts(cell);
                    totals.alone += alone;
                    totals.shared += shared;
                    alone + scale.shared * shared
                } else {
                    scale.weigh(cell)
                };
                totals.busy += time;
                totals.weight += weight;
                self.usage.add(cell.row, weight, time);
            }
        }
        if domains > 0.0 {
            self.usage.totals.any_busy += any_busy / domains;
        }
    }

    /// Takes a reading: the energy since the one before belongs to the usage since then.
    fn read(&mut self, reading: &MeterReading, view: &View<'_>) {
        let last = self.counter.last_ts();
        match self.counter.read(&self.zone, self.max_watts, reading.ts, reading.energy_uj) {
            Delta::First => {
                self.usage.clear();
                self.since = Some(reading.ts);
                self.clean = true;
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
                self.clean &= !ambiguous && !view.coarse;
                let elapsed = reading.ts.since(last.unwrap_or(reading.ts));
                self.usage.totals.set_elapsed(elapsed);
                self.clean &= self.usage.totals.lost == 0.0;
                self.close(joules, self.floor(), view.slots);
            }
        }
    }

    /// Shows an interval to what learns from intervals, once its weights by slot are known.
    fn learn_interval(&mut self, joules: f64) {
        let totals = &self.usage.totals;
        // A window's busy map exists from the second window with meters on.
        let mapped = totals.any_busy > 0.0 || totals.busy == 0.0;
        if !self.clean || !mapped || totals.seconds() < *LEARN_SECONDS.start() {
            return;
        }
        if let Some(baseline) = &mut self.baseline {
            baseline.observe(joules, totals);
        }
        if totals.seconds() > *LEARN_SECONDS.end() {
            return;
        }
        if let Some(smt) = &mut self.smt {
            smt.interval(joules, totals);
        }
        let Some(learner) = &mut self.learner else { return };
        let features = &mut self.features;
        features.joules = joules;
        features.seconds = totals.seconds();
        features.any_busy = totals.any_busy * 1e-9;
        features.busy = totals.busy * 1e-9;
        features.weights.clear();
        let used = self.by_slot.iter().enumerate().filter(|(_, w)| **w > 0.0);
        features.weights.extend(used.map(|(slot, w)| (slot as Slot, *w * 1e-9)));
        learner.observe(features);
    }

    /// Once a window, after its line: works out anew what is learnt.
    pub(super) fn learn_window(&mut self, end: Nanos) {
        let at_edge = self.counter.last_ts().is_some_and(|ts| ts >= end);
        if self.account.intervals == 0 || !at_edge {
            return;
        }
        if let Some(baseline) = &mut self.baseline {
            baseline.solve();
        }
        if let Some(smt) = &mut self.smt {
            smt.solve();
        }
        let floor = match (self.idle_watts, &self.baseline) {
            (Some(watts), _) => Some((watts, FLOOR_ERROR * watts + 1e-3)),
            (None, Some(baseline)) => {
                let (watts, error, trusted) = baseline.state();
                trusted.then_some((watts, error))
            }
            (None, None) => None,
        };
        if let Some(learner) = &mut self.learner {
            learner.solve(floor);
        }
    }

    /// A slot of the coefficients belongs to another workload from now on.
    pub(super) fn forget_slot(&mut self, slot: Slot) {
        if let Some(learner) = &mut self.learner {
            learner.forget(slot);
        }
    }

    /// How far a slot's power could be told; `None` where nothing is learnt.
    pub(super) fn confidence(&self, slot: Slot) -> Option<f32> {
        self.learner.as_ref()?.confidence(slot)
    }

    /// The idle baseline, where one is learnt.
    pub(super) fn baseline(&self) -> Option<&Baseline> {
        self.baseline.as_ref()
    }

    fn forget_interval(&mut self, ts: Nanos) {
        self.usage.clear();
        self.clean = false;
        if self.account.intervals == 0 {
            self.since = Some(ts);
        }
    }

    /// What the idle part rests on now.
    fn floor(&self) -> Floor {
        match (self.idle_watts, self.idle) {
            (Some(watts), _) => Floor::Configured(watts),
            (None, Idle::None) => Floor::None,
            (None, Idle::Proportional) => Floor::Proportional,
            (None, Idle::Baseline) => match self.baseline.as_ref().and_then(Baseline::trusted) {
                Some(watts) => Floor::Baseline(watts),
                None => Floor::Proportional,
            },
        }
    }

    /// Books an interval's energy and starts the next.
    pub(super) fn close(&mut self, joules: f64, floor: Floor, slots: &[Slot]) {
        let totals = self.usage.totals;
        let exact = self.exact(floor);
        let floor = if exact {
            floor
        } else {
            self.drift.observe(floor, joules, &totals);
            floor.shifted(self.drift.watts())
        };
        let above = (joules - floor.split(joules, &totals, exact)).max(0.0);
        self.account.above += above;
        if !exact {
            self.account.shortfall += floor.shortfall(joules, &totals);
        }
        let lost = totals.lost * self.lost_busy();
        let active = self.share_out(above, slots);
        self.account.book(&self.usage, joules, active, lost, &self.shares);
        self.learn_interval(joules);
        self.learn_busy();
        self.usage.clear();
    }

    /// Works out what each touched row takes, and how much of the energy above the floor is taken
    /// for active in this interval.
    fn share_out(&mut self, above: f64, slots: &[Slot]) -> f64 {
        let usage = &self.usage;
        self.shares.clear();
        let rows = usage.touched.iter().map(|row| *row as usize);
        let Some(learner) = &self.learner else {
            self.shares.extend(rows.map(|row| usage.rows[row].weight));
            return above;
        };
        learner.coefficients(&mut self.coefficients);
        self.by_slot.clear();
        self.by_slot.resize(self.coefficients.len(), 0.0);
        // Waking the package is shared by time among who ran.
        let wake = learner.wake() * usage.totals.any_busy / usage.totals.busy.max(1.0);
        // Watts times nanoseconds.
        let mut predicted = 0.0;
        self.shares.extend(rows.map(|row| {
            // Rows carried over have no slot here: they are the pool's.
            let slot = usize::from(slots.get(row).copied().unwrap_or(0));
            let Ran { weight, time } = usage.rows[row];
            self.by_slot[slot] += weight;
            let share = self.coefficients[slot] * weight + wake * time;
            predicted += share;
            share
        }));
        match learner.gain() {
            Some(gain) if usage.totals.busy > 0.0 => gain * above + (1.0 - gain) * 1e-9 * predicted,
            _ => above,
        }
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
            self.clean = true;
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
            let (ran, due) =
                (std::mem::take(&mut usage.rows[at]), std::mem::take(&mut account.rows[at]));
            self.carried.push((key(row), [ran.weight, ran.time, due.active, due.weight]));
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
