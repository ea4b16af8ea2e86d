//! One regression: sums that forget, the coefficients that follow from them, and how well they have
//! predicted.

use super::{
    learn::Interval,
    linear::{Symmetric, dot},
};

/// Half-life of the record of prediction errors, in seconds.
const ERROR_HALF_LIFE: f64 = 20.0;
/// Sets with a longer half-life than this count it in time that at least one CPU's worth ran.
const PACED: f64 = 60.0;
/// Prior standard deviation of a coefficient, and its bounds, against the common one.
const SPREAD: f64 = 0.5;
const BOUND: f64 = 8.0;
/// Residuals beyond this many standard deviations are clipped.
const HUBER: f64 = 2.5;
/// How much of the residuals' size is remembered from interval to interval.
const NOISE_KEEP: f64 = 0.99;
/// Up to this many coefficients the system is solved exactly; beyond, in this many steps.
const EXACT: usize = 40;
const STEPS: usize = 8;

/// A decayed record of squared prediction errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record(pub(super) f64);

impl Record {
    pub(super) fn add(&mut self, keep: f64, square: f64) {
        self.0 = self.0 * keep + square * (1.0 - keep);
    }
}

/// A set of coefficients with the sums they come from.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    pub(super) half_life: f64,
    /// Information and right side, to be multiplied by `scale`.
    pub(super) information: Symmetric,
    pub(super) right: Vec<f64>,
    pub(super) scale: f64,
    pub(super) theta: Vec<f64>,
    pub(super) variance: Option<f64>,
    /// Lag-1 products and squares of the residuals.
    pub(super) lag: f64,
    pub(super) square: f64,
    pub(super) last: f64,
    pub(super) record: Record,
}

impl Fit {
    pub(super) fn new(half_life: f64, n: usize) -> Self {
        Self {
            half_life,
            information: Symmetric::zero(n),
            right: vec![0.0; n],
            scale: 1.0,
            theta: vec![0.0; n],
            variance: None,
            lag: 0.0,
            square: 0.0,
            last: 0.0,
            record: Record::default(),
        }
    }

    pub(super) fn grow(&mut self, n: usize, fill: f64) {
        self.information.grow(n);
        self.right.resize(n.max(self.right.len()), 0.0);
        self.theta.resize(n.max(self.theta.len()), fill);
    }

    /// Predicts, notes the error, and takes the interval in. `x` by feature.
    pub(super) fn observe(&mut self, x: &[(usize, f64)], interval: &Interval, judged: bool) {
        let predicted: f64 = x.iter().map(|&(i, v)| v * self.theta[i]).sum();
        let residual = interval.joules - predicted;
        let floor = (0.003 * interval.joules).powi(2).max(1e-12);
        let first = (0.1 * interval.joules).powi(2);
        let variance = self.variance.unwrap_or(first).max(floor);
        let clipped = residual.abs().min(HUBER * variance.sqrt());
        if judged {
            let keep = (-interval.seconds * std::f64::consts::LN_2 / ERROR_HALF_LIFE).exp();
            self.record.add(keep, residual * residual);
            let keep = NOISE_KEEP;
            self.lag = keep * self.lag + residual * self.last;
            self.square = keep * self.square + residual * residual;
            self.last = residual;
            self.variance = Some((keep * variance + (1.0 - keep) * clipped * clipped).max(floor));
        }
        let clip = if judged { (clipped / residual.abs().max(1e-300)).min(1.0) } else { 1.0 };
        // Little is learnt while little runs, and no more forgotten; what forgets fast follows
        // changes instead.
        let pace =
            if self.half_life > PACED { (interval.busy / interval.seconds).min(1.0) } else { 1.0 };
        self.scale *= (-pace * interval.seconds * std::f64::consts::LN_2 / self.half_life).exp();
        if self.scale < 1e-9 {
            self.information.scale(self.scale);
            self.right.iter_mut().for_each(|r| *r *= self.scale);
            self.scale = 1.0;
        }
        let by = clip / self.scale;
        self.information.add_outer(x, by);
        for &(i, v) in x {
            self.right[i] += by * v * interval.joules;
        }
    }

    /// What the sums are multiplied by: forgetting, and the residuals' variance, deflated by their
    /// autocorrelation. It is applied here, not to each interval as it comes: a change of a
    /// workload's power shows as large residuals, and must not weigh less for it than what was
    /// before.
    pub(super) fn evidence(&self) -> f64 {
        let rho = if self.square > 0.0 { (self.lag / self.square).clamp(-0.5, 0.5) } else { 0.0 };
        let variance = self.variance.unwrap_or(f64::INFINITY) * (1.0 + rho) / (1.0 - rho);
        self.scale / variance
    }

    /// The posterior mode within bounds: exactly while there are few coefficients, else a few
    /// steps from where it was (conjugate gradients: coordinate descent would give what several
    /// entangled workloads share to the first of them).
    pub(super) fn solve(&mut self, prior: &Prior<'_>) {
        let n = self.theta.len();
        let evidence = self.evidence();
        let right: Vec<f64> =
            (0..n).map(|i| evidence * self.right[i] + prior.precision(i) * prior.mean(i)).collect();
        if n <= EXACT {
            let mut precision = self.information.clone();
            precision.scale(evidence);
            for i in 0..n {
                precision.add(i, i, prior.precision(i));
            }
            if let Some(inverse) = precision.inverse() {
                self.theta = inverse.times(&right);
            }
        } else {
            self.descend(prior, &right);
        }
        let mut bound = false;
        for i in 0..n {
            let within = prior.bounded(i, self.theta[i]);
            bound |= within != self.theta[i];
            self.theta[i] = within;
        }
        if bound {
            self.sweep(prior);
        }
    }

    fn descend(&mut self, prior: &Prior<'_>, right: &[f64]) {
        let n = self.theta.len();
        let evidence = self.evidence();
        let diagonal: Vec<f64> =
            (0..n).map(|i| evidence * self.information.at(i, i) + prior.precision(i)).collect();
        let times = |x: &[f64]| -> Vec<f64> {
            let mut product = self.information.times(x);
            for i in 0..n {
                product[i] = evidence * product[i] + prior.precision(i) * x[i];
            }
            product
        };
        let mut theta = self.theta.clone();
        let mut rest: Vec<f64> = times(&theta).iter().zip(right).map(|(a, r)| r - a).collect();
        let mut scaled: Vec<f64> = rest.iter().zip(&diagonal).map(|(r, d)| r / d).collect();
        let mut step = scaled.clone();
        let mut size = dot(&rest, &scaled);
        for _ in 0..STEPS {
            let product = times(&step);
            let curve = dot(&step, &product);
            if curve <= 0.0 || size <= 0.0 {
                break;
            }
            let by = size / curve;
            for i in 0..n {
                theta[i] += by * step[i];
                rest[i] -= by * product[i];
                scaled[i] = rest[i] / diagonal[i];
            }
            let next = dot(&rest, &scaled);
            let turn = next / size;
            step.iter_mut().zip(&scaled).for_each(|(p, z)| *p = z + turn * *p);
            size = next;
        }
        self.theta = theta;
    }

    /// One sweep of coordinate descent towards the posterior mode within bounds.
    fn sweep(&mut self, prior: &Prior<'_>) {
        let evidence = self.evidence();
        for i in 0..self.theta.len() {
            let precision = prior.precision(i);
            let own = self.information.at(i, i);
            let others = self.information.row_times(i, &self.theta) - own * self.theta[i];
            let divisor = evidence * own + precision;
            if divisor > 0.0 {
                let target = evidence * (self.right[i] - others) + precision * prior.mean(i);
                self.theta[i] = prior.bounded(i, target / divisor);
            }
        }
    }
}

/// What coefficients are expected to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior<'a> {
    pub(super) common: f64,
    /// What each coefficient is over a long time; of those that are not in it, the common one.
    pub(super) long: &'a [f64],
    pub(super) idle: (f64, f64),
    pub(super) wake: (f64, f64),
}

impl Prior<'_> {
    pub(super) fn mean(&self, i: usize) -> f64 {
        match i {
            0 => self.idle.0,
            1 => self.wake.0,
            _ => self.long.get(i).copied().unwrap_or(self.common),
        }
    }

    pub(super) fn precision(&self, i: usize) -> f64 {
        match i {
            0 => self.idle.1.powi(-2),
            1 => self.wake.1.powi(-2),
            _ => (SPREAD * self.common).powi(-2),
        }
    }

    fn bounded(&self, i: usize, value: f64) -> f64 {
        match i {
            0 | 1 => value.max(0.0),
            _ => value.clamp(self.common / BOUND, self.common * BOUND),
        }
    }
}
