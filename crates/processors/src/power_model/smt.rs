//! What each of two threads of a busy core weighs, learnt from how power goes with core time.
//!
//! P = P₀ + wA + a(X₁ + 1.1 X₂) + dX₂, where X₁ and X₂ are core time with one and with two threads
//! busy. A second thread adds about a tenth; what this processor and load add beyond that is d,
//! held near 0 by its prior. A thread of a pair then weighs s = (1.1 + d/a)/2.

use super::{interval::Totals, linear::Symmetric, weights::SHARED_CORE};

/// What a second thread adds to a core's power, before anything is learnt.
const SECOND_THREAD: f64 = 0.1;
const HALF_LIFE: f64 = 1800.0;
const LEAST_SECONDS: f64 = 30.0;
/// Standard deviation of d against a.
const SPREAD: f64 = 0.25;
/// Autocorrelation of the residuals, in intervals.
const TAU: f64 = 3.0;

/// The learnt weight.
#[derive(Clone, Debug)]
pub(super) struct SharedCore {
    matrix: Symmetric,
    right: [f64; 4],
    theta: [f64; 4],
    variance: Option<f64>,
    seconds: f64,
    weight: f64,
}

impl Default for SharedCore {
    fn default() -> Self {
        Self {
            matrix: Symmetric::zero(4),
            right: [0.0; 4],
            theta: [0.0; 4],
            variance: None,
            seconds: 0.0,
            weight: SHARED_CORE,
        }
    }
}

impl SharedCore {
    /// What a thread of a pair weighs.
    pub(super) fn weight(&self) -> f64 {
        self.weight
    }

    /// Takes a complete interval.
    pub(super) fn interval(&mut self, joules: f64, totals: &Totals) {
        let seconds = totals.seconds();
        if seconds <= 0.0 || (totals.alone <= 0.0 && totals.shared <= 0.0) {
            return;
        }
        let power = joules / seconds;
        let any = (totals.any_busy / totals.elapsed).clamp(0.0, 1.0);
        let one = totals.alone * 1e-9 / seconds;
        let two = totals.shared * 0.5e-9 / seconds;
        let x = [1.0, any, one + (1.0 + SECOND_THREAD) * two, two];
        let predicted: f64 = x.iter().zip(&self.theta).map(|(x, t)| x * t).sum();
        let residual = if self.seconds > 0.0 { power - predicted } else { 0.0 };
        let floor = (0.004 * power).powi(2);
        let variance = self.variance.unwrap_or((0.1 * power).powi(2)).max(floor);
        let clip = (3.0 * variance.sqrt() / residual.abs().max(f64::MIN_POSITIVE)).min(1.0);
        let keep = (-seconds * std::f64::consts::LN_2 / HALF_LIFE).exp();
        self.matrix.scale(keep);
        let entries: Vec<(usize, f64)> = x.into_iter().enumerate().collect();
        self.matrix.add_outer(&entries, clip);
        for (r, x) in self.right.iter_mut().zip(x) {
            *r = *r * keep + clip * x * power;
        }
        let square = residual.powi(2).min(9.0 * variance);
        self.variance = Some((0.99 * variance + 0.01 * square).max(floor));
        self.seconds += seconds;
    }

    /// Works out the weight anew.
    pub(super) fn solve(&mut self) {
        let Some(variance) = self.variance else { return };
        let scale = 1.0 / (TAU * variance);
        // The spread of d is relative to a, which is not known at first: twice is enough.
        let mut slope = self.theta[2];
        for _ in 0..2 {
            let mut precision = self.matrix.clone();
            precision.scale(scale);
            for i in 0..3 {
                precision.add(i, i, 1e-9);
            }
            let spread = if slope > 0.0 { SPREAD * slope } else { 1e-3 };
            precision.add(3, 3, spread.powi(-2));
            let Some(covariance) = precision.inverse() else { return };
            let right: Vec<f64> = self.right.iter().map(|r| r * scale).collect();
            let theta = covariance.times(&right);
            self.theta = [theta[0], theta[1], theta[2], theta[3]];
            slope = self.theta[2];
        }
        if self.seconds >= LEAST_SECONDS && slope > 0.0 {
            let both = 1.0 + SECOND_THREAD + self.theta[3] / slope;
            self.weight = (both / 2.0).clamp(0.5, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns from slices of a processor with 4 W a core, `both` times that with two threads.
    #[track_caller]
    fn check(both: f64, expected: f64) {
        let mut smt = SharedCore::default();
        for i in 0..1200u32 {
            let (one, two) = (f64::from(i % 7) * 0.5, f64::from(i % 5) * 0.6);
            let totals = Totals {
                alone: one * 1e8,
                shared: 2.0 * two * 1e8,
                any_busy: if i % 35 == 0 { 0.0 } else { 1e8 },
                elapsed: 1e8,
                ..Totals::default()
            };
            let any = totals.any_busy / totals.elapsed;
            let watts = 20.0 + 5.0 * any + 4.0 * (one + both * two);
            smt.interval(watts / 10.0, &totals);
            if i % 10 == 0 {
                smt.solve();
            }
        }
        assert!((smt.weight() - expected).abs() < 0.02, "{} not {expected}", smt.weight());
    }

    #[test]
    fn it_is_recovered() {
        check(1.1, 0.55);
        check(1.3, 0.65);
        check(1.6, 0.8);
    }

    #[test]
    fn without_pairs_it_stays_where_it_was() {
        let mut smt = SharedCore::default();
        for i in 0..600u32 {
            let totals = Totals {
                alone: f64::from(i % 7) * 1e8,
                any_busy: 1e8,
                elapsed: 1e8,
                ..Totals::default()
            };
            smt.interval(2.0 + 0.4 * f64::from(i % 7), &totals);
        }
        smt.solve();
        assert!((smt.weight() - SHARED_CORE).abs() < 0.01, "{}", smt.weight());
    }
}
