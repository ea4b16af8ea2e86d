//! The workloads that have series, and how a row finds its own.

use std::{collections::HashSet, sync::Arc};

use wattpipe_pipeline::{
    batch::{UsageRow, Zone},
    identity::{AttributeSet, Value, attr},
    units::{Nanos, Tgid},
};

use crate::semconv::{self, Level};

/// Processes that a container or pod is followed by to notice its end; beyond that many it ends by
/// silence.
const MAX_MEMBERS: usize = 16_384;

/// What makes a workload the same one from window to window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A process: a reused pid has another start.
    Process(ProcessKey),
    /// A container by its id.
    Container(Value),
    /// A pod by its uid.
    Pod(Value),
    /// A row that `aggregate` made, by all its attributes.
    Group(Arc<AttributeSet>),
    /// Processes that lived less than a window.
    ShortLived,
    /// What `top` merged, or what found no place below `max_series`.
    Overflow(Level),
}

/// A process by pid and start.
type ProcessKey = (Tgid, Option<Nanos>);

impl Key {
    /// Keys of `row` at the levels of containers and pods.
    pub(super) fn of_group(row: &UsageRow, level: Level) -> Option<Key> {
        match level {
            Level::Process => None,
            Level::Container => row.attributes.get(attr::CONTAINER_ID).cloned().map(Key::Container),
            Level::Pod => row.attributes.get(attr::K8S_POD_UID).cloned().map(Key::Pod),
        }
    }
}

/// The process of a row.
pub(super) fn process_key(row: &UsageRow) -> Option<(Tgid, Option<Nanos>)> {
    row.process.as_ref().map(|p| (p.pid, p.start_time))
}

/// Whether a row holds what `top` did not keep apart: workloads that may have had rows of their own
/// in other windows. (What `aggregate` leaves over is the same workloads every time.)
pub(super) fn is_rest(row: &UsageRow) -> bool {
    let by = row.attributes.get_str(attr::REST);
    by.is_some_and(|id| id.split('/').next() == Some("top"))
}

/// Energy of one workload in one zone, in joules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Index into [`super::SeriesState::zones`].
    pub zone: usize,
    /// For what it did.
    pub active: f64,
    /// Its share of the idle floor.
    pub idle: f64,
}

/// A workload's counters.
#[derive(Clone, Debug)]
pub struct Entity {
    /// Process, container or pod.
    pub level: Level,
    /// What its resource says about it.
    pub attributes: Arc<AttributeSet>,
    /// From when its counters count, unix ns.
    pub start: u64,
    /// CPU time.
    pub cpu: Nanos,
    /// Switches away from it, where a source sees them.
    pub switches: Option<u64>,
    /// Energy per zone.
    pub energy: Vec<Energy>,
    /// When it ended, unix ns.
    pub ended: Option<u64>,
    pub(super) key: Key,
    /// Number of the window that made it.
    pub(super) made: u64,
    /// Number of the window that last had a row of it.
    pub(super) touched: u64,
    /// Unix ns of the last row, and of the last point handed out.
    pub(super) seen_at: u64,
    pub(super) emitted_at: u64,
    /// Its processes that are known to run (containers and pods).
    pub(super) members: HashSet<ProcessKey>,
}

impl Entity {
    pub(super) fn new(
        key: Key,
        level: Level,
        attributes: Arc<AttributeSet>,
        start: u64,
        made: u64,
    ) -> Self {
        Self {
            level,
            attributes,
            start,
            cpu: Nanos(0),
            switches: None,
            energy: Vec::new(),
            ended: None,
            key,
            made,
            touched: 0,
            seen_at: start,
            emitted_at: 0,
            members: HashSet::new(),
        }
    }

    /// Counts from `start` on, from nothing.
    pub(super) fn restart(&mut self, start: u64) {
        self.start = start;
        self.cpu = Nanos(0);
        self.switches = None;
        self.energy.clear();
        self.ended = None;
    }

    /// Made by `aggregate`: nothing but all its attributes together tells it from others.
    pub fn is_group(&self) -> bool {
        matches!(self.key, Key::Group(_))
    }

    pub(super) fn add(&mut self, row: &UsageRow, zones: &[usize]) {
        self.cpu = Nanos(self.cpu.0.saturating_add(row.cpu.0));
        if let Some(more) = row.switches {
            let switches = self.switches.get_or_insert(0);
            *switches = switches.saturating_add(more);
        }
        for part in &row.energy {
            let Some(&zone) = zones.get(part.zone as usize) else { continue };
            let at = self.energy.iter().position(|e| e.zone == zone).unwrap_or_else(|| {
                self.energy.push(Energy { zone, ..Energy::default() });
                self.energy.len() - 1
            });
            self.energy[at].active += growth(part.active);
            self.energy[at].idle += growth(part.idle);
        }
    }

    /// Follows the processes of a container or pod; it ends with the last that is known.
    pub(super) fn follow(&mut self, process: ProcessKey, exited: bool, at: u64) {
        if exited {
            self.members.remove(&process);
            if self.members.is_empty() {
                self.ended = Some(at);
            }
        } else {
            if self.members.len() < MAX_MEMBERS {
                self.members.insert(process);
            }
            self.ended = None;
        }
    }
}

/// A counter only grows: what is negative or no number (a fault upstream) does not count.
pub(super) fn growth(joules: f64) -> f64 {
    if joules.is_finite() && joules > 0.0 { joules } else { 0.0 }
}

/// The counters of a zone.
#[derive(Clone, Debug)]
pub struct ZoneSeries {
    /// The zone as it was first seen.
    pub zone: Arc<Zone>,
    /// From when they count, unix ns.
    pub start: u64,
    /// All its energy.
    pub joules: f64,
    /// Energy that no workload is known for.
    pub unattributed: f64,
    /// The window had this zone.
    pub fresh: bool,
}

impl ZoneSeries {
    /// No meter reads it.
    pub fn is_estimate(&self) -> bool {
        &*self.zone.source == "estimate"
    }
}

/// The part of a row's attributes that describes the workload at `level`.
pub(super) fn attributes_at(level: Level, row: &UsageRow) -> Arc<AttributeSet> {
    if level == Level::Process {
        return row.attributes.clone();
    }
    let kept = row.attributes.iter().filter(|(key, _)| semconv::belongs(level, key));
    Arc::new(kept.map(|(k, v)| (k.to_owned(), v.clone())).collect())
}

/// Whether [`attributes_at`] would give what the entity has, without building it.
pub(super) fn same_attributes(entity: &Entity, row: &UsageRow) -> bool {
    if entity.level == Level::Process {
        return Arc::ptr_eq(&entity.attributes, &row.attributes)
            || entity.attributes == row.attributes;
    }
    let kept = row.attributes.iter().filter(|(key, _)| semconv::belongs(entity.level, key));
    kept.eq(entity.attributes.iter())
}
