//! Running other programs: their output goes through, a failure says what was run.

use std::{
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
    if std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0) {
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

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
