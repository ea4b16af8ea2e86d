//! Every query of `deploy/prometheus/*.yaml` and `deploy/grafana/*.json` is run by a real Prometheus.
//! It holds what three agents gave: one on this kernel, scraped; one that replays a pod and a
//! container, scraped; one on this kernel through a Collector and Prometheus' OTLP receiver.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Tools, agent};
use crate::{
    e2e::world::{patiently, port},
    process::{as_root, root},
};

/// What a query's first answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Alerts that must not fire here are queries that find nothing.
const MAY_BE_EMPTY: &[&str] = &["up{", "> 0", "> 1", "wattpipe_exporter_queue"];

/// Programs that run beside the test; they end with it.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = as_root("kill").args(["-TERM", &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }
}

impl Running {
    fn start(&mut self, command: &mut Command, log: PathBuf) -> Result<()> {
        let log = fs::File::create(log)?;
        let name = command.get_program().display().to_string();
        let child = command
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        self.0.push(child);
        Ok(())
    }
}

pub(super) fn answer(tools: &Tools) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("wattpipe-queries-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let [page, own, health, replayed, otlp, prometheus] =
        [port()?, port()?, port()?, port()?, port()?, port()?];
    let mut running = Running(Vec::new());

    let mut scraped = as_root(agent());
    scraped.args(["run", "--config", "examples/prometheus.yaml"]);
    for set in [
        "sources.ebpf.window=1s".to_owned(),
        format!("exporters.prometheus.endpoint=127.0.0.1:{page}"),
        format!("extensions.health_check.endpoint=127.0.0.1:{health}"),
        format!("service.telemetry.metrics.endpoint=127.0.0.1:{own}"),
        format!("exporters.otlp_grpc={{endpoint: '127.0.0.1:{otlp}', tls: {{insecure: true}}}}"),
        "service.pipelines.energy.exporters=[prometheus, otlp_grpc]".to_owned(),
    ] {
        scraped.arg("--set").arg(set);
    }
    running.start(&mut scraped, dir.join("agent.log"))?;

    fs::write(dir.join("pod.recording.jsonl"), recording(600))?;
    fs::write(dir.join("replay.yaml"), replay(&dir, replayed))?;
    running.start(
        Command::new(agent()).arg("run").arg("--config").arg(dir.join("replay.yaml")),
        dir.join("replay.log"),
    )?;

    let collector = fs::read_to_string(root().join("deploy/compose/collector.yaml"))?
        .replace("0.0.0.0:4317", &format!("127.0.0.1:{otlp}"))
        .replace("prometheus:9090", &format!("127.0.0.1:{prometheus}"));
    fs::write(dir.join("collector.yaml"), collector)?;
    running.start(
        Command::new(&tools.otelcol).arg("--config").arg(dir.join("collector.yaml")),
        dir.join("collector.log"),
    )?;

    fs::write(dir.join("prometheus.yaml"), prometheus_config(&[page, replayed], own)?)?;
    running.start(
        Command::new(&tools.prometheus)
            .arg(format!("--config.file={}", dir.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{prometheus}"))
            .arg("--web.enable-otlp-receiver"),
        dir.join("prometheus.log"),
    )?;

    let server = format!("http://127.0.0.1:{prometheus}");
    let ask = |query: &str| -> Result<String> {
        let answer =
            Command::new(&tools.promtool).args(["query", "instant", &server, query]).output()?;
        ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    };
    // Rules and rates need some evaluations first.
    thread::sleep(Duration::from_secs(30));
    let mut failed = Vec::new();
    let queries = queries()?;
    for (place, query) in &queries {
        let may_be_empty = MAY_BE_EMPTY.iter().any(|part| query.contains(part));
        let outcome = patiently(PATIENCE, || {
            ensure!(!ask(query)?.is_empty() || may_be_empty, "nothing answers");
            Ok(())
        });
        if let Err(error) = outcome {
            failed.push(format!("{place}: {error:#}\n  {query}"));
        }
    }
    // What came by OTLP has no scraped page's instance, but the same names and labels.
    for query in [
        "process_energy_joules_total{instance!~\"127.0.0.1:.*\", process_pid!=\"\", \
         process_executable_name!=\"\", energy_zone!=\"\", energy_mode=\"active\"}",
        "hw_energy_joules_total{instance!~\"127.0.0.1:.*\", hw_id!=\"\", hw_type!=\"\"}",
    ] {
        let came = patiently(PATIENCE, || {
            ensure!(!ask(&format!("count({query})"))?.is_empty(), "nothing came by OTLP");
            Ok(())
        });
        if let Err(error) = came {
            failed.push(format!("{error:#}: {query}"));
        }
    }
    drop(running);
    ensure!(failed.is_empty(), "see the logs in {}\n{}", dir.display(), failed.join("\n"));
    fs::remove_dir_all(&dir)?;
    println!("ok    {} queries answered by Prometheus", queries.len());
    Ok(())
}

/// Queries with the place they stand at; the dashboard's variables are set to everything.
fn queries() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for file in ["rules.yaml", "alerts.yaml"] {
        let text = fs::read_to_string(root().join("deploy/prometheus").join(file))?;
        let rules: Value = serde_yaml::from_str(&text)?;
        for rule in rules["groups"].as_array().into_iter().flatten() {
            for rule in rule["rules"].as_array().into_iter().flatten() {
                let name = rule["record"].as_str().or(rule["alert"].as_str()).unwrap_or_default();
                let query = rule["expr"].as_str().context("a rule without `expr`")?;
                found.push((format!("{file}: {name}"), query.to_owned()));
            }
        }
    }
    let text = fs::read_to_string(root().join("deploy/grafana/wattpipe.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        for query in panel["targets"].as_array().into_iter().flatten() {
            let query = query["expr"].as_str().context("a panel without `expr`")?;
            let query =
                query.replace("$job", ".*").replace("$instance", ".*").replace("$__range", "2m");
            ensure!(!query.contains('$'), "an unknown variable in {query}");
            found.push((format!("dashboard: {}", panel["title"]), query));
        }
    }
    Ok(found)
}

/// As `deploy/compose/prometheus.yaml` for OTLP, and as `deploy/prometheus/prometheus.yaml` for pages.
fn prometheus_config(pages: &[u16], own: u16) -> Result<String> {
    let compose = fs::read_to_string(root().join("deploy/compose/prometheus.yaml"))?;
    let compose: Value = serde_yaml::from_str(&compose)?;
    let rules = root().join("deploy/prometheus");
    let pages: Vec<Value> = pages
        .iter()
        .map(|port| serde_json::json!({ "targets": [format!("127.0.0.1:{port}")] }))
        .collect();
    let config = serde_json::json!({
        "global": { "scrape_interval": "1s", "evaluation_interval": "2s" },
        "rule_files": [rules.join("rules.yaml"), rules.join("alerts.yaml")],
        "otlp": compose["otlp"],
        "storage": compose["storage"],
        "scrape_configs": [
            { "job_name": "wattpipe", "static_configs": pages },
            { "job_name": "wattpipe-self",
              "static_configs": [{ "targets": [format!("127.0.0.1:{own}")] }] },
        ],
    });
    Ok(serde_yaml::to_string(&config)?)
}

fn replay(dir: &Path, port: u16) -> String {
    format!(
        "sources:\n  replay: {{ path: '{}', speed: 1 }}\n\
         processors: {{ delta: , attribution: , power_model: }}\n\
         exporters:\n  prometheus: {{ endpoint: '127.0.0.1:{port}' }}\n\
         service:\n  pipelines:\n    pods:\n      sources: [replay]\n      \
         processors: [delta, attribution, power_model]\n      exporters: [prometheus]\n",
        dir.join("pod.recording.jsonl").display()
    )
}

/// `seconds` in which a pod's container runs half of the time at 20 W.
fn recording(seconds: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let pod = "kubepods-burstable-pod0f9b2a5e_1111_2222_3333_444455556666.slice";
    let container =
        "cri-containerd-4c01db0b339c4c01db0b339c4c01db0b339c4c01db0b339c4c01db0b339c4c01";
    let mut out = String::new();
    let _ = writeln!(
        out,
        r#"{{"type":"topology","cpus":[{{"cpu":0,"package":0,"core":0}}],"boot_unix_ns":1790000000000000000}}"#
    );
    let _ = writeln!(
        out,
        r#"{{"type":"process","ts":{SECOND},"event":"snapshot","pid":100,"start_time":1,"ppid":1,"comm":"web","kind":"user","cgroup":"/kubepods.slice/kubepods-burstable.slice/{pod}/{container}.scope"}}"#
    );
    for i in 1..=seconds {
        let edge = i * SECOND;
        let lines = [
            format!(
                r#"{{"type":"switch","ts":{},"cpu":0,"prev":0,"next":100}}"#,
                edge - SECOND / 2
            ),
            format!(r#"{{"type":"switch","ts":{},"cpu":0,"prev":100,"next":0}}"#, edge - 1),
            format!(
                r#"{{"type":"meter","ts":{edge},"zone":"package-0","hw_type":"cpu","package":0,"energy_uj":{}}}"#,
                i * 20_000_000
            ),
            format!(r#"{{"type":"window","ts":{edge}}}"#),
        ];
        for line in lines {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}
