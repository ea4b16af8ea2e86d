//! RAPL by the powercap tree: `class/powercap/intel-rapl:0/energy_uj` and below.
//!
//! A zone is placed by its `name` and its parent's: `package-1` is a package, the `core` of
//! `intel-rapl:1:0` is `core-1`, and on processors with several dies `package-0-die-1` has zones
//! `core-0-die-1` and so on. `intel-rapl-mmio` shows package zones a second time by another
//! register: the one that reads is taken, the MSR's first.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use wattpipe_pipeline::units::Nanos;

use super::{Found, Meter, MeterKind, Problem, ProblemKind, ZoneInfo, files, zone};

/// Control types that hold RAPL zones, preferred first.
const CONTROL_TYPES: [&str; 2] = ["intel-rapl", "intel-rapl-mmio"];
/// A limit above this is a firmware's way to say that there is none.
const NO_LIMIT_WATTS: f64 = 2000.0;

/// A zone of the tree.
struct Node {
    path: PathBuf,
    name: String,
    package: Option<u32>,
}

/// What the tree offers.
pub(super) fn find(sysfs: &Path) -> Found {
    let mut found = Found::default();
    // One meter per package, so that one whose reads hang leaves the others alone.
    let mut paths: BTreeMap<Option<u32>, (Vec<PathBuf>, Vec<usize>)> = BTreeMap::new();
    let mut unreadable = None;
    for node in nodes(sysfs) {
        if found.zones.iter().any(|z| *z.zone.name == node.name) {
            continue;
        }
        match files::number_now(&node.path.join("energy_uj")) {
            Ok(_) => {
                let (files, zones) = paths.entry(node.package).or_default();
                files.push(node.path.join("energy_uj"));
                zones.push(found.zones.len());
                found.zones.push(describe(&node));
            }
            Err(e) => {
                unreadable.get_or_insert((node.path.join("energy_uj"), e));
            }
        }
    }
    for (paths, zones) in paths.into_values() {
        found.meters.push((Box::new(Powercap { paths }), zones));
    }
    if let Some((path, e)) = unreadable {
        found.problems.push(unreadable_problem(&path, &e, found.zones.is_empty()));
    } else if found.zones.is_empty() {
        found.problems.push(Problem {
            meter: MeterKind::Rapl,
            what: format!("no RAPL zone under {}", sysfs.join("class/powercap").display()),
            consequence: "no energy of the processor is measured".into(),
            remedy: "on bare metal: modprobe intel_rapl_msr (and intel_rapl_common); a virtual machine has none unless its hypervisor passes it on".into(),
            kind: ProblemKind::Absent,
        });
    }
    found
}

pub(super) fn unreadable_problem(path: &Path, e: &io::Error, none: bool) -> Problem {
    let denied = e.kind() == ErrorKind::PermissionDenied;
    Problem {
        meter: MeterKind::Rapl,
        what: format!("cannot read {}: {e}", path.display()),
        consequence: if none {
            "no energy of the processor is measured".into()
        } else {
            "this zone is left out".into()
        },
        remedy: if denied {
            "the kernel keeps RAPL counters to root since CVE-2020-8694: run as root, grant CAP_DAC_READ_SEARCH, or give a group of yours read access to the energy_uj files (a udev rule or tmpfiles.d)".into()
        } else {
            "see the kernel log for intel_rapl; another driver may hold the zone".into()
        },
        kind: ProblemKind::Unreadable,
    }
}

/// All RAPL zones, parents before children, by zone id.
fn nodes(sysfs: &Path) -> Vec<Node> {
    let mut ids: BTreeMap<(usize, Vec<u32>), PathBuf> = BTreeMap::new();
    collect(&sysfs.join("class/powercap"), 0, &mut ids);
    for control_type in CONTROL_TYPES {
        collect(&sysfs.join("devices/virtual/powercap").join(control_type), 0, &mut ids);
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut names: BTreeMap<(usize, Vec<u32>), (String, Option<u32>)> = BTreeMap::new();
    for ((control, id), path) in ids {
        let Ok(kind) = files::text(&path.join("name")) else { continue };
        let parent = id.split_last().and_then(|(_, up)| names.get(&(control, up.to_vec())));
        let (name, package) = match parent {
            Some((parent, package)) => (below(&kind, parent), *package),
            None => {
                let package = package_number(&kind);
                (kind, package)
            }
        };
        names.insert((control, id), (name.clone(), package));
        nodes.push(Node { path, name, package });
    }
    nodes
}

/// Zone directories at and below `dir`, by control type and id.
fn collect(dir: &Path, depth: u32, ids: &mut BTreeMap<(usize, Vec<u32>), PathBuf>) {
    for name in files::names(dir) {
        let Some((control, numbers)) = zone_id(&name) else { continue };
        let path = dir.join(&name);
        if !numbers.is_empty() {
            ids.entry((control, numbers)).or_insert_with(|| path.clone());
        }
        // Ids nest four deep at most; entries of other names (links to devices) are not followed.
        if depth < 4 {
            collect(&path, depth + 1, ids);
        }
    }
}

/// `intel-rapl:0:1` as control type and numbers.
fn zone_id(name: &str) -> Option<(usize, Vec<u32>)> {
    let mut parts = name.split(':');
    let control_type = parts.next()?;
    let control = CONTROL_TYPES.iter().position(|c| *c == control_type)?;
    let numbers = parts.map(|n| n.parse().ok()).collect::<Option<Vec<u32>>>()?;
    Some((control, numbers))
}

/// `core` below `package-1` is `core-1`.
fn below(kind: &str, parent: &str) -> String {
    match parent.find('-') {
        Some(at) if !kind.contains('-') => format!("{kind}{}", &parent[at..]),
        _ => kind.to_owned(),
    }
}

/// The package of `package-1` or `package-1-die-0`.
fn package_number(name: &str) -> Option<u32> {
    name.strip_prefix("package-")?.split('-').next()?.parse().ok()
}

fn describe(node: &Node) -> ZoneInfo {
    let kind = node.name.split('-').next().unwrap_or_default();
    let (hw_type, covers) = match kind {
        "package" => ("cpu", "the processor package: cores, caches, memory controller"),
        "core" => ("cpu", "the cores of the package, in its figure too"),
        "uncore" => ("gpu", "the integrated graphics, in the package's figure too"),
        "dram" => ("memory", "the memory of the package, beside its figure"),
        "psys" => ("cpu", "the platform: packages, memory and what else the board measures"),
        _ => ("cpu", "a zone of the processor"),
    };
    let max_watts = matches!(kind, "package" | "psys").then(|| limit(&node.path)).flatten();
    let range = files::number(&node.path.join("max_energy_range_uj")).ok().filter(|r| *r > 0);
    ZoneInfo {
        zone: Arc::new(zone(&node.name, hw_type, node.package, "rapl", range, max_watts)),
        covers,
        path: node.path.join("energy_uj").display().to_string(),
        resolution_uj: None,
        fine: true,
    }
}

/// The highest of the zone's power limits in watts, where it has credible ones.
fn limit(path: &Path) -> Option<f64> {
    let mut highest: Option<f64> = None;
    for constraint in 0..4 {
        for what in ["power_limit_uw", "max_power_uw"] {
            let file = path.join(format!("constraint_{constraint}_{what}"));
            let Ok(uw) = files::number(&file) else { continue };
            let watts = uw as f64 * 1e-6;
            if watts >= NO_LIMIT_WATTS {
                return None;
            }
            if watts > 0.0 {
                highest = Some(highest.map_or(watts, |h| h.max(watts)));
            }
        }
    }
    highest
}

/// Reads the `energy_uj` files. They are opened anew each time: a descriptor into a zone that was
/// removed and came back would read nothing.
struct Powercap {
    paths: Vec<PathBuf>,
}

impl Meter for Powercap {
    fn read(&mut self, _: Nanos, out: &mut dyn FnMut(usize, u64)) {
        for (zone, path) in self.paths.iter().enumerate() {
            if let Ok(uj) = files::number(path) {
                out(zone, uj);
            }
        }
    }
}
