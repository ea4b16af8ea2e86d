//! Whose pids a `/proc` shows. The kernel's records carry pids of the initial PID namespace; a
//! `/proc` of another namespace has other processes under the same numbers.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Inode of the initial PID namespace, fixed by the kernel.
const INITIAL: u64 = 0xEFFF_FFFC;

/// The PID namespace that a procfs mount belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidNamespace {
    /// The initial one: pids are the kernel's own.
    Initial,
    /// Another one: pids mean other processes.
    Other,
    /// Not told: no procfs, but a plain tree.
    Unknown,
}

impl PidNamespace {
    /// Of the procfs at `procfs`.
    pub fn of(procfs: &Path) -> Self {
        // Whoever is process 1 there decides, where it may be read (root may).
        if let Some(inode) = inode(&procfs.join("1/ns/pid")) {
            return Self::from_inode(inode);
        }
        // `self` is this process as that mount numbers it, absent where it cannot see us.
        let Ok(status) = fs::read_to_string(procfs.join("self/status")) else {
            return if procfs.join("stat").exists() && procfs.join("self").is_symlink() {
                Self::Other
            } else {
                Self::Unknown
            };
        };
        match (own_numbers(&status), inode(&procfs.join("self/ns/pid"))) {
            // One number: the mount is of this process's own namespace.
            (1, Some(inode)) => Self::from_inode(inode),
            // Several: of an ancestor. Only the initial one shows the kernel's threads.
            _ if fs::read_to_string(procfs.join("2/comm"))
                .is_ok_and(|c| c.trim() == "kthreadd") =>
            {
                Self::Initial
            }
            _ => Self::Other,
        }
    }

    /// Whether processes may be looked up there by the kernel's pids.
    pub fn joins(self) -> bool {
        self != Self::Other
    }

    fn from_inode(inode: u64) -> Self {
        if inode == INITIAL { Self::Initial } else { Self::Other }
    }
}

fn inode(link: &Path) -> Option<u64> {
    fs::metadata(link).ok().map(|m| m.ino())
}

/// How many pids `NSpid:` lists: one per namespace from the mount's down to the process's.
fn own_numbers(status: &str) -> usize {
    status
        .lines()
        .find_map(|l| l.strip_prefix("NSpid:"))
        .map_or(1, |pids| pids.split_ascii_whitespace().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_tree_is_unknown_and_joins() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(PidNamespace::of(dir.path()), PidNamespace::Unknown);
        assert!(PidNamespace::of(dir.path()).joins());
    }

    #[test]
    fn numbers_per_namespace() {
        assert_eq!(own_numbers("Name:\ta\nNSpid:\t7\n"), 1);
        assert_eq!(own_numbers("NSpid:\t4711\t7\n"), 2);
        assert_eq!(own_numbers("Name:\ta\n"), 1);
    }

    #[test]
    fn this_host_answers() {
        let own = inode(Path::new("/proc/self/ns/pid"));
        let of = PidNamespace::of(Path::new("/proc"));
        assert_eq!(of == PidNamespace::Initial, own == Some(INITIAL));
    }
}
