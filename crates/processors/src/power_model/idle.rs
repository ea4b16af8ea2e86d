//! The part of a zone's energy that is the idle floor's.

use wattpipe_pipeline::batch::IdleBasis;

use super::interval::Totals;

/// The most that is remembered of shortfalls, in seconds of the floor's power.
const CARRY_SECONDS: f64 = 5.0;
/// One window gives at most this fraction of its active energy back.
const LARGEST_REDUCTION: f64 = 0.5;

/// How fast a floor's drift is followed, in seconds in which nothing ran, and forgotten in others.
const DRIFT_HALF_LIFE: f64 = 2.0;
const DRIFT_FORGETS: f64 = 30.0;
/// A larger one is no drift: the figure does not fit, and is not ours to correct.
const MOST_DRIFT: f64 = 0.05;

/// What the idle part rests on right now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Floor {
    /// In proportion to idle time.
    Proportional,
    /// None is split off.
    None,
    /// The operator's watts.
    Configured(f64),
    /// Learnt watts.
    Baseline(f64),
}

impl Floor {
    /// Its name in records.
    pub(super) fn basis(self) -> IdleBasis {
        match self {
            Self::Proportional => IdleBasis::Proportional,
            Self::None => IdleBasis::None,
            Self::Configured(_) => IdleBasis::Configured,
            Self::Baseline(_) => IdleBasis::Baseline,
        }
    }

    /// The idle joules of an interval, between 0 and `joules`. `exact`: with the operator's watts,
    /// energy above the floor of an interval in which nothing ran stays active (and so becomes
    /// unattributed); otherwise all of such an interval is the floor's.
    pub(super) fn split(self, joules: f64, totals: &Totals, exact: bool) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Proportional => {
                let online = totals.online();
                if online > 0.0 {
                    (joules * (1.0 - totals.busy / online)).clamp(0.0, joules)
                } else {
                    0.0
                }
            }
            Self::Configured(_) | Self::Baseline(_)
                if !exact && totals.busy == 0.0 && totals.lost == 0.0 =>
            {
                joules
            }
            Self::Configured(watts) | Self::Baseline(watts) => {
                (watts * totals.seconds()).min(joules)
            }
        }
    }

    /// A floor of watts that stands this much off its figure now.
    pub(super) fn shifted(self, by: f64) -> Self {
        match self {
            Self::Configured(watts) => Self::Configured(watts + by),
            Self::Baseline(watts) => Self::Baseline(watts + by),
            Self::Proportional | Self::None => self,
        }
    }

    /// By how much an interval in which something ran fell short of the floor.
    pub(super) fn shortfall(self, joules: f64, totals: &Totals) -> f64 {
        match self {
            Self::Configured(watts) | Self::Baseline(watts) if totals.busy + totals.lost > 0.0 => {
                (watts * totals.seconds() - joules).max(0.0)
            }
            _ => 0.0,
        }
    }
}

/// How far a floor stands off its figure lately: floors drift with temperature, and where little
/// runs, that is as much as what runs. Intervals in which nothing ran show it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Drift(f64);

impl Drift {
    /// Takes an interval, of whatever kind.
    pub(super) fn observe(&mut self, floor: Floor, joules: f64, totals: &Totals) {
        let (Floor::Configured(watts) | Floor::Baseline(watts)) = floor else { return };
        let seconds = totals.seconds();
        if totals.busy > 0.0 || totals.lost > 0.0 || seconds <= 0.0 {
            self.0 *= (-seconds * std::f64::consts::LN_2 / DRIFT_FORGETS).exp();
            return;
        }
        let off = (joules / seconds - watts).clamp(-MOST_DRIFT * watts, MOST_DRIFT * watts);
        let keep = (-seconds * std::f64::consts::LN_2 / DRIFT_HALF_LIFE).exp();
        self.0 = self.0 * keep + off * (1.0 - keep);
    }

    /// Watts.
    pub(super) fn watts(self) -> f64 {
        self.0
    }
}

/// What the floor is owed from intervals that measured less than it. Cutting each interval off at
/// zero would turn the meter's noise into active energy: what fell short is taken back from the
/// active energy of the same and later windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Owed(f64);

impl Owed {
    /// Takes `shortfall` on, and gives the joules that `active` is to be reduced by.
    pub(super) fn settle(&mut self, shortfall: f64, active: f64, floor: Floor) -> f64 {
        let (Floor::Configured(watts) | Floor::Baseline(watts)) = floor else {
            self.0 = 0.0;
            return 0.0;
        };
        let owed = self.0 + shortfall;
        let paid = owed.min(active * LARGEST_REDUCTION);
        self.0 = (owed - paid).min(CARRY_SECONDS * watts);
        paid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(busy: f64, idle: f64, lost: f64) -> Totals {
        Totals { busy, idle, lost, elapsed: 1e9, ..Totals::default() }
    }

    #[track_caller]
    fn check(floor: Floor, joules: f64, t: &Totals, expected: f64) {
        let got = floor.split(joules, t, true);
        assert!((got - expected).abs() < 1e-12, "{floor:?} of {joules} J: {got}, not {expected}");
    }

    #[test]
    fn each_basis() {
        let t = totals(1e9, 3e9, 0.0);
        check(Floor::None, 10.0, &t, 0.0);
        check(Floor::Proportional, 10.0, &t, 7.5);
        check(Floor::Proportional, 10.0, &totals(0.0, 0.0, 0.0), 0.0);
        check(Floor::Configured(4.0), 10.0, &t, 4.0);
        check(Floor::Configured(40.0), 10.0, &t, 10.0);
        check(Floor::Configured(4.0), 10.0, &totals(0.0, 4e9, 0.0), 4.0);
        check(Floor::Baseline(4.0), 10.0, &t, 4.0);
        check(Floor::Baseline(4.0), 10.0, &totals(0.0, 0.0, 4e9), 4.0);
        let nothing = totals(0.0, 4e9, 0.0);
        assert_eq!(Floor::Baseline(4.0).split(10.0, &nothing, false), 10.0);
        assert_eq!(Floor::Configured(4.0).split(10.0, &nothing, false), 10.0);
    }

    #[test]
    fn noise_around_the_floor_leaves_no_active_energy_behind() {
        let t = totals(1e6, 4e9, 0.0);
        let floor = Floor::Baseline(10.0);
        let mut owed = Owed::default();
        let (mut clipped, mut active) = (0.0, 0.0);
        for window in 0..1000 {
            let joules = if window % 2 == 0 { 9.0 } else { 11.5 };
            let over = joules - floor.split(joules, &t, false);
            clipped += over;
            active += over - owed.settle(floor.shortfall(joules, &t), over, floor);
        }
        assert!((clipped - 750.0).abs() < 1e-9, "{clipped}");
        // The truth is 250 J; half of a window's active energy at most is taken back.
        assert!((active - 375.0).abs() < 1.0, "{active}");
    }

    #[test]
    fn drift_is_followed_while_nothing_runs_and_within_bounds() {
        #[track_caller]
        fn check(idle_watts: f64, then_busy: u32, expected: f64) {
            let floor = Floor::Configured(20.0);
            let mut drift = Drift::default();
            for _ in 0..60 {
                drift.observe(floor, idle_watts, &totals(0.0, 4e9, 0.0));
            }
            for _ in 0..then_busy {
                drift.observe(floor, 90.0, &totals(1e9, 3e9, 0.0));
            }
            assert!((drift.watts() - expected).abs() < 1e-3, "{} W", drift.watts());
        }
        check(20.3, 0, 0.3);
        check(19.7, 0, -0.3);
        check(20.4, 30, 0.2);
        check(35.0, 0, 1.0);
        assert_eq!(Floor::Configured(20.0).shifted(0.5), Floor::Configured(20.5));
        assert_eq!(Floor::Proportional.shifted(0.5), Floor::Proportional);
    }
}
