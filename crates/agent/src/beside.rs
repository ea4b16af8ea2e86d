//! What runs beside the pipelines: extensions, own metrics, the watchdog's feed.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;
use wattpipe_pipeline::{
    identity::AttributeSet,
    runner::{Progress, Runner},
    telemetry::Telemetry,
    units::ConfigDuration,
};

use crate::{
    config::Loaded,
    extension::Extension,
    health::{Judge, Longest, Server},
    notify,
    own_metrics::Published,
};

/// Services of the agent; dropping it ends them.
pub(crate) struct Beside {
    progress: Arc<Progress>,
    longest: Longest,
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
        let (progress, longest) = (runner.progress(), Longest::default());
        longest.set(longest_window(loaded));
        let judge = Judge { progress: progress.clone(), longest: longest.clone() };
        let mut beside = Self {
            watchdog: notify::watchdog(judge),
            progress,
            longest,
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
        self.longest.set(longest_window(loaded));
        // What ends gives up its port first: another may be to have it.
        for server in std::mem::take(&mut self.health) {
            match wanted.iter().any(|config| server.serves(config)) {
                true => self.health.push(server),
                false => server.end().await,
            }
        }
        let metrics = &loaded.service.telemetry.metrics;
        if let Some(published) = self.metrics.take_if(|p| !p.publishes(metrics)) {
            published.end().await;
        }
        for config in wanted {
            if !self.health.iter().any(|server| server.serves(&config)) {
                let judge =
                    Judge { progress: self.progress.clone(), longest: self.longest.clone() };
                self.health.extend(Server::start(config, judge).await);
            }
        }
        match &self.metrics {
            Some(published) => published.refresh(),
            None => self.metrics = Published::start(metrics, telemetry, resource).await,
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
