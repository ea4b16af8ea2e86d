//! Containers by runc, crun and podman, and what the kernel's accounting says of them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use wattpipe_pipeline::registry::HostRoots;
use wattpipe_source::cgroup::{self, Version};

#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {} {errors}", output.status);
    output
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    let start = Instant::now();
    while !test() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what} does not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The start of a command in a private mount namespace whose `/sys/fs/cgroup` is the v2 tree alone.
pub(crate) fn on_v2() -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c"]);
    command
        .arg("umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$@\"");
    command.arg("sh");
    command
}

/// A root file system of busybox alone.
pub(crate) fn root_fs(root: &Path) {
    for directory in ["bin", "proc", "dev", "sys", "tmp"] {
        fs::create_dir_all(root.join(directory)).expect("a root file system");
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("Debian's busybox-static");
    for applet in ["sh", "sleep", "true"] {
        symlink("busybox", root.join("bin").join(applet)).expect("a link");
    }
}

/// Bundles, and a branch of the cgroup tree of our own.
pub(crate) struct Rig {
    dir: tempfile::TempDir,
    parent: String,
    hierarchy: cgroup::Hierarchy,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        root_fs(&dir.path().join("rootfs"));
        let parent = format!("wattpipe-test-{}", std::process::id());
        let hierarchy = cgroup::hierarchy(&HostRoots::default()).expect("a cgroup file system");
        Self { dir, parent, hierarchy }
    }

    /// The name of our branch.
    pub(crate) fn parent(&self) -> &str {
        &self.parent
    }

    /// A container id that ends in `name`'s bytes.
    pub(crate) fn id(&self, name: &str) -> String {
        let hex: String = name.bytes().map(|b| format!("{b:02x}")).collect();
        format!("{:08x}{hex:0>56}", std::process::id())
    }

    /// A container's path in the hierarchy.
    pub(crate) fn cgroup_path(&self, id: &str) -> String {
        format!("/{}/docker/{id}", self.parent)
    }

    /// Its directory in the hierarchy in use.
    pub(crate) fn cgroup(&self, id: &str) -> PathBuf {
        self.hierarchy.mount.join(self.parent.as_str()).join("docker").join(id)
    }

    fn used(&self, id: &str) -> u64 {
        let read = |file: &str| fs::read_to_string(self.cgroup(id).join(file)).expect("its usage");
        match self.hierarchy.version {
            Version::V1 => read("cpuacct.usage").trim().parse().expect("a number"),
            Version::V2 => {
                let text = read("cpu.stat");
                let usec = text.lines().find_map(|l| l.strip_prefix("usage_usec "));
                1000 * usec.and_then(|n| n.trim().parse::<u64>().ok()).expect("usage_usec")
            }
        }
    }

    fn bundle(&self, id: &str, script: &str) -> PathBuf {
        let bundle = self.dir.path().join(id);
        fs::create_dir(&bundle).expect("a bundle");
        run(Command::new("runc").arg("spec").arg("--bundle").arg(&bundle));
        let file = bundle.join("config.json");
        let text = fs::read_to_string(&file).expect("a spec");
        let mut spec: Value = serde_json::from_str(&text).expect("a spec");
        spec["root"]["path"] = self.dir.path().join("rootfs").to_str().into();
        let process = spec["process"].as_object_mut().expect("a process");
        // Raising limits takes a capability that test machines lack.
        process.remove("rlimits");
        process.insert("terminal".into(), false.into());
        process.insert("args".into(), json!(["/bin/sh", "-c", script]));
        spec["linux"]["cgroupsPath"] = self.cgroup_path(id).into();
        spec["linux"].as_object_mut().expect("linux").remove("resources");
        fs::write(&file, spec.to_string()).expect("a spec");
        bundle
    }

    fn runtime(&self, mut command: Command, runtime: &str) -> Command {
        if command.get_program() == "runc" {
            command = Command::new(runtime);
        } else {
            command.arg(runtime);
        }
        command.arg("--root").arg(self.dir.path().join("state"));
        command.stdin(Stdio::null());
        command
    }

    fn runc(&self) -> Command {
        self.runtime(Command::new("runc"), "runc")
    }

    /// Starts a container in the background.
    pub(crate) fn runc_start(&self, id: &str, script: &str) {
        let bundle = self.bundle(id, script);
        let mut command = self.runc();
        command.args(["run", "-d", "--bundle"]).arg(bundle).arg(id);
        // Its output goes nowhere: a pipe would be held open by the container.
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(status.expect("runc").success(), "{command:?}");
    }

    /// Waits for its end; gives the CPU time that the kernel has for its cgroup, then removes it.
    pub(crate) fn runc_finish(&self, id: &str) -> u64 {
        eventually("the container's end", || {
            let state = run(self.runc().args(["state", id])).stdout;
            let state: Value = serde_json::from_slice(&state).expect("a state");
            state["status"] == "stopped"
        });
        let used = self.used(id);
        run(self.runc().args(["delete", id]));
        used
    }

    /// Runs a container to its end; runc removes its cgroup.
    pub(crate) fn runc_run(&self, id: &str, script: &str) {
        let bundle = self.bundle(id, script);
        run(self.runc().args(["run", "--bundle"]).arg(bundle).arg(id));
    }

    /// The same by crun where the v2 tree is all there is.
    pub(crate) fn crun_run_on_v2(&self, id: &str, script: &str) {
        let bundle = self.bundle(id, script);
        let mut command = self.runtime(on_v2(), "crun");
        run(command.args(["run", "--bundle"]).arg(bundle).arg(id));
    }

    /// `n` processes of `/bin/true`, one after the other, in a cgroup of their own: the CPU time
    /// the kernel has for it, and the most that `memory` gave meanwhile.
    pub(crate) fn fork_bomb(&self, id: &str, n: u32, memory: impl Fn() -> u64) -> (u64, u64) {
        let cgroup = self.cgroup(id);
        fs::create_dir_all(&cgroup).expect("a cgroup");
        let script = format!(
            "echo $$ > {}/cgroup.procs; i=0; while [ $i -lt {n} ]; do {}/rootfs/bin/true; i=$((i+1)); done",
            cgroup.display(),
            self.dir.path().display()
        );
        let mut shell = Command::new(self.dir.path().join("rootfs/bin/sh"));
        let mut bomb = Ends(shell.args(["-c", &script]).spawn().expect("a shell"));
        let (mut most, start) = (0, Instant::now());
        // It takes 10 s of CPU time, which a busy machine may make minutes of.
        while bomb.0.try_wait().expect("a child").is_none() {
            assert!(start.elapsed() < Duration::from_secs(900), "the fork bomb does not end");
            most = most.max(memory());
            thread::sleep(Duration::from_millis(200));
        }
        (self.used(id), most)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        remove_cgroups(&self.parent);
    }
}

/// A process that does not outlive its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Removes a branch of ours from all hierarchies.
pub(crate) fn remove_cgroups(parent: &str) {
    branches(parent).iter().for_each(|branch| remove_tree(branch));
}

/// Where a branch of this name is, or would be, in all hierarchies.
pub(crate) fn branches(name: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path());
    hierarchies.chain([root.to_owned()]).map(|h| h.join(name)).collect()
}

/// Removes a cgroup and those below it; one that still has processes stays.
pub(crate) fn remove_tree(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Podman with a storage of its own, and its API on a socket.
pub(crate) struct Podman {
    dir: tempfile::TempDir,
    service: Option<Child>,
    parent: String,
}

impl Podman {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = dir.path().join("rootfs");
        root_fs(&root);
        let tar = dir.path().join("rootfs.tar");
        run(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg("."));
        let parent = format!("wattpipe-test-podman-{}", std::process::id());
        let mut podman = Self { dir, service: None, parent };
        run(podman.command().arg("import").arg(tar).arg("localhost/wattpipe-busybox:1"));
        let mut service = podman.command();
        service.args(["system", "service", "--time", "0"]);
        service.arg(format!("unix://{}", podman.socket().display()));
        podman.service = Some(service.stdin(Stdio::null()).spawn().expect("podman"));
        eventually("podman's socket", || podman.socket().exists());
        podman
    }

    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        for (option, folder) in [("--root", "storage"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(option).arg(self.dir.path().join(folder));
        }
        command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]);
        command.args(["--runtime", "runc", "--events-backend", "none"]);
        command
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("podman.sock")
    }

    /// Runs a container to its end; gives its id.
    pub(crate) fn run(&self, name: &str, script: &str) -> String {
        let mut command = self.command();
        command.args(["run", "-d", "--name", name, "--network", "none"]);
        command.args(["--cgroup-parent", &format!("/{}", self.parent)]);
        // Raising limits takes a capability that test machines lack; these are low ones.
        command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=512:512"]);
        command.args(["localhost/wattpipe-busybox:1", "/bin/sh", "-c", script]);
        let id = String::from_utf8(run(&mut command).stdout).expect("an id").trim().to_owned();
        run(self.command().args(["wait", &id]));
        run(self.command().args(["rm", "-f", "-t", "0", &id]));
        id
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Some(service) = &mut self.service {
            let _ = service.kill();
            let _ = service.wait();
        }
        remove_cgroups(&self.parent);
    }
}
