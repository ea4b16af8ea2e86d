//! The configuration of `otlp_grpc` and `otlp_http`.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Config, ConfigProblem,
    units::{ConfigDuration, ConfigSize, Secret},
};

use super::{encode::EncoderOptions, env, exporter::Protocol};
use crate::{
    missing,
    queue::{QueueConfig, QueueOptions, RetryConfig, Transport, config as queue_config},
    semconv::Level,
};

/// How the agent introduces itself.
pub(super) const USER_AGENT: &str = concat!("wattpipe/", env!("CARGO_PKG_VERSION"));
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

/// A configuration of an OTLP exporter: the keys that all have stand here once, since serde cannot
/// flatten a block of them and refuse unknown keys at the same time. The transport's module has a
/// `target` that says what is wrong with the endpoint, and a `transport` that connects.
macro_rules! otlp_config {
    (
        $(#[$doc:meta])* $config:ident: $name:literal, $alias:literal, $line:literal,
        $module:ident, $endpoints:ident
        $(#[$endpoint_doc:meta])* endpoint: $endpoint:literal,
        own: { $($(#[$own_doc:meta])* $own:ident: $own_type:ty,)* }
        $(#[$tls_doc:meta])* tls,
        timeout: $timeout:literal
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $config {
            $(#[$endpoint_doc])*
            pub endpoint: String,
            $($(#[$own_doc])* pub $own: $own_type,)*
            $(#[$tls_doc])*
            pub tls: Option<TlsConfig>,
            /// Sent with every request.
            pub headers: BTreeMap<String, Secret>,
            /// `gzip`, `zstd` or `none`.
            pub compression: Compression,
            /// For each attempt; 0: no limit.
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

        impl Default for $config {
            fn default() -> Self {
                Self::with_env(env::Defaults::read(env::process))
            }
        }

        impl $config {
            pub(super) fn with_env(env: env::Defaults) -> Self {
                let mut config = Self {
                    endpoint: $endpoint.to_owned(),
                    $($own: Default::default(),)*
                    tls: env.tls(),
                    headers: env.headers.clone(),
                    compression: env.compression.unwrap_or_default(),
                    timeout: env.timeout.unwrap_or(ConfigDuration::from_secs($timeout)),
                    retry_on_failure: RetryConfig::default(),
                    sending_queue: QueueConfig::default(),
                    temporality: Temporality::Cumulative,
                    levels: default_levels(),
                    max_series: MAX_SERIES,
                    resource_to_telemetry_conversion: false,
                    max_request_size: MAX_REQUEST_SIZE,
                };
                env.$endpoints(&mut config);
                config
            }
        }

        impl Protocol for $config {
            const NAME: &'static str = $name;
            const ALIASES: &'static [&'static str] = &[$alias];
            const DOC: &'static str = $line;

            fn shared(&self) -> Shared<'_> {
                Shared {
                    tls: self.tls.as_ref(),
                    headers: &self.headers,
                    timeout: self.timeout,
                    retry: &self.retry_on_failure,
                    queue: &self.sending_queue,
                    temporality: self.temporality,
                    levels: &self.levels,
                    max_series: self.max_series,
                    conversion: self.resource_to_telemetry_conversion,
                    max_request_size: self.max_request_size,
                }
            }

            fn transport(&self) -> Result<Arc<dyn Transport>, String> {
                super::$module::transport(self)
            }
        }

        impl Config for $config {
            fn check(&self) -> Vec<ConfigProblem> {
                let mut problems = self.shared().check();
                problems.extend(super::$module::target(self).err());
                problems
            }

            fn missing(&self) -> Vec<ConfigProblem> {
                self.shared().missing()
            }
        }
    };
}

otlp_config! {
    /// Configuration of `otlp_grpc`.
    OtlpGrpcConfig: "otlp_grpc", "otlp", "Sends OTLP metrics over gRPC.",
    grpc, grpc_endpoint
    /// The receiver: `host:port`, or a URL whose scheme tells plain text (`http`) from TLS.
    endpoint: "localhost:4317",
    own: {}
    /// How the connection is secured; `null`: TLS, but for a loopback endpoint without a scheme.
    tls,
    timeout: 5
}

otlp_config! {
    /// Configuration of `otlp_http`.
    OtlpHttpConfig: "otlp_http", "otlphttp", "Sends OTLP metrics over HTTP, as protobuf or JSON.",
    http, http_endpoints
    /// Base URL of the receiver; `/v1/metrics` is appended.
    endpoint: "http://localhost:4318",
    own: {
        /// Full URL, instead of `endpoint`.
        metrics_endpoint: Option<String>,
        /// `proto` or `json`.
        encoding: Encoding,
    }
    /// How an `https` connection is secured.
    tls,
    timeout: 30
}

/// The keys that both configurations have.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    tls: Option<&'a TlsConfig>,
    headers: &'a BTreeMap<String, Secret>,
    timeout: ConfigDuration,
    retry: &'a RetryConfig,
    queue: &'a QueueConfig,
    temporality: Temporality,
    levels: &'a [Level],
    max_series: usize,
    conversion: bool,
    max_request_size: ConfigSize,
}

impl Shared<'_> {
    pub(super) fn encoder(&self) -> EncoderOptions {
        EncoderOptions {
            temporality: self.temporality,
            levels: self.levels.to_vec(),
            max_series: self.max_series,
            resource_to_telemetry_conversion: self.conversion,
        }
    }

    pub(super) fn queue(&self, id: &str) -> QueueOptions {
        let (points, bytes) = self.queue.largest();
        QueueOptions {
            id: id.to_owned(),
            queue: self.queue.clone(),
            retry: self.retry.clone(),
            timeout: self.timeout.0,
            max_request_size: usize::try_from(self.max_request_size.bytes().min(bytes))
                .unwrap_or(usize::MAX),
            max_request_points: points,
        }
    }

    /// Headers as they travel, hidden from logs.
    pub(super) fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            let at = |e: &dyn std::fmt::Display| format!("headers::{name}: {e}");
            let key: HeaderName = name.parse().map_err(|e| at(&e))?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|e| at(&e))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        Ok(headers)
    }

    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = queue_config::check(self.retry, self.queue);
        check_series(&mut problems, self.levels, self.max_series, self.max_request_size);
        let mut wrong = |path: &str, message: &str| problems.push(ConfigProblem::at(path, message));
        for (name, value) in self.headers {
            let at = format!("headers.{name}");
            if name.parse::<HeaderName>().is_err() {
                wrong(&at, "not a valid header name");
            } else if HeaderValue::from_str(value.expose()).is_err() {
                wrong(&at, "the value is not valid in a header");
            }
        }
        let Some(tls) = self.tls else { return problems };
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
        problems
    }

    fn missing(&self) -> Vec<ConfigProblem> {
        let storage = self.queue.storage.as_deref().filter(|_| self.queue.enabled);
        let storage =
            storage.and_then(|path| missing::writable_folder("sending_queue.storage", path));
        let files = self.tls.map(|tls| {
            [
                ("tls.ca_file", &tls.ca_file),
                ("tls.cert_file", &tls.cert_file),
                ("tls.key_file", &tls.key_file),
            ]
        });
        let files = files.into_iter().flatten();
        let files = files.filter_map(|(key, path)| missing::readable(key, path.as_deref()));
        storage.into_iter().chain(files).collect()
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
