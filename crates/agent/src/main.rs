//! The `wattpipe` command: the agent with everything that is compiled in.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    wattpipe_agent::Agent::builder().with_defaults().run()
}
