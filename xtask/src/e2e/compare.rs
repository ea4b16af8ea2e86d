//! Whether two sets of points are the same, and what differs where they are not.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::{
    expect::{Point, Points},
    prom::Labelled,
};

/// Every point is there, says what it must, and there is no other.
pub(super) fn all(expected: &Points, got: &Points) -> Result<()> {
    let mut wrong = Vec::new();
    for (id, e) in expected {
        match got.get(id) {
            None => wrong.push(format!("missing {id:?}")),
            Some(g) if !same(e, g) => wrong.push(format!("{id:?}: expected {e:?}, got {g:?}")),
            Some(_) => {}
        }
    }
    wrong.extend(
        got.keys().filter(|id| !expected.contains_key(id)).map(|id| format!("surplus {id:?}")),
    );
    tell(&wrong, expected.len())
}

/// The last value of every series, as Prometheus has it.
pub(super) fn last(expected: &Points, got: &[Labelled]) -> Result<()> {
    let mut wrong = Vec::new();
    for (id, e) in expected {
        let labels = prometheus_labels(&id.who, &id.labels);
        let name = prometheus_name(&id.metric);
        let found: Vec<&Labelled> = got
            .iter()
            .filter(|g| g.name == name && labels.iter().all(|(k, v)| g.labels.get(k) == Some(v)))
            .collect();
        match found[..] {
            [g] if near(g.value, e.value) => {}
            [g] => wrong.push(format!("{name}{labels:?}: expected {}, got {}", e.value, g.value)),
            _ => wrong.push(format!("{name}{labels:?}: {} series", found.len())),
        }
    }
    tell(&wrong, expected.len())
}

/// The values that Prometheus has are those at the end of some window: the agent may have ended
/// before it was scraped again.
pub(super) fn some_window(expected: &Points, got: &[Labelled]) -> Result<()> {
    let times: std::collections::BTreeSet<u64> = expected.keys().map(|id| id.time).collect();
    let mut result = Ok(());
    for time in times.into_iter().rev() {
        let until = expected.iter().filter(|(id, _)| id.time <= time);
        let state = super::expect::last(&until.map(|(i, p)| (i.clone(), p.clone())).collect());
        match last(&state, got) {
            Ok(()) => return Ok(()),
            // What differs from the last state is worth telling.
            Err(e) if result.is_ok() => result = Err(e),
            Err(_) => {}
        }
    }
    result
}

/// Every metric has a sample on `page`, under its Prometheus name.
pub(super) fn names(expected: &Points, page: &str) -> Result<()> {
    for id in expected.keys() {
        let name = prometheus_name(&id.metric);
        ensure!(page.lines().any(|l| l.starts_with(&format!("{name}{{"))), "no sample of {name}");
    }
    Ok(())
}

fn prometheus_name(metric: &str) -> String {
    let unit = match metric {
        m if m.ends_with(".cpu.time") => "_seconds",
        "process.context_switches" => "",
        _ => "_joules",
    };
    format!("{}{unit}_total", metric.replace('.', "_"))
}

fn prometheus_labels(who: &str, labels: &str) -> BTreeMap<String, String> {
    let own = match who.split_once(':') {
        Some(("process", pid)) => Some(("process_pid", pid)),
        Some(("container", id)) => Some(("container_id", id)),
        Some(("pod", uid)) => Some(("k8s_pod_uid", uid)),
        _ if who == "short-lived" => Some(("process_executable_name", "short-lived")),
        _ => None,
    };
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs.chain(own).map(|(k, v)| (k.replace('.', "_"), v.to_owned())).collect()
}

fn same(e: &Point, g: &Point) -> bool {
    e.start == g.start && e.unit == g.unit && e.delta == g.delta && near(e.value, g.value)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(1.0)
}

fn tell(wrong: &[String], of: usize) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "{} of {of} points differ, such as\n    {}",
        wrong.len(),
        wrong[..wrong.len().min(4)].join("\n    ")
    )
}
