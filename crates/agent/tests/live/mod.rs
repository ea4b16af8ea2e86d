//! What the tests on the running kernel share: a harness that can also play the load's processes,
//! the real binary with its records, and what the kernel itself counts.
//!
//! These test binaries have a `main` of their own, because a process of the load must be nothing
//! but that: no thread of a test runner in it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(missing_docs, reason = "a module of each test binary")]

pub mod agent;
pub mod bpf;
pub mod host;
pub mod load;
pub mod trace;

use std::{panic, process::ExitCode, sync::mpsc, thread, time::Duration};

/// A test: its name and what it does; it panics when it fails.
pub type Test = (&'static str, fn());

/// Runs the tests as the standard harness would: only with `--ignored`, and by the names given.
pub fn main(tests: &[Test]) -> ExitCode {
    if let Some(exit) = load::play() {
        return exit;
    }
    let mut names = Vec::new();
    let (mut ignored, mut exact, mut list) = (false, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--ignored" | "--include-ignored" => ignored = true,
            "--exact" => exact = true,
            "--list" => list = true,
            // Options of the standard harness with a value, which means nothing here.
            "--test-threads" | "--color" | "--format" | "-Z" | "--logfile" => drop(args.next()),
            "--skip" => drop(args.next()),
            _ if arg.starts_with('-') => {}
            _ => names.push(arg),
        }
    }
    let wanted = |name: &str| {
        names.is_empty() || names.iter().any(|n| if exact { name == n } else { name.contains(n) })
    };
    let mut failed = 0;
    for (name, test) in tests.iter().filter(|(name, _)| wanted(name)) {
        if list {
            println!("{name}: test");
        } else if !ignored {
            println!("test {name} ... ignored, needs root: run by cargo xtask test");
        } else {
            let done = watchdog();
            let result = panic::catch_unwind(test);
            drop(done);
            println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
            failed += usize::from(result.is_err());
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Nobody should wait for ever because two processes wait for one another.
fn watchdog() -> mpsc::Sender<()> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(900)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the test hangs");
            std::process::exit(1);
        }
    });
    done
}

pub fn pause(millis: u64) {
    thread::sleep(Duration::from_millis(millis));
}

/// Waits until `done`, at most `seconds`.
#[track_caller]
pub fn wait_for(what: &str, seconds: u64, mut done: impl FnMut() -> bool) {
    for _ in 0..seconds * 100 {
        if done() {
            return;
        }
        pause(10);
    }
    panic!("after {seconds} s still not: {what}");
}
