//! `cargo xtask test`: every test there is, on a fresh Debian or Ubuntu with Rust. The tests that
//! need the kernel are marked `#[ignore]` so that plain `cargo test` needs no rights; here they
//! run as root, and fail where they cannot.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde_json::Value;

use crate::{
    deploy, e2e, ebpf, examples, links,
    process::{self, as_root, cargo, output},
    test_kernel,
};

/// Debian packages that the privileged tests use.
const PACKAGES: &[&str] =
    &["busybox-static", "crun", "podman", "python3-venv", "runc", "util-linux"];

/// Which tests.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Only what needs no privileges and installs nothing.
    #[arg(long)]
    unprivileged: bool,
}

/// A test program that cargo has built.
struct TestProgram {
    name: String,
    package_dir: String,
    path: String,
}

pub(crate) fn check() -> Result<()> {
    process::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    process::run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))
}

/// A part of the tests, by name.
type Step = (&'static str, fn() -> Result<()>);

/// What needs no privileges.
const AS_USER: &[Step] = &[
    ("unit and property tests", || process::run(&mut cargo(&["test", "--workspace", "--quiet"]))),
    ("documents: links and commands", links::links),
];

/// What needs the kernel, root, or other people's programs.
const PRIVILEGED: &[Step] = &[
    ("packages", || install(PACKAGES)),
    ("tests on the running kernel", kernel_tests),
    ("the committed eBPF object", || ebpf::ebpf(&ebpf::Args { install: true, check: true })),
    ("examples", examples::examples),
    ("foreign receivers", e2e::e2e),
    ("deployment files", deploy::deploy),
    ("real kernels in QEMU, short set", test_kernel::short),
];

/// Runs every step, also after one has failed, and closes with a line that counts them.
pub(crate) fn test(args: &Args) -> Result<()> {
    let privileged = if args.unprivileged { &[] } else { PRIVILEGED };
    let mut report = Vec::new();
    let mut failed = Vec::new();
    for (name, step) in AS_USER.iter().chain(privileged) {
        println!("\n== {name}");
        let begun = Instant::now();
        let result = step();
        let seconds = begun.elapsed().as_secs();
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        report.push(format!("{word:<6} {seconds:>5} s  {name}"));
        if let Err(error) = result {
            eprintln!("{name}: {error:#}");
            failed.push(*name);
        }
    }
    println!("\n{}", report.join("\n"));
    println!("{} passed, {} failed", report.len() - failed.len(), failed.len());
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join("; ")) }
}

/// Installs Debian packages that are not there yet.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&&str> = packages
        .iter()
        .filter(|p| output(std::process::Command::new("dpkg-query").args(["-W", p])).is_err())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let _ = process::run(as_root("apt-get").args(["-qq", "update"]));
    process::run(
        as_root("apt-get").args(["install", "-y", "-qq", "--no-install-recommends"]).args(missing),
    )
}

/// The ignored tests of all test programs, as root, one program after the other: they measure
/// the same kernel.
fn kernel_tests() -> Result<()> {
    let mut failed = Vec::new();
    let mut ran = 0;
    for program in test_programs()? {
        let list = output(std::process::Command::new(&program.path).args([
            "--ignored",
            "--list",
            "--format=terse",
        ]))?;
        if !list.lines().any(|l| l.ends_with(": test")) {
            continue;
        }
        println!("\nprivileged tests of {}", program.name);
        ran += 1;
        let done = process::run(
            as_root(&program.path)
                .args(["--ignored", "--test-threads=1"])
                .current_dir(&program.package_dir),
        );
        if let Err(error) = done {
            failed.push(format!("{error:#}"));
        }
    }
    if ran == 0 {
        bail!("no privileged tests were found: they cannot have passed");
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

fn test_programs() -> Result<Vec<TestProgram>> {
    let messages = output(&mut cargo(&[
        "test",
        "--workspace",
        "--no-run",
        "--message-format=json",
        "--quiet",
    ]))?;
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)?;
        let (Some(path), true) = (
            message["executable"].as_str(),
            message["profile"]["test"].as_bool().unwrap_or_default(),
        ) else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().unwrap_or_default();
        programs.push(TestProgram {
            name: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
            package_dir: manifest.trim_end_matches("/Cargo.toml").to_owned(),
            path: path.to_owned(),
        });
    }
    Ok(programs)
}
