//! `cargo xtask truth-bench`: builds and runs the simulator with the real processors, optimised.
//! It is a crate of its own so that the other tasks stay quick to build.

use std::process::Command;

use anyhow::{Context, bail};

/// What is handed on.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which run: the same seed gives the same table for ever.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this scenario.
    #[arg(long)]
    scenario: Option<u32>,
    /// Also write each scenario as a recording, with its truth beside it.
    #[arg(long)]
    record: Option<std::path::PathBuf>,
    /// The idle baseline in kinds of load, instead of shares.
    #[arg(long)]
    idle: bool,
}

/// Runs it; fails where a target is missed.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--release", "--quiet", "--package", "truth-bench", "--"]);
    if let Some(seed) = args.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    if let Some(scenario) = args.scenario {
        command.arg("--scenario").arg(scenario.to_string());
    }
    if let Some(dir) = &args.record {
        command.arg("--record").arg(dir);
    }
    if args.idle {
        command.arg("--idle");
    }
    if !command.status().context("cannot run cargo")?.success() {
        bail!("a target was missed: see the table");
    }
    Ok(())
}
