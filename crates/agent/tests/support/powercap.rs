//! A host made of files, whose counters move.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What a counter of a package holds before it wraps, in microjoules.
pub const RANGE: Option<u64> = Some(262_143_328_850);
/// As above, of 32 bits of a finer unit.
pub const SMALL_RANGE: Option<u64> = Some(65_712_999_613);
/// CPUs beyond this are of package 0 whatever the tree says; test machines have fewer.
const CPUS: u32 = 256;

/// The tree, and where the agent that reads it is configured and writes.
pub struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    /// With this many packages, over which CPUs alternate.
    pub fn new(packages: u32) -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(host.sysfs()).unwrap();
        if packages > 1 {
            for cpu in 0..CPUS {
                let topology = format!("devices/system/cpu/cpu{cpu}/topology");
                host.put(&format!("{topology}/physical_package_id"), &(cpu % packages).to_string())
                    .put(&format!("{topology}/core_id"), &cpu.to_string());
            }
        }
        host
    }

    pub fn sysfs(&self) -> PathBuf {
        self.dir.path().join("sys")
    }

    /// The agent's configuration.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("wattpipe.yaml")
    }

    /// The agent's records.
    pub fn out(&self) -> PathBuf {
        self.dir.path().join("out.jsonl")
    }

    /// Puts a file in its place at once: a reader sees the old text or the new one.
    pub fn put(&self, path: &str, text: &str) -> &Self {
        let path = self.sysfs().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, format!("{text}\n")).unwrap();
        fs::rename(new, path).unwrap();
        self
    }

    /// A powercap zone.
    pub fn rapl(&self, id: &str, name: &str, uj: u64, range: Option<u64>) -> &Self {
        let dir = Path::new("class/powercap").join(id);
        let file = |name: &str| dir.join(name).display().to_string();
        self.put(&file("name"), name).put(&file("energy_uj"), &uj.to_string());
        if let Some(range) = range {
            self.put(&file("max_energy_range_uj"), &range.to_string());
        }
        self
    }

    /// Sets a zone's counter.
    pub fn set(&self, id: &str, uj: u64) {
        self.put(&format!("class/powercap/{id}/energy_uj"), &uj.to_string());
    }

    /// What a zone's counter shows.
    pub fn value(&self, id: &str) -> u64 {
        self.number(id, "energy_uj").unwrap()
    }

    /// Moves a zone's counter on, through its range where it has one.
    pub fn advance(&self, id: &str, uj: u64) {
        let to = self.value(id) + uj;
        self.set(id, self.number(id, "max_energy_range_uj").map_or(to, |range| to % range));
    }

    /// The zone's counter is gone until it is set anew.
    pub fn hide(&self, id: &str) {
        fs::remove_file(self.sysfs().join("class/powercap").join(id).join("energy_uj")).unwrap();
    }

    fn number(&self, id: &str, file: &str) -> Option<u64> {
        let path = self.sysfs().join("class/powercap").join(id).join(file);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}
