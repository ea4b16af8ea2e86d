//! What a node needs: CPU time, memory, series and page of the agent under five loads, with the
//! Prometheus exporter at all levels.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::agent::{Killed, sleepers};
use crate::{
    e2e::world::{get, port, wait_for},
    process::resident,
};

/// How long each is measured.
const MEASURED: Duration = Duration::from_secs(12);

/// A load beside whatever runs on the machine.
struct Load {
    name: &'static str,
    processes: usize,
    /// Milliseconds between two wakeups of each.
    every_ms: u64,
    window: &'static str,
}

const fn load(name: &'static str, processes: usize, every_ms: u64, window: &'static str) -> Load {
    Load { name, processes, every_ms, window }
}

const LOADS: [Load; 5] = [
    load("none", 0, 0, "1s"),
    load("500 processes, 2 wakeups/s each", 500, 500, "1s"),
    load("2,000 processes, 2 wakeups/s each", 2000, 500, "1s"),
    load("the same", 2000, 500, "5s"),
    load("20 processes, 1,000 wakeups/s each", 20, 1, "1s"),
];

pub(super) fn measure(agent: &Path) -> Result<Value> {
    LOADS.iter().map(|load| among(agent, load).context(load.name)).collect()
}

fn among(agent: &Path, load: &Load) -> Result<Value> {
    let _load = sleepers(load.processes, load.every_ms)?;
    let (page, own) = (port()?, port()?);
    let config = std::env::temp_dir().join(format!("wattpipe-load-{}.yaml", std::process::id()));
    let window = load.window;
    fs::write(
        &config,
        format!(
            "sources: {{ebpf: {{window: {window}}}}}\nprocessors: {{delta: {{}}, attribution: {{}}, \
             power_model: {{}}}}\nexporters: {{prometheus: {{endpoint: \"127.0.0.1:{page}\", levels: \
             [container, pod, process], max_series: 20000}}}}\nservice: {{telemetry: {{metrics: \
             {{endpoint: \"127.0.0.1:{own}\"}}}}, pipelines: {{p: {{sources: [ebpf], processors: \
             [delta, attribution, power_model], exporters: [prometheus]}}}}}}\n"
        ),
    )?;
    let agent = Killed(
        Command::new(agent)
            .arg("--config")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let pid = agent.0.id();
    wait_for(own, Duration::from_secs(30))?;
    fs::remove_file(config)?;
    // Past the background's first look at everything that runs.
    thread::sleep(Duration::from_secs(12));
    let (begun, before) = (Instant::now(), counts(pid, own)?);
    thread::sleep(MEASURED);
    let (seconds, after) = (begun.elapsed().as_secs_f64(), counts(pid, own)?);
    let text = get(page, "/metrics", "text/plain")?;
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    Ok(json!({
        "load": load.name,
        "window": window,
        "switches_per_second": (after.switches - before.switches) / seconds,
        "cpu_percent": 100.0 * (after.cpu_seconds - before.cpu_seconds) / seconds,
        "rss_mib": resident(pid)?.0 as f64 / 1024.0,
        "series": series,
        "page_kib": text.len() as f64 / 1024.0,
        "lost": after.lost,
    }))
}

struct Counts {
    switches: f64,
    lost: f64,
    cpu_seconds: f64,
}

fn counts(pid: u32, own: u16) -> Result<Counts> {
    let page = get(own, "/metrics", "text/plain")?;
    let sum = |name: &str| -> f64 {
        let lines = page.lines().filter(|l| l.starts_with(name));
        lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    ensure!(page.contains("wattpipe_source_switches_total"), "the agent counts no switches");
    // The scheduler's own sum over the agent's threads, in ns; `stat` has it in hundredths only.
    let mut ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let line = fs::read_to_string(task.path().join("schedstat"))?;
        ns += line.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(Counts {
        switches: sum("wattpipe_source_switches_total"),
        lost: sum("wattpipe_source_lost_total"),
        cpu_seconds: ns as f64 / 1e9,
    })
}
