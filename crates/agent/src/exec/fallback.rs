//! Measuring without the probe: the kernel's own account of waited-for children for CPU time, and
//! the command's share of the host's active energy by CPU time.

use std::time::Duration;

use figment::value::Dict;
use nix::sys::resource::UsageWho;
use tracing::warn;
use wattpipe_pipeline::{
    Registry,
    runner::{Graph, Pipeline, Runner},
};

use super::{Members, SETTLE, Totals, collector, options, part};
use crate::limits::cpu_time_of;

/// CPU time of all children that were waited for, and theirs.
pub(super) fn children_cpu() -> Duration {
    cpu_time_of(UsageWho::RUSAGE_CHILDREN)
}

/// Starts `procfs` for the host's energy; without it there is CPU time alone.
pub(super) async fn start(registry: &Registry, totals: &Totals) -> Option<Runner> {
    match try_start(registry, totals).await {
        Ok(runner) => Some(runner),
        Err(reason) => {
            warn!("no energy: {reason}");
            None
        }
    }
}

async fn try_start(registry: &Registry, totals: &Totals) -> Result<Runner, String> {
    let graph = Graph {
        sources: vec![part(registry.source("procfs"), "procfs", Dict::new())?],
        pipelines: vec![Pipeline {
            id: "exec".to_owned(),
            sources: vec!["procfs".to_owned()],
            processors: vec![part(registry.processor("power_model"), "power_model", Dict::new())?],
            exporters: vec!["collect".to_owned()],
        }],
        exporters: vec![collector(&Members::default(), totals)],
    };
    let mut runner = Runner::start(graph, options()).await.map_err(|e| e.to_string())?;
    let working = runner.working();
    tokio::select! {
        () = runner.supervise() => {}
        () = working => return Ok(runner),
        // Its first window is still to come.
        () = tokio::time::sleep(SETTLE / 50) => return Ok(runner),
    }
    Err(format!("{:?}", runner.drain().await))
}
