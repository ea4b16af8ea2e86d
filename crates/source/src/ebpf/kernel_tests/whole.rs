//! The source as a whole: windows, short processes, a ring that overflows.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use wattpipe_pipeline::{
    Batch, BuildContext, Source, SourceComponent,
    batch::{ProcessEvent, ProcessEventKind, SwitchBatch},
    telemetry::Instrument,
    testing::{SourceHarness, source_harness},
    units::{ConfigDuration, ConfigSize},
};

use super::super::{Ebpf, EbpfConfig};

/// Runs the source while `load` runs, until its edge after that; batches and counters.
pub(super) async fn record(
    config: EbpfConfig,
    load: impl FnOnce() + Send + 'static,
) -> (Vec<Arc<SwitchBatch>>, Vec<(&'static str, u64)>) {
    record_with(config, |_| load()).await
}

/// Edges that have come so far, for a load that has to wait for some.
#[derive(Clone, Default)]
pub(super) struct Edges(Arc<AtomicUsize>);

impl Edges {
    /// Waits for so many more.
    pub(super) fn wait(&self, more: usize) {
        let (until, begin) = (self.0.load(SeqCst) + more, Instant::now());
        while self.0.load(SeqCst) < until {
            assert!(begin.elapsed() < Duration::from_secs(120), "no edges come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(super) async fn record_with(
    config: EbpfConfig,
    load: impl FnOnce(Edges) + Send + 'static,
) -> (Vec<Arc<SwitchBatch>>, Vec<(&'static str, u64)>) {
    let edges = Edges::default();
    let SourceHarness { context, mut batches, trigger } = source_harness("ebpf", 64);
    let telemetry = context.telemetry.clone();
    let source = Ebpf::build(config, &BuildContext::default()).unwrap();
    let running = tokio::spawn(Box::new(source).run(context));
    let mut all = Vec::new();
    let mut load = Some(load);
    let mut worker = None;
    while let Some(Batch::Switches(batch)) = batches.recv().await {
        let edge = batch.edge.is_some();
        all.push(batch);
        edges.0.fetch_add(usize::from(edge), SeqCst);
        if edge && worker.is_none() {
            let edges = edges.clone();
            worker = load.take().map(|load| tokio::task::spawn_blocking(move || load(edges)));
        } else if edge && worker.as_ref().is_some_and(|w| w.is_finished()) {
            trigger.fire();
        }
    }
    running.await.unwrap().unwrap();
    worker.unwrap().await.unwrap();
    let counts = telemetry
        .snapshot()
        .into_iter()
        .filter_map(|(id, registered)| match registered.instrument {
            Instrument::Counter(c) => Some((id.name, c.get())),
            Instrument::Gauge(_) => None,
        })
        .collect();
    (all, counts)
}

pub(super) fn config() -> EbpfConfig {
    EbpfConfig { window: ConfigDuration::from_millis(200), ..EbpfConfig::default() }
}

pub(super) fn counter(counts: &[(&'static str, u64)], name: &str) -> u64 {
    counts.iter().find(|(n, _)| *n == name).map(|(_, v)| *v).unwrap()
}

/// The promises of `SwitchBatch` that can be checked on any stream.
pub(super) fn check_promises(batches: &[Arc<SwitchBatch>]) {
    let mut last = std::collections::HashMap::new();
    let mut running = std::collections::HashMap::new();
    let (mut edge, mut newest) = (0, 0);
    for batch in batches {
        assert!(batch.live);
        if let Some(this) = batch.edge {
            assert!(this.ts.0 > edge);
            edge = this.ts.0;
            assert!(newest <= edge, "an entry of an earlier batch is {} ns later", newest - edge);
        }
        newest = batch.entries.iter().map(|e| e.ts.0).max().unwrap_or(0).max(newest);
        for (block, entries) in batch.iter_blocks() {
            if block.lost > 0 {
                running.remove(&block.cpu);
            }
            for entry in entries {
                let before = running.insert(block.cpu, entry.next).unwrap_or(entry.prev);
                assert_eq!(before, entry.prev, "a switch is missing on {:?}", block.cpu);
                let before = last.insert(block.cpu, entry.ts.0).unwrap_or(0);
                assert!(entry.ts.0 >= before, "time goes back on {:?}", block.cpu);
            }
        }
        // Entries later than the edge stand in its own batch only; none earlier come after.
        if let Some(this) = batch.edge {
            for ts in last.values_mut() {
                *ts = (*ts).max(this.ts.0);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn windows_close_and_streams_keep_their_promises() {
    let (batches, counts) = record_with(config(), |edges| {
        let load = std::thread::spawn(move || edges.wait(9));
        while !load.is_finished() {
            std::thread::sleep(Duration::from_micros(200));
        }
        load.join().unwrap();
    })
    .await;
    check_promises(&batches);
    let edges = batches.iter().filter(|b| b.edge.is_some()).count();
    assert!(edges >= 10, "{edges} edges");
    assert_eq!(counter(&counts, "wattpipe_source_lost_total"), 0);
    assert_eq!(counter(&counts, "wattpipe_source_malformed_total"), 0);
    let first = batches.iter().find(|b| b.edge.is_some()).unwrap();
    assert!(first.topology.is_some() && first.processes.len() > 5);
    let own = std::process::id();
    let seen = first.processes.iter().find(|e| e.process.pid.0 == own).unwrap();
    assert_eq!(seen.kind, ProcessEventKind::Snapshot);
    println!("{counts:?}");
}

pub(super) fn events(batches: &[Arc<SwitchBatch>]) -> impl Iterator<Item = &ProcessEvent> {
    batches.iter().flat_map(|b| &b.processes)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn short_processes_are_seen_by_name_before_their_first_switch() {
    const N: usize = 300;
    let (batches, counts) = record(config(), || {
        for _ in 0..N {
            assert!(Command::new("/bin/true").status().unwrap().success());
        }
    })
    .await;
    check_promises(&batches);
    let by_kind = |kind| {
        events(&batches)
            .filter(|e| e.kind == kind && e.process.comm.as_deref() == Some("true"))
            .map(|e| (e.process.pid, e.process.start_time))
            .collect::<Vec<_>>()
    };
    let (execs, exits) = (by_kind(ProcessEventKind::Exec), by_kind(ProcessEventKind::Exit));
    assert!(execs.len() >= N, "{} of {N} seen", execs.len());
    assert!(exits.len() >= N, "{} of {N} ends seen", exits.len());
    // Each was forked, and that was known by the batch that shows it running.
    let mut forked = std::collections::HashSet::new();
    for batch in &batches {
        for event in &batch.processes {
            if event.kind == ProcessEventKind::Fork {
                forked.insert((event.process.pid, event.process.start_time));
            }
        }
        for exec in &execs {
            let runs = batch.iter_blocks().any(|(_, es)| es.iter().any(|e| e.next == exec.0));
            assert!(!runs || forked.contains(exec), "{exec:?} ran before its fork");
        }
    }
    assert_eq!(counter(&counts, "wattpipe_source_life_cycle_lost_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn a_tiny_ring_counts_what_it_loses() {
    let config = EbpfConfig {
        ring_buffer_size: ConfigSize(4096),
        window: ConfigDuration::from_secs(1),
        ..EbpfConfig::default()
    };
    let (batches, counts) = record(config, || {
        let pairs: Vec<_> = (0..4).map(|_| std::thread::spawn(ping_pong)).collect();
        pairs.into_iter().for_each(|p| p.join().unwrap());
    })
    .await;
    check_promises(&batches);
    let lost: u64 = batches.iter().flat_map(|b| &b.blocks).map(|b| b.lost).sum();
    assert_eq!(lost, counter(&counts, "wattpipe_source_lost_total"));
    println!("{counts:?}");
}

/// Two threads that wake each other for two seconds.
fn ping_pong() {
    let (to, from) = std::sync::mpsc::sync_channel::<()>(0);
    let echo = std::thread::spawn(move || while from.recv().is_ok() {});
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        to.send(()).unwrap();
    }
    drop(to);
    echo.join().unwrap();
}
