//! Health over HTTP: `/` while the pipelines make progress, `/ready` once they have begun to.
//! Progress is a window that an exporter took, not a thread that lives.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use serde_json::{Value, json};
use tracing::{info, warn};
use wattpipe_pipeline::runner::Progress;

use crate::extension::HealthCheck;

/// The first window may take this long, or three of its length, before its absence is a fault.
const FIRST: Duration = Duration::from_secs(60);
/// A stage at one batch for this long is stuck.
pub(crate) const STUCK: Duration = Duration::from_secs(60);

/// What health is judged by.
#[derive(Clone)]
pub(crate) struct Judge {
    pub(crate) progress: Arc<Progress>,
    /// The longest window that the configuration asks for.
    pub(crate) longest: Longest,
}

/// A length that a reload may change under those who judge by it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Longest(Arc<AtomicU64>);

impl Longest {
    pub(crate) fn set(&self, window: Duration) {
        self.0.store(u64::try_from(window.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// A running server; dropping it ends it.
pub(crate) struct Server {
    config: HealthCheck,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Whether it serves this configuration.
    pub(crate) fn serves(&self, config: &HealthCheck) -> bool {
        self.config == *config
    }

    /// Ends it. Afterwards its port is free.
    pub(crate) async fn end(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Listens. A port that is taken is a warning: measuring goes on.
    pub(crate) async fn start(config: HealthCheck, judge: Judge) -> Option<Self> {
        let listener = match tokio::net::TcpListener::bind(&config.endpoint).await {
            Ok(listener) => listener,
            Err(e) => {
                warn!("health_check cannot listen on {}: {e}", config.endpoint);
                return None;
            }
        };
        info!("health_check on http://{}/", config.endpoint);
        let app =
            Router::new().route("/", get(alive)).route("/ready", get(ready)).with_state(judge);
        let task = tokio::spawn(async move {
            if let Err(e) = axum::serve(listener, app).await {
                warn!("health_check: {e}");
            }
        });
        Some(Self { config, task })
    }
}

async fn alive(State(judge): State<Judge>) -> (StatusCode, Json<Value>) {
    answer(&judge.progress, judge.fault())
}

async fn ready(State(judge): State<Judge>) -> (StatusCode, Json<Value>) {
    let begun = judge.progress.exported() > 0;
    let not_yet = (!begun).then(|| "no window was exported yet".to_owned());
    answer(&judge.progress, not_yet.or_else(|| judge.fault()))
}

impl Judge {
    /// Why the pipelines count as failing.
    pub(crate) fn fault(&self) -> Option<String> {
        let progress = &self.progress;
        let longest = self.longest.get();
        if let Some((stage, busy)) = progress.stuck(STUCK).into_iter().next() {
            return Some(format!("{stage} has been at one batch for {} s", busy.as_secs()));
        }
        match progress.last() {
            Some(last) => {
                let window = Duration::from_nanos(last.window.duration().0);
                (last.age > patience(window.max(longest)))
                    .then(|| format!("the last window was exported {} s ago", last.age.as_secs()))
            }
            None => (progress.uptime() > FIRST.max(longest * 3))
                .then(|| format!("no window was exported in {} s", progress.uptime().as_secs())),
        }
    }
}

/// How old the last window may become: three of its length, and never under ten seconds.
fn patience(window: Duration) -> Duration {
    (window * 3).max(Duration::from_secs(10))
}

fn answer(progress: &Progress, fault: Option<String>) -> (StatusCode, Json<Value>) {
    let last = progress.last().map(|last| {
        let end = last.window.unix_ns(last.window.end);
        json!({
            "end": wattpipe_pipeline::units::rfc3339(end),
            "age_seconds": last.age.as_secs_f64(),
        })
    });
    let body = json!({
        "status": if fault.is_some() { "failing" } else { "ok" },
        "reason": fault,
        "uptime_seconds": progress.uptime().as_secs_f64(),
        "windows_exported": progress.exported(),
        "last_window": last,
    });
    let status = if fault.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_agent_is_alive_and_not_ready() {
        let judge = Judge { progress: Arc::default(), longest: Longest::default() };
        assert_eq!(judge.fault(), None);
        assert_eq!(answer(&judge.progress, None).0, StatusCode::OK);
        assert_eq!(patience(Duration::from_secs(1)), Duration::from_secs(10));
        assert_eq!(patience(Duration::from_secs(60)), Duration::from_secs(180));
    }
}
