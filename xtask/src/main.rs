//! Tasks of the project: `cargo xtask <task>`. Each task is a module of its own.

mod bench;
mod bench_probe;
mod deploy;
mod docs;
mod e2e;
mod ebpf;
mod examples;
mod fuzz;
mod links;
mod process;
mod soak;
mod test;
mod test_kernel;
mod truth_bench;

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
    /// Everything that is said of speed and size, measured; writes docs/performance.md.
    Bench(bench::Args),
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
    /// Every fuzz target for a while.
    Fuzz(fuzz::Args),
    /// The agent for long, among everything that churns.
    Soak(soak::Args),
    /// All tests: installs what they need, asks sudo where it is not root already.
    Test(test::Args),
    /// The probe on real Debian kernels, in QEMU.
    TestKernel(test_kernel::Args),
    /// A simulated machine, the usual formulas and ours: who gets closest to the truth.
    TruthBench(truth_bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::TruthBench(args) => truth_bench::run(&args),
        Task::Check => test::check(),
        Task::Docs => docs::write(),
        Task::Ebpf(args) => ebpf::ebpf(&args),
        Task::Bench(args) => bench::bench(&args),
        Task::BenchProbe(args) => bench_probe::bench_probe(&args),
        Task::Examples => examples::examples(),
        Task::Deploy => deploy::deploy(),
        Task::Links => links::links(),
        Task::E2e => e2e::e2e(),
        Task::Fuzz(args) => fuzz::fuzz(&args),
        Task::Soak(args) => soak::soak(&args),
        Task::Test(args) => test::test(&args),
        Task::TestKernel(args) => test_kernel::test_kernel(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
