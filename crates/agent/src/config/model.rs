//! The parts of the file that are not components: `host` and `service`, with their defaults.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Config, ConfigProblem,
    registry::HostRoots,
    units::{ConfigDuration, ConfigSize},
};

/// Where the host's file systems are mounted: for an agent in a container, or a test tree.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// The host's `/proc`.
    pub procfs: PathBuf,
    /// The host's `/sys`.
    pub sysfs: PathBuf,
    /// The host's `/sys/fs/cgroup`.
    pub cgroupfs: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        let HostRoots { procfs, sysfs, cgroupfs } = HostRoots::default();
        Self { procfs, sysfs, cgroupfs }
    }
}

impl Config for Host {}

impl From<Host> for HostRoots {
    fn from(Host { procfs, sysfs, cgroupfs }: Host) -> Self {
        Self { procfs, sysfs, cgroupfs }
    }
}

/// What runs, and how the agent itself behaves.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// Extensions to start, by id.
    pub extensions: Vec<String>,
    /// How long draining may take at shutdown.
    pub shutdown_timeout: ConfigDuration,
    /// Static resource attributes (cluster, environment); `OTEL_RESOURCE_ATTRIBUTES` adds to them,
    /// `null` takes one away.
    pub resource: BTreeMap<String, Option<AttributeValue>>,
    /// Resident memory beyond which the agent sheds rows, with a count, instead of growing.
    pub memory_limit: Option<ConfigSize>,
    /// CPUs that the agent may use itself (`0.02` or `2%` of one CPU); beyond it, windows widen.
    pub cpu_limit: Option<CpuShare>,
    /// What the agent keeps of its privileges.
    pub security: Security,
    /// What the agent tells about itself.
    pub telemetry: OwnTelemetry,
    /// Pipelines by name.
    pub pipelines: BTreeMap<String, Pipeline>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            extensions: Vec::new(),
            shutdown_timeout: ConfigDuration::from_secs(10),
            resource: BTreeMap::new(),
            memory_limit: None,
            cpu_limit: None,
            security: Security::default(),
            telemetry: OwnTelemetry::default(),
            pipelines: BTreeMap::new(),
        }
    }
}

impl Config for Service {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = self.security.check();
        let endpoint = self.telemetry.metrics.endpoint.as_deref();
        problems.extend(
            endpoint.and_then(|e| ConfigProblem::of_listener("telemetry.metrics.endpoint", e)),
        );
        if self.memory_limit.is_some_and(|l| l.bytes() < 16 << 20) {
            problems
                .push(ConfigProblem::at("memory_limit", "less than 16MiB is not enough to run"));
        }
        problems
    }
}

/// One pipeline: component ids in flow order.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pipeline {
    /// Where batches come from.
    pub sources: Vec<String>,
    /// What they pass through, in order.
    pub processors: Vec<String>,
    /// Where they leave.
    pub exporters: Vec<String>,
}

/// The value of a resource attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AttributeValue {
    /// Text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A boolean.
    Bool(bool),
    /// Any other number.
    Number(f64),
}

/// See [`Service::security`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// Capabilities kept permitted (not effective) after start: `auto` keeps those that reload,
    /// hotplug and restart need; `[]` gives all up, and a reload that needs them is refused.
    pub keep_capabilities: KeepCapabilities,
}

impl Default for Security {
    fn default() -> Self {
        Self { keep_capabilities: KeepCapabilities::Auto(Auto::Auto) }
    }
}

impl Security {
    fn check(&self) -> Vec<ConfigProblem> {
        let KeepCapabilities::List(names) = &self.keep_capabilities else { return Vec::new() };
        let known: Vec<String> = caps::all().iter().map(ToString::to_string).collect();
        let mut problems = Vec::new();
        for (i, name) in names.iter().enumerate() {
            if !known.contains(&caps::to_canonical(name)) {
                let mut problem = ConfigProblem::at(
                    &format!("security.keep_capabilities.{i}"),
                    format!("unknown capability `{name}`"),
                );
                problem.allowed.clone_from(&known);
                problem.allowed.sort();
                problems.push(problem);
            }
        }
        problems
    }
}

/// `auto`, or a list of capability names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KeepCapabilities {
    /// What reload, hotplug and restart need.
    Auto(Auto),
    /// Exactly these.
    List(Vec<String>),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// The agent decides.
    Auto,
}

/// The agent's own telemetry.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OwnTelemetry {
    /// Its log, on standard error.
    pub logs: Logs,
    /// Its metrics.
    pub metrics: OwnMetrics,
}

/// See [`OwnTelemetry::logs`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Logs {
    /// The least important level that is logged.
    pub level: LogLevel,
    /// Text for people or JSON for machines.
    pub format: LogFormat,
}

impl Default for Logs {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Text }
    }
}

/// Levels of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what ended or lost something.
    Error,
    /// What needs attention.
    Warn,
    /// What a user wants to know.
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}

/// Forms of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// See [`OwnTelemetry::metrics`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OwnMetrics {
    /// How much is published.
    pub level: MetricsLevel,
    /// `host:port` where Prometheus text is served; nothing listens while it is null.
    pub endpoint: Option<String>,
}

impl Default for OwnMetrics {
    fn default() -> Self {
        Self { level: MetricsLevel::Normal, endpoint: None }
    }
}

/// Levels of own metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricsLevel {
    /// None.
    None,
    /// Only losses and failures.
    Basic,
    /// All but what only developers need.
    Normal,
    /// Everything.
    Detailed,
}

/// A share of CPU time: `0.02` or `2%` of one CPU, `1.5` for one and a half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuShare(pub f64);

impl Serialize for CpuShare {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for CpuShare {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(f64),
            Text(String),
        }
        let wrong =
            || serde::de::Error::custom("expected a share of one CPU above 0, such as 0.02 or 2%");
        let share = match Raw::deserialize(d).map_err(|_| wrong())? {
            Raw::Number(n) => n,
            Raw::Text(t) => {
                let percent = t.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
                percent.ok_or_else(wrong)? / 100.0
            }
        };
        if share.is_finite() && share > 0.0 { Ok(Self(share)) } else { Err(wrong()) }
    }
}

impl JsonSchema for CpuShare {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CpuShare".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A share of one CPU: 0.02 or 2%.",
            "anyOf": [
                { "type": "number", "exclusiveMinimum": 0 },
                { "type": "string", "pattern": "^\\s*[0-9.]+\\s*%\\s*$" }
            ]
        })
    }
}
