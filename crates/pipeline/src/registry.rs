//! What is compiled in: one row per component, made from the component's own constants, so that
//! its name, documentation, defaults and schema have one home.
//!
//! Configuration becomes typed exactly once, here: [`Entry::parse`] turns a value into a
//! [`Factory`] that can only build.

use std::{fmt, path::PathBuf, sync::Arc};

use figment::value::Value;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    batch::BatchKind,
    exporter::{Exporter, ExporterComponent},
    identity::AttributeSet,
    privileges::Privileges,
    processor::{Processor, ProcessorComponent},
    source::{Source, SourceComponent},
    telemetry::Telemetry,
};

/// How settled a component is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Stability {
    /// May change without notice.
    Alpha,
    /// Settled but young.
    Beta,
    /// Changes only with a major version.
    Stable,
}

/// A component's configuration. Defaults have one home, `Default`; unknown keys are refused by
/// `#[serde(default, deny_unknown_fields)]`.
pub trait Config:
    Serialize + DeserializeOwned + JsonSchema + Default + Clone + Send + Sync + 'static
{
    /// What types alone do not say: ranges, patterns, keys that exclude one another.
    fn check(&self) -> Vec<ConfigProblem> {
        Vec::new()
    }

    /// What this host does not have now, such as a folder to write to. Looks and changes nothing;
    /// told as warnings by `validate`, whose host and time may not be those of the run.
    fn missing(&self) -> Vec<ConfigProblem> {
        Vec::new()
    }

    /// Attributes of rows that it names, each with its keys: whoever loads the configuration warns
    /// of one that is nearly a known one.
    fn attributes(&self) -> Vec<(Vec<String>, &str)> {
        Vec::new()
    }
}

/// One thing that is wrong with a configuration, at a key path below the component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Keys from the component's own map downwards.
    pub path: Vec<String>,
    /// What is wrong.
    pub message: String,
    /// What is allowed there: keys or values, for the message and for the nearest name.
    pub allowed: Vec<String>,
}

impl ConfigProblem {
    /// A problem at `path` (dot-separated).
    pub fn at(path: &str, message: impl Into<String>) -> Self {
        Self {
            path: path.split('.').filter(|p| !p.is_empty()).map(str::to_owned).collect(),
            message: message.into(),
            allowed: Vec::new(),
        }
    }

    /// A problem at `path` where `endpoint` is not the `host:port` of a place to listen on.
    pub fn of_listener(path: &str, endpoint: &str) -> Option<Self> {
        let valid = endpoint.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && !host.is_empty() && !host.contains('/')
        });
        (!valid).then(|| {
            let what = "is no address to listen on: write `host:port`, such as 127.0.0.1:9464";
            Self::at(path, format!("`{endpoint}` {what}"))
        })
    }
}

/// Why a component could not be built from valid configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

/// Where the host's file systems are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoots {
    /// `/proc`, or where a container sees the host's.
    pub procfs: PathBuf,
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/sys/fs/cgroup`.
    pub cgroupfs: PathBuf,
}

impl Default for HostRoots {
    fn default() -> Self {
        Self { procfs: "/proc".into(), sysfs: "/sys".into(), cgroupfs: "/sys/fs/cgroup".into() }
    }
}

/// What a component is built with besides its configuration.
#[derive(Clone, Debug, Default)]
pub struct BuildContext {
    /// Its id in the configuration: `type` or `type/name`.
    pub id: String,
    /// Where the host is.
    pub host: HostRoots,
    /// Static resource attributes.
    pub resource: Arc<AttributeSet>,
    /// Where it counts.
    pub telemetry: Telemetry,
    /// All sources of its pipelines read recordings: nothing of this host is to be asked, not even
    /// in the background.
    pub replay: bool,
    /// To be raised around a call that needs them, such as reading another user's `/proc/<pid>/exe`.
    pub privileges: Privileges,
}

/// Validated configuration of one component, ready to build. Made by [`Entry::parse`] alone: the
/// trait is sealed, so that methods can be added.
pub trait Factory<T: ?Sized>: sealed::Sealed + Send + Sync {
    /// Builds it. No I/O.
    ///
    /// # Errors
    /// What the component's own `build` says.
    fn build(&self, context: &BuildContext) -> Result<Box<T>, BuildError>;
    /// The configuration with every default filled in, secrets redacted.
    fn effective(&self) -> serde_json::Value;
    /// Batch kinds it takes with this configuration.
    fn takes(&self) -> &'static [BatchKind];
    /// See [`Config::missing`].
    fn missing(&self) -> Vec<ConfigProblem>;
    /// See [`Config::attributes`].
    fn attributes(&self) -> Vec<(Vec<String>, &str)>;
    /// The value it was parsed from, secrets included: equal values need no restart.
    fn raw(&self) -> &Value;
}

mod sealed {
    /// Keeps [`Factory`](super::Factory) to this module.
    pub trait Sealed {}
}

/// A factory, or everything that is wrong with the configuration.
pub type Parse<T> = Result<Box<dyn Factory<T>>, Vec<ConfigProblem>>;

/// A row of the registry, made by its `of`.
#[non_exhaustive]
pub struct Entry<T: ?Sized + 'static> {
    /// Type in the configuration.
    pub name: &'static str,
    /// Other accepted types.
    pub aliases: &'static [&'static str],
    /// One line on what it does.
    pub doc: &'static str,
    /// How settled it is.
    pub stability: Stability,
    /// Kinds it can take.
    pub takes: &'static [BatchKind],
    /// Kind it emits.
    pub emits: Option<BatchKind>,
    /// See [`ProcessorComponent::PASSES`].
    pub passes: bool,
    /// See [`ProcessorComponent::NEEDS_SLICES`].
    pub needs_slices: bool,
    /// See [`ProcessorComponent::MERGES_ROWS`].
    pub merges_rows: bool,
    /// Validates configuration; an empty value means defaults.
    pub parse: fn(&Value) -> Parse<T>,
    /// JSON Schema of the configuration.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
}

impl<T: ?Sized> Clone for Entry<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: ?Sized> Copy for Entry<T> {}

impl<T: ?Sized> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A source's row.
pub type SourceEntry = Entry<dyn Source>;
/// A processor's row.
pub type ProcessorEntry = Entry<dyn Processor>;
/// An exporter's row.
pub type ExporterEntry = Entry<dyn Exporter>;

impl Entry<dyn Source> {
    /// The row of `S`.
    pub const fn of<S: SourceComponent>() -> Self {
        Self {
            name: S::NAME,
            aliases: &[],
            doc: S::DOC,
            stability: S::STABILITY,
            takes: &[],
            emits: Some(S::EMITS),
            passes: false,
            needs_slices: false,
            merges_rows: false,
            parse: |value| {
                Parsed::<S::Config, _>::parse(
                    value,
                    |config, context| Ok(Box::new(S::build(config, context)?)),
                    |_| &[],
                )
            },
            schema: <S::Config as JsonSchema>::json_schema,
        }
    }
}

impl Entry<dyn Processor> {
    /// The row of `P`.
    pub const fn of<P: ProcessorComponent>() -> Self {
        Self {
            name: P::NAME,
            aliases: &[],
            doc: P::DOC,
            stability: P::STABILITY,
            takes: const { &[P::TAKES] },
            emits: Some(P::EMITS),
            passes: P::PASSES,
            needs_slices: P::NEEDS_SLICES,
            merges_rows: P::MERGES_ROWS,
            parse: |value| {
                Parsed::<P::Config, _>::parse(
                    value,
                    |config, context| Ok(Box::new(P::build(config, context)?)),
                    |_| const { &[P::TAKES] },
                )
            },
            schema: <P::Config as JsonSchema>::json_schema,
        }
    }
}

impl Entry<dyn Exporter> {
    /// The row of `E`.
    pub const fn of<E: ExporterComponent>() -> Self {
        Self {
            name: E::NAME,
            aliases: E::ALIASES,
            doc: E::DOC,
            stability: E::STABILITY,
            takes: E::TAKES,
            emits: None,
            passes: false,
            needs_slices: false,
            merges_rows: false,
            parse: |value| {
                Parsed::<E::Config, _>::parse(
                    value,
                    |config, context| Ok(Box::new(E::build(config, context)?)),
                    E::takes,
                )
            },
            schema: <E::Config as JsonSchema>::json_schema,
        }
    }
}

type BuildFn<C, T> = fn(C, &BuildContext) -> Result<Box<T>, BuildError>;

/// The one factory: typed configuration beside the value it came from.
struct Parsed<C, T: ?Sized> {
    config: C,
    raw: Value,
    build: BuildFn<C, T>,
    takes: fn(&C) -> &'static [BatchKind],
}

impl<C: Config, T: ?Sized + 'static> Parsed<C, T> {
    fn parse(raw: &Value, build: BuildFn<C, T>, takes: fn(&C) -> &'static [BatchKind]) -> Parse<T> {
        Ok(Box::new(Self { config: parse_config(raw)?, raw: raw.clone(), build, takes }))
    }
}

impl<C, T: ?Sized> sealed::Sealed for Parsed<C, T> {}

impl<C: Config, T: ?Sized + 'static> Factory<T> for Parsed<C, T> {
    fn build(&self, context: &BuildContext) -> Result<Box<T>, BuildError> {
        (self.build)(self.config.clone(), context)
    }

    fn effective(&self) -> serde_json::Value {
        // A configuration that serde cannot write would be a bug of its type; `null` shows it.
        serde_json::to_value(&self.config).unwrap_or_default()
    }

    fn takes(&self) -> &'static [BatchKind] {
        (self.takes)(&self.config)
    }

    fn missing(&self) -> Vec<ConfigProblem> {
        self.config.missing()
    }

    fn attributes(&self) -> Vec<(Vec<String>, &str)> {
        self.config.attributes()
    }

    fn raw(&self) -> &Value {
        &self.raw
    }
}

impl<T: ?Sized> Entry<T> {
    /// Whether `name` means this row.
    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// Everything that is compiled in.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// Sources.
    pub sources: Vec<SourceEntry>,
    /// Processors.
    pub processors: Vec<ProcessorEntry>,
    /// Exporters.
    pub exporters: Vec<ExporterEntry>,
}

impl Registry {
    /// The source of this type.
    pub fn source(&self, name: &str) -> Option<&SourceEntry> {
        self.sources.iter().find(|e| e.answers_to(name))
    }

    /// The processor of this type.
    pub fn processor(&self, name: &str) -> Option<&ProcessorEntry> {
        self.processors.iter().find(|e| e.answers_to(name))
    }

    /// The exporter of this type.
    pub fn exporter(&self, name: &str) -> Option<&ExporterEntry> {
        self.exporters.iter().find(|e| e.answers_to(name))
    }
}

/// Typed configuration from a value; an empty one means defaults.
///
/// # Errors
/// All that is wrong with it.
pub fn parse_config<C: Config>(value: &Value) -> Result<C, Vec<ConfigProblem>> {
    let config = match value {
        Value::Empty(..) => C::default(),
        other => {
            other.deserialize::<C>().map_err(|e| e.into_iter().map(problem).collect::<Vec<_>>())?
        }
    };
    let problems = config.check();
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn problem(error: figment::Error) -> ConfigProblem {
    use figment::error::Kind;
    let mut path = error.path;
    let (message, allowed) = match error.kind {
        Kind::UnknownField(name, expected) => {
            path.push(name.clone());
            (format!("unknown key `{name}`"), owned(expected))
        }
        Kind::UnknownVariant(name, expected) => {
            (format!("unknown value `{name}`"), owned(expected))
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            (format!("expected {}, found {}", form(&expected), found(&actual)), vec![])
        }
        Kind::MissingField(name) => (format!("missing key `{name}`"), vec![]),
        other => (other.to_string(), vec![]),
    };
    ConfigProblem { path, message, allowed }
}

/// What serde expects, in the words of somebody who writes YAML.
fn form(expected: &str) -> String {
    let range = |min: &str, max: &str| format!("a whole number from {min} to {max}");
    match expected {
        "u8" => range("0", "255"),
        "u16" => range("0", "65535"),
        "u32" => range("0", "4294967295"),
        "u64" | "usize" | "u128" => "a whole number, not negative".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" | "i128" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" | "bool" => "true or false".to_owned(),
        "a string" | "path string" | "string" => "text".to_owned(),
        "a sequence" => "a list".to_owned(),
        other if other.starts_with("struct ") => "a map of settings".to_owned(),
        other => other.to_owned(),
    }
}

fn found(actual: &figment::error::Actual) -> String {
    use figment::error::Actual;
    match actual {
        Actual::Bool(b) => format!("`{b}`"),
        Actual::Unsigned(n) => format!("`{n}`"),
        Actual::Signed(n) => format!("`{n}`"),
        Actual::Float(n) => format!("`{n}`"),
        Actual::Str(s) => format!("`{s}`"),
        Actual::Char(c) => format!("`{c}`"),
        Actual::Unit | Actual::Option => "nothing".to_owned(),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a map".to_owned(),
        other => other.to_string(),
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}
