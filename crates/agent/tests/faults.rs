//! Hard use on the running kernel, through the real binary: a reader that is stopped, every way to
//! end, a full disk, no descriptors left, processes that vanish while they are looked at. What goes
//! wrong must show, and nothing may be left behind.
//!
//! What would disturb the whole machine (clock jumps, CPUs going off) happens in a virtual machine:
//! `cargo xtask test-kernel`.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod live;
#[path = "support/receiver.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared by test binaries with other lints")]
mod receiver;

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use live::{
    agent::{Agent, live_config, program, unix_now},
    bpf, host,
    load::{Player, Stage},
    wait_for,
};
use nix::sys::signal::Signal;

fn main() -> ExitCode {
    live::main(&[
        ("a_stopped_reader_shows_as_lost", a_stopped_reader_shows_as_lost),
        ("every_end_detaches_the_probe", every_end_detaches_the_probe),
        ("a_hundred_starts_leave_nothing", a_hundred_starts_leave_nothing),
        ("the_first_record_comes_soon", the_first_record_comes_soon),
        ("a_replay_is_the_same_every_time", a_replay_is_the_same_every_time),
        ("a_full_disk_is_told_and_survived", a_full_disk_is_told_and_survived),
        ("a_full_disk_costs_a_stored_queue_what_comes_meanwhile", full_disk_under_the_stored_queue),
        ("no_descriptors_left_is_survived", no_descriptors_left_is_survived),
        ("processes_may_vanish", processes_may_vanish),
    ])
}

/// With the smallest ring and the agent stopped for two seconds, switches are lost: they are counted,
/// their time is nobody's, and no process is given any of it.
fn a_stopped_reader_shows_as_lost() {
    let stage = Stage::new();
    let mut agent =
        Agent::start(&live_config("window: 200ms, ring_buffer_size: 4KiB, cycles: off"));
    agent.wait_windows(2);
    let mut players: Vec<Player> =
        ["spin", "sleep", "ping", "threads"].map(|role| stage.start(role, role, 5000)).into();
    let left_out = host::left_out();
    players.iter_mut().for_each(Player::begin);
    live::pause(1000);
    agent.signal(Signal::SIGSTOP);
    let stopped = unix_now();
    live::pause(2000);
    agent.signal(Signal::SIGCONT);
    players.iter_mut().for_each(Player::done);
    live::pause(100);
    let kernel: Vec<_> = players.iter().map(|p| (p.pid(), host::schedstat(p.pid()))).collect();
    agent.wait_windows(2);
    let until = unix_now();
    let left_out = host::left_out() - left_out + 10_000_000;
    agent.signal(Signal::SIGTERM);
    let (status, records, log) = agent.ended();
    assert!(status.success(), "{log}");

    // It may run on for a moment after the signal was sent, and close one window more.
    let long = records
        .windows
        .iter()
        .find(|w| w.start < stopped + 400_000_000 && w.end > stopped + 1_500_000_000)
        .unwrap_or_else(|| panic!("no window spans the stop: {:?}", records.windows));
    assert!(long.lost > 0 && long.unattributed > 0 && !long.complete, "{long:?}");
    for window in &records.windows {
        let sum = window.busy + window.idle + window.unattributed;
        assert_eq!(sum, window.cpus * window.duration, "{window:?}");
        assert!(window.lost == 0 || !window.complete, "{window:?}");
    }
    let sums = records.by_pid(until);
    for ((pid, used), player) in kernel.iter().zip(&players) {
        let sum = sums.get(pid).copied().unwrap_or_default();
        let most = used + used / 200 + sum.switches * 2_000 + left_out;
        println!("  {}: {} ns of {used} ns", player.name, sum.cpu);
        assert!(sum.cpu <= most, "{} got {} ns and used {used} ns", player.name, sum.cpu);
    }
}

/// However it ends, the kernel has nothing of it afterwards, and whole lines are out.
fn every_end_detaches_the_probe() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
        let mut agent = Agent::start(&live_config("window: 100ms"));
        agent.wait_windows(3);
        let (programs, maps) = (bpf::programs_of(agent.pid()), bpf::maps_of(agent.pid()));
        assert!(programs.len() >= 6, "{programs:?}");
        assert!(programs.is_subset(&bpf::loaded_programs()));
        agent.signal(signal);
        let (status, records, log) = agent.ended();
        if signal == Signal::SIGKILL {
            assert_eq!(status.signal(), Some(9));
        } else {
            assert_eq!(status.code(), Some(0), "{signal}: {log}");
            assert!(!records.partial, "{signal}: a line without its end");
        }
        assert!(records.windows.len() >= 3);
        gone(&programs, &maps);
    }
}

/// The kernel frees programs and maps a moment after their last descriptor.
#[track_caller]
fn gone(programs: &BTreeSet<u32>, maps: &BTreeSet<u32>) {
    wait_for("the kernel frees the probe", 60, || {
        programs.is_disjoint(&bpf::loaded_programs()) && maps.is_disjoint(&bpf::loaded_maps())
    });
}

fn a_hundred_starts_leave_nothing() {
    let own = || fs::read_dir("/proc/self/fd").expect("own descriptors").count();
    let (mut programs, mut maps) = (BTreeSet::new(), BTreeSet::new());
    let before = own();
    for turn in 0..100 {
        let mut agent = Agent::start(&live_config("window: 20ms, ring_buffer_size: 1MiB"));
        agent.wait_windows(1);
        programs.extend(bpf::programs_of(agent.pid()));
        maps.extend(bpf::maps_of(agent.pid()));
        agent.signal([Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL][turn % 3]);
        agent.ended();
    }
    assert!(programs.len() >= 600, "{} programs seen", programs.len());
    assert_eq!(own(), before);
    gone(&programs, &maps);
}

/// From the start of the process to the first line on its output: at most a window and 300 ms, not
/// counting what its threads waited for a CPU (the machine may be busy) and what the hypervisor took. And that first window knows whom each CPU ran from its start on. The best of a
/// few.
fn the_first_record_comes_soon() {
    const WINDOW: u64 = 200;
    let (times, unknown): (Vec<_>, Vec<_>) = (0..7)
        .map(|_| {
            let left_out = host::left_out();
            let agent = Agent::start(&live_config(&format!("window: {WINDOW}ms")));
            wait_for("a record", 60, || agent.windows() > 0);
            let taken = host::waited(agent.pid()) + host::left_out() - left_out;
            let time = agent.started.elapsed().saturating_sub(Duration::from_nanos(taken));
            agent.signal(Signal::SIGTERM);
            let (_, records, _) = agent.ended();
            (time, records.windows.first().map(|window| window.unattributed))
        })
        .unzip();
    let best = times.into_iter().min().expect("a few");
    assert!(unknown.contains(&Some(0)), "unattributed in the first windows: {unknown:?}");
    println!("  first record after {best:?} with windows of {WINDOW} ms");
    assert!(best <= Duration::from_millis(WINDOW + 300), "{best:?}");
}

/// A live recording gives the same records whenever it is replayed.
fn a_replay_is_the_same_every_time() {
    let stage = Stage::new();
    let recording = stage.path().join("recording.jsonl");
    let mut agent = Agent::start(&format!(
        "sources: {{ebpf: {{window: 200ms}}}}\nprocessors: {{delta: {{}}}}\nexporters: {{stdout: \
         {{format: json}}, file: {{path: {}, format: recording}}}}\nservice: {{pipelines: {{a: \
         {{sources: [ebpf], exporters: [file]}}, b: {{sources: [ebpf], processors: [delta], \
         exporters: [stdout]}}}}}}\n",
        recording.display()
    ));
    agent.wait_windows(1);
    let mut players: Vec<Player> =
        ["ping", "threads", "storm"].map(|role| stage.start(role, role, 1500)).into();
    players.iter_mut().for_each(Player::begin);
    players.iter_mut().for_each(Player::done);
    players.iter_mut().for_each(Player::end);
    agent.wait_windows(1);
    agent.signal(Signal::SIGTERM);
    let (status, live, log) = agent.ended();
    assert!(status.success(), "{log}");

    let config = stage.path().join("replay.yaml");
    let text = format!(
        "sources: {{replay: {{path: {}}}}}\nprocessors: {{delta: {{}}, attribution: {{}}, \
         power_model: {{}}}}\nexporters: {{stdout: {{format: json}}}}\nservice: {{pipelines: {{p: \
         {{sources: [replay], processors: [delta, attribution, power_model], exporters: \
         [stdout]}}}}}}\n",
        recording.display()
    );
    fs::write(&config, text).expect("a configuration");
    let replay = || {
        let output =
            Command::new(program()).arg("--config").arg(&config).output().expect("a replay");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let first = replay();
    let windows = first.lines().filter(|line| line.contains(r#""type":"window""#)).count();
    assert_eq!(windows, live.windows.len());
    for _ in 0..2 {
        assert!(replay() == first, "a replay gave other records");
    }
}

/// A disk without room: the file's exporter says so and tries again; the rest goes on. Once there is
/// room it goes on too: every line is whole, and what is missing was counted, to the row.
fn a_full_disk_is_told_and_survived() {
    let stage = Stage::new();
    let disk = stage.path().join("disk");
    fs::create_dir(&disk).expect("a folder");
    let config = format!(
        "sources: {{ebpf: {{window: 50ms}}}}\nprocessors: {{delta: {{}}}}\nexporters: {{stdout: \
         {{format: json}}, file: {{path: {}/out.jsonl, flush_interval: 50ms, max_buffer: \
         8KiB}}}}\nservice: {{pipelines: {{p: {{sources: [ebpf], processors: [delta], exporters: \
         [stdout, file]}}}}}}\n",
        disk.display()
    );
    let mut agent = on_a_tiny_disk(&disk, 4_190_208, &config);
    agent.wait_windows(60);
    let inside = format!("/proc/{}/root{}", agent.pid(), disk.display());
    fs::remove_file(format!("{inside}/filler")).expect("the file that takes the room");
    agent.wait_windows(20);
    let mut file = fs::File::open(format!("{inside}/out.jsonl")).expect("the exporter's file");
    agent.signal(Signal::SIGTERM);
    let (status, records, log) = agent.ended();
    assert!(status.success(), "{status}: {log}");
    assert!(records.windows.len() >= 80);
    assert!(log.contains("No space left") && log.contains("writing again"), "{log}");
    assert!(log.len() < 20_000, "a log that floods: {} bytes", log.len());

    let mut text = String::new();
    file.read_to_string(&mut text).expect("text");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect();
    let rows = lines.iter().filter(|line| line["type"] == "usage").count();
    let dropped = log.split("dropped=").skip(1);
    let dropped: usize = dropped
        .map(|rest| rest.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0))
        .sum();
    println!("  {rows} rows are in the file, {dropped} were dropped");
    assert!(dropped > 0 && text.ends_with('\n'));
    assert_eq!(rows + dropped, records.usage.len(), "{log}");
}

/// Starts the agent with a disk of 4 MiB, of which so many bytes are taken. It is in a mount
/// namespace of its own, and gone with the agent.
fn on_a_tiny_disk(disk: &Path, taken: u32, config: &str) -> Agent {
    let script = r#"mount -t tmpfs -o size=4m tiny "$1" &&
        head -c "$2" /dev/zero > "$1/filler" && shift 2 && exec "$@""#;
    Agent::start_with(config, |command| {
        let mut wrapped = Command::new("unshare");
        wrapped.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        wrapped.arg(disk).arg(taken.to_string());
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        *command = wrapped;
    })
}

/// The disk of a stored queue is full for a while: what comes meanwhile is lost, and told to the
/// point; what it holds already and what comes later is delivered.
fn full_disk_under_the_stored_queue() {
    let stage = Stage::new();
    let disk = stage.path().join("disk");
    fs::create_dir(&disk).expect("a folder");
    let truth = stage.path().join("out.json");
    let mut receiver = receiver::Receiver::start(Duration::ZERO);
    receiver.go();
    let config = format!(
        "sources: {{ebpf: {{window: 50ms}}}}\nprocessors: {{delta: {{}}}}\nexporters: {{stdout: \
         {{format: json}}, file: {{path: {}, format: otlp_json}}, otlp_http: {{endpoint: '{}', \
         encoding: json, compression: none, retry_on_failure: {{max_interval: 1s}}, \
         sending_queue: {{storage: {}/q}}}}}}\nservice: {{pipelines: {{p: {{sources: [ebpf], \
         processors: [delta], exporters: [stdout, file, otlp_http]}}}}}}\n",
        truth.display(),
        receiver.url(0),
        disk.display()
    );
    let mut agent = on_a_tiny_disk(&disk, 0, &config);
    agent.wait_windows(10);
    let filler = format!("/proc/{}/root{}/filler", agent.pid(), disk.display());
    let fill = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k", "status=none", &format!("of={filler}")])
        .stderr(Stdio::null())
        .status();
    assert!(!fill.expect("dd").success(), "the disk is not full");
    agent.wait_windows(60);
    fs::remove_file(filler).expect("the file that takes the room");
    receiver.come_back();
    // The next write is tried after 5 s.
    agent.wait_windows(120);
    agent.signal(Signal::SIGTERM);
    let (status, records, log) = agent.ended();
    assert!(status.success(), "{status}: {log}");
    assert!(records.windows.len() >= 190);
    assert!(log.len() < 20_000, "a log that floods: {} bytes", log.len());

    let text = fs::read_to_string(truth).expect("the file exporter's file");
    let produced: BTreeSet<String> = text
        .lines()
        .flat_map(|line| receiver::points(&serde_json::from_str(line).expect("a request")))
        .collect();
    let got: BTreeSet<String> = receiver.got(0).into_iter().collect();
    let lost: usize = log
        .lines()
        .filter(|line| line.contains("is lost"))
        .filter_map(|line| {
            line.split("points=").nth(1)?.split_whitespace().next()?.parse::<usize>().ok()
        })
        .sum();
    println!("  {} of {} points arrived, {lost} were lost", got.len(), produced.len());
    assert!(log.contains("cannot write to sending_queue::storage") && lost > 0, "{log}");
    assert!(got.is_subset(&produced));
    assert_eq!(got.len() + lost, produced.len(), "{log}");
}

/// Without a single descriptor to spare the windows go on.
fn no_descriptors_left_is_survived() {
    let stage = Stage::new();
    let mut agent = Agent::start(
        "sources: {ebpf: {window: 100ms}}\nprocessors: {delta: {}, attribution: {command_line: \
         true}}\nexporters: {stdout: {format: json}}\nservice: {pipelines: {p: {sources: [ebpf], \
         processors: [delta, attribution], exporters: [stdout]}}}\n",
    );
    agent.wait_windows(2);
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid())).expect("descriptors").count();
    let status = Command::new("prlimit")
        .args(["--pid", &agent.pid().to_string(), &format!("--nofile={open}:{open}")])
        .status();
    assert!(status.is_ok_and(|s| s.success()), "prlimit");
    let mut storm = stage.start("storm", "storm", 1500);
    storm.begin();
    storm.done();
    agent.wait_windows(5);
    agent.signal(Signal::SIGTERM);
    let (status, records, log) = agent.ended();
    assert!(status.success() && !log.contains("panicked"), "{log}");
    assert!(records.usage.iter().any(|row| row.name == "storm"));
}

/// Processes by the thousand that are gone before anybody can look at them.
fn processes_may_vanish() {
    let stage = Stage::new();
    let mut agent = Agent::start(
        "sources: {ebpf: {window: 100ms}}\nprocessors: {delta: {}, attribution: {command_line: \
         true}, power_model: {}}\nexporters: {stdout: {format: json}}\nservice: {pipelines: {p: \
         {sources: [ebpf], processors: [delta, attribution, power_model], exporters: [stdout]}}}\n",
    );
    agent.wait_windows(2);
    let mut storms: Vec<Player> = (0..3).map(|_| stage.start("storm", "storm", 4000)).collect();
    storms.iter_mut().for_each(Player::begin);
    storms.iter_mut().for_each(Player::done);
    agent.wait_windows(3);
    agent.signal(Signal::SIGTERM);
    let (status, records, log) = agent.ended();
    assert!(status.success() && !log.contains("panicked"), "{log}");
    let gone = records.usage.iter().filter(|row| row.exited && row.name == "true").count();
    println!("  {gone} short processes in a storm");
    assert!(gone > 500, "{gone}");
    for window in &records.windows {
        let sum = window.busy + window.idle + window.unattributed;
        assert_eq!(sum, window.cpus * window.duration, "{window:?}");
        assert_eq!(window.lost, 0, "{window:?}");
    }
}
