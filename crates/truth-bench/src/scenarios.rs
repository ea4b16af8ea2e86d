//! What is simulated. Numbers 1 to 15 are the loads that tell attribution models apart; what can
//! be told from a meter's stream at all is marked, and what cannot must tie and be flagged.

use crate::{
    machine::Machine,
    sim::{Pattern, Workload},
};

/// What a model has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// At most half of the best usual formula's error, or two points.
    Half,
    /// Half for all but the first two workloads, which cannot be told apart.
    HalfButPair,
    /// At most two points.
    TwoPoints,
    /// Not identifiable: no worse than the best usual formula by two points.
    Tie,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub number: u32,
    pub name: &'static str,
    pub target: Target,
    /// Judge memory zones instead of packages.
    pub dram: bool,
    pub machine: Machine,
    pub workloads: Vec<Workload>,
    pub seconds: u64,
}

pub fn workload(name: &'static str, kappa: f64) -> Workload {
    Workload {
        name,
        kappa,
        traffic: 0.5,
        stalled: 0.0,
        steps: Vec::new(),
        step: 30.0,
        wander: 0.0,
        threads: Vec::new(),
    }
}

impl Workload {
    pub(crate) fn thread(
        mut self,
        cpus: impl IntoIterator<Item = usize>,
        pattern: Pattern,
    ) -> Self {
        self.threads.push((cpus.into_iter().collect(), pattern));
        self
    }

    pub(crate) fn threads(
        mut self,
        n: usize,
        cpus: std::ops::Range<usize>,
        pattern: &Pattern,
    ) -> Self {
        for _ in 0..n {
            self.threads.push((cpus.clone().collect(), pattern.clone()));
        }
        self
    }

    fn traffic(mut self, traffic: f64, stalled: f64) -> Self {
        self.traffic = traffic;
        self.stalled = stalled;
        self
    }
}

pub(crate) fn bursts(on: f64, off: f64) -> Pattern {
    Pattern::Bursts { on, off }
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    let base = Machine::default();
    let smt = Machine { threads: 2, ..base.clone() };
    let plain = |number, name, target, machine: &Machine, workloads| Scenario {
        number,
        name,
        target,
        dram: false,
        machine: machine.clone(),
        workloads,
        seconds: 420,
    };
    let four = |on: f64, off: f64| {
        [("web", 0.6), ("db", 0.9), ("crypto", 1.4), ("ml", 2.0)]
            .map(|(name, kappa)| workload(name, kappa).threads(2, 0..8, &bursts(on, off)))
            .to_vec()
    };
    vec![
        plain(1, "equal, steady", Target::TwoPoints, &base, {
            let equal = |name, cpu| workload(name, 1.0).thread([cpu], Pattern::Always);
            vec![equal("a", 0), equal("b", 1), equal("c", 2), equal("d", 3)]
        }),
        plain(
            2,
            "fork storm 20 ms",
            Target::Half,
            &base,
            vec![
                workload("storm", 1.6).threads(3, 0..8, &Pattern::Forks { on: 20.0, off: 15.0 }),
                workload("server", 0.8).threads(2, 0..8, &bursts(300.0, 700.0)),
                workload("batch", 1.0).threads(1, 0..8, &bursts(2000.0, 3000.0)),
            ],
        ),
        plain(3, "bursts, low overlap", Target::Half, &base, four(200.0, 2200.0)),
        plain(4, "bursts, high overlap", Target::Half, &base, four(300.0, 250.0)),
        plain(
            5,
            "SMT packed v spread",
            Target::TwoPoints,
            &smt,
            vec![
                workload("packed", 1.0)
                    .thread([0], bursts(400.0, 100.0))
                    .thread([8], bursts(400.0, 100.0)),
                workload("spread", 1.0)
                    .thread([1], bursts(400.0, 100.0))
                    .thread([2], bursts(400.0, 100.0)),
            ],
        ),
        plain(
            6,
            "turbo phases",
            Target::Half,
            &base,
            vec![
                workload("few", 1.0).thread([0], Pattern::Phases { half: 7.0, odd: false }),
                workload("many", 1.0)
                    .thread([1], Pattern::Phases { half: 7.0, odd: true })
                    .thread([2], Pattern::Phases { half: 7.0, odd: true })
                    .thread([3], Pattern::Phases { half: 7.0, odd: true })
                    .thread([4], Pattern::Phases { half: 7.0, odd: true })
                    .thread([5], Pattern::Phases { half: 7.0, odd: true })
                    .thread([6], Pattern::Phases { half: 7.0, odd: true }),
            ],
        ),
        plain(
            7,
            "two sockets pinned",
            Target::Half,
            &Machine { sockets: 2, ..base.clone() },
            vec![
                workload("hungry", 1.8).threads(3, 0..8, &bursts(400.0, 300.0)),
                workload("modest", 0.7).threads(6, 8..16, &bursts(400.0, 150.0)),
            ],
        ),
        plain(
            8,
            "nearly idle",
            Target::Half,
            &base,
            vec![
                workload("cron", 1.5).threads(1, 0..8, &bursts(20.0, 1500.0)),
                workload("agent", 0.7).threads(2, 0..8, &bursts(5.0, 400.0)),
                workload("shell", 1.0).threads(1, 0..8, &bursts(50.0, 2500.0)),
            ],
        ),
        plain(9, "constant full load", Target::Tie, &base, {
            let k = [0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.6, 2.0];
            let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
            let each = names.iter().zip(k).enumerate();
            each.map(|(i, (n, k))| workload(n, k).thread([i], Pattern::Always)).collect()
        }),
        plain(
            10,
            "inseparable pair among others",
            Target::HalfButPair,
            &base,
            vec![
                workload("left", 1.8).thread([0], bursts(400.0, 400.0)),
                workload("right", 0.6).thread([1], Pattern::With(0)),
                workload("other", 2.0).threads(2, 2..8, &bursts(300.0, 500.0)),
                workload("third", 0.6).threads(2, 2..8, &bursts(250.0, 350.0)),
            ],
        ),
        plain(11, "power changes each 30 s", Target::Half, &base, {
            let mut changing = workload("changing", 1.0).threads(2, 0..8, &bursts(300.0, 300.0));
            changing.steps = vec![0.6, 1.8];
            vec![
                changing,
                workload("even", 1.0).threads(2, 0..8, &bursts(250.0, 350.0)),
                workload("low", 0.7).threads(2, 0..8, &bursts(400.0, 400.0)),
            ]
        }),
        Scenario {
            dram: true,
            ..plain(
                12,
                "DRAM",
                Target::Half,
                &base,
                vec![
                    workload("stream", 0.8).traffic(3.0, 0.6).threads(
                        2,
                        0..8,
                        &bursts(300.0, 500.0),
                    ),
                    workload("compute", 1.4).traffic(0.05, 0.0).threads(
                        3,
                        0..8,
                        &bursts(300.0, 200.0),
                    ),
                    workload("mixed", 1.0).traffic(0.8, 0.2).threads(
                        2,
                        0..8,
                        &bursts(250.0, 350.0),
                    ),
                ],
            )
        },
        Scenario {
            seconds: 720,
            ..plain(13, "diurnal, hungrier mix", Target::Half, &base, {
                let tide = Pattern::Tide { on: 300.0, off: 4000.0, off_peak: 150.0, period: 300.0 };
                vec![
                    workload("peak", 1.8).threads(4, 0..8, &tide),
                    workload("steady", 0.8).threads(3, 0..8, &bursts(300.0, 400.0)),
                    workload("small", 1.0).threads(1, 0..8, &bursts(200.0, 800.0)),
                ]
            })
        },
        plain(
            14,
            "misfit, 5 % noise",
            Target::Half,
            &{
                let odd = Machine { noise: 0.05, uncore: 12.0, volt_slope: 0.8, ..smt.clone() };
                Machine { floor_drift: 0.03, shared: 0.62, ..odd }
            },
            vec![
                workload("stall", 1.2).traffic(2.0, 0.5).threads(3, 0..16, &bursts(300.0, 400.0)),
                workload("vector", 2.0).threads(3, 0..16, &bursts(250.0, 400.0)),
                workload("int", 0.7).threads(4, 0..16, &bursts(300.0, 300.0)),
            ],
        ),
        plain(15, "power wanders 30 %", Target::Half, &base, {
            let mut each = four(300.0, 400.0);
            each.iter_mut().for_each(|w| w.wander = 0.3);
            each
        }),
        plain(
            16,
            "hybrid cores",
            Target::Half,
            &Machine { small_cores: 4, ..base.clone() },
            vec![
                workload("big", 1.3).threads(3, 0..4, &bursts(300.0, 300.0)),
                workload("small", 1.3).threads(3, 4..8, &bursts(300.0, 300.0)),
                workload("both", 0.8).threads(2, 0..8, &bursts(300.0, 400.0)),
            ],
        ),
    ]
}
