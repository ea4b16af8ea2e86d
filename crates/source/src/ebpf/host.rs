//! What this host offers the probe: asked by the loader before it tries, and shown by
//! `wattpipe doctor`.

use std::{fs, path::Path};

use wattpipe_pipeline::registry::HostRoots;

use super::{
    btf::Btf,
    cpus::Cpus,
    cycles,
    error::EbpfError,
    loader::{KERNEL_BTF, kernel_btf},
    sys::PerfEvent,
};

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
/// `BPF_PROG_TEST_RUN` of a raw tracepoint on a chosen CPU came last.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// One thing the probe needs or uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is there.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// What follows where it is missing; empty otherwise.
    pub consequence: String,
    /// What to do about it; empty where it is there.
    pub remedy: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        let (consequence, remedy) = (String::new(), String::new());
        Self { name, ok: true, found: found.into(), consequence, remedy }
    }

    fn missing(name: &'static str, error: &EbpfError, consequence: &str) -> Self {
        Self {
            name,
            ok: false,
            found: error.to_string(),
            consequence: consequence.to_owned(),
            remedy: error.remedy(),
        }
    }
}

/// Everything the probe needs or uses, in the order in which it would fail. Loads nothing.
pub fn probe_host(host: &HostRoots) -> Vec<Check> {
    const NO_EBPF: &str = "the `ebpf` source cannot run";
    let mut checks = vec![
        match privileges(&host.procfs) {
            Ok(found) => Check::ok("privileges", found),
            Err(error) => Check::missing("privileges", &error, NO_EBPF),
        },
        match kernel(&host.procfs) {
            Ok(found) => Check::ok("kernel", found),
            Err(error) => Check::missing("kernel", &error, NO_EBPF),
        },
    ];
    match kernel_btf(&host.sysfs) {
        Ok(btf) => {
            let path = host.sysfs.join(KERNEL_BTF);
            checks.push(Check::ok("type information", path.display().to_string()));
            checks.extend(by_type_information(&btf));
        }
        Err(error) => checks.push(Check::missing("type information", &error, NO_EBPF)),
    }
    checks.push(cycle_counter(host));
    checks
}

fn by_type_information(btf: &Btf) -> [Check; 3] {
    let absent = |name, what, consequence: &str, remedy: &str| Check {
        name,
        ok: false,
        found: format!("this kernel has no {what}"),
        consequence: consequence.to_owned(),
        remedy: remedy.to_owned(),
    };
    const NEWER: &str = "boot a kernel that has it";
    [
        if btf.has_structure("bpf_ringbuf") {
            Check::ok("ring buffer", "BPF_MAP_TYPE_RINGBUF")
        } else {
            absent("ring buffer", "BPF ring buffer", "the `ebpf` source cannot run", NEWER)
        },
        if btf.has_typedef("btf_trace_sched_switch") {
            Check::ok("attach", "btf (tp_btf on sched_switch)")
        } else {
            absent(
                "attach",
                "type information on tracepoints",
                "raw tracepoints are used, some 65 ns more for each switch",
                NEWER,
            )
        },
        if btf.has_function("bpf_iter_task") {
            Check::ok("task iterator", "bpf_iter_task")
        } else {
            absent(
                "task iterator",
                "task iterator",
                "processes that run already are read from /proc",
                NEWER,
            )
        },
    ]
}

fn cycle_counter(host: &HostRoots) -> Check {
    let first = Cpus::read(&host.sysfs).ok().and_then(|cpus| cpus.online.first().copied());
    let cpu = first.unwrap_or(0);
    match cycles::available(PerfEvent::CYCLES, cpu) {
        Ok(()) => Check::ok("cycles", "hardware cycle counter"),
        Err(source) => Check {
            consequence: "work is weighed by time alone, not by cycles".to_owned(),
            ..Check::missing("cycles", &EbpfError::NoCycles { cpu, source }, "")
        },
    }
}

/// The capabilities that loading needs, by the process's own status.
pub(crate) fn privileges(procfs: &Path) -> Result<String, EbpfError> {
    // Capabilities are this thread's: others of the agent have none that is effective.
    let status = fs::read_to_string(procfs.join("thread-self/status")).unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Where the status cannot be read, loading will tell.
    effective.map_or(Ok("unknown".to_owned()), check_capabilities)
}

fn check_capabilities(effective: u64) -> Result<String, EbpfError> {
    let has = |capability: u32| effective & (1 << capability) != 0;
    if has(CAP_SYS_ADMIN) {
        return Ok("CAP_SYS_ADMIN".to_owned());
    }
    let missing: Vec<&str> = [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|(capability, _)| !has(*capability))
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        Ok("CAP_BPF and CAP_PERFMON".to_owned())
    } else {
        Err(EbpfError::Privileges { missing: missing.join(" and ") })
    }
}

/// The running kernel's version, where it is new enough.
pub(crate) fn kernel(procfs: &Path) -> Result<String, EbpfError> {
    let release = fs::read_to_string(procfs.join("sys/kernel/osrelease")).unwrap_or_default();
    check_release(release.trim())
}

fn check_release(release: &str) -> Result<String, EbpfError> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST_KERNEL => {
            Err(EbpfError::OldKernel {
                found: release.to_owned(),
                what: "running the probe on a chosen CPU",
                needed: "5.10",
            })
        }
        _ => Ok(release.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_told_by_name() {
        let check = |caps: &[u32], expected: Result<&str, &str>| {
            let mask = caps.iter().fold(0, |mask, c| mask | 1 << c);
            let got = check_capabilities(mask).map_err(|e| match e {
                EbpfError::Privileges { missing } => missing,
                other => other.to_string(),
            });
            assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned));
        };
        check(&[CAP_SYS_ADMIN], Ok("CAP_SYS_ADMIN"));
        check(&[CAP_BPF, CAP_PERFMON], Ok("CAP_BPF and CAP_PERFMON"));
        check(&[CAP_BPF], Err("CAP_PERFMON"));
        check(&[], Err("CAP_BPF and CAP_PERFMON"));
    }

    #[test]
    fn old_kernels_are_refused() {
        let check = |release, ok| assert_eq!(check_release(release).is_ok(), ok, "{release}");
        check("5.10.0-30-amd64", true);
        check("5.9.16", false);
        check("4.19.0", false);
        check("6.18.44-fc", true);
        check("10.0", true);
        check("strange", true);
    }

    #[test]
    fn every_missing_thing_has_its_consequence_and_remedy() {
        let empty = tempfile::tempdir().unwrap();
        let root = empty.path().to_owned();
        let host = HostRoots { procfs: root.clone(), sysfs: root.clone(), cgroupfs: root };
        let checks = probe_host(&host);
        assert!(checks.iter().any(|c| c.name == "type information" && !c.ok));
        for check in checks {
            assert_eq!(check.ok, check.remedy.is_empty(), "{check:?}");
            assert_eq!(check.ok, check.consequence.is_empty(), "{check:?}");
        }
    }
}
