//! The agent under test, and what it printed.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::runtimes::on_v2;
use crate::memory::without_ring;

/// The tests measure one kernel: one at a time.
pub(crate) fn serial() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time the hypervisor has taken from all CPUs since boot.
pub(crate) fn steal_ns() -> u64 {
    let text = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let cpu = text.lines().next().expect("the line of all CPUs");
    let ticks: u64 = cpu.split_whitespace().nth(8).and_then(|n| n.parse().ok()).unwrap_or(0);
    ticks * 10_000_000
}

/// A running agent.
pub(crate) struct Agent {
    child: Child,
    dir: tempfile::TempDir,
}

impl Agent {
    pub(crate) fn start(ebpf: &str, attribution: &str) -> Self {
        Self::spawn(ebpf, attribution, Command::new(env!("CARGO_BIN_EXE_wattpipe")))
    }

    /// In a mount namespace whose `/sys/fs/cgroup` is the v2 tree alone.
    pub(crate) fn start_on_v2(ebpf: &str, attribution: &str) -> Self {
        let mut command = on_v2();
        command.arg(env!("CARGO_BIN_EXE_wattpipe"));
        Self::spawn(ebpf, attribution, command)
    }

    /// With a `/proc` that numbers processes otherwise than the kernel does.
    pub(crate) fn start_in_pid_namespace(ebpf: &str, attribution: &str) -> Self {
        let mut command = Command::new("unshare");
        // The agent is a child of unshare, which ends with its status.
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.arg(env!("CARGO_BIN_EXE_wattpipe"));
        Self::spawn(ebpf, attribution, command)
    }

    /// What it has logged so far.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.path("err")).unwrap_or_default()
    }

    fn spawn(ebpf: &str, attribution: &str, mut command: Command) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = format!(
            "sources: {{ebpf: {{{ebpf}}}}}\n\
             processors: {{delta: {{}}, attribution: {{{attribution}}}}}\n\
             exporters: {{stdout: {{format: json}}}}\n\
             service: {{pipelines: {{p: {{sources: [ebpf], processors: [delta, attribution], exporters: [stdout]}}}}}}\n"
        );
        fs::write(dir.path().join("config.yaml"), config).expect("a config file");
        let file = |name: &str| fs::File::create(dir.path().join(name)).expect("a file");
        let child = command
            .arg("--config")
            .arg(dir.path().join("config.yaml"))
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("the agent starts");
        let agent = Self { child, dir };
        // The first window shows that the probe is there.
        agent.wait_windows(1);
        agent
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn wait_windows(&self, more: usize) {
        let count = || {
            let text = fs::read_to_string(self.path("out")).unwrap_or_default();
            text.lines().filter(|l| l.starts_with("{\"type\":\"window\"")).count()
        };
        let (wanted, start) = (count() + more, Instant::now());
        while count() < wanted {
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "no window: {}",
                fs::read_to_string(self.path("err")).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn memory_without_ring(&self) -> u64 {
        without_ring(self.child.id())
    }

    /// Ends it after one more whole window and reads what it printed.
    pub(crate) fn finish(mut self) -> Rows {
        self.wait_windows(2);
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let is_unshare =
            fs::read_to_string(format!("/proc/{own}/comm")).is_ok_and(|c| c == "unshare\n");
        let pid = children
            .ok()
            .filter(|_| is_unshare)
            .and_then(|c| c.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| i32::try_from(own).expect("a pid"));
        kill(Pid::from_raw(pid), Signal::SIGINT).expect("the agent is there");
        let status = self.child.wait().expect("the agent ends");
        let errors = fs::read_to_string(self.path("err")).unwrap_or_default();
        assert!(status.success(), "{status}: {errors}");
        let text = fs::read_to_string(self.path("out")).expect("its output");
        let rows = text.lines().map(|l| serde_json::from_str::<Value>(l).expect("a record"));
        let (windows, rows): (Vec<_>, Vec<_>) = rows.partition(|r| r["type"] == "window");
        let lost: u64 = windows.iter().filter_map(|w| w["lost"].as_u64()).sum();
        assert_eq!(lost, 0, "switches were lost");
        Rows(rows.into_iter().filter(|r| r["type"] == "usage").collect())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Only where a test failed before its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Usage records.
pub(crate) struct Rows(Vec<Value>);

impl Rows {
    pub(crate) fn all(&self, test: impl Fn(&Value) -> bool) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |r| test(r))
    }

    fn with<'a>(&'a self, key: &'a str, value: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |r| r["attributes"][key] == value)
    }

    /// CPU time of all rows with this attribute.
    pub(crate) fn cpu(&self, key: &str, value: &str) -> u64 {
        self.with(key, value).filter_map(|r| r["cpu_ns"].as_u64()).sum()
    }

    /// How many rows with this attribute are in this state.
    pub(crate) fn count(&self, key: &str, value: &str, state: &str) -> usize {
        self.with(key, value).filter(|r| r["state"] == state).count()
    }

    /// A row with this attribute for which the test holds.
    #[track_caller]
    pub(crate) fn find(&self, key: &str, value: &str, test: impl Fn(&Value) -> bool) -> &Value {
        let all: Vec<&Value> = self.0.iter().filter(|r| r["attributes"][key] == value).collect();
        let found = all.iter().copied().find(|r| test(r));
        found.unwrap_or_else(|| panic!("no such row with {key} = {value} among {all:#?}"))
    }

    #[track_caller]
    pub(crate) fn any(&self, key: &str, value: &str) -> &Value {
        self.find(key, value, |_| true)
    }
}
