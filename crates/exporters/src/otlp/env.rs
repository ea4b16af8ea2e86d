//! `OTEL_EXPORTER_OTLP_*`: defaults for what the configuration does not say. Those for metrics
//! (`OTEL_EXPORTER_OTLP_METRICS_*`) go before the general ones.
//!
//! A value that means nothing is left aside with a warning, as the specification asks.

use std::{collections::BTreeMap, path::PathBuf};

use tracing::warn;
use wattpipe_pipeline::units::{ConfigDuration, Secret};

use super::config::{Compression, OtlpGrpcConfig, OtlpHttpConfig, TlsConfig};

/// The process's own environment.
pub(super) fn process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Whether the metrics' own endpoint comes from the environment while the configuration names an
/// `endpoint`: what the configuration says goes before.
pub(super) fn is_overruled(own: &str, config: &OtlpHttpConfig, default: &OtlpHttpConfig) -> bool {
    default.metrics_endpoint.as_deref() == Some(own) && default.endpoint != config.endpoint
}

/// What the environment says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Defaults {
    endpoint: Option<String>,
    metrics_endpoint: Option<String>,
    pub(super) headers: BTreeMap<String, Secret>,
    pub(super) compression: Option<Compression>,
    pub(super) timeout: Option<ConfigDuration>,
    insecure: Option<bool>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

impl Defaults {
    /// Reads it through `get`.
    pub(super) fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let filled =
            |name: String| get(&name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let both = |key: &str| {
            filled(format!("OTEL_EXPORTER_OTLP_METRICS_{key}"))
                .or_else(|| filled(format!("OTEL_EXPORTER_OTLP_{key}")))
        };
        let path = |key: &str| both(key).map(PathBuf::from);
        Self {
            endpoint: filled("OTEL_EXPORTER_OTLP_ENDPOINT".into()),
            metrics_endpoint: filled("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT".into()),
            headers: both("HEADERS").map(|v| headers(&v)).unwrap_or_default(),
            compression: both("COMPRESSION").and_then(|v| match v.as_str() {
                "gzip" => Some(Compression::Gzip),
                "zstd" => Some(Compression::Zstd),
                "none" => Some(Compression::None),
                other => ignored("COMPRESSION", other),
            }),
            timeout: both("TIMEOUT").and_then(|v| match v.parse() {
                Ok(ms) => Some(ConfigDuration::from_millis(ms)),
                Err(_) => ignored("TIMEOUT", &v),
            }),
            insecure: both("INSECURE").map(|v| v.eq_ignore_ascii_case("true")),
            ca_file: path("CERTIFICATE"),
            cert_file: path("CLIENT_CERTIFICATE"),
            key_file: path("CLIENT_KEY"),
        }
    }

    pub(super) fn grpc_endpoint(self, config: &mut OtlpGrpcConfig) {
        set(&mut config.endpoint, self.metrics_endpoint.or(self.endpoint));
    }

    pub(super) fn http_endpoints(self, config: &mut OtlpHttpConfig) {
        set(&mut config.endpoint, self.endpoint);
        // As it stands: only the general endpoint gets a path appended.
        config.metrics_endpoint = self.metrics_endpoint;
    }

    pub(super) fn tls(&self) -> Option<TlsConfig> {
        let said = self.insecure.is_some()
            || self.ca_file.is_some()
            || self.cert_file.is_some()
            || self.key_file.is_some();
        said.then(|| TlsConfig {
            insecure: self.insecure.unwrap_or(false),
            ca_file: self.ca_file.clone(),
            cert_file: self.cert_file.clone(),
            key_file: self.key_file.clone(),
            ..TlsConfig::default()
        })
    }
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

fn ignored<T>(key: &str, value: &str) -> Option<T> {
    warn!("OTEL_EXPORTER_OTLP_{key}: `{value}` means nothing and is ignored");
    None
}

/// `k=v,k2=v2`, values URL-encoded.
fn headers(text: &str) -> BTreeMap<String, Secret> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(k, v)| (k.trim().to_ascii_lowercase(), Secret::from(percent_decoded(v.trim()))))
        .filter(|(k, _)| !k.is_empty())
        .collect()
}

/// `%41` becomes `A`, as in the values of OpenTelemetry's variables; what is no such escape stays.
pub fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Defaults {
        Defaults::read(|name| {
            let name = name.strip_prefix("OTEL_EXPORTER_OTLP_")?;
            vars.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn metrics_go_before_the_general() {
        let vars = [
            ("ENDPOINT", "http://all:4318"),
            ("METRICS_ENDPOINT", "http://metrics:9/x"),
            ("TIMEOUT", "1500"),
            ("METRICS_TIMEOUT", "2500"),
            ("COMPRESSION", "none"),
            ("HEADERS", "Authorization=Bearer%20s3,x=1"),
            ("CERTIFICATE", "/ca.pem"),
        ];
        let http = OtlpHttpConfig::with_env(read(&vars));
        assert_eq!(http.endpoint, "http://all:4318");
        assert_eq!(http.metrics_endpoint.as_deref(), Some("http://metrics:9/x"));
        assert_eq!(http.timeout, ConfigDuration::from_millis(2500));
        assert_eq!(http.compression, Compression::None);
        assert_eq!(http.headers["authorization"].expose(), "Bearer s3");
        assert_eq!(http.tls.as_ref().unwrap().ca_file, Some("/ca.pem".into()));

        // The configuration goes before both.
        let mut said = http.clone();
        let overruled = |said: &OtlpHttpConfig| is_overruled("http://metrics:9/x", said, &http);
        assert!(!overruled(&said));
        said.endpoint = "http://said:4318".into();
        assert!(overruled(&said) && !is_overruled("http://said:1/y", &said, &http));

        let grpc = OtlpGrpcConfig::with_env(read(&vars));
        assert_eq!(grpc.endpoint, "http://metrics:9/x");
    }

    #[test]
    fn every_variable_of_the_specification_has_its_key() {
        let vars = [
            ("ENDPOINT", "https://all:4318/base/"),
            ("METRICS_INSECURE", "true"),
            ("METRICS_COMPRESSION", "gzip"),
            ("COMPRESSION", "none"),
            ("METRICS_HEADERS", "api-key=a%3Db%2Cc , Tenant = t"),
            ("HEADERS", "left=out"),
            ("METRICS_CERTIFICATE", "/m.pem"),
            ("CERTIFICATE", "/ca.pem"),
            ("CLIENT_CERTIFICATE", "/c.pem"),
            ("CLIENT_KEY", "/k.pem"),
            ("TIMEOUT", "0"),
        ];
        let grpc = OtlpGrpcConfig::with_env(read(&vars));
        let headers: Vec<_> = grpc.headers.iter().map(|(k, v)| (&k[..], v.expose())).collect();
        assert_eq!(headers, [("api-key", "a=b,c"), ("tenant", "t")]);
        assert_eq!(grpc.compression, Compression::Gzip);
        assert_eq!(grpc.timeout, ConfigDuration::from_millis(0));
        let tls = grpc.tls.unwrap();
        assert!(tls.insecure);
        assert_eq!(tls.ca_file, Some("/m.pem".into()));
        assert_eq!((tls.cert_file, tls.key_file), (Some("/c.pem".into()), Some("/k.pem".into())));
        let http = OtlpHttpConfig::with_env(read(&vars));
        let url = super::super::http::target(&http).unwrap();
        assert_eq!(url, "https://all:4318/base/v1/metrics");
    }

    #[test]
    fn nonsense_is_ignored() {
        let got = read(&[("TIMEOUT", "soon"), ("COMPRESSION", "brotli"), ("ENDPOINT", " ")]);
        assert_eq!(got, Defaults::default());
        assert_eq!(percent_decoded("a%2Cb%zz%"), "a,b%zz%");
    }
}
