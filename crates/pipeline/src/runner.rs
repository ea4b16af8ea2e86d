//! What moves batches: one task per source, one thread for all processors, one thread per
//! exporter, bounded channels between them.
//!
//! A live source never waits for an exporter: where an exporter's queue is full its copy of the
//! batch is dropped and counted, and everybody else goes on. A replayed stream waits instead,
//! since nothing is lost by being late.

use std::{sync::Arc, thread, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tracing::{debug, error, warn};

use crate::{
    batch::Batch,
    exporter::{ExportError, Exporter},
    processor::Processor,
    shutdown::{self, Shutdown},
    source::{BatchSender, Source, SourceContext, SourceError},
    telemetry::{Counter, Gauge, Telemetry},
};

/// Batches that may wait between the sources and the chain.
const CHAIN_QUEUE: usize = 4;
/// Windows that may wait for one exporter.
const EXPORT_QUEUE: usize = 16;

/// A source by its id.
pub struct NamedSource {
    /// Its id in the configuration.
    pub id: String,
    /// The source.
    pub source: Box<dyn Source>,
}

/// A processor by its id.
pub struct NamedProcessor {
    /// Its id in the configuration.
    pub id: String,
    /// The processor.
    pub processor: Box<dyn Processor>,
}

/// An exporter by its id.
pub struct NamedExporter {
    /// Its id in the configuration.
    pub id: String,
    /// The exporter.
    pub exporter: Box<dyn Exporter>,
}

/// One pipeline: which sources feed it, what it does, where it ends.
pub struct Pipeline {
    /// Its id in the configuration.
    pub id: String,
    /// Indices into [`Graph::sources`].
    pub sources: Vec<usize>,
    /// Its own processors, in order.
    pub processors: Vec<NamedProcessor>,
    /// Indices into [`Graph::exporters`].
    pub exporters: Vec<usize>,
}

/// Everything that runs. A source or exporter that several pipelines name is here once.
pub struct Graph {
    /// All sources.
    pub sources: Vec<NamedSource>,
    /// All pipelines.
    pub pipelines: Vec<Pipeline>,
    /// All exporters.
    pub exporters: Vec<NamedExporter>,
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// All input was read, or shutdown was asked for, and everything drained.
    Done,
    /// Standard output was closed by its reader: the end, and no error.
    ReaderGone,
    /// A component failed for good.
    Failed(String),
}

/// What travels to the chain's thread.
#[derive(Debug)]
pub enum Message {
    /// A batch of the source with this index.
    Batch {
        /// Index into [`Graph::sources`].
        source: usize,
        /// The batch.
        batch: Batch,
    },
}

enum Event {
    SourceEnded { id: String, result: Result<(), SourceError> },
    ReaderGone,
    ExporterFailed { id: String, reason: String },
}

/// Runs `graph` until its sources end, `shutdown` triggers or a component fails for good, then
/// drains: sources first, each stage into the next, exporters within `timeout`.
pub async fn run(
    graph: Graph,
    mut shutdown: Shutdown,
    telemetry: Telemetry,
    timeout: Duration,
) -> Outcome {
    let (events_tx, mut events) = mpsc::channel::<Event>(64);
    let mut outlets = Vec::new();
    let mut workers = Vec::new();
    for named in graph.exporters {
        match spawn_exporter(named, &telemetry, events_tx.clone(), timeout).await {
            Ok((outlet, done)) => {
                outlets.push(outlet);
                workers.push(done);
            }
            Err(reason) => return Outcome::Failed(reason),
        }
    }

    let (tx, rx) = mpsc::channel(CHAIN_QUEUE);
    let chain = Chain {
        pipelines: graph
            .pipelines
            .into_iter()
            .map(|p| RunningPipeline::new(p, &telemetry))
            .collect(),
        outlets,
    };
    let (chain_done_tx, chain_done) = oneshot::channel();
    if let Err(e) = thread::Builder::new().name("chain".into()).spawn(move || {
        chain.run(rx);
        let _ = chain_done_tx.send(());
    }) {
        return Outcome::Failed(format!("cannot start the chain's thread: {e}"));
    }

    let (stop_sources, source_shutdown) = shutdown::channel();
    let mut running = graph.sources.len();
    for (index, named) in graph.sources.into_iter().enumerate() {
        let context = SourceContext {
            id: named.id.clone(),
            out: BatchSender { source: index, tx: tx.clone() },
            shutdown: source_shutdown.clone(),
            telemetry: telemetry.clone(),
        };
        let events = events_tx.clone();
        tokio::spawn(async move {
            // A panic in a source must not look like its quiet end.
            let task = tokio::spawn(named.source.run(context));
            let result =
                task.await.unwrap_or_else(|e| Err(SourceError::failed("the source panicked", e)));
            let _ = events.send(Event::SourceEnded { id: named.id, result }).await;
        });
    }
    drop(tx);
    drop(events_tx);

    let mut outcome = Outcome::Done;
    let mut stopping = false;
    while running > 0 {
        tokio::select! {
            () = shutdown.wait(), if !stopping => {
                stopping = true;
                stop_sources.fire();
            }
            event = events.recv() => match event {
                Some(Event::SourceEnded { id, result }) => {
                    running -= 1;
                    match result {
                        Ok(()) => debug!(source = %id, "source ended"),
                        Err(e) => {
                            error!(source = %id, "{e}");
                            outcome = Outcome::Failed(format!("source `{id}`: {}", with_causes(&e)));
                            stop_sources.fire();
                        }
                    }
                }
                Some(Event::ReaderGone) => {
                    if matches!(outcome, Outcome::Done) {
                        outcome = Outcome::ReaderGone;
                    }
                    stop_sources.fire();
                }
                Some(Event::ExporterFailed { id, reason }) => {
                    outcome = Outcome::Failed(format!("exporter `{id}`: {reason}"));
                    stop_sources.fire();
                }
                None => break,
            },
        }
    }

    let drained = async {
        let _ = chain_done.await;
        for done in workers {
            let _ = done.await;
        }
    };
    if tokio::time::timeout(timeout + Duration::from_secs(1), drained).await.is_err() {
        warn!(timeout = ?timeout, "not everything drained within service::shutdown_timeout; the rest is lost");
    }
    while let Ok(event) = events.try_recv() {
        match event {
            Event::ReaderGone if matches!(outcome, Outcome::Done) => outcome = Outcome::ReaderGone,
            Event::ExporterFailed { id, reason } if matches!(outcome, Outcome::Done) => {
                outcome = Outcome::Failed(format!("exporter `{id}`: {reason}"));
            }
            _ => {}
        }
    }
    outcome
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        text.push_str(": ");
        text.push_str(&c.to_string());
        cause = c.source();
    }
    text
}

/// The chain's end of an exporter's queue.
struct Outlet {
    id: String,
    tx: mpsc::Sender<Batch>,
    refused: Counter,
    queued: Gauge,
    full: bool,
}

impl Outlet {
    fn send(&mut self, batch: Batch) {
        let (live, items) = (is_live(&batch), batch.items());
        if !live {
            // An exporter that has ended reports that itself.
            let _ = self.tx.blocking_send(batch);
            return;
        }
        match self.tx.try_send(batch) {
            Ok(()) => self.full = false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.refused.add(items);
                if !std::mem::replace(&mut self.full, true) {
                    warn!(exporter = %self.id, "the exporter is slower than its input: windows are dropped and counted in wattpipe_exporter_enqueue_failed_points_total");
                }
            }
            Err(mpsc::error::TrySendError::Closed(_)) => self.refused.add(items),
        }
        self.queued.set((EXPORT_QUEUE - self.tx.capacity().min(EXPORT_QUEUE)) as f64);
    }
}

fn is_live(batch: &Batch) -> bool {
    match batch {
        Batch::Switches(b) => b.live,
        Batch::Usage(b) => b.live,
    }
}

async fn spawn_exporter(
    named: NamedExporter,
    telemetry: &Telemetry,
    events: mpsc::Sender<Event>,
    timeout: Duration,
) -> Result<(Outlet, oneshot::Receiver<()>), String> {
    let NamedExporter { id, mut exporter } = named;
    let (tx, mut rx) = mpsc::channel::<Batch>(EXPORT_QUEUE);
    let (started_tx, started) = oneshot::channel();
    let (done_tx, done) = oneshot::channel();
    let labels: &[(&'static str, &str)] = &[("exporter", id.as_str())];
    let failed = telemetry.counter(
        "wattpipe_exporter_send_failed_points_total",
        "Points that an exporter gave up on.",
        labels,
    );
    let outlet = Outlet {
        id: id.clone(),
        tx,
        refused: telemetry.counter(
            "wattpipe_exporter_enqueue_failed_points_total",
            "Points that found an exporter's queue full.",
            labels,
        ),
        queued: telemetry.gauge(
            "wattpipe_exporter_inbox_size",
            "Windows that wait for an exporter.",
            labels,
        ),
        full: false,
    };
    let runtime = Handle::current();
    let name = format!("export/{id}");
    let thread_id = id.clone();
    thread::Builder::new()
        .name(name.chars().take(15).collect())
        .spawn(move || {
            let id = thread_id;
            runtime.block_on(async move {
                let start = exporter.start().await;
                let ok = start.is_ok();
                let _ = started_tx.send(start);
                if !ok {
                    return;
                }
                while let Some(batch) = rx.recv().await {
                    match exporter.export(batch).await {
                        Ok(()) => {}
                        Err(ExportError::Closed) => {
                            let _ = events.send(Event::ReaderGone).await;
                            break;
                        }
                        Err(ExportError::Failed { what, dropped }) => {
                            failed.add(dropped);
                            warn!(exporter = %id, dropped, "{what}");
                        }
                        Err(ExportError::Fatal(reason)) => {
                            let _ =
                                events.send(Event::ExporterFailed { id: id.clone(), reason }).await;
                            break;
                        }
                    }
                }
                rx.close();
                match exporter.shutdown(timeout).await {
                    Ok(()) | Err(ExportError::Closed) => {}
                    Err(e) => warn!(exporter = %id, "while shutting down: {e}"),
                }
            });
            let _ = done_tx.send(());
        })
        .map_err(|e| format!("exporter `{id}`: cannot start its thread: {e}"))?;
    match started.await {
        Ok(Ok(())) => Ok((outlet, done)),
        Ok(Err(e)) => Err(format!("exporter `{id}`: {e}")),
        Err(_) => Err(format!("exporter `{id}`: panicked while starting")),
    }
}

struct RunningProcessor {
    id: String,
    processor: Box<dyn Processor>,
    incoming: Counter,
    outgoing: Counter,
    failed: Counter,
}

struct RunningPipeline {
    sources: Vec<usize>,
    processors: Vec<RunningProcessor>,
    exporters: Vec<usize>,
}

impl RunningPipeline {
    fn new(pipeline: Pipeline, telemetry: &Telemetry) -> Self {
        let processors = pipeline
            .processors
            .into_iter()
            .map(|NamedProcessor { id, processor }| {
                let labels = [("processor", id.as_str()), ("pipeline", pipeline.id.as_str())];
                RunningProcessor {
                    incoming: telemetry.counter(
                        "wattpipe_processor_incoming_items_total",
                        "Switches or rows that a processor was given.",
                        &labels,
                    ),
                    outgoing: telemetry.counter(
                        "wattpipe_processor_outgoing_items_total",
                        "Switches or rows that a processor passed on.",
                        &labels,
                    ),
                    failed: telemetry.counter(
                        "wattpipe_processor_failed_items_total",
                        "Switches or rows that a processor could not process.",
                        &labels,
                    ),
                    id,
                    processor,
                }
            })
            .collect();
        Self { sources: pipeline.sources, processors, exporters: pipeline.exporters }
    }

    /// Takes `batch` through the processors from `first` on.
    fn process(&mut self, first: usize, batch: Batch) -> Option<Batch> {
        let mut batch = batch;
        for step in &mut self.processors[first..] {
            let items = batch.items();
            step.incoming.add(items);
            match step.processor.process(batch) {
                Ok(Some(next)) => {
                    step.outgoing.add(next.items());
                    batch = next;
                }
                Ok(None) => return None,
                Err(e) => {
                    step.failed.add(items);
                    error!(processor = %step.id, "batch dropped: {e}");
                    return None;
                }
            }
        }
        Some(batch)
    }
}

/// The state of the chain's thread.
struct Chain {
    pipelines: Vec<RunningPipeline>,
    outlets: Vec<Outlet>,
}

impl Chain {
    fn run(mut self, mut rx: mpsc::Receiver<Message>) {
        for pipeline in &mut self.pipelines {
            for step in &mut pipeline.processors {
                if let Err(e) = step.processor.start() {
                    error!(processor = %step.id, "{e}");
                }
            }
        }
        while let Some(Message::Batch { source, batch }) = rx.blocking_recv() {
            for at in 0..self.pipelines.len() {
                if self.pipelines[at].sources.contains(&source) {
                    let out = self.pipelines[at].process(0, batch.clone());
                    self.fan_out(at, out);
                }
            }
        }
        for at in 0..self.pipelines.len() {
            for step in 0..self.pipelines[at].processors.len() {
                let out = match self.pipelines[at].processors[step].processor.flush() {
                    Ok(Some(batch)) => self.pipelines[at].process(step + 1, batch),
                    Ok(None) => None,
                    Err(e) => {
                        error!(processor = %self.pipelines[at].processors[step].id, "flush: {e}");
                        None
                    }
                };
                self.fan_out(at, out);
            }
        }
    }

    fn fan_out(&mut self, pipeline: usize, batch: Option<Batch>) {
        let Some(batch) = batch else { return };
        for &exporter in &self.pipelines[pipeline].exporters {
            self.outlets[exporter].send(batch.clone());
        }
    }
}

/// Hands out the batch inside an `Arc` for changing: free where nobody shares it.
pub fn own<T: Clone>(shared: Arc<T>) -> T {
    Arc::unwrap_or_clone(shared)
}
