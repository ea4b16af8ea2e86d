//! A window as tidy CSV: one observation a line, always the same columns.
//!
//! `measure` names what was observed and `unit` its unit, so that summing `value` over the lines
//! of one measure never counts anything twice:
//!
//! | record | measure | mode | zone |
//! |---|---|---|---|
//! | `window` | `cpu_time` | `busy`, `idle`, `unattributed` | |
//! | `window` | `context_switches`, `lost` | | |
//! | `zone` | `energy` | `active`, `idle`, `unattributed` | name |
//! | `usage` | `cpu_time`, `context_switches`, `cycles`, `confidence` | | |
//! | `usage` | `energy` | `active`, `idle` | name |

use std::borrow::Cow;

use wattpipe_pipeline::{
    batch::{State, UsageBatch},
    identity::{AttributeSet, attr},
    units::rfc3339,
};

/// Columns that describe the workload, by the names of their attributes.
const ATTRIBUTES: &[&str] = &[
    attr::PROCESS_PID,
    attr::PROCESS_PARENT_PID,
    attr::PROCESS_CREATION_TIME,
    attr::PROCESS_EXECUTABLE_NAME,
    attr::PROCESS_COMMAND_LINE,
    attr::PROCESS_OWNER,
    attr::PROCESS_KIND,
    attr::PROCESS_LINUX_CGROUP,
    attr::SYSTEMD_UNIT,
    attr::CONTAINER_ID,
    attr::CONTAINER_NAME,
    attr::CONTAINER_IMAGE_NAME,
    attr::CONTAINER_RUNTIME_NAME,
    attr::K8S_POD_UID,
    attr::K8S_POD_NAME,
    attr::K8S_NAMESPACE_NAME,
    attr::K8S_CONTAINER_NAME,
    attr::HOST_NAME,
    attr::HOST_ID,
];
/// Columns before and after them.
const BEFORE: &[&str] = &["start", "end", "record"];
const AFTER: &[&str] = &["state", "measure", "mode", "zone", "source", "value", "unit"];

/// The one header line.
pub(super) fn header() -> Vec<u8> {
    let columns: Vec<&str> = [BEFORE, ATTRIBUTES, AFTER].concat();
    let mut line = columns.join(",").into_bytes();
    line.push(b'\n');
    line
}

/// Appends the lines of `batch`, and returns how many rows of usage they hold.
pub(super) fn write(batch: &UsageBatch, out: &mut Vec<u8>) -> Result<u64, csv::Error> {
    let w = &batch.window;
    let end = rfc3339(w.unix_ns(w.end));
    let mut lines = Lines {
        csv: csv::WriterBuilder::new().from_writer(out),
        start: rfc3339(w.unix_ns(w.start)),
        end,
        record: "window",
        nothing: AttributeSet::new(),
    };
    for (mode, time) in [("busy", w.busy), ("idle", w.idle), ("unattributed", w.unattributed)] {
        lines.put(None, "", ["cpu_time", mode, "", ""], &time.as_secs_f64().to_string(), "s")?;
    }
    for (measure, count) in [("context_switches", w.switches), ("lost", w.lost)] {
        lines.put(None, "", [measure, "", "", ""], &count.to_string(), "1")?;
    }
    let window_start = std::mem::take(&mut lines.start);
    lines.record = "zone";
    for usage in &batch.zones {
        lines.start = rfc3339(w.unix_ns(usage.start));
        let parts =
            [("active", usage.active), ("idle", usage.idle), ("unattributed", usage.unattributed)];
        for (mode, joules) in parts {
            let of = ["energy", mode, &usage.zone.name, &usage.zone.source];
            lines.put(None, "", of, &joules.to_string(), "J")?;
        }
    }
    lines.start = window_start;
    lines.record = "usage";
    for row in &batch.rows {
        let state = match row.state {
            State::Running => "running",
            State::Exited => "exited",
        };
        let attributes = Some(&*row.attributes);
        let mut put = |of, value: String, unit| lines.put(attributes, state, of, &value, unit);
        put(["cpu_time", "", "", ""], row.cpu.as_secs_f64().to_string(), "s")?;
        if let Some(switches) = row.switches {
            put(["context_switches", "", "", ""], switches.to_string(), "1")?;
        }
        if let Some(cycles) = row.cycles {
            put(["cycles", "", "", ""], cycles.to_string(), "1")?;
        }
        if let Some(confidence) = row.confidence {
            put(["confidence", "", "", ""], confidence.to_string(), "1")?;
        }
        for energy in &row.energy {
            let Some(usage) = batch.zones.get(energy.zone as usize) else { continue };
            for (mode, joules) in [("active", energy.active), ("idle", energy.idle)] {
                let of = ["energy", mode, &usage.zone.name, &usage.zone.source];
                put(of, joules.to_string(), "J")?;
            }
        }
    }
    lines.csv.flush()?;
    Ok(batch.rows.len() as u64)
}

struct Lines<'a> {
    csv: csv::Writer<&'a mut Vec<u8>>,
    start: String,
    end: String,
    record: &'static str,
    nothing: AttributeSet,
}

impl Lines<'_> {
    /// One observation; `of` is measure, mode, zone and source.
    fn put(
        &mut self,
        attributes: Option<&AttributeSet>,
        state: &str,
        of: [&str; 4],
        value: &str,
        unit: &str,
    ) -> Result<(), csv::Error> {
        for field in [&self.start, &self.end, self.record] {
            self.csv.write_field(field)?;
        }
        let attributes = attributes.unwrap_or(&self.nothing);
        for key in ATTRIBUTES {
            let value = attributes.get(key).map(ToString::to_string).unwrap_or_default();
            self.csv.write_field(one_line(&value).as_bytes())?;
        }
        let [measure, mode, zone, source] = of;
        for field in [state, measure, mode, zone, source, value, unit] {
            self.csv.write_field(field)?;
        }
        self.csv.write_record(None::<&[u8]>)
    }
}

/// A record is a line: a line break in a name would tear it.
fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(['\n', '\r']) {
        Cow::Owned(text.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Usage, zone};

    #[test]
    fn columns_are_fixed_and_every_measure_adds_up() {
        let batch = Usage::window(0, 1_000_000_000)
            .zone(zone("package-0", "rapl"), 10.0, 4.0)
            .process(7, "a,\"b\"\nc", 500, 250_000_000)
            .energy(0, 6.0, 0.5)
            .build();
        let mut out = header();
        assert_eq!(write(&batch, &mut out).unwrap(), 1);
        let mut reader = csv::Reader::from_reader(&out[..]);
        let columns = reader.headers().unwrap().clone();
        let at = |name: &str| columns.iter().position(|c| c == name).unwrap();
        let lines: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(lines.len(), out.split(|b| *b == b'\n').count() - 2);
        let sum = |record: &str, measure: &str| -> f64 {
            let of =
                |l: &&csv::StringRecord| &l[at("record")] == record && &l[at("measure")] == measure;
            lines.iter().filter(of).map(|l| l[at("value")].parse::<f64>().unwrap()).sum()
        };
        assert_eq!(sum("window", "cpu_time"), 2.0);
        assert_eq!(sum("zone", "energy"), 10.0);
        assert_eq!(sum("usage", "cpu_time"), 0.25);
        assert_eq!(sum("usage", "energy"), 6.5);
        let usage = lines.iter().find(|l| &l[at("record")] == "usage").unwrap();
        assert_eq!(&usage[at("process.executable.name")], "a,\"b\" c");
        assert_eq!(&usage[at("process.pid")], "7");
    }
}
