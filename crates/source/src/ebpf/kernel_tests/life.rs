//! The life of processes as the probe tells it: threads, exec, a leader that ends before its
//! threads, cgroups.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use wattpipe_pipeline::{
    batch::{ProcessEvent, ProcessEventKind, SwitchBatch},
    identity::CgroupRef,
    registry::HostRoots,
};

use super::whole::{check_promises, config, counter, events, record};

/// Events of one process, in time order.
fn of(batches: &[Arc<SwitchBatch>], pid: u32) -> Vec<&ProcessEvent> {
    let mut found: Vec<_> = events(batches).filter(|e| e.process.pid.0 == pid).collect();
    found.sort_by_key(|e| e.ts);
    found
}

fn kinds(events: &[&ProcessEvent]) -> Vec<ProcessEventKind> {
    events.iter().map(|e| e.kind).collect()
}

/// Runs `body` in a forked child, which never returns; its pid.
fn forked(body: impl FnOnce()) -> u32 {
    // SAFETY: the child runs `body` and ends; it takes no lock that a thread of the parent may hold
    // but those of the allocator, which the C library keeps usable.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: ends this process without running anything of the parent's.
            unsafe { libc::_exit(0) }
        }
        pid => u32::try_from(pid).unwrap(),
    }
}

fn wait(pid: u32) {
    // SAFETY: our own child; no status is asked for.
    unsafe { libc::waitpid(pid.cast_signed(), std::ptr::null_mut(), 0) };
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn a_process_ends_when_its_last_thread_does() {
    let (tell, told) = std::sync::mpsc::channel();
    let (batches, _) = record(config(), move || {
        let pid = forked(|| {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                // SAFETY: ends the process's last thread.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            });
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: ends this thread, the leader, alone.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        wait(pid);
        tell.send(pid).unwrap();
    })
    .await;
    check_promises(&batches);
    let found = of(&batches, told.recv().unwrap());
    assert_eq!(kinds(&found), [ProcessEventKind::Fork, ProcessEventKind::Exit]);
    assert!(found[1].ts.0 - found[0].ts.0 >= 300_000_000, "it ended with its leader");
    assert_eq!(found[0].process.start_time, found[1].process.start_time);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn threads_are_no_processes() {
    let (tell, told) = std::sync::mpsc::channel();
    let (batches, counts) = record(config(), move || {
        let pid = forked(|| {
            let threads: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(|| std::thread::sleep(Duration::from_millis(10))))
                .collect();
            for thread in threads {
                let _ = thread.join();
            }
        });
        wait(pid);
        tell.send(pid).unwrap();
    })
    .await;
    let pid = told.recv().unwrap();
    let found = of(&batches, pid);
    assert_eq!(kinds(&found), [ProcessEventKind::Fork, ProcessEventKind::Exit]);
    let children = events(&batches).filter(|e| e.process.ppid.is_some_and(|p| p.0 == pid)).count();
    assert_eq!(children, 0);
    assert_eq!(counter(&counts, "wattpipe_source_malformed_total"), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn exec_keeps_the_process_and_changes_its_name() {
    let (tell, told) = std::sync::mpsc::channel();
    let (batches, _) = record(config(), move || {
        let mut child = Command::new("sh").args(["-c", "exec sleep 0.01"]).spawn().unwrap();
        tell.send(child.id()).unwrap();
        child.wait().unwrap();
    })
    .await;
    let found = of(&batches, told.recv().unwrap());
    use ProcessEventKind::{Exec, Exit, Fork};
    assert_eq!(kinds(&found), [Fork, Exec, Exec, Exit]);
    let names: Vec<_> = found.iter().filter_map(|e| e.process.comm.as_deref()).collect();
    assert_eq!(names[1..], ["sh", "sleep", "sleep"]);
    let starts: Vec<_> = found.iter().map(|e| e.process.start_time).collect();
    assert!(starts.iter().all(|s| s.is_some() && *s == starts[0]), "{starts:?}");
    assert_eq!(found[0].process.ppid.map(|p| p.0), Some(std::process::id()));
    assert_eq!(found[0].process.uid, Some(0));
}

/// Removes the cgroup again, whatever the test does.
struct TestCgroup(std::path::PathBuf);

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn moves_between_cgroups_are_told_with_the_path() {
    let hierarchy = crate::cgroup::hierarchy(&HostRoots::default()).unwrap();
    let name = format!("wattpipe-test-{}", std::process::id());
    let cgroup = TestCgroup(hierarchy.mount.join(&name));
    std::fs::create_dir(&cgroup.0).unwrap();
    let procs = cgroup.0.join("cgroup.procs");
    let (tell, told) = std::sync::mpsc::channel();
    let (batches, _) = record(config(), move || {
        let mut child: Child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        std::fs::write(procs, child.id().to_string()).unwrap();
        // Long enough for an edge to look the path up while the cgroup is there.
        std::thread::sleep(Duration::from_millis(500));
        drop(child.stdin.take());
        tell.send(child.id()).unwrap();
        child.wait().unwrap();
    })
    .await;
    let found = of(&batches, told.recv().unwrap());
    let moved = found.iter().find(|e| e.kind == ProcessEventKind::Snapshot).unwrap();
    assert_eq!(moved.process.cgroup, CgroupRef::Path(format!("/{name}").into()));
}
