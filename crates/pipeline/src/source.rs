//! Sources: where batches come from.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::{
    batch::{Batch, BatchKind},
    privileges::Privileges,
    registry::{BuildContext, BuildError, Config, Stability},
    runner::{Gate, Message},
    shutdown::Shutdown,
    telemetry::Telemetry,
};

/// Why a source ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It cannot work on this host or with these rights; starting it again would not help.
    #[error("{what}\n  {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// What the user can do.
        remedy: String,
    },
    /// Its input is wrong (a recording's line).
    #[error("{0}")]
    BadInput(String),
    /// It failed while running; starting it again may help.
    #[error("{what}")]
    Failed {
        /// What failed.
        what: String,
        /// The cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl SourceError {
    /// A failure with its cause.
    pub fn failed(
        what: impl Into<String>,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed { what: what.into(), source: Some(cause.into()) }
    }
}

/// The receiving side of the chain is gone: stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chain has stopped")]
pub struct Closed;

/// Hands batches to the chain. Bounded: where the chain is slower than the source, `send` waits,
/// and a live source loses records in its ring, where they are counted.
#[derive(Clone, Debug)]
pub struct BatchSender {
    pub(crate) source: usize,
    pub(crate) tx: mpsc::Sender<Message>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) privileges: Privileges,
}

impl BatchSender {
    /// From async code.
    ///
    /// # Errors
    /// [`Closed`] when the chain has ended: stop.
    pub async fn send(&self, batch: Batch) -> Result<(), Closed> {
        self.privileges.lower_inherited();
        self.gate.pass().await?;
        self.tx.send(Message::Batch { source: self.source, batch }).await.map_err(|_| Closed)
    }

    /// From a plain thread.
    ///
    /// # Errors
    /// [`Closed`] when the chain has ended: stop.
    pub fn blocking_send(&self, batch: Batch) -> Result<(), Closed> {
        self.privileges.lower_inherited();
        self.gate.pass_blocking()?;
        self.tx.blocking_send(Message::Batch { source: self.source, batch }).map_err(|_| Closed)
    }
}

/// What a running source is given.
#[derive(Debug)]
pub struct SourceContext {
    /// Its id in the configuration.
    pub id: String,
    /// Where its batches go.
    pub out: BatchSender,
    /// When to stop.
    pub shutdown: Shutdown,
    /// Where it counts.
    pub telemetry: Telemetry,
    /// To be raised around what needs them later than `run`'s first wait (a counter reopened
    /// after hotplug); up to there they are raised already, on the threads it starts too.
    pub privileges: Privileges,
    /// By how much windows are to be longer than configured.
    pub pace: Pace,
}

/// A factor that live sources apply to their window: above 1 while the agent uses more CPU than
/// `service::cpu_limit`. Clones share it.
#[derive(Clone, Debug)]
pub struct Pace(Arc<AtomicU32>);

impl Default for Pace {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(1)))
    }
}

impl Pace {
    /// The factor now; to be asked at each edge.
    pub fn factor(&self) -> u32 {
        self.0.load(Relaxed).max(1)
    }

    /// Sets it.
    pub fn set(&self, factor: u32) {
        self.0.store(factor.max(1), Relaxed);
    }
}

/// A source of batches.
///
/// Lifecycle: built from validated configuration without touching the host; `run` is called once,
/// acquires what it needs, sends batches until its input ends or `shutdown` triggers, then closes
/// its last window, sends it, releases everything and returns. It must return within a second of
/// the trigger, and leave nothing behind when it is dropped instead.
#[async_trait]
pub trait Source: Send {
    /// Runs to the end of the input or to shutdown.
    ///
    /// # Errors
    /// See [`SourceError`]; anything else than the end of the input or of the agent is one.
    async fn run(self: Box<Self>, context: SourceContext) -> Result<(), SourceError>;
}

/// A source as the registry knows it.
pub trait SourceComponent: Source + Sized + 'static {
    /// Its type in the configuration.
    const NAME: &'static str;
    /// One line on what it does.
    const DOC: &'static str;
    /// How settled it is.
    const STABILITY: Stability = Stability::Beta;
    /// The kind of batch it emits.
    const EMITS: BatchKind;
    /// Its configuration.
    type Config: Config;

    /// Makes it from validated configuration. No I/O here.
    ///
    /// # Errors
    /// What validation could not see. The agent does not start; a reload is refused.
    fn build(config: Self::Config, context: &BuildContext) -> Result<Self, BuildError>;
}
