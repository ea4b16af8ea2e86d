//! Adding up the command's rows over all windows.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use wattpipe_pipeline::{Batch, ExportError, Exporter, async_trait, batch::UsageBatch};

use super::family::Members;

/// What has been added up; clones share it.
#[derive(Clone, Default)]
pub(super) struct Totals(Arc<Mutex<Sums>>);

/// Sums over the windows.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// CPU nanoseconds of the command.
    pub(super) cpu_ns: u64,
    /// Switches away from its processes.
    pub(super) switches: u64,
    /// Its joules by zone.
    pub(super) zones: BTreeMap<String, f64>,
    /// Its joules over the zones that do not contain one another.
    pub(super) joules: Option<f64>,
    /// Active joules of everybody, over those zones.
    pub(super) host_joules: Option<f64>,
    /// Busy nanoseconds of everybody.
    pub(super) host_busy_ns: u64,
    /// A zone is an estimate.
    pub(super) estimated: bool,
    /// Switches known to be lost.
    pub(super) lost: u64,
}

impl Totals {
    /// The sums so far.
    pub(super) fn get(&self) -> Sums {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, usage: &UsageBatch, members: &Members) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.lost += usage.window.lost;
        sums.host_busy_ns += usage.window.busy.0;
        for zone in &usage.zones {
            sums.estimated |= &*zone.zone.source == "estimate";
            if zone.in_total {
                *sums.host_joules.get_or_insert(0.0) += zone.active;
            }
        }
        for row in &usage.rows {
            if !row.process.as_ref().is_some_and(|p| members.contain(p)) {
                continue;
            }
            sums.cpu_ns += row.cpu.0;
            sums.switches += row.switches.unwrap_or(0);
            for energy in &row.energy {
                if let Some(zone) = usage.zones.get(usize::from(energy.zone)) {
                    *sums.zones.entry(zone.zone.name.to_string()).or_default() +=
                        energy.active + energy.idle;
                }
            }
            if let Some(joules) = usage.joules_total(row) {
                *sums.joules.get_or_insert(0.0) += joules;
            }
        }
    }
}

/// The end of the pipeline.
#[derive(Clone)]
pub(super) struct Collector {
    pub(super) members: Members,
    pub(super) totals: Totals,
}

#[async_trait]
impl Exporter for Collector {
    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        if let Batch::Usage(usage) = batch {
            self.totals.add(&usage, &self.members);
        }
        Ok(())
    }
}
