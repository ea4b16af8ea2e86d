//! The recording that is replayed: two CPUs, one meter whose counter wraps, and a workload of each
//! kind: in a container, in a pod, in neither, born and gone on the way, too short for a window.

use std::{
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;

/// CLOCK_MONOTONIC at the first edge.
const START: u64 = 1_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Where the energy counter wraps, in microjoules: within the recording.
const RANGE: u64 = 262_143_328_850;

const CONTAINER: &str = "4fa6e0f0c6786287e131c3852c58a2e01cc697a68231826813597e4994f1d6e2";

/// A recording of `windows` one-second windows whose times are about those of its replay.
pub(super) fn recording(windows: u64) -> Result<String> {
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
    let boot = now + SECOND - START;
    let mut out = String::new();
    writeln!(
        out,
        r#"{{"type":"topology","cpus":[{{"cpu":0,"package":0,"core":0}},{{"cpu":1,"package":0,"core":1}}],"boot_unix_ns":{boot}}}"#
    )?;
    let mut process = |ts: u64, event: &str, pid: u32, start: u64, name: &str, cgroup: &str| {
        writeln!(
            out,
            r#"{{"type":"process","ts":{ts},"event":"{event}","pid":{pid},"start_time":{start},"ppid":1,"comm":"{name}","exe":"/usr/bin/{name}","uid":0,"kind":"user","cgroup":"{cgroup}"}}"#
        )
    };
    let early = START - 20 * SECOND;
    let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2f9a6f5e_0d3c_4c0e_9a63_0a1b2c3d4e5f.slice";
    let pod_container = CONTAINER.replace('4', "7");
    process(
        early,
        "snapshot",
        100,
        early,
        "web",
        &format!("/system.slice/docker-{CONTAINER}.scope"),
    )?;
    process(
        early,
        "snapshot",
        101,
        early,
        "worker",
        &format!("/system.slice/docker-{CONTAINER}.scope"),
    )?;
    process(
        early,
        "snapshot",
        102,
        early,
        "db",
        &format!("{pod}/cri-containerd-{pod_container}.scope"),
    )?;
    process(early, "snapshot", 103, early, "odd\\\"name\\\\", "/system.slice/cron.service")?;
    // Born in the third window, gone in the sixth; and one that lives 100 ms.
    process(
        START + 2 * SECOND + 200 * MS,
        "fork",
        104,
        START + 2 * SECOND + 200 * MS,
        "batch",
        "/user.slice",
    )?;
    process(
        START + 4 * SECOND + 400 * MS,
        "fork",
        105,
        START + 4 * SECOND + 400 * MS,
        "blink",
        "/user.slice",
    )?;
    let mut energy = RANGE - 40_000_000;
    writeln!(out, "{}", meter(START, energy))?;
    writeln!(out, r#"{{"type":"tick","ts":{},"cpu":0,"tgid":0}}"#, START - 10 * MS)?;
    writeln!(out, r#"{{"type":"tick","ts":{},"cpu":1,"tgid":0}}"#, START - 10 * MS)?;
    writeln!(out, r#"{{"type":"window","ts":{START}}}"#)?;
    for window in 0..windows {
        let from = START + window * SECOND;
        cpu(&mut out, 0, from, &[(50, 100), (200, 103), (350, 0), (600, 101), (900, 0)])?;
        let mut second = vec![(100, 102), (300 + window * 20, 0)];
        if (2..=5).contains(&window) {
            second.extend([(500, 104), (700, 0)]);
        }
        if window == 4 {
            second.extend([(750, 105), (800, 0)]);
        }
        cpu(&mut out, 1, from, &second)?;
        if window == 4 {
            exit(&mut out, from + 790 * MS, 105)?;
        }
        if window == 5 {
            exit(&mut out, from + 690 * MS, 104)?;
        }
        energy = (energy + 9_000_000 + window * 500_000) % RANGE;
        writeln!(out, "{}", meter(from + SECOND, energy))?;
        writeln!(out, r#"{{"type":"window","ts":{}}}"#, from + SECOND)?;
    }
    Ok(out)
}

/// Switches of one CPU in one window: who runs from which millisecond on.
fn cpu(out: &mut String, cpu: u32, from: u64, runs: &[(u64, u32)]) -> Result<()> {
    let mut prev = 0;
    for (at, next) in runs {
        let ts = from + at * MS;
        writeln!(out, r#"{{"type":"switch","ts":{ts},"cpu":{cpu},"prev":{prev},"next":{next}}}"#)?;
        prev = *next;
    }
    Ok(())
}

fn exit(out: &mut String, ts: u64, pid: u32) -> Result<()> {
    Ok(writeln!(out, r#"{{"type":"process","ts":{ts},"event":"exit","pid":{pid}}}"#)?)
}

fn meter(ts: u64, energy: u64) -> String {
    format!(
        r#"{{"type":"meter","ts":{ts},"zone":"package-0","hw_type":"cpu","package":0,"energy_uj":{energy},"max_energy_range_uj":{RANGE}}}"#
    )
}
