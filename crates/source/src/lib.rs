//! Sources: the only part of wattpipe that touches the kernel.
#![deny(unsafe_code)]

pub mod cgroup;
pub mod procfs;
pub mod replay;

use wattpipe_pipeline::registry::SourceEntry;

/// Every source of this crate.
pub const SOURCES: &[SourceEntry] = &[SourceEntry::of::<replay::Replay>()];
