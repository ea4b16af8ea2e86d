//! What the agent uses, and whether what it writes adds up.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process;

/// What a process used at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Without the mapped BPF maps: each reload begins with an untouched ring, which fills.
    rss_kib: u64,
    fds: usize,
    threads: usize,
    cpu_ns: u64,
}

pub(super) fn sample(pid: u32) -> Result<Sample> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let (all, maps) = process::resident(pid)?;
    let rss_kib = all - maps;
    let fds = fs::read_dir(proc.join("fd"))?.count();
    let (mut threads, mut cpu_ns) = (0, 0);
    for task in fs::read_dir(proc.join("task"))?.flatten() {
        threads += 1;
        if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
            cpu_ns += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(Sample { rss_kib, fds, threads, cpu_ns })
}

pub(super) fn line(samples: &[Sample], windows: &Windows) -> String {
    let Some(last) = samples.last() else { return String::new() };
    format!(
        "{} windows add up ({} incomplete, {} switches lost), {} KiB, {} descriptors, {} threads, \
         {:.1} s of CPU",
        windows.count,
        windows.incomplete,
        windows.lost,
        last.rss_kib,
        last.fds,
        last.threads,
        last.cpu_ns as f64 / 1e9
    )
}

/// The last third must look like the second one; the first third warms up.
pub(super) fn flat(samples: &[Sample]) -> Result<()> {
    let third = samples.len() / 3;
    ensure!(third >= 2, "too short to tell");
    let (middle, last) = (&samples[third..2 * third], &samples[2 * third..]);
    let most = |part: &[Sample], of: fn(&Sample) -> u64| part.iter().map(of).max().unwrap_or(0);
    let check = |what: &str, of: fn(&Sample) -> u64, slack: u64| {
        let (a, b) = (most(middle, of), most(last, of));
        println!("{what}: at most {a} in the second third, {b} in the last");
        ensure!(b <= a + a / 10 + slack, "{what} grows: from {a} to {b}");
        Ok(())
    };
    check("KiB resident", |s| s.rss_kib, 2048)?;
    check("descriptors", |s| s.fds as u64, 2)?;
    check("threads", |s| s.threads as u64, 2)?;
    // Threads that end take their share of the sum with them: only growth between samples counts.
    let rate = |part: &[Sample]| {
        let growth: u64 =
            part.windows(2).map(|pair| pair[1].cpu_ns.saturating_sub(pair[0].cpu_ns)).sum();
        growth as f64 / (part.len().max(2) - 1) as f64 / 5e9
    };
    let (a, b) = (rate(middle), rate(last));
    println!("CPUs used: {a:.4} in the second third, {b:.4} in the last");
    ensure!(b <= a * 1.5 + 0.01, "CPU use grows: from {a:.4} to {b:.4}");
    Ok(())
}

/// The windows that the agent has written, read as they come.
pub(super) struct Windows {
    path: PathBuf,
    inode: u64,
    at: u64,
    pending: Vec<u8>,
    open: Option<(Value, u64)>,
    pub(super) count: u64,
    pub(super) incomplete: u64,
    pub(super) lost: u64,
}

impl Windows {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            inode: 0,
            at: 0,
            pending: Vec::new(),
            open: None,
            count: 0,
            incomplete: 0,
            lost: 0,
        }
    }

    /// Checks what is new.
    pub(super) fn check(&mut self) -> Result<()> {
        let Ok(mut file) = fs::File::open(&self.path) else { return Ok(()) };
        let inode = file.metadata()?.ino();
        if inode != self.inode {
            // Rotated: what was at the old file's end is not seen, which is no harm here.
            (self.inode, self.at) = (inode, 0);
            self.pending.clear();
            self.open = None;
        }
        file.seek(SeekFrom::Start(self.at))?;
        self.at += file.read_to_end(&mut self.pending)? as u64;
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let record: Value = serde_json::from_slice(&line)
                .with_context(|| format!("a broken line: {}", String::from_utf8_lossy(&line)))?;
            self.record(record)?;
        }
        Ok(())
    }

    fn record(&mut self, record: Value) -> Result<()> {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        match record["type"].as_str() {
            Some("window") => {
                if let Some((window, rows)) = self.open.take() {
                    ensure!(rows == number(&window["cpu_ns"]["busy"]), "rows {rows}, {window}");
                }
                let cpu = &record["cpu_ns"];
                let sum =
                    number(&cpu["busy"]) + number(&cpu["idle"]) + number(&cpu["unattributed"]);
                let whole = number(&record["cpus"]) * number(&record["duration_ns"]);
                ensure!(sum == whole, "{sum} of {whole} ns: {record}");
                self.count += 1;
                self.incomplete += u64::from(record["complete"] == false);
                self.lost += number(&record["lost"]);
                self.open = Some((record, 0));
            }
            Some("usage") => {
                if let Some((_, rows)) = &mut self.open {
                    *rows += number(&record["cpu_ns"]);
                }
            }
            Some("zone") => {
                let real = |key: &str| record[key].as_f64().unwrap_or(0.0);
                let off = real("joules") - real("active") - real("idle") - real("unattributed");
                ensure!(off.abs() <= 1e-9 * real("joules").max(1.0), "off by {off} J: {record}");
            }
            _ => {}
        }
        Ok(())
    }
}
