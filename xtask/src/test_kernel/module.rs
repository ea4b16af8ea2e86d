//! A powercap tree served by the guest's own kernel: a small module, built for exactly that kernel,
//! registers zones whose counters grow with the time its CPUs are busy.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{Kernel, fetch};
use crate::process::run;

const SOURCE: &str = include_str!("fakemeter.c");

/// Modules to load, none where the kernel has no powercap or its headers cannot be had.
pub(super) fn powercap(
    kernel: &Kernel,
    fetched: &fetch::Fetched,
    cache: &Path,
) -> Result<Vec<PathBuf>> {
    let release = &fetched.release;
    let work = cache.join("modules").join(release);
    let built = work.join("fakemeter.ko");
    let source = work.join("fakemeter.c");
    if !built.exists() || fs::read_to_string(&source).ok().as_deref() != Some(SOURCE) {
        let headers = headers(kernel, release, cache)?;
        fs::create_dir_all(&work)?;
        fs::write(source, SOURCE)?;
        fs::write(work.join("Makefile"), "obj-m := fakemeter.o\n")?;
        run(Command::new("make")
            .args(["-s", "-C"])
            .arg(headers)
            .arg(format!("M={}", work.display()))
            .args(["CC=gcc", "modules"]))?;
    }
    Ok(vec![built])
}

/// The kernel's headers and its build programs, with the absolute paths in them bent to where they
/// are unpacked.
fn headers(kernel: &Kernel, release: &str, cache: &Path) -> Result<PathBuf> {
    let root = cache.join("headers").join(release);
    let apt = fetch::Apt::new(kernel.arch, cache)?;
    let flavour = format!("-{}{}", kernel.flavour, kernel.arch.debian);
    let base = release.strip_suffix(&flavour).context("a release of another flavour")?;
    apt.unpack(&format!("linux-headers-{release}"), &root)?;
    apt.unpack(&format!("linux-headers-{base}-common"), &root)?;
    apt.unpack(&format!("linux-kbuild-{}", kernel.series), &root)?;
    let tree = root.join("usr/src").join(format!("linux-headers-{release}"));
    for dir in fs::read_dir(root.join("usr/src"))?.flatten() {
        let makefile = dir.path().join("Makefile");
        if let Ok(text) = fs::read_to_string(&makefile) {
            let bent = format!("include {}/usr/src", root.display());
            fs::write(makefile, text.replace("include /usr/src", &bent))?;
        }
    }
    Ok(tree)
}
