//! What a process holds in the kernel's BPF, and whether it is still there.

use std::{collections::BTreeSet, fs};

/// Ids of programs that a process holds open, directly or by a link.
pub fn programs_of(pid: u32) -> BTreeSet<u32> {
    ids_of(pid, "prog_id:")
}

/// Ids of maps that a process holds open.
pub fn maps_of(pid: u32) -> BTreeSet<u32> {
    ids_of(pid, "map_id:")
}

fn ids_of(pid: u32, key: &str) -> BTreeSet<u32> {
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a living process");
    infos
        .flatten()
        .filter_map(|info| fs::read_to_string(info.path()).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix(key)?.trim().parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Ids of all programs that are loaded, whoever holds them.
pub fn loaded_programs() -> BTreeSet<u32> {
    aya::programs::loaded_programs().flatten().map(|program| program.id()).collect()
}

/// Ids of all maps that exist.
pub fn loaded_maps() -> BTreeSet<u32> {
    aya::maps::loaded_maps().flatten().map(|map| map.id()).collect()
}
