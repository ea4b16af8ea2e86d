//! Extensions: what runs beside the pipelines.

use figment::value::Value;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{Config, ConfigProblem, Stability, registry::parse_config};

/// A row of the table of extensions.
#[derive(Clone, Copy, Debug)]
pub struct ExtensionEntry {
    /// Type in the configuration.
    pub name: &'static str,
    /// One line on what it does.
    pub doc: &'static str,
    /// How settled it is.
    pub stability: Stability,
    /// Validates configuration.
    pub parse: fn(&Value) -> Result<Extension, Vec<ConfigProblem>>,
    /// JSON Schema of the configuration.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

/// All extensions.
pub const EXTENSIONS: &[ExtensionEntry] = &[ExtensionEntry {
    name: "health_check",
    doc: "HTTP health: `/` answers while the pipelines make progress, `/ready` once they have begun.",
    stability: Stability::Beta,
    parse: |value| parse_config::<HealthCheck>(value).map(Extension::HealthCheck),
    schema: <HealthCheck as JsonSchema>::json_schema,
}];

/// A configured extension.
#[derive(Clone, Debug, PartialEq)]
pub enum Extension {
    /// `health_check`.
    HealthCheck(HealthCheck),
}

impl Extension {
    /// The configuration with every default filled in.
    pub fn effective(&self) -> serde_json::Value {
        match self {
            Self::HealthCheck(config) => serde_json::to_value(config).unwrap_or_default(),
        }
    }
}

/// Configuration of `health_check`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthCheck {
    /// `host:port` to listen on.
    pub endpoint: String,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self { endpoint: "127.0.0.1:13133".to_owned() }
    }
}

impl Config for HealthCheck {
    fn check(&self) -> Vec<ConfigProblem> {
        ConfigProblem::of_listener("endpoint", &self.endpoint).into_iter().collect()
    }
}
