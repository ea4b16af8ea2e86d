//! The JSON lines of a window: one `window` record, one `zone` record per zone, one `usage` record
//! per row. `stdout: {format: json}` and `file: {format: jsonl}` both write them through here.
//!
//! What is not known is not written: a host without meters has no `zone` line and its rows no
//! `joules` key; only `cycles` and `confidence` are `null` instead.

use serde::{Serialize, Serializer, ser::SerializeMap};
use wattpipe_pipeline::{
    batch::{IdleBasis, State, UsageBatch, UsageRow, ZoneUsage},
    identity::AttributeSet,
    units::{Nanos, rfc3339},
};

/// Appends the lines of `batch` to `out` and returns how many there are.
pub fn write_lines(batch: &UsageBatch, out: &mut Vec<u8>) -> Result<u64, serde_json::Error> {
    let window = &batch.window;
    let start = rfc3339(window.unix_ns(window.start));
    let end = rfc3339(window.unix_ns(window.end));
    let mut lines = 0;
    let mut line = |record: Record<'_>| {
        serde_json::to_writer(&mut *out, &record)?;
        out.push(b'\n');
        lines += 1;
        Ok::<(), serde_json::Error>(())
    };
    line(Record::Window {
        start: &start,
        end: &end,
        duration_ns: window.duration(),
        cpus: window.cpus,
        cpu_ns: CpuNanos {
            busy: window.busy,
            idle: window.idle,
            unattributed: window.unattributed,
        },
        switches: window.switches,
        lost: window.lost,
        complete: window.complete,
    })?;
    for zone in &batch.zones {
        let zone_start = rfc3339(window.unix_ns(zone.start));
        line(zone_record(batch, zone, &zone_start, &end))?;
    }
    for row in &batch.rows {
        line(Record::Usage {
            start: &start,
            end: &end,
            attributes: &row.attributes,
            state: row.state,
            cpu_ns: row.cpu,
            cycles: row.cycles,
            switches: row.switches,
            joules: (!row.energy.is_empty()).then_some(Joules { batch, row }),
            joules_total: batch.joules_total(row),
            confidence: row.confidence,
        })?;
    }
    Ok(lines)
}

fn zone_record<'a>(
    batch: &UsageBatch,
    usage: &'a ZoneUsage,
    start: &'a str,
    end: &'a str,
) -> Record<'a> {
    let seconds = batch.zone_seconds(usage);
    Record::Zone {
        start,
        end,
        zone: &usage.zone.name,
        hw_type: &usage.zone.hw_type,
        package: usage.zone.package.map(|p| p.0),
        source: &usage.zone.source,
        idle_basis: usage.idle_basis,
        joules: usage.joules,
        active: usage.active,
        idle: usage.idle,
        unattributed: usage.unattributed,
        watts: (seconds > 0.0).then(|| usage.joules / seconds),
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record<'a> {
    Window {
        start: &'a str,
        end: &'a str,
        duration_ns: Nanos,
        cpus: u32,
        cpu_ns: CpuNanos,
        switches: u64,
        lost: u64,
        complete: bool,
    },
    Zone {
        start: &'a str,
        end: &'a str,
        zone: &'a str,
        hw_type: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        package: Option<u32>,
        source: &'a str,
        idle_basis: IdleBasis,
        joules: f64,
        active: f64,
        idle: f64,
        unattributed: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        watts: Option<f64>,
    },
    Usage {
        start: &'a str,
        end: &'a str,
        attributes: &'a AttributeSet,
        state: State,
        cpu_ns: Nanos,
        cycles: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        switches: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        joules: Option<Joules<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        joules_total: Option<f64>,
        confidence: Option<f32>,
    },
}

#[derive(Serialize)]
struct CpuNanos {
    busy: Nanos,
    idle: Nanos,
    unattributed: Nanos,
}

/// A row's energy as a map from zone name to its parts.
struct Joules<'a> {
    batch: &'a UsageBatch,
    row: &'a UsageRow,
}

#[derive(Serialize)]
struct Parts {
    active: f64,
    idle: f64,
}

impl Serialize for Joules<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for energy in &self.row.energy {
            if let Some(usage) = self.batch.zones.get(energy.zone as usize) {
                let parts = Parts { active: energy.active, idle: energy.idle };
                map.serialize_entry(&*usage.zone.name, &parts)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Usage, zone};

    #[track_caller]
    fn check(batch: &UsageBatch, expected: &[&str]) {
        let mut out = Vec::new();
        let lines = write_lines(batch, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert_eq!(lines, expected.len() as u64);
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn a_host_without_meters_has_no_energy_keys() {
        check(
            &Usage::window(1_000_000_000, 2_000_000_000).process(7, "a", 500, 250_000_000).build(),
            &[
                r#"{"type":"window","start":"2026-09-21T14:13:21.000000000Z","end":"2026-09-21T14:13:22.000000000Z","duration_ns":1000000000,"cpus":2,"cpu_ns":{"busy":250000000,"idle":1750000000,"unattributed":0},"switches":1,"lost":0,"complete":true}"#,
                r#"{"type":"usage","start":"2026-09-21T14:13:21.000000000Z","end":"2026-09-21T14:13:22.000000000Z","attributes":{"process.creation.time":"2026-09-21T14:13:20.000000500Z","process.executable.name":"a","process.pid":7},"state":"running","cpu_ns":250000000,"cycles":null,"switches":1,"confidence":null}"#,
            ],
        );
    }

    #[test]
    fn a_source_that_sees_no_switches_has_no_such_key() {
        let batch = Usage::window(0, 1).process(7, "a", 500, 2).without_switches().build();
        let mut out = Vec::new();
        write_lines(&batch, &mut out).unwrap();
        let usage = String::from_utf8(out).unwrap().lines().last().unwrap().to_owned();
        assert!(usage.contains(r#""cycles":null,"confidence":null"#), "{usage}");
    }

    #[test]
    fn zones_and_their_shares() {
        let batch = Usage::window(0, 2_000_000_000)
            .zone(zone("package-0", "rapl"), 8.0, 2.0)
            .process(7, "a\"\n\u{1b}", 500, 250_000_000)
            .energy(0, 6.0, 0.5)
            .exited()
            .build();
        check(
            &batch,
            &[
                r#"{"type":"window","start":"2026-09-21T14:13:20.000000000Z","end":"2026-09-21T14:13:22.000000000Z","duration_ns":2000000000,"cpus":2,"cpu_ns":{"busy":250000000,"idle":3750000000,"unattributed":0},"switches":1,"lost":0,"complete":true}"#,
                r#"{"type":"zone","start":"2026-09-21T14:13:20.000000000Z","end":"2026-09-21T14:13:22.000000000Z","zone":"package-0","hw_type":"cpu","package":0,"source":"rapl","idle_basis":"baseline","joules":8.0,"active":6.0,"idle":2.0,"unattributed":0.0,"watts":4.0}"#,
                r#"{"type":"usage","start":"2026-09-21T14:13:20.000000000Z","end":"2026-09-21T14:13:22.000000000Z","attributes":{"process.creation.time":"2026-09-21T14:13:20.000000500Z","process.executable.name":"a\"\n\u001b","process.pid":7},"state":"exited","cpu_ns":250000000,"cycles":null,"switches":1,"joules":{"package-0":{"active":6.0,"idle":0.5}},"joules_total":6.5,"confidence":null}"#,
            ],
        );
    }
}
