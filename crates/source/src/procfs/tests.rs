//! The polling source on trees of files and on this host.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use wattpipe_pipeline::{
    batch::{MeterReading, State, UsageBatch, UsageRow},
    identity::{CgroupRef, ProcessKind, attr},
    telemetry::Telemetry,
    units::{Nanos, Tgid},
};

use super::*;

/// A host of files: two CPUs, processes with one thread.
struct Rig {
    dir: tempfile::TempDir,
    poller: Poller,
}

impl Rig {
    fn new(setup: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(root.join("proc/self/schedstat"), "0 0 0").unwrap();
        fs::create_dir_all(root.join("cgroup")).unwrap();
        fs::write(root.join("cgroup/cgroup.controllers"), "").unwrap();
        stat(root, 0, 0);
        setup(root);
        let host = HostRoots {
            procfs: root.join("proc"),
            sysfs: root.join("sys"),
            cgroupfs: root.join("cgroup"),
        };
        let mut poller = Poller::new(&host, &Telemetry::default());
        assert_eq!(poller.edge().unwrap(), None, "the first edge only opens");
        Self { dir, poller }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A millisecond later.
    fn window(&mut self) -> UsageBatch {
        std::thread::sleep(Duration::from_millis(1));
        let usage = self.poller.edge().unwrap().unwrap();
        check_sums(&usage);
        usage
    }
}

#[track_caller]
fn check_sums(usage: &UsageBatch) {
    let w = &usage.window;
    assert_eq!(usage.rows.iter().map(|r| r.cpu.0).sum::<u64>(), w.busy.0);
    assert_eq!(w.busy.0 + w.idle.0 + w.unattributed.0, u64::from(w.cpus) * w.duration().0);
    let cells = usage.slices[0].domains.iter().flat_map(|d| &d.cells);
    assert_eq!(cells.map(|c| c.cpu.0).sum::<u64>(), w.busy.0);
    let domains = || usage.slices[0].domains.iter();
    assert_eq!(domains().map(|d| d.idle.0).sum::<u64>(), w.idle.0);
    assert_eq!(domains().map(|d| d.unattributed.0).sum::<u64>(), w.unattributed.0);
}

fn stat(root: &Path, idle_ticks: u64, switches: u64) {
    let line = |cpu: &str| format!("cpu{cpu} 0 0 0 {idle_ticks} 0 0 0 0 0 0\n");
    let text = format!("{}{}{}ctxt {switches}\n", line(" "), line("0"), line("1"));
    fs::write(root.join("proc/stat"), text).unwrap();
}

#[derive(Clone, Copy)]
struct P {
    pid: u32,
    comm: &'static str,
    started: u64,
    ran: u64,
    state: char,
    cgroup: &'static str,
}

const P7: P = P { pid: 7, comm: "a", started: 5, ran: 1000, state: 'S', cgroup: "/a.service" };

fn put(root: &Path, p: P) {
    let P { pid, comm, started, ran, state, cgroup } = p;
    let directory = root.join("proc").join(pid.to_string());
    fs::create_dir_all(directory.join("task").join(pid.to_string())).unwrap();
    let text = format!(
        "{pid} ({comm}) {state} 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 1 0 {started} 1000000 200 \
         18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    );
    fs::write(directory.join("stat"), text).unwrap();
    fs::write(directory.join("status"), "Uid:\t33\t33\t33\t33\n").unwrap();
    fs::write(directory.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    fs::write(
        directory.join("task").join(pid.to_string()).join("schedstat"),
        format!("{ran} 0 1\n"),
    )
    .unwrap();
}

fn rows(usage: &UsageBatch) -> Vec<(u32, u64, State)> {
    let mut rows: Vec<_> =
        usage.rows.iter().map(|r| (r.process.as_ref().unwrap().pid.0, r.cpu.0, r.state)).collect();
    rows.sort_unstable_by_key(|r| r.0);
    rows
}

use State::{Exited, Running};

#[test]
fn only_what_ran_has_a_row() {
    let mut rig = Rig::new(|root| {
        put(root, P7);
        put(root, P { pid: 8, ..P7 });
    });
    put(rig.root(), P { ran: 1500, ..P7 });
    let usage = rig.window();
    assert_eq!(rows(&usage), [(7, 500, Running)]);
    let row = &usage.rows[0];
    let process = row.process.as_ref().unwrap();
    assert_eq!(row.attributes.get_str(attr::PROCESS_EXECUTABLE_NAME), Some("a"));
    assert_eq!(row.attributes.get(attr::PROCESS_PID), Some(&7u32.into()));
    assert!(row.attributes.get(attr::PROCESS_CREATION_TIME).is_some());
    assert_eq!((process.ppid, process.uid), (Some(Tgid(1)), Some(33)));
    assert_eq!(process.kind, Some(ProcessKind::User));
    assert_eq!(process.cgroup, CgroupRef::Path("/a.service".into()));
    assert!(usage.live);
    assert_eq!(rows(&rig.window()), []);
}

/// By its CPU clock or `stat` the successor stands below what the pid had used before.
#[test]
fn a_pid_that_is_used_again_between_two_looks_is_another_process() {
    let with_ticks = |root: &Path, p: P, ticks: u64| {
        put(root, p);
        let file = root.join("proc").join(p.pid.to_string()).join("stat");
        let text = fs::read_to_string(&file)
            .unwrap()
            .replace(" 0 5 6 0 0 20 ", &format!(" 0 {ticks} 0 0 0 20 "));
        fs::write(file, text).unwrap();
    };
    let mut rig = Rig::new(|root| {
        fs::remove_file(root.join("proc/self/schedstat")).unwrap();
        with_ticks(root, P7, 500);
    });
    with_ticks(rig.root(), P { comm: "b", started: 90, ..P7 }, 3);
    let usage = rig.window();
    let told: Vec<_> = usage
        .rows
        .iter()
        .map(|r| (r.attributes.get_str(attr::PROCESS_EXECUTABLE_NAME), r.state))
        .collect();
    assert_eq!(told[0], (Some("a"), Exited));
    with_ticks(rig.root(), P { comm: "b", started: 90, ..P7 }, 4);
    let next = rig.window();
    let told = next.rows[0].attributes.get_str(attr::PROCESS_EXECUTABLE_NAME);
    assert_eq!((told, next.rows[0].state), (Some("b"), Running));
}

#[test]
fn an_end_is_told_once() {
    let mut rig = Rig::new(|root| {
        put(root, P7);
        put(root, P { pid: 8, ..P7 });
    });
    // One is seen as a zombie with its last time, the other is just not there any more.
    put(rig.root(), P { ran: 1700, state: 'Z', ..P7 });
    assert_eq!(rows(&rig.window()), [(7, 700, Exited)]);
    fs::remove_dir_all(rig.root().join("proc/7")).unwrap();
    fs::remove_dir_all(rig.root().join("proc/8")).unwrap();
    assert_eq!(rows(&rig.window()), [(8, 0, Exited)]);
    assert_eq!(rows(&rig.window()), []);
    assert_eq!(rig.poller.followed(), 0);
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut rig = Rig::new(|root| put(root, P7));
    put(rig.root(), P { comm: "b", started: 6, ran: 2000, ..P7 });
    // It is older than the last look as far as the tree's clock goes, so its time stays its own.
    let usage = rig.window();
    assert_eq!(rows(&usage), [(7, 0, Exited)]);
    put(rig.root(), P { comm: "b", started: 6, ran: 2100, ..P7 });
    let usage = rig.window();
    assert_eq!(rows(&usage), [(7, 100, Running)]);
    assert_eq!(usage.rows[0].process.as_ref().unwrap().comm.as_deref(), Some("b"));
}

#[test]
fn moves_and_exec_are_followed() {
    let mut rig = Rig::new(|root| put(root, P7));
    put(rig.root(), P { ran: 1100, cgroup: "/b.service", ..P7 });
    let first = rig.window();
    let process = first.rows[0].process.as_ref().unwrap();
    assert_eq!(process.cgroup, CgroupRef::Path("/b.service".into()));
    put(rig.root(), P { ran: 1200, comm: "new", cgroup: "/b.service", ..P7 });
    let second = rig.window();
    let name = |u: &UsageBatch| u.rows[0].attributes.get(attr::PROCESS_EXECUTABLE_NAME).cloned();
    assert_eq!(name(&second), Some("new".into()));
    let created = |u: &UsageBatch| u.rows[0].attributes.get(attr::PROCESS_CREATION_TIME).cloned();
    assert_eq!(created(&second), created(&first));
}

#[test]
fn time_that_does_not_fit_comes_later() {
    let mut rig = Rig::new(|root| put(root, P7));
    // More than any window here is long.
    let much = 1000 * 1_000_000_000;
    put(rig.root(), P { ran: 1000 + much, ..P7 });
    let first = rig.window();
    assert_eq!(first.window.busy.0, 2 * first.window.duration().0);
    let mut shown = first.window.busy.0;
    put(rig.root(), P { ran: 1001 + much, ..P7 });
    shown += rig.window().window.busy.0;
    assert!(shown < much, "held back, not dropped: {shown}");
}

#[test]
fn idle_ticks_are_carried_and_the_rest_is_nobodys() {
    let mut rig = Rig::new(|root| put(root, P7));
    // One tick is 10 ms, more than the window is long: what does not fit counts in the next one.
    stat(rig.root(), 1, 40);
    let usage = rig.window();
    let w = &usage.window;
    if w.duration().0 < 10_000_000 {
        assert_eq!((w.idle.0, w.unattributed.0, w.switches), (2 * w.duration().0, 0, 40));
        assert!(w.complete);
        assert!(rig.window().window.idle.0 > 0);
    }
    // No idle time and no rows: processes that lived between two looks.
    for _ in 0..100 {
        rig.window();
    }
    let usage = rig.window();
    assert_eq!(usage.window.unattributed.0, 2 * usage.window.duration().0);
    assert!(!usage.window.complete);
}

#[test]
fn readings_travel_with_their_edge() {
    let zone = wattpipe_pipeline::testing::zone("package-0");
    let read = move |ts: Nanos| vec![MeterReading { ts, zone: zone.clone(), energy_uj: 5 }];
    let host = HostRoots::default();
    let mut poller = Poller::new(&host, &Telemetry::default()).with_meters(Box::new(read));
    assert_eq!(poller.edge().unwrap(), None);
    for edges in [2, 1] {
        let usage = poller.edge().unwrap().unwrap();
        assert_eq!(usage.readings.len(), edges, "the first window has its opening reading too");
        assert_eq!(usage.readings.last().unwrap().ts, usage.window.end);
        assert!(usage.readings[0].ts >= usage.window.start);
    }
}

#[test]
fn a_child_of_this_host_has_its_time() {
    let host = HostRoots::default();
    let mut poller = Poller::new(&host, &Telemetry::default());
    poller.edge().unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read x"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It has done its work once it says so.
    let mut line = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    let used = cpu_time::clock(Tgid(child.id())).unwrap();
    // On a busy host a part of it may be held back until there is room; that comes soon.
    let mut shown = Nanos(0);
    for _ in 0..1000 {
        let usage = poller.edge().unwrap().unwrap();
        check_sums(&usage);
        let of_child = |r: &&UsageRow| r.process.as_ref().is_some_and(|p| p.pid.0 == child.id());
        if let Some(row) = usage.rows.iter().find(of_child) {
            assert_eq!(row.state, Running, "{row:?}");
            assert!(row.process.as_ref().unwrap().exe.is_some());
            shown.0 += row.cpu.0;
        }
        if shown >= used {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(shown >= used, "{shown:?} of {used:?}");
}
