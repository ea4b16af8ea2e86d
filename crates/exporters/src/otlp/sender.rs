//! What both OTLP exporters are but for the transport: windows in, requests into the queue.

use std::{sync::Arc, time::Duration};

use wattpipe_pipeline::{BuildContext, ExportError, batch::Batch};

use super::{
    encode::{Encoder, EncoderOptions},
    requests::Requests,
};
use crate::{
    counters::Counters,
    queue::{Queue, QueueOptions, Transport},
};

/// An exporter without its transport.
pub(super) struct Sender {
    encoder: Encoder,
    options: QueueOptions,
    counters: Counters,
    queue: Option<Queue>,
    window: u64,
}

impl Sender {
    pub(super) fn new(
        encoder: &EncoderOptions,
        options: QueueOptions,
        context: &BuildContext,
    ) -> Self {
        Self {
            encoder: Encoder::new(encoder, context),
            options,
            counters: Counters::with_queue(context),
            queue: None,
            window: 0,
        }
    }

    pub(super) fn start(&mut self, transport: Arc<dyn Transport>) -> Result<(), ExportError> {
        let queue = Queue::start(self.options.clone(), transport, self.counters.clone());
        self.queue = Some(queue.map_err(|e| ExportError::Fatal(e.to_string()))?);
        Ok(())
    }

    pub(super) async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        let Batch::Usage(batch) = batch else { return Ok(()) };
        self.window += 1;
        let mut requests = Requests::new(self.window, self.options.max_request_size);
        self.encoder.encode(&batch, |metrics, points| requests.push(&metrics, points));
        if let Some(queue) = &self.queue {
            // A replayed stream waits: nothing is lost by being late.
            queue.push(requests.finish(), !batch.live).await;
        }
        Ok(())
    }

    pub(super) async fn shutdown(&mut self, timeout: Duration) {
        if let Some(mut queue) = self.queue.take() {
            queue.shutdown(timeout).await;
        }
    }
}
