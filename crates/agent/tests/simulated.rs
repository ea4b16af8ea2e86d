//! The truth bench's streams through the real binary: what it simulates goes into a recording, the
//! recording through `replay`, `delta` and `power_model`, and the joules that come out are those of
//! the same processors fed directly. Parts add up to what the meters counted.
#![expect(clippy::unwrap_used, reason = "a test's own files and processes")]

#[path = "support/binary.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]
mod binary;

use std::{collections::BTreeMap, fs};

use binary::{ConfigFile, run};
use serde_json::{Value, json};
use truth_bench::{
    ours::Ours,
    record::Recording,
    scenarios,
    sim::{BLOCK, SECOND, Sim},
};

/// Long enough for coefficients and a baseline to be used.
const SECONDS: u64 = 80;
const BLOCKS: usize = (SECONDS * SECOND / BLOCK) as usize;

/// Simulates a scenario and checks that the binary gives for its recording what the processors give
/// for the stream itself, with this configuration of the model.
#[track_caller]
fn check(number: u32, seed: u64, model: &Value) {
    let scenario = scenarios::all().into_iter().find(|s| s.number == number).unwrap();
    let kind = if scenario.dram { "dram" } else { "package" };
    let names: Vec<&str> = scenario.workloads.iter().map(|w| w.name).collect();
    let file = ConfigFile::new("");
    let mut ours = Ours::new(model, &scenario.workloads, kind).unwrap();
    let mut recording = Recording::create(file.dir(), number).unwrap();
    let mut sim = Sim::new(scenario.machine, scenario.workloads.clone(), scenario.dram, seed);
    for second in 0..SECONDS {
        let batch = sim.window();
        recording.write(&batch).unwrap();
        ours.window(batch, (second * SECOND / BLOCK) as usize).unwrap();
    }
    recording.finish(&sim).unwrap();

    let out = file.dir().join("out.jsonl");
    file.write(&format!(
        "sources: {{ replay: {{ path: {dir}/scenario-{number}.jsonl }} }}
processors: {{ delta: {{}}, power_model: {model} }}
exporters: {{ file: {{ path: {out} }} }}
service: {{ pipelines: {{ a: {{ sources: [replay], processors: [delta, power_model], exporters: [file] }} }} }}
",
        dir = file.dir().display(),
        out = out.display(),
    ));
    let output = run(&["--config", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    let mut given = vec![vec![0.0; names.len()]; BLOCKS];
    let mut idle = [(0.0, 0.0); BLOCKS];
    let mut told = 0;
    for (at, window) in windows(&fs::read_to_string(out).unwrap()).into_iter().enumerate() {
        // The first edge, at one second, opens the first window.
        let block = (at + 1) * SECOND as usize / BLOCK as usize;
        for (zone, line) in &window.zones {
            let number = |key: &str| line[key].as_f64().unwrap();
            let rows = window.active.iter().filter(|((_, z), _)| z == zone).map(|(_, a)| a);
            let parts = rows.sum::<f64>() + number("idle") + number("unattributed");
            assert!((parts - number("joules")).abs() < 1e-6, "{parts} J of {line}");
            if zone.starts_with(kind) {
                idle[block].0 += number("idle");
                idle[block].1 += number("joules");
            }
        }
        for ((name, zone), joules) in &window.active {
            if let (true, Some(w)) = (zone.starts_with(kind), names.iter().position(|n| n == name))
            {
                given[block][w] += joules;
            }
        }
        told += window.told;
    }
    for block in 0..BLOCKS {
        eprintln!(
            "{block}: {:?} | {:?} idle {:?} {:?}",
            given[block], ours.given[block], idle[block], ours.idle[block]
        );
    }
    for block in 0..BLOCKS {
        let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} J, not {b} J");
        given[block].iter().zip(&ours.given[block]).for_each(|(a, b)| close(*a, *b));
        close(idle[block].0, ours.idle[block].0);
        close(idle[block].1, ours.idle[block].1);
    }
    let told_directly: u32 = ours.confidence.iter().map(|(_, n)| n).sum();
    assert!(told > 0 && told == told_directly, "confidence of {told} rows, not {told_directly}");
}

/// A window's lines and rows.
#[derive(Default)]
struct Window {
    zones: BTreeMap<String, Value>,
    /// Active joules by program and zone.
    active: BTreeMap<(String, String), f64>,
    /// Rows that have a confidence.
    told: u32,
}

fn windows(text: &str) -> Vec<Window> {
    let mut windows = BTreeMap::<String, Window>::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let window = windows.entry(record["end"].as_str().unwrap().to_owned()).or_default();
        match record["type"].as_str().unwrap() {
            "zone" => {
                window.zones.insert(record["zone"].as_str().unwrap().to_owned(), record);
            }
            "usage" => {
                let name = record["attributes"]["process.executable.name"].as_str().unwrap_or("");
                for (zone, parts) in record["joules"].as_object().into_iter().flatten() {
                    let key = (name.to_owned(), zone.clone());
                    *window.active.entry(key).or_default() += parts["active"].as_f64().unwrap();
                }
                window.told += u32::from(record["confidence"].is_number());
            }
            _ => {}
        }
    }
    windows.into_values().collect()
}

#[test]
fn nothing_configured() {
    check(3, 100, &json!({}));
}

#[test]
fn two_sockets() {
    check(7, 101, &json!({ "idle_watts": { "package-0": 28.0 } }));
}

#[test]
fn short_lived_processes() {
    check(2, 102, &json!({ "idle_watts": { "package-0": 28.0 }, "attribute_idle": true }));
}

#[test]
fn memory_beside_its_package() {
    check(12, 103, &json!({ "idle": "proportional" }));
}
