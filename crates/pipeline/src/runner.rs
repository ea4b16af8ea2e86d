//! What moves batches: a thread per source, one thread for all processors, a thread per exporter,
//! bounded queues between them; and what keeps them going: restarts, reloads, draining.
//!
//! A live source never waits for an exporter: where an exporter's queue is full its copy of the
//! batch is dropped and counted, and everybody else goes on. A replayed stream waits instead,
//! since nothing is lost by being late.

mod apply;
mod backoff;
mod chain_thread;
mod exporter;
mod gate;
mod progress;
mod shed;
mod source;
mod supervise;
mod swap;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};

use figment::value::Value;
use tokio::sync::{mpsc, oneshot};

pub use apply::Applied;
pub(crate) use gate::Gate;
pub use progress::{LastWindow, Progress};

use crate::{
    batch::{Batch, Window},
    exporter::Exporter,
    privileges::Privileges,
    processor::Processor,
    registry::BuildError,
    shutdown::Shutdown,
    source::{Pace, Source, SourceError},
    telemetry::Telemetry,
};
use chain_thread::{Chain, Change};
use exporter::{ExporterSlot, Leaving};
use source::SourceSlot;

/// Batches that may wait between the sources and the chain.
const CHAIN_QUEUE: usize = 4;

/// Builds a component, as often as it has to be started.
pub type Make<T> = Arc<dyn Fn() -> Result<Box<T>, BuildError> + Send + Sync>;

/// A component of a graph.
pub struct Part<T: ?Sized> {
    /// Its id in the configuration.
    pub id: String,
    /// Everything it is made from. One that runs with an equal revision is left alone.
    pub revision: Value,
    /// Builds it.
    pub make: Make<T>,
}

impl<T: ?Sized> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self { id: self.id.clone(), revision: self.revision.clone(), make: self.make.clone() }
    }
}

/// One pipeline: which sources feed it, what it does, where it ends.
pub struct Pipeline {
    /// Its id in the configuration.
    pub id: String,
    /// Ids of [`Graph::sources`].
    pub sources: Vec<String>,
    /// Its own processors, in order.
    pub processors: Vec<Part<dyn Processor>>,
    /// Ids of [`Graph::exporters`].
    pub exporters: Vec<String>,
}

/// Everything that is to run. A source or exporter that several pipelines name is here once.
#[derive(Default)]
pub struct Graph {
    /// All sources.
    pub sources: Vec<Part<dyn Source>>,
    /// All pipelines.
    pub pipelines: Vec<Pipeline>,
    /// All exporters.
    pub exporters: Vec<Part<dyn Exporter>>,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All input was read, or shutdown was asked for, and everything drained.
    Done,
    /// Standard output was closed by its reader: the end, and no error.
    ReaderGone,
    /// A component failed for good.
    Failed(String),
    /// A source cannot work on this host or with these rights.
    Unavailable(String),
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// What a window may take on, as the agent's limits stand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Rows that leave with it; the rest is folded into one.
    pub max_rows: Option<usize>,
    /// Windows that may wait for an exporter.
    pub max_waiting: Option<usize>,
}

/// Watches what the agent itself uses. Asked on the chain's thread with each window, so that it
/// needs no timer.
pub trait Governor: Send + Sync {
    /// A window is complete.
    fn window(&self, window: &Window) -> Limits;
}

/// What a runner needs besides the graph.
#[derive(Clone, Default)]
pub struct Options {
    /// Where everything counts.
    pub telemetry: Telemetry,
    /// How long draining may take.
    pub shutdown_timeout: Duration,
    /// What sources and exporters start with.
    pub privileges: Privileges,
    /// What live sources stretch their windows by.
    pub pace: Pace,
    /// Limits on what the agent itself uses.
    pub governor: Option<Arc<dyn Governor>>,
}

/// What travels to the chain's thread.
pub(crate) enum Message {
    /// A batch of the source with this number.
    Batch { source: usize, batch: Batch },
    /// Another layout.
    Change(Box<Change>),
    /// Drain and end.
    Stop,
}

/// What the threads tell the runner.
pub(crate) enum Event {
    SourceEnded { number: usize, generation: u64, result: Result<(), SourceError> },
    ReaderGone,
    ExporterFailed { id: String, generation: u64, reason: String },
    ExporterPanicked { id: String, generation: u64, reason: String },
    ChainEnded(Result<(), String>),
}

/// A running graph.
pub struct Runner {
    options: Options,
    progress: Arc<Progress>,
    sources: Vec<SourceSlot>,
    exporters: BTreeMap<String, ExporterSlot>,
    /// Exporters that a reload took out, while they send what they hold.
    leaving: Vec<Leaving>,
    /// `(pipeline, processor)` to the revision that the chain has.
    processors: BTreeMap<(String, String), Value>,
    chain: mpsc::Sender<Message>,
    chain_done: oneshot::Receiver<()>,
    events: mpsc::Receiver<Event>,
    /// Events that came while something else was awaited.
    deferred: std::collections::VecDeque<Event>,
    source_shared: source::Shared,
    exporter_shared: exporter::Shared,
    next_number: usize,
    next_generation: u64,
    outcome: Option<Outcome>,
}

impl Runner {
    /// Starts `graph`: exporters first, then the chain, then the sources.
    pub async fn start(graph: Graph, options: Options) -> Result<Self, StartError> {
        let progress = Arc::new(Progress::default());
        let (events_tx, events) = mpsc::channel(64);
        let (chain_tx, chain_rx) = mpsc::channel(CHAIN_QUEUE);
        let (chain_done_tx, chain_done) = oneshot::channel();
        let chain = Chain::new(
            options.telemetry.clone(),
            progress.stage("chain".to_owned()),
            options.governor.clone(),
        );
        let (chain_events, privileges) = (events_tx.clone(), options.privileges.clone());
        thread::Builder::new()
            .name("chain".into())
            .spawn(move || {
                privileges.lower_inherited();
                let result = chain.run(chain_rx);
                let _ = chain_events.blocking_send(Event::ChainEnded(result));
                let _ = chain_done_tx.send(());
            })
            .map_err(|e| StartError(format!("cannot start the chain's thread: {e}")))?;
        let mut runner = Self {
            source_shared: source::Shared {
                telemetry: options.telemetry.clone(),
                privileges: options.privileges.clone(),
                pace: options.pace.clone(),
                chain: chain_tx.clone(),
                events: events_tx.clone(),
            },
            exporter_shared: exporter::Shared {
                telemetry: options.telemetry.clone(),
                progress: progress.clone(),
                privileges: options.privileges.clone(),
                events: events_tx,
                timeout: options.shutdown_timeout,
            },
            options,
            progress,
            sources: Vec::new(),
            exporters: BTreeMap::new(),
            leaving: Vec::new(),
            processors: BTreeMap::new(),
            chain: chain_tx,
            chain_done,
            events,
            deferred: Default::default(),
            next_number: 0,
            next_generation: 0,
            outcome: None,
        };
        match runner.apply(graph).await {
            Ok(_) => Ok(runner),
            Err(reason) => {
                runner.drain().await;
                Err(StartError(reason))
            }
        }
    }

    /// What the pipelines achieve.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Whether it ended because a source cannot work here.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Unavailable(_)))
    }

    /// Waits until each source has had something to send.
    pub fn working(&self) -> impl Future<Output = ()> + use<> {
        let gates: Vec<_> = self.sources.iter().filter_map(SourceSlot::gate).collect();
        async move {
            for gate in gates {
                gate.wait_arrived().await;
            }
        }
    }

    /// How long draining may take from now on.
    pub fn set_shutdown_timeout(&mut self, timeout: Duration) {
        self.options.shutdown_timeout = timeout;
        self.exporter_shared.timeout = timeout;
    }
}

/// Runs `graph` until its sources end, `shutdown` triggers or a component fails for good, then
/// drains: sources first, each stage into the next, exporters within the timeout.
pub async fn run(graph: Graph, mut shutdown: Shutdown, options: Options) -> Outcome {
    let mut runner = match Runner::start(graph, options).await {
        Ok(runner) => runner,
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = runner.supervise() => {}
    }
    runner.drain().await
}

/// Hands out the batch inside an `Arc` for changing: free where nobody shares it.
pub fn own<T: Clone>(shared: Arc<T>) -> T {
    Arc::unwrap_or_clone(shared)
}
