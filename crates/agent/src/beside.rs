//! What runs beside the pipelines: extensions, own metrics, the watchdog's feed.

use std::time::Duration;

use tokio::task::JoinHandle;
use wattpipe_pipeline::{
    identity::AttributeSet, runner::Runner, telemetry::Telemetry, units::ConfigDuration,
};

use crate::{
    config::Loaded,
    extension::Extension,
    health::{Judge, Server},
    notify,
    own_metrics::Published,
};

/// Services of the agent; dropping it ends them.
pub(crate) struct Beside {
    judge: Judge,
    health: Vec<Server>,
    metrics: Option<Published>,
    watchdog: Option<JoinHandle<()>>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.abort();
        }
    }
}

impl Beside {
    /// Starts what `loaded` asks for.
    pub(crate) async fn start(
        loaded: &Loaded,
        runner: &Runner,
        telemetry: &Telemetry,
        resource: &AttributeSet,
    ) -> Self {
        let judge = Judge::new(runner.progress());
        let watchdog = notify::watchdog(judge.clone());
        let mut beside = Self { judge, health: Vec::new(), metrics: None, watchdog };
        beside.apply(loaded, telemetry, resource).await;
        beside
    }

    /// Changes only what differs.
    pub(crate) async fn apply(
        &mut self,
        loaded: &Loaded,
        telemetry: &Telemetry,
        resource: &AttributeSet,
    ) {
        let wanted: Vec<_> = loaded
            .service
            .extensions
            .iter()
            .filter_map(|id| loaded.extensions.get(id))
            .map(|Extension::HealthCheck(config)| config.clone())
            .collect();
        self.judge.expect(longest_window(loaded));
        self.health.retain(|server| wanted.iter().any(|c| server.serves(c)));
        for config in wanted {
            if !self.health.iter().any(|server| server.serves(&config)) {
                self.health.extend(Server::start(config, self.judge.clone()).await);
            }
        }
        let config = &loaded.service.telemetry.metrics;
        match &self.metrics {
            Some(published) if published.publishes(config) => published.refresh(),
            _ => {
                self.metrics = None;
                self.metrics = Published::start(config, telemetry, resource).await;
            }
        }
    }
}

/// The longest window that any component is configured to give, by its `window` or `interval`.
fn longest_window(loaded: &Loaded) -> Duration {
    let sources = loaded.sources.values().map(|c| c.factory.effective());
    let processors = loaded.processors.values().map(|c| c.factory.effective());
    sources
        .chain(processors)
        .flat_map(|settings| {
            ["window", "interval"].map(|key| {
                let text = settings.get(key)?.as_str()?;
                text.parse::<ConfigDuration>().ok().map(|d| d.0)
            })
        })
        .flatten()
        .max()
        .unwrap_or_default()
}
