//! The core of wattpipe: typed batches, the traits every component implements, the registry of
//! what is compiled in, and the runner that moves batches from sources through processors to
//! exporters.
//!
//! Read in flow order: [`batch`] (what flows), [`source`], [`processor`], [`exporter`] (who
//! touches it), [`registry`] (what there is), [`chain`] (what fits together), [`runner`] (what
//! moves it).
#![forbid(unsafe_code)]

pub mod batch;
pub mod chain;
pub mod exporter;
pub mod identity;
pub mod news;
pub mod privileges;
pub mod processor;
pub mod recording;
pub mod registry;
pub mod rows;
pub mod runner;
pub mod shutdown;
pub mod source;
pub mod telemetry;
pub mod testing;
pub mod units;
pub mod zones;

pub use async_trait::async_trait;
pub use batch::{Batch, BatchKind};
pub use exporter::{ExportError, Exporter, ExporterComponent};
pub use processor::{Processor, ProcessorComponent, ProcessorError};
pub use registry::{BuildContext, BuildError, Config, ConfigProblem, Registry, Stability};
pub use source::{Source, SourceComponent, SourceContext, SourceError};

/// What nearly every component names: `use wattpipe_pipeline::prelude::*;`.
pub mod prelude {
    pub use crate::{
        Batch, BatchKind, BuildContext, BuildError, Config, ConfigProblem, ExportError, Exporter,
        ExporterComponent, Processor, ProcessorComponent, ProcessorError, Source, SourceComponent,
        SourceContext, SourceError, Stability, async_trait,
    };
}
