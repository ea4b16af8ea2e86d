//! `cargo xtask test-kernel`: the probe's and the source's tests, and the real binary, on real
//! Debian kernels in QEMU. No KVM is needed: everything is emulated.
//!
//! For each kernel: its package is fetched with apt (from Debian's archives, into a cache of its
//! own), the test programs are built statically for its architecture, and both go into an initial
//! RAM disk whose `init` ([`init.sh`](init.sh)) runs them and says for each how it went.
//!
//! `--set short` boots the oldest kernel for x86-64 and 6.12 (a few minutes); `--set full` all
//! of them for x86-64 and arm64, and writes the table of `docs/kernels.md`.

mod build;
mod cpio;
mod fetch;
mod module;
mod run;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, ValueEnum};

use crate::{process, test::install};

/// Debian packages this needs.
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "qemu-system-arm",
    "seabios",
    "ipxe-qemu",
    "busybox-static",
    "gcc",
    "libc6-dev",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
];

/// How much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Set {
    /// x86-64, oldest and newest kernel.
    Short,
    /// Everything, and the table.
    Full,
}

/// Which kernels.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// How much.
    #[arg(long, value_enum, default_value = "short")]
    set: Set,
    /// Only kernels whose name holds this, such as `arm64` or `5.10`.
    #[arg(long)]
    only: Option<String>,
    /// Write docs/kernels.md from the results there are, of this run and earlier ones.
    #[arg(long)]
    table: bool,
}

/// An architecture: Debian's name, Rust's, and QEMU's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arch {
    debian: &'static str,
    triple: &'static str,
    qemu: &'static str,
    machine: &'static [&'static str],
    console: &'static str,
}

const AMD64: Arch = Arch {
    debian: "amd64",
    triple: "x86_64-unknown-linux-gnu",
    qemu: "qemu-system-x86_64",
    // One thread for all CPUs: with one each, QEMU 7.2 lets a guest crash while it patches its code.
    machine: &["-accel", "tcg,thread=single", "-cpu", "max"],
    console: "ttyS0",
};

const ARM64: Arch = Arch {
    debian: "arm64",
    triple: "aarch64-unknown-linux-gnu",
    qemu: "qemu-system-aarch64",
    // Its performance monitor counts real (emulated) cycles.
    machine: &["-M", "virt", "-accel", "tcg,thread=multi", "-cpu", "cortex-a76"],
    console: "ttyAMA0",
};

/// A kernel to boot.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    arch: Arch,
    /// What its version begins with; the newest such version is taken.
    series: &'static str,
    flavour: &'static str,
    short: bool,
    /// Its meters are served by a module that is built here for it.
    powercap: bool,
}

impl Kernel {
    fn name(&self) -> String {
        format!("{}-{}", self.series, self.arch.debian)
    }
}

/// The oldest series that Debian's archive still serves is the oldest wattpipe supports.
const KERNELS: &[Kernel] = &[
    Kernel { arch: AMD64, series: "5.10", flavour: "cloud-", short: true, powercap: false },
    Kernel { arch: AMD64, series: "6.1", flavour: "", short: false, powercap: true },
    Kernel { arch: AMD64, series: "6.12", flavour: "cloud-", short: true, powercap: false },
    Kernel { arch: AMD64, series: "7.", flavour: "cloud-", short: false, powercap: false },
    Kernel { arch: ARM64, series: "5.10", flavour: "cloud-", short: false, powercap: false },
    Kernel { arch: ARM64, series: "6.1", flavour: "cloud-", short: false, powercap: false },
    Kernel { arch: ARM64, series: "6.12", flavour: "cloud-", short: false, powercap: false },
    Kernel { arch: ARM64, series: "7.", flavour: "cloud-", short: false, powercap: false },
];

/// Where kernels, programs and results are kept between runs.
fn cache() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let dir = base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("wattpipe-test-kernel");
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

/// The short set, as the test command runs it.
pub(crate) fn short() -> Result<()> {
    test_kernel(&Args { set: Set::Short, only: None, table: false })
}

pub(crate) fn test_kernel(args: &Args) -> Result<()> {
    let cache = cache()?;
    if args.table {
        return table::write(&process::root(), &cache);
    }
    install(PACKAGES)?;
    let wanted = |kernel: &&Kernel| {
        (args.set == Set::Full || kernel.short)
            && args.only.as_ref().is_none_or(|only| kernel.name().contains(only.as_str()))
    };
    let kernels: Vec<&Kernel> = KERNELS.iter().filter(wanted).collect();
    if kernels.is_empty() {
        bail!("no kernel of this set is called so; there are: {}", names());
    }
    let mut failed = Vec::new();
    for arch in [AMD64, ARM64] {
        let mut programs = None;
        for kernel in kernels.iter().filter(|k| k.arch == arch) {
            let programs = match &programs {
                Some(programs) => programs,
                None => programs.insert(build::programs(arch)?),
            };
            // One kernel that does not come up is a result too; the others are still of interest.
            let outcome = run::one(kernel, programs, &cache)
                .unwrap_or_else(|error| run::Outcome::broken(kernel, &error));
            outcome.print();
            failed.extend(outcome.failures());
            outcome.save(&cache)?;
        }
    }
    if args.set == Set::Full && args.only.is_none() {
        table::write(&process::root(), &cache)?;
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn names() -> String {
    KERNELS.iter().map(Kernel::name).collect::<Vec<_>>().join(", ")
}
