//! The agent's own size: memory among few and many processes, the binary, the time to its first
//! record.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::process::resident;

/// Wakes at intervals, until it is killed.
pub(super) fn sleeper(every: Duration) -> ! {
    loop {
        thread::sleep(every);
    }
}

/// So many of them.
pub(super) fn sleepers(processes: usize, every_ms: u64) -> Result<Vec<Killed>> {
    let own = std::env::current_exe()?;
    let start = |_| {
        let child = Command::new(&own)
            .args(["bench", "--sleeper", &every_ms.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Ok(Killed(child.context("starting one of many processes")?))
    };
    (0..processes).map(start).collect()
}

/// A child that does not outlive us.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn measure(agent: &Path) -> Result<Value> {
    let mut memory = Vec::new();
    for processes in [500, 10_000] {
        memory.push(memory_among(agent, processes)?);
    }
    let mut first: Vec<f64> = (0..9).map(|_| first_record(agent)).collect::<Result<_>>()?;
    first.sort_by(f64::total_cmp);
    let bytes = fs::metadata(agent)?.len();
    Ok(json!({
        "memory": memory,
        "binary_mib": bytes as f64 / f64::from(1 << 20),
        "first_record_ms_beyond_window": { "median": first[4], "least": first[0], "most": first[8] },
    }))
}

/// Resident memory with that many processes that all run in every window.
fn memory_among(agent: &Path, processes: usize) -> Result<Value> {
    // Twice in every window.
    let _sleepers = sleepers(processes, 500)?;
    let agent = Killed(Command::new(agent).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    // Long enough for the background look-ups to have gone through all of them.
    thread::sleep(Duration::from_secs(20));
    let (all, maps) = resident(agent.0.id())?;
    Ok(json!({
        "processes": processes,
        "rss_mib": all as f64 / 1024.0,
        "rss_without_bpf_maps_mib": (all - maps) as f64 / 1024.0,
    }))
}

/// Milliseconds from the agent's start to its first record, less its window.
fn first_record(agent: &Path) -> Result<f64> {
    const WINDOW_MS: f64 = 500.0;
    let config = std::env::temp_dir().join(format!("wattpipe-first-{}.yaml", std::process::id()));
    fs::write(
        &config,
        "sources: {ebpf: {window: 500ms}}\nprocessors: {delta: {}, attribution: {}, power_model: \
         {}}\nexporters: {stdout: {format: json}}\nservice: {pipelines: {p: {sources: [ebpf], \
         processors: [delta, attribution, power_model], exporters: [stdout]}}}\n",
    )?;
    let begun = Instant::now();
    let mut agent = Killed(
        Command::new(agent)
            .arg("--config")
            .arg(&config)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let output = agent.0.stdout.take().context("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let time = begun.elapsed().as_secs_f64() * 1e3;
    fs::remove_file(config)?;
    anyhow::ensure!(line.contains("window"), "the first line was {line:?}");
    Ok(time - WINDOW_MS)
}
