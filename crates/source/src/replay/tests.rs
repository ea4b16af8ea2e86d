//! Recordings in, batches out: the rules of `SwitchBatch`, and lines that are wrong.

use std::io::Write;

use wattpipe_pipeline::{batch::SwitchBatch, units::Nanos};

use super::*;

const HEAD: &str = r#"{"type":"topology","cpus":[{"cpu":0,"package":0,"core":0},{"cpu":1,"package":0,"core":1}],"boot_unix_ns":1790000000000000000}"#;

fn assemble(text: &str) -> Result<Vec<SwitchBatch>, SourceError> {
    let mut assembler = Assembler::default();
    let mut out = Vec::new();
    let mut lines = Lines::new(text.as_bytes(), Path::new("rec.jsonl"));
    while let Some(batches) = lines.next_with(|record| assembler.take(record))? {
        out.extend(batches);
    }
    out.extend(assembler.finish().0);
    Ok(out)
}

fn lines(lines: &[&str]) -> String {
    let mut text = HEAD.to_owned();
    for line in lines {
        text.push('\n');
        text.push_str(line);
    }
    text.push('\n');
    text
}

#[test]
fn a_window_holds_what_is_up_to_its_edge() {
    let out = assemble(&lines(&[
        r#"{"type":"switch","ts":100,"cpu":0,"prev":0,"next":7}"#,
        r#"{"type":"switch","ts":250,"cpu":1,"prev":0,"next":8}"#,
        r#"{"type":"process","ts":150,"event":"exit","pid":7}"#,
        r#"{"type":"process","ts":90,"event":"fork","pid":7}"#,
        r#"{"type":"window","ts":200}"#,
        r#"{"type":"window","ts":300}"#,
    ]))
    .unwrap();
    assert_eq!(out.len(), 2);
    assert_eq!(out[0].entries.len(), 1);
    assert_eq!(out[0].processes.iter().map(|p| p.ts.0).collect::<Vec<_>>(), [90, 150]);
    assert!(out[0].topology.is_some() && !out[0].live);
    assert_eq!(out[1].entries[0].ts, Nanos(250));
    assert_eq!(out[1].edge.unwrap().ts, Nanos(300));
}

#[test]
fn a_cpu_that_goes_back_in_time_stands_still() {
    let out = assemble(&lines(&[
        r#"{"type":"switch","ts":100,"cpu":0,"prev":0,"next":7}"#,
        r#"{"type":"tick","ts":90,"cpu":0,"tgid":7}"#,
        r#"{"type":"switch","ts":95,"cpu":1,"prev":0,"next":8}"#,
        r#"{"type":"window","ts":200}"#,
    ]))
    .unwrap();
    let times: Vec<_> = out[0].entries.iter().map(|e| e.ts.0).collect();
    assert_eq!(times, [100, 100, 95]);
}

#[test]
fn a_window_that_ends_before_the_last_one_is_none() {
    let edge = |ts| format!(r#"{{"type":"window","ts":{ts}}}"#);
    let out = assemble(&lines(&[&edge(500), &edge(200), &edge(600)])).unwrap();
    assert_eq!(out.iter().map(|b| b.edge.unwrap().ts.0).collect::<Vec<_>>(), [500, 600]);
}

#[test]
fn with_counters_the_next_reading_comes_along() {
    let out = assemble(&lines(&[
        r#"{"type":"switch","ts":100,"cpu":0,"prev":0,"next":7,"cycles":1000}"#,
        r#"{"type":"window","ts":200}"#,
        r#"{"type":"switch","ts":300,"cpu":0,"prev":7,"next":0,"cycles":3000}"#,
        r#"{"type":"window","ts":400}"#,
    ]))
    .unwrap();
    let ts: Vec<Vec<u64>> =
        out.iter().map(|b| b.entries.iter().map(|e| e.ts.0).collect()).collect();
    assert_eq!(ts, [vec![100, 300], vec![]]);
}

#[test]
fn large_windows_come_in_several_batches_and_only_the_last_has_the_edge() {
    let mut text = lines(&[]);
    for i in 0..200_000u64 {
        text.push_str(&format!(
            "{{\"type\":\"switch\",\"ts\":{},\"cpu\":{},\"prev\":0,\"next\":0}}\n",
            i + 1,
            i % 2
        ));
    }
    text.push_str("{\"type\":\"window\",\"ts\":1000000}\n");
    let out = assemble(&text).unwrap();
    assert!(out.len() > 2);
    assert_eq!(out.iter().map(|b| b.entries.len()).sum::<usize>(), 200_000);
    assert!(out.iter().rev().skip(1).all(|b| b.edge.is_none() && b.entries.len() <= 1 << 16));
}

/// Whatever fits into the last batch but one: what is later than the edge comes with the edge.
#[test]
fn what_is_later_than_the_edge_stands_in_its_batch_alone() {
    let switch = |ts, cpu| {
        format!(r#"{{"type":"switch","ts":{ts},"cpu":{cpu},"prev":0,"next":0,"cycles":{ts}}}"#)
    };
    let mut text = lines(&[]);
    for ts in 1..1 << 16 {
        text.push_str(&switch(ts, 0));
        text.push('\n');
    }
    for line in [r#"{"type":"window","ts":100000}"#, &switch(100_001, 0), &switch(100_002, 1)] {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str("{\"type\":\"window\",\"ts\":200000}\n");
    for batch in assemble(&text).unwrap().iter().filter(|b| b.edge.is_none()) {
        assert!(batch.entries.iter().all(|e| e.ts.0 <= 100_000));
    }
}

#[track_caller]
fn check_error(text: &str, expected: &str) {
    let error = assemble(text).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_wrong_line_is_named() {
    check_error(
        &lines(&["{\"type\":\"window\"}", "{\"type\":\"window\",\"ts\":1}"]),
        "rec.jsonl:2: not a record",
    );
    check_error(&lines(&["nonsense"]), "rec.jsonl:2: not a record");
    check_error(
        &lines(&[r#"{"type":"switch","ts":-1,"cpu":0,"prev":0,"next":7}"#]),
        "rec.jsonl:2: not a record",
    );
    check_error(&lines(&[r#"{"type":"surprise","ts":1}"#]), "rec.jsonl:2: not a record");
    let time = u64::MAX;
    for line in [
        format!(r#"{{"type":"window","ts":{time}}}"#),
        format!(r#"{{"type":"tick","ts":{time},"cpu":0,"tgid":7}}"#),
        format!(r#"{{"type":"process","ts":{time},"event":"exit","pid":7}}"#),
    ] {
        check_error(&lines(&[&line]), "rec.jsonl:2: a time beyond 36 years");
    }
    let long =
        format!(r#"{{"type":"process","ts":1,"event":"exec","comm":"{}"}}"#, "x".repeat(2 << 20));
    check_error(&lines(&[&long]), "rec.jsonl:2: longer than 1 MiB");
}

#[test]
fn a_compressed_recording_says_what_to_do() {
    let frame = [&ZSTD[..], &[0x24, 0x07, 0x39, 0x00, 0x00]].concat();
    let mut lines = Lines::new(&frame[..], Path::new("rec.jsonl.zst"));
    let error = lines.next_with(|_| ()).unwrap_err().to_string();
    assert!(error.contains("unpack it first (`zstd -d`)"), "{error}");
}

#[test]
fn a_cut_off_last_line_is_left_out() {
    let mut text = lines(&[r#"{"type":"window","ts":1}"#, r#"{"type":"window","ts":2}"#]);
    text.push_str(r#"{"type":"win"#);
    assert_eq!(assemble(&text).unwrap().len(), 2);
}

#[test]
fn a_missing_file_is_an_error_with_its_name() {
    let problems = ReplayConfig::default().check();
    assert_eq!(problems.len(), 1);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{HEAD}").unwrap();
    let config = ReplayConfig { path: file.path().into(), speed: Speed::Factor(-1.0) };
    assert_eq!(config.check().len(), 1);
}

#[test]
fn a_window_needs_a_topology() {
    let check = |text: String, expected: bool| {
        let mut assembler = Assembler::default();
        let mut lines = Lines::new(text.as_bytes(), Path::new("rec.jsonl"));
        while lines.next_with(|record| assembler.take(record)).unwrap().is_some() {}
        assert_eq!(assembler.adrift, expected, "{text}");
    };
    const EDGE: &str = r#"{"type":"window","ts":200}"#;
    check(format!("{EDGE}\n{HEAD}\n"), true);
    check(
        format!("{}\n{HEAD}\n{EDGE}\n", r#"{"type":"switch","ts":9,"cpu":0,"prev":0,"next":7}"#),
        false,
    );
    check(String::new(), false);
}

/// The counter's readings in each window, and the edges that it takes to know them.
#[test]
fn cycles_of_an_interval_over_several_edges_are_split_by_time() {
    let out = assemble(&lines(&[
        r#"{"type":"switch","ts":50,"cpu":0,"prev":0,"next":7,"cycles":1000}"#,
        r#"{"type":"window","ts":100}"#,
        r#"{"type":"window","ts":200}"#,
        r#"{"type":"window","ts":300}"#,
        r#"{"type":"switch","ts":350,"cpu":0,"prev":7,"next":0,"cycles":4000}"#,
        r#"{"type":"window","ts":400}"#,
    ]))
    .unwrap();
    let readings = |batch: &SwitchBatch| -> Vec<(u64, u64)> {
        batch.entries.iter().map(|e| (e.ts.0, e.cycles)).collect()
    };
    let windows: Vec<_> = out.iter().map(readings).collect();
    assert_eq!(windows[0], [(50, 1000), (200, 2500)]);
    assert_eq!(windows[1], [(300, 3500)]);
    assert_eq!(windows[2], [(350, 4000)]);
    assert_eq!(windows[3], []);
}
