//! What `exec` tells: a few lines on standard error, and JSON on request.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use super::{Members, Totals};

/// How CPU time was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Method {
    /// By every context switch.
    Switches,
    /// By the kernel's account of children that were waited for.
    Accounting,
}

/// A measurement.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    command: Vec<String>,
    exit_status: u8,
    elapsed_seconds: f64,
    cpu_seconds: f64,
    /// The kernel's own account, to compare with.
    rusage_cpu_seconds: f64,
    processes: Option<usize>,
    /// Descendants that outlive the command: what they use later is not in these figures.
    processes_still_running: Option<usize>,
    switches: Option<u64>,
    joules: Option<f64>,
    joules_by_zone: std::collections::BTreeMap<String, f64>,
    average_watts: Option<f64>,
    /// The joules are an estimate: no meter reads here.
    estimated: bool,
    method: Method,
    lost_switches: u64,
}

impl Report {
    pub(super) fn new(
        command: &[OsString],
        exit_status: u8,
        elapsed: Duration,
        accounted: Duration,
        method: Method,
        totals: &Totals,
        members: &Members,
    ) -> Self {
        let sums = totals.get();
        let by_switches = method == Method::Switches;
        let cpu_seconds = match method {
            Method::Switches => sums.cpu_ns as f64 / 1e9,
            Method::Accounting => accounted.as_secs_f64(),
        };
        let joules = match method {
            Method::Switches => sums.joules,
            Method::Accounting => sums.host_joules.map(|joules| {
                let busy = sums.host_busy_ns as f64 / 1e9;
                if busy > 0.0 { joules * (cpu_seconds / busy).min(1.0) } else { 0.0 }
            }),
        };
        Self {
            command: command.iter().map(|a| a.to_string_lossy().into_owned()).collect(),
            exit_status,
            elapsed_seconds: elapsed.as_secs_f64(),
            cpu_seconds,
            rusage_cpu_seconds: accounted.as_secs_f64(),
            processes: by_switches.then(|| members.count()),
            processes_still_running: by_switches.then(|| members.still_run()),
            switches: by_switches.then_some(sums.switches),
            joules,
            joules_by_zone: sums.zones,
            average_watts: joules.map(|j| j / elapsed.as_secs_f64().max(1e-9)),
            estimated: sums.estimated,
            method,
            lost_switches: sums.lost,
        }
    }

    /// Prints it on standard error: standard output is the command's.
    pub(super) fn print(&self) {
        let mut err = std::io::stderr().lock();
        let _ = write!(err, "{}", self.text());
    }

    fn text(&self) -> String {
        use std::fmt::Write as _;
        let mut out = String::from("\n");
        let how = match self.method {
            Method::Switches => "every context switch",
            Method::Accounting => "the kernel's account of children",
        };
        let _ = writeln!(out, "{:>14.6} s    elapsed", self.elapsed_seconds);
        let _ = writeln!(out, "{:>14.6} s    CPU time, by {how}", self.cpu_seconds);
        let est = if self.estimated { "est. " } else { "" };
        match (self.joules, self.average_watts) {
            (Some(joules), Some(watts)) => {
                let _ = writeln!(out, "{joules:>14.3} J    {est}energy");
                for (zone, joules) in &self.joules_by_zone {
                    if self.joules_by_zone.len() > 1 {
                        let _ = writeln!(out, "{joules:>14.3} J      {zone}");
                    }
                }
                let _ = writeln!(out, "{watts:>14.3} W    {est}average power");
            }
            _ => {
                let _ =
                    writeln!(out, "             -      no energy: no meter and no estimate here");
            }
        }
        if let (Some(processes), Some(switches)) = (self.processes, self.switches) {
            let _ = writeln!(out, "{processes:>14}      processes, {switches} switches");
        }
        if let Some(still @ 1..) = self.processes_still_running {
            let _ = writeln!(
                out,
                "{still} of them still run, beyond the command's end: what they use from now on is \
                 not counted; let the command wait for them"
            );
        }
        if self.lost_switches > 0 {
            let _ = writeln!(
                out,
                "{} switches were lost: CPU time may be too small",
                self.lost_switches
            );
        }
        out
    }
}

/// Where a report goes as JSON.
pub(super) struct JsonFile {
    path: PathBuf,
    file: Box<dyn io::Write>,
}

impl JsonFile {
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        let file: Box<dyn io::Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            Box::new(File::create(path).map_err(|e| Self::failed(path, &e))?)
        };
        Ok(Self { path: path.to_owned(), file })
    }

    pub(super) fn write(mut self, report: &Report) -> Result<(), String> {
        let mut text = serde_json::to_string_pretty(report).map_err(|e| e.to_string())?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(|e| Self::failed(&self.path, &e))
    }

    fn failed(path: &Path, error: &io::Error) -> String {
        format!("cannot write {} (--json): {error}", path.display())
    }
}
