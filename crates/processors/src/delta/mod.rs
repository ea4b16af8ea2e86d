//! `delta`: switches become usage per process and window.
//!
//! ```yaml
//! processors:
//!   delta: {}
//! ```
//!
//! For every CPU and window, busy + idle + unattributed = the window's length, to the nanosecond.
//! The path of a switch: [`Delta::process`] hands each CPU's block to [`cpu::CpuState::run`],
//! which credits the interval that ends to the slot of who had the CPU ([`slots`]) in the account
//! of the current slice and package ([`accounts`]). At an edge every CPU is cut, rows are made
//! ([`emit`]), and what is later than the edge starts the next window.

mod accounts;
mod busy;
mod cpu;
mod emit;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, Processor, ProcessorComponent, ProcessorError,
    Stability,
    batch::{CpuBlock, MeterReading, ProcessEvent, Switch, SwitchBatch, Topology, UsageBatch},
    registry::BuildError,
    telemetry::Counter,
    units::{Cpu, Nanos, Package},
};

use self::{
    accounts::Accounts,
    busy::Busy,
    cpu::{Books, CpuState},
    slots::{Slots, split_at_edge},
};

/// Configuration of `delta`: there is nothing to choose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DeltaConfig {}

impl Config for DeltaConfig {}

/// The processor.
pub struct Delta {
    slots: Slots,
    accounts: Accounts,
    busy: Busy,
    cpus: Vec<CpuState>,
    /// Index into `cpus` by CPU number.
    by_number: Vec<Option<u16>>,
    /// Packages in the order of their domains.
    packages: Vec<Package>,
    topology: Arc<Topology>,
    /// Start of the open window; `None` before the first edge.
    start: Option<Nanos>,
    /// Clock anchor of the open window.
    boot_unix_ns: u64,
    /// CPUs the open window accounts for.
    counted: u32,
    lost: u64,
    readings: Vec<MeterReading>,
    any_cycles: bool,
    contradictions: u64,
    contradictions_total: Counter,
}

impl ProcessorComponent for Delta {
    const NAME: &'static str = "delta";
    const DOC: &'static str = "Turns switches into CPU time per process and window.";
    const STABILITY: Stability = Stability::Beta;
    const TAKES: BatchKind = BatchKind::Switches;
    const EMITS: BatchKind = BatchKind::Usage;
    const PASSES: bool = true;
    type Config = DeltaConfig;

    fn build(_: DeltaConfig, context: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self {
            slots: Slots::new(),
            accounts: Accounts::new(1),
            busy: Busy::default(),
            cpus: Vec::new(),
            by_number: Vec::new(),
            packages: vec![Package(0)],
            topology: Arc::new(Topology { cpus: Vec::new(), boot_unix_ns: 0 }),
            start: None,
            boot_unix_ns: 0,
            counted: 0,
            lost: 0,
            readings: Vec::new(),
            any_cycles: false,
            contradictions: 0,
            contradictions_total: context.telemetry.counter(
                "wattpipe_delta_contradictions_total",
                "Switches whose predecessor was not who had the CPU: a record is missing.",
                &[("processor", &context.id)],
            ),
        })
    }
}

impl Processor for Delta {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        match batch {
            Batch::Switches(batch) => {
                Ok(self.take_in(&batch).map(|usage| Batch::Usage(Arc::new(usage))))
            }
            usage @ Batch::Usage(_) => Ok(Some(usage)),
        }
    }
}

/// What of a batch is later than its edge.
struct Later<'a> {
    block: &'a CpuBlock,
    entries: &'a [Switch],
}

impl Delta {
    fn take_in(&mut self, batch: &SwitchBatch) -> Option<UsageBatch> {
        if let Some(topology) = &batch.topology {
            self.take_topology(topology);
        }
        let Some(edge) = batch.edge else {
            batch.processes.iter().for_each(|event| self.slots.event(event));
            self.take_readings(&batch.readings);
            for (block, entries) in batch.iter_blocks() {
                self.run(block, entries);
            }
            return None;
        };

        let edge = edge.ts;
        let (now, later_events) = split_events(&batch.processes, edge);
        now.iter().for_each(|event| self.slots.event(event));
        let readings_now = batch.readings.partition_point(|r| r.ts <= edge);
        self.take_readings(&batch.readings[..readings_now]);
        // A fork later than the edge must be known before its child's first switch-in, which is
        // later than the edge as well: those entries wait until the window is closed.
        let mut later: Vec<Later<'_>> = Vec::new();
        for (block, entries) in batch.iter_blocks() {
            let at = split_at_edge(entries, edge);
            if block.lost > 0 && block.lost_ts > edge
                || at == 0 && !entries.is_empty() && block.lost == 0
            {
                later.push(Later { block, entries });
                continue;
            }
            let whole = at == entries.len();
            let first = CpuBlock { tick_last: block.tick_last && whole, ..*block };
            self.run(&first, &entries[..at]);
            if !whole {
                later.push(Later { block, entries: &entries[at..] });
            }
        }
        let usage = self.close(edge, &later, batch.live);

        later_events.iter().for_each(|event| self.slots.event(event));
        self.take_readings(&batch.readings[readings_now..]);
        for Later { block, entries } in later {
            // Its loss was taken in above unless the whole block is later.
            let counted_already = block.len as usize != entries.len() || block.lost_ts <= edge;
            let lost = if counted_already { 0 } else { block.lost };
            self.run(&CpuBlock { lost, ..*block }, entries);
        }
        usage
    }

    fn take_topology(&mut self, topology: &Arc<Topology>) {
        self.topology = topology.clone();
        for state in &mut self.cpus {
            state.online = topology.cpus.iter().any(|c| c.cpu == state.cpu);
        }
        if self.start.is_none() {
            self.open(Nanos(0));
            self.start = None;
        }
    }

    fn take_readings(&mut self, readings: &[MeterReading]) {
        for reading in readings {
            self.busy.want();
            if self.start.is_none_or(|start| reading.ts > start) {
                self.accounts.cut(reading.ts);
            }
            self.readings.push(reading.clone());
        }
    }

    fn run(&mut self, block: &CpuBlock, entries: &[Switch]) {
        let at = self.state_index(block.cpu);
        if block.lost > 0 {
            self.cpus[at].lost();
            self.lost = self.lost.saturating_add(block.lost);
        }
        self.any_cycles |= block.has_cycles;
        let mut books = Books {
            slots: &mut self.slots,
            accounts: &mut self.accounts,
            busy: &mut self.busy,
            contradictions: &mut self.contradictions,
        };
        self.cpus[at].run(block, entries, &mut books);
    }

    fn state_index(&mut self, cpu: Cpu) -> usize {
        if let Some(Some(at)) = self.by_number.get(cpu.0 as usize) {
            return *at as usize;
        }
        // CPU numbers are small in fact; a hostile one is found by searching.
        let indexed = (cpu.0 as usize) < 1 << 16 && self.cpus.len() < usize::from(u16::MAX);
        if !indexed && let Some(at) = self.cpus.iter().position(|c| c.cpu == cpu) {
            return at;
        }
        let at = self.cpus.len();
        self.cpus.push(CpuState::new(cpu, self.start.unwrap_or_default()));
        if indexed {
            if self.by_number.len() <= cpu.0 as usize {
                self.by_number.resize(cpu.0 as usize + 1, None);
            }
            self.by_number[cpu.0 as usize] = Some(at as u16);
        }
        at
    }

    /// Cuts every CPU at `edge`, makes the window's usage, and opens the next window.
    fn close(&mut self, edge: Nanos, later: &[Later<'_>], live: bool) -> Option<UsageBatch> {
        for at in 0..self.cpus.len() {
            let cpu = self.cpus[at].cpu;
            let after = later.iter().find(|l| l.block.cpu == cpu && !l.entries.is_empty());
            let mut books = Books {
                slots: &mut self.slots,
                accounts: &mut self.accounts,
                busy: &mut self.busy,
                contradictions: &mut self.contradictions,
            };
            let (entry, has_cycles) = match after {
                Some(l) => (l.entries.first(), l.block.has_cycles),
                None => (None, false),
            };
            self.cpus[at].cut(edge, entry, has_cycles, &mut books);
        }
        self.slots.settle(edge);
        self.contradictions_total.add(std::mem::take(&mut self.contradictions));
        let usage = self.start.map(|start| self.emit(start, edge, live));
        if usage.is_none() {
            self.forget_before_first_edge(edge);
        }
        self.open(edge);
        usage
    }

    /// Opens a window at `start` with the newest topology.
    fn open(&mut self, start: Nanos) {
        // A CPU that is met here for the first time counts from here on.
        self.start = Some(start);
        let topology = self.topology.clone();
        self.boot_unix_ns = topology.boot_unix_ns;
        self.packages = topology.cpus.iter().map(|c| c.package).collect();
        self.packages.sort_unstable();
        self.packages.dedup();
        if self.packages.is_empty() {
            self.packages.push(Package(0));
        }
        let mut cores: Vec<(usize, u32, Vec<Cpu>)> = Vec::new();
        for state in &mut self.cpus {
            state.counted = false;
            state.core = None;
        }
        for info in &topology.cpus {
            let package = self.packages.binary_search(&info.package).unwrap_or(0);
            match cores.iter_mut().find(|(p, core, _)| (*p, *core) == (package, info.core)) {
                Some((_, _, cpus)) => cpus.push(info.cpu),
                None => cores.push((package, info.core, vec![info.cpu])),
            }
            let at = self.state_index(info.cpu);
            let state = &mut self.cpus[at];
            state.counted = true;
            state.online = true;
            state.package = package;
        }
        cores.retain(|(_, _, cpus)| cpus.len() > 1);
        for (at, (_, _, cpus)) in cores.iter().enumerate() {
            for cpu in cpus {
                let state = self.state_index(*cpu);
                self.cpus[state].core = Some(at);
            }
        }
        let cores: Vec<(usize, Vec<Cpu>)> =
            cores.into_iter().map(|(package, _, cpus)| (package, cpus)).collect();
        self.counted = self.cpus.iter().filter(|c| c.counted).count() as u32;
        self.accounts.clear(self.packages.len());
        self.busy.open(start, self.packages.len(), &cores);
        self.lost = 0;
        self.any_cycles = false;
    }
}

/// Events in order of time; the first part is up to `edge`.
fn split_events(events: &[ProcessEvent], edge: Nanos) -> (&[ProcessEvent], &[ProcessEvent]) {
    let at = match events.last() {
        Some(last) if last.ts > edge => events.partition_point(|e| e.ts <= edge),
        _ => events.len(),
    };
    events.split_at(at)
}
