//! Measuring without the probe: the kernel's own account of waited-for children for CPU time, and
//! the command's share of the host's active energy by CPU time.

use std::time::Duration;

use figment::value::Dict;
use nix::sys::resource::{UsageWho, getrusage};
use tracing::warn;
use wattpipe_pipeline::{
    Registry,
    runner::{Graph, Pipeline, Runner},
};

use super::{Members, SETTLE, Totals, collector, options, part};

/// CPU time of all children that were waited for, and theirs.
pub(super) fn children_cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|t| {
            let micros = u64::try_from(t.tv_usec()).unwrap_or(0);
            Duration::from_secs(u64::try_from(t.tv_sec()).unwrap_or(0))
                + Duration::from_micros(micros)
        })
        .sum()
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
