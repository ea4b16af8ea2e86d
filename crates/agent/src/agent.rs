//! The public way to put an agent together: the defaults, and components of one's own.

use std::{ffi::OsString, process::ExitCode};

use wattpipe_pipeline::{
    Registry,
    exporter::ExporterComponent,
    processor::ProcessorComponent,
    registry::{ExporterEntry, ProcessorEntry, SourceEntry},
    source::SourceComponent,
};

use crate::{cli, commands};

/// An agent; see [`Agent::builder`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Agent;

impl Agent {
    /// Starts with no components at all.
    pub fn builder() -> AgentBuilder {
        AgentBuilder { registry: Registry::default() }
    }
}

/// Collects components, then runs the command line over them.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it runs"]
pub struct AgentBuilder {
    registry: Registry,
}

impl AgentBuilder {
    /// Adds everything that wattpipe itself has.
    pub fn with_defaults(mut self) -> Self {
        defaults(&mut self.registry);
        self
    }

    /// Adds a source. One of the same name that was added before is replaced.
    pub fn source<S: SourceComponent>(mut self) -> Self {
        self.registry.sources.retain(|e| e.name != S::NAME);
        self.registry.sources.push(SourceEntry::of::<S>());
        self
    }

    /// Adds a processor. One of the same name that was added before is replaced.
    pub fn processor<P: ProcessorComponent>(mut self) -> Self {
        self.registry.processors.retain(|e| e.name != P::NAME);
        self.registry.processors.push(ProcessorEntry::of::<P>());
        self
    }

    /// Adds an exporter. One of the same name that was added before is replaced.
    pub fn exporter<E: ExporterComponent>(mut self) -> Self {
        self.registry.exporters.retain(|e| e.name != E::NAME);
        self.registry.exporters.push(ExporterEntry::of::<E>());
        self
    }

    /// What was added so far.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Runs the command line of this process and gives its exit status.
    pub fn run(self) -> ExitCode {
        self.run_with(std::env::args_os()).into()
    }

    /// Runs the command line `args` (the program's name first).
    pub fn run_with(self, args: impl IntoIterator<Item = OsString>) -> crate::Exit {
        match cli::parse(args) {
            Ok(cli) => commands::dispatch(cli, &self.registry),
            Err(exit) => exit,
        }
    }
}

/// Everything that wattpipe itself has.
fn defaults(registry: &mut Registry) {
    registry.sources.extend_from_slice(wattpipe_source::SOURCES);
    registry.processors.extend_from_slice(wattpipe_processors::PROCESSORS);
    registry.exporters.extend_from_slice(wattpipe_exporters::EXPORTERS);
}
