//! The configuration of `file`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Config, ConfigProblem,
    units::{ConfigDuration, ConfigSize},
};

use crate::{
    otlp::config::{MAX_REQUEST_SIZE, MAX_SERIES, Temporality, check_series, default_levels},
    semconv::Level,
};

/// What the file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One JSON object a line: windows, zones, usage.
    #[default]
    Jsonl,
    /// One observation a line, with fixed columns and one header.
    Csv,
    /// One OTLP `ExportMetricsServiceRequest` as JSON a line, the Collector's file format.
    OtlpJson,
    /// The raw records of a source, for `replay`.
    Recording,
}

/// How it is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    #[serde(alias = "")]
    None,
    /// Zstandard frames, one per flush; `zstdcat` reads the file at any time.
    Zstd,
}

/// When a new file is begun, and how many old ones are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RotationConfig {
    /// Megabytes (2^20 bytes) a file may reach before a new one is begun.
    pub max_megabytes: u64,
    /// Also begin a new file when the current one is this old; `null`: never.
    pub max_age: Option<ConfigDuration>,
    /// Days that old files are kept; 0: for ever.
    pub max_days: u32,
    /// Old files that are kept; 0: all.
    pub max_backups: u32,
}

impl Default for RotationConfig {
    fn default() -> Self {
        Self { max_megabytes: 100, max_age: None, max_days: 0, max_backups: 100 }
    }
}

/// Configuration of `file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FileConfig {
    /// Where to write. Required.
    pub path: PathBuf,
    /// What to write.
    pub format: Format,
    /// Go on after what the file holds; otherwise a start empties it. Rotated files are always
    /// appended to.
    pub append: bool,
    /// `none` or `zstd`.
    pub compression: Compression,
    /// Longest time a record waits in memory.
    pub flush_interval: ConfigDuration,
    /// Begin new files and keep old ones; `null` writes one file.
    pub rotation: Option<RotationConfig>,
    /// Make the directory of `path` where it is missing.
    pub create_directory: bool,
    /// `otlp_json`: `cumulative` or `delta`.
    pub temporality: Temporality,
    /// `otlp_json`: levels that have series.
    pub levels: Vec<Level>,
    /// `otlp_json`: workloads per level that have series of their own.
    pub max_series: usize,
    /// `otlp_json`: copy resource attributes onto the points.
    pub resource_to_telemetry_conversion: bool,
    /// What waits in memory while the disk takes nothing; beyond it the oldest is dropped, and
    /// counted.
    pub max_buffer: ConfigSize,
}

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            format: Format::Jsonl,
            append: false,
            compression: Compression::None,
            flush_interval: ConfigDuration::from_secs(1),
            rotation: None,
            create_directory: false,
            temporality: Temporality::Cumulative,
            levels: default_levels(),
            max_series: MAX_SERIES,
            resource_to_telemetry_conversion: false,
            max_buffer: ConfigSize::mib(16),
        }
    }
}

impl Config for FileConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        if self.path.as_os_str().is_empty() {
            problems.push(ConfigProblem::at("path", "missing key `path`: name the file to write"));
        }
        if self.flush_interval.0.is_zero() {
            problems.push(ConfigProblem::at("flush_interval", "must be greater than 0"));
        }
        if self.format == Format::Recording && self.append {
            let why = "a recording cannot go on after another: the time between them is unknown";
            problems.push(ConfigProblem::at("append", why));
        }
        if self.format == Format::Recording && self.rotation.is_some() {
            let why = "a recording is one stream: its parts could not be replayed";
            problems.push(ConfigProblem::at("rotation", why));
        }
        check_series(&mut problems, &self.levels, self.max_series, MAX_REQUEST_SIZE);
        if let Some(rotation) = &self.rotation
            && rotation.max_megabytes == 0
        {
            problems.push(ConfigProblem::at("rotation.max_megabytes", "must be at least 1"));
        }
        problems
    }
}
