//! Adds windows up.

use std::{collections::HashMap, sync::Arc};

use wattpipe_pipeline::{
    batch::{State, UsageBatch, UsageRow},
    identity::{AttributeSet, attr},
};

use super::entity::{
    Entity, Key, ZoneSeries, attributes_at, growth, is_rest, process_key, same_attributes,
};
use crate::semconv::{LEVELS, Level, OVERFLOW, SHORT_LIVED, belongs};

/// A series that does not change is still handed out this often, so that receivers keep it.
const HEARTBEAT_NS: u64 = 60_000_000_000;
/// A workload that has been silent this long is forgotten.
const SILENCE_NS: u64 = 900_000_000_000;
/// A container or pod whose known processes have all ended may yet go on (one of them may have
/// slept all along): its series is kept this long.
const GROUP_LINGER_NS: u64 = 300_000_000_000;
/// An ended process may have rows in this many more windows.
const LAST_WINDOWS: u64 = 2;
/// Zones are hardware; this many is a fault.
const MAX_ZONES: usize = 1024;

/// What series are kept.
#[derive(Clone, Debug)]
pub struct SeriesConfig {
    /// Levels that have series.
    pub levels: Vec<Level>,
    /// Workloads per level, the overflow row not counted.
    pub max_series: usize,
    /// How long an ended workload stays visible, in ns.
    pub linger_ns: u64,
}

/// All series of one exporter.
#[derive(Debug)]
pub struct SeriesState {
    config: SeriesConfig,
    /// `None` marks a free place.
    entities: Vec<Option<Entity>>,
    free: Vec<usize>,
    by_key: HashMap<Key, usize>,
    /// Workloads per level that count towards `max_series`.
    counted: [usize; 3],
    zones: Vec<ZoneSeries>,
    window: u64,
    /// End of the last window, unix ns.
    now: u64,
    /// Per level, since when no usage of one workload has gone to another's series: a new series
    /// may claim to count from there.
    clean_since: [Option<u64>; 3],
}

impl SeriesState {
    /// No series yet.
    pub fn new(config: SeriesConfig) -> Self {
        Self {
            config,
            entities: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            counted: [0; 3],
            zones: Vec::new(),
            window: 0,
            now: 0,
            clean_since: [None; 3],
        }
    }

    /// Adds a window.
    pub fn update(&mut self, batch: &UsageBatch) {
        let w = &batch.window;
        let start = w.unix_ns(w.start);
        self.window += 1;
        self.now = w.unix_ns(w.end).max(self.now);
        self.forget_ended();
        for since in &mut self.clean_since {
            since.get_or_insert(start);
        }
        let zones = self.add_zones(batch);
        let rest = batch.rows.iter().any(is_rest);
        for level in LEVELS {
            if !self.config.levels.contains(&level) {
                continue;
            }
            let mut rows: Vec<(Key, &UsageRow)> = Vec::with_capacity(batch.rows.len());
            rows.extend(batch.rows.iter().filter_map(|r| Some((self.key(batch, r, level)?, r))));
            if level != Level::Process {
                self.rename(&rows, start);
            }
            rows.retain(|(key, row)| match self.by_key.get(key) {
                Some(&at) => {
                    self.add(at, row, &zones, start);
                    false
                }
                None => true,
            });
            let moved = self.add_newcomers(batch, level, rows, &zones);
            if rest {
                self.forget_untouched(level);
            }
            if self.forget_silent(level) || moved || rest {
                self.clean_since[level.index()] = Some(self.now);
            }
        }
    }

    /// The series that are due, given out and marked so: those with news, and now and then those
    /// without. With `reset` (delta temporality) only those with news, and each starts anew.
    pub fn for_each_due(&mut self, reset: bool, mut give: impl FnMut(&Entity)) {
        let (window, now) = (self.window, self.now);
        for entity in self.entities.iter_mut().flatten() {
            let news = entity.touched == window;
            let silent = now.saturating_sub(entity.emitted_at);
            let heartbeat = !reset && entity.ended.is_none() && silent >= HEARTBEAT_NS;
            if news || heartbeat {
                give(entity);
                entity.emitted_at = now;
                if reset {
                    let ended = entity.ended;
                    entity.restart(now);
                    entity.ended = ended;
                }
            }
        }
    }

    /// All series there are.
    pub fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.entities.iter().flatten()
    }

    /// All zones there were.
    pub fn zones(&self) -> &[ZoneSeries] {
        &self.zones
    }

    /// Starts the zones' counters anew (delta temporality).
    pub fn reset_zones(&mut self) {
        for zone in self.zones.iter_mut().filter(|z| z.fresh) {
            zone.start = self.now;
            zone.joules = 0.0;
            zone.unattributed = 0.0;
        }
    }

    /// End of the last window, unix ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    fn key(&self, batch: &UsageBatch, row: &UsageRow, level: Level) -> Option<Key> {
        if level != Level::Process {
            return Key::of_group(row, level);
        }
        // Whether a larger workload's series already holds this row.
        let held = [Level::Container, Level::Pod].into_iter().any(|level| {
            self.config.levels.contains(&level) && Key::of_group(row, level).is_some()
        });
        match (process_key(row), &row.process) {
            (Some(key), Some(process)) => {
                let key = Key::Process(key);
                let whole_life = row.state == State::Exited
                    && process.start_time.is_some_and(|s| s >= batch.window.start);
                if !whole_life || self.by_key.contains_key(&key) {
                    return Some(key);
                }
                (!held).then_some(Key::ShortLived)
            }
            _ if held => None,
            _ if is_rest(row) => Some(Key::Overflow(Level::Process)),
            _ => Some(Key::Group(row.attributes.clone())),
        }
    }

    /// Adds a row to the series at `at`.
    fn add(&mut self, at: usize, row: &UsageRow, zones: &[usize], start: u64) {
        let (window, now) = (self.window, self.now);
        let Some(Some(entity)) = self.entities.get_mut(at) else { return };
        let shared = matches!(entity.key, Key::ShortLived | Key::Overflow(_));
        let exited = row.state == State::Exited;
        if entity.level == Level::Process && !shared {
            // It was renamed, or a pid without a known start was used again. (A process may well
            // have rows after its exit: its last threads still leave their CPUs.)
            let reused = entity.ended.is_some() && !exited;
            if !same_attributes(entity, row) || reused {
                entity.attributes = attributes_at(entity.level, row);
                entity.restart(start);
            }
            entity.ended = exited.then_some(now);
        }
        entity.touched = window;
        entity.seen_at = now;
        entity.add(row, zones);
        if let (Level::Container | Level::Pod, Some(process)) = (entity.level, process_key(row)) {
            entity.follow(process, exited, now);
        }
    }

    /// Starts containers and pods anew that are described differently than before. Rows of one may
    /// know it less well than others of the same window: the one that says most counts.
    fn rename(&mut self, rows: &[(Key, &UsageRow)], start: u64) {
        let mut best: HashMap<usize, (&UsageRow, usize)> = HashMap::new();
        for (key, row) in rows {
            let Some(&at) = self.by_key.get(key) else { continue };
            let Some(Some(entity)) = self.entities.get(at) else { continue };
            let says = row.attributes.iter().filter(|(k, _)| belongs(entity.level, k)).count();
            match best.get(&at) {
                Some((_, most)) if *most > says => {}
                Some((_, most)) if *most == says && !same_attributes(entity, row) => {}
                _ => {
                    best.insert(at, (row, says));
                }
            }
        }
        for (at, (row, _)) in best {
            if let Some(Some(entity)) = self.entities.get_mut(at)
                && !same_attributes(entity, row)
            {
                entity.attributes = attributes_at(entity.level, row);
                entity.restart(start);
            }
        }
    }

    /// Gives newcomers their series; where there is no place, that of the longest silent goes, and
    /// where none is silent, the smallest newcomers share the overflow row. Returns whether usage
    /// of some workload has gone, or may go, to another's series.
    fn add_newcomers(
        &mut self,
        batch: &UsageBatch,
        level: Level,
        mut newcomers: Vec<(Key, &UsageRow)>,
        zones: &[usize],
    ) -> bool {
        let start = batch.window.unix_ns(batch.window.start);
        let since = self.clean_since[level.index()].unwrap_or(start);
        let room = self.config.max_series.saturating_sub(self.counted[level.index()]);
        let mut silent = Vec::new();
        if newcomers.len() > room {
            newcomers.sort_by(|(_, a), (_, b)| weight(b).total_cmp(&weight(a)));
            silent = self.silent(level);
        }
        let mut moved = false;
        for (key, row) in newcomers {
            let known = self.by_key.contains_key(&key);
            let full = self.counted[level.index()] >= self.config.max_series;
            let key = if known || !counts(&key) || !full {
                key
            } else {
                moved = true;
                match silent.pop() {
                    Some(at) => {
                        self.remove(at);
                        key
                    }
                    None => Key::Overflow(level),
                }
            };
            let born = match &row.process {
                Some(p) if counts(&key) => p.start_time.map_or(0, |s| batch.window.unix_ns(s)),
                _ => 0,
            };
            let first = since.max(born).min(self.now);
            let at = match self.by_key.get(&key) {
                Some(&at) => {
                    // Several rows of this window make one container: the oldest counts.
                    if let Some(Some(entity)) = self.entities.get_mut(at)
                        && entity.made == self.window
                    {
                        entity.start = entity.start.min(first);
                    }
                    at
                }
                None => {
                    let attributes = match &key {
                        Key::ShortLived => short_lived(),
                        Key::Overflow(_) => overflow(),
                        _ => attributes_at(level, row),
                    };
                    self.insert(Entity::new(key, level, attributes, first, self.window))
                }
            };
            self.add(at, row, zones, start);
        }
        moved
    }

    fn add_zones(&mut self, batch: &UsageBatch) -> Vec<usize> {
        for zone in &mut self.zones {
            zone.fresh = false;
        }
        let mut places = Vec::with_capacity(batch.zones.len());
        for usage in &batch.zones {
            let known = self
                .zones
                .iter()
                .position(|z| z.zone.name == usage.zone.name && z.zone.source == usage.zone.source);
            let at = match known {
                Some(at) => at,
                None if self.zones.len() >= MAX_ZONES => {
                    places.push(usize::MAX);
                    continue;
                }
                None => {
                    self.zones.push(ZoneSeries {
                        zone: usage.zone.clone(),
                        start: batch.window.unix_ns(usage.start),
                        joules: 0.0,
                        unattributed: 0.0,
                        fresh: true,
                    });
                    self.zones.len() - 1
                }
            };
            let zone = &mut self.zones[at];
            zone.fresh = true;
            zone.joules += growth(usage.joules);
            zone.unattributed += growth(usage.unattributed);
            places.push(at);
        }
        places
    }

    /// Series without a row in this window, best to be removed last in the list.
    fn silent(&self, level: Level) -> Vec<usize> {
        let mut silent: Vec<(bool, u64, usize)> = self
            .entities
            .iter()
            .enumerate()
            .filter_map(|(at, e)| e.as_ref().map(|e| (at, e)))
            .filter(|(_, e)| e.level == level && e.touched != self.window && counts(&e.key))
            .map(|(at, e)| (e.ended.is_some(), u64::MAX - e.seen_at, at))
            .collect();
        silent.sort_unstable();
        silent.into_iter().map(|(_, _, at)| at).collect()
    }

    fn forget_ended(&mut self) {
        let (now, linger) = (self.now, self.config.linger_ns);
        for level in LEVELS {
            let linger = if level == Level::Process { linger } else { linger.max(GROUP_LINGER_NS) };
            let window = self.window;
            let gone = self.remove_where(|e| {
                e.level == level
                    && e.ended.is_some_and(|end| now.saturating_sub(end) > linger)
                    && window.saturating_sub(e.touched) > LAST_WINDOWS
            });
            // An ended process never returns; a container that does must not overlap itself.
            if gone && level != Level::Process {
                self.clean_since[level.index()] = Some(now);
            }
        }
    }

    /// Forgets what was silent for long; returns whether there was any.
    fn forget_silent(&mut self, level: Level) -> bool {
        let now = self.now;
        self.remove_where(|e| {
            e.level == level && counts(&e.key) && now.saturating_sub(e.seen_at) > SILENCE_NS
        })
    }

    fn forget_untouched(&mut self, level: Level) {
        let window = self.window;
        self.remove_where(|e| {
            e.level == level && counts(&e.key) && e.touched != window && e.ended.is_none()
        });
    }

    fn remove_where(&mut self, gone: impl Fn(&Entity) -> bool) -> bool {
        let mut any = false;
        for at in 0..self.entities.len() {
            if self.entities[at].as_ref().is_some_and(&gone) {
                self.remove(at);
                any = true;
            }
        }
        any
    }

    fn insert(&mut self, entity: Entity) -> usize {
        if counts(&entity.key) {
            self.counted[entity.level.index()] += 1;
        }
        let key = entity.key.clone();
        let at = match self.free.pop() {
            Some(at) => {
                self.entities[at] = Some(entity);
                at
            }
            None => {
                self.entities.push(Some(entity));
                self.entities.len() - 1
            }
        };
        self.by_key.insert(key, at);
        at
    }

    fn remove(&mut self, at: usize) {
        if let Some(entity) = self.entities[at].take() {
            if counts(&entity.key) {
                self.counted[entity.level.index()] -= 1;
            }
            self.by_key.remove(&entity.key);
            self.free.push(at);
        }
    }
}

/// Whether a series takes one of the `max_series` places.
fn counts(key: &Key) -> bool {
    !matches!(key, Key::ShortLived | Key::Overflow(_))
}

/// What a row's size is judged by: joules, and CPU time where no zone is read.
fn weight(row: &UsageRow) -> f64 {
    let joules: f64 = row.energy.iter().map(|e| e.active + e.idle).sum();
    // CPU time only breaks ties: a nanosecond is worth next to nothing.
    joules + row.cpu.0 as f64 * 1e-15
}

fn short_lived() -> Arc<AttributeSet> {
    Arc::new([(attr::PROCESS_EXECUTABLE_NAME, SHORT_LIVED)].into_iter().collect())
}

fn overflow() -> Arc<AttributeSet> {
    Arc::new([(OVERFLOW, "true")].into_iter().collect())
}
