//! What the programs must know of the running kernel's structures, looked up in its BTF.

use wattpipe_ebpf_probe_common::{Offsets, hierarchy};

use super::btf::{Btf, BtfError};

/// Which cgroup hierarchy tells what a process belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// The unified one.
    V2,
    /// The v1 hierarchy of `cpuacct`.
    Cpuacct,
    /// The v1 hierarchy of `memory`.
    Memory,
    /// A v1 hierarchy without a controller, by the kernel's number for it (`name=systemd`).
    Named(u32),
}

/// Looks everything up. Names that differ between kernel versions are tried in turn.
pub(crate) fn resolve(btf: &Btf, hierarchy: Hierarchy) -> Result<Offsets, BtfError> {
    let at = |path: &str| btf.offset(path);
    let controller = |name: &str| {
        btf.enumerator("cgroup_subsys_id", name).ok_or_else(|| BtfError::Missing(name.to_owned()))
    };
    let (cgroup_hierarchy, cgroup_key) = match hierarchy {
        Hierarchy::V2 => (hierarchy::V2, 0),
        Hierarchy::Cpuacct => (hierarchy::SUBSYS, controller("cpuacct_cgrp_id")?),
        Hierarchy::Memory => (hierarchy::SUBSYS, controller("memory_cgrp_id")?),
        Hierarchy::Named(id) => (hierarchy::NAMED, id),
    };
    Ok(Offsets {
        task_tgid: at("task_struct.tgid")?,
        task_pid: at("task_struct.pid")?,
        task_start_time: at("task_struct.start_time")?,
        task_group_leader: at("task_struct.group_leader")?,
        task_real_parent: at("task_struct.real_parent")?,
        task_cred: at("task_struct.real_cred")?,
        task_cgroups: at("task_struct.cgroups")?,
        task_flags: at("task_struct.flags")?,
        task_comm: at("task_struct.comm")?,
        task_signal: at("task_struct.signal")?,
        task_exec_start: at("task_struct.se.exec_start")?,
        task_sum_exec: at("task_struct.se.sum_exec_runtime")?,
        task_prev_sum_exec: at("task_struct.se.prev_sum_exec_runtime")?,
        signal_live: at("signal_struct.live")?,
        cred_uid: at("cred.uid")?,
        css_set_dfl_cgrp: at("css_set.dfl_cgrp")?,
        css_set_subsys: at("css_set.subsys")?,
        css_set_cgrp_links: at("css_set.cgrp_links")?,
        css_cgroup: at("cgroup_subsys_state.cgroup")?,
        cgroup_kn: at("cgroup.kn")?,
        cgroup_root: at("cgroup.root")?,
        root_hierarchy_id: at("cgroup_root.hierarchy_id")?,
        link_cgrp: at("cgrp_cset_link.cgrp")?,
        link_cgrp_link: at("cgrp_cset_link.cgrp_link")?,
        kn_id: at("kernfs_node.id")?,
        cgroup_hierarchy,
        cgroup_key,
        reserved: 0,
    })
}
