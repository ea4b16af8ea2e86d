//! Every metric name, unit and attribute that leaves the agent, in one table. OTLP and Prometheus
//! both read it from here; nothing else spells a metric's name.
//!
//! Names follow OpenTelemetry's semantic conventions where they have one (`process.cpu.time`,
//! `container.cpu.time`, `k8s.pod.cpu.time`, `process.context_switches`, `hw.energy`); the energy
//! metrics per workload are ours, named after them.

use wattpipe_pipeline::{batch::UsageBatch, identity::attr};

/// What a row of usage is summed up into.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One process.
    Process,
    /// All processes of a container.
    Container,
    /// All containers of a pod.
    Pod,
}

/// All levels, by [`Level::index`].
pub const LEVELS: [Level; 3] = [Level::Process, Level::Container, Level::Pod];

impl Level {
    /// Its place in [`LEVELS`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A metric as both protocols know it. All are monotonic sums.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// In OTLP.
    pub name: &'static str,
    /// In OTLP, as UCUM.
    pub unit: &'static str,
    /// In Prometheus, without the `_total` that OpenMetrics puts on samples alone.
    pub prometheus: &'static str,
    /// One line.
    pub description: &'static str,
}

/// CPU time per level, by [`Level::index`].
pub const CPU_TIME: [Metric; 3] = [
    Metric {
        name: "process.cpu.time",
        unit: "s",
        prometheus: "process_cpu_time_seconds",
        description: "CPU time of a process.",
    },
    Metric {
        name: "container.cpu.time",
        unit: "s",
        prometheus: "container_cpu_time_seconds",
        description: "CPU time of a container.",
    },
    Metric {
        name: "k8s.pod.cpu.time",
        unit: "s",
        prometheus: "k8s_pod_cpu_time_seconds",
        description: "CPU time of a pod.",
    },
];

/// Switches away from a process.
pub const CONTEXT_SWITCHES: Metric = Metric {
    name: "process.context_switches",
    unit: "{context_switch}",
    prometheus: "process_context_switches",
    description: "Switches away from a process.",
};

/// Energy per level, by [`Level::index`].
pub const ENERGY: [Metric; 3] = [
    Metric {
        name: "process.energy",
        unit: "J",
        prometheus: "process_energy_joules",
        description: "Energy of a process.",
    },
    Metric {
        name: "container.energy",
        unit: "J",
        prometheus: "container_energy_joules",
        description: "Energy of a container.",
    },
    Metric {
        name: "k8s.pod.energy",
        unit: "J",
        prometheus: "k8s_pod_energy_joules",
        description: "Energy of a pod.",
    },
];

/// Energy of a zone: our own 64-bit counter, which never falls when the hardware's wraps.
pub const HW_ENERGY: Metric = Metric {
    name: "hw.energy",
    unit: "J",
    prometheus: "hw_energy_joules",
    description: "Energy of a zone.",
};

/// Energy of a zone that no workload is known for.
pub const UNATTRIBUTED: Metric = Metric {
    name: "wattpipe.energy.unattributed",
    unit: "J",
    prometheus: "wattpipe_energy_unattributed_joules",
    description: "Energy of a zone that no workload is known for.",
};

/// Which zone a point's energy was measured in.
pub const ENERGY_ZONE: &str = "energy.zone";
/// [`ACTIVE`] or [`IDLE`].
pub const ENERGY_MODE: &str = "energy.mode";
/// Energy for what a workload did.
pub const ACTIVE: &str = "active";
/// Its share of the idle floor.
pub const IDLE: &str = "idle";
/// Set to `estimate` on every point of a zone that no meter reads.
pub const ENERGY_SOURCE: &str = "energy.source";
/// The kind of hardware.
pub const HW_TYPE: &str = "hw.type";
/// The zone, on `hw.energy`.
pub const HW_ID: &str = "hw.id";
/// Who reports.
pub const SERVICE_NAME: &str = "service.name";
/// Marks the series that holds what found no place below `max_series`, as SDKs do.
pub const OVERFLOW: &str = "otel.metric.overflow";
/// Name of the series of processes that lived less than a window.
pub const SHORT_LIVED: &str = "short-lived";
/// Instrumentation scope of all metrics.
pub const SCOPE: &str = "wattpipe";
/// Scope attribute: what the energy per workload rests on.
pub const POWER_MODEL_NAME: &str = "power_model.name";

/// Whether an attribute of a row describes the workload at this level, so that it belongs to its
/// resource. `process.*` belongs to processes alone, `k8s.container.*` not to pods.
pub fn belongs(level: Level, key: &str) -> bool {
    let process = key.starts_with("process.") || key == attr::SYSTEMD_UNIT;
    let container = key.starts_with("container.") || key.starts_with("k8s.container.");
    match level {
        Level::Process => true,
        Level::Container => !process,
        Level::Pod => !process && !container,
    }
}

/// Attributes that become Prometheus labels on every point of a workload: enough to tell any two
/// apart and to find one's way. Other attributes are labels only with
/// `resource_to_telemetry_conversion`.
pub const IDENTIFYING: &[&str] = &[
    attr::PROCESS_PID,
    attr::PROCESS_CREATION_TIME,
    attr::PROCESS_EXECUTABLE_NAME,
    attr::CONTAINER_ID,
    attr::CONTAINER_NAME,
    attr::K8S_POD_UID,
    attr::K8S_POD_NAME,
    attr::K8S_NAMESPACE_NAME,
    attr::K8S_CONTAINER_NAME,
    attr::SYSTEMD_UNIT,
    OVERFLOW,
];

/// What the energy per workload rests on; `None` where there is no energy.
pub fn power_model_name(batch: &UsageBatch) -> Option<&'static str> {
    let mut zones = batch.zones.iter().filter(|z| z.in_total).peekable();
    zones.peek()?;
    Some(if zones.all(|z| &*z.zone.source == "estimate") { "estimate" } else { "wattpipe" })
}
