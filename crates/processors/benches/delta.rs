//! ns per switch through `delta` from memory: 50 million switches over 8 CPUs in each round, for
//! several numbers of processes and for the chain's harder paths. Medians of 9 rounds,
//! interleaved, so that the machine's moods meet every case alike.

use std::{sync::Arc, time::Instant};

use wattpipe_pipeline::{
    Batch, BuildContext, Processor, ProcessorComponent,
    batch::{CpuBlock, CpuInfo, Edge, MeterReading, Switch, SwitchBatch, Topology},
    testing,
    units::{Cpu, Nanos, Package, Tgid},
};
use wattpipe_processors::delta::{Delta, DeltaConfig};

const CPUS: u32 = 8;
const BATCH: usize = 128;
const ROUNDS: usize = 9;

struct Case {
    name: &'static str,
    processes: u32,
    cycles: bool,
    metered: bool,
    smt: bool,
}

/// One window of `switches` switches, dealt to the CPUs in batches of 128 as the probe sends them.
fn window(case: &Case, switches: usize, start: u64) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut batch = SwitchBatch::default();
    let per_cpu = switches / CPUS as usize;
    let step = 1_000_000_000 / per_cpu as u64;
    let mut seed = 0x9e37_79b9_7f4a_7c15u64 ^ start;
    let mut current = [0u32; CPUS as usize];
    for block in 0..per_cpu / BATCH {
        for cpu in 0..CPUS {
            let mut entries = Vec::with_capacity(BATCH);
            for i in 0..BATCH {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = start + ((block * BATCH + i) as u64 + 1) * step;
                // Every other switch goes idle, as pipes and timers do.
                let prev = current[cpu as usize];
                let next = if prev == 0 { 1 + (seed >> 33) as u32 % case.processes } else { 0 };
                current[cpu as usize] = next;
                entries.push(Switch {
                    ts: Nanos(at),
                    cycles: at * 3,
                    prev: Tgid(prev),
                    next: Tgid(next),
                });
            }
            batch.push_block(
                CpuBlock { cpu: Cpu(cpu), has_cycles: case.cycles, ..CpuBlock::default() },
                &entries,
            );
        }
        if batch.entries.len() >= 1 << 16 {
            batches.push(std::mem::take(&mut batch));
        }
    }
    batch.edge = Some(Edge { ts: Nanos(start + 1_000_000_000) });
    if case.metered {
        let zone = testing::zone("package-0");
        for slice in 1..=10u64 {
            let reading = MeterReading {
                ts: Nanos(start + slice * 100_000_000),
                zone: zone.clone(),
                energy_uj: slice,
            };
            match batches.first_mut() {
                Some(first) if slice < 10 => first.readings.push(reading),
                _ => batch.readings.push(reading),
            }
        }
    }
    batches.push(batch);
    batches.into_iter().map(|b| Batch::Switches(Arc::new(b))).collect()
}

fn round(case: &Case, batches: &[Batch], repeat: usize) -> f64 {
    let mut delta = match Delta::build(DeltaConfig {}, &BuildContext::default()) {
        Ok(delta) => delta,
        Err(e) => unreachable!("{e}"),
    };
    let cpus = (0..CPUS)
        .map(|c| CpuInfo {
            cpu: Cpu(c),
            package: Package(0),
            core: if case.smt { c / 2 } else { c },
        })
        .collect();
    let first = SwitchBatch {
        topology: Some(Arc::new(Topology { cpus, boot_unix_ns: 0 })),
        edge: Some(Edge { ts: Nanos(0) }),
        ..SwitchBatch::default()
    };
    let _ = delta.process(Batch::Switches(Arc::new(first)));
    let mut switches = 0;
    let begun = Instant::now();
    for _ in 0..repeat {
        for batch in batches {
            switches += batch.items();
            std::hint::black_box(delta.process(batch.clone()).is_ok());
        }
    }
    begun.elapsed().as_nanos() as f64 / switches as f64
}

fn main() {
    let plain =
        Case { name: "500 processes", processes: 500, cycles: false, metered: false, smt: false };
    let cases = [
        Case { name: "10 processes", processes: 10, ..plain },
        Case { ..plain },
        Case { name: "5,000 processes", processes: 5_000, ..plain },
        Case { name: "100,000 processes", processes: 100_000, ..plain },
        Case { name: "500 processes, 10 meter slices", metered: true, ..plain },
        Case {
            name: "500 processes, cycles, 10 slices, SMT",
            cycles: true,
            metered: true,
            smt: true,
            ..plain
        },
    ];
    // One window from memory, long enough to outgrow the caches; the repeats go back in time,
    // which `delta` clamps: so each window is distinct instead.
    let windows: Vec<Vec<Batch>> = cases
        .iter()
        .map(|case| (0..4).flat_map(|w| window(case, 2_500_000, w * 1_000_000_000)).collect())
        .collect();
    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (at, case) in cases.iter().enumerate() {
            times[at].push(round(case, &windows[at], 1));
        }
    }
    println!("{:<42} {:>10} {:>14}", "delta, from memory", "ns/switch", "M switches/s");
    for (case, mut times) in cases.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let median = times[ROUNDS / 2];
        println!("{:<42} {median:>10.2} {:>14.1}", case.name, 1e3 / median);
    }
}
