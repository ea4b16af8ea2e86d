//! The command line through the real binary: what it prints, where, and its exit status.
#![expect(clippy::unwrap_used, reason = "a test's own files and processes")]

#[path = "support/binary.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]
mod binary;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Output, Stdio},
};

use binary::{ConfigFile, run, wattpipe};

const PROCFS: &str = "\
sources: { procfs: { window: 50ms } }
exporters: { stdout: { format: json } }
service: { pipelines: { a: { sources: [procfs], exporters: [stdout] } } }
";

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr: &[&str]) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout);
    for part in stderr {
        assert!(err.contains(part), "no {part:?} in:\n{err}");
    }
}

#[test]
fn validate_prints_ok_and_nothing_else() {
    let file = ConfigFile::new(PROCFS);
    let output = run(&["validate", "--config", file.path().to_str().unwrap()]);
    check(&output, 0, "ok\n", &[]);
    assert!(output.stderr.is_empty());
    check(&run(&["validate"]), 0, "ok\n", &[]);
    // Before the subcommand it means the same.
    let output = run(&["--config", file.path().to_str().unwrap(), "validate"]);
    check(&output, 0, "ok\n", &[]);
}

#[test]
fn validate_tells_what_this_host_does_not_have() {
    let file = ConfigFile::new(
        "sources: { procfs: }
exporters:
  file: { path: /nonexistent/dir/out.jsonl }
  otlp_http:
    endpoint: https://a:4318
    tls: { ca_file: /nonexistent/ca.pem }
    sending_queue: { storage: /proc/version/queue }
service: { pipelines: { a: { sources: [procfs], exporters: [file, otlp_http] } } }
",
    );
    let place = |what: &str| format!("{}:{what}", file.path().display());
    let output = run(&["validate", "--config", file.path().to_str().unwrap()]);
    let expected = [
        place(
            "3:17: warning: exporters::file::path: the folder `/nonexistent/dir` does not exist: ",
        ),
        place("6:21: warning: exporters::otlp_http::tls::ca_file: `/nonexistent/ca.pem` cannot be"),
        place("7:31: warning: exporters::otlp_http::sending_queue::storage: `/proc/version` is no"),
    ];
    check(&output, 0, "ok\n", &expected.each_ref().map(String::as_str));
    // One that runs finds out by itself; others have nothing to do with it.
    let output = run(&["print-config", "--config", file.path().to_str().unwrap()]);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_bad_configuration_starts_nothing_and_exits_2() {
    let file = ConfigFile::new(&PROCFS.replace("window", "widnow").replace("json", "jsn"));
    let place = format!("{}:1:22: error: sources::procfs::widnow", file.path().display());
    for args in [&["run"][..], &["validate"], &["print-config"], &[]] {
        let output = wattpipe().args(args).arg("--config").arg(file.path()).output().unwrap();
        check(&output, 2, "", &[&place, "did you mean `window`?", "allowed: ", "2 errors"]);
    }
}

#[test]
fn wrong_usage_exits_2() {
    check(&run(&["frobnicate"]), 2, "", &["frobnicate"]);
    check(&run(&["validate", "--config"]), 2, "", &["--config"]);
    check(&run(&["exec"]), 2, "", &["CMD"]);
    check(
        &run(&["validate", "--config", "/nonexistent.yaml"]),
        2,
        "",
        &["cannot read the configuration file `/nonexistent.yaml`: no such file or directory"],
    );
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    assert_eq!(run(&["--version"]).status.code(), Some(0));
}

#[test]
fn print_config_is_a_configuration_again() {
    let file = ConfigFile::new(PROCFS);
    let path = file.path();
    let output = run(&["print-config", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("shutdown_timeout: 10s"), "{text}");
    file.write(&text);
    let again = run(&["print-config", "--config", path.to_str().unwrap()]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
}

#[test]
fn settings_on_the_command_line_win() {
    let file = ConfigFile::new(PROCFS);
    let set = ["--set", "sources.procfs.window=7s", "--set", "service::shutdown_timeout=3s"];
    let output =
        wattpipe().args(["print-config", "--config"]).arg(file.path()).args(set).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("window: 7s") && text.contains("shutdown_timeout: 3s"), "{text}");
}

#[test]
fn components_and_schema_list_what_is_compiled_in() {
    let json: serde_json::Value =
        serde_json::from_slice(&run(&["components", "--format", "json"]).stdout).unwrap();
    let names = |section: &str| -> Vec<String> {
        let rows = json[section].as_array().unwrap();
        rows.iter().map(|r| r["name"].as_str().unwrap().to_owned()).collect()
    };
    for (section, name) in [
        ("sources", "ebpf"),
        ("sources", "procfs"),
        ("sources", "replay"),
        ("processors", "delta"),
        ("processors", "power_model"),
        ("exporters", "stdout"),
        ("exporters", "file"),
        ("extensions", "health_check"),
    ] {
        let all = names(section);
        assert_eq!(all.iter().filter(|n| *n == name).count(), 1, "{section} {all:?}");
    }
    let yaml: serde_json::Value = serde_yaml::from_slice(&run(&["components"]).stdout).unwrap();
    assert_eq!(yaml, json);
    let schema: serde_json::Value = serde_json::from_slice(&run(&["schema"]).stdout).unwrap();
    let sources = &schema["properties"]["sources"]["patternProperties"];
    assert!(sources["^(ebpf)(/.+)?$"]["anyOf"][0]["properties"]["window"].is_object(), "{sources}");
}

#[test]
fn the_reference_validates() {
    let reference = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/reference.yaml");
    let output = run(&["validate", "--config", reference]);
    check(&output, 0, "ok\n", &[]);
}

/// A configuration that plays two windows to standard output.
fn replay() -> ConfigFile {
    let file = ConfigFile::new("");
    let recording = file.dir().join("rec.jsonl");
    std::fs::write(
        &recording,
        r#"{"type":"topology","cpus":[{"cpu":0,"package":0,"core":0}],"boot_unix_ns":1790000000000000000}
{"type":"process","ts":10,"event":"snapshot","pid":7,"start_time":5,"ppid":1,"comm":"a"}
{"type":"window","ts":100}
{"type":"switch","ts":100,"cpu":0,"prev":0,"next":7}
{"type":"switch","ts":150,"cpu":0,"prev":7,"next":0}
{"type":"window","ts":200}
"#,
    )
    .unwrap();
    file.write(&format!(
        "sources: {{ replay: {{ path: {} }} }}
processors: {{ delta: }}
exporters: {{ stdout: {{ format: json }} }}
service: {{ pipelines: {{ a: {{ sources: [replay], processors: [delta], exporters: [stdout] }} }} }}
",
        recording.display()
    ));
    file
}

#[test]
fn a_recording_plays_to_its_end() {
    let file = replay();
    let output = wattpipe().arg("--config").arg(file.path()).output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(r#""process.pid":7"#) && out.contains(r#""cpu_ns":50"#), "{out}");
}

#[test]
fn a_recording_without_a_window_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rec.jsonl");
    let replay = format!(
        "sources: {{ replay: {{ path: {} }} }}
processors: {{ delta: }}
exporters: {{ stdout: {{ format: json }} }}
service: {{ pipelines: {{ a: {{ sources: [replay], processors: [delta], exporters: [stdout] }} }} }}
",
        path.display()
    );
    let file = ConfigFile::new(&replay);
    let topology = r#"{"type":"topology","cpus":[{"cpu":0}],"boot_unix_ns":1}"#;
    for text in [String::new(), format!("{topology}\n{{\"type\":\"window\",\"ts\":1}}\n")] {
        std::fs::write(&path, text).unwrap();
        let output = run(&["--config", file.path().to_str().unwrap()]);
        check(&output, 0, "", &["the recording holds no window"]);
    }
}

#[test]
fn data_that_found_no_place_exits_1() {
    let file = replay();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = wattpipe().arg("--config").arg(file.path()).stdout(full).output().unwrap();
    check(&output, 1, "", &["No space left on device", "data is lost"]);
}

#[test]
fn a_missing_recording_exits_1_with_its_name() {
    let file = ConfigFile::new(
        "sources: { replay: { path: /nonexistent.jsonl } }
processors: { delta: }
exporters: { stdout: { format: json } }
service: { pipelines: { a: { sources: [replay], processors: [delta], exporters: [stdout] } } }
",
    );
    let output = wattpipe().arg("--config").arg(file.path()).output().unwrap();
    check(&output, 1, "", &["/nonexistent.jsonl"]);
}

/// The agent with both outputs in our hands.
fn piped(file: &ConfigFile) -> Child {
    let mut command = wattpipe();
    command.arg("--config").arg(file.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_full_output_is_told_now_and_then() {
    let file = ConfigFile::new(&PROCFS.replace("50ms", "10ms"));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = wattpipe();
    command.arg("--config").arg(file.path()).stdout(full).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut told = log.filter(|line| line.contains("No space left on device"));
    let first = told.next().expect("a line that tells it");
    assert!(first.contains("windows=1"), "{first}");
    // What comes since is told now and then, and at the end.
    std::thread::sleep(std::time::Duration::from_secs(1));
    binary::signal(child.id(), nix::sys::signal::Signal::SIGTERM);
    let rest: Vec<String> = told.collect();
    assert!(rest.len() < 5, "{rest:#?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_closed_output_ends_quietly() {
    let file = ConfigFile::new(PROCFS);
    let mut child = piped(&file);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(!err.contains("ERROR") && !err.contains("panicked"), "{err}");
}

#[test]
fn closed_output_and_log_end_quietly_together() {
    let file = ConfigFile::new(PROCFS);
    let mut child = piped(&file);
    drop(child.stdout.take());
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn exec_passes_the_exit_status_on() {
    for (args, code) in [
        (&["exec", "--", "sh", "-c", "exit 7"][..], 7),
        (&["exec", "true"], 0),
        (&["exec", "--", "/nonexistent/command"], 127),
        (&["exec", "--", "/etc/passwd"], 126),
        (&["exec", "--", "sh", "-c", "kill -TERM $$"], 143),
    ] {
        let output = run(args);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
    }
}

#[test]
fn exec_finds_out_first_whether_its_report_has_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let json = dir.path().join("nowhere/report.json");
    let args = ["exec", "--json", json.to_str().unwrap(), "--", "touch", ran.to_str().unwrap()];
    check(&run(&args), 2, "", &["--json", "nowhere/report.json"]);
    assert!(!ran.exists());
}

#[test]
fn exec_keeps_the_commands_output_and_reports_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("out.json");
    let args = ["exec", "--json", json.to_str().unwrap(), "--", "echo", "--json", "hello"];
    let output = run(&args);
    check(&output, 0, "--json hello\n", &["CPU time", "elapsed"]);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(report["command"], serde_json::json!(["echo", "--json", "hello"]));
    assert_eq!(report["exit_status"], 0);
    assert!(report["cpu_seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn doctor_answers_in_both_forms() {
    let text = String::from_utf8(run(&["doctor"]).stdout).unwrap();
    assert!(text.contains("kernel") && text.contains("will use here"), "{text}");
    let output = run(&["doctor", "--format", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for finding in json["findings"].as_array().unwrap() {
        let missing = finding["status"] == "missing";
        assert!(!missing || finding["consequence"].is_string(), "{finding}");
        assert!(!missing || finding["remedy"].is_string(), "{finding}");
    }
}
