//! Prometheus: scraping us, receiving OTLP, and its `promtool`.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::world::{Program, get};

/// A series with its last value.
pub(super) struct Labelled {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// Starts it, scraping `scrape` every half second.
pub(super) fn start(program: &Path, port: u16, scrape: u16, run: &Path) -> Result<Program> {
    let config = run.join("prometheus.yaml");
    fs::write(
        &config,
        format!(
            "global: {{ scrape_interval: 500ms }}\nscrape_configs:\n  - job_name: scrape\n    static_configs: [{{ targets: [\"127.0.0.1:{scrape}\"] }}]\n"
        ),
    )?;
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", run.join("prometheus-data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--web.enable-otlp-receiver");
    Program::start(&mut command, "prometheus", run)
}

/// Whether promtool finds nothing to say about a page.
pub(super) fn promtool(program: &Path, page: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no stdin")?.write_all(page.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.trim().is_empty(), "{said}");
    ensure!(page.contains("process_cpu_time_seconds_total{"), "the page is empty");
    Ok(())
}

/// The last value of each of our series, however old: `job` is `scrape`, or `otlp` for those that
/// came over OTLP (whose job is the service's name).
pub(super) fn values(port: u16, job: &str) -> Result<Vec<Labelled>> {
    let job = if job == "otlp" { "wattpipe" } else { job };
    let query = format!("last_over_time({{job=\"{job}\"}}[10m])");
    let path = format!("/api/v1/query?query={}", encoded(&query));
    let answer: Value = serde_json::from_str(&get(port, &path, "application/json")?)?;
    let result = answer["data"]["result"].as_array().context("no result")?;
    let mut series = Vec::new();
    for one in result {
        let labels: BTreeMap<String, String> =
            serde_json::from_value(one["metric"].clone()).context("labels")?;
        let value = one["value"][1].as_str().and_then(|v| v.parse().ok()).context("value")?;
        let name = labels.get("__name__").cloned().unwrap_or_default();
        series.push(Labelled { name, labels, value });
    }
    Ok(series)
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") }
        })
        .collect()
}
