//! Which cgroup hierarchy is in use, and the paths behind the kernel's cgroup ids.
//!
//! Ids (inodes) are per hierarchy, so everybody must mean the same one: the probe reads a task's
//! id in it, [`tree`] resolves that id, and `/proc/<pid>/cgroup` has one line for it.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use wattpipe_pipeline::registry::HostRoots;

pub mod tree;

pub use tree::CgroupTree;

/// The two kinds of hierarchies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One tree per controller.
    V1,
    /// The unified tree.
    V2,
}

/// The hierarchy in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where its root directory is.
    pub mount: PathBuf,
    /// Its kind.
    pub version: Version,
    /// `unified`, a v1 controller (`cpuacct`, `memory`), or `name=systemd`.
    pub name: &'static str,
}

/// v1 hierarchies in order of preference: name, and the directories it is found under.
const V1: [(&str, &[&str]); 3] = [
    ("cpuacct", &["cpuacct", "cpu,cpuacct", "cpuacct,cpu"]),
    ("memory", &["memory"]),
    ("name=systemd", &["systemd"]),
];

/// The hierarchy in use below `host.cgroupfs`: v2 where it is populated, else the v1 tree of
/// `cpuacct`, `memory` or `name=systemd`. `None` where there is no cgroup file system.
///
/// The first answer stays: a container that starts meanwhile may populate the v2 tree, and the
/// probe, the paths and `/proc` must go on meaning the same one.
pub fn hierarchy(host: &HostRoots) -> Option<Hierarchy> {
    static FOUND: Mutex<Option<HashMap<PathBuf, Hierarchy>>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let known = found.get_or_insert_default();
    if let Some(hierarchy) = known.get(&host.cgroupfs) {
        return Some(hierarchy.clone());
    }
    let hierarchy = find(host)?;
    known.insert(host.cgroupfs.clone(), hierarchy.clone());
    Some(hierarchy)
}

fn find(host: &HostRoots) -> Option<Hierarchy> {
    let root = &host.cgroupfs;
    let v2 = |mount: PathBuf| Hierarchy { mount, version: Version::V2, name: "unified" };
    if root.join("cgroup.controllers").is_file() {
        return Some(v2(root.clone()));
    }
    let unified = root.join("unified");
    if is_populated(&unified) {
        return Some(v2(unified));
    }
    for (name, directories) in V1 {
        for directory in directories {
            let mount = root.join(directory);
            if mount.join("cgroup.procs").is_file() {
                return Some(Hierarchy { mount, version: Version::V1, name });
            }
        }
    }
    unified.join("cgroup.controllers").is_file().then(|| v2(unified))
}

/// Whether a v2 tree beside v1 ones has processes below its root. Hosts without systemd mount one
/// and leave every process in the root.
fn is_populated(unified: &std::path::Path) -> bool {
    let Ok(entries) = fs::read_dir(unified) else { return false };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).any(|e| {
        fs::read_to_string(e.path().join("cgroup.events"))
            .is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
    })
}

impl Hierarchy {
    /// This hierarchy's path in the text of `/proc/<pid>/cgroup`.
    pub fn path_in<'a>(&self, proc_cgroup: &'a str) -> Option<&'a str> {
        proc_cgroup.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let ours = match self.version {
                Version::V2 => id == "0" && controllers.is_empty(),
                Version::V1 => controllers.split(',').any(|c| c == self.name),
            };
            ours.then_some(path)
        })
    }

    /// For people: `v2`, or `v1 cpuacct`.
    pub fn describe(&self) -> String {
        match self.version {
            Version::V2 => "v2".to_owned(),
            Version::V1 => format!("v1 {}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn host(root: &Path) -> HostRoots {
        HostRoots { cgroupfs: root.to_owned(), ..HostRoots::default() }
    }

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: Option<(&str, &str)>) {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            write(dir.path(), file, text);
        }
        let got = find(&host(dir.path()));
        let got = got
            .as_ref()
            .map(|h| (h.mount.strip_prefix(dir.path()).unwrap().to_str().unwrap(), h.name));
        assert_eq!(got, expected);
    }

    #[test]
    fn the_hierarchy_in_use() {
        check(&[("cgroup.controllers", "cpu memory\n")], Some(("", "unified")));
        let hybrid = [
            ("unified/cgroup.controllers", ""),
            ("cpuacct/cgroup.procs", ""),
            ("systemd/cgroup.procs", ""),
        ];
        check(&hybrid, Some(("cpuacct", "cpuacct")));
        let mut populated = hybrid.to_vec();
        populated.push(("unified/system.slice/cgroup.events", "populated 1\nfrozen 0\n"));
        check(&populated, Some(("unified", "unified")));
        populated[3].1 = "populated 0\nfrozen 0\n";
        check(&populated, Some(("cpuacct", "cpuacct")));
        check(&[("cpu,cpuacct/cgroup.procs", "")], Some(("cpu,cpuacct", "cpuacct")));
        check(
            &[("memory/cgroup.procs", ""), ("systemd/cgroup.procs", "")],
            Some(("memory", "memory")),
        );
        check(&[("systemd/cgroup.procs", "")], Some(("systemd", "name=systemd")));
        check(&[("unified/cgroup.controllers", "")], Some(("unified", "unified")));
        check(&[], None);
    }

    #[test]
    fn the_first_answer_stays() {
        let dir = tempfile::tempdir().unwrap();
        let host = host(dir.path());
        assert_eq!(hierarchy(&host), None);
        write(dir.path(), "memory/cgroup.procs", "");
        let first = hierarchy(&host);
        assert_eq!(first.as_ref().map(|h| h.name), Some("memory"));
        write(dir.path(), "unified/a/cgroup.events", "populated 1\n");
        assert_eq!(hierarchy(&host), first);
    }

    #[test]
    fn the_line_of_the_hierarchy() {
        let text = "10:cpu,cpuacct:/docker/a\n3:name=systemd:/b:c\n0::/u\n";
        let of = |version, name| Hierarchy { mount: "/".into(), version, name };
        assert_eq!(of(Version::V2, "unified").path_in(text), Some("/u"));
        assert_eq!(of(Version::V1, "cpuacct").path_in(text), Some("/docker/a"));
        assert_eq!(of(Version::V1, "name=systemd").path_in(text), Some("/b:c"));
        assert_eq!(of(Version::V1, "memory").path_in(text), None);
    }
}
