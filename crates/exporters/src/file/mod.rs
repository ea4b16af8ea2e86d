//! `file`: each window into a file.
//!
//! ```yaml
//! exporters:
//!   file:
//!     path: out.jsonl
//!     format: jsonl          # jsonl | csv | otlp_json | recording
//!     append: false          # true: go on after what is there
//!     compression: none      # none | zstd
//!     flush_interval: 1s
//!     rotation: { max_megabytes: 100, max_backups: 100, max_days: 0 }
//! ```
//!
//! Records reach the kernel within `flush_interval`, so they survive the end of the process,
//! kill -9 included, but for the line being written; they are not synced, so a power cut may cost
//! what the kernel had not written out yet. A disk that is full, or a file that is gone, is
//! reported once; records wait in memory up to `max_buffer`, then the oldest are dropped and
//! counted, and writing goes on as soon as it can.

pub mod config;
mod csv;
mod encode;
mod rotation;
mod sink;
mod tail;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle};
use wattpipe_pipeline::{
    BuildContext, ExportError, Exporter, ExporterComponent, Stability, async_trait,
    batch::{Batch, BatchKind},
    registry::BuildError,
};

use crate::counters::Counters;
pub use config::{Compression, FileConfig, Format, RotationConfig};
use encode::Encoder;
use sink::Sink;

/// See the module's documentation.
pub struct FileExporter {
    config: FileConfig,
    encoder: Encoder,
    sink: Arc<Mutex<Sink>>,
    /// Something waits to be written that no window has written with it.
    left: Arc<Notify>,
    flusher: Option<JoinHandle<()>>,
}

impl ExporterComponent for FileExporter {
    const NAME: &'static str = "file";
    const DOC: &'static str = "Writes each window to a file, with rotation and compression.";
    const STABILITY: Stability = Stability::Beta;
    const TAKES: &'static [BatchKind] = &[BatchKind::Usage, BatchKind::Switches];
    type Config = FileConfig;

    fn takes(config: &FileConfig) -> &'static [BatchKind] {
        match config.format {
            Format::Recording => &[BatchKind::Switches],
            _ => &[BatchKind::Usage],
        }
    }

    fn build(config: FileConfig, context: &BuildContext) -> Result<Self, BuildError> {
        let encoder = Encoder::new(&config, context);
        let (id, counters) = (context.id.clone(), Counters::new(context));
        let sink = Sink::new(config.clone(), id, counters, encoder.header());
        let sink = Arc::new(Mutex::new(sink));
        Ok(Self { config, encoder, sink, left: Arc::default(), flusher: None })
    }
}

fn lock(sink: &Mutex<Sink>) -> MutexGuard<'_, Sink> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Exporter for FileExporter {
    async fn start(&mut self) -> Result<(), ExportError> {
        lock(&self.sink).open().map_err(|e| ExportError::Fatal(e.to_string()))?;
        let (sink, left) = (self.sink.clone(), self.left.clone());
        let interval = self.config.flush_interval.0;
        self.flusher = Some(tokio::spawn(async move {
            loop {
                left.notified().await;
                let mut waits = true;
                while waits {
                    tokio::time::sleep(interval).await;
                    let sink = sink.clone();
                    let flush = move || lock(&sink).flush_if_due();
                    // A stalled disk holds a blocking thread, not the runtime.
                    waits = tokio::task::spawn_blocking(flush).await.unwrap_or(false);
                }
            }
        }));
        Ok(())
    }

    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let mut bytes = Vec::new();
        let points = self.encoder.encode(&batch, &mut bytes)?;
        let mut sink = lock(&self.sink);
        sink.push(bytes, points);
        if sink.flush_if_due() {
            self.left.notify_one();
        }
        Ok(())
    }

    async fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        if let Some(flusher) = self.flusher.take() {
            flusher.abort();
        }
        lock(&self.sink).close();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
