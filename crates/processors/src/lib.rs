//! Processors: what turns switches into usage, and usage into energy per workload.
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod attribution;
pub mod delta;
pub mod filter;
pub mod power_model;
#[cfg(test)]
mod testing;
pub mod top;

use wattpipe_pipeline::registry::ProcessorEntry;

/// Every processor of this crate.
pub const PROCESSORS: &[ProcessorEntry] = &[
    ProcessorEntry::of::<delta::Delta>(),
    ProcessorEntry::of::<attribution::Attribution>(),
    ProcessorEntry::of::<power_model::PowerModel>(),
    ProcessorEntry::of::<filter::Filter>(),
    ProcessorEntry::of::<aggregate::Aggregate>(),
    ProcessorEntry::of::<top::Top>(),
];
