//! `procfs`: usage without any privilege, by polling `/proc`.
//!
//! ```yaml
//! sources:
//!   procfs:
//!     window: 1s        # distance of window edges
//!     meters: auto      # auto | [] | list of: rapl, hwmon, battery
//! ```
//!
//! It sees what outlives a window: CPU time of processes that come and go between two looks, and
//! the last stretch of one that ends, is known to be busy but not whose it was. It shows as
//! unattributed. A process's CPU clock is read to the nanosecond ([`cpu_time`]); `/proc/stat`
//! gives what was idle ([`host_stat`]). Always: CPUs × length = rows + idle + unattributed.

use std::{sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::warn;
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, ConfigProblem, Source, SourceComponent, SourceContext,
    SourceError, Stability, async_trait,
    registry::{BuildError, HostRoots},
    units::ConfigDuration,
};

pub mod cpu_time;
pub mod details;
pub mod host_stat;
pub mod namespace;
mod poll;
mod slices;
#[cfg(test)]
mod tests;
mod window;

use crate::meter::{MeterSelection, Meters};
use window::Poller;

/// Configuration of `procfs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProcfsConfig {
    /// Distance of window edges.
    pub window: ConfigDuration,
    /// Which energy meters are read at each edge.
    pub meters: MeterSelection,
}

impl Default for ProcfsConfig {
    fn default() -> Self {
        Self { window: ConfigDuration::from_secs(1), meters: MeterSelection::Auto }
    }
}

impl Config for ProcfsConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let fits = (10_000_000..=3_600_000_000_000).contains(&self.window.nanos().0);
        let problem = (!fits).then(|| ConfigProblem::at("window", "must be between 10ms and 1h"));
        problem.into_iter().collect()
    }
}

/// The source.
#[derive(Debug)]
pub struct Procfs {
    config: ProcfsConfig,
    host: HostRoots,
}

impl SourceComponent for Procfs {
    const NAME: &'static str = "procfs";
    const DOC: &'static str = "Polls /proc; needs no privileges, sees what outlives a window.";
    const STABILITY: Stability = Stability::Beta;
    const EMITS: BatchKind = BatchKind::Usage;
    type Config = ProcfsConfig;

    fn build(config: ProcfsConfig, context: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self { config, host: context.host.clone() })
    }
}

#[async_trait]
impl Source for Procfs {
    async fn run(self: Box<Self>, context: SourceContext) -> Result<(), SourceError> {
        let SourceContext { out, mut shutdown, telemetry, pace, .. } = context;
        let length = Duration::from_nanos(self.config.window.nanos().0);
        let (host, selection) = (self.host.clone(), self.config.meters.clone());
        let mut poller = tokio::task::spawn_blocking(move || {
            let mut meters = Meters::enumerate(&host, &selection).with_telemetry(&telemetry);
            Poller::new(&host, &telemetry).with_meters(Box::new(move |ts| meters.read_all(ts)))
        })
        .await
        .map_err(|e| SourceError::failed("looking for meters panicked", e))?;
        let mut edges = tokio::time::interval(length);
        // A late edge gives one longer window; edges keep to their grid.
        edges.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut first = true;
        let mut ticks = 0;
        loop {
            let last = tokio::select! {
                _ = edges.tick() => false,
                () = shutdown.wait() => true,
            };
            // Wider windows, where the agent uses too much CPU itself: most of it is spent here.
            ticks += 1;
            if !first && !last && ticks < pace.factor() {
                continue;
            }
            ticks = 0;
            // Reading `/proc` blocks for milliseconds: not on the runtime's own threads.
            let task = tokio::task::spawn_blocking(move || {
                let result = poller.edge();
                (poller, result)
            });
            let (back, result) =
                task.await.map_err(|e| SourceError::failed("reading /proc panicked", e))?;
            poller = back;
            match result {
                Ok(Some(usage)) => {
                    if out.send(Batch::Usage(Arc::new(usage))).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(None) => {}
                Err(e) if first => {
                    return Err(SourceError::Unavailable {
                        what: format!("cannot read {}: {e}", self.host.procfs.display()),
                        remedy: "mount /proc and name it in host::procfs".into(),
                    });
                }
                Err(e) => warn!("no window: {e}"),
            }
            first = false;
            if last {
                return Ok(());
            }
        }
    }
}
