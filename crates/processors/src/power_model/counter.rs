//! From a cumulative counter's readings to energy: wrap, reset, what is not plausible.

use wattpipe_pipeline::{batch::Zone, units::Nanos};

/// Counters step about once a millisecond and readings are stamped within that: two readings may
/// show this much more time's energy than lies between them.
const STEP: f64 = 0.002;
/// Power limits hold on average over seconds; short peaks go above them.
const OVER_LIMIT: f64 = 2.0;
/// A counter that steps rarely shows the energy of up to this many seconds at once: what a zone
/// could have drawn and has not shown yet is kept for as long. An operator's limit is strict.
const SAVED_SECONDS: f64 = 1.0;

/// The energy between two readings, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Delta {
    /// The first reading: nothing to subtract from.
    First,
    /// Joules since the reading before.
    Energy {
        /// How many.
        joules: f64,
        /// The counter may have wrapped more than once in this time.
        ambiguous: bool,
    },
    /// The counter started anew (suspend, migration): what it held before is gone.
    Reset,
    /// More than the zone can draw.
    Implausible,
    /// Not later than the reading before: nothing to learn from it.
    Stale,
}

/// A zone's counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Counter {
    last: Option<(Nanos, u64)>,
    /// Watts over the last interval that was taken.
    recent: Option<f64>,
    /// Seconds at the bound that the zone has not used up lately.
    saved: f64,
}

impl Counter {
    /// When it was read last.
    pub(super) fn last_ts(&self) -> Option<Nanos> {
        self.last.map(|(ts, _)| ts)
    }

    /// Takes the next reading. `limit` is the operator's bound in watts.
    pub(super) fn read(&mut self, zone: &Zone, limit: Option<f64>, ts: Nanos, uj: u64) -> Delta {
        let Some((last_ts, last_uj)) = self.last else {
            self.last = Some((ts, uj));
            return Delta::First;
        };
        if ts <= last_ts {
            return Delta::Stale;
        }
        self.last = Some((ts, uj));
        let seconds = ts.since(last_ts).as_secs_f64();
        let most = limit.unwrap_or_else(|| plausible_watts(zone));
        let credit = if limit.is_some() { seconds } else { self.saved + seconds };
        let (delta, wrapped) = match uj.checked_sub(last_uj) {
            Some(delta) => (delta, false),
            None => match zone.max_energy_range_uj.filter(|range| *range >= last_uj) {
                Some(range) => ((range - last_uj).saturating_add(uj), true),
                None => return Delta::Reset,
            },
        };
        let joules = delta as f64 * 1e-6;
        if joules > most * (credit + STEP) {
            self.saved = 0.0;
            return if wrapped { Delta::Reset } else { Delta::Implausible };
        }
        let ambiguous = zone.max_energy_range_uj.is_some_and(|range| {
            let watts = limit.or(zone.max_watts).or(self.recent);
            watts.is_some_and(|w| w * seconds > 0.5e-6 * range as f64)
        });
        self.recent = Some(joules / seconds);
        self.saved = (credit - joules / most).clamp(0.0, SAVED_SECONDS);
        Delta::Energy { joules, ambiguous }
    }
}

/// A bound that no healthy zone reaches: the hardware's limit with room for peaks, else generous
/// for the kind of zone.
fn plausible_watts(zone: &Zone) -> f64 {
    match (zone.max_watts, &*zone.hw_type, zone.package) {
        (Some(watts), ..) => OVER_LIMIT * watts,
        (None, "memory", Some(_)) => 1000.0,
        (None, _, Some(_)) => 2000.0,
        (None, _, None) => 10_000.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattpipe_pipeline::units::Package;

    fn zone(range: Option<u64>, max_watts: Option<f64>) -> Zone {
        Zone {
            name: "package-0".into(),
            hw_type: "cpu".into(),
            package: Some(Package(0)),
            source: "rapl".into(),
            contained_in: None,
            max_energy_range_uj: range,
            max_watts,
        }
    }

    /// Reads `from`, then `to` a number of milliseconds later.
    #[track_caller]
    fn check(zone: &Zone, limit: Option<f64>, from: u64, ms: u64, to: u64, expected: Delta) {
        let mut counter = Counter::default();
        assert_eq!(counter.read(zone, limit, Nanos(5), from), Delta::First);
        let got = counter.read(zone, limit, Nanos(5 + ms * 1_000_000), to);
        assert_eq!(got, expected, "{from} -> {to} in {ms} ms");
    }

    fn joules(joules: f64) -> Delta {
        Delta::Energy { joules, ambiguous: false }
    }

    #[test]
    fn forwards_wrapped_and_started_anew() {
        let range = 262_143_328_850;
        let ranged = zone(Some(range), None);
        check(&ranged, None, 1_000_000, 1000, 51_000_000, joules(50.0));
        check(&ranged, None, range - 10_000_000, 1000, 5_000_000, joules(15.0));
        check(&ranged, None, 200_000_000_000, 1000, 5, Delta::Reset);
        check(&zone(None, None), None, 10, 1000, 5, Delta::Reset);
        // A last value above the range is no counter of that range.
        check(&zone(Some(100), None), None, 200, 1000, 5, Delta::Reset);
    }

    #[test]
    fn beyond_what_the_zone_can_draw() {
        check(&zone(None, None), None, 0, 1000, 9_000_000_000, Delta::Implausible);
        check(&zone(None, Some(35.0)), None, 0, 1000, 80_000_000, Delta::Implausible);
        check(&zone(None, Some(35.0)), None, 0, 1000, 60_000_000, joules(60.0));
        check(&zone(None, Some(35.0)), Some(100.0), 0, 1000, 80_000_000, joules(80.0));
        check(&zone(None, None), None, 0, 1000, u64::MAX, Delta::Implausible);
    }

    #[test]
    fn a_counter_that_steps_once_a_second_is_plausible_between_steps() {
        let package = zone(None, Some(35.0));
        let mut counter = Counter::default();
        let mut got = 0.0;
        for tenth in 0..=30 {
            let uj = (tenth / 10) * 60_000_000;
            let ts = Nanos(1 + tenth * 100_000_000);
            if let Delta::Energy { joules, .. } = counter.read(&package, None, ts, uj) {
                got += joules;
            }
        }
        assert!((got - 180.0).abs() < 1e-9, "{got}");
        // Going on above the bound is not.
        for tenth in 31..=40 {
            let ts = Nanos(1 + tenth * 100_000_000);
            let delta = counter.read(&package, None, ts, 180_000_000 + (tenth - 30) * 30_000_000);
            assert!(tenth < 36 || delta == Delta::Implausible, "{tenth}: {delta:?}");
        }
    }

    #[test]
    fn a_long_window_may_hide_a_wrap() {
        let small = zone(Some(65_532_610_987), Some(400.0));
        let long = Delta::Energy { joules: 10_000.0, ambiguous: true };
        check(&small, None, 0, 100_000, 10_000_000_000, long);
        check(&small, None, 0, 80_000, 10_000_000_000, joules(10_000.0));
    }

    #[test]
    fn time_must_advance() {
        check(&zone(None, None), None, 10, 0, 20, Delta::Stale);
    }
}
