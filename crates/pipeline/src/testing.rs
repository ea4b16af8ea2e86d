//! Helpers for tests of components: a builder of switch batches that reads like a recording, and
//! a way to run a chain of processors on them. Public, so that crates that add components can
//! test them the same way.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{
    batch::{
        Batch, CpuBlock, CpuInfo, Edge, MeterReading, ProcessEvent, ProcessEventKind, Switch,
        SwitchBatch, Topology, UsageBatch, Zone,
    },
    identity::Process,
    privileges::Privileges,
    processor::{Processor, ProcessorError},
    runner::{Gate, Message},
    shutdown::{self, Trigger},
    source::{BatchSender, Pace, SourceContext},
    telemetry::Telemetry,
    units::{Cpu, Nanos, Package, Tgid},
};

/// A source under test: what it is run with, and the other end of that.
#[derive(Debug)]
pub struct SourceHarness {
    /// For [`Source::run`](crate::source::Source::run).
    pub context: SourceContext,
    /// What it sent.
    pub batches: BatchReceiver,
    /// Stops it.
    pub trigger: Trigger,
}

/// The batches a source under test sends.
#[derive(Debug)]
pub struct BatchReceiver(mpsc::Receiver<Message>);

impl BatchReceiver {
    /// The next; `None` once the source is gone.
    pub async fn recv(&mut self) -> Option<Batch> {
        loop {
            match self.0.recv().await? {
                Message::Batch { batch, .. } => return Some(batch),
                _ => continue,
            }
        }
    }
}

/// Prepares to run a source by itself; `queue` batches wait before it has to.
pub fn source_harness(id: &str, queue: usize) -> SourceHarness {
    let (tx, rx) = mpsc::channel(queue);
    let (trigger, shutdown) = shutdown::channel();
    let context = SourceContext {
        id: id.to_owned(),
        out: BatchSender {
            source: 0,
            tx,
            gate: Arc::new(Gate::open_from_start()),
            privileges: Privileges::default(),
        },
        shutdown,
        telemetry: Telemetry::default(),
        privileges: Privileges::default(),
        pace: Pace::default(),
    };
    SourceHarness { context, batches: BatchReceiver(rx), trigger }
}

/// Builds a [`SwitchBatch`] record by record.
#[derive(Clone, Debug, Default)]
pub struct SwitchesBuilder(SwitchBatch);

impl SwitchesBuilder {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// `cpus` CPUs of one package, one thread a core.
    pub fn topology(self, cpus: u32) -> Self {
        let cpus =
            (0..cpus).map(|c| CpuInfo { cpu: Cpu(c), package: Package(0), core: c }).collect();
        self.topology_of(Topology { cpus, boot_unix_ns: 1_790_000_000_000_000_000 })
    }

    /// This topology.
    pub fn topology_of(mut self, topology: Topology) -> Self {
        self.0.topology = Some(Arc::new(topology));
        self
    }

    /// A life-cycle event of a process with this name and start time.
    pub fn process(
        mut self,
        ts: u64,
        kind: ProcessEventKind,
        pid: u32,
        comm: &str,
        start: u64,
    ) -> Self {
        let mut process = Process::unknown(Tgid(pid));
        process.comm = Some(comm.into());
        process.start_time = Some(Nanos(start));
        self.0.processes.push(ProcessEvent { ts: Nanos(ts), kind, process });
        self
    }

    /// The exit of `pid`.
    pub fn exit(mut self, ts: u64, pid: u32) -> Self {
        let process = Process::unknown(Tgid(pid));
        self.0.processes.push(ProcessEvent {
            ts: Nanos(ts),
            kind: ProcessEventKind::Exit,
            process,
        });
        self
    }

    /// A switch on `cpu`.
    pub fn switch(mut self, ts: u64, cpu: u32, prev: u32, next: u32) -> Self {
        let entry = Switch { ts: Nanos(ts), cycles: 0, prev: Tgid(prev), next: Tgid(next) };
        self.0.push_block(CpuBlock { cpu: Cpu(cpu), ..CpuBlock::default() }, &[entry]);
        self
    }

    /// A switch with a reading of the cycle counter.
    pub fn switch_cycles(mut self, ts: u64, cpu: u32, prev: u32, next: u32, cycles: u64) -> Self {
        let entry = Switch { ts: Nanos(ts), cycles, prev: Tgid(prev), next: Tgid(next) };
        let block = CpuBlock { cpu: Cpu(cpu), has_cycles: true, ..CpuBlock::default() };
        self.0.push_block(block, &[entry]);
        self
    }

    /// A tick: `tgid` runs on `cpu`.
    pub fn tick(mut self, ts: u64, cpu: u32, tgid: u32) -> Self {
        let entry = Switch { ts: Nanos(ts), cycles: 0, prev: Tgid(tgid), next: Tgid(tgid) };
        let block = CpuBlock { cpu: Cpu(cpu), tick_last: true, ..CpuBlock::default() };
        self.0.push_block(block, &[entry]);
        self
    }

    /// A tick with the counter's value.
    pub fn tick_cycles(mut self, ts: u64, cpu: u32, tgid: u32, cycles: u64) -> Self {
        let entry = Switch { ts: Nanos(ts), cycles, prev: Tgid(tgid), next: Tgid(tgid) };
        let block =
            CpuBlock { cpu: Cpu(cpu), tick_last: true, has_cycles: true, ..CpuBlock::default() };
        self.0.push_block(block, &[entry]);
        self
    }

    /// `count` switches of `cpu` were lost from `ts` on.
    pub fn lost(mut self, ts: u64, cpu: u32, count: u64) -> Self {
        let block =
            CpuBlock { cpu: Cpu(cpu), lost: count, lost_ts: Nanos(ts), ..CpuBlock::default() };
        self.0.push_block(block, &[]);
        self
    }

    /// A meter reading.
    pub fn reading(mut self, ts: u64, zone: &Arc<Zone>, energy_uj: u64) -> Self {
        self.0.readings.push(MeterReading { ts: Nanos(ts), zone: zone.clone(), energy_uj });
        self
    }

    /// Of the host as it runs, not of a recording.
    pub fn live(mut self) -> Self {
        self.0.live = true;
        self
    }

    /// The batch, without an edge.
    pub fn build(self) -> Batch {
        Batch::Switches(Arc::new(self.0))
    }

    /// The batch, completing the window that ends at `ts`.
    pub fn edge(mut self, ts: u64) -> Batch {
        self.0.edge = Some(Edge { ts: Nanos(ts) });
        self.build()
    }
}

/// A RAPL zone of the first package, by its name.
pub fn zone(name: &str) -> Arc<Zone> {
    Arc::new(Zone {
        name: name.into(),
        hw_type: "cpu".into(),
        package: Some(Package(0)),
        source: "rapl".into(),
        contained_in: None,
        max_energy_range_uj: None,
        max_watts: None,
    })
}

/// Runs batches through processors in order and returns the usage that comes out, flushes included.
///
/// # Errors
/// The first error of a processor.
pub fn run_chain(
    processors: &mut [Box<dyn Processor>],
    batches: impl IntoIterator<Item = Batch>,
) -> Result<Vec<Arc<UsageBatch>>, ProcessorError> {
    let mut out = Vec::new();
    let pass = |processors: &mut [Box<dyn Processor>], batch: Batch| {
        processors.iter_mut().try_fold(Some(batch), |batch, p| match batch {
            Some(batch) => p.process(batch),
            None => Ok(None),
        })
    };
    for p in processors.iter_mut() {
        p.start()?;
    }
    for batch in batches {
        if let Some(Batch::Usage(usage)) = pass(processors, batch)? {
            out.push(usage);
        }
    }
    for at in 0..processors.len() {
        if let Some(batch) = processors[at].flush()?
            && let Some(Batch::Usage(usage)) = pass(&mut processors[at + 1..], batch)?
        {
            out.push(usage);
        }
    }
    Ok(out)
}
