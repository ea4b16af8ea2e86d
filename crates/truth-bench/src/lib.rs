//! The truth bench: a simulated machine of which it is known who drew what, the usual formulas,
//! and ours, side by side.
//!
//! `cargo xtask truth-bench [--seed N] [--scenario K] [--record DIR] [--idle]`.
//! Deterministic for a seed.
//! The simulator ([`sim`], [`machine`], [`scenarios`]) shares no code with the processors it
//! judges; `docs/truth-bench.md` keeps the method and a table.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a tool of this project: nothing of it is anybody's interface")]

pub mod bench;
pub mod idle;
pub mod machine;
pub mod ours;
pub mod record;
pub mod rivals;
pub mod rng;
pub mod scenarios;
pub mod schedule;
pub mod score;
pub mod sim;
