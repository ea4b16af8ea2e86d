//! ns per row through `attribution` with a warm cache: windows of 10,000 processes that all ran,
//! in 200 containers. Median of 31 windows, interleaved with a pass that only copies the rows'
//! sets, which is what any processor that touches every row pays.

use std::{sync::Arc, time::Instant};

use wattpipe_pipeline::{
    Batch, BuildContext, Processor, ProcessorComponent,
    batch::{State, UsageBatch, UsageRow, Window},
    identity::{AttributeSet, CgroupRef, Process, attr},
    units::{Nanos, Tgid},
};
use wattpipe_processors::attribution::{Attribution, AttributionConfig, config::Sockets};

const PROCESSES: u32 = 10_000;
const WINDOWS: usize = 31;

fn rows() -> Vec<UsageRow> {
    (1..=PROCESSES)
        .map(|pid| {
            let cgroup = format!("/docker/{:064x}", pid % 200);
            let process = Process {
                start_time: Some(Nanos(u64::from(pid) * 1_000_000)),
                ppid: Some(Tgid(1)),
                comm: Some("worker".into()),
                uid: Some(0),
                cgroup: CgroupRef::Path(cgroup.into()),
                ..Process::unknown(Tgid(1_000_000 + pid))
            };
            let mut base = AttributeSet::new();
            base.set(attr::PROCESS_PID, pid);
            base.set(attr::PROCESS_EXECUTABLE_NAME, "worker");
            UsageRow {
                process: Some(Arc::new(process)),
                attributes: Arc::new(base),
                state: State::Running,
                cpu: Nanos(1),
                cycles: None,
                switches: Some(1),
                energy: Default::default(),
                confidence: None,
            }
        })
        .collect()
}

fn batch(rows: &[UsageRow]) -> UsageBatch {
    UsageBatch {
        window: Window::default(),
        rows: rows.to_vec(),
        zones: vec![],
        readings: vec![],
        slices: vec![],
        live: true,
    }
}

fn median(mut ns: Vec<f64>) -> f64 {
    ns.sort_by(f64::total_cmp);
    ns[ns.len() / 2]
}

fn main() {
    let config = AttributionConfig { containers: Sockets::List(vec![]), ..Default::default() };
    let mut attribution = match Attribution::build(config, &BuildContext::default()) {
        Ok(attribution) => attribution,
        Err(e) => return eprintln!("{e}"),
    };
    // No worker: nothing changes behind the cache's back.
    let rows = rows();
    let cold = Instant::now();
    let _ = attribution.process(Batch::Usage(Arc::new(batch(&rows))));
    let cold = cold.elapsed().as_nanos() as f64 / f64::from(PROCESSES);
    let (mut warm, mut copy) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        let mut plain = batch(&rows);
        let start = Instant::now();
        for row in &mut plain.rows {
            row.attributes = std::hint::black_box(row.attributes.clone());
        }
        copy.push(start.elapsed().as_nanos() as f64 / f64::from(PROCESSES));
        std::hint::black_box(&plain);

        let input = Batch::Usage(Arc::new(batch(&rows)));
        let start = Instant::now();
        let out = attribution.process(input);
        warm.push(start.elapsed().as_nanos() as f64 / f64::from(PROCESSES));
        let _ = std::hint::black_box(out);
    }
    println!(
        "attribution, {PROCESSES} processes: warm {:.1} ns a row, copy only {:.1}, cold {cold:.0}",
        median(warm),
        median(copy)
    );
}
