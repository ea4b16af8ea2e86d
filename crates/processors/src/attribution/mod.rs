//! `attribution`: whose work a usage row is.
//!
//! ```yaml
//! processors:
//!   attribution:
//!     command_line: false   # process.command_line; may hold secrets
//!     containers: auto      # auto | [] | list of runtime sockets
//!     kubernetes: null      # { kubelet: {} } or { api: { node: "${env:NODE_NAME}" } }
//! ```
//!
//! Each row of one process gets parent, kind, owner, executable path, cgroup, container, pod and
//! systemd unit. The kernel's records come first: they know a process that lived for 1 ms. The
//! rest is looked up in the background ([`worker`]) and read from a cache ([`cache`]); a row never
//! waits for it. Of a recording nothing is looked up: its identity is all in the recording.

use std::sync::Arc;

use tracing::warn;
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Processor, ProcessorComponent, ProcessorError,
    batch::UsageBatch,
    privileges::Privileges,
    registry::{BuildError, HostRoots},
    runner,
    telemetry::Telemetry,
};

pub mod cache;
pub mod cgroup_path;
pub mod config;
pub mod facts;
mod http;
pub mod knowledge;
mod kubernetes;
mod lookups;
pub mod runtimes;
pub mod worker;

#[cfg(test)]
mod tests;

pub use config::AttributionConfig;

use cache::{Ask, Cache};
use facts::Missing;
use knowledge::{Knowledge, ProcessKey};
use worker::Worker;

/// The processor.
#[derive(Debug)]
pub struct Attribution {
    config: AttributionConfig,
    host: HostRoots,
    telemetry: Telemetry,
    privileges: Privileges,
    replay: bool,
    cache: Cache,
    /// Recordings have a cache of their own: their pids are other processes.
    recorded: Cache,
    knowledge: Arc<Knowledge>,
    worker: Option<Worker>,
}

/// Nobody to ask: recordings, or a host where the background could not start.
struct Nobody;

impl Ask for Nobody {
    fn process(&mut self, _: ProcessKey) -> bool {
        true
    }
    fn container(&mut self, _: &Missing) -> bool {
        true
    }
}

impl ProcessorComponent for Attribution {
    const NAME: &'static str = "attribution";
    const DOC: &'static str =
        "Names each row's process, cgroup, container, pod, systemd unit and user.";
    const TAKES: BatchKind = BatchKind::Usage;
    const EMITS: BatchKind = BatchKind::Usage;
    type Config = AttributionConfig;

    fn build(config: Self::Config, context: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self {
            config,
            host: context.host.clone(),
            telemetry: context.telemetry.clone(),
            privileges: context.privileges.clone(),
            replay: context.replay,
            cache: Cache::new(&context.telemetry),
            recorded: Cache::new(&Telemetry::default()),
            knowledge: Arc::new(Knowledge::new(&context.telemetry)),
            worker: None,
        })
    }
}

impl Processor for Attribution {
    fn start(&mut self) -> Result<(), ProcessorError> {
        if !self.replay && self.worker.is_none() {
            let worker = Worker::start(
                &self.config,
                &self.host,
                &self.privileges,
                &self.knowledge,
                &self.telemetry,
            );
            self.worker = worker
                .inspect_err(|e| warn!("processes get kernel identity only, no look-ups: {e}"))
                .ok();
        }
        Ok(())
    }

    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        let Batch::Usage(usage) = batch else { return Ok(Some(batch)) };
        let mut usage = runner::own(usage);
        if usage.live {
            let mut nobody = Nobody;
            let ask: &mut dyn Ask = match &mut self.worker {
                Some(worker) => worker,
                None => &mut nobody,
            };
            complete(&mut usage, &mut self.cache, Some(&self.knowledge), ask);
        } else {
            complete(&mut usage, &mut self.recorded, None, &mut Nobody);
        }
        Ok(Some(Batch::Usage(Arc::new(usage))))
    }
}

fn complete(
    usage: &mut UsageBatch,
    cache: &mut Cache,
    knowledge: Option<&Knowledge>,
    ask: &mut dyn Ask,
) {
    cache.begin(knowledge, ask);
    for row in &mut usage.rows {
        if let Some(process) = &row.process {
            row.attributes = cache.complete(process, &row.attributes, row.state, knowledge, ask);
        }
    }
    cache.end();
}
