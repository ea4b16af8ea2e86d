//! Facts of the host beside the probe.

use std::{fs, os::unix::net::UnixStream};

use wattpipe_pipeline::registry::HostRoots;
use wattpipe_processors::{
    attribution::{config::Sockets, runtimes},
    power_model::estimate::Machine,
};
use wattpipe_source::{
    cgroup,
    meter::{MeterSelection, Meters, ProblemKind},
    procfs::namespace::PidNamespace,
};

use super::Finding;

/// Findings on meters, and the line on what energy will rest on.
pub(super) fn meters(roots: &HostRoots) -> (Vec<Finding>, String) {
    let meters = Meters::enumerate(roots, &MeterSelection::default());
    let mut findings: Vec<Finding> = meters
        .zones()
        .iter()
        .map(|z| {
            let found = format!("{} ({}): {}", z.zone.name, z.zone.source, z.covers);
            Finding::ok("meter", found)
        })
        .collect();
    for problem in meters.problems() {
        let finding = match problem.kind {
            ProblemKind::Doubtful => Finding::note,
            _ => Finding::missing,
        };
        findings.push(finding(
            "meter",
            problem.what.clone(),
            problem.consequence.clone(),
            problem.remedy.clone(),
        ));
    }
    if meters.is_empty() {
        if findings.is_empty() {
            findings.push(Finding::missing(
                "meter",
                "no energy meter",
                "energy is an estimate by CPU model, marked `est.`, good to ±50 %",
                "on bare metal load the intel_rapl driver; in a virtual machine there is none",
            ));
        }
        let mut energy = "energy: an estimate (zone host), no meter reads here".to_owned();
        if Machine::detect(&roots.procfs).virtual_machine {
            findings.push(Finding::note(
                "meter",
                "this is a virtual machine",
                "the estimate is a share of a machine that it cannot see",
                "measure on the host, or give the watts per CPU in power_model::estimate",
            ));
            energy.push_str(": a share of a machine that this virtual one cannot see");
        }
        return (findings, energy);
    }
    let names: Vec<&str> = meters.zones().iter().map(|z| &*z.zone.name).collect();
    (findings, format!("energy: measured, zones {}", names.join(", ")))
}

pub(super) fn cgroups(roots: &HostRoots) -> Finding {
    match cgroup::hierarchy(roots) {
        Some(hierarchy) => Finding::ok(
            "cgroups",
            format!("{} at {}", hierarchy.describe(), hierarchy.mount.display()),
        ),
        None => Finding::missing(
            "cgroups",
            format!("no cgroup file system at {}", roots.cgroupfs.display()),
            "no containers, pods or units",
            "mount it, or set host::cgroupfs to where the host's is mounted",
        ),
    }
}

pub(super) fn pid_namespace(roots: &HostRoots) -> Finding {
    match PidNamespace::of(&roots.procfs) {
        PidNamespace::Initial => Finding::ok("pid namespace", "the initial one"),
        PidNamespace::Unknown => Finding::note(
            "pid namespace",
            format!("not told by {}", roots.procfs.display()),
            "it is taken for the initial one",
            "set host::procfs to where the host's /proc is mounted",
        ),
        PidNamespace::Other => Finding::missing(
            "pid namespace",
            "not the initial one",
            "/proc is not joined by pid: names come from the kernel alone",
            "run with the host's PID namespace (`--pid=host`, `hostPID: true`)",
        ),
    }
}

/// Container runtimes, where `attribution` looks for their sockets.
pub(super) fn runtimes(roots: &HostRoots) -> Vec<Finding> {
    let findings: Vec<Finding> = runtimes::find(&Sockets::Auto, roots)
        .into_iter()
        .map(|runtime| {
            let place = format!("{} at {}", runtime.name, runtime.socket.display());
            match UnixStream::connect(&runtime.socket) {
                Ok(_) => Finding::ok("containers", place),
                Err(e) => Finding::missing(
                    "containers",
                    format!("{place} does not answer: {e}"),
                    "containers have their ids, but no names and images",
                    "run as root or as a member of the socket's group",
                ),
            }
        })
        .collect();
    if findings.is_empty() {
        return vec![Finding::note(
            "containers",
            "no runtime's socket",
            "containers, where there are any, have their ids alone",
            "mount the runtime's socket, or name it in attribution::containers",
        )];
    }
    findings
}

pub(super) fn statistics(roots: &HostRoots) -> Finding {
    let path = roots.procfs.join("sys/kernel/bpf_stats_enabled");
    match fs::read_to_string(path).map(|t| t.trim() == "1") {
        Ok(true) => Finding::ok("bpf_stats", "on: the probe's own cost is published"),
        _ => Finding::note(
            "bpf_stats",
            "off",
            "wattpipe_probe_run_seconds_total is absent",
            "`sysctl kernel.bpf_stats_enabled=1`, which costs about 20 ns a switch",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_runtime_is_found_wherever_attribution_finds_it() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("run/k3s/containerd");
        fs::create_dir_all(&directory).unwrap();
        let _listener = UnixListener::bind(directory.join("containerd.sock")).unwrap();
        let roots = HostRoots { procfs: tree.path().join("proc"), ..HostRoots::default() };
        let found = runtimes(&roots);
        assert!(found.iter().any(|f| f.found.ends_with("run/k3s/containerd/containerd.sock")));
    }
}
