//! What the real binary delivers to a receiver that is dead, slow, or away for a minute: all of it,
//! or the loss is told to the point. The truth is the file exporter's, which gets the same windows.
#![expect(clippy::unwrap_used, reason = "a test's own files and processes")]

#[path = "support/binary.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]
mod binary;
#[path = "support/receiver.rs"]
mod receiver;

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, time::Duration};

use binary::{ConfigFile, Running};
use nix::sys::signal::Signal;
use receiver::{Receiver, points};

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:9";

/// A recording of this many windows of one second, with two processes.
fn recording(path: &Path, windows: u64) {
    let mut text = String::from(
        r#"{"type":"topology","cpus":[{"cpu":0,"package":0,"core":0}],"boot_unix_ns":1790000000000000000}
{"type":"process","ts":10,"event":"snapshot","pid":7,"start_time":5,"ppid":1,"comm":"a"}
{"type":"process","ts":10,"event":"snapshot","pid":8,"start_time":6,"ppid":1,"comm":"b"}
"#,
    );
    for window in 0..=windows {
        let t = window * 1_000_000_000;
        for (at, prev, next) in [(100, 0, 7), (300, 7, 8), (600, 8, 0)] {
            let ts = t + at;
            writeln!(text, r#"{{"type":"switch","ts":{ts},"cpu":0,"prev":{prev},"next":{next}}}"#)
                .unwrap();
        }
        writeln!(text, r#"{{"type":"window","ts":{}}}"#, t + 1_000_000_000).unwrap();
    }
    fs::write(path, text).unwrap();
}

/// A replay into a file of OTLP and an OTLP exporter with these keys.
fn replay(file: &ConfigFile, windows: u64, timeout: &str, keys: &str) {
    let dir = file.dir();
    recording(&dir.join("rec.jsonl"), windows);
    let dir = dir.display();
    file.write(&format!(
        "sources: {{ replay: {{ path: {dir}/rec.jsonl }} }}
processors: {{ delta: {{}} }}
exporters:
  file: {{ path: {dir}/out.json, format: otlp_json, flush_interval: 50ms }}
  otlp_http: {{ encoding: json, compression: none, {keys} }}
service:
  shutdown_timeout: {timeout}
  pipelines: {{ a: {{ sources: [replay], processors: [delta], exporters: [file, otlp_http] }} }}
"
    ));
}

/// Points that the file exporter has written.
fn written(file: &ConfigFile) -> Vec<String> {
    let text = fs::read_to_string(file.dir().join("out.json")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |at| &text[..at]);
    whole.lines().flat_map(|line| points(&serde_json::from_str(line).unwrap())).collect()
}

/// Σ `points=` of the lines that have `what` and name this exporter.
fn told(log: &str, exporter: &str, what: &str) -> usize {
    let name = format!("exporter={exporter} ");
    let lines = log.lines().filter(|l| l.contains(what) && format!("{l} ").contains(&name));
    lines
        .filter_map(|l| l.split("points=").nth(1)?.split(' ').next()?.trim().parse::<usize>().ok())
        .sum()
}

/// Ends an agent that has something to deliver, and gives its log.
fn ended(agent: Running) -> String {
    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    log
}

/// A replayed stream waits for the exporter; the end finds the queue, the exporter, its inbox and
/// the chain full.
#[test]
fn a_dead_receiver_costs_what_it_would_have_got() {
    for keys in ["sending_queue: {queue_size: 3}", "sending_queue: {enabled: false}"] {
        let file = ConfigFile::new("");
        replay(&file, 400, "1s", &format!("endpoint: '{NOBODY}', {keys}"));
        let agent = Running::with_config(&file);
        agent.wait_until("failed attempt", |a| a.log().contains("cannot deliver"));
        agent.wait_until("more windows than it takes", |_| written(&file).len() > 20);
        std::thread::sleep(Duration::from_millis(300));
        let log = ended(agent);
        let (produced, lost) = (written(&file).len(), told(&log, "otlp_http", "lost"));
        assert_eq!(lost, produced, "{keys}: {log}");
    }
}

#[test]
fn a_slow_receiver_gets_what_it_can_and_the_rest_is_told() {
    let receiver = Receiver::start(Duration::from_millis(40));
    for keys in ["sending_queue: {queue_size: 3}", "sending_queue: {enabled: false}"] {
        let file = ConfigFile::new("");
        let endpoint = receiver.url(keys.len());
        replay(&file, 400, "1s", &format!("endpoint: '{endpoint}', {keys}"));
        let agent = Running::with_config(&file);
        agent.wait_until("delivery", |_| receiver.got(keys.len()).len() > 20);
        let log = ended(agent);
        let (produced, got) = (written(&file), receiver.got(keys.len()));
        assert!(got.iter().all(|p| produced.contains(p)));
        // An attempt that the end cuts off counts as lost, though it may have arrived.
        let (lost, at_end) =
            (told(&log, "otlp_http", "lost"), told(&log, "otlp_http", "before the end"));
        let told_twice = (got.len() + lost).checked_sub(produced.len());
        assert!(
            told_twice.is_some_and(|n| n <= at_end),
            "{keys}: {} of {} arrived; {log}",
            got.len(),
            produced.len()
        );
    }
}

#[test]
fn what_a_stored_queue_holds_is_delivered_by_the_next_start() {
    let receiver = Receiver::start(Duration::ZERO);
    let file = ConfigFile::new("");
    let queue = format!("sending_queue: {{queue_size: 30, storage: {}/q}}", file.dir().display());
    // The stream ends at once, and each window is synced to the disk before the end.
    replay(&file, 20, "5s", &format!("endpoint: '{NOBODY}', {queue}"));
    let agent = Running::with_config(&file);
    agent.wait_until("failed attempt", |a| a.log().contains("cannot deliver"));
    let log = ended(agent);
    let mut produced = written(&file);
    let (kept, lost) =
        (told(&log, "otlp_http", "stays in the stored"), told(&log, "otlp_http", "lost"));
    assert_eq!((kept, lost), (produced.len(), 0), "{log}");

    replay(&file, 1, "30s", &format!("endpoint: '{}', {queue}", receiver.url(0)));
    let (code, log) = Running::with_config(&file).end();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(told(&log, "otlp_http", "going on with"), kept, "{log}");
    produced.extend(written(&file));
    let got = receiver.got(0);
    assert!(got == produced, "{} of {} points arrived in order", got.len(), produced.len());
}

#[test]
fn a_reload_replaces_an_exporter_that_waits_for_its_receiver() {
    let receiver = Receiver::start(Duration::ZERO);
    let file = ConfigFile::new("");
    let write = |endpoint: &str| {
        file.write(&format!(
            "sources: {{ procfs: {{ window: 50ms }} }}
exporters:
  otlp_http: {{ endpoint: '{endpoint}', encoding: json, compression: none, sending_queue: {{ enabled: false }} }}
service: {{ shutdown_timeout: 5s, pipelines: {{ a: {{ sources: [procfs], exporters: [otlp_http] }} }} }}
"
        ));
    };
    write(NOBODY);
    let agent = Running::with_config(&file);
    agent.wait_until("failed attempt", |a| a.log().contains("cannot deliver"));
    write(&receiver.url(0));
    agent.signal(Signal::SIGHUP);
    agent.wait_until("delivery", |_| !receiver.got(0).is_empty());
    let log = ended(agent);
    assert!(!log.contains("left behind") && told(&log, "otlp_http", "lost") > 0, "{log}");
}

/// Nobody answers for a minute. Queues of the default size, in memory and on disk, lose nothing,
/// whether the next attempt comes by itself or with the end; a small one tells its loss.
#[test]
#[ignore = "takes over a minute: run by cargo xtask test"]
fn a_receiver_that_was_away_for_a_minute_gets_everything() {
    const KEYS: [&str; 4] = [
        "retry_on_failure: {max_interval: 2s}",
        "timeout: 30s",
        "sending_queue: {storage: DIR/q}",
        "retry_on_failure: {max_interval: 2s}, sending_queue: {queue_size: 5}",
    ];
    let mut receiver = Receiver::start(Duration::ZERO);
    let file = ConfigFile::new("");
    let dir = file.dir().display().to_string();
    let mut exporters = String::new();
    for (i, keys) in KEYS.iter().enumerate() {
        writeln!(
            exporters,
            "  otlp_http/{i}: {{ endpoint: '{}', encoding: json, compression: none, {} }}",
            receiver.url(i),
            keys.replace("DIR", &dir)
        )
        .unwrap();
    }
    file.write(&format!(
        "sources: {{ procfs: {{ window: 1s }} }}
exporters:
  stdout: {{ format: json }}
  file: {{ path: {dir}/out.json, format: otlp_json }}
{exporters}service:
  shutdown_timeout: 100s
  pipelines:
    a:
      sources: [procfs]
      exporters: [stdout, file, otlp_http/0, otlp_http/1, otlp_http/2, otlp_http/3]
"
    ));
    let agent = Running::with_config(&file);
    agent.wait_for_windows(3);
    receiver.go();
    std::thread::sleep(Duration::from_secs(60));
    receiver.come_back();
    // By itself: the longest wait is 2 s and half of it.
    agent.wait_until("delivery", |_| {
        let text = fs::read_to_string(file.dir().join("out.json")).unwrap();
        receiver.got(0).len() >= text.matches("\"timeUnixNano\"").count()
    });
    let log = ended(agent);
    let produced: BTreeSet<String> = written(&file).into_iter().collect();
    for (i, keys) in KEYS.iter().enumerate() {
        let got: BTreeSet<String> = receiver.got(i).into_iter().collect();
        assert!(got.is_subset(&produced), "{i}");
        let missing = produced.len() - got.len();
        assert_eq!(missing, told(&log, &format!("otlp_http/{i}"), "lost"), "{i}: {log}");
        assert_eq!(missing > 0, i == 3, "{i}: {missing} points are missing; {log}");
        println!("  {keys}: {} of {} points arrived", got.len(), produced.len());
    }
}
