//! Processors: what turns switches into usage, and usage into energy per workload.
#![forbid(unsafe_code)]

use wattpipe_pipeline::registry::ProcessorEntry;

pub mod attribution;

/// Every processor that is compiled in, in the order they usually stand.
pub const PROCESSORS: &[ProcessorEntry] = &[ProcessorEntry::of::<attribution::Attribution>()];
