//! Processors: what turns one batch into another.

use crate::{
    batch::{Batch, BatchKind},
    registry::{BuildContext, BuildError, Config, Stability},
};

/// Why a batch could not be processed. The batch is dropped and counted; the chain goes on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProcessorError(pub String);

/// A step of the chain.
///
/// All processors run on the chain's one thread. `process` does no I/O and never waits: slow
/// look-ups run in the background and `process` reads what they have found.
pub trait Processor: Send {
    /// Called once before the first batch; background work starts here.
    ///
    /// # Errors
    /// Where what it starts cannot be had. It is logged, and batches come all the same.
    fn start(&mut self) -> Result<(), ProcessorError> {
        Ok(())
    }

    /// Takes a batch and gives what it makes of it, if anything yet. Batches come in the order of
    /// their windows, from all sources of the pipeline in turn.
    ///
    /// # Errors
    /// Where this batch cannot be used: it is dropped and counted, and the next one is tried.
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError>;

    /// Gives what it still holds, at shutdown or before it is replaced.
    ///
    /// # Errors
    /// Where that cannot be had any more; it is logged.
    fn flush(&mut self) -> Result<Option<Batch>, ProcessorError> {
        Ok(None)
    }
}

/// A processor as the registry knows it.
pub trait ProcessorComponent: Processor + Sized + 'static {
    /// Its type in the configuration.
    const NAME: &'static str;
    /// One line on what it does.
    const DOC: &'static str;
    /// How settled it is.
    const STABILITY: Stability = Stability::Beta;
    /// The kind of batch it is for.
    const TAKES: BatchKind;
    /// The kind of batch it emits.
    const EMITS: BatchKind;
    /// Batches of kind `EMITS` go through unchanged, so that one chain serves sources of both kinds.
    const PASSES: bool = false;
    /// It needs each row's usage per slice and package ([`crate::batch::Slice`]).
    const NEEDS_SLICES: bool = false;
    /// It merges or drops rows, after which usage per slice is gone.
    const MERGES_ROWS: bool = false;
    /// Its configuration.
    type Config: Config;

    /// Makes it from validated configuration. No I/O here.
    ///
    /// # Errors
    /// What validation could not see. The agent does not start; a reload is refused.
    fn build(config: Self::Config, context: &BuildContext) -> Result<Self, BuildError>;
}
