//! A running agent: signals, reload, health, own metrics. No privileges are needed.
#![expect(clippy::unwrap_used, reason = "a test's own files and processes")]

#[path = "support/binary.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]
mod binary;

use binary::{ConfigFile, FreeAddress, Running};
use nix::sys::signal::Signal;

fn config(window: &str, extra: &str) -> String {
    format!(
        "sources: {{ procfs: {{ window: {window} }} }}
exporters: {{ stdout: {{ format: json }} }}
service: {{ {extra} pipelines: {{ a: {{ sources: [procfs], exporters: [stdout] }} }} }}
"
    )
}

#[test]
fn both_signals_drain_and_exit_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let file = ConfigFile::new(&config("50ms", ""));
        let agent = Running::with_config(&file);
        agent.wait_for_windows(2);
        agent.signal(signal);
        let (code, log) = agent.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains(signal.as_str()) && !log.contains("WARN"), "{log}");
    }
}

#[test]
fn one_signal_sent_twice_is_one() {
    // `timeout` signals the process and then its group.
    let file = ConfigFile::new(&config("50ms", ""));
    let agent = Running::with_config(&file);
    agent.wait_for_windows(2);
    agent.signal(Signal::SIGINT);
    agent.signal(Signal::SIGINT);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_reload_applies_and_a_bad_one_changes_nothing() {
    let file = ConfigFile::new(&config("50ms", ""));
    let agent = Running::with_config(&file);
    agent.wait_for_windows(2);

    agent.signal(Signal::SIGHUP);
    agent.wait_until("reload", |a| a.log().contains("reloaded: nothing changed"));

    file.write(&config("60ms", ""));
    agent.signal(Signal::SIGHUP);
    agent.wait_until("reload", |a| a.log().contains("reloaded: 1 started (procfs)"));

    file.write(&config("fast", "shutdwn: 1,"));
    let before = agent.windows();
    agent.signal(Signal::SIGHUP);
    agent.wait_until("refusal", |a| a.log().contains("not reloaded"));
    let log = agent.log();
    assert!(
        log.contains("invalid duration `fast`") && log.contains("unknown key `shutdwn`"),
        "{log}"
    );
    agent.wait_for_windows(before + 3);

    // A configuration that loads and cannot start is refused, too.
    file.write(
        &config("60ms", "")
            .replace("stdout: { format: json }", "file: { path: /nonexistent/dir/x }")
            .replace("[stdout]", "[file]"),
    );
    agent.signal(Signal::SIGHUP);
    agent.wait_until("refusal", |a| a.log().matches("not reloaded").count() == 2);
    let before = agent.windows();
    agent.wait_for_windows(before + 3);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn warnings_are_told_again_with_a_reload() {
    let unused = config("50ms", "") + "processors: { top: }\n";
    let warning = "processor `top` is not used: no pipeline names it";
    let file = ConfigFile::new(&unused);
    let agent = Running::with_config(&file);
    agent.wait_for_windows(1);
    let told = |agent: &Running| agent.log().matches(warning).count();
    assert_eq!(told(&agent), 1, "{}", agent.log());
    for reloads in 1..=2 {
        agent.signal(Signal::SIGHUP);
        agent.wait_until("reload", |a| a.log().matches("reloaded: ").count() == reloads);
        assert_eq!(told(&agent), 1 + reloads, "{}", agent.log());
    }
    // Gone with its cause.
    file.write(&config("50ms", ""));
    agent.signal(Signal::SIGHUP);
    agent.wait_until("reload", |a| a.log().matches("reloaded: ").count() == 3);
    assert_eq!(told(&agent), 3, "{}", agent.log());
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn health_tells_progress_and_own_metrics_are_served() {
    let (health, metrics) = (FreeAddress::new(), FreeAddress::new());
    let extra = format!(
        "extensions: [health_check], telemetry: {{ metrics: {{ endpoint: \"{metrics}\" }} }},"
    );
    let text = config("50ms", &extra)
        + &format!("extensions: {{ health_check: {{ endpoint: \"{health}\" }} }}\n");
    let file = ConfigFile::new(&text);
    let agent = Running::with_config(&file);
    agent.wait_for_windows(2);
    let (status, body) = health.get(&agent, "/");
    assert_eq!(status, 200, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(body["windows_exported"].as_u64().unwrap() >= 1, "{body}");
    assert!(body["last_window"]["age_seconds"].as_f64().unwrap() < 30.0, "{body}");
    assert_eq!(health.get(&agent, "/ready").0, 200);
    assert_eq!(health.get(&agent, "/other").0, 404);

    let (status, body) = metrics.get(&agent, "/metrics");
    assert_eq!(status, 200);
    for name in [
        "wattpipe_process_cpu_seconds",
        "wattpipe_process_memory_rss",
        "wattpipe_process_uptime",
        "wattpipe_exporter_enqueue_failed_points_total{exporter=\"stdout\"} 0",
    ] {
        assert!(body.contains(name), "no {name} in\n{body}");
    }
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

/// Another window, and the two services change places.
#[test]
fn a_reload_keeps_the_services_on_their_ports() {
    let text = |window, health: &FreeAddress, metrics: &FreeAddress| {
        let extra = format!(
            "extensions: [health_check], telemetry: {{ metrics: {{ endpoint: \"{metrics}\" }} }},"
        );
        config(window, &extra)
            + &format!("extensions: {{ health_check: {{ endpoint: \"{health}\" }} }}\n")
    };
    let (a, b) = (FreeAddress::new(), FreeAddress::new());
    let file = ConfigFile::new(&text("50ms", &a, &b));
    let agent = Running::with_config(&file);
    agent.wait_for_windows(2);
    for (turn, (health, metrics)) in [(&a, &b), (&b, &a)].into_iter().enumerate() {
        file.write(&text("40ms", health, metrics));
        agent.signal(Signal::SIGHUP);
        agent.wait_until("reload", |a| a.log().matches(" reloaded: ").count() == turn + 1);
        assert_eq!(health.get(&agent, "/").0, 200);
        assert_eq!(metrics.get(&agent, "/metrics").0, 200);
    }
    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("cannot"), "{log}");
}

#[test]
fn a_busy_port_is_a_warning() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let extra = format!(
        "extensions: [health_check], telemetry: {{ metrics: {{ endpoint: \"{address}\" }} }},"
    );
    let text = config("50ms", &extra)
        + &format!("extensions: {{ health_check: {{ endpoint: \"{address}\" }} }}\n");
    let file = ConfigFile::new(&text);
    let agent = Running::with_config(&file);
    agent.wait_until("both warnings", |a| {
        let log = a.log();
        log.contains("health_check cannot listen on")
            && log.contains("own metrics cannot be served")
    });
    agent.wait_for_windows(agent.windows() + 2);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn the_service_manager_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let file = ConfigFile::new(&config("50ms", ""));
    let mut command = binary::wattpipe();
    command.arg("--config").arg(file.path());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let agent = Running::start(&mut command);
    let mut told = String::new();
    let mut hear = |what: &str| {
        while !told.contains(what) {
            let mut buffer = [0; 512];
            let n = socket.recv(&mut buffer).unwrap();
            told.push_str(&String::from_utf8_lossy(&buffer[..n]));
            told.push('\n');
        }
        told.clear();
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    agent.signal(Signal::SIGHUP);
    hear("RELOADING=1");
    hear("READY=1");
    agent.signal(Signal::SIGTERM);
    hear("STOPPING=1");
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn a_source_that_cannot_run_is_not_told_as_ready() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let file = ConfigFile::new(
        "sources: { replay: { path: /nowhere/switches.jsonl } }
processors: { delta: {} }
exporters: { stdout: { format: json } }
service: { pipelines: { a: { sources: [replay], processors: [delta], exporters: [stdout] } } }
",
    );
    let mut command = binary::wattpipe();
    command.arg("--config").arg(file.path()).env("NOTIFY_SOCKET", &path);
    let (code, log) = Running::start(&mut command).end();
    assert_eq!(code, Some(1), "{log}");
    let mut buffer = [0; 512];
    while let Ok(n) = socket.recv(&mut buffer) {
        let told = String::from_utf8_lossy(&buffer[..n]);
        assert!(!told.contains("READY"), "{told}");
    }
}

/// The first request to this listener: its request line and its body's length.
fn first_request(listener: &std::net::TcpListener) -> (String, usize) {
    use std::io::{BufRead, BufReader, Read, Write};
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    (first.trim().to_owned(), length)
}

#[test]
fn own_metrics_are_pushed_where_the_environment_says_so() {
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = ConfigFile::new(&config("50ms", ""));
    let mut command = binary::wattpipe();
    command.arg("--config").arg(file.path());
    command
        .env(
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            format!("http://{}/v1/metrics", receiver.local_addr().unwrap()),
        )
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "200");
    let agent = Running::start(&mut command);
    let (request, length) = first_request(&receiver);
    assert_eq!(request, "POST /v1/metrics HTTP/1.1");
    assert!(length > 100, "{length} bytes");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn an_agent_over_its_cpu_limit_widens_its_windows() {
    // Polling /proc every 10 ms costs more than a thousandth of a CPU anywhere.
    let file = ConfigFile::new(&config("10ms", "cpu_limit: 0.1%,"));
    let agent = Running::with_config(&file);
    agent.wait_until("a warning", |a| a.log().contains("windows are now 2 times as long"));
    // A late edge makes a longer window and a shorter one after it: what counts is their mean.
    let durations = || -> Vec<u64> {
        let lines = agent.lines.lock().unwrap().clone();
        let windows = lines.iter().filter(|l| l.contains("\"type\":\"window\""));
        let window = |l: &String| serde_json::from_str::<serde_json::Value>(l).unwrap();
        windows.map(|l| window(l)["duration_ns"].as_u64().unwrap()).collect()
    };
    let before = durations().len();
    agent.wait_for_windows(before + 5);
    let after = &durations()[before..];
    let mean = after.iter().sum::<u64>() / after.len() as u64;
    assert!(mean >= 15_000_000, "{after:?}");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

#[test]
fn an_agent_over_its_memory_limit_folds_rows_and_says_so() {
    let file = ConfigFile::new(&config("50ms", "memory_limit: 16MiB,"));
    let agent = Running::with_config(&file);
    agent.wait_until("a warning", |a| a.log().contains("service::memory_limit 16 MiB"));
    agent.wait_for_windows(agent.windows() + 3);
    let lines = agent.lines.lock().unwrap().clone();
    let windows: Vec<&[String]> =
        lines.split(|l| l.contains("\"type\":\"window\"")).skip(1).collect();
    let rows = |w: &[String]| w.iter().filter(|l| l.contains("\"type\":\"usage\"")).count();
    assert!(windows.iter().all(|w| rows(w) <= 257), "at most 256 rows and the rest");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));
}

/// The limits of a process are no reason to end in silence: a soft one is raised to what the agent
/// was granted, a hard one is named, and a file that may not grow is a write that fails.
#[test]
fn limits_of_the_process_are_met() {
    let limited = |limits: &str, file: &ConfigFile| {
        let mut command = std::process::Command::new("prlimit");
        command.args(limits.split(' ')).arg(binary::wattpipe().get_program());
        command.arg("--config").arg(file.path());
        Running::start(&mut command)
    };
    let file = ConfigFile::new(&config("50ms", ""));
    let agent = limited("--nofile=20:4096", &file);
    agent.wait_for_windows(2);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.pid())).unwrap();
    let open = limits.lines().find(|l| l.starts_with("Max open files")).unwrap();
    assert_eq!(open.split_whitespace().nth(3), Some("4096"), "{open}");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end().0, Some(0));

    let (code, log) = limited("--nofile=8:8", &file).end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("raise `ulimit -Hn`"), "{log}");

    let out = file.dir().join("out.jsonl");
    file.write(
        &config("50ms", "")
            .replace(
                "exporters: { ",
                &format!("exporters: {{ file: {{ path: {}, max_buffer: 4KiB }}, ", out.display()),
            )
            .replace("[stdout]", "[stdout, file]"),
    );
    let agent = limited("--fsize=20000", &file);
    agent.wait_until("a failed write", |a| a.log().contains("File too large"));
    agent.wait_for_windows(agent.windows() + 5);
    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.end();
    // What waited at the end is lost, which is told.
    assert!(code == Some(0) && log.contains("lost"), "{log}");
    let text = std::fs::read_to_string(out).unwrap();
    assert!(text.ends_with('\n') && text.len() <= 20_000, "whole lines up to the limit");
}
