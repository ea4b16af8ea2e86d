//! Old files beside the current one: what they are called, and which of them go.
//!
//! `out.jsonl` becomes `out-2026-11-29T18-00-00.000.jsonl` (UTC), the form that users of the
//! Collector's file exporter know.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::config::RotationConfig;

/// Moves the current file away, under a name that is free.
pub(super) fn move_away(path: &Path, now: SystemTime) -> io::Result<PathBuf> {
    let mut at = now;
    loop {
        let backup = backup_path(path, at);
        if !backup.try_exists()? {
            fs::rename(path, &backup)?;
            return Ok(backup);
        }
        at += Duration::from_millis(1);
    }
}

/// Removes backups that are too many or too old.
pub(super) fn prune(path: &Path, config: &RotationConfig, now: SystemTime) -> io::Result<()> {
    let mut backups = backups(path)?;
    // Newest first: the stamp sorts as text.
    backups.sort_by(|a, b| b.0.cmp(&a.0));
    let days = u64::from(config.max_days);
    let oldest =
        now.checked_sub(Duration::from_secs(days * 86_400)).filter(|_| days > 0).map(stamp);
    for (i, (stamp, backup)) in backups.iter().enumerate() {
        let too_many = config.max_backups > 0 && i >= config.max_backups as usize;
        let too_old = oldest.as_ref().is_some_and(|oldest| stamp < oldest);
        if too_many || too_old {
            fs::remove_file(backup)?;
        }
    }
    Ok(())
}

fn backup_path(path: &Path, at: SystemTime) -> PathBuf {
    let (stem, ext) = split(path);
    path.with_file_name(format!("{stem}-{}{ext}", stamp(at)))
}

fn backups(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let (stem, ext) = split(path);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let stamp = name
            .to_str()
            .and_then(|n| n.strip_prefix(&format!("{stem}-")))
            .and_then(|n| n.strip_suffix(&ext));
        if let Some(stamp) = stamp.filter(|s| is_stamp(s)) {
            found.push((stamp.to_owned(), entry.path()));
        }
    }
    Ok(found)
}

fn split(path: &Path) -> (String, String) {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match name.rfind('.').filter(|at| *at > 0) {
        Some(at) => (name[..at].to_owned(), name[at..].to_owned()),
        None => (name, String::new()),
    }
}

/// `2026-11-29T18-00-00.000`.
fn stamp(at: SystemTime) -> String {
    let text = humantime::format_rfc3339_millis(at).to_string();
    text.trim_end_matches('Z').replace(':', "-")
}

fn is_stamp(text: &str) -> bool {
    const FORM: &str = "0000-00-00T00-00-00.000";
    text.len() == FORM.len()
        && text.bytes().zip(FORM.bytes()).all(
            |(c, f)| {
                if f == b'0' { c.is_ascii_digit() } else { c == f }
            },
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_time_and_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        for day in 0..4_u64 {
            fs::write(&path, "x").unwrap();
            move_away(&path, now - Duration::from_secs(day * 86_400)).unwrap();
        }
        fs::write(&path, "x").unwrap();
        assert!(move_away(&path, now).unwrap().ends_with("out-2026-09-21T14-13-20.001.jsonl"));
        fs::write(dir.path().join("out-notes.jsonl"), "mine").unwrap();

        let names = || backups(&path).unwrap().len();
        assert_eq!(names(), 5);
        let config = RotationConfig { max_days: 2, max_backups: 0, ..RotationConfig::default() };
        prune(&path, &config, now).unwrap();
        assert_eq!(names(), 4, "three days ago is gone");
        let config = RotationConfig { max_backups: 1, ..RotationConfig::default() };
        prune(&path, &config, now).unwrap();
        assert_eq!(names(), 1);
        assert!(dir.path().join("out-notes.jsonl").exists());
        assert!(dir.path().join("out-2026-09-21T14-13-20.001.jsonl").exists());
    }
}
