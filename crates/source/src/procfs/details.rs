//! What `/proc/<pid>` says about one process beyond its CPU time.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use nix::time::ClockId;
use procfs_crate::{FromRead, process::Stat};
use wattpipe_pipeline::{
    identity::ProcessKind,
    units::{Nanos, Tgid},
};

/// The kernel's flag of its own threads.
const PF_KTHREAD: u32 = 0x0020_0000;
/// A command line is cut here: some are megabytes.
const MAX_COMMAND_LINE: u64 = 4096;

/// One process as `/proc` tells it. What could not be read (it vanished, or no right) is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Start since boot, suspended time included, to one tick (10 ms).
    pub started: Nanos,
    /// Its parent.
    pub ppid: Option<Tgid>,
    /// Its name.
    pub comm: String,
    /// Path of the executable.
    pub exe: Option<String>,
    /// Real user id.
    pub uid: Option<u32>,
    /// User process or kernel thread.
    pub kind: Option<ProcessKind>,
    /// The text of `/proc/<pid>/cgroup`.
    pub cgroups: Option<String>,
    /// Arguments, joined by spaces; only where asked for.
    pub command_line: Option<String>,
}

/// Reads a process. `None` where it is not (or no longer) there.
pub fn read(procfs: &Path, pid: Tgid, command_line: bool) -> Option<Details> {
    let directory = procfs.join(pid.to_string());
    let stat = read_stat(&directory).ok()?;
    let mut details = of_stat(&stat);
    details.uid = fs::read_to_string(directory.join("status")).ok().and_then(|s| real_uid(&s));
    details.cgroups = fs::read_to_string(directory.join("cgroup")).ok();
    if details.kind != Some(ProcessKind::Kernel) {
        details.exe = fs::read_link(directory.join("exe")).ok().map(|exe| {
            let exe = exe.to_string_lossy();
            exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned()
        });
        if command_line {
            details.command_line = read_command_line(&directory);
        }
    }
    Some(details)
}

/// The parsed `stat` file of a process's (or thread's) directory.
pub fn read_stat(directory: &Path) -> io::Result<Stat> {
    let text = fs::read(directory.join("stat"))?;
    Stat::from_read(text.as_slice()).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// What `stat` alone says.
pub fn of_stat(stat: &Stat) -> Details {
    let tick = 1_000_000_000 / procfs_crate::ticks_per_second().max(1);
    let kernel = stat.flags & PF_KTHREAD != 0;
    Details {
        started: Nanos(stat.starttime.saturating_mul(tick)),
        ppid: u32::try_from(stat.ppid).ok().map(Tgid),
        comm: stat.comm.clone(),
        kind: Some(if kernel { ProcessKind::Kernel } else { ProcessKind::User }),
        ..Details::default()
    }
}

impl Details {
    /// Whether this is the process that started at `start` on `CLOCK_MONOTONIC`, rather than a
    /// later one with the same pid. `suspended` is how far `CLOCK_BOOTTIME` is ahead now; when the
    /// process started it may have been less.
    pub fn started_at(&self, start: Nanos, suspended: Nanos) -> bool {
        let slack = 20_000_000;
        self.started.0 + slack >= start.0 && self.started.0 <= start.0 + suspended.0 + slack
    }
}

/// How far `CLOCK_BOOTTIME` is ahead of `CLOCK_MONOTONIC`: the time the host was suspended.
pub fn suspended() -> Nanos {
    let now = |clock: ClockId| {
        clock.now().map_or(0, |t| {
            u64::try_from(t.tv_sec()).unwrap_or(0) * 1_000_000_000
                + u64::try_from(t.tv_nsec()).unwrap_or(0)
        })
    };
    Nanos(now(ClockId::CLOCK_BOOTTIME).saturating_sub(now(ClockId::CLOCK_MONOTONIC)))
}

fn real_uid(status: &str) -> Option<u32> {
    let uids = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    uids.split_ascii_whitespace().next()?.parse().ok()
}

fn read_command_line(directory: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(directory.join("cmdline")).ok()?;
    file.take(MAX_COMMAND_LINE).read_to_end(&mut bytes).ok()?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    for byte in &mut bytes {
        if *byte == 0 {
            *byte = b' ';
        }
    }
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 1 0 250 1000000 200 \
        18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let seven = dir.path().join("7");
        fs::create_dir(&seven).unwrap();
        fs::write(seven.join("stat"), STAT).unwrap();
        fs::write(seven.join("status"), "Name:\ta\nUid:\t33\t0\t0\t0\n").unwrap();
        fs::write(seven.join("cgroup"), "0::/system.slice/a.service\n").unwrap();
        fs::write(seven.join("cmdline"), b"a\0--b=1\n2\0\0").unwrap();
        std::os::unix::fs::symlink("/usr/bin/a (deleted)", seven.join("exe")).unwrap();
        dir
    }

    #[test]
    fn a_process_of_a_tree() {
        let dir = tree();
        let got = read(dir.path(), Tgid(7), true).unwrap();
        assert_eq!(got.comm, "a) b");
        assert_eq!(got.ppid, Some(Tgid(1)));
        assert_eq!(got.uid, Some(33));
        assert_eq!(got.exe.as_deref(), Some("/usr/bin/a"));
        assert_eq!(got.kind, Some(ProcessKind::User));
        assert_eq!(got.cgroups.as_deref(), Some("0::/system.slice/a.service\n"));
        assert_eq!(got.command_line.as_deref(), Some("a --b=1\n2"));
        assert_eq!(read(dir.path(), Tgid(7), false).unwrap().command_line, None);
        assert_eq!(read(dir.path(), Tgid(8), true), None);
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let of = |started| Details { started: Nanos(started), ..Details::default() };
        let second = 1_000_000_000;
        assert!(of(5 * second).started_at(Nanos(5 * second + 9_000_000), Nanos(0)));
        assert!(!of(6 * second).started_at(Nanos(5 * second), Nanos(0)));
        assert!(!of(4 * second).started_at(Nanos(5 * second), Nanos(0)));
        // Two seconds of suspension before it started.
        assert!(of(7 * second).started_at(Nanos(5 * second), Nanos(2 * second)));
    }

    #[test]
    fn this_process() {
        let got = read(Path::new("/proc"), Tgid(std::process::id()), true).unwrap();
        assert!(got.exe.is_some() && got.uid.is_some() && got.started.0 > 0);
    }
}
