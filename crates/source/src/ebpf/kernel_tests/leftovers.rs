//! Nothing stays in the kernel: after a drop, after SIGKILL, after many starts.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{Probe, options, sysfs};

const HOLD: &str = "WATTPIPE_TEST_HOLD";

fn loaded() -> BTreeSet<u32> {
    aya::programs::loaded_programs().filter_map(|p| p.ok().map(|p| p.id())).collect()
}

/// The kernel frees programs a moment after their last user has gone.
fn assert_gone(ids: &BTreeSet<u32>) {
    let end = Instant::now() + Duration::from_secs(60);
    while !loaded().is_disjoint(ids) {
        assert!(Instant::now() < end, "programs stay loaded: {:?}", loaded().intersection(ids));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn dropping_the_probe_leaves_nothing() {
    let warm_up = Probe::load(sysfs(), &options()).unwrap();
    drop(warm_up);
    let before = descriptors();
    for _ in 0..20 {
        let mut probe = Probe::load(sysfs(), &options()).unwrap();
        probe.snapshot().unwrap().unwrap();
        let ids = probe.program_ids();
        assert!(ids.len() >= 6 && ids.is_subset(&loaded()), "{ids:?}");
        drop(probe);
        assert_gone(&ids);
    }
    assert_eq!(descriptors(), before);
}

/// Loads the probe, tells its programs, and waits to be killed: only when asked to.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn hold_the_probe() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let probe = Probe::load(sysfs(), &options()).unwrap();
    let ids: Vec<String> = probe.program_ids().iter().map(u32::to_string).collect();
    println!("\nprograms {}", ids.join(" "));
    std::thread::sleep(Duration::from_secs(60));
    drop(probe);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_killed_process_leaves_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "--exact"])
        .arg("ebpf::kernel_tests::leftovers::hold_the_probe")
        .env(HOLD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("programs ")).unwrap();
    let ids: BTreeSet<u32> = line.split(' ').skip(1).map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() >= 6 && ids.is_subset(&loaded()), "{ids:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&ids);
}
