//! What this host does not have of what a configuration names: files to read, folders to write to.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use wattpipe_pipeline::ConfigProblem;

/// Why `path` could not be written as a file, if anything is in the way.
pub(crate) fn writable_file(key: &str, path: &Path, makes_folder: bool) -> Option<ConfigProblem> {
    if path.is_dir() {
        let what = format!("`{}` is a folder: name a file in it", path.display());
        return Some(ConfigProblem::at(key, what));
    }
    if path.exists() {
        return (!may_write(path)).then(|| not_allowed(key, path));
    }
    let folder = parent(path);
    if makes_folder {
        return writable_folder(key, &folder);
    }
    if !folder.is_dir() {
        let what = format!(
            "the folder `{}` does not exist: make it, set `create_directory: true`, or have the service make it (systemd's `StateDirectory=`)",
            folder.display()
        );
        return Some(ConfigProblem::at(key, what));
    }
    (!may_write(&folder)).then(|| not_allowed(key, &folder))
}

/// Why `path` could not be made, or written in, as a folder.
pub(crate) fn writable_folder(key: &str, path: &Path) -> Option<ConfigProblem> {
    let mut there = path.to_owned();
    while !there.exists() {
        there = parent(&there);
        if there.as_os_str() == "." || there.parent().is_none() {
            break;
        }
    }
    if !there.is_dir() {
        let what = format!("`{}` is no folder: name another", there.display());
        return Some(ConfigProblem::at(key, what));
    }
    (!may_write(&there)).then(|| not_allowed(key, &there))
}

/// Why `path` could not be read, if it is named at all.
pub(crate) fn readable(key: &str, path: Option<&Path>) -> Option<ConfigProblem> {
    let path = path?;
    let e = access(path, Access::READ_OK).err()?;
    let what = format!("`{}` cannot be read: {e}; check the path", path.display());
    Some(ConfigProblem::at(key, what))
}

fn not_allowed(key: &str, path: &Path) -> ConfigProblem {
    let what = format!(
        "`{}` is not writable for this user: run as one who may, or name another place",
        path.display()
    );
    ConfigProblem::at(key, what)
}

fn may_write(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

    use super::*;

    #[track_caller]
    fn check(problem: Option<ConfigProblem>, expected: Option<&str>) {
        match (problem.map(|p| p.message), expected) {
            (None, None) => {}
            (Some(got), Some(part)) if got.contains(part) => {}
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "").unwrap();
        check(writable_file("path", &at("file"), false), None);
        check(writable_file("path", &at("new"), false), None);
        check(writable_file("path", Path::new("/dev/null"), false), None);
        check(writable_file("path", dir.path(), false), Some("is a folder"));
        check(writable_file("path", &at("a/b"), false), Some("/a` does not exist"));
        check(writable_file("path", &at("a/b/c"), true), None);
        check(writable_file("path", &at("file/b/c"), true), Some("is no folder"));
        check(writable_folder("path", &at("a/b")), None);
        check(writable_folder("path", &at("file")), Some("is no folder"));
        check(readable("ca_file", None), None);
        check(readable("ca_file", Some(&at("file"))), None);
        check(readable("ca_file", Some(&at("none"))), Some("No such file"));
    }

    /// Root may write everywhere but in what is mounted read-only.
    #[test]
    fn a_folder_of_somebody_elses() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let path = dir.path().join("out");
        let expected = (!may_write(dir.path())).then_some("not writable for this user");
        assert!(expected.is_some() || fs::metadata("/proc/self").unwrap().uid() == 0);
        check(writable_file("path", &path, false), expected);
        check(writable_folder("path", &path), expected);
    }
}
