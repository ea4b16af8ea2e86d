//! The zone `host` where no meter reads: wall power estimated from the CPU model and how busy the
//! CPUs were. Never added to a meter's zone, and gone as soon as one reads.

use std::{path::Path, sync::Arc};

use tracing::warn;
use wattpipe_pipeline::batch::{Zone, ZoneUsage};

use super::{
    config::{EstimateConfig, Idle, PowerModelConfig},
    estimate::Machine,
    idle::Floor,
    zone::{View, ZoneState},
};

/// Name of the zone, and what its `source` says.
const ZONE: &str = "host";
const SOURCE: &str = "estimate";

/// The estimated zone.
pub(super) struct Estimated {
    pub(super) state: ZoneState,
    config: EstimateConfig,
    idle: Idle,
    idle_watts: Option<f64>,
    detected: Machine,
    said: bool,
}

impl Estimated {
    pub(super) fn new(config: &PowerModelConfig) -> Self {
        let zone = Arc::new(Zone {
            name: ZONE.into(),
            // The whole server at its plug.
            hw_type: "enclosure".into(),
            package: None,
            source: SOURCE.into(),
            contained_in: None,
            max_energy_range_uj: None,
            max_watts: None,
        });
        Self {
            state: ZoneState::new(zone, config, 0).unlearning(),
            config: config.estimate.clone(),
            idle: config.idle,
            idle_watts: config.idle_watts.get(ZONE).copied(),
            detected: Machine::UNKNOWN,
            said: false,
        }
    }

    /// Looks up what this machine is; only live streams use it.
    pub(super) fn detect(&mut self, procfs: &Path) {
        self.detected = Machine::detect(procfs);
    }

    /// A meter reads: the estimate ends.
    pub(super) fn stop(&mut self) {
        self.state.restart();
    }

    /// The window's line, where there are CPUs at all.
    pub(super) fn run(&mut self, view: &View<'_>, live: bool) -> Option<ZoneUsage> {
        // A recording may be another machine's.
        let machine = if live { self.detected } else { Machine::UNKNOWN };
        let idle_watts = self.config.idle_watts_per_cpu.unwrap_or(machine.family.idle);
        let max_watts = self.config.max_watts_per_cpu.unwrap_or(machine.family.max).max(idle_watts);
        self.say_once(&machine, idle_watts, max_watts);

        self.state.usage.clear();
        self.state.account.clear();
        self.state.resize(view.rows);
        for slice in view.slices {
            self.state.add(slice);
        }
        self.state.usage.totals.set_elapsed(view.end.since(view.start));
        let totals = self.state.usage.totals;
        let (online, seconds) = (totals.online() * 1e-9, totals.seconds());
        if online <= 0.0 || seconds <= 0.0 {
            return None;
        }
        let busy = (totals.busy + totals.lost * self.state.lost_busy()) * 1e-9;
        let floor_joules = idle_watts * online;
        let joules = floor_joules + (max_watts - idle_watts) * busy;
        let floor = match (self.idle_watts, self.idle) {
            (Some(watts), _) => Floor::Configured(watts),
            // The floor is a given figure here: nothing is to be learnt from an estimate.
            (None, Idle::Baseline) => Floor::Configured(floor_joules / seconds),
            (None, Idle::Proportional) => Floor::Proportional,
            (None, Idle::None) => Floor::None,
        };
        self.state.close(joules, floor, view.slots);
        Some(self.state.usage_line(view.start, floor.basis()))
    }

    fn say_once(&mut self, machine: &Machine, idle: f64, max: f64) {
        if std::mem::replace(&mut self.said, true) {
            return;
        }
        let of = if machine.virtual_machine {
            "; this is a virtual machine: the figure is a share of a machine it cannot see"
        } else {
            ""
        };
        warn!(
            "no meter reads: energy is estimated (±50 %) as {}, {idle} to {max} W per hardware thread{of}",
            machine.family.name
        );
    }
}
