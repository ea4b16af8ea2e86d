//! The programs that run in the guest: static, so that it needs nothing else.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{AMD64, Arch};
use crate::process::{self, cargo, output};

/// Built programs.
pub(super) struct Programs {
    /// Tests of `crates/source`.
    pub(super) source: PathBuf,
    /// Tests of the agent: what disturbs a machine, and hard use.
    pub(super) guest: PathBuf,
    pub(super) faults: PathBuf,
    /// The real binary.
    pub(super) wattpipe: PathBuf,
}

pub(super) fn programs(arch: Arch) -> Result<Programs> {
    if arch != AMD64 {
        process::run(std::process::Command::new("rustup").args(["target", "add", arch.triple]))?;
    }
    let of_source = ["--package=wattpipe-source", "--lib"];
    let of_agent = ["--package=wattpipe-agent", "--bin=wattpipe", "--test=guest", "--test=faults"];
    let messages = compile(arch, &of_source)? + &compile(arch, &of_agent)?;
    let find = |name: &str, test: bool| {
        messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|m| m["target"]["name"] == name && m["profile"]["test"] == test)
            .find_map(|m| m["executable"].as_str().map(PathBuf::from))
            .with_context(|| format!("cargo built no {name}"))
    };
    Ok(Programs {
        source: find("wattpipe_source", true)?,
        guest: find("guest", true)?,
        faults: find("faults", true)?,
        wattpipe: find("wattpipe", false)?,
    })
}

/// Builds some test programs; returns what cargo says of them.
fn compile(arch: Arch, what: &[&str]) -> Result<String> {
    let args = ["test", "--no-run", "--quiet", "--message-format=json", "--target", arch.triple];
    // A target folder of its own, so that these flags do not throw away what is built without them.
    output(
        cargo(&args)
            .args(what)
            .env("CARGO_TARGET_DIR", process::root().join("target/guest"))
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_DEV_STRIP", "symbols")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "1")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
            .env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc")
            .env("AR_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-ar"),
    )
}
