//! Between an exporter that makes requests and the receiver that takes them: a bounded queue in
//! memory or on disk, retries with growing waits, a timeout for each attempt. Written once, for
//! every exporter that sends.
//!
//! Every point that goes in comes out in exactly one count: sent, failed, or refused by a full
//! queue. Requests of one window go out side by side (`num_consumers`), windows one after the
//! other: receivers of cumulative sums drop what arrives out of order.

pub mod config;
mod disk;
mod losses;
mod send;
mod store;
#[cfg(test)]
mod tests;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tracing::info;
use wattpipe_pipeline::exporter::Closer;

use crate::counters::Counters;
pub use config::{BatchConfig, QueueConfig, RetryConfig, Sizer};
use send::{Courier, Done};
use store::Store;

/// One request as it travels: encoded, so that memory and disk hold the same bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The encoded message. Concatenating two bodies merges them (protobuf).
    pub body: Bytes,
    /// Data points in it.
    pub points: u64,
    /// Tells the window it is of from others.
    pub window: u64,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Delivered, but for the points that the receiver says it rejected.
    Delivered {
        /// Rejected points.
        rejected: u64,
        /// The receiver's words.
        message: String,
    },
    /// Not delivered; it may go through later.
    Retry {
        /// The receiver asked to wait this long.
        after: Option<Duration>,
        /// Why.
        reason: String,
    },
    /// The receiver finds it too large.
    TooLarge {
        /// Its words.
        reason: String,
    },
    /// It will never go through.
    Refused {
        /// Why.
        reason: String,
    },
}

/// How requests are delivered.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// One attempt.
    async fn send(&self, body: Bytes) -> Outcome;

    /// Two halves of a request, where it can be divided.
    fn split(&self, request: &Request) -> Option<[Request; 2]>;
}

/// Why the queue could not start.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The stored queue cannot be used.
    #[error("sending_queue::storage `{path}`: {what}")]
    Storage {
        /// Where it is.
        path: PathBuf,
        /// What is wrong, with the remedy.
        what: String,
    },
}

/// What the queue is to do.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Id of the exporter, for logs and for the stored queue's name.
    pub id: String,
    /// `sending_queue`.
    pub queue: QueueConfig,
    /// `retry_on_failure`.
    pub retry: RetryConfig,
    /// For each attempt; 0: no limit.
    pub timeout: Duration,
    /// Bytes of the largest request.
    pub max_request_size: usize,
    /// Points of the largest request.
    pub max_request_points: u64,
}

/// A queue at work.
pub struct Queue {
    courier: Arc<Courier>,
    store: Arc<Store>,
    counters: Counters,
    enabled: bool,
    block: bool,
    closing: Arc<watch::Sender<Option<Instant>>>,
    worker: Option<JoinHandle<()>>,
}

/// When the end of the agent leaves no more time; `None` while it goes on.
type Closes = watch::Receiver<Option<Instant>>;

impl Queue {
    /// Opens the store and starts to deliver.
    pub async fn start(
        options: QueueOptions,
        transport: Arc<dyn Transport>,
        counters: Counters,
    ) -> Result<Self, QueueError> {
        let (closing, closes) = watch::channel(None);
        let store = Arc::new(Store::open(&options, counters.clone(), closes.clone()).await?);
        let courier = Arc::new(Courier::new(&options, transport, closes.clone()));
        let dispatcher = Dispatcher {
            store: store.clone(),
            courier: courier.clone(),
            consumers: options.queue.num_consumers,
            batch: options.queue.batch.clone(),
            sizer: options.queue.batch_sizer(),
            max_request_size: options.max_request_size,
            closes,
        };
        let worker = options.queue.enabled.then(|| tokio::spawn(dispatcher.run()));
        let (enabled, block) = (options.queue.enabled, options.queue.block_on_overflow);
        let closing = Arc::new(closing);
        Ok(Self { courier, store, counters, enabled, block, closing, worker })
    }

    /// Sets the end while a `push` may wait.
    pub fn closer(&self) -> Closer {
        let closing = self.closing.clone();
        Box::new(move |end| close(&closing, end))
    }

    /// Takes the requests of one window. With `patient` it waits for space whatever is configured.
    pub async fn push(&self, requests: Vec<Request>, patient: bool) {
        if self.enabled {
            self.store.push(requests, patient || self.block).await;
        } else {
            for request in requests {
                let points = request.points;
                let (sent, failed) = match self.courier.deliver(request).await {
                    Done::Counted { sent, failed } => (sent, failed),
                    Done::GivenBack => {
                        self.courier.losses.lost(points, NOT_DELIVERED);
                        (0, points)
                    }
                };
                self.counters.sent.add(sent);
                self.counters.send_failed.add(failed);
            }
        }
    }

    /// Delivers what it can within `timeout`; the rest is counted as failed, or stays on disk.
    pub async fn shutdown(&mut self, timeout: Duration) {
        let Some(mut worker) = self.worker.take() else { return };
        close(&self.closing, Instant::now() + timeout);
        self.store.close();
        // By then every delivery has come back by itself, to be counted.
        let deadline = self.closing.borrow().unwrap_or_else(Instant::now).max(Instant::now());
        let grace = deadline + timeout / 20;
        if tokio::time::timeout_at(grace.into(), &mut worker).await.is_err() {
            worker.abort();
            let _ = worker.await;
        }
        self.courier.losses.flush();
        self.store.abandon();
    }
}

/// The end is at `end` at the latest; a part of the time until then is for counting what is left.
fn close(closing: &watch::Sender<Option<Instant>>, end: Instant) {
    let now = Instant::now();
    let deadline = now + end.saturating_duration_since(now).mul_f32(0.9);
    closing.send_if_modified(|at| {
        let earlier = at.is_none_or(|at| deadline < at);
        if earlier {
            *at = Some(deadline);
        }
        earlier
    });
}

/// Comes back when there is no more time, or the queue is gone.
async fn out_of_time(closes: &Closes) {
    let mut closes = closes.clone();
    let deadline = match closes.wait_for(Option::is_some).await {
        Ok(at) => *at,
        Err(_) => None,
    };
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}

const NOT_DELIVERED: &str = "it was not delivered before the end";

struct Dispatcher {
    store: Arc<Store>,
    courier: Arc<Courier>,
    consumers: usize,
    batch: Option<BatchConfig>,
    sizer: Sizer,
    max_request_size: usize,
    closes: Closes,
}

impl Dispatcher {
    /// Until the store is closed and empty.
    async fn run(self) {
        let mut under_way = JoinSet::new();
        let mut window = None;
        while let Some(first) = self.store.next().await {
            let parcel = self.fill(first).await;
            let busy = under_way.len() >= self.consumers;
            // One that was merged of several windows goes out alone.
            let one = parcel.tickets.iter().all(|t| t.window == parcel.request.window);
            let next = one.then_some(parcel.request.window);
            if next.is_none() || next != window {
                while under_way.join_next().await.is_some() {}
            } else if busy {
                under_way.join_next().await;
            }
            window = next;
            let (courier, store) = (self.courier.clone(), self.store.clone());
            under_way.spawn(async move {
                let done = courier.deliver(parcel.request).await;
                store.finish(parcel.tickets, done).await;
            });
            if self.past_deadline() {
                break;
            }
        }
        while under_way.join_next().await.is_some() {}
    }

    fn past_deadline(&self) -> bool {
        self.closes.borrow().is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Merges what follows into `first`, as `sending_queue::batch` wants it.
    async fn fill(&self, first: store::Parcel) -> store::Parcel {
        let Some(batch) = &self.batch else { return first };
        let size = |points: u64, bytes: usize| match self.sizer {
            Sizer::Bytes => bytes as u64,
            _ => points,
        };
        let limit = if batch.max_size == 0 { u64::MAX } else { batch.max_size };
        let due = tokio::time::Instant::now() + batch.flush_timeout.0;
        let mut filled = size(first.request.points, first.request.body.len());
        let mut bytes = first.request.body.len();
        let mut parts = vec![first.request.body];
        let (mut points, mut window) = (first.request.points, first.request.window);
        let mut tickets = first.tickets;
        while filled < batch.min_size {
            let fits = |t: &store::Ticket| {
                let more = usize::try_from(t.bytes).unwrap_or(usize::MAX);
                filled.saturating_add(size(t.points, more)) <= limit
                    && bytes.saturating_add(more) <= self.max_request_size
            };
            let Some(next) = self.store.next_if(fits, due).await else { break };
            filled += size(next.request.points, next.request.body.len());
            bytes += next.request.body.len();
            points += next.request.points;
            window = next.request.window;
            tickets.extend(next.tickets);
            parts.push(next.request.body);
        }
        let body = match parts.len() {
            1 => parts.remove(0),
            _ => parts.concat().into(),
        };
        store::Parcel { request: Request { body, points, window }, tickets }
    }
}

fn report_recovery(id: &str) {
    info!(exporter = %id, "delivering again");
}
