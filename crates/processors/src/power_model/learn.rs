//! Coefficients per workload: how many watts a unit of its weighted time draws, learnt from many
//! short intervals.
//!
//! Shares of time cannot tell two processes apart that have equal time and different power per
//! cycle; the meter can, once they run in different mixtures. Per zone, energy is regressed on
//! [Δt, A·Δt, w₁ … wₙ] (idle, wake-up, workloads), each coefficient held near the common one by
//! its prior. Three predictors run side by side: the common coefficient (which is the share
//! formula), and two learnt sets that forget fast and slowly. The one that has predicted the next
//! interval best is used; a learnt one must be clearly better.

use super::{keys::Slot, linear::Symmetric};

/// Half-lives of the two learnt sets, in seconds.
const HALF_LIVES: [f64; 2] = [3.0, 120.0];
/// Sets with a longer half-life than this count it in time that at least one CPU's worth ran.
const PACED: f64 = 60.0;
/// Half-life of the record of prediction errors, in seconds.
const ERROR_HALF_LIFE: f64 = 20.0;
/// Learnt coefficients must predict this much better to be taken, and are kept until worse.
const WIN: f64 = 0.9;
const LOSE: f64 = 1.0;
/// Evidence before any of it counts.
const LEAST_SECONDS: f64 = 30.0;
const LEAST_INTERVALS: u32 = 300;
/// Prior standard deviation of a coefficient, and its bounds, against the common one.
const SPREAD: f64 = 0.5;
const BOUND: f64 = 8.0;
/// Residuals beyond this many standard deviations are clipped.
const HUBER: f64 = 2.5;
/// How much of the residuals' size is remembered from interval to interval.
const NOISE_KEEP: f64 = 0.99;
/// Confidence is worked out anew this often, in solves.
const CONFIDENCE_EVERY: u32 = 5;

/// Up to this many coefficients the system is solved exactly; beyond, in this many steps.
const EXACT: usize = 40;
const STEPS: usize = 8;

/// Features before the workloads': Δt and A·Δt.
const FIXED: usize = 2;

/// One interval as the regression sees it.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    pub(super) joules: f64,
    pub(super) seconds: f64,
    /// Seconds during which any CPU was busy.
    pub(super) any_busy: f64,
    /// CPU seconds that processes ran.
    pub(super) busy: f64,
    /// Weighted seconds by slot, each slot once.
    pub(super) weights: Vec<(Slot, f64)>,
}

/// Which predictor is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Common,
    Learnt(usize),
}

/// A decayed record of squared prediction errors.
#[derive(Clone, Copy, Debug, Default)]
struct Record(f64);

impl Record {
    fn add(&mut self, keep: f64, square: f64) {
        self.0 = self.0 * keep + square * (1.0 - keep);
    }
}

/// A set of coefficients with the sums they come from.
#[derive(Clone, Debug)]
struct Fit {
    half_life: f64,
    /// Information and right side, to be multiplied by `scale`.
    information: Symmetric,
    right: Vec<f64>,
    scale: f64,
    theta: Vec<f64>,
    variance: Option<f64>,
    /// Lag-1 products and squares of the residuals.
    lag: f64,
    square: f64,
    last: f64,
    record: Record,
}

impl Fit {
    fn new(half_life: f64, n: usize) -> Self {
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

    fn grow(&mut self, n: usize, fill: f64) {
        self.information.grow(n);
        self.right.resize(n.max(self.right.len()), 0.0);
        self.theta.resize(n.max(self.theta.len()), fill);
    }

    /// Predicts, notes the error, and takes the interval in. `x` by feature.
    fn observe(&mut self, x: &[(usize, f64)], interval: &Interval, judged: bool) {
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
    fn evidence(&self) -> f64 {
        let rho = if self.square > 0.0 { (self.lag / self.square).clamp(-0.5, 0.5) } else { 0.0 };
        let variance = self.variance.unwrap_or(f64::INFINITY) * (1.0 + rho) / (1.0 - rho);
        self.scale / variance
    }

    /// The posterior mode within bounds: exactly while there are few coefficients, else a few
    /// steps from where it was (conjugate gradients: coordinate descent would give what several
    /// entangled workloads share to the first of them).
    fn solve(&mut self, prior: &Prior) {
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

    fn descend(&mut self, prior: &Prior, right: &[f64]) {
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
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
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
    fn sweep(&mut self, prior: &Prior) {
        let evidence = self.evidence();
        for i in 0..self.theta.len() {
            let precision = prior.precision(i);
            let row = self.information.row(i);
            let others: f64 = row.iter().zip(&self.theta).map(|(g, t)| g * t).sum::<f64>()
                - row[i] * self.theta[i];
            let divisor = evidence * row[i] + precision;
            if divisor > 0.0 {
                let target = evidence * (self.right[i] - others) + precision * prior.mean(i);
                self.theta[i] = prior.bounded(i, target / divisor);
            }
        }
    }
}

/// What coefficients are expected to be.
#[derive(Clone, Copy, Debug)]
struct Prior {
    common: f64,
    idle: (f64, f64),
    wake: (f64, f64),
}

impl Prior {
    fn mean(&self, i: usize) -> f64 {
        match i {
            0 => self.idle.0,
            1 => self.wake.0,
            _ => self.common,
        }
    }

    fn precision(&self, i: usize) -> f64 {
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

/// Coefficients of one zone.
#[derive(Clone, Debug)]
pub(super) struct Learner {
    /// [Δt, A·Δt, Σw], forgetting fast and slowly, so that a learnt set does not win for following
    /// a drift that has nothing to do with workloads.
    commons: [Fit; 2],
    fits: [Fit; 2],
    seconds: f64,
    intervals: u32,
    used: Use,
    confidence: Vec<f32>,
    solves: u32,
    x: Vec<(usize, f64)>,
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            commons: HALF_LIVES.map(|h| Fit::new(h, FIXED + 1)),
            fits: HALF_LIVES.map(|h| Fit::new(h, FIXED + 1)),
            seconds: 0.0,
            intervals: 0,
            used: Use::Common,
            confidence: Vec::new(),
            solves: 0,
            x: Vec::new(),
        }
    }
}

impl Learner {
    /// Whether there is evidence enough for any of it to count.
    fn warm(&self) -> bool {
        self.seconds >= LEAST_SECONDS && self.intervals >= LEAST_INTERVALS
    }

    /// Watts of the wake-up part, and watts per unit of weight for a slot.
    pub(super) fn wake(&self) -> f64 {
        if !self.warm() {
            return 0.0;
        }
        match self.used {
            Use::Common => self.common().theta[1],
            Use::Learnt(k) => self.fits[k].theta[1],
        }
    }

    /// See [`Self::wake`].
    pub(super) fn coefficient(&self, slot: Slot) -> f64 {
        let common = if self.warm() { self.common().theta[FIXED] } else { 1.0 };
        let common = if common > 0.0 { common } else { 1.0 };
        match self.used {
            Use::Learnt(k) if self.warm() => {
                let theta = &self.fits[k].theta;
                theta.get(FIXED + usize::from(slot)).copied().unwrap_or(common)
            }
            _ => common,
        }
    }

    /// How much of an interval's deviation from the prediction is taken for real: `None` while
    /// there is no prediction. What one reading shows too much the next shows too little, so that
    /// errors of readings give residuals of neighbours that go against each other (correlation
    /// −½), while workloads that really draw something else give residuals that go together.
    pub(super) fn gain(&self) -> Option<f64> {
        if !self.warm() {
            return None;
        }
        let fit = match self.used {
            Use::Common => self.common(),
            Use::Learnt(k) => &self.fits[k],
        };
        let rho = if fit.square > 0.0 { fit.lag / fit.square } else { 0.0 };
        Some((1.0 + 2.0 * rho).clamp(0.0, 1.0))
    }

    /// How far a slot's power could be told from the others': 0 where the common coefficient is
    /// used, `None` before there is evidence.
    pub(super) fn confidence(&self, slot: Slot) -> Option<f32> {
        if !self.warm() {
            return None;
        }
        Some(match self.used {
            Use::Common => 0.0,
            Use::Learnt(_) => self.confidence.get(usize::from(slot)).copied().unwrap_or(0.0),
        })
    }

    /// A slot belongs to another workload from now on.
    pub(super) fn forget(&mut self, slot: Slot) {
        let i = FIXED + usize::from(slot);
        for fit in &mut self.fits {
            if i < fit.theta.len() {
                fit.information.forget(i);
                fit.right[i] = 0.0;
                fit.theta[i] = self.commons[1].theta[FIXED];
            }
        }
    }

    /// Takes an interval.
    pub(super) fn observe(&mut self, interval: &Interval) {
        if interval.seconds <= 0.0 {
            return;
        }
        let judged = self.seconds > 5.0;
        let sum: f64 = interval.weights.iter().map(|(_, w)| w).sum();
        let fixed = [(0, interval.seconds), (1, interval.any_busy)];
        self.x.clear();
        self.x.extend(fixed);
        self.x.push((FIXED, sum));
        for common in &mut self.commons {
            common.observe(&self.x, interval, judged);
        }
        self.x.truncate(FIXED);
        self.x.extend(interval.weights.iter().map(|&(s, w)| (FIXED + usize::from(s), w)));
        let n = self.x.iter().map(|(i, _)| i + 1).max().unwrap_or(FIXED);
        for fit in &mut self.fits {
            fit.grow(n, self.commons[1].theta[FIXED]);
            fit.observe(&self.x, interval, judged);
        }
        self.seconds += interval.seconds;
        self.intervals = self.intervals.saturating_add(1);
    }

    /// Works the coefficients out anew. `floor`: idle watts and their standard error, where known.
    pub(super) fn solve(&mut self, floor: Option<(f64, f64)>) {
        let idle = floor.unwrap_or((0.0, 1e6));
        let prior = Prior { common: 1.0, idle, wake: (0.0, 1e6) };
        // Three coefficients, with nothing known of the third beforehand.
        for common in &mut self.commons {
            let Some(theta) = solve_common(common, &prior) else { return };
            common.theta = theta;
        }
        for (fit, common) in self.fits.iter_mut().zip(&self.commons) {
            let [idle, wake, each] = [0, 1, FIXED].map(|i| common.theta[i]);
            if each <= 0.0 {
                self.used = Use::Common;
                return;
            }
            let prior = prior_of(floor, idle, wake, each);
            fit.solve(&prior);
        }
        self.choose();
        self.solves += 1;
        if let Use::Learnt(k) = self.used
            && self.solves % CONFIDENCE_EVERY == 1
        {
            let [idle, wake, each] = [0, 1, FIXED].map(|i| self.commons[k].theta[i]);
            let prior = prior_of(floor, idle, wake, each);
            self.confidence = confidence(&self.fits[k], &prior).unwrap_or_default();
        }
    }

    /// The common set that predicts better.
    fn common(&self) -> &Fit {
        let [fast, slow] = &self.commons;
        if fast.record.0 < slow.record.0 { fast } else { slow }
    }

    fn choose(&mut self) {
        let common = self.common().record.0;
        let best = if self.fits[0].record.0 < self.fits[1].record.0 { 0 } else { 1 };
        let ratio = self.fits[best].record.0 / common.max(1e-300);
        self.used = match self.used {
            Use::Common if self.warm() && ratio < WIN => {
                self.solves = 0;
                Use::Learnt(best)
            }
            Use::Learnt(_) if ratio < LOSE => Use::Learnt(best),
            _ => Use::Common,
        };
    }
}

fn prior_of(floor: Option<(f64, f64)>, idle: f64, wake: f64, each: f64) -> Prior {
    Prior {
        common: each,
        idle: floor.unwrap_or((idle, 0.3 * idle.max(1e-3))),
        wake: (wake, 0.5 * wake.max(0.2 * each)),
    }
}

fn solve_common(fit: &Fit, prior: &Prior) -> Option<Vec<f64>> {
    let mut precision = fit.information.clone();
    let evidence = fit.evidence();
    precision.scale(evidence);
    let mut right: Vec<f64> = fit.right.iter().map(|r| r * evidence).collect();
    for (i, right) in right.iter_mut().enumerate().take(FIXED) {
        precision.add(i, i, prior.precision(i));
        *right += prior.precision(i) * prior.mean(i);
    }
    precision.add(FIXED, FIXED, 1e-12);
    let mut theta = precision.inverse()?.times(&right);
    if theta[1] < 0.0 {
        // Without a wake-up part: the other two anew.
        precision.add(1, 1, 1e12);
        right[1] = 0.0;
        theta = precision.inverse()?.times(&right);
        theta[1] = 0.0;
    }
    theta[0] = theta[0].max(0.0);
    Some(theta)
}

/// Confidence per slot: 1 − posterior/prior variance, the posterior taken against the workload it
/// is most entangled with. Two that always run together have a well known sum and each half the
/// prior's variance left; their difference is as unknown as before, and that is what counts.
fn confidence(fit: &Fit, prior: &Prior) -> Option<Vec<f32>> {
    let mut precision = fit.information.clone();
    precision.scale(fit.evidence());
    for i in 0..precision.len() {
        precision.add(i, i, prior.precision(i));
    }
    let covariance = precision.inverse()?;
    let slots = FIXED..covariance.len();
    let known = |p: usize| {
        let own = covariance.at(p, p);
        let entangled = slots.clone().filter(|q| *q != p).map(|q| {
            let other = covariance.at(q, q);
            1.0 - 2.0 * covariance.at(p, q) / (own + other)
        });
        1.0 - entangled.fold(1.0, f64::max) * own * prior.precision(p)
    };
    Some(slots.clone().map(|p| known(p).clamp(0.0, 1.0) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workloads of 2 and 6 W a CPU above 20 W, run for `seconds`; `mix(i)` gives their CPU
    /// fractions in slice i.
    fn learn(seconds: u32, mix: impl Fn(u32) -> (f64, f64)) -> Learner {
        let mut learner = Learner::default();
        for i in 0..seconds * 10 {
            let (a, b) = mix(i);
            let noise = if i % 2 == 0 { 0.002 } else { -0.002 };
            let joules = 0.1 * (20.0 + 2.0 * a + 6.0 * b) * (1.0 + noise);
            let weights = vec![(1, 0.1 * a), (2, 0.1 * b)];
            learner.observe(&Interval { joules, seconds: 0.1, any_busy: 0.1, busy: 0.1, weights });
            if i % 10 == 9 {
                learner.solve(Some((20.0, 0.4)));
            }
        }
        learner
    }

    /// Fractions that vary independently.
    fn varied(i: u32) -> (f64, f64) {
        (f64::from(i * 7 % 11) / 10.0, f64::from(i * 5 % 13) / 12.0)
    }

    #[test]
    fn what_runs_in_different_mixtures_is_told_apart() {
        let learner = learn(120, varied);
        let ratio = learner.coefficient(2) / learner.coefficient(1);
        assert!((2.5..3.5).contains(&ratio), "{ratio}");
        assert!(learner.confidence(1).unwrap() > 0.8 && learner.confidence(2).unwrap() > 0.8);
        assert_eq!(learner.coefficient(9), learner.commons[1].theta[FIXED], "never seen");
    }

    #[test]
    fn what_always_runs_together_is_shared_by_time_and_flagged() {
        for learner in [learn(120, |_| (0.5, 0.5)), learn(120, |i| (varied(i).0, varied(i).0))] {
            let ratio = learner.coefficient(2) / learner.coefficient(1);
            assert!((ratio - 1.0).abs() < 0.2, "{ratio}");
            assert!(learner.confidence(1).unwrap() < 0.2 && learner.confidence(2).unwrap() < 0.2);
        }
    }

    #[test]
    fn nothing_is_used_before_there_is_evidence() {
        let learner = learn(20, varied);
        assert_eq!((learner.coefficient(1), learner.wake()), (1.0, 0.0));
        assert_eq!(learner.confidence(1), None);
    }

    #[test]
    fn a_slot_that_changes_hands_starts_from_the_common_coefficient() {
        let mut learner = learn(120, varied);
        learner.forget(2);
        assert_eq!(learner.coefficient(2), learner.commons[1].theta[FIXED]);
    }
}
