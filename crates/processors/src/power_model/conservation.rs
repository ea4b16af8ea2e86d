//! Whatever happens to meters, CPUs and records: for each zone and window, the parts add up to
//! what was measured, and the exact share is what an independent calculation gives.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wattpipe_pipeline::batch::UsageBatch;

use super::tests::{WindowBuilder, energy, line, model, run, zone};

const RANGE: u64 = 262_143_328_850;
const SLICES: u64 = 4;

/// What happens to one zone in one slice.
#[derive(Clone, Copy, Debug)]
enum Meter {
    Missing,
    Reads { millijoules: u32 },
    StartsAnew,
    Jumps,
}

/// One package in one slice: idle, lost, and time of five processes in ms.
#[derive(Clone, Debug)]
struct Ran {
    idle: u64,
    lost: u64,
    used: [u64; 5],
}

fn meter() -> impl Strategy<Value = Meter> {
    prop_oneof![
        2 => Just(Meter::Missing),
        8 => (0u32..60_000).prop_map(|millijoules| Meter::Reads { millijoules }),
        1 => Just(Meter::StartsAnew),
        1 => Just(Meter::Jumps),
    ]
}

fn ran() -> impl Strategy<Value = Ran> {
    let time = prop_oneof![Just(0u64), 0u64..2000];
    // A package without any time is one whose CPUs are all offline.
    prop_oneof![
        1 => Just(Ran { idle: 0, lost: 0, used: [0; 5] }),
        9 => (0u64..4000, prop_oneof![4 => Just(0u64), 1 => 0u64..1000], proptest::array::uniform5(time))
            .prop_map(|(idle, lost, used)| Ran { idle, lost, used }),
    ]
}

const ZONES: [(&str, Option<u32>); 5] = [
    ("package-0", Some(0)),
    ("package-1", Some(1)),
    ("dram-1", Some(1)),
    ("core-0", Some(0)),
    ("psys", None),
];

/// Generous bounds of plausible power, in watts.
const MOST: [f64; 5] = [2000.0, 2000.0, 1000.0, 2000.0, 10_000.0];

const CONFIGS: [&str; 6] = [
    "{}",
    r#"{"weight":"cpu_time","idle":"none"}"#,
    r#"{"weight":"cpu_time","idle":"proportional"}"#,
    r#"{"weight":"cpu_time","idle_watts":{"package-0":20,"package-1":9,"dram-1":0,"core-0":3,"psys":44}}"#,
    r#"{"weight":"cycles","attribute_idle":true}"#,
    r#"{"smt":"none","idle_watts":{"package-0":20}}"#,
];

fn parts_add_up(usage: &UsageBatch) {
    for (at, z) in usage.zones.iter().enumerate() {
        let active: f64 = usage
            .rows
            .iter()
            .flat_map(|r| &r.energy)
            .filter(|e| e.zone as usize == at)
            .map(|e| e.active)
            .sum();
        let sum = active + z.idle + z.unattributed;
        assert!(
            (sum - z.joules).abs() <= 1e-9 * z.joules.max(1e-6),
            "{}: {sum} {z:?}",
            z.zone.name
        );
        assert!((active - z.active).abs() <= 1e-9 * z.joules.max(1e-6));
        assert!(z.idle >= 0.0 && z.unattributed >= 0.0 && z.active >= 0.0);
        for e in usage.rows.iter().flat_map(|r| &r.energy) {
            assert!(e.active >= 0.0 && e.idle >= 0.0, "{e:?}");
        }
    }
}

/// The exact share, written a second time from the formulas: joules owed per process and zone.
#[derive(Default)]
struct Reference {
    counter: Option<(u64, u64)>,
    /// Seconds at the most plausible power not used up, one at most.
    credit: f64,
    used: BTreeMap<u32, f64>,
    idle: f64,
    lost: f64,
    owed: BTreeMap<u32, f64>,
    measured: f64,
    intervals: u32,
}

impl Reference {
    fn slice(&mut self, packages: &[(u32, &Ran)]) {
        for (_, ran) in packages {
            self.idle += ran.idle as f64;
            self.lost += ran.lost as f64;
            for (i, &ms) in ran.used.iter().enumerate() {
                *self.used.entry(i as u32 + 1).or_default() += ms as f64;
            }
        }
    }

    /// Energy in µJ at `ms`.
    fn reading(&mut self, ms: u64, uj: u64, idle_mode: usize, watts: f64, most: f64) {
        if let Some((then, before)) = self.counter {
            let seconds = (ms - then) as f64 / 1e3;
            let delta = if uj >= before { uj - before } else { RANGE - before + uj };
            let joules = delta as f64 / 1e6;
            let allowed = most * (self.credit + seconds + 0.002);
            self.credit = (self.credit + seconds - joules / most).clamp(0.0, 1.0);
            if joules > allowed {
                self.credit = 0.0;
            } else {
                let busy: f64 = self.used.values().sum();
                let total = busy + self.idle + self.lost;
                let idle = match idle_mode {
                    1 => 0.0,
                    2 if total == 0.0 => 0.0,
                    2 => joules * (1.0 - busy / total),
                    _ => (watts * seconds).min(joules),
                };
                let active = joules - idle;
                if busy > 0.0 {
                    for (pid, ms) in &self.used {
                        let share = active * ms / (busy + self.lost);
                        *self.owed.entry(*pid).or_default() += share;
                    }
                }
                self.measured += joules;
                self.intervals += 1;
            }
        }
        self.counter = Some((ms, uj));
        self.used.clear();
        (self.idle, self.lost) = (0.0, 0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_made_up(
        config in 0..CONFIGS.len(),
        start in prop_oneof![Just(0u64), Just(RANGE - 50_000_000)],
        stream in proptest::collection::vec(
            (proptest::array::uniform2(ran()), proptest::array::uniform5(meter())),
            (3 * SLICES as usize)..(8 * SLICES as usize),
        ),
    ) {
        let zones: Vec<_> = ZONES.iter().map(|(name, package)| zone(name, *package)).collect();
        let watts = [20.0, 9.0, 0.0, 3.0, 44.0];
        let mut model = model(CONFIGS[config]);
        let mut references: Vec<Reference> = ZONES.iter().map(|_| Reference::default()).collect();
        let mut counters = [start; ZONES.len()];
        for (w, slices) in stream.chunks_exact(SLICES as usize).enumerate() {
            let mut window = WindowBuilder::new(w as u64 + 1);
            let mut at_edge = [false; ZONES.len()];
            for (s, (packages, meters)) in slices.iter().enumerate() {
                let end = (s as u64 + 1) * 1000 / SLICES;
                let used: Vec<Vec<(u32, u64)>> = packages
                    .iter()
                    .map(|p| {
                        let used = p.used.iter().enumerate().map(|(i, ms)| (i as u32 + 1, *ms));
                        used.filter(|(_, ms)| *ms > 0).collect()
                    })
                    .collect();
                let domains: Vec<_> = packages
                    .iter()
                    .enumerate()
                    .map(|(p, ran)| (p as u32, ran.idle, ran.lost, used[p].as_slice()))
                    .collect();
                window = window.slice(end, &domains);
                for (z, meter) in meters.iter().enumerate() {
                    let own: Vec<_> = packages
                        .iter()
                        .enumerate()
                        .map(|(p, ran)| (p as u32, ran))
                        .filter(|(p, _)| ZONES[z].1.is_none_or(|own| own == *p))
                        .collect();
                    references[z].slice(&own);
                    counters[z] = match meter {
                        Meter::Missing => continue,
                        Meter::Reads { millijoules } => {
                            (counters[z] + u64::from(*millijoules) * 1000) % (RANGE + 1)
                        }
                        Meter::StartsAnew => 1000,
                        Meter::Jumps => 60_000_000_000 + counters[z] / 2,
                    };
                    let uj = counters[z];
                    window = window.read(end, &zones[z], uj as f64 / 1e6);
                    references[z].reading(w as u64 * 1000 + end, uj, config, watts[z], MOST[z]);
                    at_edge[z] = end == 1000;
                }
            }
            let usage = run(&mut model, window);
            parts_add_up(&usage);
            for (z, reference) in references.iter_mut().enumerate() {
                let name = ZONES[z].0;
                if !at_edge[z] {
                    prop_assert!(line(&usage, name).is_none());
                    continue;
                }
                prop_assert_eq!(line(&usage, name).is_some(), reference.intervals > 0);
                if let Some(z) = line(&usage, name) {
                    prop_assert!((z.joules - reference.measured).abs() < 1e-5);
                    if (1..=3).contains(&config) {
                        for (pid, owed) in &reference.owed {
                            let got = energy(&usage, *pid, name).map_or(0.0, |e| e.0);
                            prop_assert!(
                                (got - owed).abs() <= 1e-6 * owed.max(1e-3),
                                "{} of {}: {} not {}", pid, name, got, owed
                            );
                        }
                    }
                }
                reference.owed.clear();
                reference.measured = 0.0;
                reference.intervals = 0;
            }
        }
    }
}
