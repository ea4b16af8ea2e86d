//! Configuration of the `ebpf` source.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use wattpipe_ebpf_probe_common::MAX_BATCH;
use wattpipe_pipeline::{
    Config, ConfigProblem,
    units::{ConfigDuration, ConfigSize},
};

use crate::meter::MeterSelection;

/// Configuration of `ebpf`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EbpfConfig {
    /// Distance of window edges: CPU time and meters are cut at the same instant.
    pub window: ConfigDuration,
    /// Size of the ring between kernel and agent; rounded up to a power of two of pages.
    pub ring_buffer_size: ConfigSize,
    /// Switches a CPU collects before it sends them, 1 to 128.
    pub batch_events: u32,
    /// Where a switch's time comes from.
    pub clock: Clock,
    /// Hardware CPU cycles.
    pub cycles: Cycles,
    /// How the probe attaches.
    pub attach: Attach,
    /// Which energy meters to read.
    pub meters: MeterSelection,
    /// Distance of meter readings between window edges; auto: 100ms where a meter is that fine and
    /// the machine is not idle.
    pub meter_interval: MeterInterval,
}

impl Default for EbpfConfig {
    fn default() -> Self {
        Self {
            window: ConfigDuration::from_secs(1),
            ring_buffer_size: ConfigSize::mib(8),
            batch_events: 128,
            clock: Clock::Monotonic,
            cycles: Cycles::Auto,
            attach: Attach::Auto,
            meters: MeterSelection::Auto,
            meter_interval: MeterInterval::Auto,
        }
    }
}

impl Config for EbpfConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        if !(10_000_000..=3_600_000_000_000).contains(&self.window.nanos().0) {
            problems.push(ConfigProblem::at("window", "must be between 10ms and 1h"));
        }
        if !(4096..=1 << 30).contains(&self.ring_buffer_size.bytes()) {
            problems.push(ConfigProblem::at("ring_buffer_size", "must be between 4KiB and 1GiB"));
        }
        if !(1..=MAX_BATCH).contains(&(self.batch_events as usize)) {
            problems.push(ConfigProblem::at("batch_events", "must be between 1 and 128"));
        }
        if let MeterInterval::Every(interval) = self.meter_interval
            && interval.nanos().0 < 1_000_000
        {
            problems.push(ConfigProblem::at("meter_interval", "must be at least 1ms"));
        }
        problems
    }
}

/// How often meters are read between edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeterInterval {
    /// As often as makes sense for the meters there are.
    #[default]
    Auto,
    /// This often.
    Every(ConfigDuration),
}

impl Serialize for MeterInterval {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => s.serialize_str("auto"),
            Self::Every(interval) => interval.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for MeterInterval {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            other => other.parse().map(Self::Every).map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for MeterInterval {
    fn schema_name() -> Cow<'static, str> {
        "MeterInterval".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let interval = generator.subschema_for::<ConfigDuration>();
        json_schema!({
            "description": "auto, or a duration: distance of meter readings between edges.",
            "anyOf": [{ "const": "auto" }, interval]
        })
    }
}

/// Where a switch's time comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// `CLOCK_MONOTONIC`.
    #[default]
    Monotonic,
    /// The scheduler's own clock, which leaves stolen and interrupt time out.
    Scheduler,
}

/// Whether to count cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cycles {
    /// Where the hardware counter opens.
    #[default]
    Auto,
    /// Always; an error where it does not open.
    On,
    /// Never.
    Off,
}

/// How the probe attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// `btf`, else `raw_tracepoint`.
    #[default]
    Auto,
    /// Tracepoints with type information: plain loads of kernel fields.
    Btf,
    /// Raw tracepoints: kernel fields are read by a helper.
    RawTracepoint,
}

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Btf => "btf",
            Self::RawTracepoint => "raw_tracepoint",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked() {
        let check = |change: fn(&mut EbpfConfig), path: &str| {
            let mut config = EbpfConfig::default();
            change(&mut config);
            let paths: Vec<_> = config.check().into_iter().map(|p| p.path.join(".")).collect();
            assert_eq!(paths, [path]);
        };
        assert!(EbpfConfig::default().check().is_empty());
        check(|c| c.window = ConfigDuration::from_millis(1), "window");
        check(|c| c.ring_buffer_size = ConfigSize(100), "ring_buffer_size");
        check(|c| c.batch_events = 0, "batch_events");
        check(|c| c.batch_events = 129, "batch_events");
        check(
            |c| c.meter_interval = MeterInterval::Every(ConfigDuration::default()),
            "meter_interval",
        );
    }

    #[test]
    fn names_are_the_contract_s() {
        let config: EbpfConfig = serde_json::from_str(
            r#"{"window":"500ms","ring_buffer_size":"4KiB","clock":"scheduler","cycles":"off",
                "attach":"raw_tracepoint","meters":[],"meter_interval":"50ms"}"#,
        )
        .unwrap();
        assert_eq!(config.attach, Attach::RawTracepoint);
        let every = MeterInterval::Every(ConfigDuration::from_millis(50));
        assert_eq!(config.meter_interval, every);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<EbpfConfig>(&text).unwrap(), config);
        assert_eq!((config.clock, config.cycles), (Clock::Scheduler, Cycles::Off));
    }
}
