//! Coefficients per workload: how many watts a unit of its weighted time draws, learnt from many
//! short intervals.
//!
//! Shares of time cannot tell two processes apart that have equal time and different power per
//! cycle; the meter can, once they run in different mixtures. Per zone, energy is regressed on
//! [Δt, A·Δt, w₁ … wₙ] (idle, wake-up, workloads), each coefficient held near the common one by
//! its prior. Three predictors run side by side: the common coefficient (which is the share
//! formula), and two learnt sets that forget fast and slowly, of which the fast one starts from
//! what the slow one knows. The one that has predicted the next interval best is used; a learnt
//! one must be clearly better.

use super::{
    fit::{Fit, Prior},
    keys::{Slot, TRACKED},
};

/// Half-lives of the two learnt sets, in seconds.
const HALF_LIVES: [f64; 2] = [1.0, 120.0];
/// Learnt coefficients must predict this much better to be taken, and are kept until worse.
const WIN: f64 = 0.9;
const LOSE: f64 = 1.0;
/// Evidence before any of it counts.
const LEAST_SECONDS: f64 = 30.0;
const LEAST_INTERVALS: u32 = 300;
/// Confidence is worked out anew this often, in solves.
const CONFIDENCE_EVERY: u32 = 8;

/// Features before the workloads': Δt and A·Δt.
pub(super) const FIXED: usize = 2;

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
    number: u32,
    x: Vec<(usize, f64)>,
}

impl Learner {
    /// Learners with different numbers do their dear work in different windows.
    pub(super) fn new(number: usize) -> Self {
        Self {
            number: number as u32,
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

    /// Whether there is evidence enough for any of it to count.
    fn warm(&self) -> bool {
        self.seconds >= LEAST_SECONDS && self.intervals >= LEAST_INTERVALS
    }

    /// Watts of the wake-up part.
    pub(super) fn wake(&self) -> f64 {
        if !self.warm() {
            return 0.0;
        }
        match self.used {
            Use::Common => self.common().theta[1],
            Use::Learnt(k) => self.fits[k].theta[1],
        }
    }

    /// Watts per unit of weight, by slot.
    pub(super) fn coefficients(&self, out: &mut Vec<f64>) {
        let common = if self.warm() { self.common().theta[FIXED] } else { 1.0 };
        let common = if common > 0.0 { common } else { 1.0 };
        out.clear();
        if let (Use::Learnt(k), true) = (self.used, self.warm()) {
            out.extend(self.fits[k].theta.iter().skip(FIXED));
        }
        out.resize(TRACKED + 1, common);
    }

    #[cfg(test)]
    fn coefficient(&self, slot: Slot) -> f64 {
        let mut all = Vec::new();
        self.coefficients(&mut all);
        all[usize::from(slot)]
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
        let prior = Prior { common: 1.0, long: &[], idle, wake: (0.0, 1e6) };
        // Three coefficients, with nothing known of the third beforehand.
        for common in &mut self.commons {
            let Some(theta) = solve_common(common, &prior) else { return };
            common.theta = theta;
        }
        let mut long: &[f64] = &[];
        for (fit, common) in self.fits.iter_mut().zip(&self.commons).rev() {
            let [idle, wake, each] = [0, 1, FIXED].map(|i| common.theta[i]);
            if each <= 0.0 {
                self.used = Use::Common;
                return;
            }
            fit.solve(&Prior { long, ..prior_of(floor, idle, wake, each) });
            long = &fit.theta;
        }
        self.choose();
        self.solves += 1;
        if let Use::Learnt(k) = self.used
            && (self.confidence.is_empty()
                || (self.solves + self.number).is_multiple_of(CONFIDENCE_EVERY))
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
                self.confidence.clear();
                Use::Learnt(best)
            }
            Use::Learnt(_) if ratio < LOSE => Use::Learnt(best),
            _ => Use::Common,
        };
    }
}

fn prior_of(floor: Option<(f64, f64)>, idle: f64, wake: f64, each: f64) -> Prior<'static> {
    Prior {
        common: each,
        long: &[],
        idle: floor.unwrap_or((idle, 0.3 * idle.max(1e-3))),
        wake: (wake, 0.5 * wake.max(0.2 * each)),
    }
}

fn solve_common(fit: &Fit, prior: &Prior<'_>) -> Option<Vec<f64>> {
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
fn confidence(fit: &Fit, prior: &Prior<'_>) -> Option<Vec<f32>> {
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
        let mut learner = Learner::new(0);
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
    fn a_step_of_one_workload_leaves_what_is_known_of_another() {
        let mut learner = Learner::new(0);
        for i in 0..1300_u32 {
            // The first draws more from 120 s on; the second pauses from then.
            let (watts, (a, b)) =
                if i < 1200 { (2.0, varied(i)) } else { (5.0, (varied(i).0, 0.0)) };
            let joules = 0.1 * (20.0 + watts * a + 6.0 * b);
            let weights = vec![(1, 0.1 * a), (2, 0.1 * b)];
            learner.observe(&Interval { joules, seconds: 0.1, any_busy: 0.1, busy: 0.1, weights });
            if i % 10 == 9 {
                learner.solve(Some((20.0, 0.4)));
            }
        }
        let [first, second] = [1, 2].map(|slot| learner.coefficient(slot));
        assert!((4.5..5.5).contains(&first) && (5.0..7.0).contains(&second), "{first} {second}");
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
