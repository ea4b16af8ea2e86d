//! Running other programs: their output goes through, a failure says what was run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Cargo, in the workspace's root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// `program` as root: by sudo where we are not.
pub(crate) fn as_root(program: impl AsRef<std::ffi::OsStr>) -> Command {
    // The owner of our own /proc entry tells who we are.
    use std::os::unix::fs::MetadataExt;
    if fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0) {
        return Command::new(program);
    }
    let mut sudo = Command::new("sudo");
    sudo.arg("-E").arg(program);
    sudo
}

/// Runs to the end; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    let status = command.status().with_context(|| format!("cannot run {line}"))?;
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

/// Runs to the end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {line}"))?;
    ensure!(output.status.success(), "{line}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{line}: output is not UTF-8"))
}

/// KiB resident, and those of them that are mapped BPF maps (the ring is mapped twice).
pub(crate) fn resident(pid: u32) -> Result<(u64, u64)> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"))
        .with_context(|| format!("process {pid} has ended"))?;
    let (mut all, mut maps, mut is_map) = (0, 0, false);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib: u64 = rest.trim().trim_end_matches(" kB").parse()?;
            all += kib;
            maps += if is_map { kib } else { 0 };
        } else if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) {
            is_map = line.contains("bpf-map");
        }
    }
    Ok((all, maps))
}

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
