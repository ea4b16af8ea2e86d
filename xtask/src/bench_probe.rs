//! `cargo xtask bench-probe`: what a switch costs, in the kernel and in the agent, and what the agent
//! costs on a machine that does nothing.
//!
//! Builds as the user who calls it, then measures as root. All of it restores what it changes: the
//! kernel's statistics are on for as long as a descriptor is open.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use serde_json::Value;

use crate::process::{self, as_root, cargo, output, root};

/// How long.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Rounds over all programs; medians are over them.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Round trips of the load in each round.
    #[arg(long, default_value_t = 100_000)]
    trips: u32,
    /// Seconds of idling.
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Write the results here too, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure with these programs, as root (used by the task itself).
    #[arg(long, hide = true, num_args = 2)]
    measure: Option<Vec<PathBuf>>,
}

/// CPU time and voluntary switches of a process, all threads.
#[derive(Clone, Copy)]
struct Usage {
    cpu_ns: u64,
    wakeups: u64,
}

pub(crate) fn bench_probe(args: &Args) -> Result<()> {
    if let Some([bench, agent]) = args.measure.as_deref() {
        return measure(args, bench, agent);
    }
    let bench = build_bench()?;
    process::run(&mut cargo(&["build", "--release", "--package", "wattpipe-agent"]))?;
    let agent = root().join("target/release/wattpipe");
    let mut again = as_root(std::env::current_exe()?);
    again.arg("bench-probe").arg("--measure").arg(bench).arg(agent);
    again.args(["--rounds", &args.rounds.to_string(), "--trips", &args.trips.to_string()]);
    again.args(["--idle", &args.idle.to_string()]);
    if let Some(json) = &args.json {
        again.arg("--json").arg(json);
    }
    process::run(&mut again)
}

fn build_bench() -> Result<PathBuf> {
    let text = output(&mut cargo(&[
        "bench",
        "--package=wattpipe-source",
        "--features=bench",
        "--bench=probe",
        "--no-run",
        "--message-format=json",
    ]))?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|m| m["target"]["name"] == "probe")
        .find_map(|m| m["executable"].as_str().map(PathBuf::from))
        .context("cargo told of no benchmark")
}

fn measure(args: &Args, bench: &Path, agent: &Path) -> Result<()> {
    let text = output(Command::new(bench).args([
        "--rounds",
        &args.rounds.to_string(),
        "--trips",
        &args.trips.to_string(),
    ]))?;
    let probe: Value = serde_json::from_str(text.trim())?;
    println!("\nns a run of the kernel programs (bpf_stats; medians of {} rounds)\n", args.rounds);
    println!("{:18} {:>8} {:>12} {:>7}", "program", "ns", "over empty", "ratio");
    for row in probe["programs"].as_array().into_iter().flatten() {
        println!(
            "{:18} {:8.1} {:12.1} {:7.2}",
            row["program"].as_str().unwrap_or_default(),
            row["ns"].as_f64().unwrap_or(f64::NAN),
            row["over_empty"].as_f64().unwrap_or(f64::NAN),
            row["ratio"].as_f64().unwrap_or(f64::NAN),
        );
    }
    println!("\nratio: to the program that stores timestamp and both tgids, both over empty");
    println!(
        "reading the ring: {:.1} ns a switch, {} lost",
        probe["reader_ns_per_switch"].as_f64().unwrap_or(f64::NAN),
        probe["lost"],
    );
    let loaded = agent_under_load(bench, agent, args)?;
    let idle = agent_idle(agent, args)?;
    println!("\nagent, ebpf to delta, under load: {loaded}");
    println!("agent, whole default pipeline, idle: {idle}");
    if let Some(path) = &args.json {
        let all = serde_json::json!({ "probe": probe, "agent": loaded, "idle": idle });
        fs::write(path, serde_json::to_string_pretty(&all)?)?;
    }
    Ok(())
}

/// CPU time of the agent for each switch, from the probe to the end of `delta`.
fn agent_under_load(bench: &Path, agent: &Path, args: &Args) -> Result<Value> {
    let dir = std::env::temp_dir().join(format!("wattpipe-bench-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let (config, out) = (dir.join("config.yaml"), dir.join("out.jsonl"));
    fs::write(
        &config,
        format!(
            "sources: {{ ebpf: {{ meters: [] }} }}\nprocessors: {{ delta: {{}} }}\n\
             exporters: {{ file: {{ path: {} }} }}\n\
             service:\n  pipelines:\n    bench: {{ sources: [ebpf], processors: [delta], \
             exporters: [file] }}\n",
            out.display()
        ),
    )?;
    let mut running = start(Command::new(agent).arg("--config").arg(&config))?;
    let settle = || sleep(Duration::from_millis(2500));
    settle();
    let (before, seen) = (usage(&running)?, totals(&out)?);
    let load = Command::new(bench).args(["--load", &(10 * args.trips).to_string()]).status()?;
    ensure!(load.success(), "the load failed");
    settle();
    let (after, now) = (usage(&running)?, totals(&out)?);
    stop(&mut running)?;
    let _ = fs::remove_dir_all(&dir);
    let switches = now.0 - seen.0;
    Ok(serde_json::json!({
        "switches": switches,
        "lost": now.1 - seen.1,
        "cpu_ns_per_switch": (after.cpu_ns - before.cpu_ns) as f64 / switches as f64,
    }))
}

fn agent_idle(agent: &Path, args: &Args) -> Result<Value> {
    let mut running = start(&mut Command::new(agent))?;
    sleep(Duration::from_secs(3));
    let (before, start) = (usage(&running)?, Instant::now());
    sleep(Duration::from_secs(args.idle));
    let (after, seconds) = (usage(&running)?, start.elapsed().as_secs_f64());
    let rss = status(&running, "VmRSS:")?;
    stop(&mut running)?;
    Ok(serde_json::json!({
        "cpu_percent": (after.cpu_ns - before.cpu_ns) as f64 / 1e7 / seconds,
        "wakeups_per_s": (after.wakeups - before.wakeups) as f64 / seconds,
        "rss_kib": rss,
    }))
}

fn start(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start the agent")
}

fn stop(child: &mut Child) -> Result<()> {
    // SIGTERM, by the tool every system has: the agent drains and ends by itself.
    process::run(Command::new("kill").arg(child.id().to_string()))?;
    ensure!(child.wait()?.success(), "the agent failed");
    Ok(())
}

fn usage(child: &Child) -> Result<Usage> {
    let mut usage = Usage { cpu_ns: 0, wakeups: 0 };
    for task in fs::read_dir(format!("/proc/{}/task", child.id()))? {
        let task = task?.path();
        let schedstat = fs::read_to_string(task.join("schedstat"))?;
        let cpu = schedstat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        usage.cpu_ns += cpu.context("no schedstat")?;
        let status = fs::read_to_string(task.join("status"))?;
        usage.wakeups += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(usage)
}

fn status(child: &Child, name: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    field(&text, name).with_context(|| format!("no {name}"))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Switches and lost ones over all windows written so far.
fn totals(out: &Path) -> Result<(u64, u64)> {
    let text = fs::read_to_string(out).context("the agent has written no window")?;
    let windows = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|record| record["type"] == "window");
    Ok(windows.fold((0, 0), |(switches, lost), window| {
        (
            switches + window["switches"].as_u64().unwrap_or(0),
            lost + window["lost"].as_u64().unwrap_or(0),
        )
    }))
}
