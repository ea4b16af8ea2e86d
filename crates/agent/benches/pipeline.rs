//! Switches from memory through the stages of a pipeline: how the cost of a switch stays the same
//! with more CPUs, more processes and more switches, and what the whole chain costs with thousands
//! of processes. One JSON object a line; `cargo xtask bench` makes the table.
//!
//! Every case in turn, round after round, so that the machine's moods meet all alike; medians.

use std::{sync::Arc, time::Instant};

use serde_json::json;
use wattpipe_exporters::records;
use wattpipe_pipeline::{
    Batch, BuildContext, Processor, ProcessorComponent,
    batch::{
        CpuBlock, CpuInfo, Edge, MeterReading, ProcessEvent, ProcessEventKind, Switch, SwitchBatch,
        Topology,
    },
    identity::{CgroupRef, Process},
    testing,
    units::{Cpu, Nanos, Package, Tgid},
};
use wattpipe_processors::{attribution::Attribution, delta::Delta, power_model::PowerModel};

const BATCH: usize = 128;
const ROUNDS: usize = 9;
const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Case {
    group: &'static str,
    cpus: u32,
    processes: u32,
    /// Switches in a window of one second, over all CPUs.
    switches: usize,
    /// Attribution, energy of one zone in ten slices, and JSON lines, too.
    full: bool,
}

const PLAIN: Case =
    Case { group: "cpus", cpus: 8, processes: 500, switches: 2_500_000, full: false };

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend([2, 8, 64, 512].map(|cpus| Case { cpus, ..PLAIN }));
    let processes = [10, 500, 5_000, 10_000, 100_000];
    cases.extend(processes.map(|processes| Case { group: "processes", processes, ..PLAIN }));
    let rates = [1_000, 10_000, 100_000, 1_000_000, 20_000_000];
    cases.extend(rates.map(|switches| Case { group: "rate", switches, ..PLAIN }));
    let full = Case { group: "full", full: true, ..PLAIN };
    cases.extend([500, 5_000, 10_000].map(|processes| Case { processes, ..full }));
    cases
}

fn topology(case: &Case) -> Arc<Topology> {
    let cpus = (0..case.cpus)
        .map(|cpu| CpuInfo { cpu: Cpu(cpu), package: Package(0), core: cpu })
        .collect();
    Arc::new(Topology { cpus, boot_unix_ns: 1_790_000_000 * SECOND })
}

/// The first batch: the CPUs, every process, and the edge that opens the first window.
fn opening(case: &Case) -> Batch {
    let processes = (1..=case.processes).map(|pid| ProcessEvent {
        ts: Nanos(0),
        kind: ProcessEventKind::Snapshot,
        process: Process {
            start_time: Some(Nanos(0)),
            ppid: Some(Tgid(1)),
            comm: Some(format!("process-{pid}").into()),
            uid: Some(1000),
            cgroup: CgroupRef::Path(format!("/system.slice/unit-{}.service", pid % 200).into()),
            ..Process::unknown(Tgid(pid))
        },
    });
    Batch::Switches(Arc::new(SwitchBatch {
        topology: Some(topology(case)),
        processes: processes.collect(),
        edge: Some(Edge { ts: Nanos(0) }),
        ..SwitchBatch::default()
    }))
}

/// One window, dealt to the CPUs in batches as the probe sends them. Every other switch goes idle.
fn window(case: &Case, number: u64) -> Vec<Batch> {
    let start = number * SECOND;
    let mut batches = Vec::new();
    let mut batch = SwitchBatch::default();
    let per_cpu = (case.switches / case.cpus as usize).max(1);
    let step = SECOND / (per_cpu as u64 + 1);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64 ^ start;
    let mut current = vec![0u32; case.cpus as usize];
    let mut entries = Vec::with_capacity(BATCH);
    for first in (0..per_cpu).step_by(BATCH) {
        for cpu in 0..case.cpus {
            entries.clear();
            for i in first..per_cpu.min(first + BATCH) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let prev = current[cpu as usize];
                let next = if prev == 0 { 1 + (seed >> 33) as u32 % case.processes } else { 0 };
                current[cpu as usize] = next;
                let ts = Nanos(start + (i as u64 + 1) * step);
                entries.push(Switch { ts, cycles: 0, prev: Tgid(prev), next: Tgid(next) });
            }
            batch.push_block(CpuBlock { cpu: Cpu(cpu), ..CpuBlock::default() }, &entries);
            if batch.entries.len() >= 1 << 14 {
                batches.push(std::mem::take(&mut batch));
            }
        }
    }
    batch.edge = Some(Edge { ts: Nanos(start + SECOND) });
    if case.full {
        let zone = testing::zone("package-0");
        let reading = |slice: u64| MeterReading {
            ts: Nanos(start + slice * SECOND / 10),
            zone: zone.clone(),
            energy_uj: number * 30_000_000 + slice * 3_000_000,
        };
        let place = batches.first_mut().unwrap_or(&mut batch);
        place.readings.extend((u64::from(number > 0)..10).map(reading));
        batch.readings.push(reading(10));
    }
    batches.push(batch);
    batches.into_iter().map(|b| Batch::Switches(Arc::new(b))).collect()
}

fn build<P: ProcessorComponent + 'static>() -> Box<dyn Processor>
where
    P::Config: Default,
{
    let context = BuildContext { replay: true, ..BuildContext::default() };
    match P::build(P::Config::default(), &context) {
        Ok(processor) => Box::new(processor),
        Err(error) => unreachable!("{error}"),
    }
}

/// ns of thread time per switch, and of a window.
fn round(case: &Case, opening: &Batch, windows: &[Vec<Batch>]) -> (f64, f64) {
    let mut chain = vec![build::<Delta>()];
    if case.full {
        chain.extend([build::<Attribution>(), build::<PowerModel>()]);
    }
    let mut lines = Vec::new();
    let mut through = |batch: &Batch, lines: &mut Vec<u8>| {
        let mut batch = Some(batch.clone());
        for processor in &mut chain {
            let Some(some) = batch.take() else { return };
            batch = processor.process(some).ok().flatten();
        }
        if let (true, Some(Batch::Usage(usage))) = (case.full, &batch) {
            lines.clear();
            let _ = records::write_lines(usage, lines);
        }
        std::hint::black_box(&batch);
    };
    through(opening, &mut lines);
    // A first window finds every process and makes its place.
    for batch in &windows[0] {
        through(batch, &mut lines);
    }
    let mut switches = 0;
    let begun = Instant::now();
    for batch in windows[1..].iter().flatten() {
        switches += batch.items();
        through(batch, &mut lines);
    }
    let time = begun.elapsed().as_nanos() as f64;
    (time / switches as f64, time / (windows.len() - 1) as f64)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let only = args.iter().position(|a| a == "--only").and_then(|at| args.get(at + 1));
    for group in ["cpus", "processes", "rate", "full"] {
        if only.is_some_and(|only| only != group) {
            continue;
        }
        let cases: Vec<Case> = cases().into_iter().filter(|c| c.group == group).collect();
        let data: Vec<(Batch, Vec<Vec<Batch>>)> = cases
            .iter()
            .map(|case| {
                let count = if case.switches > 10_000_000 { 2 } else { 4 };
                (opening(case), (0..count).map(|n| window(case, n)).collect())
            })
            .collect();
        let mut times = vec![(Vec::new(), Vec::new()); cases.len()];
        for _ in 0..ROUNDS {
            for (at, case) in cases.iter().enumerate() {
                let (switch, window) = round(case, &data[at].0, &data[at].1);
                times[at].0.push(switch);
                times[at].1.push(window);
            }
        }
        for (case, (switch, window)) in cases.iter().zip(&mut times) {
            let record = json!({
                "group": group, "cpus": case.cpus, "processes": case.processes,
                "switches_per_second": case.switches, "ns_per_switch": median(switch),
                "us_per_window": median(window) / 1e3, "rounds": ROUNDS,
            });
            println!("{record}");
        }
    }
}
