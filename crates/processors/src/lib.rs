//! Processors: what turns switches into usage, and usage into energy per workload.
#![forbid(unsafe_code)]

pub mod attribution;
pub mod delta;
pub mod power_model;

use wattpipe_pipeline::registry::ProcessorEntry;

/// Every processor of this crate.
pub const PROCESSORS: &[ProcessorEntry] = &[
    ProcessorEntry::of::<delta::Delta>(),
    ProcessorEntry::of::<attribution::Attribution>(),
    ProcessorEntry::of::<power_model::PowerModel>(),
];
