//! Small files of sysfs and procfs.

use std::{
    fs,
    io::{self, ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// The trimmed text of a file.
pub(super) fn text(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// The number in a file; what does not parse is `InvalidData`.
pub(super) fn number(path: &Path) -> io::Result<u64> {
    text(path)?.parse().map_err(|_| io::Error::from(ErrorKind::InvalidData))
}

/// As [`number`], but never waits: for finding out what there is.
pub(super) fn number_now(path: &Path) -> io::Result<u64> {
    let mut text = String::new();
    let flags = libc::O_NONBLOCK;
    fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?.read_to_string(&mut text)?;
    text.trim().parse().map_err(|_| io::Error::from(ErrorKind::InvalidData))
}

/// The names in a directory, sorted by number where they end in one; nothing where it is absent.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    names
}

/// Whether the first CPU of `cpuinfo` has this flag.
pub(super) fn cpu_flag(procfs: &Path, flag: &str) -> bool {
    let Ok(cpuinfo) = fs::read_to_string(procfs.join("cpuinfo")) else { return false };
    cpuinfo
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|line| line.split_whitespace().any(|f| f == flag))
}

/// The package of a CPU, where the kernel tells.
pub(super) fn package_of(sysfs: &Path, cpu: u32) -> Option<u32> {
    let path = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    u32::try_from(number(&sysfs.join(path)).ok()?).ok()
}
