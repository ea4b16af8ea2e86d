//! What every exporter counts about itself, under the names of the contract. Instruments are
//! shared by name and label, so a rebuilt exporter goes on counting where the old one stopped.

use wattpipe_pipeline::{
    registry::BuildContext,
    telemetry::{Counter, Gauge},
};

/// The counters of one exporter.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Points (records, for exporters that write records) that were delivered.
    pub sent: Counter,
    /// Points that were given up.
    pub send_failed: Counter,
    /// Points that found a queue full, or were pushed out of it by newer ones.
    pub enqueue_failed: Counter,
    /// What the queue holds, in the unit of its `sizer`.
    pub queue_size: Gauge,
    /// What the queue can hold, in the unit of its `sizer`.
    pub queue_capacity: Gauge,
}

impl Counters {
    /// Those of the exporter that `context` is for. Only an exporter with a queue of its own asks
    /// for the queue's gauges (see [`Counters::with_queue`]).
    pub fn new(context: &BuildContext) -> Self {
        let labels: &[(&'static str, &str)] = &[("exporter", context.id.as_str())];
        let t = &context.telemetry;
        Self {
            sent: t.counter(
                "wattpipe_exporter_sent_points_total",
                "Points that an exporter delivered.",
                labels,
            ),
            send_failed: t.counter(
                "wattpipe_exporter_send_failed_points_total",
                "Points that an exporter gave up on.",
                labels,
            ),
            enqueue_failed: t.counter(
                "wattpipe_exporter_enqueue_failed_points_total",
                "Points that found an exporter's queue full.",
                labels,
            ),
            queue_size: Gauge::default(),
            queue_capacity: Gauge::default(),
        }
    }

    /// The same with the gauges of a queue.
    pub fn with_queue(context: &BuildContext) -> Self {
        let labels: &[(&'static str, &str)] = &[("exporter", context.id.as_str())];
        let t = &context.telemetry;
        Self {
            queue_size: t.gauge(
                "wattpipe_exporter_queue_size",
                "What an exporter's queue holds, in the unit of its sizer.",
                labels,
            ),
            queue_capacity: t.gauge(
                "wattpipe_exporter_queue_capacity",
                "What an exporter's queue can hold, in the unit of its sizer.",
                labels,
            ),
            ..Self::new(context)
        }
    }
}
