//! What every receiver must have got, worked out from the JSON lines alone: an account of its own,
//! not the exporters' code.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// Which point.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    /// `process:7`, `container:…`, `pod:…`, `short-lived` or `host`.
    pub(super) who: String,
    pub(super) metric: String,
    /// The point's own attributes, sorted: `k=v,k=v`.
    pub(super) labels: String,
    /// Its time, unix ns.
    pub(super) time: u64,
}

/// What it says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) start: u64,
    pub(super) value: f64,
    pub(super) unit: String,
    pub(super) delta: bool,
}

pub(super) type Points = BTreeMap<Id, Point>;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Cumulative,
    Delta,
}

#[derive(Default)]
struct Account {
    first_edge: u64,
    /// Who -> start, and values by (metric, labels).
    starts: BTreeMap<String, u64>,
    sums: BTreeMap<(String, String, String), (f64, &'static str)>,
}

/// All points that `lines` of windows, zones and usage come to.
pub(super) fn points(lines: &str, kind: Kind) -> Result<Points> {
    let mut account = Account::default();
    let mut points = Points::new();
    let mut window = Vec::new();
    for line in lines.lines() {
        let record: Value = serde_json::from_str(line)?;
        if record["type"] == "window" && !window.is_empty() {
            account.add(&std::mem::take(&mut window), kind, &mut points)?;
        }
        window.push(record);
    }
    account.add(&window, kind, &mut points)?;
    Ok(points)
}

/// The last point of each series.
pub(super) fn last(points: &Points) -> Points {
    let mut last: BTreeMap<(String, String, String), (Id, Point)> = BTreeMap::new();
    for (id, point) in points {
        let series = (id.who.clone(), id.metric.clone(), id.labels.clone());
        last.insert(series, (id.clone(), point.clone()));
    }
    last.into_values().collect()
}

impl Account {
    fn add(&mut self, window: &[Value], kind: Kind, points: &mut Points) -> Result<()> {
        let head = window.first().context("no window")?;
        let (start, end) = (time(&head["start"])?, time(&head["end"])?);
        if self.first_edge == 0 {
            self.first_edge = start;
        }
        let mut fresh = Vec::new();
        for record in &window[1..] {
            match record["type"].as_str() {
                Some("zone") => self.zone(record, &mut fresh)?,
                Some("usage") => self.usage(record, start, window, &mut fresh)?,
                other => anyhow::bail!("unknown record {other:?}"),
            }
        }
        fresh.sort();
        fresh.dedup();
        for series in fresh {
            let (who, metric, labels) = series.clone();
            let begun = self.starts.get(&who).copied().unwrap_or(self.first_edge);
            let Some((value, unit)) = self.sums.get_mut(&series) else { continue };
            points.insert(
                Id { who: who.clone(), metric, labels, time: end },
                Point {
                    start: begun,
                    value: *value,
                    unit: (*unit).to_owned(),
                    delta: kind == Kind::Delta,
                },
            );
            if kind == Kind::Delta {
                *value = 0.0;
            }
        }
        if kind == Kind::Delta {
            let seen: Vec<String> =
                points.keys().filter(|id| id.time == end).map(|id| id.who.clone()).collect();
            self.starts.extend(seen.into_iter().map(|who| (who, end)));
        }
        Ok(())
    }

    fn zone(&mut self, record: &Value, fresh: &mut Vec<(String, String, String)>) -> Result<()> {
        let (zone, hw) = (text(&record["zone"])?, text(&record["hw_type"])?);
        for (metric, id, value) in [
            ("hw.energy", "hw.id", &record["joules"]),
            ("wattpipe.energy.unattributed", "energy.zone", &record["unattributed"]),
        ] {
            let mut labels = [format!("{id}={zone}"), format!("hw.type={hw}")];
            labels.sort();
            self.count(fresh, "host", metric, &labels.join(","), number(value)?, "J");
        }
        Ok(())
    }

    fn usage(
        &mut self,
        record: &Value,
        start: u64,
        window: &[Value],
        fresh: &mut Vec<(String, String, String)>,
    ) -> Result<()> {
        let attributes = &record["attributes"];
        let born = time(&attributes["process.creation.time"])?;
        let pid = &attributes["process.pid"];
        let container = attributes["container.id"].as_str();
        let pod = attributes["k8s.pod.uid"].as_str();
        let mut whose = Vec::new();
        let known = self.starts.contains_key(&format!("process:{pid}"));
        if record["state"] == "exited" && born >= start && !known {
            if container.is_none() && pod.is_none() {
                self.starts.entry("short-lived".into()).or_insert(self.first_edge);
                whose.push(("process", "short-lived".to_owned()));
            }
        } else {
            whose.push(("process", format!("process:{pid}")));
        }
        whose.extend(container.map(|id| ("container", format!("container:{id}"))));
        whose.extend(pod.map(|uid| ("k8s.pod", format!("pod:{uid}"))));
        for (level, who) in whose {
            let begun = self.first_edge.max(born);
            self.starts.entry(who.clone()).or_insert(begun);
            let cpu = number(&record["cpu_ns"])? / 1e9;
            self.count(fresh, &who, &format!("{level}.cpu.time"), "", cpu, "s");
            if level == "process" {
                let switches = number(&record["switches"])?;
                self.count(
                    fresh,
                    &who,
                    "process.context_switches",
                    "",
                    switches,
                    "{context_switch}",
                );
            }
            for (zone, parts) in record["joules"].as_object().into_iter().flatten() {
                let hw = window
                    .iter()
                    .find(|r| r["type"] == "zone" && r["zone"] == **zone)
                    .context("usage of a zone without a line")?;
                let hw = text(&hw["hw_type"])?;
                let labels = format!("energy.mode=active,energy.zone={zone},hw.type={hw}");
                let joules = number(&parts["active"])?;
                self.count(fresh, &who, &format!("{level}.energy"), &labels, joules, "J");
            }
        }
        Ok(())
    }

    fn count(
        &mut self,
        fresh: &mut Vec<(String, String, String)>,
        who: &str,
        metric: &str,
        labels: &str,
        value: f64,
        unit: &'static str,
    ) {
        let series = (who.to_owned(), metric.to_owned(), labels.to_owned());
        self.sums.entry(series.clone()).or_insert((0.0, unit)).0 += value;
        fresh.push(series);
    }
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is no text"))
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("{value} is no number"))
}

/// RFC 3339 in UTC as unix ns.
fn time(value: &Value) -> Result<u64> {
    parse_time(text(value)?).with_context(|| format!("{value} is no time"))
}

pub(super) fn parse_time(text: &str) -> Option<u64> {
    let (date, clock) = text.trim_end_matches('Z').split_once(['T', ' '])?;
    let mut date = date.split('-').map(|p| p.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.split(':').map(|p| p.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    // Days from civil date, by the proleptic Gregorian calendar.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let era = y.div_euclid(400);
    let of_era = y - era * 400;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * m + 2) / 5 + day
        - 1
        - 719_468;
    let nanos: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds * 1_000_000_000 + nanos)
}
