//! `power_model`: energy per workload that adds up.
//!
//! ```yaml
//! processors:
//!   power_model:
//!     weight: auto            # auto | cpu_time | cycles
//!     idle: baseline          # baseline | proportional | none
//!     idle_watts: { package-0: 31.5 }
//!     attribute_idle: false
//! ```
//!
//! A window brings usage per slice and package, and meter readings. Between two readings of a
//! zone lies an interval: its energy is the counter's difference ([`counter`]), a part of it is
//! the idle floor's ([`idle`]), and the rest is split over what ran on the zone's CPUs
//! ([`interval`], [`weights`]). For each zone and window, always: Σ rows' active + idle +
//! unattributed = measured. Where nothing reads, [`estimate`] stands in, marked as such.
//!
//! The formulas, their limits and a worked example: `docs/attribution.md`.

mod baseline;
mod config;
mod counter;
pub mod estimate;
mod estimated;
mod fit;
mod idle;
mod interval;
mod keys;
mod learn;
mod linear;
mod rows;
mod smt;
mod weights;
mod zone;

use std::{path::PathBuf, sync::Arc};

use tracing::{info, warn};
use wattpipe_pipeline::{
    batch::{Batch, BatchKind, RowEnergy, Slice, UsageBatch, UsageRow, ZoneUsage},
    processor::{Processor, ProcessorComponent, ProcessorError},
    registry::{BuildContext, BuildError},
    telemetry::{Gauge, Telemetry},
    units::Nanos,
    zones,
};

pub use config::{EstimateConfig, EstimateMode, Idle, PowerModelConfig, Smt, Weight};

use estimated::Estimated;
use interval::Due;
use keys::Keys;
use rows::{Carried, RowKey};
use zone::{ANY_PACKAGE, Dropped, View, ZoneState, same};

/// Zones beyond this many are not followed: no host has as many.
const MAX_ZONES: usize = 512;
/// Processes that energy may be owed to; beyond, the zones that owe it are given up.
const MAX_CARRIED: usize = 65_536;

/// The processor.
pub struct PowerModel {
    config: PowerModelConfig,
    procfs: PathBuf,
    zones: Vec<ZoneState>,
    estimated: Estimated,
    carried: Carried,
    keys: Keys,
    /// A meter has read: nothing is estimated any more.
    metered: bool,
    zones_refused: bool,
    telemetry: Telemetry,
    residual: Gauge,
}

impl ProcessorComponent for PowerModel {
    const NAME: &'static str = "power_model";
    const DOC: &'static str = "Splits each zone's energy among workloads, idle floor and unattributed time; adds up to what was measured";
    const TAKES: BatchKind = BatchKind::Usage;
    const EMITS: BatchKind = BatchKind::Usage;
    const NEEDS_SLICES: bool = true;
    type Config = PowerModelConfig;

    fn build(config: Self::Config, context: &BuildContext) -> Result<Self, BuildError> {
        let telemetry = context.telemetry.clone();
        let residual = telemetry.gauge(
            "wattpipe_energy_residual_joules",
            "Measured minus attributed minus idle minus unattributed energy since the start, in joules; 0 but for rounding",
            &[],
        );
        Ok(Self {
            procfs: context.host.procfs.clone(),
            zones: Vec::new(),
            estimated: Estimated::new(&config),
            carried: Carried::default(),
            keys: Keys::default(),
            metered: false,
            zones_refused: false,
            telemetry,
            residual,
            config,
        })
    }
}

impl Processor for PowerModel {
    fn start(&mut self) -> Result<(), ProcessorError> {
        if self.config.estimate.mode == EstimateMode::Auto {
            self.estimated.detect(&self.procfs);
        }
        Ok(())
    }

    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        match batch {
            Batch::Usage(mut usage) => {
                self.window(Arc::make_mut(&mut usage));
                Ok(Some(Batch::Usage(usage)))
            }
            Batch::Switches(_) => {
                Err(ProcessorError("power_model takes usage: put `delta` before it".into()))
            }
        }
    }
}

impl PowerModel {
    fn window(&mut self, batch: &mut UsageBatch) {
        self.meet_zones(batch);
        let real_rows = batch.rows.len();
        if self.config.weight == Weight::Auto {
            for slot in self.keys.window(&batch.rows) {
                self.zones.iter_mut().for_each(|z| z.forget_slot(slot));
            }
        }
        self.load_carried(batch);

        let coarse = batch.slices.is_empty();
        let whole = if coarse { whole_window(batch, real_rows) } else { Vec::new() };
        let slices = if coarse { &whole } else { &batch.slices };
        let view = View {
            start: batch.window.start,
            end: batch.window.end,
            slices,
            readings: &batch.readings,
            rows: batch.rows.len(),
            coarse,
            slots: &self.keys.of_row,
        };
        for zone in &mut self.zones {
            zone.run(&view);
        }
        let mut lines: Vec<(usize, ZoneUsage)> = Vec::new();
        for (at, zone) in self.zones.iter().enumerate() {
            if let Some(line) = zone.line(view.end) {
                lines.push((at, line));
            }
        }
        self.mark_totals(&mut lines);
        let estimate = (!self.metered && self.config.estimate.mode == EstimateMode::Auto)
            .then(|| self.estimated.run(&view, batch.live))
            .flatten();

        batch.zones.clear();
        let written = lines.len() + usize::from(estimate.is_some());
        for (at, line) in lines {
            write(&mut batch.rows, &mut batch.zones, line, &self.zones[at], &self.config);
        }
        if let Some(line) = estimate {
            let zone = &self.estimated.state;
            write(&mut batch.rows, &mut batch.zones, line, zone, &self.config);
        }
        if written > 0 {
            fill_idle_rows(&mut batch.rows[..real_rows], &batch.zones);
        }
        self.check_sums(batch);
        self.tell_confidence(&mut batch.rows[..real_rows], &batch.zones);
        self.learn(batch.window.end);
        self.settle(batch, real_rows);
        if self.count_dropped() {
            batch.window.complete = false;
        }
    }

    /// Notes zones that are new and follows changes of known ones.
    fn meet_zones(&mut self, batch: &UsageBatch) {
        for reading in &batch.readings {
            if !self.metered {
                self.metered = true;
                self.estimated.stop();
            }
            match self.zones.iter().position(|z| same(&z.zone, &reading.zone)) {
                Some(at) => {
                    if !Arc::ptr_eq(&self.zones[at].zone, &reading.zone) {
                        self.zones[at].zone = reading.zone.clone();
                    }
                }
                None if self.zones.len() < MAX_ZONES => {
                    let number = self.zones.len();
                    self.zones.push(ZoneState::new(reading.zone.clone(), &self.config, number));
                }
                None => {
                    if !std::mem::replace(&mut self.zones_refused, true) {
                        warn!("more than {MAX_ZONES} energy zones: the rest is left out");
                    }
                }
            }
        }
    }

    fn load_carried(&mut self, batch: &mut UsageBatch) {
        if self.carried.is_empty() {
            return;
        }
        let index = self.carried.append_to(&mut batch.rows);
        let rows = batch.rows.len();
        for zone in &mut self.zones {
            zone.resize(rows);
            zone.load(|key| index.get(key).copied());
        }
    }

    /// A zone counts towards totals unless one that is followed contains it.
    fn mark_totals(&self, lines: &mut [(usize, ZoneUsage)]) {
        let followed = |name: &str| {
            self.zones.iter().any(|z| &*z.zone.name == name && z.last_reading().is_some())
        };
        for (_, line) in lines {
            let zone = &line.zone;
            let contained = zone.contained_in.as_deref().is_some_and(followed)
                || zones::container(&zone.name, followed).is_some();
            line.in_total = !contained;
        }
    }

    /// A row's confidence is that of the zones in its total, by its energy there.
    fn tell_confidence(&self, rows: &mut [UsageRow], lines: &[ZoneUsage]) {
        let zones: Vec<Option<&ZoneState>> = lines
            .iter()
            .map(|l| self.zones.iter().find(|z| l.in_total && same(&z.zone, &l.zone)))
            .collect();
        for (row, slot) in rows.iter_mut().zip(&self.keys.of_row) {
            let (mut sum, mut joules) = (0.0, 0.0);
            for e in &row.energy {
                let zone = zones.get(e.zone as usize).copied().flatten();
                if let Some(confidence) = zone.and_then(|z| z.confidence(*slot)) {
                    sum += f64::from(confidence) * e.active;
                    joules += e.active;
                }
            }
            row.confidence = (joules > 0.0).then(|| (sum / joules) as f32);
        }
    }

    /// Once a window: what is learnt, and what is to be seen of it.
    fn learn(&mut self, end: Nanos) {
        for zone in &mut self.zones {
            let before = zone.baseline().is_some_and(|b| b.trusted().is_some());
            zone.learn_window(end);
            let Some(baseline) = zone.baseline() else { continue };
            let (watts, error, trusted) = baseline.state();
            let name = zone.zone.name.clone();
            let gauge = |name: &'static str, help: &'static str, zone: &str, value: f64| {
                self.telemetry.gauge(name, help, &[("zone", zone)]).set(value);
            };
            gauge(
                "wattpipe_idle_baseline_watts",
                "Idle power of a zone as learnt, in watts",
                &name,
                watts,
            );
            gauge(
                "wattpipe_idle_baseline_error_watts",
                "Standard error of the learnt idle power, in watts",
                &name,
                error,
            );
            gauge(
                "wattpipe_idle_baseline_trusted",
                "1 where the learnt idle power is used (state learnt), 0 while it is not (learning)",
                &name,
                f64::from(u8::from(trusted)),
            );
            if trusted && !before {
                info!(zone = %name, "idle baseline learnt; to pin it: idle_watts: {{ {name}: {watts:.2} }} (± {error:.2} W)");
            }
        }
    }

    /// Keeps what outlives the window and drops the rows that were only there to be paid.
    fn settle(&mut self, batch: &mut UsageBatch, real_rows: usize) {
        let rows = &batch.rows;
        for zone in &mut self.zones {
            zone.settle(batch.window.end, |row| RowKey::of(&rows[row as usize]));
        }
        let held = || self.zones.iter().flat_map(|z| z.carried.iter().map(|(key, _)| *key));
        self.carried.keep(rows, held());
        if self.carried.len() > MAX_CARRIED {
            for zone in self.zones.iter_mut().filter(|z| !z.carried.is_empty()) {
                warn!(zone = %zone.zone.name, "no reading for too long: its energy is given up");
                zone.restart();
                count(&self.telemetry, &zone.zone.name, "vanished", 1);
            }
            self.carried.keep(rows, std::iter::empty());
        }
        let mut at = 0;
        batch.rows.retain(|row| {
            at += 1;
            at <= real_rows || !row.energy.is_empty()
        });
    }

    /// Publishes readings that were dropped in this window; says whether there were any.
    fn count_dropped(&mut self) -> bool {
        let mut any = false;
        for zone in &mut self.zones {
            let Dropped { reset, implausible, stale, ambiguous } =
                std::mem::take(&mut zone.dropped);
            let name = &zone.zone.name;
            for (reason, n) in [
                ("reset", reset),
                ("implausible", implausible),
                ("stale", stale),
                ("ambiguous", ambiguous),
            ] {
                if n > 0 {
                    count(&self.telemetry, name, reason, n);
                    info!(zone = %name, reason, n, "meter readings not taken as they are");
                    any |= reason != "stale";
                }
            }
        }
        any
    }

    fn check_sums(&self, batch: &UsageBatch) {
        if batch.zones.is_empty() {
            return;
        }
        let mut active = vec![0.0; batch.zones.len()];
        for e in batch.rows.iter().flat_map(|r| &r.energy) {
            active[e.zone as usize] += e.active;
        }
        let residual: f64 = batch
            .zones
            .iter()
            .zip(&active)
            .map(|(z, active)| z.joules - active - z.idle - z.unattributed)
            .sum();
        self.residual.set(self.residual.get() + residual);
    }
}

fn count(telemetry: &Telemetry, zone: &str, reason: &str, n: u64) {
    telemetry
        .counter(
            "wattpipe_meter_dropped_readings_total",
            "Meter readings that gave no energy, or whose energy is in doubt (reason `ambiguous`)",
            &[("zone", zone), ("reason", reason)],
        )
        .add(n);
}

/// One slice over everything, where usage by slice and package is not known.
fn whole_window(batch: &UsageBatch, rows: usize) -> Vec<Slice> {
    use wattpipe_pipeline::batch::{Cell, Domain};
    let cells = batch.rows[..rows].iter().enumerate().map(|(row, r)| Cell {
        row: row as u32,
        cpu: r.cpu,
        cycles: r.cycles.unwrap_or(0),
        counted: if r.cycles.is_some() { r.cpu } else { Default::default() },
        ..Cell::default()
    });
    let domain = Domain {
        package: ANY_PACKAGE,
        cpus: batch.window.cpus,
        idle: batch.window.idle,
        unattributed: batch.window.unattributed,
        cells: cells.filter(|c| c.cpu.0 > 0).collect(),
        ..Domain::default()
    };
    vec![Slice { end: batch.window.end, domains: vec![domain] }]
}

/// Writes a zone's line and its part of the rows.
fn write(
    rows: &mut [UsageRow],
    zones: &mut Vec<ZoneUsage>,
    line: ZoneUsage,
    state: &ZoneState,
    config: &PowerModelConfig,
) {
    let Ok(zone) = u16::try_from(zones.len()) else { return };
    let account = &state.account;
    let weight: f64 = account.touched.iter().map(|&row| account.rows[row as usize].weight).sum();
    let idle_share =
        if config.attribute_idle && weight > 0.0 { account.idle / weight } else { 0.0 };
    for &row in &account.touched {
        let at = row as usize;
        let Due { active, weight } = account.rows[at];
        let idle = weight * idle_share;
        rows[at].energy.push(RowEnergy { zone, active, idle });
    }
    zones.push(line);
}

/// A row that ran nowhere has used nothing, which is known: 0 J where a zone was read.
fn fill_idle_rows(rows: &mut [UsageRow], zones: &[ZoneUsage]) {
    for row in rows.iter_mut().filter(|r| r.energy.is_empty() && r.cpu.0 == 0) {
        for (at, zone) in zones.iter().enumerate() {
            if zone.in_total {
                row.energy.push(RowEnergy { zone: at as u16, active: 0.0, idle: 0.0 });
            }
        }
    }
}

#[cfg(test)]
mod conservation;
#[cfg(test)]
mod tests;
