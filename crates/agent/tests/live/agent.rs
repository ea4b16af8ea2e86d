//! The real binary, and the records it prints.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use super::wait_for;

/// A `window` record.
#[derive(Clone, Debug)]
pub struct Window {
    /// Unix nanoseconds.
    pub start: u64,
    pub end: u64,
    pub duration: u64,
    pub cpus: u64,
    pub busy: u64,
    pub idle: u64,
    pub unattributed: u64,
    pub lost: u64,
    pub complete: bool,
}

/// A `usage` record.
#[derive(Clone, Debug)]
pub struct Usage {
    pub end: u64,
    pub pid: u32,
    pub name: String,
    pub created: String,
    pub exited: bool,
    pub cpu: u64,
    pub cycles: Option<u64>,
    pub switches: u64,
    pub joules: Option<f64>,
}

/// A `zone` record.
#[derive(Clone, Debug)]
pub struct Zone {
    pub name: String,
    pub source: String,
    pub joules: f64,
    pub active: f64,
    pub idle: f64,
    pub unattributed: f64,
}

/// Everything printed so far.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub windows: Vec<Window>,
    pub usage: Vec<Usage>,
    pub zones: Vec<Zone>,
    /// A last line without its end.
    pub partial: bool,
}

/// CPU time and switches of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub cpu: u64,
    pub switches: u64,
}

impl Records {
    /// Sums by process id over the windows that end up to `until` (unix ns).
    pub fn by_pid(&self, until: u64) -> BTreeMap<u32, Sum> {
        let mut sums = BTreeMap::<u32, Sum>::new();
        for row in self.usage.iter().filter(|row| row.end <= until) {
            let sum = sums.entry(row.pid).or_default();
            sum.cpu += row.cpu;
            sum.switches += row.switches;
        }
        sums
    }

    fn line(&mut self, line: &str) {
        let value: Value = serde_json::from_str(line)
            .unwrap_or_else(|e| panic!("a line that is no record ({e}): {line}"));
        let number = |path: &str| value.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let text =
            |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let end = unix_ns(&text("/end"));
        match value["type"].as_str() {
            Some("window") => self.windows.push(Window {
                start: unix_ns(&text("/start")),
                end,
                duration: number("/duration_ns"),
                cpus: number("/cpus"),
                busy: number("/cpu_ns/busy"),
                idle: number("/cpu_ns/idle"),
                unattributed: number("/cpu_ns/unattributed"),
                lost: number("/lost"),
                complete: value["complete"].as_bool().unwrap_or(false),
            }),
            Some("usage") => self.usage.push(Usage {
                end,
                pid: u32::try_from(number("/attributes/process.pid")).expect("a process id"),
                name: text("/attributes/process.executable.name"),
                created: text("/attributes/process.creation.time"),
                exited: value["state"] == "exited",
                cpu: number("/cpu_ns"),
                cycles: value["cycles"].as_u64(),
                switches: number("/switches"),
                joules: value["joules_total"].as_f64(),
            }),
            Some("zone") => {
                let real = |key: &str| value[key].as_f64().unwrap_or(f64::NAN);
                self.zones.push(Zone {
                    name: text("/zone"),
                    source: text("/source"),
                    joules: real("joules"),
                    active: real("active"),
                    idle: real("idle"),
                    unattributed: real("unattributed"),
                });
            }
            _ => {}
        }
    }
}

/// Nanoseconds of `2026-01-02T03:04:05.678901234Z`.
pub fn unix_ns(text: &str) -> u64 {
    let (whole, fraction) = text.trim_end_matches('Z').split_once('.').expect("nine decimals");
    let parts: Vec<u64> =
        whole.split(['-', 'T', ':']).map(|p| p.parse().expect("a number")).collect();
    let [year, month, day, hour, minute, second] = parts[..] else { panic!("no time: {text}") };
    // Days by the civil calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - 719_468;
    ((days * 24 + hour) * 60 + minute) * 60_000_000_000
        + second * 1_000_000_000
        + fraction.parse::<u64>().expect("a number")
}

pub fn unix_now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos())
        .expect("a time of this century")
}

/// The real binary: the one that was built with the tests, or (in a virtual machine) `$WATTPIPE`.
pub fn program() -> OsString {
    std::env::var_os("WATTPIPE").unwrap_or_else(|| env!("CARGO_BIN_EXE_wattpipe").into())
}

/// A configuration with `ebpf` (its body given), `delta` and JSON lines.
pub fn live_config(ebpf: &str) -> String {
    format!(
        "sources: {{ebpf: {{{ebpf}}}}}\nprocessors: {{delta: {{}}}}\n\
         exporters: {{stdout: {{format: json}}}}\nservice: {{pipelines: {{p: \
         {{sources: [ebpf], processors: [delta], exporters: [stdout]}}}}}}\n"
    )
}

/// A running agent. Its standard output is read all the time.
pub struct Agent {
    pub child: Child,
    pub started: Instant,
    dir: tempfile::TempDir,
    records: Arc<Mutex<Records>>,
    reader: Option<JoinHandle<()>>,
    errors: Option<ChildStderr>,
}

impl Agent {
    pub fn start(config: &str) -> Self {
        Self::start_with(config, |_| {})
    }

    pub fn start_with(config: &str, adjust: impl FnOnce(&mut Command)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("config.yaml");
        fs::write(&path, config).expect("writing the configuration");
        let mut command = Command::new(program());
        command.arg("--config").arg(path).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        adjust(&mut command);
        let started = Instant::now();
        let mut child = command.spawn().expect("starting wattpipe");
        let records = Arc::new(Mutex::new(Records::default()));
        let reader = child.stdout.take().map(|output| {
            let records = Arc::clone(&records);
            thread::spawn(move || read(output, &records))
        });
        let errors = child.stderr.take();
        Self { child, started, dir, records, reader, errors }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn records(&self) -> Records {
        self.records.lock().expect("a lock").clone()
    }

    /// Waits for `count` windows more than there are now.
    #[track_caller]
    pub fn wait_windows(&mut self, count: usize) {
        let before = self.windows();
        wait_for("windows of the agent", 120, || {
            assert!(self.child.try_wait().expect("a status").is_none(), "it ended: {}", self.log());
            self.windows() >= before + count
        });
    }

    pub fn windows(&self) -> usize {
        self.records.lock().expect("a lock").windows.len()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).expect("a process id"));
        nix::sys::signal::kill(pid, signal).expect("a signal");
    }

    /// Waits for its end; gives its status and everything it printed.
    #[track_caller]
    pub fn ended(mut self) -> (ExitStatus, Records, String) {
        let end = Instant::now() + Duration::from_secs(120);
        let status = loop {
            match self.child.try_wait().expect("a status") {
                Some(status) => break status,
                None if Instant::now() > end => panic!("it does not end"),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        if let Some(reader) = self.reader.take() {
            reader.join().expect("whole records");
        }
        let log = self.log();
        (status, self.records(), log)
    }

    /// What it has logged; only after its end.
    fn log(&mut self) -> String {
        let mut log = String::new();
        if let Some(mut errors) = self.errors.take() {
            let _ = errors.read_to_string(&mut log);
        }
        log
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn read(output: impl Read, records: &Mutex<Records>) {
    let mut output = BufReader::new(output);
    let mut line = String::new();
    while matches!(output.read_line(&mut line), Ok(read) if read > 0) {
        let mut records = records.lock().expect("a lock");
        match line.strip_suffix('\n') {
            Some(line) => records.line(line),
            None => records.partial = true,
        }
        line.clear();
    }
}
