//! What ran on a zone's CPUs between two of its readings, and the split of energy over it.
//!
//! Rows are addressed by number: first the rows of the window at hand, then those carried over
//! from earlier windows in which the zone was not read.

use wattpipe_pipeline::units::Nanos;

/// Sums over the CPUs of a zone, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// Time that processes ran.
    pub(super) busy: f64,
    /// Time that CPUs were idle.
    pub(super) idle: f64,
    /// Time of which it is not known who had the CPU.
    pub(super) lost: f64,
    /// Time during which at least one CPU of a package was busy, averaged over packages.
    pub(super) any_busy: f64,
    /// Core time with two threads busy.
    pub(super) pair_busy: f64,
    /// Weight of all rows.
    pub(super) weight: f64,
    /// Weighted time of rows that had their core to themselves, and of those that shared it.
    pub(super) alone: f64,
    /// See `alone`.
    pub(super) shared: f64,
    /// From reading to reading.
    pub(super) elapsed: f64,
}

impl Totals {
    /// Σ of each CPU's online time.
    pub(super) fn online(&self) -> f64 {
        self.busy + self.idle + self.lost
    }

    /// The length in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.elapsed * 1e-9
    }

    pub(super) fn set_elapsed(&mut self, elapsed: Nanos) {
        self.elapsed = elapsed.0 as f64;
    }
}

/// What a row ran for since the zone's last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ran {
    pub(super) weight: f64,
    /// Nanoseconds.
    pub(super) time: f64,
}

/// What a row is to be told at the next edge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Due {
    /// Active joules.
    pub(super) active: f64,
    /// Weight, for sharing out idle joules.
    pub(super) weight: f64,
}

/// Usage per row since the zone's last reading.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    pub(super) totals: Totals,
    pub(super) rows: Vec<Ran>,
    /// Rows with anything in them.
    pub(super) touched: Vec<u32>,
}

impl Usage {
    /// Makes room for this many rows; what is there stays.
    pub(super) fn resize(&mut self, rows: usize) {
        self.rows.resize(rows, Ran::default());
    }

    pub(super) fn add(&mut self, row: u32, weight: f64, time: f64) {
        if weight == 0.0 && time == 0.0 {
            return;
        }
        let ran = &mut self.rows[row as usize];
        if *ran == Ran::default() {
            self.touched.push(row);
        }
        ran.weight += weight;
        ran.time += time;
    }

    pub(super) fn clear(&mut self) {
        for &row in &self.touched {
            self.rows[row as usize] = Ran::default();
        }
        self.touched.clear();
        self.totals = Totals::default();
    }
}

/// A zone's energy since its last edge, as it goes into the window's line and rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) joules: f64,
    pub(super) idle: f64,
    pub(super) unattributed: f64,
    /// Joules above the floor, as measured: what active and unattributed come to at the edge.
    pub(super) above: f64,
    /// By how much intervals fell short of the floor.
    pub(super) shortfall: f64,
    /// Intervals that were taken.
    pub(super) intervals: u32,
    pub(super) rows: Vec<Due>,
    /// Rows with anything in them.
    pub(super) touched: Vec<u32>,
}

impl Account {
    pub(super) fn resize(&mut self, rows: usize) {
        self.rows.resize(rows, Due::default());
    }

    pub(super) fn clear(&mut self) {
        for &row in &self.touched {
            self.rows[row as usize] = Due::default();
        }
        self.touched.clear();
        self.joules = 0.0;
        self.idle = 0.0;
        self.unattributed = 0.0;
        self.shortfall = 0.0;
        self.above = 0.0;
        self.intervals = 0;
    }

    pub(super) fn put(&mut self, row: u32, active: f64, weight: f64) {
        if active == 0.0 && weight == 0.0 {
            return;
        }
        let due = &mut self.rows[row as usize];
        if *due == Due::default() {
            self.touched.push(row);
        }
        due.active += active;
        due.weight += weight;
    }

    /// Books `joules`, of which `active` are not the floor's. Of those, lost time takes its part by
    /// time, `lost` being how much of it counts as busy; rows take theirs by `shares` (one for each
    /// touched row). With no busy time at all, the rest is unattributed.
    pub(super) fn book(
        &mut self,
        usage: &Usage,
        joules: f64,
        active: f64,
        lost: f64,
        shares: &[f64],
    ) {
        self.joules += joules;
        self.idle += joules - active;
        self.intervals += 1;
        let busy = usage.totals.busy;
        let unattributed = if busy > 0.0 { active * lost / (busy + lost) } else { active };
        let shared_out = active - unattributed;
        let sum: f64 = shares.iter().sum();
        if sum > 0.0 {
            self.unattributed += unattributed;
            let each = shared_out / sum;
            for (&row, share) in usage.touched.iter().zip(shares) {
                self.put(row, each * share, usage.rows[row as usize].weight);
            }
            return;
        }
        // Nothing has weight (a counter that stands still): by time, else to nobody.
        let sum: f64 = usage.touched.iter().map(|&row| usage.rows[row as usize].time).sum();
        if sum > 0.0 {
            self.unattributed += unattributed;
            for &row in &usage.touched {
                let time = usage.rows[row as usize].time;
                self.put(row, shared_out * time / sum, time);
            }
        } else {
            self.unattributed += active;
        }
    }

    /// At an edge: makes active and unattributed energy come to `target`, keeping proportions; the
    /// rest is the floor's.
    pub(super) fn settle(&mut self, target: f64) {
        let target = target.clamp(0.0, self.joules);
        let all = self.active_sum() + self.unattributed;
        if all > 0.0 {
            let by = target / all;
            for &row in &self.touched {
                self.rows[row as usize].active *= by;
            }
            self.unattributed *= by;
        } else {
            self.unattributed = target;
        }
        self.idle = self.joules - target;
    }

    /// Joules of workloads.
    pub(super) fn active_sum(&self) -> f64 {
        // Not `sum`, whose nothing is -0.0.
        self.touched.iter().fold(0.0, |sum, &row| sum + self.rows[row as usize].active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Books on two rows and checks (row 0, row 1, unattributed).
    #[track_caller]
    fn check(times: [f64; 2], lost: f64, joules: f64, idle: f64, expected: [f64; 3]) {
        let mut usage = Usage::default();
        usage.resize(2);
        for (row, time) in times.into_iter().enumerate() {
            usage.add(row as u32, time, time);
        }
        usage.totals = Totals { busy: times.iter().sum(), lost, idle: 1.0, ..Totals::default() };
        let mut account = Account::default();
        account.resize(2);
        account.book(&usage, joules, joules - idle, lost, &times);
        let got = [account.rows[0].active, account.rows[1].active, account.unattributed];
        for (g, e) in got.iter().zip(expected) {
            assert!((g - e).abs() < 1e-12, "{got:?}, expected {expected:?}");
        }
        let parts = account.active_sum() + account.idle + account.unattributed;
        assert!((parts - joules).abs() < 1e-12);
    }

    #[test]
    fn every_joule_goes_somewhere() {
        check([3.0, 1.0], 0.0, 10.0, 2.0, [6.0, 2.0, 0.0]);
        check([3.0, 1.0], 4.0, 10.0, 2.0, [3.0, 1.0, 4.0]);
        check([0.0, 0.0], 4.0, 10.0, 2.0, [0.0, 0.0, 8.0]);
        check([0.0, 0.0], 0.0, 10.0, 2.0, [0.0, 0.0, 8.0]);
        check([0.0, 0.0], 0.0, 10.0, 10.0, [0.0, 0.0, 0.0]);
    }
}
