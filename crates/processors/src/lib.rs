//! The processors that are compiled in.
#![forbid(unsafe_code)]

pub mod power_model;

use wattpipe_pipeline::registry::ProcessorEntry;

/// One row per processor.
pub const PROCESSORS: &[ProcessorEntry] = &[ProcessorEntry::of::<power_model::PowerModel>()];
