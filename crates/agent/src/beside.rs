//! What runs beside the pipelines: extensions, own metrics, the watchdog's feed.

use std::sync::Arc;

use tokio::task::JoinHandle;
use wattpipe_pipeline::{
    identity::AttributeSet,
    runner::{Progress, Runner},
    telemetry::Telemetry,
};

use crate::{config::Loaded, extension::Extension, health::Server, notify, own_metrics::Published};

/// Services of the agent; dropping it ends them.
pub(crate) struct Beside {
    progress: Arc<Progress>,
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
        let progress = runner.progress();
        let mut beside = Self {
            watchdog: notify::watchdog(progress.clone()),
            progress,
            health: Vec::new(),
            metrics: None,
        };
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
        self.health.retain(|server| wanted.iter().any(|c| server.serves(c)));
        for config in wanted {
            if !self.health.iter().any(|server| server.serves(&config)) {
                self.health.extend(Server::start(config, self.progress.clone()).await);
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
