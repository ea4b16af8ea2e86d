//! `timeout`, `retry_on_failure` and `sending_queue`: the Collector's keys, defaults and meaning.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    ConfigProblem,
    units::{ConfigDuration, ConfigSize},
};

/// What is done when a request fails in a way that may pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryConfig {
    /// Try again at all.
    pub enabled: bool,
    /// Wait after the first failure.
    pub initial_interval: ConfigDuration,
    /// Part of the wait that is chosen at random, in both directions.
    pub randomization_factor: f64,
    /// Factor from one wait to the next.
    pub multiplier: f64,
    /// Longest wait.
    pub max_interval: ConfigDuration,
    /// After this long a request is given up; 0: never.
    pub max_elapsed_time: ConfigDuration,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            initial_interval: ConfigDuration::from_secs(5),
            randomization_factor: 0.5,
            multiplier: 1.5,
            max_interval: ConfigDuration::from_secs(30),
            max_elapsed_time: ConfigDuration::from_secs(300),
        }
    }
}

/// What the sizes of a queue or batch count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sizer {
    /// Requests.
    #[default]
    Requests,
    /// Data points.
    Items,
    /// Encoded bytes.
    Bytes,
}

/// Requests that wait for the receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Without a queue each window waits until the one before is delivered or given up.
    pub enabled: bool,
    /// Requests of one window that may be on their way at once. Windows stay in order.
    pub num_consumers: usize,
    /// What `queue_size` counts.
    pub sizer: Sizer,
    /// What the queue holds at most, requests on their way included.
    pub queue_size: u64,
    /// Wait for space where the queue is full; otherwise what finds no place is dropped, and
    /// counted. A replayed stream always waits.
    pub block_on_overflow: bool,
    /// Merge small requests; `null` sends each as it is.
    pub batch: Option<BatchConfig>,
    /// Directory that keeps the queue over restarts and kill -9; `null` keeps it in memory.
    pub storage: Option<PathBuf>,
    /// What the stored queue holds at most, in bytes; beyond it the oldest is dropped, and counted.
    pub max_storage_size: ConfigSize,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            num_consumers: 10,
            sizer: Sizer::Requests,
            queue_size: 1000,
            block_on_overflow: false,
            batch: None,
            storage: None,
            max_storage_size: ConfigSize::mib(1024),
        }
    }
}

/// How small requests are merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// Longest wait for more.
    pub flush_timeout: ConfigDuration,
    /// What the sizes count: `items` or `bytes`; `null`: as the queue's `sizer`, else `items`.
    pub sizer: Option<Sizer>,
    /// A merged request of this size is sent at once.
    pub min_size: u64,
    /// Requests are merged, and divided, up to this size; 0: no limit but `max_request_size`.
    pub max_size: u64,
}

impl QueueConfig {
    /// What `batch` counts.
    pub(crate) fn batch_sizer(&self) -> Sizer {
        let own = self.batch.as_ref().and_then(|batch| batch.sizer);
        match own.unwrap_or(self.sizer) {
            Sizer::Requests => Sizer::Items,
            sizer => sizer,
        }
    }

    /// Most points and bytes of a request that `batch` allows.
    pub(crate) fn largest(&self) -> (u64, u64) {
        match self.batch.as_ref().map_or(0, |batch| batch.max_size) {
            0 => (u64::MAX, u64::MAX),
            max if self.batch_sizer() == Sizer::Bytes => (u64::MAX, max),
            max => (max, u64::MAX),
        }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self {
            flush_timeout: ConfigDuration::from_millis(200),
            sizer: None,
            min_size: 8192,
            max_size: 0,
        }
    }
}

/// What is wrong with them, for an exporter's `Config::check`.
pub(crate) fn check(retry: &RetryConfig, queue: &QueueConfig) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    let mut wrong = |path: &str, message: &str| problems.push(ConfigProblem::at(path, message));
    if !(0.0..=1.0).contains(&retry.randomization_factor) {
        wrong("retry_on_failure.randomization_factor", "must be between 0 and 1");
    }
    if !(retry.multiplier >= 1.0 && retry.multiplier.is_finite()) {
        wrong("retry_on_failure.multiplier", "must be at least 1");
    }
    if queue.num_consumers == 0 {
        wrong("sending_queue.num_consumers", "must be at least 1");
    }
    if queue.queue_size == 0 {
        wrong("sending_queue.queue_size", "must be at least 1");
    }
    if let Some(batch) = &queue.batch {
        if batch.max_size > 0 && batch.max_size < batch.min_size {
            wrong("sending_queue.batch.max_size", "must be at least `min_size`, or 0");
        }
        if batch.sizer == Some(Sizer::Requests) {
            wrong("sending_queue.batch.sizer", "must be `items` or `bytes`");
        }
        if batch.flush_timeout.0.is_zero() {
            wrong("sending_queue.batch.flush_timeout", "must be greater than 0");
        }
        if queue.batch_sizer() == queue.sizer && batch.min_size > queue.queue_size {
            wrong("sending_queue.batch.min_size", "must be at most `queue_size`");
        }
    }
    if queue.storage.is_some() && !queue.enabled {
        wrong("sending_queue.storage", "has no effect with `enabled: false`");
    }
    problems
}
