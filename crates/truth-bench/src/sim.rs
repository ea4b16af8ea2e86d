//! Runs workloads on the machine event by event: who has which CPU, what each draws, what the
//! meters show and what a kernel would tell. Emits windows of switches with readings, the truth
//! in blocks, and what a poller of `/proc` would have seen.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use wattpipe_pipeline::{
    batch::{
        CpuBlock, CpuInfo, Edge, MeterReading, ProcessEvent, ProcessEventKind, Switch, SwitchBatch,
        Topology, Zone,
    },
    identity::Process,
    units::{Cpu, Nanos, Package, Tgid},
};

use crate::{
    machine::{Load, Machine, Split},
    rng::Rng,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;
/// Distance of meter readings.
pub const SLICE: u64 = 100 * MS;
/// The truth is told in blocks of this length.
pub const BLOCK: u64 = 10 * SECOND;
pub(crate) const QUANTUM: u64 = 4 * MS;
const GOVERNOR: u64 = 5 * MS;
const RAPL_UPDATE: f64 = 976_000.0;

/// When a thread runs.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Always.
    Always,
    /// For `on` ms, then asleep for `off` ms (means; exponential).
    Bursts { on: f64, off: f64 },
    /// As `Bursts`, each burst a process of its own.
    Forks { on: f64, off: f64 },
    /// As `Bursts`, but on and off with thread 0 of the workload with this index.
    With(usize),
    /// Bursts whose off time shrinks and grows over `period` seconds, between `off` and `off_peak`.
    Tide { on: f64, off: f64, off_peak: f64, period: f64 },
    /// Runs through while (time / `half` seconds) is odd (or even).
    Phases { half: f64, odd: bool },
}

/// A workload: threads with one power factor.
#[derive(Clone, Debug)]
pub struct Workload {
    pub name: &'static str,
    pub kappa: f64,
    pub traffic: f64,
    pub stalled: f64,
    /// Power factors it steps through, one each `step` seconds.
    pub steps: Vec<f64>,
    pub step: f64,
    /// Relative size of a slow random walk of its power factor.
    pub wander: f64,
    /// Each thread: where it may run, and when.
    pub threads: Vec<(Vec<usize>, Pattern)>,
}

/// What happens to whom, in order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Wake(usize),
    Leave { cpu: usize, generation: u64 },
    Govern,
    Modulate,
    Snapshot,
    Read,
}

pub(crate) struct Thread {
    pub(crate) workload: usize,
    pub(crate) cpus: Vec<usize>,
    pub(crate) pattern: Pattern,
    pub(crate) pid: u32,
    pub(crate) left: u64,
    pub(crate) followers: Vec<usize>,
}

#[derive(Default)]
pub(crate) struct CpuState {
    pub(crate) queue: VecDeque<usize>,
    pub(crate) running: Option<usize>,
    pub(crate) generation: u64,
    pub(crate) since: u64,
    pub(crate) cycles: f64,
}

/// A block of truth: joules per zone.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// Per zone: floor, and joules by workload.
    pub zones: Vec<(f64, Vec<f64>)>,
}

/// A process as a poller of `/proc` sees it: workload and CPU time so far, or gone.
pub type Polled = BTreeMap<u32, (usize, u64)>;

/// What an exact observer knows of one slice, per socket and workload: ns on CPUs, and cycles of
/// which those beside a busy sibling count 11/20.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    pub time: Vec<Vec<f64>>,
    pub cycles: Vec<Vec<f64>>,
    /// Joules measured per zone.
    pub joules: Vec<f64>,
}

/// The simulator.
pub struct Sim {
    pub machine: Machine,
    pub workloads: Vec<Workload>,
    pub zones: Vec<Arc<Zone>>,
    /// Truth by block.
    pub truth: Vec<Truth>,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) cpus: Vec<CpuState>,
    ghz: Vec<f64>,
    drift: f64,
    factor: Vec<f64>,
    energy: Vec<f64>,
    shown: Vec<f64>,
    noise: Vec<f64>,
    last_snapshot: Vec<f64>,
    pub(crate) entries: Vec<Vec<Switch>>,
    lives: Vec<ProcessEvent>,
    readings: Vec<MeterReading>,
    next_pid: u32,
    /// CPU time of living processes.
    pub alive: Polled,
    splits: Vec<Split>,
    pub(crate) stale: Vec<bool>,
    /// Socket and core of each CPU.
    pub(crate) places: Vec<(usize, usize)>,
    slice: Slice,
    last_read: Vec<f64>,
    /// All slices so far.
    pub slices: Vec<Slice>,
}

impl Sim {
    pub fn new(machine: Machine, workloads: Vec<Workload>, dram: bool, seed: u64) -> Self {
        let mut zones = Vec::new();
        for package in 0..machine.sockets as u32 {
            let zone = |name: &str, hw_type: &str, range| {
                Arc::new(Zone {
                    name: format!("{name}-{package}").into(),
                    hw_type: hw_type.into(),
                    package: Some(Package(package)),
                    source: "rapl".into(),
                    contained_in: None,
                    max_energy_range_uj: Some(range),
                    max_watts: None,
                })
            };
            zones.push(zone("package", "cpu", 262_143_328_850));
            if dram {
                zones.push(zone("dram", "memory", 65_712_999_613));
            }
        }
        let mut sim = Self {
            rng: Rng::new(seed),
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            threads: Vec::new(),
            cpus: (0..machine.cpus()).map(|_| CpuState::default()).collect(),
            ghz: vec![machine.base; machine.sockets],
            drift: 1.0,
            factor: vec![1.0; workloads.len()],
            energy: vec![0.0; zones.len()],
            // Counters stand anywhere when the recording starts; one wraps soon.
            shown: zones
                .iter()
                .map(|z| z.max_energy_range_uj.unwrap_or(0) as f64 * 1e-6 - 5000.0)
                .collect(),
            noise: vec![0.0; zones.len()],
            last_snapshot: vec![0.0; zones.len()],
            entries: vec![Vec::new(); machine.cpus()],
            lives: Vec::new(),
            readings: Vec::new(),
            next_pid: 100,
            alive: Polled::new(),
            splits: vec![Split::default(); machine.sockets],
            stale: vec![true; machine.sockets],
            places: (0..machine.cpus()).map(|cpu| machine.place(cpu)).collect(),
            slice: Slice::default(),
            last_read: Vec::new(),
            slices: Vec::new(),
            truth: Vec::new(),
            machine,
            workloads,
            zones,
        };
        sim.last_read = sim.shown.clone();
        sim.slice = sim.empty_slice();
        sim.start();
        sim
    }

    fn start(&mut self) {
        for workload in 0..self.workloads.len() {
            let pid = self.fork(workload);
            for (cpus, pattern) in self.workloads[workload].threads.clone() {
                let thread = self.threads.len();
                if let Pattern::With(leader) = pattern {
                    let at = self.threads.iter().position(|t| t.workload == leader);
                    if let Some(at) = at {
                        self.threads[at].followers.push(thread);
                    }
                } else {
                    let at = self.rng.range(0.0, 200.0 * MS as f64) as u64 + MS;
                    self.schedule(at, Event::Wake(thread));
                }
                self.threads.push(Thread {
                    workload,
                    cpus,
                    pattern,
                    pid,
                    left: 0,
                    followers: Vec::new(),
                });
            }
        }
        for cpu in 0..self.cpus.len() {
            let entry = Switch { ts: Nanos(1), ..Switch::default() };
            self.entries[cpu].push(entry);
        }
        self.schedule(GOVERNOR, Event::Govern);
        self.schedule(SECOND, Event::Modulate);
        self.schedule_reading(SLICE);
    }

    fn schedule_reading(&mut self, at: u64) {
        // The counter shows what it held at its last update.
        let age = self.rng.range(0.0, RAPL_UPDATE) as u64;
        self.schedule(at - age, Event::Snapshot);
        self.schedule(at, Event::Read);
    }

    pub(crate) fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at.max(self.now), self.sequence, event)));
    }

    pub(crate) fn fork(&mut self, workload: usize) -> u32 {
        self.next_pid += 1;
        let pid = self.next_pid;
        self.alive.insert(pid, (workload, 0));
        self.life(pid, workload, ProcessEventKind::Fork);
        pid
    }

    pub(crate) fn life(&mut self, pid: u32, workload: usize, kind: ProcessEventKind) {
        let mut process = Process::unknown(Tgid(pid));
        if kind == ProcessEventKind::Fork {
            process.comm = Some(self.workloads[workload].name.into());
            process.start_time = Some(Nanos(self.now));
        }
        self.lives.push(ProcessEvent { ts: Nanos(self.now), kind, process });
    }

    /// Simulates up to the next whole second and returns what was recorded.
    pub fn window(&mut self) -> SwitchBatch {
        let end = (self.now / SECOND + 1) * SECOND;
        while let Some(&Reverse((at, _, event))) = self.events.peek() {
            if at > end {
                break;
            }
            self.events.pop();
            self.integrate(at);
            self.handle(event);
        }
        self.integrate(end);
        let mut batch = SwitchBatch::default();
        if end == SECOND {
            batch.topology = Some(Arc::new(self.topology()));
        }
        for (cpu, entries) in self.entries.iter_mut().enumerate() {
            let first_is_tick = end == SECOND;
            let block = CpuBlock { cpu: Cpu(cpu as u32), has_cycles: true, ..CpuBlock::default() };
            let mut from = 0;
            if first_is_tick {
                batch.push_block(CpuBlock { tick_last: true, ..block }, &entries[..1]);
                from = 1;
            }
            batch.push_block(block, &entries[from..]);
            entries.clear();
            // As a flush after the edge does: who runs, and the counter up to here.
            let state = &self.cpus[cpu];
            let pid = Tgid(state.running.map_or(0, |thread| self.threads[thread].pid));
            let (ts, cycles) = (Nanos(end + 1), state.cycles as u64);
            let tick = Switch { ts, cycles, prev: pid, next: pid };
            batch.push_block(CpuBlock { tick_last: true, ..block }, &[tick]);
        }
        batch.processes = std::mem::take(&mut self.lives);
        batch.readings = std::mem::take(&mut self.readings);
        batch.edge = Some(Edge { ts: Nanos(end) });
        batch
    }

    fn topology(&self) -> Topology {
        let cpus = (0..self.machine.cpus()).map(|cpu| {
            let (socket, core) = self.machine.place(cpu);
            CpuInfo { cpu: Cpu(cpu as u32), package: Package(socket as u32), core: core as u32 }
        });
        Topology { cpus: cpus.collect(), boot_unix_ns: 1_790_000_000_000_000_000 }
    }

    /// Lets time pass: energy, truth and cycle counters.
    fn integrate(&mut self, to: u64) {
        while self.now < to {
            let block = (self.now / BLOCK) as usize;
            let until = to.min((self.now / BLOCK + 1) * BLOCK);
            let seconds = (until - self.now) as f64 * 1e-9;
            self.refresh();
            while self.truth.len() <= block {
                let zone = (0.0, vec![0.0; self.workloads.len()]);
                self.truth.push(Truth { zones: vec![zone; self.zones.len()] });
            }
            let per_socket = self.zones.len() / self.machine.sockets;
            for (socket, split) in self.splits.iter().enumerate() {
                let parts = [(split.floor, &split.active), (split.dram_floor, &split.dram)];
                for (kind, (floor, active)) in parts.into_iter().take(per_socket).enumerate() {
                    let zone = socket * per_socket + kind;
                    let truth = &mut self.truth[block].zones[zone];
                    truth.0 += floor * seconds;
                    let mut watts = floor;
                    for &(workload, w) in active {
                        truth.1[workload] += w * seconds;
                        watts += w;
                    }
                    self.energy[zone] += watts * seconds;
                }
            }
            self.account((until - self.now) as f64);
            self.now = until;
        }
    }

    fn empty_slice(&self) -> Slice {
        let none = vec![vec![0.0; self.workloads.len()]; self.machine.sockets];
        Slice { time: none.clone(), cycles: none, joules: Vec::new() }
    }

    /// Counts `ns` of who has which CPU.
    fn account(&mut self, ns: f64) {
        let half = self.machine.sockets * self.machine.cores;
        for cpu in 0..self.cpus.len() {
            let Some(thread) = self.cpus[cpu].running else { continue };
            let sibling = self.machine.threads > 1
                && self.cpus[(cpu + half) % self.cpus.len()].running.is_some();
            let (socket, workload) = (self.places[cpu].0, self.threads[thread].workload);
            let cycles = self.ghz[socket] * ns;
            self.cpus[cpu].cycles += cycles;
            self.slice.time[socket][workload] += ns;
            self.slice.cycles[socket][workload] += if sibling { 0.55 * cycles } else { cycles };
        }
    }

    fn refresh(&mut self) {
        for socket in 0..self.machine.sockets {
            if !std::mem::replace(&mut self.stale[socket], false) {
                continue;
            }
            let mut cores: Vec<Vec<Load>> = vec![Vec::new(); self.machine.cores];
            for (cpu, state) in self.cpus.iter().enumerate() {
                let (at, core) = self.places[cpu];
                if at == socket
                    && let Some(thread) = state.running
                {
                    let w = self.threads[thread].workload;
                    let spec = &self.workloads[w];
                    cores[core].push(Load {
                        workload: w,
                        kappa: spec.kappa * self.factor[w],
                        traffic: spec.traffic,
                        stalled: spec.stalled,
                    });
                }
            }
            let (ghz, drift) = (self.ghz[socket], self.drift);
            self.machine.split(&cores, ghz, drift, &mut self.splits[socket]);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake(thread) => self.wake(thread),
            Event::Leave { cpu, generation } => {
                if self.cpus[cpu].generation == generation {
                    self.leave(cpu);
                }
            }
            Event::Govern => self.govern(),
            Event::Modulate => self.modulate(),
            Event::Snapshot => self.snapshot(),
            Event::Read => self.read(),
        }
    }

    fn govern(&mut self) {
        for socket in 0..self.machine.sockets {
            let mut active = vec![false; self.machine.cores];
            for (cpu, state) in self.cpus.iter().enumerate() {
                let (at, core) = self.machine.place(cpu);
                if at == socket && state.running.is_some() {
                    active[core] = true;
                }
            }
            let target = self.machine.target(active.iter().filter(|a| **a).count());
            let step = 0.5 * (target - self.ghz[socket]);
            if step.abs() > 1e-3 {
                self.ghz[socket] += step;
                self.stale[socket] = true;
            }
        }
        self.schedule(self.now + GOVERNOR, Event::Govern);
    }

    fn modulate(&mut self) {
        let seconds = self.now as f64 * 1e-9;
        let pull = 0.02;
        self.drift += pull * (1.0 - self.drift)
            + self.machine.floor_drift * (2.0 * pull).sqrt() * self.rng.normal();
        for (w, spec) in self.workloads.iter().enumerate() {
            if !spec.steps.is_empty() {
                self.factor[w] = spec.steps[(seconds / spec.step) as usize % spec.steps.len()];
            } else if spec.wander > 0.0 {
                let pull = 1.0 / 30.0;
                let f = &mut self.factor[w];
                *f += pull * (1.0 - *f) + spec.wander * (2.0f64 * pull).sqrt() * self.rng.normal();
                *f = f.clamp(0.2, 3.0);
            }
        }
        self.stale.fill(true);
        self.schedule(self.now + SECOND, Event::Modulate);
    }

    fn snapshot(&mut self) {
        for zone in 0..self.zones.len() {
            let step = self.energy[zone] - self.last_snapshot[zone];
            self.last_snapshot[zone] = self.energy[zone];
            // Noise of one reading is made up for by the next: the counter itself does not drift.
            let noise = self.machine.noise * step * self.rng.normal();
            let before = std::mem::replace(&mut self.noise[zone], noise);
            self.shown[zone] += (step + noise - before).max(0.0);
        }
    }

    fn read(&mut self) {
        for (zone, info) in self.zones.iter().enumerate() {
            let unit = if &*info.hw_type == "memory" { 15.3e-6 } else { 61.035e-6 };
            let joules = (self.shown[zone] / unit).floor() * unit;
            let range = info.max_energy_range_uj.unwrap_or(u64::MAX);
            let energy_uj = (joules * 1e6) as u64 % range;
            self.readings.push(MeterReading { ts: Nanos(self.now), zone: info.clone(), energy_uj });
        }
        let empty = self.empty_slice();
        let mut slice = std::mem::replace(&mut self.slice, empty);
        slice.joules = self.shown.iter().zip(&self.last_read).map(|(a, b)| a - b).collect();
        self.last_read.clone_from(&self.shown);
        self.slices.push(slice);
        self.schedule_reading(self.now + SLICE);
    }
}
