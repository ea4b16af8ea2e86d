//! The agent: the command line, configuration people can trust, and what runs the pipelines.
//!
//! Programs that add components of their own build on [`Agent::builder`]; the `wattpipe` binary
//! is the same builder with the defaults alone:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     wattpipe_agent::Agent::builder().with_defaults().run()
//! }
//! ```
#![forbid(unsafe_code)]

mod agent;
mod assemble;
mod beside;
mod cli;
mod commands;
pub mod config;
pub mod docs;
mod doctor;
mod exec;
mod exit;
mod extension;
mod fallback;
mod health;
mod limits;
mod logs;
mod notify;
mod own_metrics;
mod privileges;
mod reload;
mod resource;
mod run;
mod sandbox;
mod serve;

pub use agent::{Agent, AgentBuilder};
pub use exit::Exit;
pub use extension::{EXTENSIONS, ExtensionEntry};
