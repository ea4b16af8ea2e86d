//! Files as their readers find them: whole lines whatever happened to the writer or the disk.

use std::{fs, path::Path};

use wattpipe_pipeline::units::{ConfigDuration, ConfigSize};

use super::*;
use crate::testing::Usage;

fn config(path: &Path) -> FileConfig {
    FileConfig { path: path.to_owned(), ..FileConfig::default() }
}

fn build(config: FileConfig) -> (FileExporter, BuildContext) {
    let context = BuildContext { id: "file".into(), ..BuildContext::default() };
    (FileExporter::build(config, &context).unwrap(), context)
}

/// Runs an exporter over `windows` one-second windows of one process and returns its counters.
async fn run(config: FileConfig, windows: u64) -> Counters {
    let (mut exporter, context) = build(config);
    exporter.start().await.unwrap();
    for w in 0..windows {
        let start = w * 1_000_000_000;
        let batch = Usage::window(start, start + 1_000_000_000).process(7, "a", 0, 1000).batch();
        exporter.export(batch).await.unwrap();
    }
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    Counters::new(&context)
}

#[track_caller]
fn check_lines(path: &Path, expected: usize) {
    let text = fs::read_to_string(path).unwrap();
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
    assert_eq!(text.lines().count(), expected);
    assert!(expected == 0 || text.ends_with('\n'));
}

#[tokio::test]
async fn a_start_empties_the_file_unless_it_appends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    fs::write(&path, "old\n").unwrap();
    run(config(&path), 2).await;
    check_lines(&path, 4);
    run(FileConfig { append: true, ..config(&path) }, 1).await;
    check_lines(&path, 6);
    // The same process goes on with what it began, as after a reload.
    run(config(&path), 1).await;
    check_lines(&path, 8);
}

#[tokio::test]
async fn an_appending_start_cuts_an_incomplete_last_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    fs::write(&path, "{\"type\":\"window\"}\n{\"type\":\"usa").unwrap();
    run(FileConfig { append: true, ..config(&path) }, 1).await;
    check_lines(&path, 3);
}

#[tokio::test]
async fn compressed_files_read_as_one_stream_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl.zst");
    let zstd = FileConfig { compression: Compression::Zstd, append: true, ..config(&path) };
    run(zstd.clone(), 3).await;
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], &whole[..whole.len() / 2]].concat()).unwrap();
    run(zstd, 2).await;
    let text = zstd::decode_all(&fs::read(&path).unwrap()[..]).unwrap();
    assert_eq!(text.iter().filter(|b| **b == b'\n').count(), 10);
}

#[tokio::test]
async fn a_full_disk_is_counted_and_hurts_nobody() {
    // /dev/full takes nothing; the buffer holds two windows of the five.
    let mut config = config(Path::new("/dev/full"));
    config.max_buffer = ConfigSize(900);
    let counters = run(config, 5).await;
    assert_eq!((counters.sent.get(), counters.send_failed.get()), (0, 5));
}

#[tokio::test]
async fn a_file_that_is_taken_away_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let moved = dir.path().join("moved.jsonl");
    let (mut exporter, context) = build(config(&path));
    exporter.start().await.unwrap();
    exporter.export(Usage::window(0, 1).process(7, "a", 0, 1).batch()).await.unwrap();
    lock(&exporter.sink).flush();
    fs::rename(&path, &moved).unwrap();
    exporter.export(Usage::window(1, 2).process(7, "a", 0, 1).batch()).await.unwrap();
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    check_lines(&moved, 2);
    check_lines(&path, 2);
    assert_eq!(Counters::new(&context).sent.get(), 2);
}

#[tokio::test]
async fn what_waits_is_written_without_another_window() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let interval = ConfigDuration::from_millis(20);
    let (mut exporter, _) = build(FileConfig { flush_interval: interval, ..config(&path) });
    exporter.start().await.unwrap();
    // The first is written at once or not; of two right after one another, one waits.
    for w in 0..2 {
        exporter.export(Usage::window(w, w + 1).process(7, "a", 0, 1).batch()).await.unwrap();
    }
    while fs::read_to_string(&path).unwrap().lines().count() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A disk that takes nothing is tried again, too.
    let aside = dir.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    exporter.export(Usage::window(2, 3).process(7, "a", 0, 1).batch()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    fs::remove_dir(&path).unwrap();
    while fs::read_to_string(&path).unwrap_or_default().lines().count() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    check_lines(&aside, 4);
    check_lines(&path, 2);
}

#[tokio::test]
async fn a_file_that_was_emptied_has_its_header_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.csv");
    let (mut exporter, _) = build(FileConfig { format: Format::Csv, ..config(&path) });
    exporter.start().await.unwrap();
    for w in 0..2 {
        exporter.export(Usage::window(w, w + 1).process(7, "a", 0, 1).batch()).await.unwrap();
        lock(&exporter.sink).flush();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("start,end"), "{text}");
        fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    }
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test]
async fn rotation_keeps_whole_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let rotation = RotationConfig { max_megabytes: 1, max_backups: 2, ..Default::default() };
    let mut config = config(&path);
    config.rotation = Some(rotation);
    config.flush_interval = ConfigDuration::from_millis(1);
    let (mut exporter, _) = build(config);
    exporter.start().await.unwrap();
    for w in 0..10_u64 {
        let mut usage = Usage::window(w, w + 1);
        for pid in 1..2000 {
            usage = usage.process(pid, "a", 0, 1);
        }
        exporter.export(usage.batch()).await.unwrap();
        lock(&exporter.sink).flush();
    }
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names {
        assert!(fs::metadata(&name).unwrap().len() <= 1 << 20);
        let text = fs::read_to_string(&name).unwrap();
        assert!(text.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()));
    }
}

#[tokio::test]
async fn a_missing_directory_fails_the_start_or_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/out.jsonl");
    let (mut exporter, _) = build(config(&path));
    assert!(matches!(exporter.start().await, Err(ExportError::Fatal(_))));
    run(FileConfig { create_directory: true, ..config(&path) }, 1).await;
    check_lines(&path, 2);
}

#[tokio::test]
async fn csv_has_one_header_even_after_appending() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.csv");
    let csv = FileConfig { format: Format::Csv, append: true, ..config(&path) };
    run(csv.clone(), 1).await;
    run(csv, 1).await;
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().filter(|l| l.starts_with("start,end")).count(), 1);
    assert_eq!(text.lines().count(), 1 + 2 * 7);
}

#[tokio::test]
async fn otlp_json_is_one_request_a_line() {
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.json");
    let counters = run(FileConfig { format: Format::OtlpJson, ..config(&path) }, 3).await;
    assert_eq!(counters.sent.get(), 6);
    let text = fs::read_to_string(&path).unwrap();
    let requests: Vec<ExportMetricsServiceRequest> =
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(requests.len(), 3);
    // As the specification has JSON: names in lower camel case, 64-bit integers as text.
    assert!(text.contains(r#""startTimeUnixNano":"1790000000000000000""#), "{text}");
    assert!(text.contains(r#""asInt":"1""#) && text.contains(r#""aggregationTemporality":2"#));
}

#[tokio::test]
async fn a_recording_holds_what_the_source_sent() {
    use wattpipe_pipeline::testing::SwitchesBuilder;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rec.jsonl");
    let recording = FileConfig { format: Format::Recording, ..config(&path) };
    assert_eq!(FileExporter::takes(&recording), [BatchKind::Switches]);
    let (mut exporter, _) = build(recording);
    exporter.start().await.unwrap();
    let batch = SwitchesBuilder::new().topology(1).switch(100, 0, 0, 7).tick(200, 0, 7).edge(200);
    exporter.export(batch).await.unwrap();
    exporter.shutdown(Duration::from_secs(1)).await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let types: Vec<String> = text
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["type"].to_string())
        .collect();
    assert_eq!(types, ["\"topology\"", "\"switch\"", "\"tick\"", "\"window\""]);
}
