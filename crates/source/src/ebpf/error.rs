//! What can go wrong with the probe, each with what to do about it.

use std::io;

use wattpipe_pipeline::source::SourceError;

use super::btf::BtfError;

const PROCFS: &str = "the `procfs` source needs none of this";

/// Why the probe does not run.
#[derive(Debug, thiserror::Error)]
pub enum EbpfError {
    /// Not allowed to load programs.
    #[error("loading eBPF programs is not permitted (missing {missing})")]
    Privileges {
        /// Which capabilities are missing.
        missing: String,
    },
    /// No type information.
    #[error("the kernel offers no type information at {path}: {source}")]
    NoBtf {
        /// Where it was looked for.
        path: String,
        /// Why it could not be read.
        source: io::Error,
    },
    /// Type information lacks something.
    #[error("the kernel's type information cannot be used: {0}")]
    Btf(#[from] BtfError),
    /// Too old.
    #[error("Linux {found} is too old: {what} needs {needed}")]
    OldKernel {
        /// What runs.
        found: String,
        /// What is missing.
        what: &'static str,
        /// From which version on it is there.
        needed: &'static str,
    },
    /// Cycles were asked for and cannot be counted.
    #[error("the cycle counter of CPU {cpu} cannot be opened: {source}")]
    NoCycles {
        /// Where it was tried.
        cpu: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Forbidden in spite of capabilities.
    #[error("the kernel forbids {what}, in spite of this process's capabilities")]
    Forbidden {
        /// What.
        what: String,
    },
    /// A program or map was refused.
    #[error("the kernel refused {what}: {reason}")]
    Refused {
        /// Which.
        what: String,
        /// Its answer, with the verifier's last words.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl EbpfError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// What the user can do.
    pub fn remedy(&self) -> String {
        let advice = match self {
            Self::Privileges { .. } => {
                "run as root, or with the capabilities CAP_BPF and CAP_PERFMON"
            }
            Self::Forbidden { .. } => {
                "run in the initial user namespace (rootless containers are not), and see whether \
                 seccomp, an LSM or lockdown forbids eBPF"
            }
            Self::NoBtf { .. } => {
                "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (all current distributions' are), \
                 and mount /sys"
            }
            Self::Btf(_) => "report the kernel's version; until then another kernel may work",
            Self::OldKernel { .. } => "boot Linux 5.10 or newer",
            Self::NoCycles { .. } => {
                return "with `cycles: auto`, the default, wattpipe goes without; virtual machines often \
                        have no hardware counters, and kernel.perf_event_paranoid above 2 hides them \
                        from processes without CAP_SYS_ADMIN"
                    .to_owned();
            }
            Self::Refused { .. } => {
                "see whether a security policy (lockdown, seccomp, LSM) forbids eBPF here, and try \
                 `attach: raw_tracepoint`"
            }
            Self::Io { .. } => "see the cause above",
        };
        format!("{advice}; {PROCFS}")
    }
}

impl From<EbpfError> for SourceError {
    fn from(error: EbpfError) -> Self {
        match error {
            EbpfError::Io { what, source } => SourceError::failed(what, source),
            other => Self::Unavailable { what: other.to_string(), remedy: other.remedy() },
        }
    }
}
