//! The part of a zone's energy that is the idle floor's.

use wattpipe_pipeline::batch::IdleBasis;

use super::interval::Totals;

/// The most that is remembered of shortfalls, in seconds of the floor's power.
const CARRY_SECONDS: f64 = 5.0;
/// One window gives at most this fraction of its active energy back.
const LARGEST_REDUCTION: f64 = 0.5;

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
}
