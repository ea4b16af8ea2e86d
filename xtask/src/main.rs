//! Tasks of the project: `cargo xtask <task>`. Each task is a module of its own.

mod e2e;
mod process;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the wattpipe project")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, generated documents: what needs no privileges and no other machine.
    Check,
    /// The program against receivers that others wrote (needs Go and Python).
    E2e,
    /// All tests: installs what they need, asks sudo where it is not root already.
    Test(test::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Check => test::check(),
        Task::E2e => e2e::e2e(),
        Task::Test(args) => test::test(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
