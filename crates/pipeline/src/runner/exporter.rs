//! Exporters at run time: one thread and one bounded queue each. The queue outlives the thread,
//! so that an exporter that is restarted or replaced loses no window.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc, oneshot},
    task::JoinHandle,
};
use tracing::warn;

use super::{
    Event, Part,
    backoff::Backoff,
    progress::{Progress, Stage, window_of},
};
use crate::{
    batch::Batch,
    exporter::{Closer, ExportError, Exporter},
    news::{News, Tally},
    privileges::Privileges,
    shutdown::{self, Shutdown, Trigger},
    telemetry::{Counter, Gauge, Telemetry},
};

/// Windows that may wait for one exporter.
const EXPORT_QUEUE: usize = 16;
/// An exporter that has been at one batch for so long is called stuck.
const STUCK: Duration = Duration::from_secs(60);

/// An exporter with its queue.
pub(super) struct ExporterSlot {
    pub(super) part: Part<dyn Exporter>,
    pub(super) backoff: Backoff,
    tx: mpsc::Sender<Batch>,
    rx: Arc<Mutex<mpsc::Receiver<Batch>>>,
    pub(super) stage: Arc<Stage>,
    worker: Option<Worker>,
    /// When it is started again after a panic.
    pub(super) restart_at: Option<Instant>,
    pub(super) generation: u64,
}

/// An exporter on its way out. Its file, port or stored queue is its own until it has ended.
pub(super) struct Leaving {
    pub(super) id: String,
    pub(super) stage: Arc<Stage>,
    pub(super) task: JoinHandle<()>,
}

struct Worker {
    stop: Trigger,
    closer: Option<Closer>,
    /// Whether it ended as it should, rather than by a panic.
    done: oneshot::Receiver<bool>,
}

/// What every exporter's thread is given.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) telemetry: Telemetry,
    pub(super) progress: Arc<Progress>,
    pub(super) privileges: Privileges,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) timeout: Duration,
}

impl Shared {
    fn failed(&self, id: &str) -> Counter {
        self.telemetry.counter(
            "wattpipe_exporter_send_failed_points_total",
            "Points that an exporter gave up on.",
            &[("exporter", id)],
        )
    }

    /// Counts what an exporter has not taken by the very end.
    pub(super) fn abandon(&self, id: &str, stage: &Stage) {
        let lost = stage.give_up(true);
        if lost > 0 {
            self.failed(id).add(lost);
            warn!(exporter = %id, rows = lost, "data is lost: the exporter has not taken it before the end");
        }
    }
}

impl ExporterSlot {
    pub(super) fn new(part: Part<dyn Exporter>, progress: &Progress) -> Self {
        let (tx, rx) = mpsc::channel(EXPORT_QUEUE);
        Self {
            stage: progress.stage(format!("exporter `{}`", part.id)),
            part,
            backoff: Backoff::default(),
            tx,
            rx: Arc::new(Mutex::new(rx)),
            worker: None,
            restart_at: None,
            generation: 0,
        }
    }

    /// The chain's end of the queue.
    pub(super) fn outlet(&self, shared: &Shared) -> Outlet {
        let id = &self.part.id;
        let labels: &[(&'static str, &str)] = &[("exporter", id)];
        Outlet {
            id: id.clone(),
            tx: self.tx.clone(),
            stage: self.stage.clone(),
            refused: shared.telemetry.counter(
                "wattpipe_exporter_enqueue_failed_points_total",
                "Points that found an exporter's queue full.",
                labels,
            ),
            queued: shared.telemetry.gauge(
                "wattpipe_exporter_inbox_size",
                "Windows that wait for an exporter.",
                labels,
            ),
            full: false,
            stuck: false,
            max_waiting: EXPORT_QUEUE,
        }
    }

    /// Starts `exporter` on the queue and waits until it has started.
    pub(super) async fn start(
        &mut self,
        mut exporter: Box<dyn Exporter>,
        shared: &Shared,
    ) -> Result<(), String> {
        let id = self.part.id.clone();
        self.generation += 1;
        let (stop, stopped) = shutdown::channel();
        let (started_tx, started) = oneshot::channel();
        let (done_tx, done) = oneshot::channel();
        let (runtime, shared, rx) = (Handle::current(), shared.clone(), self.rx.clone());
        let stage = self.stage.clone();
        let generation = self.generation;
        let thread_id = id.clone();
        thread::Builder::new()
            .name(format!("export/{id}").chars().take(15).collect())
            .spawn(move || {
                let id = thread_id;
                let events = shared.events.clone();
                let run = AssertUnwindSafe(|| {
                    runtime.block_on(async {
                        let start = {
                            let _raised = shared.privileges.raise();
                            exporter.start().await
                        };
                        let ok = start.is_ok();
                        let _ = started_tx.send(start.map(|()| exporter.closer()));
                        if ok {
                            work(&id, generation, exporter.as_mut(), &rx, stopped, &shared, &stage)
                                .await;
                        }
                    });
                });
                let well = catch_unwind(run).is_ok();
                let lost = stage.give_up(false);
                // Before anybody who waits for the end can read it.
                if !well {
                    shared.failed(&id).add(lost);
                }
                let _ = done_tx.send(well);
                if !well {
                    let reason = format!("it panicked, {lost} rows are lost");
                    let _ =
                        events.blocking_send(Event::ExporterPanicked { id, generation, reason });
                }
            })
            .map_err(|e| format!("exporter `{id}`: cannot start its thread: {e}"))?;
        match started.await {
            Ok(Ok(closer)) => {
                self.worker = Some(Worker { stop, closer, done });
                Ok(())
            }
            Ok(Err(e)) => Err(format!("exporter `{id}`: {e}")),
            Err(_) => Err(format!("exporter `{id}`: it panicked while starting")),
        }
    }

    /// Tells the exporter when the end comes, so that it does not wait beyond it.
    pub(super) fn close(&self, deadline: Instant) {
        if let Some(closer) = self.worker.as_ref().and_then(|w| w.closer.as_ref()) {
            closer(deadline);
        }
    }

    /// Stops the thread after its present batch; what is queued stays queued.
    pub(super) async fn stop(&mut self, timeout: Duration) {
        self.close(Instant::now() + timeout);
        if let Some(Worker { stop, done, .. }) = self.worker.take() {
            stop.fire();
            if tokio::time::timeout(timeout, done).await.is_err() {
                warn!(exporter = %self.part.id, "it does not stop; its thread is left behind");
            }
        }
    }

    /// Drains it beside whatever else goes on.
    pub(super) fn leave(self, shared: &Shared) -> Leaving {
        let (id, stage) = (self.part.id.clone(), self.stage.clone());
        let deadline = Instant::now() + shared.timeout;
        Leaving { id, stage, task: tokio::spawn(self.drain(shared.clone(), deadline)) }
    }

    /// Takes the queue's end away and waits until the thread has emptied it and ended. One that
    /// panicked, or waits to be started again, is started once more for what its queue has kept.
    pub(super) async fn drain(mut self, shared: Shared, deadline: Instant) {
        self.close(deadline);
        // The channel stays open through this clone's life only.
        let (closed, _) = mpsc::channel(1);
        self.tx = closed;
        let mut well = false;
        if let Some(Worker { stop, done, .. }) = self.worker.take() {
            well = done.await.unwrap_or(false);
            drop(stop);
        }
        if !well && let Ok(made) = (self.part.make)() {
            match self.start(made, &shared).await {
                Ok(()) => {
                    self.close(deadline);
                    if let Some(Worker { stop, done, .. }) = self.worker.take() {
                        let _ = done.await;
                        drop(stop);
                    }
                }
                Err(e) => warn!("{e}; what its queue held is lost"),
            }
        }
    }
}

async fn work(
    id: &str,
    generation: u64,
    exporter: &mut dyn Exporter,
    rx: &Mutex<mpsc::Receiver<Batch>>,
    mut stopped: Shutdown,
    shared: &Shared,
    stage: &Stage,
) {
    let failed = shared.failed(id);
    let mut failures = Tally::default();
    let mut rx = rx.lock().await;
    loop {
        let batch = tokio::select! {
            biased;
            () = stopped.wait() => break,
            batch = rx.recv() => batch,
        };
        let Some(batch) = batch else { break };
        let window = window_of(&batch);
        stage.take(batch.items());
        let result = exporter.export(batch).await;
        stage.done();
        match result {
            Ok(()) => {
                tell(id, failures.due());
                shared.progress.took(window);
            }
            Err(ExportError::Closed) => {
                rx.close();
                let _ = shared.events.send(Event::ReaderGone).await;
                break;
            }
            Err(ExportError::Failed { what, dropped }) => {
                failed.add(dropped);
                tell(id, failures.add(dropped, &what));
            }
            Err(ExportError::Fatal(reason)) => {
                rx.close();
                let id = id.to_owned();
                let _ = shared.events.send(Event::ExporterFailed { id, generation, reason }).await;
                break;
            }
        }
    }
    tell(id, failures.rest());
    // Of one that has failed for good.
    while rx.is_closed()
        && let Ok(batch) = rx.try_recv()
    {
        stage.leave(batch.items());
        failed.add(batch.items());
    }
    match exporter.shutdown(shared.timeout).await {
        Ok(()) | Err(ExportError::Closed) => {}
        Err(e) => warn!(exporter = %id, "while shutting down: {e}"),
    }
}

/// Tells of batches that an exporter gave up on.
fn tell(id: &str, news: Option<News>) {
    if let Some(News { amount, times, reason }) = news {
        warn!(exporter = %id, dropped = amount, windows = times, "{reason}");
    }
}

/// The chain's end of an exporter's queue.
pub(super) struct Outlet {
    pub(super) id: String,
    tx: mpsc::Sender<Batch>,
    stage: Arc<Stage>,
    refused: Counter,
    queued: Gauge,
    full: bool,
    stuck: bool,
    /// Windows that may wait, where memory is short.
    max_waiting: usize,
}

impl Outlet {
    /// Lets at most `max` windows wait from now on.
    pub(super) fn limit(&mut self, max: Option<usize>) {
        self.max_waiting = max.unwrap_or(EXPORT_QUEUE);
    }

    pub(super) fn send(&mut self, batch: Batch) {
        let (live, items) = (is_live(&batch), batch.items());
        self.stage.enter(items);
        if !live {
            // An exporter that has ended reports that itself.
            if self.tx.blocking_send(batch).is_err() {
                self.stage.leave(items);
            }
            return;
        }
        let sent = if self.waiting() < self.max_waiting {
            self.tx.try_send(batch)
        } else {
            Err(mpsc::error::TrySendError::Full(batch))
        };
        match sent {
            Ok(()) => self.full = false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.refuse(items);
                if !std::mem::replace(&mut self.full, true) {
                    warn!(exporter = %self.id, "the exporter is slower than its input: windows are dropped and counted in wattpipe_exporter_enqueue_failed_points_total");
                }
            }
            Err(mpsc::error::TrySendError::Closed(_)) => self.refuse(items),
        }
        self.queued.set(self.waiting() as f64);
        self.watch();
    }

    fn refuse(&self, items: u64) {
        self.stage.leave(items);
        self.refused.add(items);
    }

    /// Windows that wait.
    pub(super) fn waiting(&self) -> usize {
        EXPORT_QUEUE - self.tx.capacity().min(EXPORT_QUEUE)
    }

    /// The chain passes here with every window, so a stuck exporter is noticed without a timer.
    fn watch(&mut self) {
        let stuck = self.stage.busy_for().is_some_and(|busy| busy > STUCK);
        if stuck && !self.stuck {
            warn!(exporter = %self.id, "stuck: it has been at one window for more than {} s", STUCK.as_secs());
        }
        self.stuck = stuck;
    }
}

fn is_live(batch: &Batch) -> bool {
    match batch {
        Batch::Switches(b) => b.live,
        Batch::Usage(b) => b.live,
    }
}
