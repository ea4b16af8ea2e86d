//! The part of a zone's energy that is the idle floor's.

use wattpipe_pipeline::batch::IdleBasis;

use super::interval::Totals;

/// How long a shortfall of energy against the floor is remembered, in seconds of the floor's
/// power: clipping at zero would turn the meter's noise into active energy.
const CARRY_SECONDS: f64 = 5.0;

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

    /// The idle joules of an interval, between 0 and `joules`. `carry` is what the floor is still
    /// owed from intervals that measured less than it; `None` where every interval stands alone.
    pub(super) fn split(self, joules: f64, totals: &Totals, carry: Option<&mut f64>) -> f64 {
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
            Self::Configured(watts) | Self::Baseline(watts) => {
                let exact = carry.is_none() && matches!(self, Self::Configured(_));
                if totals.busy == 0.0 && totals.lost == 0.0 && !exact {
                    // Nobody ran: all of it is the floor's, whatever it was meant to be.
                    return joules;
                }
                with_carry(watts, joules, totals, carry)
            }
        }
    }
}

fn with_carry(watts: f64, joules: f64, totals: &Totals, carry: Option<&mut f64>) -> f64 {
    let floor = watts * totals.seconds();
    match carry {
        None => floor.min(joules),
        Some(carry) => {
            let idle = (floor + *carry).clamp(0.0, joules);
            *carry = bounded(*carry + floor - idle, watts);
            idle
        }
    }
}

fn bounded(carry: f64, watts: f64) -> f64 {
    carry.clamp(-CARRY_SECONDS * watts, CARRY_SECONDS * watts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(busy: f64, idle: f64, lost: f64) -> Totals {
        Totals { busy, idle, lost, elapsed: 1e9, ..Totals::default() }
    }

    #[track_caller]
    fn check(floor: Floor, joules: f64, t: &Totals, expected: f64) {
        let got = floor.split(joules, t, None);
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
        check(Floor::Baseline(4.0), 10.0, &totals(0.0, 4e9, 0.0), 10.0);
        check(Floor::Baseline(4.0), 10.0, &totals(0.0, 0.0, 4e9), 4.0);
    }

    #[test]
    fn noise_around_the_floor_leaves_no_active_energy_behind() {
        let t = totals(1e6, 4e9, 0.0);
        let mut carry = 0.0;
        let mut active = 0.0;
        for window in 0..1000 {
            let joules = if window % 2 == 0 { 9.0 } else { 11.0 };
            active += joules - Floor::Baseline(10.0).split(joules, &t, Some(&mut carry));
        }
        assert!(active < 2.0, "{active} J of noise became active");
        let clipped: f64 = (0..1000)
            .map(|w| if w % 2 == 0 { 9.0 } else { 11.0 })
            .map(|joules| joules - Floor::Baseline(10.0).split(joules, &t, None))
            .sum();
        assert!(clipped > 400.0, "the test must be able to fail: {clipped}");
    }
}
