//! How far what a formula gives is from the truth.

use crate::{rivals::Given, sim::Truth};

/// The truth of the zones judged, by block: floor joules and active joules per workload.
pub type Judged = Vec<(f64, Vec<f64>)>;

/// Adds up the zones judged.
pub fn judged(truth: &[Truth], zone: usize, stride: usize) -> Judged {
    truth
        .iter()
        .map(|block| {
            let mut sum = (0.0, vec![0.0; block.zones[zone].1.len()]);
            for (floor, active) in block.zones.iter().skip(zone).step_by(stride) {
                sum.0 += floor;
                sum.1.iter_mut().zip(active).for_each(|(s, a)| *s += a);
            }
            sum
        })
        .collect()
}

/// Errors over all blocks from `from` on, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    /// Half the sum of share differences, blocks weighted by their true active energy.
    pub share: f64,
    /// Sum of differences in joules over the sum of true joules.
    pub joules: f64,
}

/// Compares; `only` narrows it to some workloads (shares among themselves).
pub fn errors(truth: &Judged, given: &Given, from: usize, only: &[usize]) -> Errors {
    let (mut share, mut off, mut weight) = (0.0, 0.0, 0.0);
    for (block, (_, active)) in truth.iter().enumerate().skip(from) {
        let Some(got) = given.get(block) else { continue };
        let true_sum: f64 = only.iter().map(|w| active[*w]).sum();
        let got_sum: f64 = only.iter().map(|w| got[*w]).sum();
        if true_sum <= 0.0 {
            continue;
        }
        let part = |joules: f64, sum: f64| if sum > 0.0 { joules / sum } else { 0.0 };
        let distance: f64 =
            only.iter().map(|w| (part(active[*w], true_sum) - part(got[*w], got_sum)).abs()).sum();
        share += true_sum * distance / 2.0;
        off += only.iter().map(|w| (active[*w] - got[*w]).abs()).sum::<f64>();
        weight += true_sum;
    }
    if weight <= 0.0 {
        return Errors::default();
    }
    Errors { share: 100.0 * share / weight, joules: 100.0 * off / weight }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_joules() {
        let truth = vec![(1.0, vec![6.0, 2.0, 2.0])];
        let given = vec![vec![5.0, 3.0, 2.0]];
        let all = errors(&truth, &given, 0, &[0, 1, 2]);
        assert!((all.share - 10.0).abs() < 1e-9 && (all.joules - 20.0).abs() < 1e-9);
        let two = errors(&truth, &given, 0, &[1, 2]);
        assert!((two.share - 10.0).abs() < 1e-9, "{two:?}");
        assert_eq!(errors(&truth, &given, 1, &[0]).share, 0.0);
    }
}
