//! Docker on containerd, both unpacked from Debian's packages and run by hand: installing them
//! would start services on the test's host.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::runtimes::{branches, eventually, remove_cgroups, remove_tree, root_fs, run};

/// Both daemons, with storage and sockets of their own.
pub(crate) struct Docker {
    dir: tempfile::TempDir,
    daemons: Vec<Child>,
    parent: String,
    /// Branches of Docker's own name that were not there before it.
    new: Vec<PathBuf>,
}

impl Docker {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        unpack(&["containerd", "docker.io"], dir.path());
        let parent = format!("wattpipe-test-docker-{}", std::process::id());
        let new = branches("docker").into_iter().filter(|b| !b.exists()).collect();
        let mut docker = Self { dir, daemons: Vec::new(), parent, new };
        let log = |name: &str| fs::File::create(docker.path(name)).expect("a log file");

        let mut containerd = docker.program("bin/containerd");
        containerd.arg("--root").arg(docker.path("containerd"));
        containerd.arg("--state").arg(docker.path("containerd-state"));
        containerd.arg("--address").arg(docker.containerd_socket());
        containerd.stdout(Stdio::null()).stderr(log("containerd.log"));
        let mut dockerd = docker.program("sbin/dockerd");
        dockerd.arg("--containerd").arg(docker.containerd_socket());
        dockerd.arg("--data-root").arg(docker.path("data"));
        dockerd.arg("--exec-root").arg(docker.path("exec"));
        dockerd.arg("--pidfile").arg(docker.path("pid"));
        dockerd.arg("--host").arg(format!("unix://{}", docker.socket().display()));
        dockerd.args(["--bridge=none", "--iptables=false", "--ip-forward=false"]);
        dockerd.args(["--ip-masq=false", "--storage-driver=vfs"]);
        dockerd.stdout(Stdio::null()).stderr(log("dockerd.log"));

        docker.daemons.push(containerd.spawn().expect("containerd"));
        eventually("containerd's socket", || docker.containerd_socket().exists());
        docker.daemons.push(dockerd.spawn().expect("dockerd"));
        eventually("docker's answer", || {
            docker.client().arg("version").output().is_ok_and(|o| o.status.success())
        });
        let root = docker.path("rootfs");
        root_fs(&root);
        let tar = docker.path("rootfs.tar");
        run(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg("."));
        run(docker.client().arg("import").arg(tar).arg("wattpipe-busybox:1"));
        docker
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("docker.sock")
    }

    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.path("containerd.sock")
    }

    fn program(&self, name: &str) -> Command {
        let usr = self.path("usr");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(usr.join(name));
        command.env("PATH", format!("{0}/bin:{0}/sbin:{path}", usr.display()));
        command.stdin(Stdio::null());
        command
    }

    fn client(&self) -> Command {
        let mut command = self.program("bin/docker");
        command.env("DOCKER_HOST", format!("unix://{}", self.socket().display()));
        command.env("DOCKER_CONFIG", self.path("config"));
        command
    }

    /// Runs a container to its end; gives its id.
    pub(crate) fn run(&self, name: &str, script: &str) -> String {
        let mut command = self.client();
        command.args(["run", "-d", "--name", name, "--network", "none"]);
        command.args(["--cgroup-parent", &format!("/{}", self.parent)]);
        command.args(["wattpipe-busybox:1", "/bin/sh", "-c", script]);
        let id = String::from_utf8(run(&mut command).stdout).expect("an id").trim().to_owned();
        run(self.client().args(["wait", &id]));
        run(self.client().args(["rm", "-f", &id]));
        id
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // The one that was started last uses the other.
        for mut daemon in self.daemons.drain(..).rev() {
            let pid = daemon.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &pid]).status();
            let _ = daemon.wait();
        }
        // Docker mounts a network namespace there.
        let _ = Command::new("umount").arg(self.path("exec/netns/default")).output();
        remove_cgroups(&self.parent);
        self.new.iter().for_each(|branch| remove_tree(branch));
    }
}

/// Unpacks Debian packages into `directory` without installing them.
fn unpack(packages: &[&str], directory: &Path) {
    let download =
        || Command::new("apt-get").arg("download").args(packages).current_dir(directory).output();
    if !download().is_ok_and(|o| o.status.success()) {
        run(Command::new("apt-get").args(["-qq", "update"]));
        run(Command::new("apt-get").arg("download").args(packages).current_dir(directory));
    }
    let files = fs::read_dir(directory).expect("the folder").flatten().map(|e| e.path());
    for package in files.filter(|p| p.extension().is_some_and(|e| e == "deb")) {
        run(Command::new("dpkg").arg("-x").arg(package).arg(directory));
    }
}
