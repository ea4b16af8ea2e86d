//! One CPU's stream: who has it, since when, and the loop that turns switches into time.
//!
//! Time is credited when an interval ends, never before: an interval that a loss turns out to
//! have cut into belongs to nobody from its last known switch on.

use wattpipe_pipeline::{
    batch::{CpuBlock, Switch},
    units::{Cpu, Nanos, Tgid},
};

use super::{
    accounts::{Accounts, grown},
    busy::Busy,
    slots::{IDLE, SlotId, Slots, UNKNOWN},
};

/// Why it is not known who has the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// It is known.
    None,
    /// No record of this CPU yet: a switch or a tick ends it.
    NoRecord,
    /// Switches were lost: only a switch ends it.
    Lost,
}

/// Readings within one interval that are kept; more in one window tell nothing new.
const MAX_KNOTS: usize = 1024;

/// A reading of the cycle counter.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ts: Nanos,
    cycles: u64,
}

/// The state of one CPU.
#[derive(Debug)]
pub(super) struct CpuState {
    pub(super) cpu: Cpu,
    /// Index of its package in the window's list.
    pub(super) package: usize,
    /// Index into the window's SMT cores, where the core has siblings.
    pub(super) core: Option<usize>,
    /// The window accounts for it: it was online at the window's start.
    pub(super) counted: bool,
    /// It is in the newest topology.
    pub(super) online: bool,
    slot: SlotId,
    tgid: Tgid,
    gap: Gap,
    /// Up to here its time is credited.
    since: Nanos,
    slice: usize,
    reading: Option<Reading>,
    /// What ticks have read since `reading`: cycles between them are known, not only in all.
    knots: Vec<Reading>,
}

/// What a stream is accounted in.
pub(super) struct Books<'a> {
    pub(super) slots: &'a mut Slots,
    pub(super) accounts: &'a mut Accounts,
    pub(super) busy: &'a mut Busy,
    /// Switches that contradicted the one before: a record must be missing.
    pub(super) contradictions: &'a mut u64,
}

impl CpuState {
    pub(super) fn new(cpu: Cpu, since: Nanos) -> Self {
        Self {
            cpu,
            package: 0,
            core: None,
            counted: false,
            online: true,
            slot: UNKNOWN,
            tgid: Tgid(0),
            gap: Gap::NoRecord,
            since,
            slice: 0,
            reading: None,
            knots: Vec::new(),
        }
    }

    /// Who has it now, where that is a process.
    pub(super) fn current(&self) -> SlotId {
        self.slot
    }

    /// Switches are missing from its last known switch on.
    pub(super) fn lost(&mut self) {
        self.slot = UNKNOWN;
        self.gap = Gap::Lost;
        self.forget_reading();
    }

    fn forget_reading(&mut self) {
        self.reading = None;
        self.knots.clear();
    }

    /// Takes in the entries of one block.
    pub(super) fn run(&mut self, block: &CpuBlock, entries: &[Switch], books: &mut Books<'_>) {
        let (switches, tick) = match entries.split_last() {
            Some((last, rest)) if block.tick_last => (rest, Some(last)),
            _ => (entries, None),
        };
        if !block.has_cycles && !books.busy.wanted() && self.counted {
            self.run_lean(switches, books);
        } else {
            for entry in switches {
                self.switch(entry, block.has_cycles, books);
            }
        }
        if let Some(tick) = tick {
            self.tick(tick, block.has_cycles, books);
        }
    }

    /// The loop for hosts without meters and counters, and for replays of plain switches: nothing
    /// but time.
    fn run_lean(&mut self, switches: &[Switch], books: &mut Books<'_>) {
        let mut at = 0;
        while at < switches.len() {
            let end = books.accounts.end(self.slice);
            let hot = books.accounts.hot(self.slice, self.package);
            while let Some(entry) = switches.get(at) {
                if entry.ts > end || entry.prev != self.tgid || self.gap != Gap::None {
                    break;
                }
                let account = grown(hot, self.slot);
                account.ns += entry.ts.0.saturating_sub(self.since.0);
                account.switches += 1;
                self.since = self.since.max(entry.ts);
                self.slot = books.slots.at(entry.next, entry.ts);
                self.tgid = entry.next;
                at += 1;
            }
            // Slice ends, gaps and contradictions are rare and take the full way.
            if let Some(entry) = switches.get(at) {
                self.switch(entry, false, books);
                at += 1;
            }
        }
    }

    fn switch(&mut self, entry: &Switch, has_cycles: bool, books: &mut Books<'_>) {
        let leaving = if self.gap != Gap::None {
            books.slots.at(entry.prev, entry.ts)
        } else if self.tgid != entry.prev {
            *books.contradictions += 1;
            self.slot = UNKNOWN;
            self.forget_reading();
            books.slots.at(entry.prev, entry.ts)
        } else {
            self.slot
        };
        let reading = has_cycles.then_some(Reading { ts: entry.ts, cycles: entry.cycles });
        self.credit(entry.ts, reading, books);
        if self.counted {
            grown(books.accounts.hot(self.slice, self.package), leaving).switches += 1;
        }
        self.reading = reading;
        self.slot = books.slots.at(entry.next, entry.ts);
        self.tgid = entry.next;
        self.gap = Gap::None;
    }

    fn tick(&mut self, tick: &Switch, has_cycles: bool, books: &mut Books<'_>) {
        let reading = has_cycles.then_some(Reading { ts: tick.ts, cycles: tick.cycles });
        match self.gap {
            // Nothing that may count yet.
            Gap::Lost => return,
            Gap::None if self.tgid == tick.next => {
                if self.knots.len() < MAX_KNOTS {
                    self.knots.extend(reading);
                }
                return;
            }
            Gap::None => {
                *books.contradictions += 1;
                self.slot = UNKNOWN;
                self.forget_reading();
            }
            Gap::NoRecord => {}
        }
        self.credit(tick.ts, None, books);
        self.reading = reading;
        self.slot = books.slots.at(tick.next, tick.ts);
        self.tgid = tick.next;
        self.gap = Gap::None;
    }

    /// Credits the time up to `ts` to whoever has the CPU, slice by slice. `next` is the counter's
    /// reading at or after `ts`; cycles between two readings are split by time.
    fn credit(&mut self, ts: Nanos, next: Option<Reading>, books: &mut Books<'_>) {
        if !self.knots.is_empty() {
            for knot in std::mem::take(&mut self.knots) {
                self.credit_between(knot.ts.min(ts), Some(knot), books);
                self.reading = Some(knot);
            }
        }
        self.credit_between(ts, next, books);
    }

    fn credit_between(&mut self, ts: Nanos, next: Option<Reading>, books: &mut Books<'_>) {
        let ts = ts.max(self.since);
        let rate = match (self.reading, next) {
            (Some(a), Some(b)) if b.ts > a.ts && b.cycles >= a.cycles => {
                Some((a, b.cycles - a.cycles, b.ts.0 - a.ts.0))
            }
            _ => None,
        };
        loop {
            let end = books.accounts.end(self.slice);
            let to = ts.min(end);
            if to > self.since {
                self.credit_within(to, rate, books);
            }
            if ts <= end {
                return;
            }
            self.slice += 1;
        }
    }

    fn credit_within(
        &mut self,
        to: Nanos,
        rate: Option<(Reading, u64, u64)>,
        books: &mut Books<'_>,
    ) {
        let from = std::mem::replace(&mut self.since, to);
        let ns = to.0 - from.0;
        if !self.counted {
            return;
        }
        books.accounts.add(self.slice, self.package, self.slot, ns);
        if self.slot <= UNKNOWN {
            return;
        }
        books.busy.add(self.package, self.core, self.cpu, self.slot, self.slice, from, to);
        if let Some((start, cycles, span)) = rate {
            // Cycles up to a moment, so that parts of an interval add up to the whole.
            let upto = |t: Nanos| {
                (u128::from(cycles) * u128::from(t.since(start.ts).0) / u128::from(span)) as u64
            };
            let extra = books.accounts.extra(self.slice, self.package, self.slot);
            let part = upto(to) - upto(from);
            extra.cycles += part;
            extra.counted += ns;
            extra.square += (part as f64) * (part as f64) / ns as f64;
        }
    }

    /// Closes the window at `edge`. `after` is the CPU's first entry beyond it, if it has come.
    pub(super) fn cut(
        &mut self,
        edge: Nanos,
        after: Option<&Switch>,
        has_cycles: bool,
        books: &mut Books<'_>,
    ) {
        if !self.online {
            // Gone from the topology: idle since its last record.
            self.slot = IDLE;
            self.tgid = Tgid(0);
            self.gap = Gap::None;
            self.reading = None;
        }
        let next = after.filter(|_| has_cycles).map(|e| Reading { ts: e.ts, cycles: e.cycles });
        self.credit(edge, next, books);
        if let (Some(a), Some(b)) = (self.reading, next)
            && b.ts > a.ts
            && b.cycles >= a.cycles
        {
            let part = u128::from(b.cycles - a.cycles) * u128::from(edge.since(a.ts).0)
                / u128::from(b.ts.0 - a.ts.0);
            self.reading = Some(Reading { ts: edge.max(a.ts), cycles: a.cycles + part as u64 });
        }
        self.since = edge.max(self.since);
        self.slice = 0;
    }
}
