//! What a stretch of CPU time weighs: plain time, cycles, or time weighted by sibling overlap and
//! the square of frequency.
//!
//! Power goes with the square of frequency to its cube, and two threads of one core draw less
//! than twice what one draws. Time that no counter covered takes the mean frequency of the rest,
//! so that counted and uncounted time share one unit.

use wattpipe_pipeline::batch::{Cell, Domain};

use super::config::Weight;

/// What each of two threads of a busy core weighs, where nothing better is known: 11/20 of a
/// thread that has its core to itself (HaPPy, ATC'14; DEEP-mon).
pub(super) const SHARED_CORE: f64 = 0.55;

/// Mean frequency (GHz) and mean square of it (GHz²) over counted time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Frequency {
    pub(super) mean: f64,
    pub(super) square: f64,
}

impl Frequency {
    /// Over the counted time of these packages; `None` where no counter worked.
    pub(super) fn of<'a>(domains: impl Iterator<Item = &'a Domain>) -> Option<Self> {
        let (mut counted, mut cycles, mut square) = (0.0, 0.0, 0.0);
        for cell in domains.flat_map(|d| &d.cells) {
            counted += cell.counted.0 as f64;
            cycles += cell.cycles as f64;
            square += cell.square;
        }
        (counted > 0.0).then(|| Self { mean: cycles / counted, square: square / counted })
    }
}

/// Weighs cells in one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) weight: Weight,
    /// Frequency that uncounted time is taken to have run at; `None`: no counter anywhere.
    pub(super) frequency: Option<Frequency>,
    /// What a thread weighs while its sibling is busy too; 1 where overlap is not weighed.
    pub(super) shared: f64,
}

impl Scale {
    /// The weight of a cell: nanoseconds, cycles, or GHz²·ns.
    pub(super) fn weigh(&self, cell: &Cell) -> f64 {
        let cpu = cell.cpu.0 as f64;
        match self.weight {
            Weight::CpuTime => cpu,
            Weight::Cycles => match self.frequency {
                Some(f) => cell.cycles as f64 + (cpu - cell.counted.0 as f64).max(0.0) * f.mean,
                None => cpu,
            },
            Weight::Auto => {
                let (alone, shared) = self.parts(cell);
                alone + self.shared * shared
            }
        }
    }

    /// The weighted time of a cell while it had its core to itself, and while a sibling was busy.
    pub(super) fn parts(&self, cell: &Cell) -> (f64, f64) {
        let cpu = cell.cpu.0 as f64;
        let shared = (cell.shared.0 as f64).min(cpu);
        let Some(f) = self.frequency else { return (cpu - shared, shared) };
        let uncounted = (cpu - cell.counted.0 as f64).max(0.0);
        let uncounted_shared = if cpu > 0.0 { uncounted * shared / cpu } else { 0.0 };
        let square_shared = cell.square_shared.min(cell.square);
        (
            cell.square - square_shared + (uncounted - uncounted_shared) * f.square,
            square_shared + uncounted_shared * f.square,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattpipe_pipeline::units::Nanos;

    fn cell(cpu: u64, shared: u64, counted: u64, ghz: f64) -> Cell {
        let on = |ns: u64| ns as f64 * ghz * ghz;
        Cell {
            row: 0,
            cpu: Nanos(cpu),
            shared: Nanos(shared),
            cycles: (counted as f64 * ghz) as u64,
            counted: Nanos(counted),
            square: on(counted),
            square_shared: if counted == 0 { 0.0 } else { on(shared) },
        }
    }

    #[track_caller]
    fn check(weight: Weight, frequency: Option<f64>, cell: &Cell, expected: f64) {
        let frequency = frequency.map(|mean| Frequency { mean, square: mean * mean });
        let got = Scale { weight, frequency, shared: 0.5 }.weigh(cell);
        assert!((got - expected).abs() < 1e-9 * expected.max(1.0), "{weight:?}: {got} {expected}");
    }

    #[test]
    fn each_weight_in_its_own_unit() {
        let half_shared = cell(100, 40, 100, 2.0);
        check(Weight::CpuTime, Some(2.0), &half_shared, 100.0);
        check(Weight::Cycles, Some(2.0), &half_shared, 200.0);
        check(Weight::Auto, Some(2.0), &half_shared, 4.0 * (60.0 + 20.0));
        check(Weight::Auto, None, &cell(100, 40, 0, 2.0), 80.0);
    }

    #[test]
    fn uncounted_time_takes_the_mean_frequency() {
        let uncounted = cell(100, 40, 0, 0.0);
        check(Weight::Cycles, Some(3.0), &uncounted, 300.0);
        check(Weight::Cycles, None, &uncounted, 100.0);
        check(Weight::Auto, Some(3.0), &uncounted, 9.0 * 80.0);
    }

    #[test]
    fn the_mean_is_over_counted_time() {
        let domain = Domain {
            cells: vec![cell(100, 0, 100, 2.0), cell(50, 0, 0, 0.0)],
            ..Domain::default()
        };
        assert_eq!(
            Frequency::of([&domain].into_iter()),
            Some(Frequency { mean: 2.0, square: 4.0 })
        );
        assert_eq!(Frequency::of([].into_iter()), None);
    }
}
