//! `attribution` on trees of files: a live host, and recordings.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use wattpipe_pipeline::{
    batch::{State, UsageRow, Window},
    identity::{AttributeSet, CgroupRef, Process, ProcessKind, attr},
    units::{CgroupId, Nanos, Tgid},
};

use super::*;

const ID: &str = "cd18fc9fb6494384932af3bda6fe8102c0fa7a26774e22af3993a69e2ca79565";
const SECOND: u64 = 1_000_000_000;

/// A host of files with the processor on it.
struct Rig {
    dir: tempfile::TempDir,
    attribution: Attribution,
    telemetry: Telemetry,
}

impl Rig {
    fn new(config: AttributionConfig, replay: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("proc/1/root/etc")).unwrap();
        fs::write(root.join("proc/1/root/etc/passwd"), "www:x:33:33::/:/bin/sh\n").unwrap();
        fs::create_dir_all(root.join("cgroup")).unwrap();
        fs::write(root.join("cgroup/cgroup.controllers"), "cpu\n").unwrap();
        let host = HostRoots {
            procfs: root.join("proc"),
            sysfs: root.join("sys"),
            cgroupfs: root.join("cgroup"),
        };
        let telemetry = Telemetry::default();
        let context =
            BuildContext { host, replay, telemetry: telemetry.clone(), ..BuildContext::default() };
        let mut attribution = Attribution::build(config, &context).unwrap();
        attribution.start().unwrap();
        Self { dir, attribution, telemetry }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn cgroup(&self, path: &str) -> CgroupRef {
        let directory = self.root().join("cgroup").join(path);
        fs::create_dir_all(&directory).unwrap();
        CgroupRef::Id(CgroupId(fs::metadata(directory).unwrap().ino()))
    }

    fn proc_entry(&self, pid: u32, start_ticks: u64) {
        let directory = self.root().join("proc").join(pid.to_string());
        fs::create_dir_all(&directory).unwrap();
        let stat = format!(
            "{pid} (a) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 1 0 {start_ticks} 1000000 200 \
             18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        );
        fs::write(directory.join("stat"), stat).unwrap();
        fs::write(directory.join("status"), "Uid:\t33\t33\t33\t33\n").unwrap();
        fs::write(directory.join("cmdline"), b"a\0--secret\0").unwrap();
        fs::write(directory.join("cgroup"), "0::/from-proc.service\n").unwrap();
        std::os::unix::fs::symlink("/usr/bin/a", directory.join("exe")).unwrap();
    }

    fn rows(&mut self, rows: Vec<UsageRow>, live: bool) -> Vec<UsageRow> {
        let usage = UsageBatch {
            window: Window::default(),
            rows,
            zones: vec![],
            readings: vec![],
            slices: vec![],
            live,
        };
        match self.attribution.process(Batch::Usage(Arc::new(usage))).unwrap() {
            Some(Batch::Usage(usage)) => runner::own(usage).rows,
            other => panic!("{other:?}"),
        }
    }

    fn row(&mut self, row: &UsageRow, live: bool) -> Arc<AttributeSet> {
        self.rows(vec![row.clone()], live).remove(0).attributes
    }

    /// Sends the row window after window until `key` has the value.
    #[track_caller]
    fn until(&mut self, row: &UsageRow, key: &str, value: Option<&str>) -> Arc<AttributeSet> {
        let start = Instant::now();
        loop {
            let got = self.row(row, true);
            if got.get(key).map(ToString::to_string).as_deref() == value {
                return got;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{key} is not {value:?}: {got:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn count(&self, name: &str, label: &str) -> u64 {
        use wattpipe_pipeline::telemetry::Instrument;
        self.telemetry
            .snapshot()
            .into_iter()
            .filter(|(id, _)| id.name == name && id.labels.iter().any(|(_, v)| v == label))
            .map(|(_, r)| match r.instrument {
                Instrument::Counter(c) => c.get(),
                Instrument::Gauge(_) => 0,
            })
            .sum()
    }
}

fn process(pid: u32, cgroup: CgroupRef) -> Process {
    Process {
        start_time: Some(Nanos(5 * SECOND)),
        ppid: Some(Tgid(1)),
        comm: Some("a".into()),
        uid: Some(33),
        kind: Some(ProcessKind::User),
        cgroup,
        ..Process::unknown(Tgid(pid))
    }
}

fn row(process: &Process, state: State) -> UsageRow {
    UsageRow {
        attributes: Arc::new(AttributeSet::from_iter([(attr::PROCESS_PID, process.pid.0)])),
        process: Some(Arc::new(process.clone())),
        state,
        cpu: Nanos(1),
        cycles: None,
        switches: Some(0),
        energy: Default::default(),
        confidence: None,
    }
}

#[track_caller]
fn check(set: &AttributeSet, key: &str, expected: Option<&str>) {
    assert_eq!(set.get(key).map(ToString::to_string).as_deref(), expected, "{key} in {set:?}");
}

#[test]
fn a_process_that_is_gone_has_its_container() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    // The watcher must have seen the directory; waiting on another process shows that it has.
    let cgroup = rig.cgroup(&format!("docker/{ID}"));
    rig.until(&row(&process(8, cgroup.clone()), State::Running), attr::CONTAINER_ID, Some(ID));
    fs::remove_dir_all(rig.root().join("cgroup/docker")).unwrap();
    thread::sleep(Duration::from_millis(50));

    let got = rig.row(&row(&process(7, cgroup), State::Exited), true);
    check(&got, attr::CONTAINER_ID, Some(ID));
    check(&got, attr::CONTAINER_RUNTIME_NAME, Some("docker"));
    check(&got, attr::PROCESS_LINUX_CGROUP, Some(&format!("/docker/{ID}")));
    check(&got, attr::PROCESS_OWNER, Some("www"));
    check(&got, attr::PROCESS_PARENT_PID, Some("1"));
    check(&got, attr::PROCESS_KIND, Some("user"));
    check(&got, attr::PROCESS_PID, Some("7"));
    check(&got, attr::PROCESS_EXECUTABLE_PATH, None);
}

#[test]
fn proc_completes_what_the_kernel_left_out() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    rig.proc_entry(7, 500);
    let mut bare = process(7, CgroupRef::Unknown);
    (bare.uid, bare.ppid, bare.kind) = (None, None, None);
    let got =
        rig.until(&row(&bare, State::Running), attr::PROCESS_EXECUTABLE_PATH, Some("/usr/bin/a"));
    check(&got, attr::PROCESS_OWNER, Some("www"));
    check(&got, attr::PROCESS_PARENT_PID, Some("1"));
    check(&got, attr::SYSTEMD_UNIT, Some("from-proc.service"));
    check(&got, attr::PROCESS_COMMAND_LINE, None);
}

#[test]
fn command_lines_on_request() {
    let mut rig = Rig::new(AttributionConfig { command_line: true, ..Default::default() }, false);
    rig.proc_entry(7, 500);
    let row = row(&process(7, CgroupRef::Unknown), State::Running);
    rig.until(&row, attr::PROCESS_COMMAND_LINE, Some("a --secret"));
}

#[test]
fn a_reused_pid_is_not_joined() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    rig.proc_entry(7, 900);
    rig.proc_entry(8, 500);
    let (seven, eight) = (process(7, CgroupRef::Unknown), process(8, CgroupRef::Unknown));
    rig.row(&row(&seven, State::Running), true);
    // Answers come in order: once the second is there, so is the first.
    rig.until(&row(&eight, State::Running), attr::PROCESS_EXECUTABLE_PATH, Some("/usr/bin/a"));
    let got = rig.row(&row(&seven, State::Running), true);
    check(&got, attr::PROCESS_EXECUTABLE_PATH, None);
}

#[test]
fn another_pid_namespace_is_not_joined() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("stat"), "").unwrap();
    std::os::unix::fs::symlink("4711", dir.path().join("self")).unwrap();
    let of = wattpipe_source::procfs::namespace::PidNamespace::of(dir.path());
    assert!(!of.joins());
}

#[test]
fn moves_and_exec_are_followed() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    let (a, b) = (rig.cgroup("system.slice/a.service"), rig.cgroup("system.slice/b.service"));
    let mut moved = process(7, a);
    rig.until(&row(&moved, State::Running), attr::SYSTEMD_UNIT, Some("a.service"));
    moved.cgroup = b;
    rig.until(&row(&moved, State::Running), attr::SYSTEMD_UNIT, Some("b.service"));

    rig.proc_entry(9, 500);
    let mut program = process(9, CgroupRef::Unknown);
    rig.until(&row(&program, State::Running), attr::PROCESS_EXECUTABLE_PATH, Some("/usr/bin/a"));
    fs::remove_file(rig.root().join("proc/9/exe")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/b", rig.root().join("proc/9/exe")).unwrap();
    program.comm = Some("b".into());
    rig.until(&row(&program, State::Running), attr::PROCESS_EXECUTABLE_PATH, Some("/usr/bin/b"));
}

#[test]
fn warm_rows_share_their_set() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    let row = row(&process(7, CgroupRef::Path("/a.service".into())), State::Running);
    let first = rig.until(&row, attr::PROCESS_OWNER, Some("www"));
    let second = rig.row(&row, true);
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn a_recording_asks_nothing_of_this_host() {
    for replay in [true, false] {
        let mut rig = Rig::new(AttributionConfig::default(), replay);
        rig.proc_entry(7, 500);
        let cgroup = rig.cgroup(&format!("docker/{ID}"));
        let mut recorded = process(7, CgroupRef::Path(format!("/docker/{ID}").into()));
        for _ in 0..20 {
            let got = rig.row(&row(&recorded, State::Running), false);
            check(&got, attr::PROCESS_OWNER, Some("33"));
            check(&got, attr::PROCESS_EXECUTABLE_PATH, None);
            check(&got, attr::CONTAINER_ID, Some(ID));
            thread::sleep(Duration::from_millis(2));
        }
        recorded.cgroup = cgroup;
        let got = rig.row(&row(&recorded, State::Running), false);
        check(&got, attr::CONTAINER_ID, None);
        assert_eq!(rig.attribution.worker.is_none(), replay);
    }
}

#[test]
fn a_hundred_thousand_short_processes_leave_nothing() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    for window in 0..100u32 {
        let rows = (0..1000)
            .map(|i| {
                let mut p = process(window * 1000 + i + 2, CgroupRef::Unknown);
                p.cgroup = CgroupRef::Path(format!("/docker/{i}-{window}.scope").into());
                row(&p, State::Exited)
            })
            .collect();
        rig.rows(rows, true);
    }
    let (processes, groups) = rig.attribution.cache.sizes();
    assert_eq!(processes, 0);
    assert!(groups <= 16_384, "{groups}");
    // Some windows on, their cgroups are forgotten too.
    for _ in 0..64 {
        rig.rows(vec![], true);
    }
    assert_eq!(rig.attribution.cache.sizes(), (0, 0));
}

#[test]
fn ids_without_a_path_are_counted_not_invented() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    let got = rig.row(&row(&process(7, CgroupRef::Id(CgroupId(1 << 60))), State::Exited), true);
    check(&got, attr::PROCESS_LINUX_CGROUP, None);
    check(&got, attr::CONTAINER_ID, None);
    assert_eq!(rig.count("wattpipe_attribution_unresolved_total", "cgroup"), 1);
}

#[test]
fn merged_rows_stay_as_they_are() {
    let mut rig = Rig::new(AttributionConfig::default(), false);
    let mut merged = row(&process(7, CgroupRef::Unknown), State::Running);
    merged.process = None;
    let got = rig.row(&merged, true);
    assert!(Arc::ptr_eq(&got, &merged.attributes));
}

/// A runtime that knows one container.
fn fake_docker(socket: std::path::PathBuf) -> tokio::runtime::Runtime {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(async { tokio::net::UnixListener::bind(socket) }).unwrap();
    let body = r#"{"Name":"/web","Config":{"Image":"nginx:1.29","Labels":{"io.kubernetes.pod.name":"web-1"}}}"#;
    let path = format!("/containers/{ID}/json");
    let app = axum::Router::new().route(&path, axum::routing::get(move || async move { body }));
    runtime.spawn(async move { axum::serve(listener, app).await });
    runtime
}

#[test]
fn the_runtime_names_the_container() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("docker.sock");
    let _runtime = fake_docker(socket.clone());
    let config =
        AttributionConfig { containers: config::Sockets::List(vec![socket]), ..Default::default() };
    let mut rig = Rig::new(config, false);
    // The name is asked for when the directory appears, before any row.
    let cgroup = rig.cgroup(&format!("docker/{ID}"));
    let start = Instant::now();
    while rig.attribution.knowledge.container(ID).is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "no answer");
        thread::sleep(Duration::from_millis(5));
    }
    let got = rig.row(&row(&process(7, cgroup), State::Exited), true);
    check(&got, attr::CONTAINER_NAME, Some("web"));
    check(&got, attr::CONTAINER_IMAGE_NAME, Some("nginx:1.29"));
    check(&got, attr::K8S_POD_NAME, Some("web-1"));
    // A recording with the same path has none of it.
    let path = CgroupRef::Path(format!("/docker/{ID}").into());
    let got = rig.row(&row(&process(7, path), State::Running), false);
    check(&got, attr::CONTAINER_NAME, None);
}

#[test]
fn kubernetes_completes_pods_and_containers() {
    let knowledge = Knowledge::new(&Telemetry::default());
    let uid = "6be1679f-6ae2-8652-eb6f-a7cd62de963a";
    let path = format!("/kubepods/burstable/pod{uid}/{ID}");
    let cgroup = CgroupRef::Path(path.as_str().into());
    let facts = facts::GroupFacts::of(&cgroup, Some(&knowledge));
    let missing = facts.missing.unwrap();
    assert_eq!((missing.container.as_deref(), missing.pod.as_deref()), (Some(ID), Some(uid)));

    let pod = knowledge::PodMeta {
        name: "web-1".into(),
        namespace: "shop".into(),
        extra: vec![("k8s.pod.label.app".into(), "web".into())],
        containers: [(ID.to_owned(), ("nginx".to_owned(), Some("nginx:1".to_owned())))].into(),
    };
    knowledge.add_pods([(uid.to_owned(), Arc::new(pod))]);
    let facts = facts::GroupFacts::of(&cgroup, Some(&knowledge));
    let set = facts::complete(
        &AttributeSet::new(),
        &process(7, cgroup),
        None,
        Some(&facts),
        &Default::default(),
    );
    for (key, value) in [
        (attr::K8S_POD_UID, uid),
        (attr::K8S_POD_NAME, "web-1"),
        (attr::K8S_NAMESPACE_NAME, "shop"),
        (attr::K8S_CONTAINER_NAME, "nginx"),
        (attr::CONTAINER_IMAGE_NAME, "nginx:1"),
        (attr::CONTAINER_ID, ID),
        ("k8s.pod.label.app", "web"),
    ] {
        check(&set, key, Some(value));
    }
}

#[test]
fn only_full_ids_are_asked_for() {
    let knowledge = Knowledge::new(&Telemetry::default());
    let of = |path: &str| facts::GroupFacts::of(&CgroupRef::Path(path.into()), Some(&knowledge));
    // Docker would take the name of a container of its own for it.
    assert_eq!(of("/lxc.payload.web/x.service").missing, None);
    assert!(of(&format!("/docker/{ID}")).missing.is_some());
    // The suffix makes it no other cgroup.
    assert_eq!(of(&format!("/docker/{ID} (deleted)")), of(&format!("/docker/{ID}")));
}
