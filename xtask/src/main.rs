//! Tasks of the project: `cargo xtask <task>`. Each task is a module of its own.

mod bench_probe;
mod deploy;
mod docs;
mod e2e;
mod ebpf;
mod examples;
mod links;
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
    /// Write the documents that are generated from the program.
    Docs,
    /// Builds the kernel programs, or checks that the committed ones are what the sources give.
    Ebpf(ebpf::Args),
    /// What a switch costs, in the kernel and in the agent.
    BenchProbe(bench_probe::Args),
    /// Every example is valid and runs for two windows, as root; the custom processor is built.
    Examples,
    /// What deploy/ holds, judged by the tools it is for; queries by a real Prometheus.
    Deploy,
    /// Links, paths, commands and configurations in the documents.
    Links,
    /// The program against receivers that others wrote (needs Go and Python).
    E2e,
    /// All tests: installs what they need, asks sudo where it is not root already.
    Test(test::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Check => test::check(),
        Task::Docs => docs::write(),
        Task::Ebpf(args) => ebpf::ebpf(&args),
        Task::BenchProbe(args) => bench_probe::bench_probe(&args),
        Task::Examples => examples::examples(),
        Task::Deploy => deploy::deploy(),
        Task::Links => links::links(),
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
