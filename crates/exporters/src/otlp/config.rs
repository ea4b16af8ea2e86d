//! The configuration of `otlp_grpc` and `otlp_http`.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Config, ConfigProblem,
    units::{ConfigDuration, ConfigSize, Secret},
};

use super::env;
use crate::{
    queue::{QueueConfig, RetryConfig, config as queue_config},
    semconv::Level,
};

/// Below the 4 MiB that receivers take by default.
pub(crate) const MAX_REQUEST_SIZE: ConfigSize = ConfigSize::mib(3);
/// Series per level, as in OpenTelemetry's SDKs.
pub(crate) const MAX_SERIES: usize = 2000;

/// Levels that are exported by default.
pub(crate) fn default_levels() -> Vec<Level> {
    vec![Level::Container, Level::Pod, Level::Process]
}

/// What a point counts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Temporality {
    /// From the series' start.
    #[default]
    Cumulative,
    /// From the point before.
    Delta,
}

/// How requests are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// gzip.
    #[default]
    Gzip,
    /// Zstandard.
    Zstd,
    /// Not at all.
    #[serde(alias = "")]
    None,
}

/// How OTLP/HTTP bodies are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Protobuf.
    #[default]
    Proto,
    /// JSON.
    Json,
}

/// A TLS version.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V13,
}

/// How the connection is secured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Plain text, no TLS.
    pub insecure: bool,
    /// TLS without checking the receiver's certificate.
    pub insecure_skip_verify: bool,
    /// Name that the receiver's certificate must bear, instead of the endpoint's host.
    pub server_name_override: Option<String>,
    /// File of certificate authorities (PEM); `null`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The same, as text.
    pub ca_pem: Option<String>,
    /// Trust the system's authorities beside `ca_file`.
    pub include_system_ca_certs_pool: bool,
    /// Client certificate (PEM).
    pub cert_file: Option<PathBuf>,
    /// The same, as text.
    pub cert_pem: Option<String>,
    /// Key of the client certificate (PEM).
    pub key_file: Option<PathBuf>,
    /// The same, as text.
    pub key_pem: Option<Secret>,
    /// Oldest TLS version.
    pub min_version: TlsVersion,
    /// Newest TLS version; `null`: no limit.
    pub max_version: Option<TlsVersion>,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            insecure: false,
            insecure_skip_verify: false,
            server_name_override: None,
            ca_file: None,
            ca_pem: None,
            include_system_ca_certs_pool: false,
            cert_file: None,
            cert_pem: None,
            key_file: None,
            key_pem: None,
            min_version: TlsVersion::V12,
            max_version: None,
        }
    }
}

/// Configuration of `otlp_grpc`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpGrpcConfig {
    /// The receiver: `host:port`, or a URL whose scheme tells plain text (`http`) from TLS.
    pub endpoint: String,
    /// How the connection is secured; `null`: TLS, but for a loopback endpoint without a scheme.
    pub tls: Option<TlsConfig>,
    /// Sent with every request.
    pub headers: BTreeMap<String, Secret>,
    /// `gzip`, `zstd` or `none`.
    pub compression: Compression,
    /// For each attempt.
    pub timeout: ConfigDuration,
    /// What is done when a request fails in a way that may pass.
    pub retry_on_failure: RetryConfig,
    /// Requests that wait for the receiver.
    pub sending_queue: QueueConfig,
    /// `cumulative` or `delta`.
    pub temporality: Temporality,
    /// Levels that have series.
    pub levels: Vec<Level>,
    /// Workloads per level that have series of their own; the rest shares an overflow series.
    pub max_series: usize,
    /// Copy resource attributes onto the points, for receivers that drop resources.
    pub resource_to_telemetry_conversion: bool,
    /// Encoded requests stay below this.
    pub max_request_size: ConfigSize,
}

/// Configuration of `otlp_http`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpHttpConfig {
    /// Base URL of the receiver; `/v1/metrics` is appended.
    pub endpoint: String,
    /// Full URL, instead of `endpoint`.
    pub metrics_endpoint: Option<String>,
    /// `proto` or `json`.
    pub encoding: Encoding,
    /// How an `https` connection is secured.
    pub tls: Option<TlsConfig>,
    /// Sent with every request.
    pub headers: BTreeMap<String, Secret>,
    /// `gzip`, `zstd` or `none`.
    pub compression: Compression,
    /// For each attempt.
    pub timeout: ConfigDuration,
    /// What is done when a request fails in a way that may pass.
    pub retry_on_failure: RetryConfig,
    /// Requests that wait for the receiver.
    pub sending_queue: QueueConfig,
    /// `cumulative` or `delta`.
    pub temporality: Temporality,
    /// Levels that have series.
    pub levels: Vec<Level>,
    /// Workloads per level that have series of their own; the rest shares an overflow series.
    pub max_series: usize,
    /// Copy resource attributes onto the points, for receivers that drop resources.
    pub resource_to_telemetry_conversion: bool,
    /// Encoded requests stay below this.
    pub max_request_size: ConfigSize,
}

impl Default for OtlpGrpcConfig {
    fn default() -> Self {
        let mut config = Self {
            endpoint: "localhost:4317".to_owned(),
            tls: None,
            headers: BTreeMap::new(),
            compression: Compression::Gzip,
            timeout: ConfigDuration::from_secs(5),
            retry_on_failure: RetryConfig::default(),
            sending_queue: QueueConfig::default(),
            temporality: Temporality::Cumulative,
            levels: default_levels(),
            max_series: MAX_SERIES,
            resource_to_telemetry_conversion: false,
            max_request_size: MAX_REQUEST_SIZE,
        };
        env::Defaults::read(env::process).apply_grpc(&mut config);
        config
    }
}

impl Default for OtlpHttpConfig {
    fn default() -> Self {
        let mut config = Self {
            endpoint: "http://localhost:4318".to_owned(),
            metrics_endpoint: None,
            encoding: Encoding::Proto,
            tls: None,
            headers: BTreeMap::new(),
            compression: Compression::Gzip,
            timeout: ConfigDuration::from_secs(30),
            retry_on_failure: RetryConfig::default(),
            sending_queue: QueueConfig::default(),
            temporality: Temporality::Cumulative,
            levels: default_levels(),
            max_series: MAX_SERIES,
            resource_to_telemetry_conversion: false,
            max_request_size: MAX_REQUEST_SIZE,
        };
        env::Defaults::read(env::process).apply_http(&mut config);
        config
    }
}

impl Config for OtlpGrpcConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = queue_config::check(&self.retry_on_failure, &self.sending_queue);
        if let Err(e) = super::grpc::target(self) {
            problems.push(ConfigProblem::at("endpoint", e));
        }
        check_common(&mut problems, &self.tls, &self.headers, self.timeout);
        check_series(&mut problems, &self.levels, self.max_series, self.max_request_size);
        problems
    }
}

impl Config for OtlpHttpConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = queue_config::check(&self.retry_on_failure, &self.sending_queue);
        if let Err(e) = super::http::target(self) {
            let key = if self.metrics_endpoint.is_some() { "metrics_endpoint" } else { "endpoint" };
            problems.push(ConfigProblem::at(key, e));
        }
        check_common(&mut problems, &self.tls, &self.headers, self.timeout);
        check_series(&mut problems, &self.levels, self.max_series, self.max_request_size);
        problems
    }
}

fn check_common(
    problems: &mut Vec<ConfigProblem>,
    tls: &Option<TlsConfig>,
    headers: &BTreeMap<String, Secret>,
    timeout: ConfigDuration,
) {
    for (name, value) in headers {
        let at = format!("headers.{name}");
        if name.parse::<http::HeaderName>().is_err() {
            problems.push(ConfigProblem::at(&at, "not a valid header name"));
        } else if http::HeaderValue::from_str(value.expose()).is_err() {
            problems.push(ConfigProblem::at(&at, "the value is not valid in a header"));
        }
    }
    if timeout.0.is_zero() {
        problems.push(ConfigProblem::at("timeout", "must be greater than 0"));
    }
    let Some(tls) = tls else { return };
    let mut wrong = |path: &str, message: &str| problems.push(ConfigProblem::at(path, message));
    if tls.ca_file.is_some() && tls.ca_pem.is_some() {
        wrong("tls.ca_pem", "give either `ca_file` or `ca_pem`");
    }
    let cert = tls.cert_file.is_some() || tls.cert_pem.is_some();
    let key = tls.key_file.is_some() || tls.key_pem.is_some();
    if cert != key {
        wrong("tls", "a client certificate needs both `cert_file` and `key_file`");
    }
    if tls.max_version.is_some_and(|max| max < tls.min_version) {
        wrong("tls.max_version", "must not be older than `min_version`");
    }
}

pub(crate) fn check_series(
    problems: &mut Vec<ConfigProblem>,
    levels: &[Level],
    max_series: usize,
    max_request_size: ConfigSize,
) {
    let mut wrong = |path: &str, message: &str| problems.push(ConfigProblem::at(path, message));
    if levels.is_empty() {
        wrong("levels", "name at least one of process, container, pod");
    }
    if max_series == 0 {
        wrong("max_series", "must be at least 1");
    }
    if max_request_size.bytes() < 4096 {
        wrong("max_request_size", "must be at least 4096 bytes");
    }
}
