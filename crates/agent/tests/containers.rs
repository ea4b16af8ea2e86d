//! Real containers of Debian's runtimes, through the real binary: each one's CPU time and name
//! appear under its id, that of a container of 50 ms included, and after it is gone.
//!
//! The root file system is busybox alone; no image is pulled. Everything made (cgroups, bundles,
//! storage) is removed again.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod containers {
    pub(crate) mod agent;
    pub(crate) mod docker;
    pub(crate) mod runtimes;
}

#[path = "support/memory.rs"]
mod memory;

use std::{fs, time::Duration};

use containers::{
    agent::{Agent, Rows, serial, steal_ns},
    docker::Docker,
    runtimes::{Podman, Rig},
};

use serde_json::Value;

const MS: u64 = 1_000_000;

/// `got` is `expected`, give or take what a container's first steps cost before its runtime moves
/// it into its cgroup, and what the hypervisor took meanwhile.
#[track_caller]
fn check_cpu(what: &str, got: u64, expected: u64, stolen: u64) {
    let allowed = expected / 50 + 25 * MS + stolen;
    println!("{what}: {got} ns, kernel {expected} ns, stolen {stolen} ns");
    assert!(got.abs_diff(expected) <= allowed, "{what}: {got} ns, kernel {expected} ns");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn each_container_has_its_time() {
    let _serial = serial();
    let rig = Rig::new();
    let agent = Agent::start("window: 500ms", "containers: []");
    let stolen = steal_ns();
    let ids = ["1", "2", "3"].map(|n| rig.id(n));
    for (id, turns) in ids.iter().zip([30_000, 60_000, 120_000]) {
        rig.runc_start(id, &format!("i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done"));
    }
    let used = ids.each_ref().map(|id| rig.runc_finish(id));
    let rows = agent.finish();
    let stolen = steal_ns() - stolen;
    for (id, used) in ids.iter().zip(used) {
        check_cpu("container", rows.cpu("container.id", id), used, stolen);
        let row = rows.any("container.id", id);
        assert_eq!(row["attributes"]["container.runtime.name"], "docker");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_container_of_50_ms_is_known_after_it_is_gone() {
    let _serial = serial();
    let rig = Rig::new();
    // The window is long: the container is over and its cgroup removed when its usage is told.
    let agent = Agent::start("window: 2s", "containers: []");
    let ids: Vec<_> = (1..=5).map(|n| rig.id(&n.to_string())).collect();
    for id in &ids {
        rig.runc_run(id, "i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; exec /bin/sleep 0.05");
        assert!(!rig.cgroup(id).exists(), "runc removes the cgroup");
    }
    let rows = agent.finish();
    for id in &ids {
        let row = rows
            .find("container.id", id, |r| r["attributes"]["process.executable.name"] == "sleep");
        assert_eq!(row["state"], "exited", "{row}");
        assert!(row["cpu_ns"].as_u64().is_some_and(|ns| ns > 0), "{row}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn crun_on_a_v2_tree() {
    let _serial = serial();
    let rig = Rig::new();
    let agent = Agent::start_on_v2("window: 500ms", "containers: []");
    let id = rig.id("4");
    let stolen = steal_ns();
    rig.crun_run_on_v2(&id, "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done");
    let rows = agent.finish();
    println!("stolen {} ns", steal_ns() - stolen);
    assert!(rows.cpu("container.id", &id) > 10 * MS, "{}", rows.cpu("container.id", &id));
    let row = rows.any("container.id", &id);
    let cgroup = row["attributes"]["process.linux.cgroup"].as_str().unwrap_or_default().to_owned();
    assert!(cgroup.starts_with(&rig.cgroup_path(&id)), "{cgroup}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn another_pid_namespace_has_kernel_identity_only() {
    let _serial = serial();
    let rig = Rig::new();
    let agent =
        Agent::start_in_pid_namespace("window: 500ms", "containers: [], command_line: true");
    let id = rig.id("5");
    rig.runc_run(&id, "i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; exec /bin/sleep 2");
    let warnings = agent.errors().matches("another PID namespace").count();
    let rows = agent.finish();
    assert_eq!(warnings, 1);
    rows.any("container.id", &id);
    for row in rows.all(|_| true) {
        assert!(row["attributes"]["process.command_line"].is_null(), "{row}");
    }
}

/// Containers of 50 ms. The runtime is asked when their cgroup appears; where a window closes before it
/// has answered, and the container is over, the row has no name. That is luck, three times is not.
const SHORTS: [&str; 3] = ["wattpipe-short-1", "wattpipe-short-2", "wattpipe-short-3"];

/// Each has rows under its id, and at least one of them its name too.
#[track_caller]
fn check_named(rows: &Rows, ids: &[String], name: &str, image: &str, runtime: &str) {
    for id in ids {
        rows.any("container.id", id);
    }
    let of_these = |row: &Value| ids.iter().any(|id| row["attributes"]["container.id"] == **id);
    let named = |row: &Value| of_these(row) && !row["attributes"]["container.name"].is_null();
    let row = rows.all(named).next().unwrap_or_else(|| panic!("nothing is named {name}"));
    let attributes = &row["attributes"];
    assert!(attributes["container.name"].as_str().is_some_and(|n| n.starts_with(name)), "{row}");
    assert_eq!(attributes["container.image.name"], image);
    assert_eq!(attributes["container.runtime.name"], runtime);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn podman_names_its_containers() {
    let _serial = serial();
    let podman = Podman::start();
    let socket = podman.socket();
    let attribution = format!("containers: [{}]", socket.display());
    let agent = Agent::start("window: 500ms", &attribution);
    let id = podman.run("wattpipe-web", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done");
    let short = SHORTS.map(|name| podman.run(name, "exec /bin/sleep 0.05"));
    let rows = agent.finish();
    check_named(&rows, &[id], "wattpipe-web", "localhost/wattpipe-busybox:1", "podman");
    check_named(&rows, &short, "wattpipe-short", "localhost/wattpipe-busybox:1", "podman");
    // The monitor is not the container.
    for row in rows.all(|r| r["attributes"]["process.executable.name"] == "conmon") {
        assert!(row["attributes"]["container.id"].is_null(), "{row}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn docker_names_its_containers_and_containerd_answers() {
    let _serial = serial();
    let docker = Docker::start();
    // containerd's CRI is asked first; it does not know Docker's containers and says so.
    let (cri, api) = (docker.containerd_socket(), docker.socket());
    let attribution = format!("containers: [{}, {}]", cri.display(), api.display());
    let agent = Agent::start("window: 500ms", &attribution);
    let id = docker.run("wattpipe-web", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done");
    let short = SHORTS.map(|name| docker.run(name, "exec /bin/sleep 0.05"));
    let errors = agent.errors();
    let rows = agent.finish();
    check_named(&rows, &[id], "wattpipe-web", "wattpipe-busybox:1", "docker");
    check_named(&rows, &short, "wattpipe-short", "wattpipe-busybox:1", "docker");
    assert!(!errors.contains("does not tell"), "{errors}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_fork_bomb_is_its_cgroups() {
    let _serial = serial();
    let rig = Rig::new();
    let agent = Agent::start("window: 1s, cycles: off", "containers: []");
    let id = rig.id("bomb");
    let stolen = steal_ns();
    let (used, most) = rig.fork_bomb(&id, 20_000, || agent.memory_without_ring());
    let rows = agent.finish();
    let stolen = steal_ns() - stolen;
    let path = rig.cgroup_path(&id);
    let ours = rows.cpu("process.linux.cgroup", &path);
    let exited = rows.count("process.linux.cgroup", &path, "exited");
    let off = ours as f64 / used as f64 - 1.0;
    println!(
        "{exited} processes, {ours} ns, kernel {used} ns ({:+.3} %), stolen {stolen} ns, agent {} KiB",
        off * 100.0,
        most >> 10
    );
    assert!(exited >= 20_000, "{exited} processes");
    // The kernel books the time between its clock's update and the tracepoint to the next process;
    // these live for three switches.
    let boundary = 3 * 2_000 * exited as u64;
    assert!(ours.abs_diff(used) <= used / 200 + stolen + boundary, "{ours} ns, kernel {used} ns");
    assert!(most < 64 << 20, "the agent's memory without the ring reached {most} bytes");
}

/// What the first 25,000 left behind is what 100,000 do.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_hundred_thousand_processes_leave_memory_flat() {
    let _serial = serial();
    let rig = Rig::new();
    let agent = Agent::start("window: 1s, cycles: off", "containers: []");
    let after = [0, 1, 2, 3].map(|round| {
        rig.fork_bomb(&rig.id(&format!("flat{round}")), 25_000, || 0);
        agent.wait_windows(2);
        agent.memory_without_ring()
    });
    let rows = agent.finish();
    println!("KiB after each 25,000 processes: {:?}", after.map(|bytes| bytes >> 10));
    let exited = rows.all(|row| row["state"] == "exited").count();
    assert!(exited >= 100_000, "{exited} processes");
    assert!(after[3] <= after[0] + (4 << 20), "{after:?}");
    assert!(after[3] < 64 << 20, "{after:?}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn nothing_is_left_behind() {
    let _serial = serial();
    let rig = Rig::new();
    let id = rig.id("9");
    rig.runc_run(&id, "true");
    let parent = rig.parent().to_owned();
    drop(rig);
    std::thread::sleep(Duration::from_millis(10));
    for hierarchy in fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten() {
        assert!(!hierarchy.path().join(&parent).exists(), "{}", hierarchy.path().display());
    }
}
