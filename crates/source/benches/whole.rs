//! What a probe costs the whole machine: wall time of pipe pairs that keep every CPU switching, with
//! nothing, with the baselines' programs, and with the real agent and its full pipeline. And what it
//! costs a thread that must wake in time. Run by `cargo xtask bench`, as root; one JSON object.
//!
//! All subjects in turn, round after round, in an order that shifts with each round.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails loudly")]
#![expect(clippy::panic, reason = "a benchmark fails loudly")]

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use wattpipe_source::ebpf::lab::{Loaded, Subject};

#[path = "support/pipes.rs"]
#[allow(missing_docs, unreachable_pub, reason = "both benchmarks are programs of their own")]
mod pipes;

use pipes::{ECHO, echo, ping_pong};

/// What runs beside the load.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// A program by itself, without any reader.
    Program(&'static str),
    /// A program whose ring is emptied, but not looked at.
    Drained(&'static str),
    /// The agent, with the pipeline of the default configuration into a file of JSON lines.
    Agent,
}

const SUBJECTS: &[(&str, Beside)] = &[
    ("nothing", Beside::Nothing),
    ("empty program", Beside::Program("empty")),
    ("in-kernel aggregate, no reader", Beside::Program("aggregate")),
    ("one record a switch, drained", Beside::Drained("each")),
    ("wattpipe, full pipeline", Beside::Agent),
];

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.iter().any(|a| a == ECHO) {
        return echo();
    }
    let value =
        |name: &str| args.iter().position(|a| a == name).and_then(|at| args.get(at + 1)).cloned();
    let number = |name: &str, default: u64| value(name).map_or(default, |v| v.parse().unwrap());
    let agent = value("--agent").expect("--agent PATH");
    let rounds = usize::try_from(number("--rounds", 9)).unwrap();
    let trips = number("--trips", 60_000);
    let cpus = thread::available_parallelism().unwrap().get();
    let mut walls = vec![Vec::new(); SUBJECTS.len()];
    let mut agent_cpu = Vec::new();
    for round in 0..=rounds {
        for step in 0..SUBJECTS.len() {
            let at = (step + round) % SUBJECTS.len();
            let (wall, cpu) = with(SUBJECTS[at].1, &agent, || pairs(cpus, trips));
            // The first round warms up.
            if round > 0 {
                walls[at].push(wall.as_secs_f64());
                agent_cpu.extend(cpu.map(|cpu| cpu / wall.as_secs_f64()));
            }
        }
        eprint!("\rwhole machine: round {round} of {rounds}");
    }
    eprintln!();
    let mut latency = vec![Vec::new(); 2];
    for _ in 0..rounds {
        for (at, beside) in [Beside::Nothing, Beside::Agent].into_iter().enumerate() {
            let (sample, _) = with(beside, &agent, || wakeups(number("--wakeups", 2_000)));
            latency[at].push(sample);
        }
    }
    let base = median(walls[0].clone());
    let machine: Vec<_> = SUBJECTS
        .iter()
        .zip(&walls)
        .map(|((name, _), walls)| {
            let wall = median(walls.clone());
            let low = walls.iter().copied().fold(f64::INFINITY, f64::min);
            let high = walls.iter().copied().fold(0.0, f64::max);
            serde_json::json!({
                "beside": name, "seconds": wall, "least": low, "most": high, "ratio": wall / base,
            })
        })
        .collect();
    let quantiles = |samples: &[[f64; 3]]| {
        let of = |i: usize| median(samples.iter().map(|s| s[i]).collect());
        serde_json::json!({ "p50_us": of(0), "p99_us": of(1), "max_us": of(2) })
    };
    let report = serde_json::json!({
        "rounds": rounds, "cpus": cpus, "switches": 4 * trips * cpus as u64,
        "whole_machine": machine, "agent_cpus": median(agent_cpu),
        "wakeup": { "without": quantiles(&latency[0]), "with": quantiles(&latency[1]) },
    });
    println!("{report}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `load` beside the subject; the agent's CPU seconds too.
fn with<T>(beside: Beside, agent: &str, load: impl FnOnce() -> T) -> (T, Option<f64>) {
    match beside {
        Beside::Nothing => (load(), None),
        Beside::Program(name) => {
            let _loaded = Loaded::new(Subject::Baseline(name)).unwrap_or_else(|e| panic!("{e}"));
            (load(), None)
        }
        Beside::Drained(name) => {
            let mut loaded = Loaded::new(Subject::Baseline(name)).unwrap_or_else(|e| panic!("{e}"));
            let done = AtomicBool::new(false);
            let result = thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(20));
                        loaded.drain();
                    }
                });
                let result = load();
                done.store(true, Ordering::Release);
                result
            });
            (result, None)
        }
        Beside::Agent => {
            let (mut child, file) = start_agent(agent);
            let before = cpu_seconds(child.id());
            let result = load();
            let cpu = cpu_seconds(child.id()) - before;
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            child.wait().unwrap();
            let _ = fs::remove_file(file);
            (result, Some(cpu))
        }
    }
}

/// Starts the agent and waits for its first window.
fn start_agent(agent: &str) -> (Child, std::path::PathBuf) {
    let file = std::env::temp_dir().join(format!("wattpipe-bench-{}.jsonl", std::process::id()));
    let config = file.with_extension("yaml");
    let text = format!(
        "sources: {{ebpf: {{window: 1s}}}}\nprocessors: {{delta: {{}}, attribution: {{}}, \
         power_model: {{}}}}\nexporters: {{file: {{path: {}}}}}\nservice: {{pipelines: {{p: \
         {{sources: [ebpf], processors: [delta, attribution, power_model], exporters: [file]}}}}}}\n",
        file.display()
    );
    fs::write(&config, text).unwrap();
    let child = Command::new(agent)
        .arg("--config")
        .arg(config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("{agent}: {e}"));
    let begun = Instant::now();
    while fs::metadata(&file).map_or(0, |m| m.len()) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the agent writes nothing");
        thread::sleep(Duration::from_millis(20));
    }
    (child, file)
}

/// Σ over its threads, by schedstat.
fn cpu_seconds(pid: u32) -> f64 {
    fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<f64>().ok())
        .sum::<f64>()
        / 1e9
}

/// Wall time of `count` pairs of processes, each pair making `trips` round trips over pipes.
fn pairs(count: usize, trips: u64) -> Duration {
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| ping_pong(trips));
        }
    });
    begun.elapsed()
}

/// A thread that wants to wake every millisecond, as real-time loops do: by how many microseconds it
/// is late, at the median, the 99th percentile and at most.
fn wakeups(count: u64) -> [f64; 3] {
    let period = Duration::from_millis(1);
    let mut next = Instant::now() + period;
    let mut late: Vec<f64> = (0..count)
        .map(|_| {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            let now = Instant::now();
            let late = now.saturating_duration_since(next).as_secs_f64() * 1e6;
            next = now.max(next) + period;
            late
        })
        .collect();
    late.sort_by(f64::total_cmp);
    [late[late.len() / 2], late[late.len() * 99 / 100], late[late.len() - 1]]
}
