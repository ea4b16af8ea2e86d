//! What a window costs the power model: 2 sockets of 64 CPUs, 5,000 processes, ten slices, four
//! zones, everything learnt; in CPU time, so that a busy machine tells the same. `cargo bench -p wattpipe-processors --bench power_model`.
#![expect(clippy::unwrap_used, reason = "a benchmark on data of its own")]

use std::{sync::Arc, time::Duration};

use nix::time::ClockId;
use smallvec::SmallVec;
use wattpipe_pipeline::{
    Batch, BuildContext, Processor, ProcessorComponent,
    batch::{Cell, Domain, MeterReading, Slice, State, UsageBatch, UsageRow, Window, Zone},
    identity::{AttributeSet, Process, attr},
    units::{Nanos, Package, Tgid},
};
use wattpipe_processors::power_model::{PowerModel, PowerModelConfig};

const SECOND: u64 = 1_000_000_000;
const PROCESSES: u32 = 5000;
const SLICES: u64 = 10;
/// Long enough for everything that is learnt to be used, and worked out anew several times.
const WINDOWS: u64 = 80;
/// Every run does the same work: of each window, the least is what the work costs, and the rest is
/// the machine's other business.
const RUNS: usize = 5;

fn zones() -> Vec<Arc<Zone>> {
    let zone = |name: &str, hw_type: &str, package| {
        Arc::new(Zone {
            name: name.into(),
            hw_type: hw_type.into(),
            package: Some(Package(package)),
            source: "rapl".into(),
            contained_in: None,
            max_energy_range_uj: Some(262_143_328_850),
            max_watts: None,
        })
    };
    vec![
        zone("package-0", "cpu", 0),
        zone("dram-0", "memory", 0),
        zone("package-1", "cpu", 1),
        zone("dram-1", "memory", 1),
    ]
}

fn rows() -> Vec<UsageRow> {
    (0..PROCESSES)
        .map(|pid| {
            let mut process = Process::unknown(Tgid(pid + 1));
            process.start_time = Some(Nanos(u64::from(pid)));
            let mut attributes = AttributeSet::new();
            attributes.set(attr::PROCESS_PID, pid + 1);
            attributes.set(attr::PROCESS_EXECUTABLE_NAME, format!("program-{}", pid % 200));
            attributes.set(attr::CONTAINER_ID, format!("{:064x}", pid % 50));
            UsageRow {
                process: Some(Arc::new(process)),
                attributes: Arc::new(attributes),
                state: State::Running,
                cpu: Nanos(20_000_000),
                cycles: Some(60_000_000),
                switches: Some(10),
                energy: SmallVec::new(),
                confidence: None,
            }
        })
        .collect()
}

/// Each process runs in `presence` of the ten slices.
fn window(n: u64, rows: &[UsageRow], zones: &[Arc<Zone>], presence: u64) -> UsageBatch {
    let start = n * SECOND;
    let each = 20_000_000 / presence;
    let slices = (0..SLICES).map(|s| {
        let domains = (0..2u32).map(|package| {
            let cells = (0..PROCESSES)
                .filter(|p| p % 2 == package && (u64::from(*p) + s + n) % SLICES < presence)
                .map(|row| Cell {
                    row,
                    cpu: Nanos(each),
                    shared: Nanos(each / 3),
                    cycles: each * 3,
                    counted: Nanos(each),
                    square: each as f64 * 9.0,
                    square_shared: each as f64 * 3.0,
                })
                .collect();
            Domain {
                package: Package(package),
                cpus: 64,
                idle: Nanos(1_400_000_000),
                any_busy: Nanos(100_000_000),
                cells,
                ..Domain::default()
            }
        });
        Slice { end: Nanos(start + (s + 1) * SECOND / SLICES), domains: domains.collect() }
    });
    let readings = (u64::from(n > 0)..=SLICES).flat_map(|s| {
        zones.iter().map(move |zone| MeterReading {
            ts: Nanos(start + s * SECOND / SLICES),
            zone: zone.clone(),
            energy_uj: (n * SLICES + s) * 20_000_000 + (n * 7 + s * 13) % 11 * 100_000,
        })
    });
    UsageBatch {
        window: Window {
            start: Nanos(start),
            end: Nanos(start + SECOND),
            cpus: 128,
            complete: true,
            ..Window::default()
        },
        rows: rows.to_vec(),
        zones: Vec::new(),
        readings: readings.collect(),
        slices: slices.collect(),
        live: false,
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().into()
}

/// What each of the windows costs a model that starts with the first, in milliseconds.
fn costs(windows: &[UsageBatch]) -> Vec<f64> {
    let mut model =
        PowerModel::build(PowerModelConfig::default(), &BuildContext::default()).unwrap();
    let cost = |window: &UsageBatch| {
        let batch = Batch::Usage(Arc::new(window.clone()));
        let before = cpu_time();
        let out = model.process(batch).unwrap();
        let cost = cpu_time() - before;
        drop(out);
        cost.as_secs_f64() * 1e3
    };
    windows.iter().map(cost).collect()
}

fn main() {
    let (zones, rows) = (zones(), rows());
    for presence in [1, 3, 10] {
        let windows: Vec<_> = (0..WINDOWS).map(|n| window(n, &rows, &zones, presence)).collect();
        let mut least = costs(&windows);
        for _ in 1..RUNS {
            least.iter_mut().zip(costs(&windows)).for_each(|(a, b)| *a = a.min(b));
        }
        let first = least[0];
        least.sort_unstable_by(f64::total_cmp);
        println!(
            "{} cells: first {first:.2} ms, median {:.2} ms, highest {:.2} ms a window",
            u64::from(PROCESSES) * presence,
            least[least.len() / 2],
            least[least.len() - 1],
        );
    }
}
