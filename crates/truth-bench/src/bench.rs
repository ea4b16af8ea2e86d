//! One scenario: the simulation, ours and the usual formulas over it, and how far each is off.

use std::path::Path;

use crate::{
    ours::Ours,
    record::Recording,
    rivals::{self, Seen},
    scenarios::{Scenario, Target},
    score::{self, Errors},
    sim::{BLOCK, SECOND, Sim},
};

/// Blocks before this are for warming up.
pub const FROM: usize = 12;

/// One line of the table.
pub struct Line {
    pub usual: [Errors; 5],
    pub exact: Errors,
    pub ours: Errors,
    /// Ours with nothing configured.
    pub learnt: Errors,
    /// Idle error in percent where a baseline was trusted, and how often it was.
    pub idle: Option<f64>,
    pub idle_proportional: f64,
    pub trusted: f64,
    pub residual: f64,
    pub confidence: Vec<Option<f64>>,
    pub rest: Option<(Errors, f64)>,
}

/// Simulates a scenario, and judges all models on it; writes it down in `record` where given.
pub fn run(scenario: &Scenario, seed: u64, record: Option<&Path>) -> Result<Line, String> {
    let seed = seed.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(scenario.number));
    let machine = scenario.machine.clone();
    let mut sim = Sim::new(machine.clone(), scenario.workloads.clone(), scenario.dram, seed);
    let kind = if scenario.dram { "dram" } else { "package" };
    let floor = if scenario.dram { machine.dram_floor } else { machine.floor };
    let stride = if scenario.dram { 2 } else { 1 };
    let zone = usize::from(scenario.dram);
    let mut idle_watts = serde_json::Map::new();
    for socket in 0..machine.sockets {
        idle_watts.insert(format!("{kind}-{socket}"), floor.into());
    }
    let given = serde_json::json!({ "idle_watts": idle_watts });
    let mut ours = Ours::new(&given, &scenario.workloads, kind)?;
    let mut free = Ours::new(&serde_json::json!({}), &scenario.workloads, kind)?;
    let mut recording = match record {
        Some(dir) => Some(Recording::create(dir, scenario.number)?),
        None => None,
    };
    let mut polls = vec![sim.poll()];
    for second in 1..=scenario.seconds {
        let batch = sim.window();
        let block = ((second - 1) * SECOND / BLOCK) as usize;
        if let Some(recording) = &mut recording {
            recording.write(&batch)?;
        }
        ours.window(batch.clone(), block)?;
        free.window(batch, block)?;
        if second % 5 == 0 {
            polls.push(sim.poll());
        }
    }
    if let Some(recording) = recording {
        recording.finish(&sim)?;
    }

    let truth = score::judged(&sim.truth, zone, stride);
    let seen = Seen {
        slices: &sim.slices,
        polls: &polls,
        floor,
        zone,
        stride,
        workloads: scenario.workloads.len(),
        cpus: machine.cpus(),
    };
    let all: Vec<usize> = (0..scenario.workloads.len()).collect();
    let errors = |given: &rivals::Given| score::errors(&truth, given, FROM, &all);
    let usual_given = [
        seen.all_by_time(),
        seen.utilisation(),
        seen.above_floor(),
        seen.equal_idle(),
        seen.deep_mon(),
    ];
    let usual = [0, 1, 2, 3, 4].map(|i| errors(&usual_given[i]));
    let rest = (scenario.target == Target::HalfButPair).then(|| {
        let truth = paired_truth(&truth);
        let rest_of =
            |given: &rivals::Given| score::errors(&truth, &paired(given), FROM, &all[1..]);
        let best = usual_given.iter().map(|g| rest_of(g).share).fold(f64::INFINITY, f64::min);
        (rest_of(&ours.given), best)
    });
    let confidence =
        ours.confidence.iter().map(|(sum, n)| (*n > 0).then(|| sum / f64::from(*n))).collect();
    Ok(Line {
        usual,
        exact: errors(&seen.exact()),
        ours: errors(&ours.given),
        learnt: errors(&free.given),
        idle: idle_error(&truth, &free),
        idle_proportional: proportional_idle(&truth, &free, &seen),
        trusted: f64::from(free.trusted.iter().skip(FROM).sum::<u32>())
            / (f64::from(machine.sockets as u32) * (scenario.seconds as f64 - FROM as f64 * 10.0)),
        residual: ours.residual.max(free.residual),
        confidence,
        rest,
    })
}

/// Energies with the first two workloads taken as one (the second).
fn paired(given: &rivals::Given) -> rivals::Given {
    let mut paired = given.clone();
    paired.iter_mut().for_each(|block| block[1] += block[0]);
    paired
}

fn paired_truth(truth: &score::Judged) -> score::Judged {
    let mut paired = truth.clone();
    paired.iter_mut().for_each(|(_, block)| block[1] += block[0]);
    paired
}

/// Idle joules against the true floor, in blocks that a baseline was trusted in throughout.
fn idle_error(truth: &score::Judged, ours: &Ours) -> Option<f64> {
    let (mut got, mut floor) = (0.0, 0.0);
    for (block, (true_floor, _)) in truth.iter().enumerate().skip(FROM) {
        if ours.trusted.get(block).is_some_and(|n| *n >= 10) {
            got += ours.idle[block].0;
            floor += true_floor;
        }
    }
    (floor > 0.0).then(|| 100.0 * (got / floor - 1.0))
}

/// The error that E × idle time / time makes.
fn proportional_idle(truth: &score::Judged, ours: &Ours, seen: &Seen<'_>) -> f64 {
    let (mut got, mut floor) = (0.0, 0.0);
    for (block, (true_floor, _)) in truth.iter().enumerate().skip(FROM) {
        let slices = seen.slices.iter().skip(block * 100).take(100);
        let busy: f64 = slices.flat_map(|s| s.time.iter().flatten()).sum();
        let online = 1e10 * seen.cpus as f64;
        got += ours.idle.get(block).map_or(0.0, |i| i.1) * (1.0 - busy / online);
        floor += true_floor;
    }
    100.0 * (got / floor - 1.0)
}

/// Whether the target was met, and what it was.
pub fn verdict(scenario: &Scenario, line: &Line) -> (bool, String) {
    let best = line.usual.iter().map(|e| e.share).fold(f64::INFINITY, f64::min);
    let half = (best / 2.0).max(2.0);
    let ok = line.ours.share <= best + 2.0
        && match scenario.target {
            Target::Half => line.ours.share <= half,
            Target::TwoPoints => line.ours.share <= 2.0,
            Target::Tie => true,
            Target::HalfButPair => {
                line.rest.is_some_and(|(rest, best)| rest.share <= (best / 2.0).max(2.0))
            }
        };
    let target = match scenario.target {
        Target::Half => format!("≤ {half:.1}"),
        Target::TwoPoints => "≤ 2.0".to_owned(),
        Target::Tie => format!("≤ {:.1}, flagged", best + 2.0),
        Target::HalfButPair => {
            let (rest, best) = line.rest.unwrap_or_default();
            format!("others {:.1} ≤ {:.1}", rest.share, (best / 2.0).max(2.0))
        }
    };
    (ok, target)
}
