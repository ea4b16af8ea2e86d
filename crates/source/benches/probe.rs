//! What a switch costs: nanoseconds a run of the probe, and of what it is compared with, by the
//! kernel's own statistics. Run by `cargo xtask bench-probe`, as root.
//!
//! All subjects in turn, round after round, so that a machine that gets faster or slower does so
//! for all; medians over the rounds. The load is two processes that wake each other by pipes.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails loudly")]
#![expect(clippy::panic, reason = "a benchmark fails loudly")]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use wattpipe_source::ebpf::{
    Attach, Clock,
    lab::{Loaded, Measured, Subject, statistics, thread_cpu},
};

#[path = "support/pipes.rs"]
#[allow(missing_docs, unreachable_pub, reason = "both benchmarks are programs of their own")]
mod pipes;

use pipes::{ECHO, echo, ping_pong};

fn probe(attach: Attach, clock: Clock, counter: bool, batch_events: u32) -> Subject {
    Subject::Probe { attach, clock, counter, batch_events }
}

fn subjects() -> Vec<(&'static str, Subject)> {
    use Attach::{Btf, RawTracepoint};
    use Clock::{Monotonic, Scheduler};
    vec![
        ("empty", Subject::Baseline("empty")),
        ("stored", Subject::Baseline("stored")),
        ("stored_by_cpu", Subject::Baseline("stored_by_cpu")),
        ("ours", probe(Btf, Monotonic, false, 128)),
        ("ours_counter", probe(Btf, Monotonic, true, 128)),
        ("ours_batch_1", probe(Btf, Monotonic, false, 1)),
        ("ours_raw", probe(RawTracepoint, Monotonic, false, 128)),
        ("ours_scheduler", probe(Btf, Scheduler, false, 128)),
        ("aggregate", Subject::Baseline("aggregate")),
        ("each", Subject::Baseline("each")),
    ]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.iter().any(|a| a == ECHO) {
        return echo();
    }
    let number = |name: &str, default: u64| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|i| args.get(i + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
    };
    // Only the load, for the agent to be measured under.
    let load = number("--load", 0);
    if load > 0 {
        return ping_pong(load);
    }
    let rounds = usize::try_from(number("--rounds", 9)).unwrap();
    let trips = number("--trips", 100_000);
    let _statistics = statistics().expect("this needs root");
    let mut subjects = subjects();
    if let Some(at) = args.iter().position(|a| a == "--only") {
        let only: Vec<&str> = args[at + 1].split(',').collect();
        subjects.retain(|(name, _)| only.contains(name));
    }
    let mut results: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    let mut reader = Vec::new();
    let mut lost = 0;
    for round in 0..=rounds {
        for (i, (name, subject)) in subjects.iter().enumerate() {
            let (measured, cpu) = run(*subject, trips);
            assert!(
                measured.runs > trips,
                "{name}: {} runs for {trips} round trips",
                measured.runs
            );
            // The first round warms up.
            if round > 0 {
                results[i].push(measured.ns as f64 / measured.runs as f64);
                if *name == "ours" {
                    reader.push(cpu as f64 / measured.received as f64);
                    lost += measured.lost;
                }
            }
        }
        eprint!("\rround {round} of {rounds}");
    }
    eprintln!();
    let medians: Vec<f64> = results.into_iter().map(median).collect();
    let of = |name: &str| {
        subjects.iter().position(|(n, _)| *n == name).map_or(f64::NAN, |at| medians[at])
    };
    let least = of("stored").min(of("stored_by_cpu")) - of("empty");
    let programs: Vec<_> = subjects
        .iter()
        .zip(&medians)
        .map(|((name, _), ns)| {
            serde_json::json!({
                "program": name, "ns": ns, "over_empty": ns - of("empty"),
                "ratio": (ns - of("empty")) / least,
            })
        })
        .collect();
    let report = serde_json::json!({
        "rounds": rounds, "round_trips": trips, "programs": programs,
        "reader_ns_per_switch": median(reader), "lost": lost,
    });
    println!("{report}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the load under a subject, with a reader that looks as rarely as the source's does.
fn run(subject: Subject, trips: u64) -> (Measured, u64) {
    let mut loaded = Loaded::new(subject).unwrap_or_else(|e| panic!("{subject:?}: {e}"));
    let done = AtomicBool::new(false);
    let cpu = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let start = thread_cpu();
            while !done.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(100));
                loaded.drain();
            }
            loaded.drain();
            thread_cpu() - start
        });
        ping_pong(trips);
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    (loaded.measured(), cpu)
}
