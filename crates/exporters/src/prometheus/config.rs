//! The configuration of `prometheus`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{Config, ConfigProblem, units::ConfigDuration};

use crate::{
    otlp::config::{MAX_REQUEST_SIZE, MAX_SERIES, check_series, default_levels},
    semconv::Level,
};

/// Configuration of `prometheus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrometheusConfig {
    /// Address and port to listen on.
    pub endpoint: String,
    /// Path of the page.
    pub path: String,
    /// How long an ended workload stays visible: longer than any scraper's interval.
    pub metric_expiration: ConfigDuration,
    /// Levels that have series.
    pub levels: Vec<Level>,
    /// Workloads per level that have series of their own; the rest shares an overflow series.
    pub max_series: usize,
    /// Make every attribute a label, not only those that identify a workload.
    pub resource_to_telemetry_conversion: bool,
}

impl Default for PrometheusConfig {
    fn default() -> Self {
        Self {
            endpoint: "127.0.0.1:9464".to_owned(),
            path: "/metrics".to_owned(),
            metric_expiration: ConfigDuration::from_secs(90),
            levels: default_levels(),
            max_series: MAX_SERIES,
            resource_to_telemetry_conversion: false,
        }
    }
}

impl Config for PrometheusConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems: Vec<_> =
            ConfigProblem::of_listener("endpoint", &self.endpoint).into_iter().collect();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        if !self.path.starts_with('/') || !self.path.chars().all(plain) {
            problems.push(ConfigProblem::at(
                "path",
                "must begin with `/` and hold letters, digits, `-`, `_`, `.` and `/` alone",
            ));
        }
        check_series(&mut problems, &self.levels, self.max_series, MAX_REQUEST_SIZE);
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_listened_on_is_an_endpoint() {
        let check = |endpoint: &str, ok| {
            let config =
                PrometheusConfig { endpoint: endpoint.to_owned(), ..PrometheusConfig::default() };
            assert_eq!(config.check().is_empty(), ok, "{endpoint}");
        };
        check("127.0.0.1:9464", true);
        check("[::]:9464", true);
        check("localhost:0", true);
        for wrong in ["", "nowhere", ":9464", "0.0.0.0:x", "http://0.0.0.0:9464", "host:1/x"] {
            check(wrong, false);
        }
    }
}
