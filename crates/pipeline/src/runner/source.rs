//! Sources at run time: one thread each, restarted with back-off when they fail.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::mpsc};

use super::{Event, Message, Part, backoff::Backoff, gate::Gate};
use crate::{
    privileges::Privileges,
    shutdown::{self, Trigger},
    source::{BatchSender, Pace, Source, SourceContext, SourceError},
    telemetry::Telemetry,
};

/// A source and what it is doing.
pub(super) struct SourceSlot {
    pub(super) part: Part<dyn Source>,
    /// What the chain knows it by; it stays when the source is restarted or reconfigured.
    pub(super) number: usize,
    pub(super) state: State,
    pub(super) backoff: Backoff,
}

impl SourceSlot {
    /// The gate of its running incarnation.
    pub(super) fn gate(&self) -> Option<Arc<Gate>> {
        match &self.state {
            State::Running(incarnation) => Some(incarnation.gate.clone()),
            State::Waiting(_) | State::Ended => None,
        }
    }
}

/// See [`SourceSlot::state`].
pub(super) enum State {
    /// It runs, as this incarnation.
    Running(Incarnation),
    /// It failed and is started again at this time.
    Waiting(Instant),
    /// Its input has ended.
    Ended,
}

/// One run of a source.
pub(super) struct Incarnation {
    pub(super) generation: u64,
    pub(super) stop: Trigger,
    pub(super) gate: Arc<Gate>,
}

/// What every source's thread is given.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) telemetry: Telemetry,
    pub(super) privileges: Privileges,
    pub(super) pace: Pace,
    pub(super) chain: mpsc::Sender<Message>,
    pub(super) events: mpsc::Sender<Event>,
}

/// Starts `source` on a thread of its own.
pub(super) fn start(
    source: Box<dyn Source>,
    id: &str,
    number: usize,
    generation: u64,
    gate: Gate,
    shared: &Shared,
) -> Result<Incarnation, String> {
    let gate = Arc::new(gate);
    let (stop, stopped) = shutdown::channel();
    let context = SourceContext {
        id: id.to_owned(),
        out: BatchSender {
            source: number,
            tx: shared.chain.clone(),
            gate: gate.clone(),
            privileges: shared.privileges.clone(),
        },
        shutdown: stopped,
        telemetry: shared.telemetry.clone(),
        privileges: shared.privileges.clone(),
        pace: shared.pace.clone(),
    };
    let (runtime, privileges, events) =
        (Handle::current(), shared.privileges.clone(), shared.events.clone());
    thread::Builder::new()
        .name(format!("source/{id}").chars().take(15).collect())
        .spawn(move || {
            let run =
                AssertUnwindSafe(|| runtime.block_on(acquire_raised(source, context, &privileges)));
            // A panic in a source must not look like its quiet end.
            let result = catch_unwind(run).unwrap_or_else(|_| {
                Err(SourceError::Failed { what: "the source panicked".to_owned(), source: None })
            });
            let _ = events.blocking_send(Event::SourceEnded { number, generation, result });
        })
        .map_err(|e| format!("source `{id}`: cannot start its thread: {e}"))?;
    Ok(Incarnation { generation, stop, gate })
}

/// Runs a source with privileges raised up to where it first waits: that is where it acquires
/// what it needs. What it needs later, it raises itself.
async fn acquire_raised(
    source: Box<dyn Source>,
    context: SourceContext,
    privileges: &Privileges,
) -> Result<(), SourceError> {
    let mut running = source.run(context);
    let first = std::future::poll_fn(|cx| {
        let _raised = privileges.raise();
        Poll::Ready(running.as_mut().poll(cx))
    })
    .await;
    match first {
        Poll::Ready(result) => result,
        Poll::Pending => running.await,
    }
}

/// Whether starting it again may help; the reason otherwise.
pub(super) fn may_recover(error: &SourceError, delivered: bool) -> bool {
    match error {
        SourceError::Unavailable { .. } | SourceError::BadInput(_) => false,
        // One that never worked fails the start, so that whoever started the agent sees it.
        SourceError::Failed { .. } => delivered,
    }
}

/// How long a source may take to stop.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
