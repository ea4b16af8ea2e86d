//! The idle baseline: what a zone draws when nothing runs, learnt while things do.
//!
//! Each interval's power is regressed on (1, A, X): A is the fraction of the interval in which any
//! CPU of the package was busy, X the weighted time per second. Without A the intercept takes the
//! uncore's wake-up for idle power and comes out too high. Intervals rather than windows: pauses
//! between bursts are shorter than a second, and A hardly varies over one. Busy intervals say
//! little about idle power and weigh little; the prior holds θ near zero-information values until the stream tells more. A
//! baseline is used only while its standard error is small against it.

use super::{interval::Totals, linear::Symmetric};

/// Half-life of what is learnt, in seconds.
const HALF_LIFE: f64 = 3600.0;
/// Intervals this busy weigh 1/e.
const BUSY_SCALE: f64 = 0.15;
/// Least autocorrelation time of the residuals, in intervals.
const TAU: f64 = 10.0;
/// How much of the residuals' size is remembered, per second.
const NOISE_KEEP: f64 = 0.98;
/// Floors drift with temperature: relative size.
const DRIFT: f64 = 0.02;
/// Trusted from this much evidence and this relative standard error on; released at the second.
const LEAST_SECONDS: f64 = 30.0;
const TRUST: f64 = 0.20;
const RELEASE: f64 = 0.25;
/// Allowance for the curvature of power over utilisation.
const CURVATURE: f64 = 0.15;
/// Wake-up power against idle power, where nothing is known; and the spread of A that tells.
const WAKE_SHARE: f64 = 0.3;
const LEAST_SPREAD: f64 = 0.2;
/// The lowest power is remembered for this many hours.
const HOURS: usize = 24;
/// Over how many seconds it is taken: shorter ones are mostly noise.
const LOWEST_OVER: f64 = 0.95;

/// What is known about a zone's idle power.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    h_matrix: Symmetric,
    h: [f64; 3],
    theta: [f64; 3],
    variance: Option<f64>,
    /// Lag-1 products and squares of the residuals, and the last one.
    lag: f64,
    square: f64,
    last: f64,
    seconds: f64,
    /// Joules and seconds since a minimum was looked for.
    second: (f64, f64),
    minima: [f64; HOURS],
    hour: usize,
    into_hour: f64,
    watts: f64,
    error: f64,
    trusted: bool,
}

impl Default for Baseline {
    fn default() -> Self {
        Self {
            h_matrix: Symmetric::zero(3),
            h: [0.0; 3],
            theta: [0.0; 3],
            variance: None,
            lag: 0.0,
            square: 0.0,
            last: 0.0,
            seconds: 0.0,
            second: (0.0, 0.0),
            minima: [f64::INFINITY; HOURS],
            hour: 0,
            into_hour: 0.0,
            watts: 0.0,
            error: f64::INFINITY,
            trusted: false,
        }
    }
}

impl Baseline {
    /// Watts, where they can be relied on.
    pub(super) fn trusted(&self) -> Option<f64> {
        self.trusted.then_some(self.watts)
    }

    /// (watts, standard error, trusted) as far as it is known.
    pub(super) fn state(&self) -> (f64, f64, bool) {
        (self.watts, self.error, self.trusted)
    }

    /// Takes an interval that is complete and was measured without doubt.
    pub(super) fn observe(&mut self, joules: f64, totals: &Totals) {
        let seconds = totals.seconds();
        let online = totals.online();
        if seconds <= 0.0 || online <= 0.0 {
            return;
        }
        let power = joules / seconds;
        self.note_minimum(joules, seconds);
        let any = (totals.any_busy / totals.elapsed).clamp(0.0, 1.0);
        let z = [1.0, any, totals.weight * 1e-9 / seconds];
        let busy = totals.busy / online;

        let predicted: f64 = z.iter().zip(&self.theta).map(|(z, t)| z * t).sum();
        let floor = (0.004 * power).powi(2);
        let first = (0.1 * power).powi(2);
        let variance = self.variance.unwrap_or(first).max(floor);
        let residual = if self.seconds > 0.0 { power - predicted } else { 0.0 };
        let clip =
            if residual == 0.0 { 1.0 } else { (3.0 * variance.sqrt() / residual.abs()).min(1.0) };
        let relevance = (-busy / BUSY_SCALE).exp();
        let keep = (-seconds * std::f64::consts::LN_2 / HALF_LIFE).exp();
        self.h_matrix.scale(keep);
        let entries: Vec<(usize, f64)> = z.into_iter().enumerate().collect();
        self.h_matrix.add_outer(&entries, relevance * clip);
        for (h, z) in self.h.iter_mut().zip(z) {
            *h = *h * keep + relevance * clip * z * power;
        }
        // Busy intervals count as little here: how far they are off says nothing of idle ones.
        let new = relevance * (1.0 - NOISE_KEEP.powf(seconds.min(1.0)));
        let square = residual.powi(2).min(9.0 * variance);
        self.variance = Some((variance + new * (square - variance)).max(floor));
        let clipped = residual * clip;
        self.lag += new * (clipped * self.last - self.lag);
        self.square += new * (clipped * clipped - self.square);
        self.last = clipped;
        self.seconds += seconds;
    }

    /// Intervals that tell as much as one would, were they independent.
    fn tau(&self) -> f64 {
        let rho = if self.square > 0.0 { self.lag / self.square } else { 0.0 };
        let rho = rho.clamp(0.0, 0.98);
        ((1.0 + rho) / (1.0 - rho)).max(TAU)
    }

    /// What of the floor may be the wake-up's instead, where A hardly varies (always some CPU
    /// busy, or a steady trickle): the two cannot be told apart then, whatever the noise.
    fn entangled(&self) -> f64 {
        let [h00, h01, h11] = [(0, 0), (0, 1), (1, 1)].map(|(i, j)| self.h_matrix.at(i, j));
        if h00 <= 0.0 {
            return 0.0;
        }
        let mean = h01 / h00;
        let spread = (h11 / h00 - mean * mean).max(0.0).sqrt();
        WAKE_SHARE * mean * (1.0 - spread / LEAST_SPREAD).max(0.0)
    }

    fn note_minimum(&mut self, joules: f64, seconds: f64) {
        let (sum, over) = (self.second.0 + joules, self.second.1 + seconds);
        if over < LOWEST_OVER {
            self.second = (sum, over);
            return;
        }
        self.second = (0.0, 0.0);
        let power = sum / over;
        self.into_hour += over;
        if self.into_hour >= 3600.0 {
            self.into_hour = 0.0;
            self.hour = (self.hour + 1) % HOURS;
            self.minima[self.hour] = f64::INFINITY;
        }
        let lowest = &mut self.minima[self.hour];
        *lowest = lowest.min(power);
    }

    /// Works the floor out anew, and whether it is trusted.
    pub(super) fn solve(&mut self) {
        let Some(variance) = self.variance else { return };
        let lowest = self.minima.iter().copied().fold(f64::INFINITY, f64::min);
        if !lowest.is_finite() || lowest <= 0.0 {
            return;
        }
        let prior = [(0.6 * lowest).powi(-2), (0.15 * lowest).powi(-2), 1e-9];
        let mean = [0.4 * lowest, 0.0, 0.0];
        let scale = 1.0 / (self.tau() * variance);
        let mut precision = self.h_matrix.clone();
        precision.scale(scale);
        let mut right = [0.0; 3];
        for i in 0..3 {
            precision.add(i, i, prior[i]);
            right[i] = self.h[i] * scale + prior[i] * mean[i];
        }
        let Some(covariance) = precision.inverse() else { return };
        let theta = covariance.times(&right);
        self.theta = [theta[0], theta[1], theta[2]];
        self.watts = theta[0].clamp(0.0, lowest);
        let (h00, h02) = (self.h_matrix.at(0, 0), self.h_matrix.at(0, 2));
        let bend = if h00 > 0.0 { CURVATURE * theta[2] * h02 / h00 } else { 0.0 };
        let entangled = self.entangled() * self.watts;
        let drift = DRIFT * self.watts;
        let allowed = bend * bend + entangled * entangled + drift * drift;
        self.error = (covariance.at(0, 0) + allowed).sqrt();
        let relative = if self.watts > 0.0 { self.error / self.watts } else { f64::INFINITY };
        self.trusted = if self.trusted {
            relative <= RELEASE
        } else {
            self.seconds >= LEAST_SECONDS && relative <= TRUST
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns from 300 one-second windows of a package with 20 W floor, 5 W wake-up and 4 W a CPU,
    /// whose busy fraction of 8 CPUs is `load(i)`.
    fn learn(load: impl Fn(u32) -> f64) -> Baseline {
        let mut baseline = Baseline::default();
        for i in 0..300 {
            let busy = load(i);
            let any = 1.0 - (1.0f64 - busy).powi(8);
            let totals = Totals {
                busy: 8e9 * busy,
                idle: 8e9 * (1.0 - busy),
                any_busy: 1e9 * any,
                weight: 8e9 * busy,
                elapsed: 1e9,
                ..Totals::default()
            };
            let noise = if i % 2 == 0 { 0.05 } else { -0.05 };
            baseline.observe(20.0 + 5.0 * any + 32.0 * busy + noise, &totals);
            baseline.solve();
        }
        baseline
    }

    #[test]
    fn light_varied_load_tells_the_floor() {
        let (watts, error, trusted) = learn(|i| f64::from(i % 10) * 0.02).state();
        assert!(trusted && (watts - 20.0).abs() < 1.0, "{watts} ± {error}");
    }

    #[test]
    fn constant_or_heavy_load_does_not() {
        for load in [0.35, 0.6, 1.0] {
            let (watts, error, trusted) = learn(|_| load).state();
            assert!(!trusted, "{load}: {watts} ± {error}");
        }
        assert!(!learn(|i| 0.5 + f64::from(i % 5) * 0.1).state().2);
    }
}
