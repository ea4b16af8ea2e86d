//! `cargo xtask examples`: every example, and every configuration that `deploy/` ships, is valid and
//! runs for two windows. What a run prints is not judged here, only that windows come out and that
//! SIGTERM ends it with 0.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{as_root, cargo, output, root, run};

/// Longest time that two windows (of a second) may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Configurations besides `examples/*.yaml`.
const DEPLOYED: &[&str] = &[
    "config/default.yaml",
    "deploy/systemd/wattpipe.yaml",
    "deploy/kubernetes/wattpipe.yaml",
    "deploy/compose/wattpipe.yaml",
];

pub(crate) fn examples() -> Result<()> {
    run(&mut cargo(&["build", "--quiet", "-p", "wattpipe-agent"]))?;
    let binary = binary(&root(), "wattpipe");
    let out = std::env::temp_dir().join(format!("wattpipe-examples-{}", std::process::id()));
    fs::create_dir_all(&out)?;
    let mut files: Vec<PathBuf> = fs::read_dir(root().join("examples"))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    files.extend(DEPLOYED.iter().map(|file| root().join(file)));
    let mut failed = Vec::new();
    for file in &files {
        let name = file.strip_prefix(root()).unwrap_or(file).display().to_string();
        match example(&binary, file, &out) {
            Ok(windows) => println!("ok    {name}: {windows} windows"),
            Err(error) => {
                println!("FAIL  {name}: {error:#}");
                failed.push(name);
            }
        }
    }
    let recording = out.join("wattpipe.recording.jsonl");
    let replayed = windows(
        Command::new(&binary)
            .arg("run")
            .args(["--config", "examples/replay.yaml"])
            .env("RECORDING", &recording),
    );
    match replayed {
        Ok(windows) => println!("ok    what record.yaml wrote, replayed: {windows} windows"),
        Err(error) => failed.push(format!("replaying what record.yaml wrote: {error:#}")),
    }
    let _ = as_root("rm").arg("-r").arg(&out).status();
    ensure!(failed.is_empty(), "{} of {}: {}", failed.len(), files.len(), failed.join(", "));
    custom_processor()
}

/// The stranger's crate: its tests, and that its agent knows its components.
fn custom_processor() -> Result<()> {
    let dir = root().join("examples/custom-processor");
    // `--locked`: what cargo would change in its lock file is to be committed.
    for args in [&["test", "--quiet", "--locked"][..], &["build", "--quiet", "--locked"]] {
        run(cargo(args).current_dir(&dir).env("CARGO_TARGET_DIR", target()))?;
    }
    let agent = binary(&dir, "custom-processor");
    let listed = output(Command::new(&agent).arg("components"))?;
    ensure!(
        listed.contains("name: price") && listed.contains("name: bill"),
        "`custom-processor components` does not list `price` and `bill`"
    );
    let schema = output(Command::new(&agent).arg("schema"))?;
    ensure!(schema.contains("day_hours"), "the schema lacks the keys of `price`");
    run(Command::new(&agent).args(["validate", "--config"]).arg(dir.join("bill.yaml")))?;
    let refused = Command::new(&agent)
        .args(["validate", "--set", "processors.price.nigth=1", "--config"])
        .arg(dir.join("bill.yaml"))
        .output()?;
    let message = String::from_utf8_lossy(&refused.stderr);
    ensure!(
        refused.status.code() == Some(2) && message.contains("did you mean `night`?"),
        "a typo in `price` is not reported: {message}"
    );
    println!("ok    examples/custom-processor");
    Ok(())
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn binary(_package: &Path, name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// Validates `file` and runs it; the number of windows that came out.
fn example(binary: &Path, file: &Path, out: &Path) -> Result<usize> {
    run(Command::new(binary)
        .arg("validate")
        .arg("--config")
        .arg(file)
        .stdout(Stdio::null())
        .current_dir(root()))?;
    let text = output(
        Command::new(binary).arg("print-config").arg("--config").arg(file).current_dir(root()),
    )?;
    let config: Value = serde_yaml::from_str(&text).context("print-config does not print YAML")?;
    let mut command = as_root(binary);
    command.arg("run").arg("--config").arg(file).env("OUT", out);
    for set in overrides(&config) {
        command.arg("--set").arg(set);
    }
    windows(&mut command)
}

/// What a test run changes: windows of a second, this host's own file systems, a short drain, and
/// one exporter more at the end of each pipeline, by which windows are counted.
fn overrides(config: &Value) -> Vec<String> {
    let mut sets = vec!["service.shutdown_timeout=2s".to_owned()];
    let keys = |map: &Value| -> Vec<String> {
        map.as_object().map(|m| m.keys().cloned().collect()).unwrap_or_default()
    };
    if !Path::new("/host/proc").exists() {
        sets.push("host={procfs: /proc, sysfs: /sys, cgroupfs: /sys/fs/cgroup}".to_owned());
    }
    for id in keys(&config["sources"]) {
        if config["sources"][&id].get("window").is_some() {
            sets.push(format!("sources.{id}.window=1s"));
        }
    }
    for id in keys(&config["processors"]) {
        if id.starts_with("aggregate") {
            sets.push(format!("processors.{id}.interval=2s"));
        }
    }
    sets.push("exporters.stdout/windows.format=json".to_owned());
    for id in keys(&config["service"]["pipelines"]) {
        let pipeline = &config["service"]["pipelines"][&id];
        let list = |key: &str| -> Vec<&str> {
            pipeline[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        // A pipeline without processors hands on raw switches, which stdout does not take.
        if !list("processors").is_empty() {
            let mut exporters = list("exporters");
            exporters.push("stdout/windows");
            sets.push(format!("service.pipelines.{id}.exporters=[{}]", exporters.join(", ")));
        }
    }
    sets
}

/// Runs until two windows came out or the output ends; then it must end with 0.
fn windows(command: &mut Command) -> Result<usize> {
    let mut child = command
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let (tx, rx) = mpsc::channel();
    let stdout = child.stdout.take().context("no standard output")?;
    let reader = thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.starts_with("{\"type\":\"window\"") && tx.send(()).is_err() {
                // Enough was seen; what else comes is read so that the writer does not wait.
            }
        }
    });
    let mut stderr = child.stderr.take().context("no standard error")?;
    let log = thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let mut seen = 0;
    while seen < 2 && rx.recv_timeout(PATIENCE).is_ok() {
        seen += 1;
    }
    let status = stop(&mut child)?;
    let _ = reader.join();
    let log = log.join().unwrap_or_default();
    ensure!(seen == 2, "{seen} windows came out; {status}\n{log}");
    ensure!(status.success(), "{status}\n{log}");
    Ok(seen)
}

fn stop(child: &mut Child) -> Result<std::process::ExitStatus> {
    if child.try_wait()?.is_none() {
        as_root("kill").args(["-TERM", &child.id().to_string()]).status()?;
    }
    Ok(child.wait()?)
}
