//! The recording format: one JSON object a line, as documented for users. The `file` exporter
//! writes it, the `replay` source reads it; both meet in the types here.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    batch::{
        CpuBlock, CpuInfo, MeterReading, ProcessEvent, ProcessEventKind, Switch, SwitchBatch,
        Topology, Zone,
    },
    identity::{CgroupRef, Process, ProcessKind},
    units::{Cpu, Nanos, Package, Tgid},
};

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[expect(missing_docs, reason = "the user's documentation of the format describes each field")]
pub enum Record<'a> {
    Topology {
        cpus: Vec<CpuRecord>,
        boot_unix_ns: u64,
    },
    #[serde(borrow)]
    Process(ProcessRecord<'a>),
    Switch {
        ts: Nanos,
        cpu: Cpu,
        prev: Tgid,
        next: Tgid,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cycles: Option<u64>,
    },
    Tick {
        ts: Nanos,
        cpu: Cpu,
        tgid: Tgid,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cycles: Option<u64>,
    },
    Lost {
        ts: Nanos,
        cpu: Cpu,
        count: u64,
    },
    #[serde(borrow)]
    Meter(MeterRecord<'a>),
    Window {
        ts: Nanos,
    },
}

/// A CPU of a `topology` line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the user's documentation of the format describes each field")]
pub struct CpuRecord {
    pub cpu: Cpu,
    #[serde(default)]
    pub package: Package,
    /// Its own number where the line does not say, so that no CPU becomes another's sibling.
    #[serde(default)]
    pub core: Option<u32>,
}

/// A `process` line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the user's documentation of the format describes each field")]
pub struct ProcessRecord<'a> {
    pub ts: Nanos,
    pub event: EventName,
    pub pid: Tgid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ppid: Option<Tgid>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<KindName>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Cow<'a, str>>,
    /// Ours: the cgroup's id, where the recorder had no path for it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_id: Option<u64>,
}

/// `event` of a `process` line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the user's documentation of the format describes each field")]
pub enum EventName {
    Snapshot,
    Fork,
    Exec,
    Exit,
}

/// `kind` of a `process` line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the user's documentation of the format describes each field")]
pub enum KindName {
    User,
    Kernel,
}

/// A `meter` line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the user's documentation of the format describes each field")]
pub struct MeterRecord<'a> {
    pub ts: Nanos,
    #[serde(borrow)]
    pub zone: Cow<'a, str>,
    #[serde(borrow, default = "cpu_type")]
    pub hw_type: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    pub energy_uj: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_energy_range_uj: Option<u64>,
    /// Ours: which meter read it; `rapl` where the line does not say.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Cow<'a, str>>,
    /// Ours: the zone that contains it, where its name does not tell.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub contained_in: Option<Cow<'a, str>>,
    /// Ours: the most it can plausibly draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_watts: Option<f64>,
}

fn cpu_type() -> Cow<'static, str> {
    Cow::Borrowed("cpu")
}

impl ProcessRecord<'_> {
    /// As the event that sources send.
    pub fn to_event(&self) -> ProcessEvent {
        let kind = match self.event {
            EventName::Snapshot => ProcessEventKind::Snapshot,
            EventName::Fork => ProcessEventKind::Fork,
            EventName::Exec => ProcessEventKind::Exec,
            EventName::Exit => ProcessEventKind::Exit,
        };
        let process = Process {
            pid: self.pid,
            start_time: self.start_time,
            ppid: self.ppid,
            comm: self.comm.as_deref().map(Arc::from),
            exe: self.exe.as_deref().map(Arc::from),
            uid: self.uid,
            kind: self.kind.map(|k| match k {
                KindName::User => ProcessKind::User,
                KindName::Kernel => ProcessKind::Kernel,
            }),
            cgroup: match (&self.cgroup, self.cgroup_id) {
                (Some(path), _) => CgroupRef::Path(path.as_ref().into()),
                (None, Some(id)) => CgroupRef::Id(crate::units::CgroupId(id)),
                (None, None) => CgroupRef::Unknown,
            },
        };
        ProcessEvent { ts: self.ts, kind, process }
    }

    fn of(event: &ProcessEvent) -> ProcessRecord<'_> {
        let p = &event.process;
        let (cgroup, cgroup_id) = match &p.cgroup {
            CgroupRef::Unknown => (None, None),
            CgroupRef::Id(id) => (None, Some(id.0)),
            CgroupRef::Path(path) => (Some(Cow::Borrowed(path.as_ref())), None),
        };
        ProcessRecord {
            ts: event.ts,
            event: match event.kind {
                ProcessEventKind::Snapshot => EventName::Snapshot,
                ProcessEventKind::Fork => EventName::Fork,
                ProcessEventKind::Exec => EventName::Exec,
                ProcessEventKind::Exit => EventName::Exit,
            },
            pid: p.pid,
            start_time: p.start_time,
            ppid: p.ppid,
            comm: p.comm.as_deref().map(Cow::Borrowed),
            exe: p.exe.as_deref().map(Cow::Borrowed),
            uid: p.uid,
            kind: p.kind.map(|k| match k {
                ProcessKind::User => KindName::User,
                ProcessKind::Kernel => KindName::Kernel,
            }),
            cgroup,
            cgroup_id,
        }
    }
}

impl MeterRecord<'_> {
    /// The zone this line is of.
    pub fn to_zone(&self) -> Zone {
        Zone {
            name: self.zone.as_ref().into(),
            hw_type: self.hw_type.as_ref().into(),
            package: self.package,
            source: self.source.as_deref().unwrap_or("rapl").into(),
            contained_in: self.contained_in.as_deref().map(Arc::from),
            max_energy_range_uj: self.max_energy_range_uj,
            max_watts: self.max_watts,
        }
    }

    fn of(reading: &MeterReading) -> MeterRecord<'_> {
        let zone = &reading.zone;
        MeterRecord {
            ts: reading.ts,
            zone: Cow::Borrowed(&zone.name),
            hw_type: Cow::Borrowed(&zone.hw_type),
            package: zone.package,
            energy_uj: reading.energy_uj,
            max_energy_range_uj: zone.max_energy_range_uj,
            source: Some(Cow::Borrowed(&zone.source)),
            contained_in: zone.contained_in.as_deref().map(Cow::Borrowed),
            max_watts: zone.max_watts,
        }
    }
}

/// A `topology` line as what sources send.
pub fn topology(cpus: &[CpuRecord], boot_unix_ns: u64) -> Topology {
    let cpus = cpus
        .iter()
        .map(|c| CpuInfo { cpu: c.cpu, package: c.package, core: c.core.unwrap_or(c.cpu.0) })
        .collect();
    Topology { cpus, boot_unix_ns }
}

/// Gives the lines of `batch` to `write`, in the order a recording wants them. Stops at the first
/// error.
pub fn for_each_record<E>(
    batch: &SwitchBatch,
    mut write: impl FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(topology) = &batch.topology {
        let cpus = topology.cpus.iter().map(|c| CpuRecord {
            cpu: c.cpu,
            package: c.package,
            core: Some(c.core),
        });
        write(&Record::Topology { cpus: cpus.collect(), boot_unix_ns: topology.boot_unix_ns })?;
    }
    for event in &batch.processes {
        write(&Record::Process(ProcessRecord::of(event)))?;
    }
    for reading in &batch.readings {
        write(&Record::Meter(MeterRecord::of(reading)))?;
    }
    for (block, entries) in batch.iter_blocks() {
        for_each_in_block(block, entries, &mut write)?;
    }
    match batch.edge {
        Some(edge) => write(&Record::Window { ts: edge.ts }),
        None => Ok(()),
    }
}

fn for_each_in_block<E>(
    block: &CpuBlock,
    entries: &[Switch],
    write: &mut impl FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let cpu = block.cpu;
    if block.lost > 0 {
        write(&Record::Lost { ts: block.lost_ts, cpu, count: block.lost })?;
    }
    for (i, e) in entries.iter().enumerate() {
        let cycles = block.has_cycles.then_some(e.cycles);
        if block.tick_last && i + 1 == entries.len() {
            write(&Record::Tick { ts: e.ts, cpu, tgid: e.next, cycles })?;
        } else {
            write(&Record::Switch { ts: e.ts, cpu, prev: e.prev, next: e.next, cycles })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_round_trip(line: &str) {
        let record: Record<'_> = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
    }

    #[test]
    fn lines_as_documented() {
        check_round_trip(
            r#"{"type":"topology","cpus":[{"cpu":0,"package":0,"core":0},{"cpu":1,"package":0,"core":1}],"boot_unix_ns":1790000000000000000}"#,
        );
        check_round_trip(
            r#"{"type":"process","ts":10,"event":"snapshot","pid":7,"start_time":5,"ppid":1,"comm":"a","exe":"/usr/bin/a","uid":0,"kind":"user","cgroup":"/system.slice/a.service"}"#,
        );
        check_round_trip(r#"{"type":"switch","ts":100,"cpu":0,"prev":0,"next":7,"cycles":0}"#);
        check_round_trip(r#"{"type":"switch","ts":100,"cpu":0,"prev":0,"next":7}"#);
        check_round_trip(r#"{"type":"tick","ts":199,"cpu":0,"tgid":7,"cycles":0}"#);
        check_round_trip(r#"{"type":"process","ts":150,"event":"exit","pid":7}"#);
        check_round_trip(r#"{"type":"lost","ts":160,"cpu":0,"count":128}"#);
        check_round_trip(
            r#"{"type":"meter","ts":200,"zone":"package-0","hw_type":"cpu","package":0,"energy_uj":1000,"max_energy_range_uj":262143328850}"#,
        );
        check_round_trip(r#"{"type":"window","ts":200}"#);
    }

    #[test]
    fn escaped_names_survive() {
        check_round_trip(r#"{"type":"process","ts":1,"event":"exec","pid":7,"comm":"a\"b\nc"}"#);
    }

    #[test]
    fn a_batch_becomes_lines() {
        use crate::testing::SwitchesBuilder;
        let batch = SwitchesBuilder::new()
            .topology(1)
            .process(5, ProcessEventKind::Fork, 7, "a", 5)
            .switch(100, 0, 0, 7)
            .lost(150, 0, 9)
            .tick(201, 0, 7)
            .edge(200);
        let crate::Batch::Switches(batch) = batch else { unreachable!() };
        let mut types = Vec::new();
        for_each_record(&batch, |r| {
            let v = serde_json::to_value(r)?;
            types.push(v["type"].as_str().unwrap_or_default().to_owned());
            Ok::<_, serde_json::Error>(())
        })
        .unwrap();
        assert_eq!(types, ["topology", "process", "switch", "lost", "tick", "window"]);
    }
}
