//! The agent's own metrics, made with the OpenTelemetry SDK: observable instruments over
//! [`Telemetry::snapshot`], served as Prometheus text and pushed by OTLP where the standard
//! `OTEL_EXPORTER_OTLP_*` variables name a receiver. Nothing is collected between scrapes.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::header, routing::get};
use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Meter, MeterProvider},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        PeriodicReader, SdkMeterProvider, Temporality, data::ResourceMetrics,
        exporter::PushMetricExporter,
    },
};
use prometheus::TextEncoder;
use tokio::runtime::Handle;
use tracing::{info, warn};
use wattpipe_pipeline::{
    identity::AttributeSet,
    telemetry::{Instrument, Telemetry},
};

use crate::{
    config::model::{MetricsLevel, OwnMetrics},
    limits,
};

/// Published metrics; dropping it ends that.
pub(crate) struct Published {
    config: OwnMetrics,
    inner: Arc<Inner>,
    server: Option<tokio::task::JoinHandle<()>>,
}

struct Inner {
    telemetry: Telemetry,
    level: MetricsLevel,
    meter: Meter,
    provider: SdkMeterProvider,
    registry: prometheus::Registry,
    known: Mutex<BTreeSet<&'static str>>,
}

impl Drop for Published {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
        let provider = self.inner.provider.clone();
        // The last push may wait for its receiver: not on this thread.
        std::thread::spawn(move || {
            let _ = provider.shutdown();
        });
    }
}

impl Published {
    /// Whether it publishes as `config` says.
    pub(crate) fn publishes(&self, config: &OwnMetrics) -> bool {
        self.config.level == config.level && self.config.endpoint == config.endpoint
    }

    /// Ends it. Afterwards its port is free.
    pub(crate) async fn end(mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Takes up instruments that have come since.
    pub(crate) fn refresh(&self) {
        self.inner.refresh();
    }

    /// Begins to publish; None where nothing is to be. What cannot be served is a warning.
    pub(crate) async fn start(
        config: &OwnMetrics,
        telemetry: &Telemetry,
        resource: &AttributeSet,
    ) -> Option<Self> {
        let push = push_wanted();
        if config.level == MetricsLevel::None || (config.endpoint.is_none() && !push) {
            return None;
        }
        let registry = prometheus::Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_units()
            .without_counter_suffixes()
            .scope_info_enabled(false)
            .build()
            .map_err(|e| warn!("own metrics cannot be served: {e}"))
            .ok()?;
        let attributes = resource.iter().map(|(k, v)| KeyValue::new(k.to_owned(), v.to_string()));
        let mut provider = SdkMeterProvider::builder()
            .with_resource(Resource::builder_empty().with_attributes(attributes).build())
            .with_reader(reader);
        if push {
            match opentelemetry_otlp::MetricExporter::builder().build() {
                Ok(exporter) => {
                    let exporter = OnRuntime { inner: exporter, runtime: Handle::current() };
                    provider = provider.with_reader(PeriodicReader::builder(exporter).build());
                }
                Err(e) => warn!("own metrics cannot be pushed: {e}"),
            }
        }
        let provider = provider.build();
        let inner = Arc::new(Inner {
            telemetry: telemetry.clone(),
            level: config.level,
            meter: provider.meter("wattpipe"),
            provider,
            registry,
            known: Mutex::default(),
        });
        inner.observe_process();
        inner.refresh();
        let server = match &config.endpoint {
            Some(endpoint) => serve(endpoint, inner.clone()).await,
            None => None,
        };
        Some(Self { config: config.clone(), inner, server })
    }
}

async fn serve(endpoint: &str, inner: Arc<Inner>) -> Option<tokio::task::JoinHandle<()>> {
    let listener = match tokio::net::TcpListener::bind(endpoint).await {
        Ok(listener) => listener,
        Err(e) => {
            warn!("own metrics cannot be served on {endpoint}: {e}");
            return None;
        }
    };
    info!("own metrics on http://{endpoint}/metrics");
    let app = Router::new().route("/metrics", get(scrape)).with_state(inner);
    Some(tokio::spawn(async move {
        if let Err(e) = axum::serve(listener, app).await {
            warn!("own metrics: {e}");
        }
    }))
}

async fn scrape(State(inner): State<Arc<Inner>>) -> impl axum::response::IntoResponse {
    inner.refresh();
    let mut text = String::new();
    if let Err(e) = TextEncoder::new().encode_utf8(&inner.registry.gather(), &mut text) {
        warn!("own metrics: {e}");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

impl Inner {
    /// Makes an SDK instrument of each name that has none yet.
    fn refresh(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, registered) in self.telemetry.snapshot() {
            if !published(id.name, self.level) || !known.insert(id.name) {
                continue;
            }
            let (telemetry, name) = (self.telemetry.clone(), id.name);
            let is_total = name.ends_with("_total");
            match registered.instrument {
                Instrument::Counter(_) => {
                    let observe = move |out: &dyn AsyncInstrument<u64>| {
                        observe(
                            &telemetry,
                            name,
                            |i| match i {
                                Instrument::Counter(c) => Some(c.get()),
                                Instrument::Gauge(_) => None,
                            },
                            out,
                        );
                    };
                    let builder = self.meter.u64_observable_counter(name);
                    builder.with_description(registered.help).with_callback(observe).build();
                }
                Instrument::Gauge(_) => {
                    let observe = move |out: &dyn AsyncInstrument<f64>| {
                        observe(
                            &telemetry,
                            name,
                            |i| match i {
                                Instrument::Gauge(g) => Some(g.get()),
                                Instrument::Counter(_) => None,
                            },
                            out,
                        );
                    };
                    // A sum of floats (seconds, joules) is kept in a gauge and still only grows.
                    if is_total {
                        let builder = self.meter.f64_observable_counter(name);
                        builder.with_description(registered.help).with_callback(observe).build();
                    } else {
                        let builder = self.meter.f64_observable_gauge(name);
                        builder.with_description(registered.help).with_callback(observe).build();
                    }
                }
            }
        }
    }

    fn observe_process(&self) {
        let begin = Instant::now();
        self.meter
            .f64_observable_counter("wattpipe_process_cpu_seconds")
            .with_description("CPU seconds that the agent itself has used.")
            .with_callback(|out| out.observe(limits::cpu_time().as_secs_f64(), &[]))
            .build();
        self.meter
            .u64_observable_gauge("wattpipe_process_memory_rss")
            .with_description(
                "Resident memory of the agent in bytes; the probe's ring counts twice.",
            )
            .with_callback(|out| {
                if let Some(bytes) = limits::resident_bytes() {
                    out.observe(bytes, &[]);
                }
            })
            .build();
        self.meter
            .f64_observable_counter("wattpipe_process_uptime")
            .with_description("Seconds since the agent began.")
            .with_callback(move |out| out.observe(begin.elapsed().as_secs_f64(), &[]))
            .build();
    }
}

fn observe<T>(
    telemetry: &Telemetry,
    name: &str,
    value: impl Fn(&Instrument) -> Option<T>,
    out: &dyn AsyncInstrument<T>,
) {
    for (id, registered) in telemetry.snapshot().into_iter().filter(|(id, _)| id.name == name) {
        if let Some(value) = value(&registered.instrument) {
            let labels: Vec<KeyValue> =
                id.labels.into_iter().map(|(k, v)| KeyValue::new(k, v)).collect();
            out.observe(value, &labels);
        }
    }
}

/// Whether an instrument is published at a level: losses and failures always.
fn published(name: &str, level: MetricsLevel) -> bool {
    match level {
        MetricsLevel::None => false,
        MetricsLevel::Basic => {
            ["lost", "failed", "restarts", "shed", "malformed", "rejected", "residual"]
                .iter()
                .any(|word| name.contains(word))
        }
        MetricsLevel::Normal | MetricsLevel::Detailed => true,
    }
}

/// Whether the environment names a receiver for metrics.
fn push_wanted() -> bool {
    ["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|v| !v.is_empty()))
}

/// An exporter that is polled within the agent's runtime: the SDK's reader has a thread without
/// one, where neither timers nor sockets work.
struct OnRuntime<E> {
    inner: E,
    runtime: Handle,
}

impl<E: PushMetricExporter> PushMetricExporter for OnRuntime<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let mut export = Box::pin(self.inner.export(metrics));
        std::future::poll_fn(|cx| {
            let _entered = self.runtime.enter();
            export.as_mut().poll(cx)
        })
        .await
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        let _entered = self.runtime.enter();
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}
