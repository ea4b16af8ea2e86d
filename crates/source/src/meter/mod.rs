//! Energy meters: which there are, what each covers, and reading them all at one instant.
//!
//! ```yaml
//! sources:
//!   ebpf: { meters: auto }        # auto | [] | list of: rapl, hwmon, battery
//! ```
//!
//! A source calls [`Meters::enumerate`] once, [`Meters::read_all`] at each slice and edge, and
//! puts the readings in band. Each meter has a thread of its own ([`worker`]): one that blocks
//! longer than [`READ_TIMEOUT`] has no reading at that edge and is asked again once it has come
//! back; nothing else waits for it. What could not be used is told by [`Meters::problems`], each
//! with its remedy.

mod battery;
mod files;
mod hwmon;
mod perf;
mod powercap;
mod select;
mod worker;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use tracing::{info, warn};
use wattpipe_pipeline::{
    batch::{MeterReading, Zone},
    registry::HostRoots,
    telemetry::{Counter, Telemetry},
    units::Nanos,
};

pub use select::{MeterKind, MeterSelection};

/// How long a reading is waited for. Tests mean files that are there and meters that block for ever:
/// they need not know how fast a machine is.
pub const READ_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 50 });

/// The shortest distance at which every counter that is called fine can usefully be read: RAPL
/// steps about once a millisecond, which is 0.5 % of 100 ms.
pub const FINE_INTERVAL: Duration = Duration::from_millis(100);

/// Something that reads the counters of some zones.
pub trait Meter: Send {
    /// Reads every zone and tells each at once: index into the meter's zones, and microjoules. A
    /// zone that cannot be read is left out. May block.
    fn read(&mut self, ts: Nanos, out: &mut dyn FnMut(usize, u64));
}

/// A zone and what is to be known about it.
#[derive(Clone, Debug)]
pub struct ZoneInfo {
    /// The zone as it travels with each reading.
    pub zone: Arc<Zone>,
    /// What it covers, in a few words.
    pub covers: &'static str,
    /// Where it is read.
    pub path: String,
    /// The counter's step in microjoules, where known.
    pub resolution_uj: Option<f64>,
    /// It steps often enough for readings between edges.
    pub fine: bool,
}

/// A meter that is there but cannot be used, or not there; and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which meter.
    pub meter: MeterKind,
    /// What is the matter.
    pub what: String,
    /// What follows from it.
    pub consequence: String,
    /// What the user can do.
    pub remedy: String,
    /// How bad that is.
    pub kind: ProblemKind,
}

/// What a problem costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// This host has no such meter.
    Absent,
    /// It is there and cannot be read.
    Unreadable,
    /// It reads; this is about what its values mean.
    Doubtful,
}

/// What one kind of meter offers on this host.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) zones: Vec<ZoneInfo>,
    pub(crate) meters: Vec<(Box<dyn Meter>, Vec<usize>)>,
    pub(crate) problems: Vec<Problem>,
}

/// All meters in use.
pub struct Meters {
    zones: Vec<ZoneInfo>,
    problems: Vec<Problem>,
    workers: Vec<worker::Worker>,
    missed: Option<Counter>,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").field("zones", &self.zones).finish_non_exhaustive()
    }
}

impl Meters {
    /// No meters at all.
    pub fn none() -> Self {
        Self { zones: Vec::new(), problems: Vec::new(), workers: Vec::new(), missed: None }
    }

    /// Finds the meters under these roots. Reads files, and starts a thread for each meter.
    pub fn enumerate(roots: &HostRoots, selection: &MeterSelection) -> Self {
        let mut all = Self::none();
        for kind in selection.kinds() {
            if selection.is_auto() && kind != MeterKind::Rapl && !all.zones.is_empty() {
                // A finer meter reads already; a second one over it would only be double.
                continue;
            }
            let found = match kind {
                MeterKind::Rapl => rapl(roots),
                MeterKind::Hwmon => hwmon::find(&roots.sysfs),
                MeterKind::Battery => battery::find(&roots.sysfs),
            };
            all.take(found);
        }
        all
    }

    /// Counts readings that did not come in time, and logs what could not be used.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: &Telemetry) -> Self {
        self.missed = Some(telemetry.counter(
            "wattpipe_meter_missed_readings_total",
            "Meter readings that failed or did not come within 50 ms",
            &[],
        ));
        for Problem { meter, what, consequence, remedy, kind } in &self.problems {
            match kind {
                ProblemKind::Absent => info!(%meter, "{what}: {consequence}"),
                _ => warn!(%meter, "{what}: {consequence}; {remedy}"),
            }
        }
        self
    }

    /// Adds what was found, leaving out zones that another meter reads already.
    fn take(&mut self, found: Found) {
        let mut places = Vec::with_capacity(found.zones.len());
        for info in found.zones {
            let known = self.zones.iter().any(|z| z.zone.name == info.zone.name);
            places.push((!known).then(|| {
                self.zones.push(info);
                self.zones.len() - 1
            }));
        }
        for (meter, zones) in found.meters {
            let zones: Vec<Option<usize>> =
                zones.into_iter().map(|z| places.get(z).copied().flatten()).collect();
            if zones.iter().any(Option::is_some) {
                self.workers.push(worker::Worker::new(meter, zones));
            }
        }
        self.problems.extend(found.problems);
    }

    /// The zones that are read.
    pub fn zones(&self) -> &[ZoneInfo] {
        &self.zones
    }

    /// What could not be used, and warnings about what is.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether nothing reads.
    pub fn is_empty(&self) -> bool {
        self.zones.is_empty()
    }

    /// How often readings between edges make sense; `None` where no meter is that fine.
    pub fn slice_interval(&self) -> Option<Duration> {
        self.zones.iter().any(|z| z.fine).then_some(FINE_INTERVAL)
    }

    /// Reads all zones now; the readings bear `ts`. Takes [`READ_TIMEOUT`] at most, and what this
    /// thread is kept from its CPU meanwhile.
    pub fn read_all(&mut self, ts: Nanos) -> Vec<MeterReading> {
        let asked = self.workers.iter_mut().map(|w| w.ask(ts)).collect::<Vec<_>>();
        let mut patience = READ_TIMEOUT;
        let mut readings: Vec<(usize, u64)> = Vec::with_capacity(self.zones.len());
        for (worker, asked) in self.workers.iter_mut().zip(asked) {
            if asked {
                worker.collect(ts, &mut patience, &mut readings);
            }
        }
        if let Some(missed) = &self.missed {
            missed.add(self.zones.len().saturating_sub(readings.len()) as u64);
        }
        readings.sort_unstable_by_key(|(zone, _)| *zone);
        readings
            .into_iter()
            .map(|(zone, energy_uj)| MeterReading {
                ts,
                zone: self.zones[zone].zone.clone(),
                energy_uj,
            })
            .collect()
    }
}

/// RAPL by powercap, else by the perf `power` PMU.
fn rapl(roots: &HostRoots) -> Found {
    let mut found = powercap::find(&roots.sysfs);
    if found.zones.is_empty() {
        let by_perf = perf::find(&roots.sysfs);
        if by_perf.zones.is_empty() {
            found.problems.extend(by_perf.problems);
        } else {
            found = by_perf;
        }
    }
    if !found.zones.is_empty() && files::cpu_flag(&roots.procfs, "sgx") {
        found.problems.push(Problem {
            meter: MeterKind::Rapl,
            what: "the processor supports SGX, and firmware that enables it filters RAPL readings"
                .into(),
            consequence: "readings may carry added noise: shares over short times are less exact"
                .into(),
            remedy: "disable SGX in the firmware where it is not needed".into(),
            kind: ProblemKind::Doubtful,
        });
    }
    found
}

/// A zone of RAPL or of a sensor, named and placed.
pub(crate) fn zone(
    name: &str,
    hw_type: &str,
    package: Option<u32>,
    source: &str,
    max_energy_range_uj: Option<u64>,
    max_watts: Option<f64>,
) -> Zone {
    Zone {
        name: name.into(),
        hw_type: hw_type.into(),
        package: package.map(wattpipe_pipeline::units::Package),
        source: source.into(),
        // The names used here say it themselves; see `wattpipe_pipeline::zones`.
        contained_in: None,
        max_energy_range_uj,
        max_watts,
    }
}
