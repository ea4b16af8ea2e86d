//! An agent that follows a host's meters, and what its records have to come to.

use std::{cell::Cell, collections::BTreeMap, fs, process::Command};

use nix::sys::signal::Signal;
use serde_json::Value;
use wattpipe_pipeline::units::rfc3339;

use super::{
    binary::{FreeAddress, Running, unix_now, wattpipe},
    powercap::Host,
};

/// A zone as records show it, and the microjoules it has to come to.
#[derive(Debug, PartialEq)]
pub struct Zone {
    pub name: &'static str,
    pub hw_type: &'static str,
    pub package: Option<u64>,
    pub uj: u64,
    /// It is part of `joules_total`.
    pub outer: bool,
}

pub fn zone(name: &'static str, hw_type: &'static str, package: u64, uj: u64, outer: bool) -> Zone {
    Zone { name, hw_type, package: Some(package), uj, outer }
}

/// An agent that follows a host, and what it has written.
pub struct Watched<'a> {
    pub host: &'a Host,
    pub agent: Running,
    pub metrics: FreeAddress,
    /// How many zones a window has.
    pub zones: Cell<usize>,
}

impl<'a> Watched<'a> {
    pub fn start(host: &'a Host) -> Self {
        Self::by(wattpipe(), host)
    }

    /// Started by this command, which ends in the binary's path.
    pub fn by(mut command: Command, host: &'a Host) -> Self {
        let metrics = FreeAddress::new();
        let config = format!(
            "host: {{ sysfs: {sysfs} }}
sources: {{ procfs: {{ window: 50ms }} }}
processors: {{ power_model: {{}} }}
exporters: {{ file: {{ path: {out}, format: jsonl, flush_interval: 1ms }} }}
service:
  telemetry: {{ metrics: {{ endpoint: \"{metrics}\" }} }}
  pipelines: {{ a: {{ sources: [procfs], processors: [power_model], exporters: [file] }} }}
",
            sysfs = host.sysfs().display(),
            out = host.out().display(),
        );
        fs::write(host.config(), config).unwrap();
        let agent = Running::start(command.arg("--config").arg(host.config()));
        let watched = Self { host, agent, metrics, zones: Cell::new(0) };
        watched.wait(2);
        watched.zones.set(watched.seen().into_values().max().unwrap());
        watched
    }

    /// The end of each window so far, and how many zones it has.
    pub fn seen(&self) -> BTreeMap<String, usize> {
        let text = fs::read_to_string(self.host.out()).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |at| &text[..at]);
        let mut seen = BTreeMap::<String, usize>::new();
        for record in whole.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()) {
            let zones = seen.entry(record["end"].as_str().unwrap().to_owned()).or_default();
            *zones += usize::from(record["type"] == "zone");
        }
        // Of the last one there may be more to come.
        seen.pop_last();
        seen
    }

    /// Waits until all zones have been read as they are now. A window that is written after now may
    /// have been read before; and a meter that does not get its CPU in time has no reading.
    pub fn wait_read(&self) {
        // The agent's clock anchor may be a millisecond off.
        let now = rfc3339(unix_now() + 2_000_000);
        self.agent.wait_until("a reading of all zones", |_| {
            self.seen().iter().any(|(end, zones)| *end > now && *zones >= self.zones.get())
        });
    }

    pub fn windows(&self) -> usize {
        let text = fs::read_to_string(self.host.out()).unwrap_or_default();
        text.matches("\"type\":\"window\"").count()
    }

    /// Waits for this many more windows.
    pub fn wait(&self, more: usize) {
        let until = self.windows() + more;
        self.agent.wait_until("windows", |_| self.windows() >= until);
    }

    /// Moves zones' counters; each step is read.
    pub fn advance(&self, times: u64, zones: &[(&str, u64)]) {
        for _ in 0..times {
            zones.iter().for_each(|(id, uj)| self.host.advance(id, *uj));
            self.wait_read();
        }
    }

    /// Own metrics by name, summed over labels.
    pub fn metric(&self, name: &str) -> f64 {
        let (status, body) = self.metrics.get(&self.agent, "/metrics");
        assert_eq!(status, 200);
        let lines = body.lines().filter(|l| l.split(['{', ' ']).next() == Some(name));
        lines.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Ends the agent and checks what it wrote against what there has to be. Gives the records and
    /// the log.
    #[track_caller]
    pub fn check(self, expected: &[Zone]) -> (Vec<Value>, String) {
        self.wait(2);
        let residual = self.metric("wattpipe_energy_residual_joules");
        assert!(residual.abs() < 1e-6, "residual {residual} J");
        self.agent.signal(Signal::SIGTERM);
        let (code, log) = self.agent.end();
        assert_eq!(code, Some(0), "{log}");
        let text = fs::read_to_string(self.host.out()).unwrap();
        let records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        check_totals(&records, expected);
        check_sums(&records, expected);
        (records, log)
    }
}

pub fn of<'a>(records: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    records.iter().filter(move |r| r["type"] == kind)
}

/// Zones and their joules over the whole run.
#[track_caller]
pub fn check_totals(records: &[Value], expected: &[Zone]) {
    let mut seen = BTreeMap::<&str, (&str, Option<u64>, f64)>::new();
    for line in of(records, "zone") {
        let name = line["zone"].as_str().unwrap();
        let hw_type = line["hw_type"].as_str().unwrap();
        let zone = seen.entry(name).or_insert((hw_type, line["package"].as_u64(), 0.0));
        zone.2 += line["joules"].as_f64().unwrap();
    }
    let expected_zones: BTreeMap<_, _> =
        expected.iter().map(|z| (z.name, (z.hw_type, z.package))).collect();
    let seen_zones: BTreeMap<_, _> = seen.iter().map(|(name, z)| (*name, (z.0, z.1))).collect();
    assert_eq!(seen_zones, expected_zones);
    for zone in expected {
        let (got, joules) = (seen[zone.name].2, zone.uj as f64 * 1e-6);
        assert!((got - joules).abs() < 1e-6, "{}: {got} J, moved by {joules} J", zone.name);
    }
}

/// In each window and zone: rows' active + idle + unattributed = measured; and a row's total is
/// that of its outer zones.
#[track_caller]
pub fn check_sums(records: &[Value], expected: &[Zone]) {
    let mut rows = BTreeMap::<(&str, &str), f64>::new();
    for row in of(records, "usage") {
        let mut total = 0.0;
        let Some(zones) = row["joules"].as_object() else { continue };
        for (zone, parts) in zones {
            let active = parts["active"].as_f64().unwrap();
            assert_eq!(parts["idle"].as_f64(), Some(0.0), "idle joules are not shared out: {row}");
            *rows.entry((row["end"].as_str().unwrap(), zone)).or_default() += active;
            let outer = expected.iter().any(|z| z.name == zone && z.outer);
            total += if outer { active } else { 0.0 };
        }
        let told = row["joules_total"].as_f64().unwrap();
        assert!((told - total).abs() < 1e-9, "{told}, not {total}: {row}");
    }
    for line in of(records, "zone") {
        let number = |key: &str| line[key].as_f64().unwrap();
        let place = (line["end"].as_str().unwrap(), line["zone"].as_str().unwrap());
        let active = rows.remove(&place).unwrap_or(0.0);
        assert!((active - number("active")).abs() < 1e-9, "rows: {active} J, {line}");
        let parts = number("active") + number("idle") + number("unattributed");
        assert!((parts - number("joules")).abs() < 1e-9, "{line}");
        for key in ["joules", "active", "idle", "unattributed"] {
            assert!(number(key) >= 0.0, "{line}");
        }
    }
    assert!(rows.is_empty(), "rows with energy of zones without a line: {rows:?}");
}

/// Windows that call themselves complete, and those that do not.
pub fn incomplete_for_a_meter(records: &[Value]) -> usize {
    let busy_known = |w: &&Value| w["cpu_ns"]["unattributed"].as_u64() == Some(0);
    of(records, "window").filter(|w| w["complete"] == false).filter(busy_known).count()
}
