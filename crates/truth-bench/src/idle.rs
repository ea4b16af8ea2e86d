//! The idle baseline in kinds of load: whether it is trusted where it can be known, how far off it
//! is then, and that it is not trusted where it cannot be known.

use crate::{
    machine::Machine,
    ours::Ours,
    scenarios::{self, bursts, workload},
    sim::{BLOCK, Pattern, SECOND, Sim, Workload},
};

/// What is asked of the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// Trusted in most windows, and idle joules off by this many percent at most.
    Within(f64),
    /// Never trusted: idle and constant power cannot be told apart.
    Never,
}

/// A kind of load.
#[derive(Clone, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub machine: Machine,
    pub workloads: Vec<Workload>,
    pub seconds: u64,
    pub expected: Expected,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Error of idle joules in windows with a trusted baseline, in percent.
    pub error: f64,
    /// The error of a proportional split over the same time, after warming up.
    pub proportional: f64,
    /// Fraction of windows, after warming up, in which it was trusted.
    pub trusted: f64,
    /// Fraction of CPU time that was busy.
    pub busy: f64,
}

/// Seconds that are not judged.
const WARM: u64 = 120;

/// All kinds.
pub fn kinds() -> Vec<Kind> {
    let base = Machine::default();
    let kind = |name, machine: &Machine, expected, workloads| Kind {
        name,
        machine: machine.clone(),
        workloads,
        seconds: 600,
        expected,
    };
    let of = |number: u32| {
        let all = scenarios::all().into_iter();
        all.filter(|s| s.number == number).map(|s| (s.machine, s.workloads)).next()
    };
    let four = |threads: usize, cpus: usize, on: f64, off: f64| {
        [("web", 0.6), ("db", 0.9), ("crypto", 1.4), ("ml", 2.0)]
            .map(|(name, kappa)| workload(name, kappa).threads(threads, 0..cpus, &bursts(on, off)))
            .to_vec()
    };
    let smt = Machine { threads: 2, ..base.clone() };
    let two = Machine { sockets: 2, ..base.clone() };
    let mut kinds = vec![
        kind("light", &base, Expected::Within(3.0), four(1, 8, 50.0, 900.0)),
        kind("bursts", &base, Expected::Within(3.0), four(2, 8, 200.0, 2200.0)),
        kind("turbo phases with pauses", &base, Expected::Within(5.0), {
            let mut many = workload("many", 1.0).thread([1], bursts(7000.0, 7000.0));
            for cpu in 2..7 {
                many = many.thread([cpu], Pattern::With(1));
            }
            vec![workload("few", 1.0).thread([0], bursts(7000.0, 7000.0)), many]
        }),
        kind("two sockets", &two, Expected::Within(5.0), {
            vec![
                workload("hungry", 1.8).threads(3, 0..8, &bursts(400.0, 600.0)),
                workload("modest", 0.7).threads(5, 8..16, &bursts(400.0, 900.0)),
            ]
        }),
        kind("SMT", &smt, Expected::Within(13.0), four(2, 16, 300.0, 900.0)),
        kind("mid load", &base, Expected::Within(8.0), four(2, 8, 300.0, 700.0)),
        kind("always one CPU busy", &base, Expected::Never, {
            let mut each = four(1, 8, 200.0, 800.0);
            each.push(workload("always", 1.0).thread([0], Pattern::Always));
            each
        }),
        kind("always a third busy", &base, Expected::Never, {
            let always = workload("always", 1.0).thread([0], Pattern::Always);
            let mut each = four(1, 8, 400.0, 400.0);
            each.push(always.thread([1], Pattern::Always).thread([2], Pattern::Always));
            each
        }),
    ];
    let from = [
        ("diurnal", 13, Expected::Within(5.0)),
        ("nearly idle", 8, Expected::Within(3.0)),
        ("equal, steady", 1, Expected::Never),
        ("turbo phases without a pause", 6, Expected::Never),
        ("constant full load", 9, Expected::Never),
        ("5 % noise, always some busy", 14, Expected::Never),
    ];
    for (name, number, expected) in from {
        kinds.extend(
            of(number).map(|(machine, workloads)| kind(name, &machine, expected, workloads)),
        );
    }
    kinds
}

/// Simulates a kind with this seed, nothing configured.
pub fn run(kind: &Kind, seed: u64) -> Result<Outcome, String> {
    let mut sim = Sim::new(kind.machine.clone(), kind.workloads.clone(), false, seed);
    let mut ours = Ours::new(&serde_json::json!({}), &kind.workloads, "package")?;
    // The truth is told in blocks; each is judged as a whole.
    for second in 1..=kind.seconds {
        ours.window(sim.window(), ((second - 1) * SECOND / BLOCK) as usize)?;
    }
    let from = (WARM * SECOND / BLOCK) as usize;
    let block_windows = (BLOCK / SECOND) as u32 * kind.machine.sockets as u32;
    let (mut got, mut floor, mut trusted, mut windows) = (0.0, 0.0, 0, 0);
    let (mut proportional, mut all, mut busy, mut blocks) = (0.0, 0.0, 0.0, 0.0);
    for (at, truth) in sim.truth.iter().enumerate().skip(from).take(ours.idle.len() - from) {
        let true_floor: f64 = truth.zones.iter().map(|z| z.0).sum();
        trusted += ours.trusted[at];
        windows += block_windows;
        if ours.trusted[at] == block_windows {
            got += ours.idle[at].0;
            floor += true_floor;
        }
        let slices = sim.slices.iter().skip(at * 100).take(100);
        let time: f64 = slices.flat_map(|s| s.time.iter().flatten()).sum();
        let fraction = time / (BLOCK as f64 * kind.machine.cpus() as f64);
        proportional += ours.idle[at].1 * (1.0 - fraction);
        all += true_floor;
        busy += fraction;
        blocks += 1.0;
    }
    let percent = |a: f64, b: f64| if b > 0.0 { 100.0 * (a / b - 1.0) } else { 0.0 };
    Ok(Outcome {
        error: percent(got, floor),
        proportional: percent(proportional, all),
        trusted: f64::from(trusted) / f64::from(windows),
        busy: busy / blocks,
    })
}

/// Whether it is as expected.
pub fn verdict(kind: &Kind, outcome: &Outcome) -> bool {
    match kind.expected {
        Expected::Within(percent) => outcome.trusted >= 0.5 && outcome.error.abs() <= percent,
        Expected::Never => outcome.trusted == 0.0,
    }
}

/// The table of all kinds, and how many are not as expected.
pub fn table(seed: u64) -> Result<(String, u32), String> {
    let mut out = String::from(
        "| load | busy | proportional | baseline | trusted | | |\n|---|---|---|---|---|---|---|\n",
    );
    let mut failed = 0;
    for kind in kinds() {
        let got = run(&kind, seed)?;
        let ok = verdict(&kind, &got);
        failed += u32::from(!ok);
        let error = if got.trusted > 0.0 { format!("{:+.1}", got.error) } else { "–".to_owned() };
        let target = match kind.expected {
            Expected::Within(percent) => format!("± {percent:.0}"),
            Expected::Never => "not trusted".to_owned(),
        };
        out.push_str(&format!(
            "| {} | {:.0} % | {:+.0} | {error} | {:.0} % | {target} | {} |\n",
            kind.name,
            100.0 * got.busy,
            got.proportional,
            100.0 * got.trusted,
            if ok { "ok" } else { "MISSED" },
        ));
    }
    Ok((out, failed))
}
