//! Usage as monotonic series: what `otlp` and `prometheus` export.
//!
//! Each window's rows are added to one [`Entity`] per process, container and pod, all from the
//! same rows, so that the levels agree. Per zone there is a counter of our own for the whole zone
//! and one for what nobody is known for.
//!
//! Rules that receivers rely on:
//! - a series starts at the later of the first edge seen and its workload's start, and its value
//!   counts from there;
//! - a workload that was away while its usage may have gone elsewhere (merged by `top`, pushed out
//!   by `max_series`, forgotten after a long silence) comes back as a new series: it starts at a
//!   moment after the old one's last point. So does one whose attributes change (`exec`);
//! - the window in which a workload ends has its last point.

mod entity;
mod state;
#[cfg(test)]
mod tests;

pub use entity::{Energy, Entity, Key, ZoneSeries};
pub use state::{SeriesConfig, SeriesState};
