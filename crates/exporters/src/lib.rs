//! Where usage leaves the agent: `stdout`, `file`, `otlp_grpc`, `otlp_http` and `prometheus`.
//!
//! Read in this order: [`records`] (the JSON lines), [`stdout`], [`mod@file`], [`semconv`] (metric
//! names), [`series`] (usage as monotonic series), [`otlp`], [`prometheus`], [`queue`].
#![forbid(unsafe_code)]

pub mod counters;
pub mod file;
pub mod listener;
mod missing;
pub mod otlp;
pub mod prometheus;
pub mod queue;
pub mod records;
pub mod semconv;
pub mod series;
pub mod stdout;
#[doc(hidden)]
pub mod testing;

use wattpipe_pipeline::registry::ExporterEntry;

/// Every exporter of this crate, in the order of the reference.
pub const EXPORTERS: &[ExporterEntry] = &[
    ExporterEntry::of::<stdout::StdoutExporter>(),
    ExporterEntry::of::<file::FileExporter>(),
    ExporterEntry::of::<otlp::OtlpGrpcExporter>(),
    ExporterEntry::of::<otlp::OtlpHttpExporter>(),
    ExporterEntry::of::<prometheus::PrometheusExporter>(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exporter_of_the_contract_is_registered() {
        let mut names: Vec<&str> = EXPORTERS.iter().map(|e| e.name).collect();
        names.extend(EXPORTERS.iter().flat_map(|e| e.aliases));
        let expected =
            ["stdout", "file", "otlp_grpc", "otlp_http", "prometheus", "otlp", "otlphttp"];
        assert_eq!(names, expected);
    }
}
