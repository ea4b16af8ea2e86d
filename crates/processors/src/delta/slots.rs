//! Who a tgid is: dense slots for processes, and the table from tgid to slot that the hot path
//! reads. A pid that is reused within a window has several slots, told apart by time.

use std::{collections::HashMap, sync::Arc};

use wattpipe_pipeline::{
    batch::{ProcessEvent, ProcessEventKind, Switch},
    identity::{AttributeSet, Process, attr},
    units::{Nanos, Tgid},
};

/// Index of a process in the dense arrays.
pub(super) type SlotId = u32;
/// The CPU was idle (tid 0): never a workload.
pub(super) const IDLE: SlotId = 0;
/// It is not known who had the CPU.
pub(super) const UNKNOWN: SlotId = 1;

/// Table values are slot + 1, so that 0 means "never seen"; this bit says that time decides.
const BY_TIME: u32 = 1 << 31;
const PAGE: usize = 1024;
/// pid_max is at most 2^22; whatever is beyond comes from a hostile recording and goes to a map.
const PAGED: u32 = 1 << 22;

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Life {
    /// Runs, as far as is known.
    Live,
    /// Its last thread has exited at this time; what it still runs is its own.
    Exiting(Nanos),
    /// Reported as exited. Kept for one more window, since a thread that was preempted on its way
    /// out may still run a moment.
    Reported,
    /// The slot is free.
    Free,
}

/// A process.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) process: Arc<Process>,
    pub(super) life: Life,
    attributes: Option<Arc<AttributeSet>>,
}

/// All processes that are known.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    pages: Vec<Option<Box<[u32; PAGE]>>>,
    beyond: HashMap<u32, u32>,
    /// Later lives of a tgid, by the time from which they own it, in time order.
    later: HashMap<Tgid, Vec<(Nanos, SlotId)>>,
}

impl Slots {
    pub(super) fn new() -> Self {
        let reserved = || Slot {
            process: Arc::new(Process::unknown(Tgid(0))),
            life: Life::Live,
            attributes: None,
        };
        let mut slots = Self {
            slots: vec![reserved(), reserved()],
            free: Vec::new(),
            pages: Vec::new(),
            beyond: HashMap::new(),
            later: HashMap::new(),
        };
        slots.set(Tgid(0), IDLE + 1);
        slots
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, id: SlotId) -> &Slot {
        &self.slots[id as usize]
    }

    /// The slots of processes, with their ids.
    pub(super) fn processes(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        (2..).zip(self.slots.iter().skip(2)).filter(|(_, s)| s.life != Life::Free)
    }

    /// The process that is switched in under `tgid` at `ts`.
    #[inline]
    pub(super) fn at(&mut self, tgid: Tgid, ts: Nanos) -> SlotId {
        let value = self.value(tgid);
        if value != 0 && value & BY_TIME == 0 { value - 1 } else { self.at_slow(tgid, ts, value) }
    }

    #[inline]
    fn value(&self, tgid: Tgid) -> u32 {
        let (page, at) = (tgid.0 as usize / PAGE, tgid.0 as usize % PAGE);
        match self.pages.get(page) {
            Some(Some(page)) => page[at],
            _ if tgid.0 < PAGED => 0,
            _ => self.beyond.get(&tgid.0).copied().unwrap_or(0),
        }
    }

    #[cold]
    fn at_slow(&mut self, tgid: Tgid, ts: Nanos, value: u32) -> SlotId {
        if tgid == Tgid::NOBODY {
            return UNKNOWN;
        }
        if value & BY_TIME != 0 {
            let lives = self.later.get(&tgid).map_or(&[][..], Vec::as_slice);
            if let Some(&(_, slot)) = lives.iter().rev().find(|(from, _)| *from <= ts) {
                return slot;
            }
            let first = value & !BY_TIME;
            if first != 0 {
                return first - 1;
            }
        }
        // Nobody told us about it: a life-cycle record was lost. Its pid is all that is known.
        let slot = self.add(Process::unknown(tgid));
        self.set(tgid, (slot + 1) | (value & BY_TIME));
        slot
    }

    fn set(&mut self, tgid: Tgid, value: u32) {
        if tgid.0 >= PAGED {
            match value {
                0 => self.beyond.remove(&tgid.0),
                _ => self.beyond.insert(tgid.0, value),
            };
            return;
        }
        let (page, at) = (tgid.0 as usize / PAGE, tgid.0 as usize % PAGE);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]))[at] = value;
    }

    fn add(&mut self, process: Process) -> SlotId {
        let slot = Slot { process: Arc::new(process), life: Life::Live, attributes: None };
        match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as SlotId
            }
        }
    }

    /// Takes in a life-cycle event.
    pub(super) fn event(&mut self, event: &ProcessEvent) {
        let tgid = event.process.pid;
        if tgid.0 == 0 {
            return;
        }
        match event.kind {
            ProcessEventKind::Fork => {
                let mut process = event.process.clone();
                process.start_time.get_or_insert(event.ts);
                self.begin(event.ts, process);
            }
            ProcessEventKind::Snapshot | ProcessEventKind::Exec => match self.newest(tgid) {
                Some(slot) if self.is_same(slot, &event.process) => {
                    self.update(slot, &event.process)
                }
                Some(_) => {
                    // The pid was reused and its fork was lost: a new life from its start on.
                    let from = event.process.start_time.unwrap_or(event.ts);
                    self.begin(from, event.process.clone());
                }
                None => {
                    let slot = self.add(event.process.clone());
                    self.set(tgid, slot + 1);
                }
            },
            ProcessEventKind::Exit => {
                let slot = match self.newest(tgid) {
                    // The exit of an earlier life, of which a later one has told already.
                    Some(slot) if !self.is_same(slot, &event.process) => return,
                    Some(slot) => slot,
                    None => {
                        let slot = self.add(event.process.clone());
                        self.set(tgid, slot + 1);
                        slot
                    }
                };
                let slot = &mut self.slots[slot as usize];
                if slot.life == Life::Live {
                    slot.life = Life::Exiting(event.ts);
                }
            }
        }
    }

    /// A new life of a tgid, which owns what is switched in from `from` on.
    fn begin(&mut self, from: Nanos, process: Process) {
        let tgid = process.pid;
        if let Some(newest) = self.newest(tgid) {
            if self.slots[newest as usize].process.start_time == process.start_time {
                return self.update(newest, &process);
            }
            // Whoever had the pid is gone, whether or not its exit was seen.
            let slot = &mut self.slots[newest as usize];
            if slot.life == Life::Live {
                slot.life = Life::Exiting(from);
            }
        }
        let slot = self.add(process);
        self.later.entry(tgid).or_default().push((from, slot));
        let value = self.value(tgid);
        self.set(tgid, value | BY_TIME);
    }

    fn newest(&self, tgid: Tgid) -> Option<SlotId> {
        let value = self.value(tgid);
        if value & BY_TIME != 0
            && let Some((_, slot)) = self.later.get(&tgid).and_then(|l| l.last())
        {
            return Some(*slot);
        }
        (value & !BY_TIME).checked_sub(1)
    }

    /// Whether what is known of `slot` and `process` can be one process.
    fn is_same(&self, slot: SlotId, process: &Process) -> bool {
        match (self.slots[slot as usize].process.start_time, process.start_time) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
    }

    fn update(&mut self, slot: SlotId, newer: &Process) {
        let slot = &mut self.slots[slot as usize];
        let mut process = (*slot.process).clone();
        process.update(newer);
        if process != *slot.process {
            slot.process = Arc::new(process);
            slot.attributes = None;
        }
    }

    /// The window up to `edge` is complete: lives that began by then need no time any more.
    pub(super) fn settle(&mut self, edge: Nanos) {
        let mut settled = Vec::new();
        self.later.retain(|tgid, lives| {
            let due = lives.iter().take_while(|(from, _)| *from <= edge).count();
            if let Some(&(_, slot)) = lives[..due].last() {
                settled.push((*tgid, slot, due == lives.len()));
            }
            lives.drain(..due);
            !lives.is_empty()
        });
        for (tgid, slot, all) in settled {
            self.set(tgid, (slot + 1) | if all { 0 } else { BY_TIME });
        }
    }

    /// Frees `slot`. Its tgid is forgotten unless a later life has it.
    pub(super) fn release(&mut self, id: SlotId) {
        let tgid = self.slots[id as usize].process.pid;
        let value = self.value(tgid);
        if value & !BY_TIME == id + 1 {
            self.set(tgid, value & BY_TIME);
        }
        let slot = &mut self.slots[id as usize];
        slot.life = Life::Free;
        slot.attributes = None;
        self.free.push(id);
    }

    pub(super) fn set_life(&mut self, id: SlotId, life: Life) {
        self.slots[id as usize].life = life;
    }

    /// What identifies the process, made once and shared by its rows. The creation time keeps the
    /// clock anchor of its first row: a clock step must not make it another process.
    pub(super) fn attributes(&mut self, id: SlotId, boot_unix_ns: u64) -> Arc<AttributeSet> {
        let slot = &mut self.slots[id as usize];
        if let Some(set) = &slot.attributes {
            return set.clone();
        }
        let process = &slot.process;
        let mut set = AttributeSet::new();
        set.set(attr::PROCESS_PID, process.pid.0);
        if let Some(start) = process.start_time {
            set.set(
                attr::PROCESS_CREATION_TIME,
                wattpipe_pipeline::units::rfc3339(boot_unix_ns.saturating_add(start.0)),
            );
        }
        set.set_some(attr::PROCESS_EXECUTABLE_NAME, process.comm.clone());
        let set = Arc::new(set);
        slot.attributes = Some(set.clone());
        set
    }
}

/// The first entry that is later than `edge`.
pub(super) fn split_at_edge(entries: &[Switch], edge: Nanos) -> usize {
    match entries.last() {
        Some(last) if last.ts > edge => entries.partition_point(|e| e.ts <= edge),
        _ => entries.len(),
    }
}
