//! Facts of the host that need no probe.

use std::{fs, os::unix::net::UnixStream, path::Path};

use caps::{CapSet, Capability};
use wattpipe_pipeline::registry::HostRoots;
use wattpipe_source::{
    cgroup,
    meter::{MeterSelection, Meters},
    procfs::namespace::PidNamespace,
};

use super::Finding;

/// The oldest kernel with everything the probe uses.
const OLDEST: (u32, u32) = (5, 10);

pub(super) fn privileges() -> Finding {
    let has = |cap| caps::has_cap(None, CapSet::Permitted, cap).unwrap_or(false);
    let missing: Vec<&str> =
        [(Capability::CAP_BPF, "CAP_BPF"), (Capability::CAP_PERFMON, "CAP_PERFMON")]
            .into_iter()
            .filter(|(cap, _)| !has(*cap))
            .map(|(_, name)| name)
            .collect();
    if missing.is_empty() {
        let who = if nix::unistd::geteuid().is_root() { "root" } else { "an unprivileged user" };
        return Finding::ok("privileges", format!("{who} with CAP_BPF and CAP_PERFMON"));
    }
    Finding::missing(
        "privileges",
        format!("no {}", missing.join(", no ")),
        "the probe cannot be loaded: the procfs source sees only what outlives a window",
        "run as root, or `setcap cap_bpf,cap_perfmon,cap_dac_read_search+p` on the binary",
    )
}

pub(super) fn kernel() -> Finding {
    let Ok(name) = nix::sys::utsname::uname() else {
        return Finding::note("kernel", "unknown", "its version cannot be read");
    };
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= OLDEST {
        return Finding::ok("kernel", format!("Linux {release}: BPF ring buffer and tracepoints"));
    }
    Finding::missing(
        "kernel",
        format!("Linux {release}"),
        "the probe needs Linux 5.10 or newer: the procfs source is used",
        "upgrade the kernel",
    )
}

pub(super) fn btf(roots: &HostRoots) -> Finding {
    let path = roots.sysfs.join("kernel/btf/vmlinux");
    match fs::metadata(&path) {
        Ok(_) => Finding::ok("btf", format!("{}", path.display())),
        Err(_) => Finding::missing(
            "btf",
            format!("{} is not there", path.display()),
            "the probe does not know where the kernel keeps its fields: the procfs source is used",
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, and mount /sys",
        ),
    }
}

pub(super) fn cycles(roots: &HostRoots) -> Finding {
    let devices = roots.sysfs.join("bus/event_source/devices");
    let pmu = ["cpu", "cpu_core", "armv8_pmuv3", "armv8_pmuv3_0"]
        .into_iter()
        .find(|name| devices.join(name).exists());
    match pmu {
        Some(name) => Finding::ok("cycles", format!("hardware counters ({name})")),
        None => Finding::note(
            "cycles",
            "no hardware cycle counter (usual in virtual machines)",
            "energy is shared out by CPU time and SMT overlap, without the frequency's part",
        ),
    }
}

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
        findings.push(match problem.usable {
            true => Finding::note("meter", problem.what.clone(), problem.consequence.clone()),
            false => Finding::missing(
                "meter",
                problem.what.clone(),
                problem.consequence.clone(),
                problem.remedy.clone(),
            ),
        });
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
        return (findings, "energy: an estimate (zone host), no meter reads here".to_owned());
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
        ),
        PidNamespace::Other => Finding::missing(
            "pid namespace",
            "not the initial one",
            "/proc is not joined by pid: names come from the kernel alone",
            "run with the host's PID namespace (`--pid=host`, `hostPID: true`)",
        ),
    }
}

/// Container runtimes by their sockets.
pub(super) fn runtimes() -> Vec<Finding> {
    const SOCKETS: [(&str, &str); 4] = [
        ("docker", "/var/run/docker.sock"),
        ("podman", "/run/podman/podman.sock"),
        ("containerd", "/run/containerd/containerd.sock"),
        ("cri-o", "/var/run/crio/crio.sock"),
    ];
    let findings: Vec<Finding> = SOCKETS
        .into_iter()
        .filter(|(_, socket)| Path::new(socket).exists())
        .map(|(name, socket)| match UnixStream::connect(socket) {
            Ok(_) => Finding::ok("containers", format!("{name} at {socket}")),
            Err(e) => Finding::missing(
                "containers",
                format!("{name} at {socket} does not answer: {e}"),
                "containers have their ids, but no names and images",
                "run as root or as a member of the socket's group",
            ),
        })
        .collect();
    if findings.is_empty() {
        return vec![Finding::note(
            "containers",
            "no runtime's socket",
            "containers, where there are any, have their ids alone",
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
            "wattpipe_probe_run_seconds_total is absent; `sysctl kernel.bpf_stats_enabled=1` costs about 20 ns a switch",
        ),
    }
}
