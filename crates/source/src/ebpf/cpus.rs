//! Which CPUs there are: possible, online, isolated, and how they are packaged. Numbers need not be
//! contiguous, and the online ones change.

use std::{collections::BTreeSet, io, path::Path};

/// Parses the kernel's CPU lists: `0-3,8,10-11`. What does not parse is left out.
pub(crate) fn parse_list(text: &str) -> BTreeSet<u32> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
            && last - first.min(last) < 1 << 16
        {
            cpus.extend(first..=last);
        }
    }
    cpus
}

fn read_list(sysfs: &Path, name: &str) -> io::Result<BTreeSet<u32>> {
    let path = sysfs.join("devices/system/cpu").join(name);
    std::fs::read_to_string(&path).map(|text| parse_list(&text)).map_err(|e| {
        let path = path.display();
        io::Error::new(e.kind(), format!("{path} (host::sysfs says where /sys is): {e}"))
    })
}

/// The CPUs of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// Online now.
    pub(crate) online: BTreeSet<u32>,
    /// Not to be interrupted: kept free of the kernel's own work by its administrator.
    pub(crate) quiet: BTreeSet<u32>,
}

impl Cpus {
    /// Reads the lists.
    pub(crate) fn read(sysfs: &Path) -> io::Result<Self> {
        let online = read_list(sysfs, "online")?;
        let quiet = ["isolated", "nohz_full"]
            .iter()
            .filter_map(|name| read_list(sysfs, name).ok())
            .flatten()
            .collect();
        Ok(Self { online, quiet })
    }

    /// One more than the highest number a CPU of this machine can ever have.
    pub(crate) fn possible(sysfs: &Path) -> io::Result<u32> {
        let possible = read_list(sysfs, "possible")?;
        possible
            .last()
            .map(|highest| highest + 1)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no possible CPU"))
    }
}

/// Package and core of a CPU; where the kernel does not say, one package, each CPU its own core.
pub(crate) fn place(sysfs: &Path, cpu: u32) -> (u32, u32) {
    let topology = sysfs.join(format!("devices/system/cpu/cpu{cpu}/topology"));
    let read = |name: &str| {
        let text = std::fs::read_to_string(topology.join(name)).ok()?;
        u32::try_from(text.trim().parse::<i64>().ok()?).ok()
    };
    let package = read("physical_package_id").unwrap_or(0);
    (package, read("core_id").unwrap_or(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_parse_as_the_kernel_writes_them() {
        let check = |text, expected: &[u32]| {
            assert_eq!(parse_list(text).into_iter().collect::<Vec<_>>(), expected, "{text:?}");
        };
        check("0-1\n", &[0, 1]);
        check("0,2-4,9", &[0, 2, 3, 4, 9]);
        check("", &[]);
        check("\n", &[]);
        check("(null)\n", &[]);
        check("3-1", &[]);
        check("0-4294967295", &[]);
    }

    #[test]
    fn this_machine_has_cpus() {
        let sysfs = Path::new("/sys");
        let cpus = Cpus::read(sysfs).unwrap();
        let highest = *cpus.online.last().unwrap();
        assert!(Cpus::possible(sysfs).unwrap() > highest);
    }
}
