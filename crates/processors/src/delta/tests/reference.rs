//! Random machines, recorded with losses and cut into batches at random, against a reference that
//! knows nothing of slots, tables or batches.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wattpipe_pipeline::{
    Batch,
    batch::{CpuBlock, Edge, ProcessEvent, ProcessEventKind, Switch, SwitchBatch},
    identity::Process,
    units::{Cpu, Nanos, Tgid},
};

use super::{rows, run, start};

#[derive(Clone, Copy, Debug)]
enum Record {
    Switch { ts: u64, prev: u32, next: u32 },
    Tick { ts: u64, tgid: u32 },
    Lost { ts: u64, count: u64 },
}

impl Record {
    fn ts(&self) -> u64 {
        match *self {
            Self::Switch { ts, .. } | Self::Tick { ts, .. } | Self::Lost { ts, .. } => ts,
        }
    }
}

#[derive(Clone, Debug)]
struct Machine {
    cpus: Vec<Vec<Record>>,
    /// (ts, pid): a new life of a pid begins.
    forks: Vec<(u64, u32)>,
    /// (ts, pid): the newest life up to then ends.
    exits: Vec<(u64, u32)>,
    edges: Vec<u64>,
}

/// Steps of a CPU: (time to the next switch, who comes, what happens to the record).
fn machine() -> impl Strategy<Value = Machine> {
    let step = (1u64..40, 0u32..5, 0u8..20);
    let cpu = proptest::collection::vec(step, 1..60);
    let lives = proptest::collection::vec((1u64..800, 1u32..5, any::<bool>()), 0..12);
    let gaps = proptest::collection::vec(1u64..200, 2..8);
    (proptest::collection::vec(cpu, 1..4), lives, gaps).prop_map(|(cpus, lives, gaps)| {
        let mut at = 0;
        let edges = gaps
            .into_iter()
            .map(|g| {
                at += g;
                at
            })
            .collect();
        let mut forks: Vec<_> = lives.iter().filter(|l| l.2).map(|l| (l.0, l.1)).collect();
        let mut exits: Vec<_> = lives.iter().filter(|l| !l.2).map(|l| (l.0, l.1)).collect();
        forks.sort_unstable();
        forks.dedup();
        exits.sort_unstable();
        Machine { cpus: cpus.iter().map(|steps| record(steps)).collect(), forks, exits, edges }
    })
}

/// Plays the steps and records them, with losses.
fn record(steps: &[(u64, u32, u8)]) -> Vec<Record> {
    let (mut ts, mut who, mut lost) = (0, 0, 0u64);
    let mut records = Vec::new();
    for &(dt, next, fate) in steps {
        ts += dt;
        let prev = std::mem::replace(&mut who, next);
        match fate {
            0 => lost += 1,
            1 if lost == 0 => {
                records.push(Record::Switch { ts, prev, next });
                records.push(Record::Tick { ts, tgid: next });
            }
            _ => {
                if lost > 0 {
                    records.push(Record::Lost { ts, count: std::mem::take(&mut lost) });
                }
                records.push(Record::Switch { ts, prev, next });
            }
        }
    }
    records
}

#[derive(Debug, Default, PartialEq)]
struct Expected {
    idle: u64,
    unattributed: u64,
    lost: u64,
    /// (pid, life) -> (ns, switches)
    usage: BTreeMap<(u32, u64), (u64, u64)>,
}

impl Machine {
    /// Which life of `pid` is switched in at `ts`: the start of the newest, 0 for the one before.
    fn life(&self, pid: u32, ts: u64) -> u64 {
        self.forks.iter().filter(|f| f.1 == pid && f.0 <= ts).map(|f| f.0).max().unwrap_or(0)
    }

    fn expected(&self) -> Vec<Expected> {
        let mut windows: Vec<Expected> =
            self.edges.windows(2).map(|_| Expected::default()).collect();
        for records in &self.cpus {
            let mut who: Option<(u32, u64)> = None;
            let (mut since, mut gap_is_loss) = (0u64, false);
            for record in records {
                match *record {
                    Record::Switch { ts, prev, next } => {
                        self.credit(&mut windows, since, ts, who);
                        let leaving = who.unwrap_or((prev, self.life(prev, ts)));
                        if let Some(w) = self.window_of(ts)
                            && leaving.0 != 0
                        {
                            windows[w].usage.entry(leaving).or_default().1 += 1;
                        }
                        (who, since, gap_is_loss) = (Some((next, self.life(next, ts))), ts, false);
                    }
                    Record::Tick { ts, tgid } if who.is_none() && !gap_is_loss => {
                        self.credit(&mut windows, since, ts, None);
                        (who, since) = (Some((tgid, self.life(tgid, ts))), ts);
                    }
                    Record::Tick { .. } => {}
                    Record::Lost { ts, count } => {
                        // What an edge has already told stays told.
                        let told = self
                            .edges
                            .iter()
                            .copied()
                            .filter(|e| *e < ts)
                            .max()
                            .unwrap_or(0)
                            .max(since);
                        self.credit(&mut windows, since, told, who);
                        if let Some(w) = self.window_of(ts) {
                            windows[w].lost += count;
                        }
                        (who, since, gap_is_loss) = (None, told, true);
                    }
                }
            }
            let end = self.edges.last().copied().unwrap_or(0);
            self.credit(&mut windows, since, end.max(since), who);
        }
        windows
    }

    fn window_of(&self, ts: u64) -> Option<usize> {
        self.edges.windows(2).position(|e| e[0] < ts && ts <= e[1])
    }

    fn credit(&self, windows: &mut [Expected], from: u64, to: u64, who: Option<(u32, u64)>) {
        for (window, edge) in windows.iter_mut().zip(self.edges.windows(2)) {
            let ns = to.min(edge[1]).saturating_sub(from.max(edge[0]));
            if ns > 0 {
                match who {
                    None => window.unattributed += ns,
                    Some((0, _)) => window.idle += ns,
                    Some(life) => window.usage.entry(life).or_default().0 += ns,
                }
            }
        }
    }

    /// As a source would send it: life-cycle first, CPUs in chunks, later records with the edge.
    fn batches(&self, chunk: usize, ahead: u64) -> Vec<Batch> {
        let mut batches = Vec::new();
        let mut sent = vec![0; self.cpus.len()];
        let mut events_sent = 0;
        let mut events: Vec<ProcessEvent> = Vec::new();
        for &(ts, pid) in &self.forks {
            let mut process = Process::unknown(Tgid(pid));
            process.start_time = Some(Nanos(ts));
            events.push(ProcessEvent { ts: Nanos(ts), kind: ProcessEventKind::Fork, process });
        }
        events.sort_by_key(|e| e.ts);
        let mut first = true;
        for (at, &edge) in self.edges.iter().enumerate() {
            let next_edge = self.edges.get(at + 1).copied().unwrap_or(u64::MAX);
            for last in [false, true] {
                let mut batch = SwitchBatch::default();
                if std::mem::take(&mut first) {
                    let Batch::Switches(b) = start(self.cpus.len() as u32).build() else {
                        unreachable!()
                    };
                    batch.topology.clone_from(&b.topology);
                }
                let horizon = if last { (edge + ahead).min(next_edge) } else { edge };
                let due = events.partition_point(|e| e.ts.0 <= horizon).max(events_sent);
                batch.processes.extend_from_slice(&events[events_sent..due]);
                events_sent = due;
                for (cpu, records) in self.cpus.iter().enumerate() {
                    let mut end = records.partition_point(|r| r.ts() <= horizon);
                    if !last {
                        end = end.min(sent[cpu] + chunk);
                    }
                    for record in &records[sent[cpu].min(end)..end] {
                        push(&mut batch, cpu as u32, record);
                    }
                    sent[cpu] = end.max(sent[cpu]);
                }
                batch.edge = last.then_some(Edge { ts: Nanos(edge) });
                batches.push(Batch::Switches(std::sync::Arc::new(batch)));
            }
        }
        batches
    }
}

fn push(batch: &mut SwitchBatch, cpu: u32, record: &Record) {
    let block = CpuBlock { cpu: Cpu(cpu), ..CpuBlock::default() };
    let entry =
        |ts, prev, next| Switch { ts: Nanos(ts), cycles: 0, prev: Tgid(prev), next: Tgid(next) };
    match *record {
        Record::Switch { ts, prev, next } => batch.push_block(block, &[entry(ts, prev, next)]),
        Record::Tick { ts, tgid } => {
            batch.push_block(CpuBlock { tick_last: true, ..block }, &[entry(ts, tgid, tgid)]);
        }
        Record::Lost { ts, count } => {
            batch.push_block(CpuBlock { lost: count, lost_ts: Nanos(ts), ..block }, &[]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_streams_agree_with_the_reference(machine in machine(), chunk in 1usize..20, ahead in 0u64..30) {
        let expected = machine.expected();
        let got = run(machine.batches(chunk, ahead));
        prop_assert_eq!(got.len(), expected.len());
        for (usage, expected) in got.iter().zip(&expected) {
            let w = &usage.window;
            prop_assert_eq!(w.busy.0 + w.idle.0 + w.unattributed.0, w.duration().0 * u64::from(w.cpus));
            prop_assert_eq!((w.idle.0, w.unattributed.0, w.lost), (expected.idle, expected.unattributed, expected.lost));
            let mut usage_of: BTreeMap<(u32, u64), (u64, u64)> = BTreeMap::new();
            for (pid, start, ns, switches, exited) in rows(usage) {
                // A life that ended when its pid was reused has a last row even without time.
                if ns > 0 || switches > 0 || !exited {
                    usage_of.insert((pid, start), (ns, switches));
                }
            }
            prop_assert_eq!(&usage_of, &expected.usage);
        }
    }

    #[test]
    fn exits_are_reported_once(machine in machine(), chunk in 1usize..20) {
        // Exits alone, each pid once, on a machine without reuse and without losses.
        let mut machine = machine;
        machine.forks.clear();
        let mut seen = std::collections::BTreeSet::new();
        machine.exits.retain(|e| seen.insert(e.1));
        let mut batches = machine.batches(chunk, 0);
        let first_edge = machine.edges[0];
        if let Some(Batch::Switches(batch)) = batches.first_mut() {
            let batch = std::sync::Arc::make_mut(batch);
            for &(_, pid) in &machine.exits {
                let process = Process::unknown(Tgid(pid));
                batch.processes.push(ProcessEvent { ts: Nanos(first_edge), kind: ProcessEventKind::Exit, process });
            }
        }
        let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
        let mut last_time: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for (i, usage) in run(batches).iter().enumerate() {
            for (pid, _, ns, _, exited) in rows(usage) {
                if exited && ns == 0 {
                    *ends.entry(pid).or_default() += 1;
                }
                let entry = last_time.entry(pid).or_insert((i, i));
                entry.1 = i;
            }
        }
        for (pid, n) in ends {
            prop_assert!(n <= 1, "pid {pid} was reported as exited {n} times without time");
        }
    }
}
