//! The bench's targets, on seeds that nothing was tuned on (tuning used 1 to 6).
#![expect(clippy::unwrap_used, reason = "a test's own simulation")]

use truth_bench::{bench, idle, scenarios};

const UNSEEN: [u64; 2] = [100, 107];

/// Runs the kinds of load whose name starts with this.
#[track_caller]
fn check(name: &str) {
    let kinds: Vec<_> = idle::kinds().into_iter().filter(|k| k.name.starts_with(name)).collect();
    assert!(!kinds.is_empty(), "no kind of load {name}");
    for kind in kinds {
        for seed in UNSEEN {
            let got = idle::run(&kind, seed).unwrap();
            assert!(idle::verdict(&kind, &got), "{}, seed {seed}: {got:?}", kind.name);
        }
    }
}

#[test]
fn a_baseline_under_light_load_and_bursts() {
    check("light");
    check("nearly idle");
    check("bursts");
}

#[test]
fn a_baseline_under_turbo_phases_if_they_pause() {
    check("turbo phases");
}

#[test]
fn a_baseline_of_two_sockets() {
    check("two sockets");
}

#[test]
fn a_baseline_with_siblings() {
    check("SMT");
}

#[test]
fn a_baseline_under_mid_load_and_over_days() {
    check("mid load");
    check("diurnal");
}

#[test]
fn no_baseline_under_constant_load() {
    check("equal, steady");
    check("constant");
}

#[test]
fn no_baseline_where_something_always_runs() {
    check("always one CPU busy");
    check("always a third busy");
    check("5 % noise");
}

#[test]
fn every_scenario_meets_its_target() {
    for scenario in scenarios::all() {
        let line = bench::run(&scenario, UNSEEN[0], None).unwrap();
        let (ok, target) = bench::verdict(&scenario, &line);
        let share = line.ours.share;
        assert!(ok, "{} {}: {share:.1}, target {target}", scenario.number, scenario.name);
        assert!(line.residual < 1e-6, "{}: residual {} J", scenario.name, line.residual);
    }
}

#[test]
fn what_cannot_be_told_apart_is_flagged() {
    for (number, flagged) in [(9, 0..8), (10, 0..2)] {
        let scenario = scenarios::all().into_iter().find(|s| s.number == number).unwrap();
        let line = bench::run(&scenario, UNSEEN[1], None).unwrap();
        for (workload, confidence) in line.confidence.iter().enumerate() {
            let told_apart = confidence.is_some_and(|c| c >= 0.2);
            assert_eq!(told_apart, !flagged.contains(&workload), "{}: {workload}", scenario.name);
        }
    }
}
