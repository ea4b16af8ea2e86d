//! The Collector: its configuration, and what its file exporter wrote, read as plain JSON.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use super::expect::{Id, Point, Points};

/// One OTLP receiver and one file, `NAME-i.json`, per pair of ports (gRPC, HTTP).
pub(super) fn collector_config(name: &str, ports: &[(u16, u16)], run: &Path) -> String {
    let (mut receivers, mut exporters, mut pipelines) =
        (String::new(), String::new(), String::new());
    for (i, (grpc, http)) in ports.iter().enumerate() {
        let file = run.join(format!("{name}-{i}.json"));
        let _ = writeln!(
            receivers,
            "  otlp/{i}: {{ protocols: {{ grpc: {{ endpoint: \"127.0.0.1:{grpc}\" }}, http: {{ endpoint: \"127.0.0.1:{http}\" }} }} }}"
        );
        let _ = writeln!(
            exporters,
            "  file/{i}: {{ path: {}, flush_interval: 100ms }}",
            file.display()
        );
        let _ = writeln!(
            pipelines,
            "    metrics/{i}: {{ receivers: [otlp/{i}], exporters: [file/{i}] }}"
        );
    }
    format!(
        "receivers:\n{receivers}exporters:\n{exporters}service:\n  telemetry: {{ metrics: {{ level: none }} }}\n  pipelines:\n{pipelines}"
    )
}

/// The same, what the first receiver gets going to a page for Prometheus too.
pub(super) fn with_prometheus(config: String, port: u16) -> String {
    let exporter = format!(
        "exporters:\n  prometheus: {{ endpoint: \"127.0.0.1:{port}\", resource_to_telemetry_conversion: {{ enabled: true }} }}\n"
    );
    config.replacen("exporters:\n", &exporter, 1).replacen("[file/0]", "[file/0, prometheus]", 1)
}

/// All points of a file of `ExportMetricsServiceRequest`s.
pub(super) fn points(path: &Path) -> Result<Points> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut points = Points::new();
    for line in text.lines() {
        let request: Value = serde_json::from_str(line)?;
        for resource in list(&request["resourceMetrics"]) {
            let who = who(&attributes(&resource["resource"]["attributes"]));
            for scope in list(&resource["scopeMetrics"]) {
                anyhow::ensure!(scope["scope"]["name"] == "wattpipe", "scope {}", scope["scope"]);
                for metric in list(&scope["metrics"]) {
                    add(&mut points, &who, metric)?;
                }
            }
        }
    }
    Ok(points)
}

/// Whom a resource is about.
pub(super) fn who(attributes: &[(String, String)]) -> String {
    let get = |key: &str| attributes.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    if let Some(pid) = get("process.pid") {
        format!("process:{pid}")
    } else if get("process.executable.name") == Some("short-lived") {
        "short-lived".to_owned()
    } else if let Some(id) = get("container.id") {
        format!("container:{id}")
    } else if let Some(uid) = get("k8s.pod.uid") {
        format!("pod:{uid}")
    } else {
        "host".to_owned()
    }
}

fn add(points: &mut Points, who: &str, metric: &Value) -> Result<()> {
    let sum = &metric["sum"];
    anyhow::ensure!(sum["isMonotonic"] == true, "not a monotonic sum: {metric}");
    let delta = match sum["aggregationTemporality"].as_u64() {
        Some(1) => true,
        Some(2) => false,
        other => anyhow::bail!("temporality {other:?}"),
    };
    for point in list(&sum["dataPoints"]) {
        let mut labels: Vec<String> =
            attributes(&point["attributes"]).iter().map(|(k, v)| format!("{k}={v}")).collect();
        labels.sort();
        let value = point["asDouble"].as_f64().or_else(|| number(&point["asInt"]));
        let id = Id {
            who: who.to_owned(),
            metric: metric["name"].as_str().unwrap_or_default().to_owned(),
            labels: labels.join(","),
            time: time(&point["timeUnixNano"])?,
        };
        let point = Point {
            start: time(&point["startTimeUnixNano"])?,
            // JSON leaves zero out.
            value: value.unwrap_or(0.0),
            unit: metric["unit"].as_str().unwrap_or_default().to_owned(),
            delta,
        };
        anyhow::ensure!(points.insert(id.clone(), point).is_none(), "twice: {id:?}");
    }
    Ok(())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn time(value: &Value) -> Result<u64> {
    value.as_str().and_then(|t| t.parse().ok()).with_context(|| format!("{value} is no time"))
}

fn attributes(value: &Value) -> Vec<(String, String)> {
    let pairs = list(value).iter().map(|kv| {
        let value = &kv["value"];
        let text = ["stringValue", "intValue", "boolValue"].iter().find_map(|kind| {
            let v = &value[*kind];
            v.as_str().map(str::to_owned).or_else(|| (!v.is_null()).then(|| v.to_string()))
        });
        (kv["key"].as_str().unwrap_or_default().to_owned(), text.unwrap_or_default())
    });
    pairs.collect()
}
