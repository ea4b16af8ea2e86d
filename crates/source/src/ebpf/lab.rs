//! The probe by itself, and what it is compared with, for the benchmark (`benches/probe.rs`). Not
//! part of the product: behind the feature `bench`.

use std::{collections::BTreeSet, os::fd::OwnedFd, path::Path};

use aya::{Ebpf, EbpfLoader, programs::BtfTracePoint};
use wattpipe_pipeline::{batch::SwitchBatch, registry::HostRoots};

use super::{
    Attach, Clock, EbpfError,
    attach::switch_program,
    cpus::Cpus,
    loader::{Options, Probe, kernel_btf},
    stream::Streams,
    sys::{self, PerfEvent},
};

static BASELINES: &[u8] = aya::include_bytes_aligned!("../../probe/bench.bpf.o");

/// A program to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// One of the baselines, by name.
    Baseline(&'static str),
    /// The probe.
    Probe {
        /// How it is attached.
        attach: Attach,
        /// Its clock.
        clock: Clock,
        /// Reads a software counter at each switch.
        counter: bool,
        /// Switches to a batch.
        batch_events: u32,
    },
}

/// A loaded subject.
pub struct Loaded {
    inner: Inner,
    before: (u64, u64),
}

enum Inner {
    Baseline(Box<Ebpf>, &'static str),
    Probe(Box<Ours>),
}

struct Ours {
    probe: Probe,
    program: &'static str,
    streams: Streams,
    batch: SwitchBatch,
}

/// What a run showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Runs of the program.
    pub runs: u64,
    /// Nanoseconds they took, by the kernel's statistics.
    pub ns: u64,
    /// Switches received.
    pub received: u64,
    /// Switches lost.
    pub lost: u64,
}

/// Switches the kernel's statistics on; they go off with what is returned, unless they were on.
pub fn statistics() -> Result<OwnedFd, String> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|e| e.to_string())
}

/// CPU time of the calling thread in nanoseconds.
pub fn thread_cpu() -> u64 {
    sys::thread_cpu()
}

impl Loaded {
    /// Loads and attaches.
    pub fn new(subject: Subject) -> Result<Self, String> {
        let inner = match subject {
            Subject::Baseline(name) => Inner::Baseline(Box::new(baseline(name)?), name),
            Subject::Probe { attach, clock, counter, batch_events } => {
                let options =
                    options(attach, clock, counter, batch_events).map_err(|e| e.to_string())?;
                let probe = Probe::load(Path::new("/sys"), &options).map_err(|e| e.to_string())?;
                Inner::Probe(Box::new(Ours {
                    program: switch_program(attach, clock, counter),
                    streams: Streams::new(probe.cpus),
                    probe,
                    batch: SwitchBatch::default(),
                }))
            }
        };
        let mut loaded = Self { inner, before: (0, 0) };
        loaded.before = loaded.statistics();
        Ok(loaded)
    }

    /// Reads what waits, as the source does.
    pub fn drain(&mut self) {
        if let Inner::Probe(ours) = &mut self.inner {
            let Ours { probe, streams, batch, .. } = &mut **ours;
            batch.clear();
            let head = probe.switches.head();
            probe.switches.drain_to(head, |record| streams.record(record, batch));
        }
    }

    /// What has been measured since it was loaded.
    pub fn measured(&self) -> Measured {
        let (runs, ns) = self.statistics();
        let (received, lost) = match &self.inner {
            Inner::Baseline(..) => (0, 0),
            Inner::Probe(ours) => (ours.streams.counts.switches, ours.streams.counts.lost),
        };
        Measured { runs: runs - self.before.0, ns: ns - self.before.1, received, lost }
    }

    fn statistics(&self) -> (u64, u64) {
        let info = match &self.inner {
            Inner::Baseline(ebpf, name) => ebpf.program(name).and_then(|p| p.info().ok()),
            Inner::Probe(ours) => ours.probe.program_info(ours.program),
        };
        info.map_or((0, 0), |i| {
            (i.run_count(), u64::try_from(i.run_time().as_nanos()).unwrap_or(u64::MAX))
        })
    }
}

fn baseline(name: &'static str) -> Result<Ebpf, String> {
    let btf = kernel_btf(Path::new("/sys")).map_err(|e| e.to_string())?;
    let tgid = btf.offset("task_struct.tgid").map_err(|e| e.to_string())?;
    drop(btf);
    let possible = Cpus::possible(Path::new("/sys")).map_err(|e| e.to_string())?;
    let mut ebpf = EbpfLoader::new()
        .override_global("TGID", &tgid, true)
        .map_max_entries("LAST_BY_CPU", possible)
        .load(BASELINES)
        .map_err(|e| e.to_string())?;
    let kernel = aya::Btf::from_sys_fs().map_err(|e| e.to_string())?;
    let program: &mut BtfTracePoint = ebpf
        .program_mut(name)
        .ok_or("no such baseline")?
        .try_into()
        .map_err(|e: aya::programs::ProgramError| e.to_string())?;
    program.load("sched_switch", &kernel).map_err(|e| e.to_string())?;
    program.attach().map_err(|e| e.to_string())?;
    Ok(ebpf)
}

fn options(
    attach: Attach,
    clock: Clock,
    counter: bool,
    batch_events: u32,
) -> Result<Options, EbpfError> {
    let sysfs = Path::new("/sys");
    let read = EbpfError::io("reading the list of CPUs");
    let online: BTreeSet<u32> = Cpus::read(sysfs).map_err(read)?.online;
    Ok(Options {
        attach,
        clock,
        cycles: counter.then_some(PerfEvent::SOFTWARE_CLOCK),
        batch_events,
        ring_bytes: 8 << 20,
        hierarchy: super::hierarchy(&HostRoots::default()).1,
        cpus: Cpus::possible(sysfs).map_err(EbpfError::io("reading the list of CPUs"))?,
        online,
    })
}
