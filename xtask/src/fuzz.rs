//! `cargo xtask fuzz --seconds N`: every fuzz target for that long, with the pinned toolchain.
//!
//! The compiler's coverage counters are switched on by codegen options that stable Rust has; what
//! needs nightly is the address sanitizer, and there is `cargo +nightly fuzz` for that. What a target
//! has found interesting stays in `fuzz/corpus`; what made it fail is in `fuzz/artifacts`.

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;

use crate::process::{cargo, root, run};

/// How long, and what.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these targets.
    targets: Vec<String>,
}

/// Edge coverage with counters, and comparisons, as libFuzzer reads them.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions \
                     -Coverflow-checks -Ccodegen-units=1 -Clto=off";
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn fuzz(args: &Args) -> Result<()> {
    let dir = root().join("fuzz");
    let mut targets: Vec<String> = fs::read_dir(dir.join("fuzz_targets"))?
        .flatten()
        .filter_map(|entry| Some(entry.path().file_stem()?.to_string_lossy().into_owned()))
        .filter(|name| args.targets.is_empty() || args.targets.contains(name))
        .collect();
    targets.sort();
    if targets.is_empty() {
        bail!("no such target in {}", dir.join("fuzz_targets").display());
    }
    let mut failed = Vec::new();
    for target in targets {
        println!("== {target}, {} s", args.seconds);
        run(cargo(&["build", "--release", "--quiet", "--target", TRIPLE, "--bin", &target])
            .arg("--manifest-path")
            .arg(dir.join("Cargo.toml"))
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", dir.join("target")))?;
        let corpus = dir.join("corpus").join(&target);
        let artifacts = dir.join("artifacts").join(&target);
        fs::create_dir_all(&corpus).with_context(|| format!("creating {}", corpus.display()))?;
        fs::create_dir_all(&artifacts)?;
        let mut command =
            Command::new(dir.join("target").join(TRIPLE).join("release").join(&target));
        command
            .arg(format!("-max_total_time={}", args.seconds))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"])
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(corpus);
        let seeds = dir.join("seeds").join(&target);
        let seeds =
            if target == "config" { root().join("crates/agent/tests/golden") } else { seeds };
        if seeds.exists() {
            command.arg(seeds);
        }
        if run(&mut command).is_err() {
            failed.push(target);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}
