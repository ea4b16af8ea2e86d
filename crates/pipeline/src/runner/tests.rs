//! Running, restarting, reloading and draining with components made for it: a source that counts
//! windows, an exporter that keeps them.

mod leaving;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::*;
use crate::{
    batch::{Edge, State, SwitchBatch, UsageBatch, UsageRow},
    exporter::ExportError,
    processor::ProcessorError,
    source::SourceContext,
    units::Nanos,
};

/// Ends of the windows that arrived, in order.
type Seen = Arc<Mutex<Vec<u64>>>;

/// A source of empty windows that end at 1, 2, 3, ...; the count goes on over restarts.
#[derive(Clone)]
struct Ticker {
    next: Arc<AtomicU64>,
    /// It ends after this window.
    last: u64,
    /// It fails before this window, once.
    fails_at: Arc<AtomicU64>,
    starts: Arc<AtomicU32>,
    /// It never works.
    broken: Option<fn() -> SourceError>,
    /// Its windows are dropped where a queue is full, rather than waited for.
    live: bool,
}

impl Ticker {
    fn to(last: u64) -> Self {
        Self {
            next: Arc::new(AtomicU64::new(1)),
            last,
            fails_at: Arc::new(AtomicU64::new(0)),
            starts: Arc::default(),
            broken: None,
            live: false,
        }
    }
}

#[async_trait]
impl Source for Ticker {
    async fn run(self: Box<Self>, mut context: SourceContext) -> Result<(), SourceError> {
        if let Some(broken) = self.broken {
            return Err(broken());
        }
        self.starts.fetch_add(1, SeqCst);
        while !context.shutdown.is_triggered() {
            let end = self.next.load(SeqCst);
            if end > self.last {
                return Ok(());
            }
            if self.fails_at.compare_exchange(end, 0, SeqCst, SeqCst).is_ok() {
                return Err(SourceError::Failed { what: "torn".into(), source: None });
            }
            let window = Window { end: Nanos(end), ..Window::default() };
            let batch = UsageBatch {
                window,
                rows: vec![row()],
                zones: vec![],
                readings: vec![],
                slices: vec![],
                live: self.live,
            };
            if context.out.send(Batch::Usage(Arc::new(batch))).await.is_err() {
                return Ok(());
            }
            self.next.fetch_add(1, SeqCst);
            tokio::select! {
                () = context.shutdown.wait() => {}
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        Ok(())
    }
}

fn row() -> UsageRow {
    UsageRow {
        process: None,
        attributes: Arc::default(),
        state: State::Running,
        cpu: Nanos(1),
        cycles: None,
        switches: Some(1),
        energy: Default::default(),
        confidence: None,
    }
}

/// Keeps what it gets.
#[derive(Clone)]
struct Keeper {
    seen: Seen,
    start: Result<(), &'static str>,
    closes_at: u64,
    panics_at: Arc<AtomicU64>,
}

impl Keeper {
    fn new(seen: &Seen) -> Self {
        Self { seen: seen.clone(), start: Ok(()), closes_at: u64::MAX, panics_at: Arc::default() }
    }
}

#[async_trait]
impl Exporter for Keeper {
    async fn start(&mut self) -> Result<(), ExportError> {
        self.start.map_err(|e| ExportError::Fatal(e.to_owned()))
    }
    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let Batch::Usage(usage) = batch else { return Ok(()) };
        let end = usage.window.end.0;
        assert!(self.panics_at.compare_exchange(end, 0, SeqCst, SeqCst).is_err(), "on purpose");
        self.seen.lock().unwrap().push(end);
        if end >= self.closes_at { Err(ExportError::Closed) } else { Ok(()) }
    }
}

/// Passes on; panics on one window; gives a window with end 1000 when it is flushed.
#[derive(Clone, Default)]
struct Step {
    panics_at: u64,
    flushes: bool,
}

impl Processor for Step {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        if let Batch::Usage(usage) = &batch {
            assert_ne!(usage.window.end.0, self.panics_at, "on purpose");
        }
        Ok(Some(batch))
    }
    fn flush(&mut self) -> Result<Option<Batch>, ProcessorError> {
        if !self.flushes {
            return Ok(None);
        }
        let window = Window { end: Nanos(1000), ..Window::default() };
        let (rows, zones, readings, slices) = (vec![], vec![], vec![], vec![]);
        let usage = UsageBatch { window, rows, zones, readings, slices, live: true };
        Ok(Some(Batch::Usage(Arc::new(usage))))
    }
}

fn graph(ticker: &Ticker, step: (u32, Step), keeper: (u32, Keeper)) -> Graph {
    let ticker = ticker.clone();
    let source: Part<dyn Source> = Part {
        id: "ticker".into(),
        revision: Value::from(ticker.last),
        make: Arc::new(move || Ok(Box::new(ticker.clone()))),
    };
    let processor: Part<dyn Processor> = Part {
        id: "step".into(),
        revision: Value::from(step.0),
        make: Arc::new(move || Ok(Box::new(step.1.clone()))),
    };
    let exporter: Part<dyn Exporter> = Part {
        id: "keeper".into(),
        revision: Value::from(keeper.0),
        make: Arc::new(move || Ok(Box::new(keeper.1.clone()))),
    };
    let pipeline = Pipeline {
        id: "p".into(),
        sources: vec!["ticker".into()],
        processors: vec![processor],
        exporters: vec!["keeper".into()],
    };
    Graph { sources: vec![source], pipelines: vec![pipeline], exporters: vec![exporter] }
}

fn options() -> Options {
    Options { shutdown_timeout: Duration::from_secs(5), ..Options::default() }
}

async fn run_to_end(graph: Graph) -> (Outcome, Telemetry) {
    let (_trigger, shutdown) = crate::shutdown::channel();
    let options = options();
    let telemetry = options.telemetry.clone();
    (run(graph, shutdown, options).await, telemetry)
}

async fn wait_for(seen: &Seen, count: usize) {
    let begin = std::time::Instant::now();
    while seen.lock().unwrap().len() < count {
        assert!(begin.elapsed() < Duration::from_secs(120), "no {count} windows come");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn everything_arrives_in_order_and_flushes_drain() {
    let seen = Seen::default();
    let step = Step { flushes: true, ..Step::default() };
    let graph = graph(&Ticker::to(5), (0, step), (0, Keeper::new(&seen)));
    assert_eq!(run_to_end(graph).await.0, Outcome::Done);
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3, 4, 5, 1000]);
}

#[tokio::test]
async fn a_reader_that_goes_ends_the_run_quietly() {
    let seen = Seen::default();
    let keeper = Keeper { closes_at: 3, ..Keeper::new(&seen) };
    let graph = graph(&Ticker::to(u64::MAX), (0, Step::default()), (0, keeper));
    assert_eq!(run_to_end(graph).await.0, Outcome::ReaderGone);
}

#[tokio::test]
async fn what_cannot_start_fails_the_run_with_its_reason() {
    let seen = Seen::default();
    let keeper = Keeper { start: Err("no room"), ..Keeper::new(&seen) };
    let graph_ = graph(&Ticker::to(3), (0, Step::default()), (0, keeper));
    assert_eq!(run_to_end(graph_).await.0, Outcome::Failed("exporter `keeper`: no room".into()));
    let ticker = Ticker::to(3);
    ticker.fails_at.store(1, SeqCst);
    let graph = graph(&ticker, (0, Step::default()), (0, Keeper::new(&seen)));
    assert_eq!(run_to_end(graph).await.0, Outcome::Failed("source `ticker`: torn".into()));
}

#[tokio::test]
async fn a_source_that_fails_later_is_started_again() {
    let seen = Seen::default();
    let ticker = Ticker::to(6);
    ticker.fails_at.store(4, SeqCst);
    let graph = graph(&ticker, (0, Step::default()), (0, Keeper::new(&seen)));
    let (outcome, telemetry) = run_to_end(graph).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3, 4, 5, 6]);
    let restarts = telemetry.counter(
        "wattpipe_component_restarts_total",
        "",
        &[("kind", "source"), ("id", "ticker")],
    );
    assert_eq!(restarts.get(), 1);
}

#[tokio::test]
async fn panics_cost_a_window_and_not_the_agent() {
    let seen = Seen::default();
    let keeper = Keeper::new(&seen);
    keeper.panics_at.store(4, SeqCst);
    let step = Step { panics_at: 2, ..Step::default() };
    let graph = graph(&Ticker::to(6), (0, step), (0, keeper));
    // The source ends meanwhile: the exporter is started again to take what its queue has kept.
    let (outcome, telemetry) = run_to_end(graph).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(*seen.lock().unwrap(), [1, 3, 5, 6]);
    assert_eq!(lost(&telemetry, "keeper"), 1, "the row that it panicked on");
}

#[tokio::test]
async fn a_reload_touches_only_what_changed_and_loses_no_window() {
    let seen = Seen::default();
    let ticker = Ticker::to(u64::MAX);
    let with = |step: u32, keeper: u32| {
        graph(&ticker, (step, Step::default()), (keeper, Keeper::new(&seen)))
    };
    let mut runner = Runner::start(with(0, 0), options()).await.unwrap();
    for round in 1..=20 {
        wait_for(&seen, 5 * round).await;
        let round = u32::try_from(round).unwrap();
        let applied = runner.apply(with(round / 2, round / 3)).await.unwrap();
        let step = (round % 2 == 0).then_some("step");
        let keeper = (round % 3 == 0).then_some("keeper");
        let expected: Vec<&str> = step.into_iter().chain(keeper).collect();
        assert_eq!(applied.started, expected, "round {round}");
    }
    assert_eq!(runner.drain().await, Outcome::Done);
    let seen = seen.lock().unwrap();
    let all: Vec<u64> = (1..=seen.len() as u64).collect();
    assert_eq!(*seen, all, "each window once, in order");
    assert_eq!(ticker.starts.load(SeqCst), 1, "the source never stopped");
}

#[tokio::test]
async fn a_reload_that_fails_leaves_everything_running() {
    let seen = Seen::default();
    let ticker = Ticker::to(u64::MAX);
    let first = graph(&ticker, (0, Step::default()), (0, Keeper::new(&seen)));
    let mut runner = Runner::start(first, options()).await.unwrap();
    wait_for(&seen, 3).await;

    let keeper = Keeper { start: Err("port taken"), ..Keeper::new(&seen) };
    let bad = graph(&ticker, (1, Step::default()), (1, keeper));
    let reason = runner.apply(bad).await.unwrap_err();
    assert_eq!(reason, "exporter `keeper`: port taken");
    let count = seen.lock().unwrap().len();
    wait_for(&seen, count + 20).await;

    // A source that this host does not allow: the one that runs is not even stopped.
    let unavailable =
        || SourceError::Unavailable { what: "no rights".into(), remedy: "get some".into() };
    let broken = Ticker { broken: Some(unavailable), ..Ticker::to(1) };
    let bad = graph(&broken, (0, Step::default()), (0, Keeper::new(&seen)));
    let reason = runner.apply(bad).await.unwrap_err();
    assert_eq!(reason, "source `ticker`: no rights\n  get some");
    assert_eq!(ticker.starts.load(SeqCst), 1);

    // A source that fails otherwise: what ran before is put back.
    let torn = || SourceError::Failed { what: "torn".into(), source: None };
    let broken = Ticker { broken: Some(torn), ..Ticker::to(2) };
    let bad = graph(&broken, (0, Step::default()), (0, Keeper::new(&seen)));
    let reason = runner.apply(bad).await.unwrap_err();
    assert_eq!(reason, "source `ticker`: torn");
    let count = seen.lock().unwrap().len();
    wait_for(&seen, count + 20).await;
    assert_eq!(ticker.starts.load(SeqCst), 2);
    assert_eq!(runner.drain().await, Outcome::Done);
    let seen = seen.lock().unwrap();
    assert_eq!(*seen, (1..=seen.len() as u64).collect::<Vec<_>>());
}

/// Never comes back from its first window until it is let go.
struct Sticky(Arc<tokio::sync::Notify>);

#[async_trait]
impl Exporter for Sticky {
    async fn export(&mut self, _: Batch) -> Result<(), ExportError> {
        self.0.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_stuck_stage_is_named_and_holds_up_nobody() {
    let (seen, go) = (Seen::default(), Arc::new(tokio::sync::Notify::new()));
    let ticker = Ticker { live: true, ..Ticker::to(u64::MAX) };
    let mut graph = graph(&ticker, (0, Step::default()), (0, Keeper::new(&seen)));
    let release = go.clone();
    graph.exporters.push(Part {
        id: "sticky".into(),
        revision: Value::from(0),
        make: Arc::new(move || Ok(Box::new(Sticky(go.clone())))),
    });
    graph.pipelines[0].exporters.push("sticky".into());
    let runner = Runner::start(graph, options()).await.unwrap();
    // Far more windows than the stuck exporter's queue holds.
    wait_for(&seen, 60).await;
    // Others may be found in the middle of a window where this machine is slow, but not for ever.
    let progress = runner.progress();
    let only_sticky = || {
        let stuck = progress.stuck(Duration::from_millis(20));
        stuck.len() == 1 && stuck[0].0 == "exporter `sticky`"
    };
    let mut looks = 0;
    while !only_sticky() {
        looks += 1;
        assert!(looks < 6000, "{:?}", progress.stuck(Duration::from_millis(20)));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::spawn(async move {
        loop {
            release.notify_one();
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(runner.drain().await, Outcome::Done);
}

/// Rows that an exporter gave up on, or that found its queue full.
fn lost(telemetry: &Telemetry, exporter: &str) -> u64 {
    let count = |name| telemetry.counter(name, "", &[("exporter", exporter)]).get();
    count("wattpipe_exporter_send_failed_points_total")
        + count("wattpipe_exporter_enqueue_failed_points_total")
}

#[tokio::test]
async fn what_a_stuck_exporter_has_not_taken_is_counted_and_costs_others_nothing() {
    let seen = Seen::default();
    let ticker = Ticker { live: true, ..Ticker::to(u64::MAX) };
    let mut graph = graph(&ticker, (0, Step::default()), (0, Keeper::new(&seen)));
    graph.exporters.push(Part {
        // Before the other one in every order by name.
        id: "a".into(),
        revision: Value::from(0),
        make: Arc::new(|| Ok(Box::new(Sticky(Arc::default())))),
    });
    graph.pipelines[0].exporters.push("a".into());
    let options = Options { shutdown_timeout: Duration::from_millis(100), ..Options::default() };
    let telemetry = options.telemetry.clone();
    let runner = Runner::start(graph, options).await.unwrap();
    wait_for(&seen, 40).await;
    assert_eq!(runner.drain().await, Outcome::Done);
    let sent = ticker.next.load(SeqCst) - 1;
    assert_eq!(seen.lock().unwrap().len() as u64 + lost(&telemetry, "keeper"), sent);
    assert_eq!(lost(&telemetry, "a"), sent);
}

#[tokio::test]
async fn a_source_that_has_ended_needs_no_waiting_to_be_stopped() {
    let seen = Seen::default();
    let graph = graph(&Ticker::to(1), (0, Step::default()), (0, Keeper::new(&seen)));
    let mut runner = Runner::start(graph, options()).await.unwrap();
    let number = runner.sources[0].number;
    // It ends while something else is awaited.
    while runner.deferred.is_empty() {
        let event = runner.events.recv().await.unwrap();
        runner.deferred.push_back(event);
    }
    assert!(runner.stop_source(number).await);
    runner.drain().await;
}

#[test]
fn a_window_of_switches_has_no_length_of_its_own() {
    let edge = Some(Edge { ts: Nanos(500) });
    let batch = Batch::Switches(Arc::new(SwitchBatch { edge, ..SwitchBatch::default() }));
    let window = progress::window_of(&batch).unwrap();
    assert_eq!((window.end, window.duration()), (Nanos(500), Nanos(0)));
}

#[tokio::test]
async fn progress_is_what_exporters_took() {
    let seen = Seen::default();
    let graph = graph(&Ticker::to(3), (0, Step::default()), (0, Keeper::new(&seen)));
    let mut runner = Runner::start(graph, options()).await.unwrap();
    let progress = runner.progress();
    runner.supervise().await;
    runner.drain().await;
    assert_eq!(progress.exported(), 3);
    assert_eq!(progress.last().map(|l| l.window.end), Some(Nanos(3)));
    assert_eq!(progress.stuck(Duration::ZERO), []);
}
