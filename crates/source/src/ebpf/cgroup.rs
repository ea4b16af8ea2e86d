//! The path behind the cgroup id of a life-cycle record, while the cgroup is there. Of one that has
//! gone already the id is handed on; `attribution` watches the tree and may know it.

use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use wattpipe_pipeline::{identity::CgroupRef, units::CgroupId};

use super::offsets::Hierarchy;

/// Paths remembered; beyond that the memory starts anew.
const MAX_PATHS: usize = 16_384;
/// Directories looked at for one id, where the kernel does not open cgroups by id.
const MAX_WALK: usize = 65_536;

/// The hierarchy in use, as the probe is told: `hierarchy` counts, its number is in the text of
/// `/proc/<pid>/cgroup` where it has no controller.
pub(crate) fn for_probe(found: Option<&crate::cgroup::Hierarchy>, proc_cgroup: &str) -> Hierarchy {
    match found.map(|h| h.name) {
        Some("cpuacct") => Hierarchy::Cpuacct,
        Some("memory") => Hierarchy::Memory,
        Some(name @ "name=systemd") => {
            let line = proc_cgroup.lines().find(|line| line.contains(name));
            line.and_then(|line| line.split(':').next()?.parse().ok())
                .map_or(Hierarchy::V2, Hierarchy::Named)
        }
        _ => Hierarchy::V2,
    }
}

/// Finds and remembers paths by id.
pub(crate) struct Cgroups {
    mount: Option<(PathBuf, OwnedFd)>,
    paths: HashMap<u64, Arc<str>>,
    /// The kernel does not open cgroups by id for us: look through the tree instead.
    walk: bool,
}

impl Cgroups {
    pub(crate) fn new(mount: Option<&Path>) -> Self {
        let mount = mount.and_then(|point| {
            let dir = fs::File::open(point).ok()?;
            Some((point.to_owned(), dir.into()))
        });
        Self { mount, paths: HashMap::new(), walk: false }
    }

    /// Knows no path.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::new(None)
    }

    /// The path as `/proc/<pid>/cgroup` shows it, or the id where there is none to be found: the
    /// cgroup may be gone already.
    pub(crate) fn path(&mut self, id: u64) -> CgroupRef {
        if let Some(path) = self.paths.get(&id) {
            return CgroupRef::Path(Arc::clone(path));
        }
        match self.find(id) {
            Some(path) => {
                let path: Arc<str> = path.into();
                self.remember(id, Arc::clone(&path));
                CgroupRef::Path(path)
            }
            None => CgroupRef::Id(CgroupId(id)),
        }
    }

    pub(crate) fn remember(&mut self, id: u64, path: Arc<str>) {
        if self.paths.len() >= MAX_PATHS {
            self.paths.clear();
        }
        self.paths.insert(id, path);
    }

    fn find(&mut self, id: u64) -> Option<String> {
        let (point, dir) = self.mount.as_ref()?;
        if !self.walk {
            match open_by_id(dir, id) {
                Ok(found) => {
                    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
                    let path = fs::read_link(link).ok()?;
                    return below(point, &path);
                }
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) => return None,
                Err(_) => self.walk = true,
            }
        }
        below(point, &find_inode(point, id)?)
    }
}

fn below(mount: &Path, path: &Path) -> Option<String> {
    let rest = path.strip_prefix(mount).ok()?.to_str()?;
    // A removed cgroup's path says so, and is of no use.
    (!rest.ends_with(" (deleted)")).then(|| format!("/{rest}"))
}

/// Opens a cgroup's directory by its id: the file handle of kernfs is the id.
fn open_by_id(mount: &OwnedFd, id: u64) -> io::Result<OwnedFd> {
    const FILEID_KERNFS: libc::c_int = 0xfe;
    #[repr(C)]
    struct Handle {
        bytes: libc::c_uint,
        kind: libc::c_int,
        id: [u8; 8],
    }
    let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id: id.to_ne_bytes() };
    // SAFETY: the handle says its own size and is valid for the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    match libc::c_int::try_from(fd) {
        // SAFETY: a descriptor the kernel has just made for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn find_inode(root: &Path, id: u64) -> Option<PathBuf> {
    let mut waiting = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(dir) = waiting.pop() {
        seen += 1;
        if seen > MAX_WALK {
            return None;
        }
        if fs::metadata(&dir).is_ok_and(|m| m.ino() == id) {
            return Some(dir);
        }
        let Ok(children) = fs::read_dir(&dir) else { continue };
        waiting.extend(
            children
                .flatten()
                .filter(|c| c.file_type().is_ok_and(|t| t.is_dir()))
                .map(|c| c.path()),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_for_the_probe() {
        let check = |name, expected| {
            let mount = PathBuf::new();
            let found =
                crate::cgroup::Hierarchy { mount, version: crate::cgroup::Version::V1, name };
            let own = "4:memory:/x\n3:name=systemd:/x\n0::/x\n";
            assert_eq!(for_probe(Some(&found), own), expected);
        };
        check("cpuacct", Hierarchy::Cpuacct);
        check("memory", Hierarchy::Memory);
        check("name=systemd", Hierarchy::Named(3));
        check("unified", Hierarchy::V2);
        assert_eq!(for_probe(None, ""), Hierarchy::V2);
    }

    #[test]
    fn a_cgroup_is_found_by_walking() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let id = fs::metadata(&inner).unwrap().ino();
        let mut cgroups = Cgroups::new(Some(root.path()));
        cgroups.walk = true;
        assert_eq!(cgroups.path(id), CgroupRef::Path("/a/b".into()));
        assert_eq!(cgroups.path(u64::MAX), CgroupRef::Id(CgroupId(u64::MAX)));
    }
}
