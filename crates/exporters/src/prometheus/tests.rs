//! The page, to the letter, and over HTTP.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wattpipe_pipeline::{identity::attr, units::ConfigDuration};

use super::*;
use crate::testing::{Usage, zone};

const S: u64 = 1_000_000_000;

fn build(config: PrometheusConfig) -> PrometheusExporter {
    let context = BuildContext { id: "prometheus".into(), ..BuildContext::default() };
    PrometheusExporter::build(config, &context).unwrap()
}

fn window() -> Usage {
    in_window(Usage::window(0, S))
}

fn in_window(usage: Usage) -> Usage {
    usage
        .zone(zone("package-0", "rapl"), 8.0, 2.0)
        .process(7, "a\"\\\n", 500, S / 4)
        .attribute(attr::CONTAINER_ID, "c0ffee")
        .attribute(attr::PROCESS_OWNER, "root")
        .energy(0, 6.0, 0.5)
}

/// A page on which one sample names a label twice is refused as a whole.
#[tokio::test]
async fn names_that_become_one_label_are_told_once() {
    let convert =
        PrometheusConfig { resource_to_telemetry_conversion: true, ..PrometheusConfig::default() };
    let mut exporter = build(convert);
    let usage = Usage::window(0, S)
        .process(7, "a", 500, S / 4)
        .attribute("k8s.pod.label.app.kubernetes.io/name", "one")
        .attribute("k8s.pod.label.app_kubernetes_io_name", "two")
        .attribute("k8s.pod.label.name", "label_app_kubernetes_io_name=");
    exporter.export(usage.batch()).await.unwrap();
    let page = exporter.page(false);
    assert_eq!(page.matches("k8s_pod_label_app_kubernetes_io_name=\"one\"").count(), 2);
    assert!(!page.contains("two"), "{page}");
    assert!(page.contains("k8s_pod_label_name="), "{page}");
}

#[tokio::test]
async fn classic_text() {
    let mut exporter = build(PrometheusConfig::default());
    exporter.export(window().batch()).await.unwrap();
    let process = r#"container_id="c0ffee",process_creation_time="2026-09-21T14:13:20.000000500Z",process_executable_name="a\"\\\n",process_pid="7""#;
    let expected = format!(
        r#"# HELP hw_energy_joules_total Energy of a zone.
# TYPE hw_energy_joules_total counter
hw_energy_joules_total{{hw_id="package-0",hw_type="cpu"}} 8
# HELP wattpipe_energy_unattributed_joules_total Energy of a zone that no workload is known for.
# TYPE wattpipe_energy_unattributed_joules_total counter
wattpipe_energy_unattributed_joules_total{{energy_zone="package-0",hw_type="cpu"}} 0
# HELP process_cpu_time_seconds_total CPU time of a process.
# TYPE process_cpu_time_seconds_total counter
process_cpu_time_seconds_total{{{process}}} 0.25
# HELP process_context_switches_total Switches away from a process.
# TYPE process_context_switches_total counter
process_context_switches_total{{{process}}} 1
# HELP process_energy_joules_total Energy of a process.
# TYPE process_energy_joules_total counter
process_energy_joules_total{{{process},energy_zone="package-0",hw_type="cpu",energy_mode="active"}} 6
process_energy_joules_total{{{process},energy_zone="package-0",hw_type="cpu",energy_mode="idle"}} 0.5
# HELP container_cpu_time_seconds_total CPU time of a container.
# TYPE container_cpu_time_seconds_total counter
container_cpu_time_seconds_total{{container_id="c0ffee"}} 0.25
# HELP container_energy_joules_total Energy of a container.
# TYPE container_energy_joules_total counter
container_energy_joules_total{{container_id="c0ffee",energy_zone="package-0",hw_type="cpu",energy_mode="active"}} 6
container_energy_joules_total{{container_id="c0ffee",energy_zone="package-0",hw_type="cpu",energy_mode="idle"}} 0.5
"#
    );
    let got = exporter.page(false);
    assert_eq!(got, expected, "\n{got}");
}

#[tokio::test]
async fn open_metrics() {
    let mut exporter = build(PrometheusConfig::default());
    exporter.export(window().batch()).await.unwrap();
    let page = exporter.page(true);
    let head = r#"# HELP hw_energy_joules Energy of a zone.
# TYPE hw_energy_joules counter
# UNIT hw_energy_joules joules
hw_energy_joules_total{hw_id="package-0",hw_type="cpu"} 8
hw_energy_joules_created{hw_id="package-0",hw_type="cpu"} 1790000000.000
"#;
    assert!(page.starts_with(head), "{page}");
    assert!(page.ends_with("# EOF\n"));
    assert!(!page.contains("# UNIT process_context_switches"));
}

#[tokio::test]
async fn ended_workloads_stay_for_the_expiration_and_no_longer() {
    let config = PrometheusConfig {
        metric_expiration: ConfigDuration::from_secs(90),
        ..PrometheusConfig::default()
    };
    let mut exporter = build(config);
    exporter.export(window().batch()).await.unwrap();
    exporter.export(in_window(Usage::window(S, 2 * S)).exited().batch()).await.unwrap();
    for (second, visible) in [(3, true), (91, true), (92, false)] {
        exporter.export(Usage::window(second * S - 1, second * S + 1).batch()).await.unwrap();
        let page = exporter.page(false);
        assert_eq!(page.contains("process_cpu_time_seconds_total{"), visible, "{second}");
        assert_eq!(page.contains("container_cpu_time_seconds_total{"), visible, "{second}");
        assert!(page.contains("hw_energy_joules_total"));
    }
}

#[tokio::test]
async fn what_no_source_sees_has_no_sample() {
    let mut exporter = build(PrometheusConfig::default());
    exporter.export(window().without_switches().batch()).await.unwrap();
    let page = exporter.page(false);
    assert!(page.contains("process_cpu_time_seconds_total{"), "{page}");
    assert!(!page.contains("context_switches"), "{page}");
}

#[tokio::test]
async fn all_attributes_become_labels_where_asked_for() {
    let config =
        PrometheusConfig { resource_to_telemetry_conversion: true, ..PrometheusConfig::default() };
    let mut exporter = build(config);
    exporter.export(window().batch()).await.unwrap();
    assert!(exporter.page(false).contains(r#"process_owner="root""#));
}

#[tokio::test]
async fn scrapes_over_http() {
    // Bound and not listening: nobody else is given the port meanwhile.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.set_reuseaddr(true).unwrap();
    held.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let endpoint = held.local_addr().unwrap().to_string();
    let mut exporter =
        build(PrometheusConfig { endpoint: endpoint.clone(), ..PrometheusConfig::default() });
    exporter.start().await.unwrap();
    exporter.export(window().batch()).await.unwrap();
    let open_metrics = "application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";
    let sample = "hw_energy_joules_total{";
    for (path, accept, kind, body) in [
        ("/metrics", "text/plain", "text/plain; version=0.0.4", sample),
        ("/metrics", open_metrics, "application/openmetrics", sample),
        ("/", "text/html", "text/plain", "metrics are at /metrics\n"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(&endpoint).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(kind), "{answer}");
        assert!(answer.contains(body), "{answer}");
    }
    // A taken port is an error with a remedy.
    let mut second = build(PrometheusConfig { endpoint, ..PrometheusConfig::default() });
    let error = second.start().await.unwrap_err().to_string();
    assert!(error.contains("choose another"), "{error}");
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
}
