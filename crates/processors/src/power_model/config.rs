//! What can be configured, and the one home of its defaults.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::registry::{Config, ConfigProblem};

/// Configuration of `power_model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PowerModelConfig {
    /// How a zone's active energy is split among the workloads of its CPUs.
    pub weight: Weight,
    /// What part of a zone's energy is the idle floor's.
    pub idle: Idle,
    /// Measured idle power per zone, in watts: used instead of what is learnt for that zone.
    pub idle_watts: BTreeMap<String, f64>,
    /// Whether time beside a busy sibling thread weighs less.
    pub smt: Smt,
    /// The most a zone can plausibly draw, in watts: readings beyond are dropped. Default: from
    /// the hardware's constraints, or a generous bound.
    pub max_watts: BTreeMap<String, f64>,
    /// Also share the idle joules out among workloads.
    pub attribute_idle: bool,
    /// What is assumed where no meter reads.
    pub estimate: EstimateConfig,
}

impl Default for PowerModelConfig {
    fn default() -> Self {
        Self {
            weight: Weight::Auto,
            idle: Idle::Baseline,
            idle_watts: BTreeMap::new(),
            smt: Smt::Auto,
            max_watts: BTreeMap::new(),
            attribute_idle: false,
            estimate: EstimateConfig::default(),
        }
    }
}

/// The split of active energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// SMT- and frequency-weighted time, with coefficients learnt per workload where they predict
    /// the meter better.
    Auto,
    /// Exactly the share of CPU time.
    CpuTime,
    /// Exactly the share of CPU cycles.
    Cycles,
}

/// The idle floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Learnt from the stream; proportional until it can be trusted.
    Baseline,
    /// In proportion to idle CPU time.
    Proportional,
    /// No idle part is split off.
    None,
}

/// Weighing by sibling overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Smt {
    /// By the overlap, with the weight of a shared core learnt where it can be.
    Auto,
    /// By the overlap, with the published weight (0.55 each of two threads); nothing is learnt.
    Exact,
    /// A second of CPU time is a second, whatever the sibling does.
    None,
}

/// What is assumed where no meter reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EstimateConfig {
    /// Whether to estimate at all.
    pub mode: EstimateMode,
    /// Watts of the whole machine per hardware thread when idle. Default: by CPU model.
    pub idle_watts_per_cpu: Option<f64>,
    /// Watts of the whole machine per hardware thread at full load. Default: by CPU model.
    pub max_watts_per_cpu: Option<f64>,
}

impl Default for EstimateConfig {
    fn default() -> Self {
        Self { mode: EstimateMode::Auto, idle_watts_per_cpu: None, max_watts_per_cpu: None }
    }
}

/// Whether to estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EstimateMode {
    /// Where no meter reads, and always marked.
    Auto,
    /// Never: no meter, no joules.
    Off,
}

impl Config for PowerModelConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        let mut watts = |path: String, value: f64, zero_ok: bool| {
            if !value.is_finite() || value < 0.0 || (value == 0.0 && !zero_ok) {
                let least = if zero_ok { "0 or more" } else { "more than 0" };
                problems.push(ConfigProblem::at(&path, format!("must be watts, {least}")));
            }
        };
        for (zone, &value) in &self.idle_watts {
            watts(format!("idle_watts.{zone}"), value, true);
        }
        for (zone, &value) in &self.max_watts {
            watts(format!("max_watts.{zone}"), value, false);
        }
        let EstimateConfig { idle_watts_per_cpu: idle, max_watts_per_cpu: max, .. } = self.estimate;
        if let Some(idle) = idle {
            watts("estimate.idle_watts_per_cpu".into(), idle, true);
        }
        if let Some(max) = max {
            watts("estimate.max_watts_per_cpu".into(), max, false);
        }
        if let (Some(idle), Some(max)) = (idle, max)
            && max < idle
        {
            problems.push(ConfigProblem::at(
                "estimate.max_watts_per_cpu",
                "must not be below idle_watts_per_cpu",
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, paths: &[&str]) {
        let config: PowerModelConfig = serde_json::from_str(json).unwrap();
        let got: Vec<_> = config.check().into_iter().map(|p| p.path.join(".")).collect();
        assert_eq!(got, paths, "{json}");
    }

    #[test]
    fn watts_must_make_sense() {
        check("{}", &[]);
        check(r#"{"idle_watts":{"package-0":12.5,"dram-0":0}}"#, &[]);
        check(r#"{"idle_watts":{"package-0":-1}}"#, &["idle_watts.package-0"]);
        check(r#"{"max_watts":{"psys":0}}"#, &["max_watts.psys"]);
        check(
            r#"{"estimate":{"idle_watts_per_cpu":2,"max_watts_per_cpu":1}}"#,
            &["estimate.max_watts_per_cpu"],
        );
    }

    #[test]
    fn unknown_keys_and_values_are_refused() {
        for bad in [r#"{"wieght":"auto"}"#, r#"{"weight":"time"}"#, r#"{"estimate":{"x":1}}"#] {
            assert!(serde_json::from_str::<PowerModelConfig>(bad).is_err(), "{bad}");
        }
    }
}
