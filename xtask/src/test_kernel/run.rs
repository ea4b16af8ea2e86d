//! One kernel: its RAM disk, QEMU, and what the guest said.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Kernel, build::Programs, cpio::Archive, fetch, module};

/// No guest takes longer than this, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(2400);

/// What became of a test in a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) passed: bool,
    /// The line that says most.
    pub(super) note: String,
    /// What QEMU had of this machine meanwhile: a failure of a starved guest may mean nothing.
    #[serde(default)]
    pub(super) host: Share,
}

/// Seconds of CPU that a process had, and that its threads waited for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Share {
    pub(super) ran: f64,
    pub(super) waited: f64,
}

impl Share {
    /// Of a process by now; nothing when it has ended.
    fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.fold(Self::default(), |sum, task| {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let mut seconds =
                text.split(' ').map(|field| field.parse::<f64>().unwrap_or(0.0) / 1e9);
            Self {
                ran: sum.ran + seconds.next().unwrap_or(0.0),
                waited: sum.waited + seconds.next().unwrap_or(0.0),
            }
        })
    }

    fn since(self, before: Self) -> Self {
        Self { ran: self.ran - before.ran, waited: self.waited - before.waited }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QEMU ran {:.0} s and waited {:.0} s for a CPU", self.ran, self.waited)
    }
}

/// A line of the serial console, and QEMU's share when it came.
struct Line {
    text: String,
    host: Share,
}

/// What a kernel did.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) release: String,
    pub(super) date: String,
    pub(super) seconds: u64,
    pub(super) cells: BTreeMap<String, Cell>,
}

impl Outcome {
    /// A kernel that could not be fetched, booted, or brought to its end.
    pub(super) fn broken(kernel: &Kernel, error: &anyhow::Error) -> Self {
        let cell = Cell { note: format!("{error:#}"), ..Cell::default() };
        Self {
            name: kernel.name(),
            release: "did not run".to_owned(),
            date: String::new(),
            seconds: 0,
            cells: BTreeMap::from([("boot".to_owned(), cell)]),
        }
    }

    pub(super) fn print(&self) {
        println!("{} ({}), {} s", self.name, self.release, self.seconds);
        for (test, cell) in &self.cells {
            println!("  {test}: {} ({})", if cell.passed { "ok" } else { &cell.note }, cell.host);
        }
    }

    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.cells.iter().filter(|(_, cell)| !cell.passed);
        failed.map(|(test, _)| format!("{} on {}", test, self.name)).collect()
    }

    pub(super) fn save(&self, cache: &Path) -> Result<()> {
        let dir = cache.join("results");
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("{}.json", self.name)), serde_json::to_vec_pretty(self)?)?;
        Ok(())
    }
}

pub(super) fn one(kernel: &Kernel, programs: &Programs, cache: &Path) -> Result<Outcome> {
    let fetched = fetch::kernel(kernel, cache)?;
    let modules = if kernel.powercap { module::powercap(kernel, &fetched, cache)? } else { vec![] };
    let disk = cache.join(format!("{}.cpio", kernel.name()));
    fs::write(&disk, ram_disk(kernel, programs, &modules, cache)?)?;
    println!("booting {} ({})", kernel.name(), fetched.release);

    let started = Instant::now();
    let log = cache.join(format!("{}.log", kernel.name()));
    let lines = boot(kernel, &fetched.image, &disk, &log)?;
    let mut cells = cells(&lines);
    if cells.is_empty() {
        bail!("no test of the guest came to its end; see {}.log in the cache", kernel.name());
    }
    let done = lines.iter().any(|line| line.text.contains("GUEST DONE"));
    let host = lines.last().map(|line| line.host).unwrap_or_default();
    let note = if done { host.to_string() } else { "the guest did not come to its end".to_owned() };
    cells.insert("boot".to_owned(), Cell { passed: done, note, host });
    let date = crate::process::output(Command::new("date").args(["-u", "+%F"]))?;
    Ok(Outcome {
        name: kernel.name(),
        release: fetched.release,
        date: date.trim().to_owned(),
        seconds: started.elapsed().as_secs(),
        cells,
    })
}

fn ram_disk(
    kernel: &Kernel,
    programs: &Programs,
    modules: &[std::path::PathBuf],
    cache: &Path,
) -> Result<Vec<u8>> {
    let mut disk = Archive::new();
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "run", "test", "test/modules"] {
        disk.folder(folder);
    }
    disk.device("dev/console", 5, 1);
    disk.device("dev/null", 1, 3);
    disk.program_from("bin/busybox", &fetch::busybox(kernel.arch, cache)?)?;
    disk.link("bin/sh", "busybox");
    disk.program("init", include_bytes!("init.sh"));
    disk.program_from("test/source", &programs.source)?;
    disk.program_from("test/guest", &programs.guest)?;
    disk.program_from("test/faults", &programs.faults)?;
    disk.program_from("test/wattpipe", &programs.wattpipe)?;
    for path in modules {
        let name = path.file_name().context("a module without a name")?.to_string_lossy();
        disk.program_from(&format!("test/modules/{name}"), path)?;
    }
    Ok(disk.finish())
}

/// Boots, and returns what came over the serial line; it stands in the log as soon as it comes.
fn boot(kernel: &Kernel, image: &Path, disk: &Path, log: &Path) -> Result<Vec<Line>> {
    let arch = kernel.arch;
    let mut guest = Command::new(arch.qemu)
        .args(arch.machine)
        .args(["-m", "2048", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(disk)
        .arg("-append")
        .arg(format!("console={} panic=-1 mitigations=off loglevel=4", arch.console))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", arch.qemu))?;
    let output = guest.stdout.take().context("no output")?;
    let mut log = fs::File::create(log)?;
    let pid = guest.id();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while matches!(output.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let _ = writeln!(log, "{text}");
            if send.send(Line { text, host: Share::of(pid) }).is_err() {
                return;
            }
            line.clear();
        }
    });
    let end = Instant::now() + PATIENCE;
    let mut lines = Vec::new();
    while let Ok(line) = receive.recv_timeout(end.saturating_duration_since(Instant::now())) {
        lines.push(line);
    }
    let _ = guest.kill();
    guest.wait()?;
    Ok(lines)
}

/// Reads `CELL name ok` and `CELL name failed`; the note is what the test printed that tells most.
fn cells(lines: &[Line]) -> BTreeMap<String, Cell> {
    let mut cells = BTreeMap::new();
    let mut since: Vec<&str> = Vec::new();
    let mut before = Share::default();
    for line in lines {
        if let Some(rest) = line.text.trim().strip_prefix("CELL ") {
            let (name, outcome) = rest.rsplit_once(' ').unwrap_or((rest, "failed"));
            let passed = outcome == "ok";
            let cell = Cell { passed, note: note(&since, passed), host: line.host.since(before) };
            cells.insert(name.to_owned(), cell);
            since.clear();
            before = line.host;
        } else {
            since.push(&line.text);
        }
    }
    cells
}

/// Of a failure what the panic says; of a success the figures it printed.
fn note(lines: &[&str], passed: bool) -> String {
    if passed {
        let figures = lines.iter().filter(|line| line.starts_with("  ")).map(|line| line.trim());
        return figures.collect::<Vec<_>>().join("; ");
    }
    let panic = lines.iter().position(|line| line.contains("panicked at"));
    let said = panic.and_then(|at| lines.get(at + 1)).or(lines.last());
    said.map_or_else(String::new, |line| line.chars().take(300).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_becomes_cells() {
        let text =
            "boot\nCELL a ok\n  1.0 GHz\nCELL b c ok\nthread panicked at x\nwhy\nCELL d failed";
        let lines: Vec<Line> = text
            .lines()
            .zip(1_u32..)
            .map(|(text, n)| Line {
                text: text.to_owned(),
                host: Share { ran: f64::from(n), waited: 0.0 },
            })
            .collect();
        let cells = cells(&lines);
        let check = |name: &str, passed, note: &str, ran| {
            let host = Share { ran, waited: 0.0 };
            assert_eq!(cells[name], Cell { passed, note: note.to_owned(), host });
        };
        check("a", true, "", 2.0);
        check("b c", true, "1.0 GHz", 2.0);
        check("d", false, "why", 3.0);
    }
}
