//! Tasks of the project: `cargo xtask <task>`. Each task is a module of its own.

mod process;
mod test;
mod test_kernel;

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
    /// All tests: installs what they need, asks sudo where it is not root already.
    Test(test::Args),
    /// The probe on real Debian kernels, in QEMU.
    TestKernel(test_kernel::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Check => test::check(),
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
