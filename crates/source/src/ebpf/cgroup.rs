//! Cgroups: which hierarchy tells what a process belongs to, and the path behind a cgroup's id.

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

use wattpipe_pipeline::{identity::CgroupRef, registry::HostRoots, units::CgroupId};

use super::offsets::Hierarchy;

/// Paths remembered; beyond that the memory starts anew.
const MAX_PATHS: usize = 16_384;
/// Directories looked at for one id, where the kernel does not open cgroups by id.
const MAX_WALK: usize = 65_536;

/// A mounted cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// Where.
    point: PathBuf,
    /// The unified one.
    unified: bool,
    /// Super block options: the controllers of a v1 hierarchy, or `name=…`.
    options: Vec<String>,
}

/// The hierarchy in use, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InUse {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) mount: Option<PathBuf>,
}

/// Chooses: the unified hierarchy when it is populated or the only one, else that of `cpuacct`,
/// `memory`, `name=systemd`.
pub(crate) fn in_use(host: &HostRoots) -> InUse {
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map(|text| parse_mounts(&text, &host.cgroupfs))
        .unwrap_or_default();
    let own = fs::read_to_string(host.procfs.join("self/cgroup")).unwrap_or_default();
    choose(&mounts, &own, populated)
}

fn choose(mounts: &[Mount], own: &str, populated: impl Fn(&Path) -> bool) -> InUse {
    let v1 = |name: &str| mounts.iter().find(|m| !m.unified && m.options.iter().any(|o| o == name));
    let unified = mounts.iter().find(|m| m.unified);
    let of = |hierarchy, mount: &Mount| InUse { hierarchy, mount: Some(mount.point.clone()) };
    let has_v1 = mounts.iter().any(|m| !m.unified);
    match unified {
        Some(mount) if !has_v1 || populated(&mount.point) => of(Hierarchy::V2, mount),
        _ => {
            if let Some(mount) = v1("cpuacct") {
                of(Hierarchy::Cpuacct, mount)
            } else if let Some(mount) = v1("memory") {
                of(Hierarchy::Memory, mount)
            } else if let (Some(mount), Some(id)) = (v1("name=systemd"), hierarchy_id(own)) {
                of(Hierarchy::Named(id), mount)
            } else {
                InUse { hierarchy: Hierarchy::V2, mount: unified.map(|m| m.point.clone()) }
            }
        }
    }
}

/// The kernel's number of the `name=systemd` hierarchy, from a `/proc/<pid>/cgroup`.
fn hierarchy_id(cgroup_file: &str) -> Option<u32> {
    let line = cgroup_file.lines().find(|l| l.contains(":name=systemd:"))?;
    line.split(':').next()?.parse().ok()
}

/// Whether any cgroup below the root holds processes.
fn populated(mount: &Path) -> bool {
    let Ok(children) = fs::read_dir(mount) else { return false };
    children.flatten().any(|child| {
        fs::read_to_string(child.path().join("cgroup.events"))
            .is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
    })
}

/// The cgroup mounts below `root`, from `/proc/self/mountinfo`.
fn parse_mounts(text: &str, root: &Path) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let point = PathBuf::from(left.split(' ').nth(4)?);
            let mut right = right.split(' ');
            let unified = match right.next()? {
                "cgroup2" => true,
                "cgroup" => false,
                _ => return None,
            };
            let options = right.nth(1)?.split(',').map(str::to_owned).collect();
            point.starts_with(root).then_some(Mount { point, unified, options })
        })
        .collect()
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

    const HYBRID: &str = "\
25 1 0:5 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:21 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
27 25 0:22 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
28 25 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
29 25 0:23 / /elsewhere rw - cgroup2 cgroup2 rw
";

    #[test]
    fn the_hierarchy_in_use() {
        let mounts = parse_mounts(HYBRID, Path::new("/sys/fs/cgroup"));
        assert_eq!(mounts.len(), 3);
        let own = "3:name=systemd:/x\n0::/x\n";
        let check = |mounts: &[Mount], populated: bool, expected: Hierarchy, point: &str| {
            let found = choose(mounts, own, |_| populated);
            assert_eq!((found.hierarchy, found.mount), (expected, Some(point.into())));
        };
        check(&mounts, true, Hierarchy::V2, "/sys/fs/cgroup/unified");
        check(&mounts, false, Hierarchy::Cpuacct, "/sys/fs/cgroup/cpu,cpuacct");
        check(&mounts[1..], false, Hierarchy::Named(3), "/sys/fs/cgroup/systemd");
        check(&mounts[2..], false, Hierarchy::V2, "/sys/fs/cgroup/unified");
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
