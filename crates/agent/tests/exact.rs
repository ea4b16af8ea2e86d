//! Exactness on the running kernel, through the real binary: what wattpipe says of each process
//! against what the kernel's own accounting says (schedstat, cgroups), and against an independent
//! trace of the same switches.
//!
//! The kernel's accounting leaves out time that the hypervisor stole and, on some kernels, time in
//! interrupts. By the switches alone a process on its CPU cannot be told apart from running: each
//! comparison allows for what was measured of that while it ran.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod live;

use std::{collections::BTreeMap, fs, process::ExitCode};

use live::{
    agent::{Agent, Records, Sum, live_config, unix_now},
    host::{self, Cgroup, Sampler, Samples},
    load::{self, Player, SHORTS, Stage},
    trace::{Trace, Traced},
};
use nix::sys::signal::Signal;

fn main() -> ExitCode {
    live::main(&[("every_process_gets_what_it_used", every_process_gets_what_it_used)])
}

/// Time that a switch's own handling may put on the one side or the other.
const PER_SWITCH: u64 = 2_000;
/// Most kernels (7.3 no more) charge a task that preempts from the moment it was woken, as they leave out
/// reading their clock again at the switch: the interrupt's way out, and the rest of a system call
/// where the kernel preempts none, is on its bill, not on that of the task it preempts. Seen here:
/// 3 to 9 µs a switch. The trace, which has the switch itself, decides more closely.
const PER_WAKEUP: u64 = 10_000;
/// A CPU's running task is accounted at its ticks.
const TICK: u64 = 10_000_000;

/// What is compared, and by how much each kind of comparison was off at most.
#[derive(Default)]
struct Verdict {
    failures: Vec<String>,
    report: Vec<String>,
}

impl Verdict {
    /// `ours` must lie within `below` and `above` of `theirs`.
    fn check(&mut self, what: &str, ours: u64, theirs: u64, below: u64, above: u64) {
        let off = i128::from(ours) - i128::from(theirs);
        let share = off as f64 * 100.0 / theirs.max(1) as f64;
        let line = format!("{what}: {ours} ns, off by {off} ns ({share:+.3} %)");
        if off < -i128::from(below) || off > i128::from(above) {
            self.failures.push(format!("{line}, allowed -{below} to +{above}"));
        }
        self.report.push(line);
    }
}

fn every_process_gets_what_it_used() {
    let stage = Stage::new();
    let mut agent = Agent::start(&live_config("window: 200ms, cycles: off"));
    agent.wait_windows(2);
    let trace = Trace::start(96 << 10);
    let millis = load::SECONDS * 1000;
    let mut players: Vec<Player> = ["spin", "sleep", "ping", "threads", "exec", "leader"]
        .map(|r| stage.start(r, r, millis))
        .into();
    let mut shorts = stage.start("shorts", "shorts", millis);
    let cgroup = Cgroup::new(&format!("wattpipe-exact-{}", std::process::id()));
    live::pause(100);
    // Blocked on its input: what it has used so far is not the cgroup's.
    let before_move = host::schedstat(shorts.pid());
    cgroup.add(shorts.pid());
    let sampler = Sampler::start();
    players.iter_mut().for_each(Player::begin);
    shorts.begin();
    players.iter_mut().for_each(Player::done);
    shorts.done();
    live::pause(200);

    // All are blocked now. What they used is read before they end, as it goes with them.
    let children = children_of(&players);
    let kernel: BTreeMap<u32, (String, u64)> = players
        .iter()
        .map(|p| (p.pid(), p.name.clone()))
        .chain(children)
        .map(|(pid, name)| (pid, (name, host::schedstat(pid))))
        .collect();
    let in_cgroup = cgroup.usage();
    let short_launcher = shorts.pid();
    agent.wait_windows(2);
    let until = unix_now();
    let traced = trace.finish();
    players.iter_mut().for_each(Player::end);
    shorts.end();
    agent.wait_windows(2);
    let samples = sampler.finish();
    agent.signal(Signal::SIGINT);
    let (status, records, log) = agent.ended();
    assert!(status.success(), "{log}");

    let mut verdict = Verdict::default();
    check_windows(&mut verdict, &records, &samples);
    // All of the load, its first and last moments too.
    let steal = samples.left_out() + TICK;
    let ours = records.by_pid(until);
    for (pid, (name, schedstat)) in &kernel {
        let Sum { cpu, switches } = ours.get(pid).copied().unwrap_or_default();
        // A pipe's two ends and threads that wake one another take and give alike.
        let at_wakeups = match name.as_str() {
            "spin" | "sleep" | "exec" | "leader" => switches * PER_WAKEUP,
            _ => switches.min(500) * PER_SWITCH,
        };
        let slack = schedstat / 200 + at_wakeups;
        // What nobody could be given was somebody's, where the trace has a gap there too.
        let unknown = traced.get(pid).map_or(0, |t| t.unknown);
        verdict.check(
            &format!("{name}, schedstat"),
            cpu,
            *schedstat,
            slack + unknown,
            slack + steal,
        );
        check_trace(&mut verdict, name, ours.get(pid), traced.get(pid));
    }
    check_shorts(&mut verdict, &records, &traced, &ours, steal, |sum| {
        let own = ours.get(&short_launcher).copied().unwrap_or_default();
        let (cpu, switches) = (sum.cpu + own.cpu - before_move, sum.switches + own.switches);
        let slack = in_cgroup / 200 + switches.min(3000) * PER_WAKEUP;
        (cpu, in_cgroup, slack, slack + steal)
    });
    for line in &verdict.report {
        println!("  {line}");
    }
    println!("  stolen or in interrupts in this run: {} ms", steal / 1_000_000);
    assert!(verdict.failures.is_empty(), "\n{}\n{log}", verdict.failures.join("\n"));
}

/// Processes that the players have started and that still live.
fn children_of(players: &[Player]) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for player in players {
        let pid = player.pid();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let Ok(children) = fs::read_to_string(path) else { continue };
        for child in children.split_whitespace() {
            found.push((child.parse().expect("a process id"), format!("child of {}", player.name)));
        }
    }
    assert!(!found.is_empty(), "the other end of the pipe is missing");
    found
}

/// Every window accounts for all time of all CPUs; all rows together are what the machine's root
/// cgroup was charged.
fn check_windows(verdict: &mut Verdict, records: &Records, samples: &Samples) {
    // The first window opens before every CPU has been seen.
    let windows = &records.windows[1..];
    for window in windows {
        let sum = window.busy + window.idle + window.unattributed;
        assert_eq!(sum, window.cpus * window.duration, "{window:?}");
        assert_eq!(window.lost, 0, "{window:?}");
        assert_eq!(window.complete, window.unattributed == 0, "{window:?}");
        let rows: u64 = records.usage.iter().filter(|r| r.end == window.end).map(|r| r.cpu).sum();
        assert_eq!(rows, window.busy, "{window:?}");
    }
    // The middle of the load, so that every moment asked for was sampled.
    let load: Vec<_> = windows.iter().rev().skip(5).take(45).collect();
    let (from, to) = (load[load.len() - 1].start, load[0].end);
    let (usage, steal) = samples.between(from, to);
    let busy: u64 = load.iter().map(|w| w.busy).sum();
    // A kernel that hides some tasks' switches leaves time that is nobody's, and says so.
    let unattributed: u64 = load.iter().map(|w| w.unattributed).sum();
    let slack = usage / 200 + 2 * load[0].cpus * TICK;
    let what = format!("all, root cgroup ({unattributed} ns unattributed)");
    verdict.check(&what, busy, usage, slack + unattributed, slack + steal + TICK);
    assert!(unattributed < usage / 50, "{what}");
}

/// Returns by how much it is off beyond what is allowed a switch.
fn check_trace(
    verdict: &mut Verdict,
    name: &str,
    ours: Option<&Sum>,
    traced: Option<&Traced>,
) -> u64 {
    let Sum { cpu, switches } = ours.copied().unwrap_or_default();
    let Traced { time, unknown, switches: count } = traced.copied().unwrap_or_default();
    if switches != count {
        verdict.failures.push(format!("{name}: {switches} switches, the trace has {count}"));
    }
    let slack = count * PER_SWITCH;
    let what = format!("{name}, trace of {count} switches ({unknown} ns unknown)");
    verdict.check(&what, cpu, time, slack, slack + unknown);
    cpu.saturating_sub(time + unknown).max(time.saturating_sub(cpu)).saturating_sub(slack)
}

/// All short-lived processes are there under their names, each exits once, and together with their
/// launcher they are what their cgroup was charged.
fn check_shorts(
    verdict: &mut Verdict,
    records: &Records,
    traced: &BTreeMap<u32, Traced>,
    ours: &BTreeMap<u32, Sum>,
    steal: u64,
    against: impl FnOnce(Sum) -> (u64, u64, u64, u64),
) {
    let mut total = Sum::default();
    let mut below_a_millisecond = 0;
    let (mut off, mut many_off) = (0, 0);
    for number in 0..SHORTS {
        let name = load::short_name(number);
        let rows: Vec<_> = records.usage.iter().filter(|row| row.name == name).collect();
        let exits = rows.iter().filter(|row| row.exited).count();
        let Some(row) = rows.last().filter(|row| row.exited) else {
            verdict.failures.push(format!("{name} is missing, or did not exit: {rows:?}"));
            continue;
        };
        // One that is preempted on its way out looks gone, and then is seen to go once more.
        if exits != 1 && !(exits == 2 && rows.len() == 2) {
            verdict.failures.push(format!("{name}: {exits} exits in {rows:?}"));
        }
        // By process id, so that what it did before it had its name counts too.
        let sum = ours.get(&row.pid).copied().unwrap_or_default();
        total.cpu += sum.cpu;
        total.switches += sum.switches;
        below_a_millisecond += usize::from(sum.cpu < 1_000_000);
        let mut silent = Verdict::default();
        let beyond = check_trace(&mut silent, &name, Some(&sum), traced.get(&row.pid));
        off += beyond;
        many_off += usize::from(beyond > 0);
    }
    // The hypervisor may stop a CPU between the two readings of its clock at a switch.
    if off > total.cpu / 1000 + steal {
        let text = format!("{many_off} of {SHORTS} short-lived are off, by {off} ns in all");
        verdict.failures.push(text);
    }
    assert!(below_a_millisecond > 0, "no process of the load was short enough");
    let (ours, theirs, below, above) = against(total);
    let what = format!(
        "{SHORTS} short-lived ({below_a_millisecond} below 1 ms, {many_off} off their trace by more \
         than 2 µs a switch), their cgroup"
    );
    verdict.check(&what, ours, theirs, below, above);
}
