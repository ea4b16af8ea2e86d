//! A polled window: rows, and the accounting of all CPUs around them.

use std::{collections::BTreeMap, io};

use nix::time::ClockId;
use tracing::{info, warn};
use wattpipe_pipeline::{
    batch::{CpuInfo, MeterReading, UsageBatch, Window},
    registry::HostRoots,
    telemetry::{Gauge, Telemetry},
    units::{Cpu, Nanos, Package},
};

use super::{
    cpu_time::Method,
    details,
    host_stat::HostStat,
    poll::{Moment, Processes},
    slices,
};
use crate::cgroup;

/// The clock anchor moves only when it is this far off: a step, or suspension.
const CLOCK_STEP: u64 = 1_000_000;

/// Reads meters at an edge.
pub(super) type ReadMeters = Box<dyn FnMut(Nanos) -> Vec<MeterReading> + Send>;

/// Makes a window per edge.
pub(super) struct Poller {
    host: HostRoots,
    processes: Processes,
    meters: ReadMeters,
    last: Option<Edge>,
    /// Readings since the last window: those of the very first edge open the first one.
    readings: Vec<MeterReading>,
    boot_unix_ns: u64,
    /// Idle time that `/proc/stat` told before it fitted: ticks are 10 ms.
    idle_carry: u64,
    known: Gauge,
}

/// The last edge.
struct Edge {
    ts: Nanos,
    stat: HostStat,
    topology: Vec<CpuInfo>,
}

impl Poller {
    pub(super) fn new(host: &HostRoots, telemetry: &Telemetry) -> Self {
        let processes = Processes::new(&host.procfs, cgroup::hierarchy(host));
        match processes.method() {
            Method::Clock => {}
            Method::Schedstat => info!(
                "CPU time comes from schedstat: the last stretch of a thread that ends is unattributed"
            ),
            Method::Stat => warn!(
                "CPU time comes from stat, in steps of 10 ms: this kernel has no schedstat, or /proc is of another PID namespace"
            ),
        }
        Self {
            host: host.clone(),
            processes,
            meters: Box::new(|_| Vec::new()),
            last: None,
            readings: Vec::new(),
            boot_unix_ns: boot_unix_ns(),
            idle_carry: 0,
            known: telemetry.gauge(
                "wattpipe_source_processes",
                "Processes that are followed.",
                &[],
            ),
        }
    }

    /// Reads meters with this at each edge.
    pub(super) fn with_meters(mut self, meters: ReadMeters) -> Self {
        self.meters = meters;
        self
    }

    #[cfg(test)]
    pub(super) fn followed(&self) -> usize {
        self.processes.len()
    }

    /// Closes the window that ends now, but for the first edge.
    pub(super) fn edge(&mut self) -> io::Result<Option<UsageBatch>> {
        let ts = now(ClockId::CLOCK_MONOTONIC);
        self.readings.extend((self.meters)(ts));
        let stat = HostStat::read(&self.host.procfs)?;
        let boot = boot_unix_ns();
        if boot.abs_diff(self.boot_unix_ns) >= CLOCK_STEP {
            self.boot_unix_ns = boot;
        }
        let duration = self.last.as_ref().map_or(Nanos(0), |l| ts.since(l.ts));
        let cpus = self.last.as_ref().map_or(0, |l| l.stat.cpus.len()) as u64;
        let room = Nanos(cpus * duration.0);
        let moment = Moment {
            boot_unix_ns: self.boot_unix_ns,
            suspended: details::suspended(),
            last: self.last.as_ref().map(|l| l.ts),
        };
        let rows = self.processes.look(moment, room)?;
        self.known.set(self.processes.len() as f64);
        let topology = match &self.last {
            Some(last) if last.stat.cpus.keys().eq(stat.cpus.keys()) => last.topology.clone(),
            _ => topology(&self.host, &stat),
        };
        let Some(last) = self.last.replace(Edge { ts, stat, topology }) else { return Ok(None) };

        let did = self.last.as_ref().map(|l| l.stat.since(&last.stat)).unwrap_or_default();
        let switches = self.last.as_ref().map_or(0, |l| l.stat.switches);
        let busy: u64 = rows.iter().map(|r| r.cpu.0).sum();
        let idle = self.idle(&did, &last, duration, room.0.saturating_sub(busy));
        let unattributed = room.0 - busy - idle;
        let slice = slices::slice(ts, duration, &last.topology, &did, &rows, Nanos(idle));
        Ok(Some(UsageBatch {
            window: Window {
                start: last.ts,
                end: ts,
                boot_unix_ns: self.boot_unix_ns,
                cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
                busy: Nanos(busy),
                idle: Nanos(idle),
                unattributed: Nanos(unattributed),
                switches: switches.saturating_sub(last.stat.switches),
                lost: 0,
                complete: unattributed == 0,
            },
            rows,
            zones: Vec::new(),
            readings: std::mem::take(&mut self.readings),
            slices: vec![slice],
            live: true,
        }))
    }

    /// Idle time of the window. What the ticks tell too early or too much is kept for the next
    /// one, up to what rounding can explain.
    fn idle(
        &mut self,
        did: &BTreeMap<Cpu, super::host_stat::CpuTicks>,
        last: &Edge,
        duration: Nanos,
        room: u64,
    ) -> u64 {
        let told: u64 = last
            .stat
            .cpus
            .keys()
            // A CPU that went off was idle since.
            .map(|cpu| did.get(cpu).map_or(duration.0, |d| d.idle.0))
            .sum();
        let idle = (told + self.idle_carry).min(room);
        let rounding = 20_000_000 * last.stat.cpus.len() as u64;
        self.idle_carry = (told + self.idle_carry - idle).min(rounding);
        idle
    }
}

fn now(clock: ClockId) -> Nanos {
    clock.now().map_or(Nanos(0), |t| {
        let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
        Nanos(seconds * 1_000_000_000 + u64::try_from(t.tv_nsec()).unwrap_or(0))
    })
}

/// Of a few attempts the one with the least time between its readings counts: where this thread loses
/// its CPU between them, half of that would look like a step of the clock.
fn boot_unix_ns() -> u64 {
    let sample = || {
        let before = now(ClockId::CLOCK_MONOTONIC);
        let unix = now(ClockId::CLOCK_REALTIME);
        let width = now(ClockId::CLOCK_MONOTONIC).since(before).0;
        (width, unix.0.saturating_sub(before.0 + width / 2))
    };
    (0..3).map(|_| sample()).min_by_key(|(width, _)| *width).map_or(0, |(_, boot)| boot)
}

fn topology(host: &HostRoots, stat: &HostStat) -> Vec<CpuInfo> {
    stat.cpus
        .keys()
        .map(|cpu| {
            let (package, core) = crate::ebpf::place(&host.sysfs, cpu.0);
            CpuInfo { cpu: *cpu, package: Package(package), core }
        })
        .collect()
}
