//! What the pipelines achieve, for health checks and watchdogs: not whether threads live, but
//! whether windows leave.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::batch::{Batch, Window};

/// Shared state of a runner's progress.
#[derive(Debug)]
pub struct Progress {
    begin: Instant,
    stages: Mutex<Vec<Arc<Stage>>>,
    exported: AtomicU64,
    last: Mutex<Option<(Instant, Window)>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            stages: Mutex::default(),
            exported: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }
}

/// The last window that an exporter took.
#[derive(Clone, Copy, Debug)]
pub struct LastWindow {
    /// The window.
    pub window: Window,
    /// How long ago it was taken.
    pub age: Duration,
}

impl Progress {
    /// How long the runner has been there.
    pub fn uptime(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Windows that exporters took so far.
    pub fn exported(&self) -> u64 {
        self.exported.load(Relaxed)
    }

    /// The last of them.
    pub fn last(&self) -> Option<LastWindow> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|(at, window)| LastWindow { window, age: at.elapsed() })
    }

    /// Stages that have been at one batch for longer than `limit`.
    pub fn stuck(&self, limit: Duration) -> Vec<(String, Duration)> {
        let stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages
            .iter()
            .filter_map(|s| Some((s.describe(), s.busy_for()?)))
            .filter(|(_, busy)| *busy > limit)
            .collect()
    }

    /// A new stage of this name; an older one of the name is forgotten.
    pub(super) fn stage(&self, name: String) -> Arc<Stage> {
        let stage = Arc::new(Stage {
            name,
            begin: self.begin,
            since: AtomicU64::new(0),
            at: Mutex::default(),
            waiting: AtomicU64::new(0),
            present: AtomicU64::new(0),
        });
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages.retain(|s| s.name != stage.name);
        stages.push(stage.clone());
        stage
    }

    pub(super) fn forget(&self, name: &str) {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        stages.retain(|s| s.name != name);
    }

    pub(super) fn took(&self, window: Option<Window>) {
        let Some(window) = window else { return };
        self.exported.fetch_add(1, Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((Instant::now(), window));
    }
}

/// The window that a batch completes.
pub(super) fn window_of(batch: &Batch) -> Option<Window> {
    match batch {
        Batch::Usage(usage) => Some(usage.window),
        Batch::Switches(switches) => {
            // Where it began, the batch does not say.
            switches.edge.map(|e| Window { start: e.ts, end: e.ts, ..Window::default() })
        }
    }
}

/// One thread of the pipelines, and since when it has been at its present batch.
#[derive(Debug)]
pub(super) struct Stage {
    name: String,
    begin: Instant,
    /// Nanoseconds since `begin`; 0 while it waits.
    since: AtomicU64,
    at: Mutex<Option<Arc<str>>>,
    /// Items that wait for an exporter, and those of its present batch.
    waiting: AtomicU64,
    present: AtomicU64,
}

impl Stage {
    /// A batch is about to enter an exporter's queue.
    pub(super) fn enter(&self, items: u64) {
        self.waiting.fetch_add(items, Relaxed);
    }

    /// It has left the queue, or found no place there.
    pub(super) fn leave(&self, items: u64) {
        self.waiting.fetch_sub(items, Relaxed);
    }

    /// The exporter takes a batch out of its queue.
    pub(super) fn take(&self, items: u64) {
        self.leave(items);
        self.present.store(items, Relaxed);
        self.begin();
    }

    /// Gives up on the present batch, and with `all` on those that wait: how many items that costs.
    pub(super) fn give_up(&self, all: bool) -> u64 {
        let waiting = if all { self.waiting.swap(0, Relaxed) } else { 0 };
        waiting + self.present.swap(0, Relaxed)
    }

    /// It begins with a batch.
    pub(super) fn begin(&self) {
        let now = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.since.store(now.max(1), Relaxed);
    }

    /// Which component has the batch now.
    pub(super) fn at(&self, id: &Arc<str>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
    }

    /// It waits for the next batch.
    pub(super) fn done(&self) {
        self.present.store(0, Relaxed);
        self.since.store(0, Relaxed);
    }

    /// How long it has been at one batch.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        match self.since.load(Relaxed) {
            0 => None,
            since => Some(self.begin.elapsed().saturating_sub(Duration::from_nanos(since))),
        }
    }

    pub(super) fn describe(&self) -> String {
        match &*self.at.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(id) => format!("{} (in `{id}`)", self.name),
            None => self.name.clone(),
        }
    }
}
