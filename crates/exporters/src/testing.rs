//! A builder of usage batches for tests and benchmarks of exporters: reads like the window it
//! makes. Not for production code.

use std::sync::Arc;

use wattpipe_pipeline::{
    batch::{Batch, IdleBasis, RowEnergy, State, UsageBatch, UsageRow, Window, Zone, ZoneUsage},
    identity::{AttributeSet, Process, Value, attr},
    units::{Nanos, Package, Tgid, rfc3339},
};

/// Unix time of monotonic 0 in every batch built here: 2026-09-21T14:13:20Z.
pub const BOOT_UNIX_NS: u64 = 1_790_000_000_000_000_000;

/// A CPU zone of package 0.
pub fn zone(name: &str, source: &str) -> Arc<Zone> {
    Arc::new(Zone {
        name: name.into(),
        hw_type: "cpu".into(),
        package: Some(Package(0)),
        source: source.into(),
        contained_in: None,
        max_energy_range_uj: None,
        max_watts: None,
    })
}

/// Builds one window on two CPUs.
#[derive(Clone, Debug)]
pub struct Usage(UsageBatch);

impl Usage {
    /// A window between two monotonic moments.
    pub fn window(start: u64, end: u64) -> Self {
        Self(UsageBatch {
            window: Window {
                start: Nanos(start),
                end: Nanos(end),
                boot_unix_ns: BOOT_UNIX_NS,
                cpus: 2,
                complete: true,
                ..Window::default()
            },
            rows: Vec::new(),
            zones: Vec::new(),
            readings: Vec::new(),
            slices: Vec::new(),
            live: true,
        })
    }

    /// A zone with its joules, of which `idle` are idle and the rest active.
    pub fn zone(mut self, zone: Arc<Zone>, joules: f64, idle: f64) -> Self {
        self.0.zones.push(ZoneUsage {
            zone,
            start: self.0.window.start,
            idle_basis: IdleBasis::Baseline,
            joules,
            active: joules - idle,
            idle,
            unattributed: 0.0,
            in_total: true,
        });
        self
    }

    /// A process that ran for `cpu` nanoseconds.
    pub fn process(mut self, pid: u32, name: &str, start: u64, cpu: u64) -> Self {
        let mut process = Process::unknown(Tgid(pid));
        process.start_time = Some(Nanos(start));
        process.comm = Some(name.into());
        let mut attributes = AttributeSet::new();
        attributes.set(attr::PROCESS_PID, pid);
        attributes.set(attr::PROCESS_CREATION_TIME, rfc3339(BOOT_UNIX_NS + start));
        attributes.set(attr::PROCESS_EXECUTABLE_NAME, name);
        self.0.rows.push(UsageRow {
            process: Some(Arc::new(process)),
            attributes: Arc::new(attributes),
            state: State::Running,
            cpu: Nanos(cpu),
            cycles: None,
            switches: Some(1),
            energy: Default::default(),
            confidence: None,
        });
        self
    }

    /// An attribute of the row before.
    pub fn attribute(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        if let Some(row) = self.0.rows.last_mut() {
            Arc::make_mut(&mut row.attributes).set(key, value);
        }
        self
    }

    /// Energy of the row before in the zone with this index.
    pub fn energy(mut self, zone: u16, active: f64, idle: f64) -> Self {
        if let Some(row) = self.0.rows.last_mut() {
            row.energy.push(RowEnergy { zone, active, idle });
        }
        self
    }

    /// The row before is of a source that sees no switches.
    pub fn without_switches(mut self) -> Self {
        if let Some(row) = self.0.rows.last_mut() {
            row.switches = None;
        }
        self
    }

    /// The row before has exited.
    pub fn exited(mut self) -> Self {
        if let Some(row) = self.0.rows.last_mut() {
            row.state = State::Exited;
        }
        self
    }

    /// Switches that were lost in the window.
    pub fn lost(mut self, lost: u64) -> Self {
        self.0.window.lost = lost;
        self.0.window.complete = lost == 0;
        self
    }

    /// The batch; busy, idle and switches follow from the rows.
    pub fn build(mut self) -> UsageBatch {
        let w = &mut self.0.window;
        w.busy = Nanos(self.0.rows.iter().map(|r| r.cpu.0).sum());
        w.switches = self.0.rows.iter().filter_map(|r| r.switches).sum();
        w.idle = Nanos(u64::from(w.cpus) * w.duration().0).since(w.busy);
        self.0
    }

    /// The batch as it travels.
    pub fn batch(self) -> Batch {
        Batch::Usage(Arc::new(self.build()))
    }
}
