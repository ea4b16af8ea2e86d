//! A batch as the lines of the configured format.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use wattpipe_pipeline::{
    BuildContext, ExportError,
    batch::{Batch, SwitchBatch, UsageBatch},
    recording,
};

use super::{
    config::{FileConfig, Format},
    csv,
};
use crate::{otlp, records};

/// Writes lines of one format.
pub(super) enum Encoder {
    Jsonl,
    Csv,
    OtlpJson(Box<otlp::Encoder>),
    Recording,
}

impl Encoder {
    pub(super) fn new(config: &FileConfig, context: &BuildContext) -> Self {
        match config.format {
            Format::Jsonl => Self::Jsonl,
            Format::Csv => Self::Csv,
            Format::Recording => Self::Recording,
            Format::OtlpJson => {
                let options = otlp::EncoderOptions {
                    temporality: config.temporality,
                    levels: config.levels.clone(),
                    max_series: config.max_series,
                    resource_to_telemetry_conversion: config.resource_to_telemetry_conversion,
                };
                Self::OtlpJson(Box::new(otlp::Encoder::new(&options, context)))
            }
        }
    }

    /// What each file begins with.
    pub(super) fn header(&self) -> Vec<u8> {
        match self {
            Self::Csv => csv::header(),
            _ => Vec::new(),
        }
    }

    /// Appends the lines of `batch` and returns how many points (rows, or records) they hold.
    pub(super) fn encode(&mut self, batch: &Batch, out: &mut Vec<u8>) -> Result<u64, ExportError> {
        let written = match (&mut *self, batch) {
            (Self::Recording, Batch::Switches(switches)) => record(switches, out),
            (Self::Jsonl, Batch::Usage(usage)) => records::write_lines(usage, out)
                .map(|_| usage.rows.len() as u64)
                .map_err(|e| e.to_string()),
            (Self::Csv, Batch::Usage(usage)) => csv::write(usage, out).map_err(|e| e.to_string()),
            (Self::OtlpJson(encoder), Batch::Usage(usage)) => otlp_json(encoder, usage, out),
            // The chain's check lets no other kind come here.
            _ => Ok(0),
        };
        written.map_err(|e| ExportError::Failed {
            what: format!("a window could not be encoded: {e}"),
            dropped: batch.items(),
        })
    }
}

fn record(batch: &SwitchBatch, out: &mut Vec<u8>) -> Result<u64, String> {
    let mut lines = 0;
    recording::for_each_record(batch, |record| {
        serde_json::to_writer(&mut *out, record)?;
        out.push(b'\n');
        lines += 1;
        Ok::<(), serde_json::Error>(())
    })
    .map_err(|e| e.to_string())?;
    Ok(lines)
}

fn otlp_json(
    encoder: &mut otlp::Encoder,
    batch: &UsageBatch,
    out: &mut Vec<u8>,
) -> Result<u64, String> {
    let mut request = ExportMetricsServiceRequest::default();
    let mut total = 0;
    encoder.encode(batch, |metrics, points| {
        request.resource_metrics.push(metrics);
        total += points;
    });
    if total > 0 {
        serde_json::to_writer(&mut *out, &request).map_err(|e| e.to_string())?;
        out.push(b'\n');
    }
    Ok(total)
}
