//! `cargo xtask bench`: everything that is said of wattpipe's speed, measured anew.
//!
//! | part | what | needs root |
//! |---|---|---|
//! | `stages` | switches from memory through `delta` and through the whole chain, scaling | no |
//! | `probe` | ns a run of the kernel programs (`bench-probe`) | yes |
//! | `whole` | wall time of a machine full of switches, and wakeup latency, with and without | yes |
//! | `load` | CPU time, memory and series of the agent under five loads | yes |
//! | `agent` | memory at 500 and 10,000 processes, binary, time to the first record | yes |
//!
//! Results are kept as JSON in `target/bench`, one file a part; `docs/performance.md` shows them.

mod agent;
mod load;
mod page;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};

use crate::process::{self, as_root, cargo, output, root};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Stages,
    Probe,
    Whole,
    Load,
    Agent,
}

/// Which parts.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Only these parts.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Interleaved rounds of the whole-machine part.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Only write the page, from the results there are.
    #[arg(long)]
    page: bool,
    /// Measure the agent's size, as root (used by the task itself).
    #[arg(long, hide = true)]
    measure_agent: Option<PathBuf>,
    /// Measure the agent under load, as root (used by the task itself).
    #[arg(long, hide = true)]
    measure_load: Option<PathBuf>,
    /// Be one of many processes that wake after so many milliseconds (used by the task itself).
    #[arg(long, hide = true)]
    sleeper: Option<u64>,
}

fn results() -> Result<PathBuf> {
    let dir = root().join("target/bench");
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

pub(crate) fn bench(args: &Args) -> Result<()> {
    if let Some(every) = args.sleeper {
        agent::sleeper(Duration::from_millis(every));
    }
    if let Some(path) = &args.measure_agent {
        println!("{}", agent::measure(path)?);
        return Ok(());
    }
    if let Some(path) = &args.measure_load {
        println!("{}", load::measure(path)?);
        return Ok(());
    }
    let dir = results()?;
    if !args.page {
        process::run(&mut cargo(&["build", "--release", "--package", "wattpipe-agent"]))?;
        for part in [Part::Stages, Part::Probe, Part::Whole, Part::Load, Part::Agent] {
            if !args.only.is_empty() && !args.only.contains(&part) {
                continue;
            }
            let name = format!("{part:?}").to_lowercase();
            println!("== {name}");
            let value = measure(part, args).with_context(|| format!("the part {name}"))?;
            let text = serde_json::to_string_pretty(&value)?;
            println!("{text}");
            fs::write(dir.join(format!("{name}.json")), text)?;
        }
    }
    page::write(&root(), &dir)
}

fn measure(part: Part, args: &Args) -> Result<Value> {
    let agent = root().join("target/release/wattpipe");
    match part {
        Part::Stages => stages(),
        Part::Probe => {
            let path = results()?.join("probe.json");
            let mut again = as_root(std::env::current_exe()?);
            process::run(again.arg("bench-probe").arg("--json").arg(&path))?;
            Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
        }
        Part::Whole => {
            let bench = program("wattpipe-source", "whole", &["--features=bench"])?;
            let rounds = args.rounds.to_string();
            let text =
                output(as_root(bench).arg("--agent").arg(agent).args(["--rounds", &rounds]))?;
            Ok(serde_json::from_str(text.trim())?)
        }
        Part::Load => again_as_root("--measure-load", &agent),
        Part::Agent => again_as_root("--measure-agent", &agent),
    }
}

/// This program once more, as root; it prints JSON.
fn again_as_root(option: &str, agent: &Path) -> Result<Value> {
    let mut again = as_root(std::env::current_exe()?);
    let text = output(again.args(["bench", option]).arg(agent))?;
    Ok(serde_json::from_str(text.trim())?)
}

/// `delta` alone prints a table of its own; the chain prints JSON lines.
fn stages() -> Result<Value> {
    let delta =
        output(&mut std::process::Command::new(program("wattpipe-processors", "delta", &[])?))?;
    let rows = delta.lines().skip(1).filter_map(|line| {
        let mut words = line.rsplitn(3, char::is_whitespace).filter(|w| !w.is_empty());
        let rate: f64 = words.next()?.trim().parse().ok()?;
        let name = line.split("  ").next()?.trim();
        Some(json!({ "case": name, "million_switches_per_second": rate, "ns_per_switch": 1e3 / rate }))
    });
    let chain =
        output(&mut std::process::Command::new(program("wattpipe-agent", "pipeline", &[])?))?;
    let cases: Vec<Value> = chain.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(json!({ "delta": rows.collect::<Vec<_>>(), "chain": cases }))
}

/// Builds a benchmark and tells where it is.
fn program(package: &str, bench: &str, more: &[&str]) -> Result<PathBuf> {
    let package = format!("--package={package}");
    let target = format!("--bench={bench}");
    let mut args = vec!["bench", "--quiet", "--no-run", "--message-format=json", &package, &target];
    args.extend(more);
    output(&mut cargo(&args))?
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|m| m["target"]["name"] == bench)
        .find_map(|m| m["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no benchmark {bench}"))
}
