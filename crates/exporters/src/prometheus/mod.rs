//! `prometheus`: the last state of all series at `/metrics`, for scraping.
//!
//! ```yaml
//! exporters:
//!   prometheus:
//!     endpoint: 127.0.0.1:9464
//!     metric_expiration: 90s   # how long an ended workload stays visible
//! ```
//!
//! OpenMetrics where the scraper accepts it, else the classic text. An ended workload stays for
//! `metric_expiration`, so that every scraper sees its last value, however many there are. It
//! listens on loopback unless told otherwise: names of processes are nobody's business.

mod config;
mod text;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
    routing::get,
    serve::Listener as _,
};
use tokio::{sync::watch, task::JoinHandle};
use tracing::info;
use wattpipe_pipeline::{
    BuildContext, ExportError, Exporter, ExporterComponent, Stability, async_trait, batch::Batch,
    identity::AttributeSet, registry::BuildError,
};

use crate::{
    counters::Counters,
    listener::Few,
    series::{SeriesConfig, SeriesState},
};
pub use config::PrometheusConfig;
use text::{Format, Page};

/// See the module's documentation.
pub struct PrometheusExporter {
    config: PrometheusConfig,
    counters: Counters,
    shared: Arc<Shared>,
    server: Option<Server>,
}

struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

struct Shared {
    series: Mutex<SeriesState>,
    resource: Arc<AttributeSet>,
    expiration_ns: u64,
    convert: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SeriesState> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn render(&self, format: Format) -> String {
        let page = Page {
            resource: &self.resource,
            expiration_ns: self.expiration_ns,
            convert: self.convert,
            format,
        };
        page.render(&self.lock())
    }
}

impl ExporterComponent for PrometheusExporter {
    const NAME: &'static str = "prometheus";
    const DOC: &'static str = "Serves /metrics for Prometheus to scrape.";
    const STABILITY: Stability = Stability::Beta;
    type Config = PrometheusConfig;

    fn build(config: PrometheusConfig, context: &BuildContext) -> Result<Self, BuildError> {
        let linger = u64::try_from(config.metric_expiration.0.as_nanos()).unwrap_or(u64::MAX);
        let shared = Shared {
            series: Mutex::new(SeriesState::new(SeriesConfig {
                levels: config.levels.clone(),
                max_series: config.max_series,
                linger_ns: linger,
            })),
            resource: context.resource.clone(),
            expiration_ns: linger,
            convert: config.resource_to_telemetry_conversion,
        };
        let counters = Counters::new(context);
        Ok(Self { config, counters, shared: Arc::new(shared), server: None })
    }
}

impl PrometheusExporter {
    /// The page as a scraper gets it, for tests and benchmarks.
    pub fn page(&self, open_metrics: bool) -> String {
        self.shared.render(if open_metrics { Format::OpenMetrics } else { Format::Classic })
    }
}

#[async_trait]
impl Exporter for PrometheusExporter {
    async fn start(&mut self) -> Result<(), ExportError> {
        let endpoint = &self.config.endpoint;
        let listener = Few::bind(endpoint).await.map_err(|e| {
            ExportError::Fatal(format!(
                "cannot listen on `{endpoint}`: {e}; choose another `endpoint`"
            ))
        })?;
        let path = self.config.path.clone();
        let mut app = Router::new().route(&path, get(scrape)).with_state(self.shared.clone());
        if path != "/" {
            // Who opens the port in a browser learns where the metrics are.
            app = app.route("/", get(async move || format!("wattpipe: metrics are at {path}\n")));
        }
        let (stop, mut stopped) = watch::channel(false);
        if let Ok(address) = listener.local_addr() {
            info!("serving http://{address}{}", self.config.path);
        }
        let task = tokio::spawn(async move {
            let ended = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            let _ = axum::serve(listener, app).with_graceful_shutdown(ended).await;
        });
        self.server = Some(Server { stop, task });
        Ok(())
    }

    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let Batch::Usage(batch) = batch else { return Ok(()) };
        self.shared.lock().update(&batch);
        self.counters.sent.add(batch.rows.len() as u64);
        Ok(())
    }

    async fn shutdown(&mut self, timeout: Duration) -> Result<(), ExportError> {
        let Some(Server { stop, mut task }) = self.server.take() else { return Ok(()) };
        stop.send_replace(true);
        // A scraper that keeps its connection open does not keep the agent.
        let patience = timeout.min(Duration::from_secs(1));
        if tokio::time::timeout(patience, &mut task).await.is_err() {
            task.abort();
            // The port is free once the task is gone.
            let _ = task.await;
        }
        Ok(())
    }
}

async fn scrape(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    // Rendering takes milliseconds: not on a thread that others' connections wait for.
    let rendered = tokio::task::spawn_blocking(move || shared.render(format)).await;
    match rendered {
        Ok(body) => ([(header::CONTENT_TYPE, format.content_type())], body).into_response(),
        Err(e) => (axum::http::StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests;
