//! Exporters: where batches leave.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::{
    batch::{Batch, BatchKind},
    registry::{BuildContext, BuildError, Config, Stability},
};

/// Why a batch was not exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Nobody reads any more (a closed pipe): the run ends, quietly.
    #[error("the reader of the output is gone")]
    Closed,
    /// This batch is lost after whatever retries the exporter does itself; the next may go through.
    #[error("{what}")]
    Failed {
        /// What failed, with the remedy where there is one.
        what: String,
        /// Points (or records) that were lost.
        dropped: u64,
    },
    /// Nothing will ever go through.
    #[error("{0}")]
    Fatal(String),
}

/// Tells an exporter, whatever it is doing, that the end comes at this moment.
pub type Closer = Box<dyn Fn(Instant) + Send + Sync>;

/// The end of a pipeline.
///
/// Lifecycle: built without touching the host; `start` once; then `export` for each batch, one at
/// a time, in order; `shutdown` once, after the last, to send out what it still holds within the
/// given time. Each exporter has a thread of its own, so it may block there without holding up
/// anybody else; it runs inside the agent's tokio runtime, so it may await there too.
#[async_trait]
pub trait Exporter: Send {
    /// Opens what it needs.
    ///
    /// # Errors
    /// Any error here fails the start of the agent.
    async fn start(&mut self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Asked for once it has started, by an exporter whose `export` may wait: for a receiver, or for
    /// space. Called when the end begins; from then on `export` comes back by the given moment and
    /// counts what it could not place.
    fn closer(&self) -> Option<Closer> {
        None
    }

    /// Takes a batch. Returning `Ok` means sent, or held in a queue of the exporter's own.
    ///
    /// # Errors
    /// [`ExportError::Failed`]: this batch is lost and counted, the next one comes.
    /// [`ExportError::Closed`] and [`ExportError::Fatal`] are its end.
    async fn export(&mut self, batch: Batch) -> Result<(), ExportError>;

    /// Sends what it holds, within `timeout`, and lets go of everything.
    ///
    /// # Errors
    /// Where something that it held is lost; it is logged.
    async fn shutdown(&mut self, timeout: Duration) -> Result<(), ExportError> {
        let _ = timeout;
        Ok(())
    }
}

/// An exporter as the registry knows it.
pub trait ExporterComponent: Exporter + Sized + 'static {
    /// Its type in the configuration.
    const NAME: &'static str;
    /// Other names it answers to.
    const ALIASES: &'static [&'static str] = &[];
    /// One line on what it does.
    const DOC: &'static str;
    /// How settled it is.
    const STABILITY: Stability = Stability::Beta;
    /// The kinds it can take.
    const TAKES: &'static [BatchKind] = &[BatchKind::Usage];
    /// Its configuration.
    type Config: Config;

    /// The kinds that it takes with this configuration.
    fn takes(config: &Self::Config) -> &'static [BatchKind] {
        let _ = config;
        Self::TAKES
    }

    /// Makes it from validated configuration. No I/O here.
    ///
    /// # Errors
    /// What validation could not see. The agent does not start; a reload is refused.
    fn build(config: Self::Config, context: &BuildContext) -> Result<Self, BuildError>;
}
