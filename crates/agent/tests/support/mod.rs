//! A small registry with the names of the real one, for tests of loading and running: its keys
//! stay put when the real components change.
#![allow(missing_docs, unreachable_pub, reason = "a module of each test binary")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_agent::{Agent, AgentBuilder};
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, ConfigProblem, ExportError, Exporter,
    ExporterComponent, Processor, ProcessorComponent, ProcessorError, Source, SourceComponent,
    SourceContext, SourceError, async_trait,
    batch::{UsageBatch, Window},
    registry::BuildError,
    units::{ConfigDuration, ConfigSize, Nanos, Secret},
};
use wattpipe_processors::{aggregate::Aggregate, filter::Filter};

/// The test registry's builder.
pub fn agent() -> AgentBuilder {
    Agent::builder()
        .source::<Ebpf>()
        .source::<Procfs>()
        .processor::<Delta>()
        .processor::<Attribution>()
        .processor::<PowerModel>()
        .processor::<Top>()
        .processor::<Filter>()
        .processor::<Aggregate>()
        .exporter::<Stdout>()
        .exporter::<Otlp>()
}

/// `auto`, `on` or `off`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    #[default]
    Auto,
    On,
    Off,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Meters {
    Auto(AutoWord),
    List(Vec<String>),
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AutoWord {
    Auto,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SourceConfig {
    pub window: ConfigDuration,
    pub ring_buffer_size: ConfigSize,
    pub batch_events: u32,
    pub cycles: Switch,
    pub meters: Meters,
    /// Windows until it ends by itself; 0 never does.
    pub windows: u64,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            window: ConfigDuration::from_millis(20),
            ring_buffer_size: ConfigSize::mib(8),
            batch_events: 128,
            cycles: Switch::Auto,
            meters: Meters::Auto(AutoWord::Auto),
            windows: 0,
        }
    }
}

impl Config for SourceConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        if self.window.nanos().0 < 10_000_000 {
            problems.push(ConfigProblem::at("window", "less than 10ms is not supported"));
        }
        if self.batch_events == 0 {
            problems.push(ConfigProblem::at("batch_events", "must be at least 1"));
        }
        problems
    }
}

macro_rules! source {
    ($type:ident, $name:literal, $emits:expr) => {
        pub struct $type(SourceConfig);

        #[async_trait]
        impl Source for $type {
            async fn run(self: Box<Self>, context: SourceContext) -> Result<(), SourceError> {
                run_source(self.0, context).await
            }
        }

        impl SourceComponent for $type {
            const NAME: &'static str = $name;
            const DOC: &'static str = "Empty windows for tests.";
            const EMITS: BatchKind = $emits;
            type Config = SourceConfig;
            fn build(config: SourceConfig, _: &BuildContext) -> Result<Self, BuildError> {
                Ok(Self(config))
            }
        }
    };
}

source!(Ebpf, "ebpf", BatchKind::Switches);
source!(Procfs, "procfs", BatchKind::Usage);

async fn run_source(config: SourceConfig, mut context: SourceContext) -> Result<(), SourceError> {
    for number in 1.. {
        tokio::select! {
            () = context.shutdown.wait() => break,
            () = tokio::time::sleep(config.window.0) => {}
        }
        let window = config.window.nanos().0;
        let batch = UsageBatch {
            window: Window {
                start: Nanos((number - 1) * window),
                end: Nanos(number * window),
                ..Window::default()
            },
            rows: vec![],
            zones: vec![],
            readings: vec![],
            slices: vec![],
            live: true,
        };
        if context.out.send(Batch::Usage(Arc::new(batch))).await.is_err()
            || number == config.windows
        {
            break;
        }
    }
    Ok(())
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Nothing {}
impl Config for Nothing {}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AttributionConfig {
    pub command_line: bool,
    pub kubernetes: Option<Kubernetes>,
}
impl Config for AttributionConfig {}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    pub kubelet: Option<Kubelet>,
    pub labels: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Kubelet {
    pub endpoint: String,
    pub token_file: Option<std::path::PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TopConfig {
    pub n: u32,
    pub idle_watts: std::collections::BTreeMap<String, f64>,
}
impl Default for TopConfig {
    fn default() -> Self {
        Self { n: 50, idle_watts: Default::default() }
    }
}
impl Config for TopConfig {}

macro_rules! processor {
    ($type:ident, $name:literal, $config:ty, $takes:expr, $passes:expr, $slices:expr, $merges:expr) => {
        pub struct $type;
        impl Processor for $type {
            fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
                Ok(Some(batch))
            }
        }
        impl ProcessorComponent for $type {
            const NAME: &'static str = $name;
            const DOC: &'static str = "Passes everything on, for tests.";
            const TAKES: BatchKind = $takes;
            const EMITS: BatchKind = BatchKind::Usage;
            const PASSES: bool = $passes;
            const NEEDS_SLICES: bool = $slices;
            const MERGES_ROWS: bool = $merges;
            type Config = $config;
            fn build(_: $config, _: &BuildContext) -> Result<Self, BuildError> {
                Ok(Self)
            }
        }
    };
}

processor!(Delta, "delta", Nothing, BatchKind::Switches, true, false, false);
processor!(Attribution, "attribution", AttributionConfig, BatchKind::Usage, false, false, false);
processor!(PowerModel, "power_model", Nothing, BatchKind::Usage, false, true, false);
processor!(Top, "top", TopConfig, BatchKind::Usage, false, false, true);

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    #[default]
    Table,
    Json,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StdoutConfig {
    pub format: Format,
    pub top: u32,
}
impl Config for StdoutConfig {}

pub struct Stdout;
#[async_trait]
impl Exporter for Stdout {
    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let _ = batch;
        Ok(())
    }
    async fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        Ok(())
    }
}
impl ExporterComponent for Stdout {
    const NAME: &'static str = "stdout";
    const DOC: &'static str = "Takes windows, for tests.";
    type Config = StdoutConfig;
    fn build(_: StdoutConfig, _: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpConfig {
    pub endpoint: String,
    pub token: Secret,
    pub timeout: ConfigDuration,
    pub headers: std::collections::BTreeMap<String, Secret>,
    pub tls: Option<Tls>,
}
impl Config for OtlpConfig {}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    pub insecure: bool,
}

pub struct Otlp;
#[async_trait]
impl Exporter for Otlp {
    async fn export(&mut self, _: Batch) -> Result<(), ExportError> {
        Ok(())
    }
}
impl ExporterComponent for Otlp {
    const NAME: &'static str = "otlp_grpc";
    const ALIASES: &'static [&'static str] = &["otlp"];
    const DOC: &'static str = "Takes windows, for tests.";
    type Config = OtlpConfig;
    fn build(_: OtlpConfig, _: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self)
    }
}
