//! Kernels from Debian's archives, by an apt whose lists and settings are in the cache: the
//! machine's own sources stay as they are, and other architectures work.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{Arch, Kernel};
use crate::process::{output, run};

/// Suites whose kernels are the newest of their series, from the oldest series that can do it to the
/// newest backports; and one with everything else.
const SUITES: &[&str] = &[
    "debian bullseye",
    "debian-security bullseye-security",
    "debian bookworm",
    "debian-security bookworm-security",
    "debian-security trixie-security",
    "debian trixie-backports",
];

/// An unpacked kernel.
pub(super) struct Fetched {
    /// Full version as `uname -r` says.
    pub(super) release: String,
    pub(super) image: PathBuf,
}

/// Where Debian's archives are: as told, else from where this machine has its own packages.
fn mirror() -> Result<String> {
    if let Ok(told) = std::env::var("DEBIAN_MIRROR") {
        return Ok(told);
    }
    let known = output(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]))?;
    known
        .lines()
        .find_map(|uri| uri.trim_end_matches('/').strip_suffix("/debian"))
        .map(str::to_owned)
        .context("this machine's apt knows no Debian archive: name one in DEBIAN_MIRROR")
}

/// An apt for one architecture.
pub(super) struct Apt {
    config: PathBuf,
    dir: PathBuf,
}

impl Apt {
    pub(super) fn new(arch: Arch, cache: &Path) -> Result<Self> {
        let dir = cache.join("apt").join(arch.debian);
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        fs::write(dir.join("status"), "")?;
        let mirror = mirror()?;
        let sources = SUITES.iter().map(|suite| {
            let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
            let (archive, suite) = suite.split_once(' ').unwrap_or(("debian", suite));
            format!("deb [signed-by={keyring}] {mirror}/{archive} {suite} main\n")
        });
        fs::write(dir.join("sources.list"), sources.collect::<String>())?;
        let at = dir.display();
        let config = dir.join("apt.conf");
        fs::write(
            &config,
            format!(
                "APT::Architecture \"{0}\";\nAPT::Architectures {{ \"{0}\"; }};\n\
                 Dir::State::lists \"{at}/lists\";\nDir::State::status \"{at}/status\";\n\
                 Dir::Cache \"{at}/cache\";\nDir::Etc::sourcelist \"{at}/sources.list\";\n\
                 Dir::Etc::sourceparts \"/dev/null\";\nAPT::Sandbox::User \"root\";\n\
                 Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \
                 \"false\";\n",
                arch.debian
            ),
        )?;
        let apt = Self { config, dir };
        // Kernels change names with each upload: lists older than a day would name some that are gone.
        let stamp = apt.dir.join("updated");
        let fresh = fs::metadata(&stamp)
            .and_then(|m| m.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() < 86_400));
        if !fresh {
            run(apt.command("apt-get").args(["-qq", "update"]))?;
            fs::write(stamp, "")?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config);
        // Containers' settings, which are read after ours, turn these off: minutes without them.
        for (key, file) in [("pkgcache", "pkgcache.bin"), ("srcpkgcache", "srcpkgcache.bin")] {
            command.args(["-o", &format!("Dir::Cache::{key}={file}")]);
        }
        command
    }

    /// Downloads a package and unpacks it into `to`; what is there already is kept.
    pub(super) fn unpack(&self, package: &str, to: &Path) -> Result<()> {
        let done = to.join(".unpacked").join(package);
        if done.exists() {
            return Ok(());
        }
        let downloads = self.dir.join("packages");
        fs::create_dir_all(&downloads)?;
        let prefix = format!("{package}_");
        let find = || -> Result<Option<PathBuf>> {
            let mut found = fs::read_dir(&downloads)?.flatten();
            Ok(found
                .find(|e| e.file_name().to_string_lossy().starts_with(&prefix))
                .map(|e| e.path()))
        };
        if find()?.is_none() {
            run(self
                .command("apt-get")
                .args(["-qq", "download", package])
                .current_dir(&downloads))?;
        }
        let file = find()?.with_context(|| format!("apt gave no file for {package}"))?;
        fs::create_dir_all(done.parent().unwrap_or(to))?;
        run(Command::new("dpkg-deb").arg("-x").arg(file).arg(to))?;
        fs::write(done, "")?;
        Ok(())
    }

    /// Versions of a series' image, the newest first. An archive may have dropped a file that its
    /// lists still name: then an older version has to do.
    fn images(&self, kernel: &Kernel) -> Result<Vec<String>> {
        let meta = format!("linux-image-{}{}", kernel.flavour, kernel.arch.debian);
        let policy = output(self.command("apt-cache").args(["madison", &meta]))?;
        let versions = policy
            .lines()
            .filter_map(|line| line.split('|').nth(1).map(str::trim))
            .filter(|version| {
                let rest = version.strip_prefix(kernel.series);
                rest.is_some_and(|r| kernel.series.ends_with('.') || r.starts_with('.'))
            });
        let mut images = Vec::new();
        for version in versions {
            let show =
                output(self.command("apt-cache").args(["show", &format!("{meta}={version}")]))?;
            let depends = show.lines().find_map(|line| line.strip_prefix("Depends: "));
            let image = depends
                .into_iter()
                .flat_map(|d| d.split([' ', ',']))
                .find(|word| word.starts_with("linux-image-"));
            images.extend(image.map(str::to_owned));
        }
        Ok(images)
    }
}

pub(super) fn kernel(kernel: &Kernel, cache: &Path) -> Result<Fetched> {
    let apt = Apt::new(kernel.arch, cache)?;
    let mut last = anyhow::anyhow!("the archives have no such kernel");
    for package in apt.images(kernel)? {
        let release = package.trim_start_matches("linux-image-").to_owned();
        let root = cache.join("kernels").join(kernel.arch.debian).join(&release);
        match apt.unpack(&package, &root) {
            Ok(()) => {
                // Since 7.x the kernel itself is in a package of its own, and not in /boot.
                let places = [
                    root.join("boot").join(format!("vmlinuz-{release}")),
                    root.join("usr/lib/modules").join(&release).join("vmlinuz"),
                ];
                if !places[0].exists() {
                    apt.unpack(&format!("linux-binary-{release}"), &root)?;
                }
                let image = places
                    .into_iter()
                    .find(|path| path.exists())
                    .with_context(|| format!("{package} holds no kernel"))?;
                return Ok(Fetched { image, release });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A static busybox for the guest.
pub(super) fn busybox(arch: Arch, cache: &Path) -> Result<PathBuf> {
    if arch.debian == "amd64" {
        return Ok(PathBuf::from("/bin/busybox"));
    }
    let root = cache.join("busybox").join(arch.debian);
    Apt::new(arch, cache)?.unpack("busybox-static", &root)?;
    ["bin/busybox", "usr/bin/busybox"]
        .iter()
        .map(|path| root.join(path))
        .find(|path| path.exists())
        .context("busybox-static holds no busybox")
}
