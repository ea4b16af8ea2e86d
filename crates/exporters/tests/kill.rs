//! kill -9 under load. A child process, this test binary itself, writes files and a stored queue
//! as fast as it can until it is killed. Then: every line of every file but possibly the last
//! parses, an appending start cuts that one off (a recording is begun anew), and the queue
//! delivers every window it had taken, at least once.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use support::{Grpc, GrpcOptions, Inbox, context, window};
use wattpipe_exporters::{
    file::{Compression, FileConfig, FileExporter, Format},
    otlp::{OtlpGrpcConfig, OtlpGrpcExporter},
};
use wattpipe_pipeline::{
    Batch, Exporter, ExporterComponent, recording::Record, testing::SwitchesBuilder,
    units::ConfigDuration,
};

/// Where the child writes; unset in the parent.
const DIRECTORY: &str = "WATTPIPE_TEST_KILL_DIRECTORY";

const FILES: [(&str, Format, Compression); 6] = [
    ("out.jsonl", Format::Jsonl, Compression::None),
    ("out.jsonl.zst", Format::Jsonl, Compression::Zstd),
    ("out.csv", Format::Csv, Compression::None),
    ("out.json", Format::OtlpJson, Compression::None),
    ("out.rec", Format::Recording, Compression::None),
    ("out.rec.zst", Format::Recording, Compression::Zstd),
];

/// What a file of this format takes.
fn batch(format: Format, n: u64) -> Batch {
    if format != Format::Recording {
        return window(n, 200).batch();
    }
    let mut batch = SwitchesBuilder::new().topology(1);
    for at in 0..2000 {
        batch = batch.switch(n * 10_000 + at, 0, 0, 7);
    }
    batch.edge(n * 10_000 + 2000)
}

fn file(
    directory: &Path,
    (name, format, compression): (&str, Format, Compression),
) -> FileExporter {
    let config = FileConfig {
        path: directory.join(name),
        format,
        compression,
        append: format != Format::Recording,
        flush_interval: ConfigDuration::from_millis(1),
        ..FileConfig::default()
    };
    FileExporter::build(config, &context("file")).unwrap()
}

fn queue(directory: &Path, endpoint: String) -> OtlpGrpcExporter {
    let mut config = OtlpGrpcConfig { endpoint, ..OtlpGrpcConfig::default() };
    config.sending_queue.storage = Some(directory.join("queue"));
    config.retry_on_failure.initial_interval = ConfigDuration::from_millis(50);
    OtlpGrpcExporter::build(config, &context("otlp_grpc")).unwrap()
}

/// The child. Does nothing when it runs as an ordinary test.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let mut files = FILES.map(|f| file(directory, f));
    // Nobody listens there: everything stays in the queue.
    let mut queue = queue(directory, "127.0.0.1:9".into());
    for file in &mut files {
        file.start().await.unwrap();
    }
    queue.start().await.unwrap();
    let mut taken =
        OpenOptions::new().create(true).append(true).open(directory.join("taken")).unwrap();
    for n in 0.. {
        for (file, (_, format, _)) in files.iter_mut().zip(FILES) {
            file.export(batch(format, n)).await.unwrap();
        }
        queue.export(window(n, 20).batch()).await.unwrap();
        writeln!(taken, "{n}").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_leaves_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=2 {
        kill_one(dir.path(), round * 6);
        check_files(dir.path()).await;
    }
    check_queue(dir.path()).await;
}

/// Runs the child until it has done `windows` more windows, then kills it.
fn kill_one(directory: &Path, windows: usize) {
    let before = taken(directory).len();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Each window is synced to the disk.
    let until = Instant::now() + Duration::from_secs(300);
    while taken(directory).len() < before + windows {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "the child failed");
        std::thread::sleep(Duration::from_millis(7));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn taken(directory: &Path) -> Vec<u64> {
    let text = fs::read_to_string(directory.join("taken")).unwrap_or_default();
    text.lines().filter_map(|l| l.parse().ok()).collect()
}

async fn check_files(directory: &Path) {
    for which in FILES {
        let (name, format, compression) = which;
        let path = directory.join(name);
        let text = readable(&path, compression);
        let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        assert!(!whole.is_empty(), "{name}");
        check_lines(whole, format);
        if format == Format::Recording {
            continue;
        }
        // A start that appends cuts what is incomplete, and only that.
        let before = fs::metadata(&path).unwrap().len();
        let mut exporter = file(directory, which);
        exporter.start().await.unwrap();
        exporter.shutdown(Duration::from_secs(1)).await.unwrap();
        let after = fs::metadata(&path).unwrap().len();
        assert!(after <= before && after > 0);
        let text = readable(&path, compression);
        assert!(text.ends_with('\n'));
        check_lines(&text, format);
    }
}

/// A file's text, as far as it can be read.
fn readable(path: &Path, compression: Compression) -> String {
    let bytes = fs::read(path).unwrap();
    if compression == Compression::None {
        return String::from_utf8(bytes).unwrap();
    }
    let mut text = Vec::new();
    let _ = zstd::Decoder::new(&bytes[..]).unwrap().read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

fn check_lines(text: &str, format: Format) {
    if format == Format::Recording {
        assert!(text.lines().all(|l| serde_json::from_str::<Record<'_>>(l).is_ok()));
    } else if format == Format::Csv {
        let columns = text.lines().next().unwrap().split(',').count();
        assert!(text.lines().all(|l| l.split(',').count() == columns));
        assert_eq!(text.matches("start,end,record").count(), 1);
    } else {
        for line in text.lines() {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
}

/// A receiver at last: it gets every window of every life of the child.
async fn check_queue(directory: &Path) {
    let inbox = Inbox::default();
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    let mut exporter = queue(directory, receiver.address.to_string());
    exporter.start().await.unwrap();
    exporter.shutdown(support::PATIENCE).await.unwrap();
    let lives = taken(directory);
    let points = inbox.points();
    let got: BTreeSet<u64> = points
        .iter()
        .map(|(_, _, p)| {
            (p.time_unix_nano - wattpipe_exporters::testing::BOOT_UNIX_NS) / 1_000_000_000 - 1
        })
        .collect();
    // Windows are numbered from 0 in each life; the longest life holds all numbers.
    let longest = lives.iter().copied().max().unwrap();
    assert!((0..=longest).all(|n| got.contains(&n)), "of {longest}: {got:?}");
    assert!(points.len() >= lives.len() * 40, "{} points of {} windows", points.len(), lives.len());
}
