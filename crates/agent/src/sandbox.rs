//! A seccomp filter that takes away what the agent never does: run programs, change mounts,
//! namespaces or kernel modules, trace or write other processes.
//!
//! Landlock is not used: a process in a Landlock domain may not inspect processes outside of it,
//! which `/proc/<pid>/exe` of others needs (docs/decisions/agent.md).

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Refused with EPERM.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_personality,
];

/// Applies the filter to this thread and all that it makes. The reason, where it cannot.
pub(crate) fn apply() -> Result<(), String> {
    let arch: TargetArch = std::env::consts::ARCH
        .try_into()
        .map_err(|_| format!("no filter for {}", std::env::consts::ARCH))?;
    let rules: BTreeMap<i64, _> = REFUSED.iter().map(|nr| (*nr, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).map_err(|e| e.to_string())?;
    let program: BpfProgram = filter.try_into().map_err(|e| format!("{e}"))?;
    seccompiler::apply_filter(&program).map_err(|e| e.to_string())
}
