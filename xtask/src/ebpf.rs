//! `cargo xtask ebpf`: builds the kernel programs and puts the objects beside their loader, where
//! they are committed, so that `cargo build` needs stable Rust only.
//!
//! The compiler must bring `core`'s source and LLVM must be the one that `bpf-linker` was made for:
//! Debian's `rustc-web` with `rust-web-src`, or nightly with `rust-src`. The versions used are
//! recorded; with the same ones the build gives the same bytes, wherever it is done.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;
use serde_json::Value;

use crate::{
    process::{self, as_root, cargo, output, root},
    test,
};

const BPF_LINKER: &str = "0.10.3";
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];
/// Binary of `crates/ebpf-probe`, and the committed object that it becomes.
const OBJECTS: &[(&str, &str)] = &[("wattpipe", "wattpipe.bpf.o"), ("bench", "bench.bpf.o")];

/// What to do.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Install the toolchain where it is missing: Debian packages, else by rustup.
    #[arg(long)]
    pub(crate) install: bool,
    /// Change nothing: with the recorded versions the build must equal the committed objects, with
    /// others the rebuilt probe must pass the kernel tests.
    #[arg(long)]
    pub(crate) check: bool,
}

/// A compiler that can build for the kernel.
struct Toolchain {
    cargo: PathBuf,
    rustc: PathBuf,
    /// Where the LLVM library is that `bpf-linker` loads.
    llvm: PathBuf,
    /// Versions, as recorded.
    versions: String,
}

pub(crate) fn ebpf(args: &Args) -> Result<()> {
    if args.install {
        install()?;
    }
    let toolchain = find_toolchain()?;
    let built = build(&toolchain)?;
    let probe = root().join("crates/source/probe");
    let recorded = fs::read_to_string(probe.join("versions.txt")).unwrap_or_default();
    if !args.check {
        for (binary, object) in OBJECTS {
            fs::copy(built.join(binary), probe.join(object))?;
        }
        fs::write(probe.join("versions.txt"), &toolchain.versions)?;
        println!("rebuilt with\n{}", toolchain.versions);
        return Ok(());
    }
    if recorded == toolchain.versions {
        for (binary, object) in OBJECTS {
            let (new, old) = (fs::read(built.join(binary))?, fs::read(probe.join(object))?);
            ensure!(
                new == old,
                "{object} is not what the sources give: run `cargo xtask ebpf` and commit it"
            );
        }
        println!("the committed objects are what the sources give");
        return Ok(());
    }
    println!(
        "versions differ, so the rebuilt probe is tested instead of compared:\n{}recorded:\n{recorded}",
        toolchain.versions
    );
    test_object(&built.join(OBJECTS[0].0))
}

/// The kernel tests of the source, with another object than the committed one.
fn test_object(object: &Path) -> Result<()> {
    let messages = output(&mut cargo(&[
        "test",
        "--package=wattpipe-source",
        "--lib",
        "--no-run",
        "--message-format=json",
    ]))?;
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .context("cargo told of no test program")?;
    process::run(
        as_root("env").arg(format!("PROBE_OBJECT={}", object.display())).arg(program).args([
            "ebpf::kernel_tests",
            "--ignored",
            "--test-threads=1",
        ]),
    )
}

fn install() -> Result<()> {
    if Path::new("/usr/bin/apt-get").exists() && test::install(DEBIAN_PACKAGES).is_ok() {
        println!("Debian's compiler is there");
    } else {
        process::run(Command::new("rustup").args([
            "toolchain",
            "install",
            "nightly",
            "--profile=minimal",
            "--component=rust-src",
        ]))?;
    }
    if linker_version().is_ok_and(|version| version.ends_with(BPF_LINKER)) {
        return Ok(());
    }
    process::run(Command::new("cargo").args([
        "install",
        "bpf-linker",
        "--version",
        BPF_LINKER,
        "--locked",
    ]))
}

fn linker_version() -> Result<String> {
    output(Command::new("bpf-linker").arg("--version")).map(|v| v.trim().to_owned())
}

fn find_toolchain() -> Result<Toolchain> {
    const HINT: &str = "`cargo xtask ebpf --install` installs what is missing";
    let linker = linker_version().context(HINT)?;
    let debian = (PathBuf::from("/usr/bin/cargo"), PathBuf::from("/usr/bin/rustc"));
    let nightly = || -> Result<(PathBuf, PathBuf)> {
        let which = |tool: &str| {
            output(Command::new("rustup").args(["which", "--toolchain", "nightly", tool]))
                .map(|path| PathBuf::from(path.trim()))
        };
        Ok((which("cargo")?, which("rustc")?))
    };
    let (cargo, rustc) = if has_source(&debian.1) { debian } else { nightly().context(HINT)? };
    ensure!(has_source(&rustc), "{} has no source of core; {HINT}", rustc.display());
    let about = output(Command::new(&rustc).arg("-vV"))?;
    let llvm_version = about
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))
        .context("the compiler does not tell its LLVM")?;
    let version = about.lines().next().unwrap_or_default();
    Ok(Toolchain {
        llvm: find_llvm(&rustc, llvm_version)?,
        versions: format!("{version}\nLLVM {llvm_version}\n{linker}\n"),
        cargo,
        rustc,
    })
}

fn sysroot(rustc: &Path) -> Result<PathBuf> {
    Ok(output(Command::new(rustc).args(["--print", "sysroot"]))?.trim().into())
}

fn has_source(rustc: &Path) -> bool {
    rustc.exists()
        && sysroot(rustc).is_ok_and(|root| root.join("lib/rustlib/src/rust/library/core").is_dir())
}

/// A directory that holds the compiler's LLVM and no other: `bpf-linker` takes the first it finds.
fn find_llvm(rustc: &Path, version: &str) -> Result<PathBuf> {
    let major = version.split('.').next().unwrap_or(version);
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = [
        format!("/usr/lib/llvm-{major}/lib").into(),
        PathBuf::from(multiarch),
        sysroot(rustc)?.join("lib"),
    ];
    for place in &places {
        let Ok(files) = fs::read_dir(place) else { continue };
        for file in files.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if !name.starts_with(&format!("libLLVM.so.{major}")) {
                continue;
            }
            let dir = root().join("target/ebpf-llvm");
            let link = dir.join(&name);
            fs::create_dir_all(&dir)?;
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(file.path(), link)?;
            return Ok(dir);
        }
    }
    bail!("no libLLVM.so.{major} in {places:?}")
}

/// Builds, and tells where the binaries are.
fn build(toolchain: &Toolchain) -> Result<PathBuf> {
    const TARGET: &str = "bpfel-unknown-none";
    let source = root().join("crates/ebpf-probe");
    let registry = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .unwrap_or_default();
    // Only the reading of registers depends on the architecture, and the probe reads none.
    let flags = [
        "-Clinker=bpf-linker".to_owned(),
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
        format!("--remap-path-prefix={}=/probe", source.display()),
        format!("--remap-path-prefix={}=/cargo", registry.display()),
    ];
    let mut path = OsString::from(registry.join("bin"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    process::run(
        Command::new(&toolchain.cargo)
            .args(["build", "--release", "--locked", "--target", TARGET, "-Z", "build-std=core"])
            .current_dir(&source)
            .env("PATH", path)
            .env("RUSTC", &toolchain.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("LD_LIBRARY_PATH", &toolchain.llvm)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO"),
    )?;
    Ok(source.join("target").join(TARGET).join("release"))
}
