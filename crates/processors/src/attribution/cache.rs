//! Finished attribute sets per process, so that a row of a known process costs one look-up.
//!
//! An entry holds the `Arc`s it was made from: as long as a row brings the same ones and nothing
//! new is known of its cgroup, its set is handed out again. A process that was moved to another
//! cgroup, or ran `exec`, comes with another `Arc<Process>` and is worked out anew. Entries leave
//! with their process; ones that were not seen for long, or beyond the bound, leave too and are
//! made again on demand.

use std::{collections::HashMap, sync::Arc};

use wattpipe_pipeline::{
    batch::State,
    identity::{AttributeSet, CgroupRef, Process},
    telemetry::{Counter, Gauge, Telemetry},
    units::Nanos,
};
use wattpipe_source::procfs::details::Details;

use super::{
    facts::{self, GroupFacts, Missing},
    knowledge::{Knowledge, ProcessKey, Users},
};

/// Processes held at most; more are worked out without being held.
const MAX_PROCESSES: usize = 131_072;
/// Cgroups held at most.
const MAX_GROUPS: usize = 16_384;
/// Windows between sweeps, and windows after which an unseen entry is swept away.
const SWEEP_EVERY: u64 = 64;
const UNSEEN: u64 = 600;

/// The cache.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<ProcessKey, Entry>,
    groups: Groups,
    users: Arc<Users>,
    generation: u64,
    window: u64,
    /// The window of the last sweep for want of room: one a window is enough.
    swept: u64,
    evicted: Counter,
    size: Gauge,
}

/// One process.
#[derive(Debug)]
struct Entry {
    process: Arc<Process>,
    base: Arc<AttributeSet>,
    full: Arc<AttributeSet>,
    details: Option<Arc<Details>>,
    group: Option<usize>,
    version: u64,
    seen: u64,
    dirty: bool,
    asked: bool,
}

/// Asks for something in the background; `false` where the queue is full.
pub trait Ask {
    /// For a process's `/proc`.
    fn process(&mut self, key: ProcessKey) -> bool;
    /// For a container's or pod's name.
    fn container(&mut self, missing: &Missing) -> bool;
}

impl Cache {
    /// Empty.
    pub fn new(telemetry: &Telemetry) -> Self {
        Self {
            entries: HashMap::new(),
            groups: Groups::default(),
            users: Arc::default(),
            generation: u64::MAX,
            window: 0,
            swept: 0,
            evicted: telemetry.counter(
                "wattpipe_attribution_evicted_total",
                "Processes dropped from the cache while they may still run.",
                &[],
            ),
            size: telemetry.gauge("wattpipe_attribution_processes", "Processes in the cache.", &[]),
        }
    }

    /// Before the rows of a window: takes in what the background found.
    pub fn begin(&mut self, knowledge: Option<&Knowledge>, ask: &mut dyn Ask) {
        self.window += 1;
        let Some(knowledge) = knowledge else { return };
        for (key, details) in knowledge.take_processes() {
            if let (Some(entry), Some(details)) = (self.entries.get_mut(&key), details) {
                entry.details = Some(details);
                entry.dirty = true;
            }
        }
        let generation = knowledge.generation();
        let changed = generation != self.generation;
        self.generation = generation;
        if changed {
            let users = knowledge.users();
            if users != self.users {
                self.users = users;
                self.entries.values_mut().for_each(|e| e.dirty = true);
            }
        }
        self.groups.refresh(changed, knowledge, ask);
    }

    /// The full attribute set for a row.
    pub fn complete(
        &mut self,
        process: &Arc<Process>,
        base: &Arc<AttributeSet>,
        state: State,
        knowledge: Option<&Knowledge>,
        ask: &mut dyn Ask,
    ) -> Arc<AttributeSet> {
        let key = ProcessKey { pid: process.pid, start: process.start_time.unwrap_or(Nanos(0)) };
        let exited = state == State::Exited;
        if let Some(entry) = self.entries.get_mut(&key)
            && Arc::ptr_eq(&entry.process, process)
            && Arc::ptr_eq(&entry.base, base)
            && entry.version == self.groups.version(entry.group)
            && !entry.dirty
        {
            entry.seen = self.window;
            let full = entry.full.clone();
            if exited {
                self.remove(key, knowledge);
            }
            return full;
        }
        let full = self.work_out(key, process, base, exited, knowledge, ask);
        if exited {
            self.remove(key, knowledge);
        }
        full
    }

    fn work_out(
        &mut self,
        key: ProcessKey,
        process: &Arc<Process>,
        base: &Arc<AttributeSet>,
        exited: bool,
        knowledge: Option<&Knowledge>,
        ask: &mut dyn Ask,
    ) -> Arc<AttributeSet> {
        let (mut details, mut asked, old_group) = match self.entries.get(&key) {
            Some(e) if e.process.comm == process.comm && e.process.exe == process.exe => {
                (e.details.clone(), e.asked, e.group)
            }
            // After `exec` it has another executable, owner and command line.
            Some(e) => (None, false, e.group),
            None => (None, false, None),
        };
        if !asked && !exited && knowledge.is_some() {
            asked = ask.process(key);
        }
        if knowledge.is_none() {
            details = None;
        }
        let group = self.group_of(process, details.as_deref(), knowledge, ask);
        let facts = group.and_then(|g| self.groups.facts(g));
        let full = Arc::new(facts::complete(base, process, details.as_deref(), facts, &self.users));
        let full_up = self.entries.len() >= MAX_PROCESSES && !self.entries.contains_key(&key);
        if full_up && self.swept != self.window {
            self.swept = self.window;
            self.sweep(UNSEEN / 10);
        }
        if self.entries.len() < MAX_PROCESSES || self.entries.contains_key(&key) {
            self.groups.take(group);
            self.groups.give_back(old_group);
            let entry = Entry {
                process: process.clone(),
                base: base.clone(),
                full: full.clone(),
                details,
                group,
                version: self.groups.version(group),
                seen: self.window,
                dirty: false,
                asked: asked || knowledge.is_none(),
            };
            self.entries.insert(key, entry);
        } else {
            self.evicted.add(1);
        }
        full
    }

    /// The kernel's cgroup; where its path is not found, the one `/proc` showed.
    fn group_of(
        &mut self,
        process: &Process,
        details: Option<&Details>,
        knowledge: Option<&Knowledge>,
        ask: &mut dyn Ask,
    ) -> Option<usize> {
        let by_kernel = (process.cgroup != CgroupRef::Unknown)
            .then(|| self.groups.get(&process.cgroup, knowledge, ask))
            .flatten();
        if by_kernel.and_then(|g| self.groups.facts(g)).is_some_and(|f| f.path.is_some()) {
            return by_kernel;
        }
        let shown = knowledge
            .zip(details.and_then(|d| d.cgroups.as_deref()))
            .and_then(|(k, text)| k.path_in(text));
        match shown {
            Some(path) => self.groups.get(&CgroupRef::Path(path.into()), knowledge, ask),
            None => by_kernel,
        }
    }

    fn remove(&mut self, key: ProcessKey, knowledge: Option<&Knowledge>) {
        let Some(entry) = self.entries.remove(&key) else { return };
        let unnamed =
            entry.group.and_then(|g| self.groups.facts(g)).is_none_or(|f| f.path.is_none());
        if let (true, CgroupRef::Id(_), Some(knowledge)) =
            (unnamed, &entry.process.cgroup, knowledge)
        {
            knowledge.unresolved.cgroups.add(1);
        }
        self.groups.give_back(entry.group);
    }

    /// After the rows of a window.
    pub fn end(&mut self) {
        if self.window.is_multiple_of(SWEEP_EVERY) {
            self.sweep(UNSEEN);
            self.groups.sweep();
            if self.entries.capacity() > 4 * self.entries.len() + 1024 {
                self.entries.shrink_to_fit();
            }
        }
        self.size.set(self.entries.len() as f64);
    }

    fn sweep(&mut self, unseen: u64) {
        let oldest = self.window.saturating_sub(unseen);
        let groups = &mut self.groups;
        let before = self.entries.len();
        self.entries.retain(|_, entry| {
            let keep = entry.seen >= oldest;
            if !keep {
                groups.give_back(entry.group);
            }
            keep
        });
        self.evicted.add((before - self.entries.len()) as u64);
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.entries.len(), self.groups.index.len())
    }
}

/// The cgroups of the processes in the cache.
#[derive(Debug, Default)]
struct Groups {
    index: HashMap<CgroupRef, usize>,
    slots: Vec<Option<Group>>,
    free: Vec<usize>,
    versions: u64,
    pathless: usize,
    /// Names that are still missing are to be asked for again.
    ask_again: bool,
    /// Swept for want of room in this window already.
    swept: bool,
}

#[derive(Debug)]
struct Group {
    key: CgroupRef,
    facts: GroupFacts,
    /// Never used twice, so that a slot's next cgroup is not mistaken for this one.
    version: u64,
    users: usize,
    asked: bool,
}

impl Groups {
    fn version(&self, at: Option<usize>) -> u64 {
        at.and_then(|at| self.slots[at].as_ref()).map_or(0, |g| g.version)
    }

    fn facts(&self, at: usize) -> Option<&GroupFacts> {
        self.slots[at].as_ref().map(|g| &g.facts)
    }

    fn get(
        &mut self,
        key: &CgroupRef,
        knowledge: Option<&Knowledge>,
        ask: &mut dyn Ask,
    ) -> Option<usize> {
        if let Some(&at) = self.index.get(key) {
            return Some(at);
        }
        if self.index.len() >= MAX_GROUPS {
            if !std::mem::replace(&mut self.swept, true) {
                self.sweep();
            }
            if self.index.len() >= MAX_GROUPS {
                return None;
            }
        }
        let facts = GroupFacts::of(key, knowledge);
        let asked = knowledge.is_some() && facts.missing.as_ref().is_some_and(|m| ask.container(m));
        self.versions += 1;
        self.pathless += usize::from(facts.path.is_none());
        let group = Group { key: key.clone(), facts, version: self.versions, users: 0, asked };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(group);
        self.index.insert(key.clone(), at);
        Some(at)
    }

    /// Works groups out anew: all where something changed, else those that still lack a path.
    fn refresh(&mut self, changed: bool, knowledge: &Knowledge, ask: &mut dyn Ask) {
        self.swept = false;
        let ask_again = std::mem::take(&mut self.ask_again);
        if !changed && !ask_again && self.pathless == 0 {
            return;
        }
        self.pathless = 0;
        for group in self.slots.iter_mut().flatten() {
            if changed || group.facts.path.is_none() {
                let facts = GroupFacts::of(&group.key, Some(knowledge));
                if facts != group.facts {
                    group.asked &= facts.missing == group.facts.missing;
                    group.facts = facts;
                    self.versions += 1;
                    group.version = self.versions;
                }
            }
            self.pathless += usize::from(group.facts.path.is_none());
            if !group.asked || ask_again {
                group.asked = group.facts.missing.as_ref().is_some_and(|m| ask.container(m));
            }
        }
    }

    fn take(&mut self, at: Option<usize>) {
        if let Some(group) = at.and_then(|at| self.slots[at].as_mut()) {
            group.users += 1;
        }
    }

    fn give_back(&mut self, at: Option<usize>) {
        if let Some(group) = at.and_then(|at| self.slots[at].as_mut()) {
            group.users = group.users.saturating_sub(1);
        }
    }

    /// Drops cgroups without processes. They outlive them until now: a container that starts one
    /// short process after the other keeps its facts.
    fn sweep(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(group) = slot.take_if(|g| g.users == 0) {
                self.pathless -= usize::from(group.facts.path.is_none());
                self.index.remove(&group.key);
                self.free.push(at);
            }
        }
        self.ask_again = true;
    }
}
