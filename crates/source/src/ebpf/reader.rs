//! The one thread that reads the probe: drains the rings when they fill, and closes windows.
//!
//! At an edge, in this order: empty the ring as far as it is; take the edge's time `T`; make every
//! CPU's stream complete past `T` (by `flush`, or by a peek); remember how far the switch ring has
//! been written; drain the life-cycle ring; drain the switch ring up to what was remembered. So a
//! fork is always seen in or before the batch with its child's first switch-in, and only a batch
//! with an edge holds entries later than that edge.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use wattpipe_ebpf_probe_common::{BatchHeader, Entry, FLAG_CYCLES};
use wattpipe_pipeline::{
    batch::{Batch, CpuInfo, Edge, SwitchBatch, Topology},
    privileges::Privileges,
    registry::HostRoots,
    source::{BatchSender, Pace, SourceError},
    units::{Cpu, Nanos, Package},
};

use crate::meter::Meters;

use super::{
    cpus::{self, Cpus},
    error::EbpfError,
    gauges::Gauges,
    life::{Lives, RECORD_BYTES},
    loader::{Flushed, Probe},
    proc_snapshot,
    ring::{Drained, Ring},
    stream::Streams,
    sys::{self, Bell, Sleeper},
};

/// Bytes of ring that one batch to the chain holds: large enough that handing over costs nothing,
/// small enough to stay in a cache.
const CHUNK_BYTES: usize = 384 << 10;
/// Batches whose memory is kept for reuse.
const POOL: usize = 6;
/// Entries a kept batch may have room for; the memory of a larger one (after a stop) is given back.
const POOL_ENTRIES: usize = 64 << 10;
/// Switches a second from which on a machine is not idle.
const BUSY_SWITCHES: u64 = 500;
/// The clocks' distance may move by this much (in ns) before it is told again.
const CLOCK_STEP: u64 = 1_000_000;

/// Everything the thread owns.
pub(crate) struct Reader {
    probe: Probe,
    lives: Lives,
    windows: Windows,
    meters: Meters,
    host: HostRoots,
    out: BatchSender,
    gauges: Gauges,
    streams: Streams,
    cpus: Cpus,
    cpus_unread: bool,
    pool: Vec<Arc<SwitchBatch>>,
    batch: SwitchBatch,
    topology: Option<Topology>,
    life_lost: u64,
    /// There were enough switches in the last window for slices to tell anything apart.
    busy: bool,
    peeks: Vec<Peek>,
    peeked: Vec<Entry>,
    /// Of one CPU, while it is looked at; kept for its memory.
    copy: Vec<Entry>,
    privileges: Privileges,
    /// `flush` works with raised privileges only.
    raise_to_flush: bool,
}

/// When windows close and meters are read, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    /// Distance of edges.
    pub(crate) length: u64,
    /// Distance of meter readings between edges; `None` for none.
    pub(crate) slice: Option<u64>,
    /// Slices are read on an idle machine too.
    pub(crate) slices_when_idle: bool,
}

/// What the agent lends a running source.
pub(crate) struct Surroundings {
    /// To be raised around what needs them after the first batch.
    pub(crate) privileges: Privileges,
    /// By how much windows are to be longer than configured.
    pub(crate) pace: Pace,
}

/// A copy of an idle CPU's open batch.
struct Peek {
    header: BatchHeader,
    from: u32,
    entries: std::ops::Range<usize>,
}

/// The chain has stopped taking batches.
struct ChainGone;

impl Reader {
    pub(crate) fn new(
        probe: Probe,
        lives: Lives,
        windows: Windows,
        meters: Meters,
        host: HostRoots,
        out: BatchSender,
        gauges: Gauges,
    ) -> Self {
        Self {
            streams: Streams::new(probe.cpus),
            probe,
            lives,
            windows,
            meters,
            host,
            out,
            gauges,
            cpus: Cpus::default(),
            cpus_unread: false,
            pool: Vec::new(),
            batch: SwitchBatch::default(),
            topology: None,
            life_lost: 0,
            busy: false,
            peeks: Vec::new(),
            peeked: Vec::new(),
            copy: Vec::new(),
            privileges: Privileges::default(),
            raise_to_flush: false,
        }
    }

    /// Runs until `stop`, or until nobody takes its batches.
    pub(crate) fn run(
        mut self,
        bell: &Bell,
        stop: &AtomicBool,
        around: &Surroundings,
    ) -> Result<(), SourceError> {
        self.privileges = around.privileges.clone();
        let length = |windows: &Windows| windows.length * u64::from(around.pace.factor());
        let sleeper = {
            let [switches, life] = self.probe.wakeups();
            Sleeper::new(&[bell.as_fd(), switches, life])
                .map_err(EbpfError::io("preparing to sleep"))?
        };
        self.snapshot();
        // Whom each CPU runs is known before the first window starts, not some µs into it.
        self.follow_cpus();
        self.complete_streams();
        let Ok(mut edge) = self.edge() else { return Ok(()) };
        let mut next = edge + length(&self.windows);
        let mut slice = self.first_slice(edge);
        while !stop.load(Ordering::Acquire) {
            sleeper.until(next.min(slice)).map_err(EbpfError::io("setting the timer"))?;
            sleeper.sleep().map_err(EbpfError::io("sleeping"))?;
            let now = sys::monotonic();
            if now >= next {
                match self.edge() {
                    Ok(taken) => edge = taken,
                    Err(ChainGone) => return Ok(()),
                }
                // A late edge makes one longer window; the grid stays where it was.
                next += length(&self.windows);
                if next <= edge {
                    next = edge + length(&self.windows);
                }
                slice = self.first_slice(edge);
            } else if now >= slice {
                // Goes out with the entries that follow it.
                self.batch.readings.extend(self.meters.read_all(Nanos(now)));
                slice = now + self.windows.slice.unwrap_or(u64::MAX / 2);
            } else if self.collect().is_err() {
                return Ok(());
            }
        }
        // The last window ends here, whole or not. That nobody takes it any more is no error.
        let _ = self.edge();
        Ok(())
    }

    /// When the meters are read first after an edge; beyond any window for never.
    fn first_slice(&self, edge: u64) -> u64 {
        match self.windows.slice {
            Some(slice) if self.busy || self.windows.slices_when_idle => edge + slice,
            _ => u64::MAX,
        }
    }

    /// Takes everything up to now from both rings; sends it but for a last, not yet full batch.
    fn empty_rings(&mut self) -> Result<(), ChainGone> {
        let head = self.probe.switches.head();
        self.drain_life();
        while self.drain_switches(head, CHUNK_BYTES) {
            self.send()?;
        }
        Ok(())
    }

    /// Takes and sends what waits in the rings.
    fn collect(&mut self) -> Result<(), ChainGone> {
        self.empty_rings()?;
        if self.batch.entries.is_empty() && self.batch.processes.is_empty() {
            return Ok(());
        }
        self.send()
    }

    /// Closes a window and returns its edge.
    fn edge(&mut self) -> Result<u64, ChainGone> {
        self.empty_rings()?;
        self.follow_cpus();
        let edge = sys::monotonic();
        if !self.meters.is_empty() {
            self.batch.readings.extend(self.meters.read_all(Nanos(edge)));
        }
        self.complete_streams();
        let head = self.probe.switches.head();
        self.drain_life();
        while self.drain_switches(head, usize::MAX) {}
        // An open batch comes after those of its CPU that wait behind a record that is stuck: it is
        // looked at again at the next edge.
        if self.probe.switches.reached(head) {
            self.apply_peeks();
        }
        self.streams.settle(edge);
        self.tell_topology();
        self.batch.edge = Some(Edge { ts: Nanos(edge) });
        self.count();
        self.send()?;
        Ok(edge)
    }

    /// Makes each CPU's stream complete past now: a CPU that is idle, offline or not to be disturbed
    /// is looked at, the others are interrupted.
    fn complete_streams(&mut self) {
        let privileges = self.privileges.clone();
        let mut raised = self.raise_to_flush.then(|| privileges.raise());
        self.peeks.clear();
        self.peeked.clear();
        let cpus = std::mem::take(&mut self.cpus);
        for cpu in 0..self.streams.len() {
            let online = cpus.online.contains(&cpu);
            let quiet = cpus.quiet.contains(&cpu);
            let idle = self.probe.batches.newest(cpu).is_some_and(|newest| newest.next == 0);
            if online && !quiet && !idle {
                let mut flushed = self.flush(cpu);
                if flushed == Flushed::Forbidden && !self.raise_to_flush {
                    self.raise_to_flush = true;
                    raised = Some(privileges.raise());
                    flushed = self.flush(cpu);
                }
                if flushed == Flushed::Sent {
                    continue;
                }
            }
            self.peek(cpu);
        }
        self.cpus = cpus;
        drop(raised);
    }

    /// Lets the CPU send what it has.
    fn flush(&mut self, cpu: u32) -> Flushed {
        // A ring smaller than what all CPUs may send now is emptied in between.
        for _ in 0..3 {
            if sys::current_cpu() != Some(cpu) {
                self.gauges.ipis.add(1);
            }
            match self.probe.flush(cpu) {
                Flushed::Full => {
                    let head = self.probe.switches.head();
                    self.drain_life();
                    self.drain_switches(head, usize::MAX);
                }
                flushed => return flushed,
            }
        }
        Flushed::Full
    }

    fn peek(&mut self, cpu: u32) {
        // What was taken of the open batch is only known once the batch's number is.
        let copy = &mut self.copy;
        let Some(mut header) = self.probe.batches.copy(cpu, 0, copy) else { return };
        // The probe writes them when it sends: before the first time they are not there yet.
        header.flags = if self.probe.counters.is_some() { FLAG_CYCLES } else { 0 };
        let from = self.streams.taken(cpu, header.sequence).min(header.count);
        let start = self.peeked.len();
        self.peeked.extend(copy.drain(from as usize..));
        self.peeks.push(Peek { header, from, entries: start..self.peeked.len() });
    }

    fn apply_peeks(&mut self) {
        for peek in &self.peeks {
            let entries = &self.peeked[peek.entries.clone()];
            self.streams.peeked(&peek.header, peek.from, entries, &mut self.batch);
        }
    }

    /// Drains the life-cycle ring; after a loss, everything that lives is read again.
    fn drain_life(&mut self) {
        let head = self.probe.life.head();
        let (lives, processes) = (&mut self.lives, &mut self.batch.processes);
        let drained = self.probe.life.drain_to(head, |record| lives.record(record, processes));
        stuck(drained, &self.probe.life);
        let lost = self.probe.life_lost();
        if lost != self.life_lost {
            self.gauges.life_lost.add(lost - self.life_lost);
            self.life_lost = lost;
            self.snapshot();
        }
    }

    /// Drains the switch ring up to `head`, at most `bytes`; whether it stopped before `head`.
    fn drain_switches(&mut self, head: usize, bytes: usize) -> bool {
        let (streams, batch) = (&mut self.streams, &mut self.batch);
        let ring = &mut self.probe.switches;
        let (drained, more) = ring.drain_some(head, bytes, |record| streams.record(record, batch));
        stuck(drained, ring);
        more
    }

    /// Everything that lives now.
    fn snapshot(&mut self) {
        let privileges = self.privileges.clone();
        let _raised = privileges.raise();
        match self.probe.snapshot() {
            Some(Ok(bytes)) => {
                for record in bytes.chunks_exact(RECORD_BYTES) {
                    self.lives.record(record, &mut self.batch.processes);
                }
            }
            Some(Err(error)) => tracing::warn!("the task iterator failed ({error}); reading /proc"),
            None => {}
        }
        proc_snapshot::complete(&self.host.procfs, &mut self.batch.processes);
    }

    fn follow_cpus(&mut self) {
        match Cpus::read(&self.host.sysfs) {
            Ok(cpus) => (self.cpus, self.cpus_unread) = (cpus, false),
            // Told once, until it is read again.
            Err(error) if !std::mem::replace(&mut self.cpus_unread, true) => {
                tracing::warn!("the list of online CPUs cannot be read: {error}");
            }
            Err(_) => {}
        }
        let Some(counters) = &mut self.probe.counters else { return };
        let frozen = std::mem::take(&mut self.streams.frozen);
        if frozen.is_empty() && counters.covers(&self.cpus.online) {
            return;
        }
        let privileges = self.privileges.clone();
        let _raised = privileges.raise();
        // Cycles that leave out a CPU would be too few for whoever ran there: then there are none.
        match (counters.follow(&self.cpus.online, &frozen), self.streams.uncounted) {
            (Ok(()), false) => {}
            (Ok(()), true) => {
                tracing::info!("cycles are counted on every CPU again");
                self.streams.uncounted = false;
            }
            (Err(_), true) => {}
            (Err(error), false) => {
                tracing::warn!(
                    "no cycles from now on: the counter of a CPU that came back cannot be opened \
                     ({error}); where kernel.perf_event_paranoid is above 2, set it to 2 or add \
                     CAP_SYS_ADMIN to service::security::keep_capabilities"
                );
                self.streams.uncounted = true;
            }
        }
    }

    /// Tells the CPUs and the clock where they changed.
    fn tell_topology(&mut self) {
        let boot_unix_ns = sys::boot_unix_ns();
        let unchanged = self.topology.as_ref().is_some_and(|told| {
            told.boot_unix_ns.abs_diff(boot_unix_ns) < CLOCK_STEP
                && told.cpus.iter().map(|c| c.cpu.0).eq(self.cpus.online.iter().copied())
        });
        if unchanged {
            return;
        }
        let cpus = self.cpus.online.iter().map(|&cpu| {
            let (package, core) = cpus::place(&self.host.sysfs, cpu);
            CpuInfo { cpu: Cpu(cpu), package: Package(package), core }
        });
        let topology = Topology { cpus: cpus.collect(), boot_unix_ns };
        self.batch.topology = Some(Arc::new(topology.clone()));
        self.topology = Some(topology);
    }

    fn count(&mut self) {
        let switches = {
            let _raised = self.raise_to_flush.then(|| self.privileges.raise());
            self.gauges.tell(&self.streams.counts, &self.probe)
        };
        tracing::debug!(switches, lost = self.streams.counts.lost, "a window is closed");
        self.busy = switches >= BUSY_SWITCHES * self.windows.length / 1_000_000_000;
    }

    /// Hands the batch over and takes up the memory of one that everybody is done with.
    fn send(&mut self) -> Result<(), ChainGone> {
        let mut fresh = SwitchBatch::default();
        if let Some(free) = self.pool.iter().position(|b| Arc::strong_count(b) == 1)
            && let Ok(mut batch) = Arc::try_unwrap(self.pool.swap_remove(free))
        {
            batch.clear();
            fresh = batch;
        }
        let mut batch = std::mem::replace(&mut self.batch, fresh);
        batch.live = true;
        batch.processes.sort_by_key(|event| event.ts);
        let batch = Arc::new(batch);
        if self.pool.len() < POOL && batch.entries.capacity() <= POOL_ENTRIES {
            self.pool.push(Arc::clone(&batch));
        }
        self.out.blocking_send(Batch::Switches(batch)).map_err(|_| ChainGone)
    }
}

fn stuck(drained: Drained, ring: &Ring) {
    if drained == Drained::Stuck {
        tracing::warn!(
            "a record of the ring stays unfinished; {} bytes wait behind it",
            ring.pending()
        );
    }
}
