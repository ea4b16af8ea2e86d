//! Where time goes: per slice and package, an account for each slot. The hot account is 16 bytes,
//! so that thousands of processes stay in the cache; what only meters and counters need is apart.

use wattpipe_pipeline::{batch::Cell, units::Nanos};

use super::slots::{IDLE, SlotId, UNKNOWN};

/// What every switch touches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hot {
    pub(super) ns: u64,
    pub(super) switches: u64,
}

/// What the power model weighs besides time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra {
    pub(super) cycles: u64,
    pub(super) counted: u64,
    pub(super) square: f64,
    pub(super) shared: u64,
}

/// Accounts of one window: `slices × packages` domains.
#[derive(Debug)]
pub(super) struct Accounts {
    packages: usize,
    hot: Vec<Vec<Hot>>,
    extra: Vec<Vec<Extra>>,
    /// Ends of the slices known so far; the last slice is open.
    ends: Vec<Nanos>,
}

/// Slices beyond this are merged into the last: a recording with a reading every microsecond must
/// not take all memory.
const MAX_SLICES: usize = 4096;

impl Accounts {
    pub(super) fn new(packages: usize) -> Self {
        let mut accounts = Self {
            packages: packages.max(1),
            hot: Vec::new(),
            extra: Vec::new(),
            ends: Vec::new(),
        };
        accounts.grow_domains();
        accounts
    }

    fn grow_domains(&mut self) {
        let domains = (self.ends.len() + 1) * self.packages;
        if self.hot.len() < domains {
            self.hot.resize_with(domains, Vec::new);
            self.extra.resize_with(domains, Vec::new);
        }
    }

    /// Ends a slice at `ts` (later than the last end) for what is still to come.
    pub(super) fn cut(&mut self, ts: Nanos) {
        if self.ends.last().is_none_or(|last| *last < ts) && self.ends.len() < MAX_SLICES {
            self.ends.push(ts);
            self.grow_domains();
        }
    }

    /// The end of slice `slice`: the open one has none yet.
    pub(super) fn end(&self, slice: usize) -> Nanos {
        self.ends.get(slice).copied().unwrap_or(Nanos(u64::MAX))
    }

    /// Ends of the closed slices.
    pub(super) fn ends(&self) -> &[Nanos] {
        &self.ends
    }

    pub(super) fn packages(&self) -> usize {
        self.packages
    }

    fn domain(&self, slice: usize, package: usize) -> usize {
        slice * self.packages + package
    }

    /// The accounts of one domain, for a run of switches within it.
    pub(super) fn hot(&mut self, slice: usize, package: usize) -> &mut Vec<Hot> {
        let at = self.domain(slice, package);
        &mut self.hot[at]
    }

    pub(super) fn extra(&mut self, slice: usize, package: usize, slot: SlotId) -> &mut Extra {
        let at = self.domain(slice, package);
        grown(&mut self.extra[at], slot)
    }

    /// Adds time.
    pub(super) fn add(&mut self, slice: usize, package: usize, slot: SlotId, ns: u64) {
        grown(self.hot(slice, package), slot).ns += ns;
    }

    /// Time and switches of a slot over all domains, and its cycles.
    pub(super) fn total(&self, slot: SlotId) -> (Hot, u64) {
        let mut sum = Hot::default();
        for hot in self.hot.iter().filter_map(|d| d.get(slot as usize)) {
            sum.ns += hot.ns;
            sum.switches += hot.switches;
        }
        let cycles = self.extra.iter().filter_map(|d| d.get(slot as usize)).map(|e| e.cycles).sum();
        (sum, cycles)
    }

    /// (idle, unknown) of a domain.
    pub(super) fn idle_unknown(&self, slice: usize, package: usize) -> (Nanos, Nanos) {
        let hot = &self.hot[self.domain(slice, package)];
        let ns = |slot: SlotId| Nanos(hot.get(slot as usize).map_or(0, |h| h.ns));
        (ns(IDLE), ns(UNKNOWN))
    }

    /// What the processes did in a domain; `row_of` gives a slot's row.
    pub(super) fn cells(&self, slice: usize, package: usize, row_of: &[u32]) -> Vec<Cell> {
        let at = self.domain(slice, package);
        let extra = &self.extra[at];
        let mut cells = Vec::new();
        for (slot, hot) in self.hot[at].iter().enumerate().skip(2) {
            if hot.ns == 0 {
                continue;
            }
            let e = extra.get(slot).copied().unwrap_or_default();
            cells.push(Cell {
                row: row_of[slot],
                cpu: Nanos(hot.ns),
                shared: Nanos(e.shared),
                cycles: e.cycles,
                counted: Nanos(e.counted),
                square: e.square,
                // Within a slice the frequency is taken to be the same, shared or not.
                square_shared: e.square * (e.shared as f64 / hot.ns as f64),
            });
        }
        cells
    }

    /// Starts a new window.
    pub(super) fn clear(&mut self, packages: usize) {
        self.ends.clear();
        if packages.max(1) != self.packages {
            *self = Self::new(packages);
            return;
        }
        for domain in &mut self.hot {
            domain.fill(Hot::default());
        }
        for domain in &mut self.extra {
            domain.fill(Extra::default());
        }
    }
}

/// The account of `slot`, made where there is none yet.
#[inline]
pub(super) fn grown<T: Clone + Default>(accounts: &mut Vec<T>, slot: SlotId) -> &mut T {
    let at = slot as usize;
    if accounts.len() <= at {
        grow(accounts, at);
    }
    &mut accounts[at]
}

#[cold]
fn grow<T: Clone + Default>(accounts: &mut Vec<T>, at: usize) {
    // In steps, so that a fork storm does not reallocate for each process.
    accounts.resize((at + 1).next_multiple_of(256), T::default());
}
