//! The exporter, over either transport: windows in, requests into the queue.

use std::{sync::Arc, time::Duration};

use wattpipe_pipeline::{
    BuildContext, Config, ExportError, Exporter, ExporterComponent, Stability, async_trait,
    batch::Batch, exporter::Closer, registry::BuildError,
};

use super::{config::Shared, encode::Encoder, requests::Requests};
use crate::{
    counters::Counters,
    queue::{Queue, QueueOptions, Transport},
};

/// What the transports differ in: keys of the configuration, and how a request travels.
pub trait Protocol: Config {
    /// See [`ExporterComponent::NAME`].
    const NAME: &'static str;
    /// See [`ExporterComponent::ALIASES`].
    const ALIASES: &'static [&'static str];
    /// See [`ExporterComponent::DOC`].
    const DOC: &'static str;

    /// The keys that all have.
    fn shared(&self) -> Shared<'_>;

    /// Reads the files that the configuration names; connects with the first request.
    fn transport(&self) -> Result<Arc<dyn Transport>, String>;
}

/// See the module's documentation.
pub struct OtlpExporter<P> {
    config: P,
    encoder: Encoder,
    options: QueueOptions,
    counters: Counters,
    queue: Option<Queue>,
}

impl<P: Protocol> ExporterComponent for OtlpExporter<P> {
    const NAME: &'static str = P::NAME;
    const ALIASES: &'static [&'static str] = P::ALIASES;
    const DOC: &'static str = P::DOC;
    const STABILITY: Stability = Stability::Beta;
    type Config = P;

    fn build(config: P, context: &BuildContext) -> Result<Self, BuildError> {
        let shared = config.shared();
        Ok(Self {
            encoder: Encoder::new(&shared.encoder(), context),
            options: shared.queue(&context.id),
            counters: Counters::with_queue(context),
            queue: None,
            config,
        })
    }
}

#[async_trait]
impl<P: Protocol> Exporter for OtlpExporter<P> {
    async fn start(&mut self) -> Result<(), ExportError> {
        let transport = self.config.transport().map_err(ExportError::Fatal)?;
        let queue = Queue::start(self.options.clone(), transport, self.counters.clone()).await;
        self.queue = Some(queue.map_err(|e| ExportError::Fatal(e.to_string()))?);
        Ok(())
    }

    fn closer(&self) -> Option<Closer> {
        self.queue.as_ref().map(Queue::closer)
    }

    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let Batch::Usage(batch) = batch else { return Ok(()) };
        // Its end tells a window from others also in a queue that an earlier process has stored.
        let end = batch.window.boot_unix_ns.saturating_add(batch.window.end.0);
        let QueueOptions { max_request_size, max_request_points, .. } = self.options;
        let mut requests = Requests::new(end, max_request_size, max_request_points);
        self.encoder.encode(&batch, |metrics, points| requests.push(&metrics, points));
        if let Some(queue) = &self.queue {
            // A replayed stream waits: nothing is lost by being late.
            queue.push(requests.finish(), !batch.live).await;
        }
        Ok(())
    }

    async fn shutdown(&mut self, timeout: Duration) -> Result<(), ExportError> {
        if let Some(mut queue) = self.queue.take() {
            queue.shutdown(timeout).await;
        }
        Ok(())
    }
}
