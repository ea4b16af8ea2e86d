//! rotel: started with its debug log, which spells out every point it gets.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, ensure};

use super::{
    expect::{Id, Point, Points},
    otlp::who,
    world::Program,
};

/// Starts it; what it gets is in `rotel-WAY.log`.
pub(super) fn start(
    program: &Path,
    way: &str,
    grpc: u16,
    http: u16,
    run: &Path,
) -> Result<Program> {
    let mut command = Command::new(program);
    command
        .args(["start", "--exporter", "blackhole"])
        .args(["--debug-log", "metrics", "--debug-log-verbosity", "detailed"])
        .arg("--otlp-grpc-endpoint")
        .arg(format!("127.0.0.1:{grpc}"))
        .arg("--otlp-http-endpoint")
        .arg(format!("127.0.0.1:{http}"));
    Program::start(&mut command, &format!("rotel-{way}"), run)
}

/// All points that the log spells out: one fact a line, from resource down to value.
pub(super) fn points(log: &Path) -> Result<Points> {
    let text = fs::read_to_string(log)?;
    let mut points = Points::new();
    let mut reader = Reader::default();
    for line in text.lines() {
        let Some((id, point)) = reader.line(line.trim())? else { continue };
        ensure!(points.insert(id.clone(), point).is_none(), "twice: {id:?}");
    }
    Ok(points)
}

/// What a list of `-> key: value` lines is about.
#[derive(Default, Clone, Copy, PartialEq)]
enum List {
    #[default]
    None,
    Resource,
    Scope,
    Metric,
    Point,
}

#[derive(Default)]
struct Reader {
    list: List,
    resource: Vec<(String, String)>,
    metric: Vec<(String, String)>,
    point: Vec<(String, String)>,
    start: u64,
    time: u64,
}

impl Reader {
    /// Takes a line; the line with a value completes a point.
    fn line(&mut self, line: &str) -> Result<Option<(Id, Point)>> {
        if let Some(pair) = line.strip_prefix("-> ") {
            let (key, value) = pair.split_once(": ").unwrap_or((pair, ""));
            let pair = (key.to_owned(), plain(value).to_owned());
            match self.list {
                List::Resource => self.resource.push(pair),
                List::Metric => self.metric.push(pair),
                List::Point => self.point.push(pair),
                List::Scope | List::None => {}
            }
            return Ok(None);
        }
        let (head, value) = line.split_once(": ").unwrap_or((line, ""));
        match head.trim_end_matches(':') {
            "Resource attributes" => {
                self.resource.clear();
                self.list = List::Resource;
            }
            "InstrumentationScope attributes" => self.list = List::Scope,
            "Descriptor" => {
                self.metric.clear();
                self.list = List::Metric;
            }
            head if head.starts_with("NumberDataPoints #") => {
                self.point.clear();
                self.list = List::None;
            }
            "Data point attributes" => self.list = List::Point,
            "StartTimestamp" => self.start = value.parse()?,
            "Timestamp" => self.time = value.parse()?,
            "Value" => return self.finish(value.parse()?).map(Some),
            _ => {}
        }
        Ok(None)
    }

    fn finish(&mut self, value: f64) -> Result<(Id, Point)> {
        let get = |key: &str| {
            let pair = self.metric.iter().find(|(k, _)| k == key);
            pair.map(|(_, v)| v.clone()).unwrap_or_default()
        };
        ensure!(get("DataType") == "Sum" && get("IsMonotonic") == "true", "not a monotonic sum");
        let mut labels: Vec<String> = self.point.iter().map(|(k, v)| format!("{k}={v}")).collect();
        labels.sort();
        let id = Id {
            who: who(&self.resource),
            metric: get("Name"),
            labels: labels.join(","),
            time: self.time,
        };
        let delta = get("AggregationTemporality") != "AGGREGATION_TEMPORALITY_CUMULATIVE";
        Ok((id, Point { start: self.start, value, unit: get("Unit"), delta }))
    }
}

/// `Str(a)` and `Int(1)` without their kind.
fn plain(value: &str) -> &str {
    ["Str(", "Int(", "Bool("]
        .iter()
        .find_map(|kind| value.strip_prefix(kind)?.strip_suffix(')'))
        .unwrap_or(value)
}
