//! What would disturb a machine that people use: CPUs going off, clocks jumping, counters only some
//! hardware has. `cargo xtask test-kernel` runs this in a virtual machine for each kernel; elsewhere
//! there are no tests in here.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod live;

use std::{fs, path::Path, process::ExitCode};

use live::{
    agent::{Agent, Records, Window, live_config, unix_now},
    host,
    load::{Player, Stage},
    trace::Trace,
};
use nix::sys::signal::Signal;

fn main() -> ExitCode {
    if std::env::var_os("WATTPIPE_GUEST").is_none() {
        return live::main(&[]);
    }
    live::main(&[
        ("windows_add_up", windows_add_up),
        ("cycles_are_counted", cycles_are_counted),
        ("cycles_that_cannot_be_counted_are_told", cycles_that_cannot_be_counted_are_told),
        ("a_cpu_goes_off_and_comes_back", a_cpu_goes_off_and_comes_back),
        ("cycles_come_back_with_their_cpu", cycles_come_back_with_their_cpu),
        ("clocks_may_jump", clocks_may_jump),
        ("powercap_is_read", powercap_is_read),
    ])
}

const WINDOW: u64 = 500_000_000;

fn check_sums(windows: &[Window]) {
    assert!(!windows.is_empty());
    for window in windows {
        let sum = window.busy + window.idle + window.unattributed;
        assert_eq!(sum, window.cpus * window.duration, "{window:?}");
        assert_eq!(window.lost, 0, "{window:?}");
    }
}

fn finish(agent: Agent) -> Records {
    agent.signal(Signal::SIGTERM);
    let (status, records, log) = agent.ended();
    assert!(status.success() && !log.contains("panicked"), "{log}");
    print!("{log}");
    records
}

/// The live path on this kernel, against the kernel's own trace of the same switches: as many, and
/// the same time but for what lies between the two readings of the clock at each.
///
/// schedstat is told, not judged: it charges a task from the moment it was woken, and under emulation
/// the interrupt's way out to the switch is as long as the work of some processes here.
fn windows_add_up() {
    let stage = Stage::new();
    let mut agent = Agent::start(&live_config("window: 500ms"));
    agent.wait_windows(1);
    let trace = Trace::start(32 << 10);
    let mut players: Vec<Player> = ["spin", "sleep", "ping", "threads", "exec"]
        .map(|role| stage.start(role, role, 4000))
        .into();
    players.iter_mut().for_each(Player::begin);
    players.iter_mut().for_each(Player::done);
    live::pause(200);
    let kernel: Vec<_> = players.iter().map(|p| (p.pid(), host::schedstat(p.pid()))).collect();
    agent.wait_windows(2);
    let until = unix_now();
    let traced = trace.finish();
    players.iter_mut().for_each(Player::end);
    let records = finish(agent);
    check_sums(&records.windows);
    // The first window opens before every CPU has been seen.
    let incomplete = records.windows[1..].iter().filter(|w| !w.complete).count();
    assert_eq!(incomplete, 0, "{:?}", records.windows);
    let sums = records.by_pid(until);
    let mut failures = Vec::new();
    for ((pid, used), player) in kernel.iter().zip(&players) {
        let sum = sums.get(pid).copied().unwrap_or_default();
        let traced = traced.get(pid).copied().unwrap_or_default();
        let percent = |of: u64| sum.cpu as f64 * 100.0 / of.max(1) as f64 - 100.0;
        let said = format!(
            "{}: {} ns, {:+.2} % of its trace, {:+.2} % of schedstat; {} switches, {} traced",
            player.name,
            sum.cpu,
            percent(traced.time),
            percent(*used),
            sum.switches,
            traced.switches
        );
        println!("  {said}");
        // The emulator may stop a CPU between the two readings.
        let slack = traced.time / 100 + sum.switches * 5_000 + 10_000_000;
        let fits = sum.cpu + slack >= traced.time
            && sum.cpu <= traced.time + traced.unknown + slack
            && sum.switches == traced.switches;
        if !fits {
            failures.push(said);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("; "));
}

/// Hardware cycles. QEMU's counter runs at exactly 1 GHz of guest time.
fn cycles_are_counted() {
    let stage = Stage::new();
    let mut agent = Agent::start(&live_config("window: 500ms, cycles: on"));
    agent.wait_windows(1);
    let mut spin = stage.start("spin", "spin", 2000);
    spin.begin();
    spin.done();
    agent.wait_windows(1);
    spin.end();
    let records = finish(agent);
    check_sums(&records.windows);
    let rows: Vec<_> = records.usage.iter().filter(|r| r.name == "spin").collect();
    let cpu: u64 = rows.iter().map(|r| r.cpu).sum();
    let cycles: Option<u64> = rows.iter().map(|r| r.cycles).sum();
    let cycles = cycles.unwrap_or_else(|| panic!("rows without cycles: {rows:#?}"));
    let ratio = cycles as f64 / cpu as f64;
    println!("  {cycles} cycles in {cpu} ns of spinning: {ratio:.4} GHz");
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

/// Where the machine has no counter, `on` is refused and `auto` goes without.
fn cycles_that_cannot_be_counted_are_told() {
    let agent = Agent::start(&live_config("cycles: on"));
    let (status, _, log) = agent.ended();
    assert!(!status.success());
    assert!(log.contains("cycle counter") && log.contains("cycles: auto"), "{log}");
}

fn online() -> String {
    let path = "/sys/devices/system/cpu/online";
    fs::read_to_string(path).expect("CPUs").trim().to_owned()
}

fn set_online(cpu: u32, on: bool) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    fs::write(path, if on { "1" } else { "0" }).expect("a CPU that can go off");
}

/// A CPU goes off under load and comes back, three times: time goes on adding up and nothing is lost.
/// Cycles count again, or are absent where the kernel opens no counter for what is left of the
/// agent's privileges; there are never too few.
fn a_cpu_goes_off_and_comes_back() {
    let ratios = off_and_back("");
    println!("  GHz after the last return: {ratios:.2?}");
}

/// With privileges enough they do count again.
fn cycles_come_back_with_their_cpu() {
    let ratios =
        off_and_back("security: {keep_capabilities: [CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN]}, ");
    println!("  GHz after the last return: {ratios:.2?}");
    assert!(!ratios.is_empty());
}

/// Returns cycles over CPU time of each row after the last return.
fn off_and_back(service: &str) -> Vec<f64> {
    assert_eq!(online(), "0-1");
    let stage = Stage::new();
    let config = live_config("window: 500ms");
    let mut agent = Agent::start(&config.replace("service: {", &format!("service: {{{service}")));
    agent.wait_windows(1);
    let mut players: Vec<Player> =
        ["spin", "threads", "ping"].map(|role| stage.start(role, role, 120_000)).into();
    players.iter_mut().for_each(Player::begin);
    for _ in 0..3 {
        agent.wait_windows(2);
        set_online(1, false);
        assert_eq!(online(), "0");
        agent.wait_windows(2);
        set_online(1, true);
    }
    agent.wait_windows(4);
    let back = unix_now();
    agent.wait_windows(4);
    let until = unix_now();
    drop(players);
    let records = finish(agent);
    check_sums(&records.windows);
    let seen = |cpus| records.windows.iter().any(|w| w.cpus == cpus);
    assert!(seen(1) && seen(2), "{:?}", records.windows);
    let after = records.windows.iter().filter(|w| w.start > back && w.end < until);
    let (mut busy, mut total) = (0, 0);
    for window in after {
        assert_eq!(window.cpus, 2);
        assert!(window.complete, "{window:?}");
        busy += window.busy;
        total += window.duration;
    }
    println!("  after the last return {:.2} CPUs are busy", busy as f64 / total as f64);
    assert!(busy > total, "the CPU that came back does nothing");
    let late = records
        .usage
        .iter()
        .filter(|r| r.end > back + 2 * WINDOW && r.end < until && r.cpu > 50_000_000);
    let ratios: Vec<f64> =
        late.filter_map(|r| r.cycles.map(|cycles| cycles as f64 / r.cpu as f64)).collect();
    assert!(ratios.iter().all(|ratio| (0.8..1.2).contains(ratio)), "{ratios:.2?}");
    ratios
}

/// The wall clock leaps: durations do not, and the times told follow it.
fn clocks_may_jump() {
    let mut agent = Agent::start(&live_config("window: 500ms"));
    agent.wait_windows(2);
    let set = |seconds: u64| {
        let status =
            std::process::Command::new("date").args(["-s", &format!("@{seconds}")]).status();
        assert!(status.is_ok_and(|s| s.success()));
    };
    let before = unix_now() / 1_000_000_000;
    set(before + 86_400);
    agent.wait_windows(3);
    set(before);
    agent.wait_windows(3);
    let records = finish(agent);
    check_sums(&records.windows);
    for window in &records.windows[..records.windows.len() - 1] {
        // A late edge makes a longer window and a shorter one after it; a leap would make a day.
        assert!(window.duration < 60_000_000_000, "{window:?}");
    }
    let leapt =
        records.windows.iter().filter(|w| w.start / 1_000_000_000 > before + 80_000).count();
    assert!((1..records.windows.len()).contains(&leapt), "{:?}", records.windows);
}

/// Energy zones that a kernel serves: joules are attributed, and add up to what the zone counted.
fn powercap_is_read() {
    assert!(Path::new("/sys/class/powercap/intel-rapl:0/energy_uj").exists(), "no powercap tree");
    let stage = Stage::new();
    let mut agent = Agent::start(
        "sources: {ebpf: {window: 500ms, meters: [rapl]}}\nprocessors: {delta: {}, power_model: \
         {}}\nexporters: {stdout: {format: json}}\nservice: {pipelines: {p: {sources: [ebpf], \
         processors: [delta, power_model], exporters: [stdout]}}}\n",
    );
    agent.wait_windows(1);
    let mut spin = stage.start("spin", "spin", 3000);
    spin.begin();
    spin.done();
    agent.wait_windows(1);
    spin.end();
    let records = finish(agent);
    check_sums(&records.windows);
    assert!(!records.zones.is_empty(), "no zone was read");
    for zone in &records.zones {
        let sum = zone.active + zone.idle + zone.unattributed;
        assert!((sum - zone.joules).abs() < 1e-6 * zone.joules.max(1.0), "{zone:?}");
        assert!(zone.source == "rapl" && zone.joules > 0.0, "{zone:?}");
    }
    let mut names: Vec<_> = records.zones.iter().map(|z| z.name.clone()).collect();
    names.sort();
    names.dedup();
    println!("  zones: {names:?}");
    let joules: f64 =
        records.usage.iter().filter(|r| r.name == "spin").filter_map(|r| r.joules).sum();
    println!("  3 s of spinning: {joules:.2} J");
    assert!(joules > 10.0, "{joules}");
}
