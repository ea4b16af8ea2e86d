//! What waits: bounded, in memory or on disk, with its accounting.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Notify, task::spawn_blocking, time::Instant};
use tracing::{error, info, warn};

use super::{
    Closes, QueueError, QueueOptions, Request, Sizer, disk::DiskQueue, out_of_time, send::Done,
};
use crate::counters::Counters;

/// A request on its way, with what is to be forgotten once it is done.
pub(super) struct Parcel {
    pub(super) request: Request,
    pub(super) tickets: Vec<Ticket>,
}

/// What one stored request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) seq: u64,
    pub(super) points: u64,
    pub(super) bytes: u64,
    pub(super) window: u64,
}

#[derive(Default)]
struct State {
    /// In order; the request itself is here only where it is not on disk.
    waiting: VecDeque<(Ticket, Option<Request>)>,
    /// Everything that is not done, requests on their way included.
    requests: u64,
    points: u64,
    bytes: u64,
    next_seq: u64,
    closed: bool,
    overflowing: bool,
    /// Points that found no place, since the start.
    refused: u64,
}

impl State {
    fn add(&mut self, ticket: &Ticket) {
        self.requests += 1;
        self.points += ticket.points;
        self.bytes += ticket.bytes;
    }

    fn remove(&mut self, ticket: &Ticket) {
        self.requests = self.requests.saturating_sub(1);
        self.points = self.points.saturating_sub(ticket.points);
        self.bytes = self.bytes.saturating_sub(ticket.bytes);
    }
}

/// See the module's documentation.
pub(super) struct Store {
    id: String,
    sizer: Sizer,
    capacity: u64,
    max_bytes: u64,
    disk: Option<Arc<DiskQueue>>,
    counters: Counters,
    state: Mutex<State>,
    /// Something waits, or the store has closed. One listener, the dispatcher.
    arrived: Notify,
    /// There is space. One listener, the exporter.
    left: Notify,
    closes: Closes,
}

impl Store {
    pub(super) async fn open(
        options: &QueueOptions,
        counters: Counters,
        closes: Closes,
    ) -> Result<Self, QueueError> {
        let mut state = State::default();
        let disk = match &options.queue.storage {
            Some(directory) if options.queue.enabled => {
                let (disk, found) = DiskQueue::open(directory, &options.id).await?;
                for ticket in found {
                    state.next_seq = ticket.seq + 1;
                    state.add(&ticket);
                    state.waiting.push_back((ticket, None));
                }
                if state.requests > 0 {
                    info!(exporter = %options.id, requests = state.requests, points = state.points, "going on with the stored queue");
                }
                Some(Arc::new(disk))
            }
            _ => None,
        };
        let store = Self {
            id: options.id.clone(),
            sizer: options.queue.sizer,
            capacity: options.queue.queue_size,
            max_bytes: match disk {
                Some(_) => options.queue.max_storage_size.bytes(),
                None => u64::MAX,
            },
            disk,
            counters,
            state: Mutex::new(state),
            arrived: Notify::new(),
            left: Notify::new(),
            closes,
        };
        store.counters.queue_capacity.set(store.capacity as f64);
        store.gauge(&store.lock());
        Ok(store)
    }

    /// Takes the requests of a window. A memory queue that is full refuses the new ones (or, with
    /// `patient`, waits); a stored one drops its oldest instead.
    pub(super) async fn push(&self, requests: Vec<Request>, patient: bool) {
        for request in requests {
            while patient && !self.has_room(&request) {
                tokio::select! {
                    () = self.left.notified() => {}
                    () = out_of_time(&self.closes) => break,
                }
            }
            match &self.disk {
                Some(disk) => self.push_stored(disk, request),
                None => self.push_memory(request),
            }
            self.arrived.notify_one();
        }
    }

    fn push_memory(&self, request: Request) {
        let mut state = self.lock();
        let ticket = ticket(&mut state, &request);
        if !self.fits(&state, &ticket) {
            self.overflow(&mut state, ticket.points, "sending_queue is full: new data is dropped");
            return;
        }
        state.overflowing = false;
        state.add(&ticket);
        state.waiting.push_back((ticket, Some(request)));
        self.gauge(&state);
    }

    /// On disk before it counts as queued; the write is synced, so it survives a power cut too.
    fn push_stored(&self, disk: &DiskQueue, request: Request) {
        let (ticket, victims) = {
            let mut state = self.lock();
            let ticket = ticket(&mut state, &request);
            let mut victims = Vec::new();
            while !self.fits(&state, &ticket) {
                let Some((oldest, _)) = state.waiting.pop_front() else { break };
                state.remove(&oldest);
                victims.push(oldest);
            }
            (ticket, victims)
        };
        let seqs: Vec<u64> = victims.iter().map(|v| v.seq).collect();
        let written = disk.insert(&ticket, &request, &seqs);
        let mut state = self.lock();
        match written {
            Ok(()) => {
                match victims.iter().map(|v| v.points).sum() {
                    0 => state.overflowing = false,
                    lost => {
                        let why = "sending_queue is full: the oldest is dropped";
                        self.overflow(&mut state, lost, why);
                    }
                }
                state.add(&ticket);
                state.waiting.push_back((ticket, None));
            }
            Err(e) => {
                for oldest in victims.into_iter().rev() {
                    state.add(&oldest);
                    state.waiting.push_front((oldest, None));
                }
                let why =
                    format!("cannot write to sending_queue::storage ({e}): new data is dropped");
                self.overflow(&mut state, ticket.points, &why);
            }
        }
        self.gauge(&state);
    }

    /// The next request; `None` once the store is closed and empty.
    pub(super) async fn next(&self) -> Option<Parcel> {
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.waiting.pop_front();
                if next.is_none() && state.closed {
                    return None;
                }
                next
            };
            match next {
                None => self.arrived.notified().await,
                Some((ticket, request)) => {
                    if let Some(parcel) = self.fetch(ticket, request).await {
                        return Some(parcel);
                    }
                }
            }
        }
    }

    /// The next request if it `fits`, waiting for one until `due`.
    pub(super) async fn next_if(
        &self,
        fits: impl Fn(&Ticket) -> bool,
        due: Instant,
    ) -> Option<Parcel> {
        loop {
            let next = {
                let mut state = self.lock();
                match state.waiting.front() {
                    Some((ticket, _)) if !fits(ticket) => return None,
                    Some(_) => state.waiting.pop_front(),
                    None if state.closed => return None,
                    None => None,
                }
            };
            match next {
                Some((ticket, request)) => {
                    if let Some(parcel) = self.fetch(ticket, request).await {
                        return Some(parcel);
                    }
                }
                None => {
                    tokio::time::timeout_at(due, self.arrived.notified()).await.ok()?;
                }
            }
        }
    }

    async fn fetch(&self, ticket: Ticket, request: Option<Request>) -> Option<Parcel> {
        let request = match (request, &self.disk) {
            (Some(request), _) => request,
            (None, Some(disk)) => {
                let disk = disk.clone();
                let read = spawn_blocking(move || disk.read(ticket.seq)).await;
                match read.unwrap_or_else(|e| Err(e.to_string())) {
                    Ok(body) => Request { body, points: ticket.points, window: ticket.window },
                    Err(e) => {
                        error!(exporter = %self.id, points = ticket.points, "cannot read from sending_queue::storage, data is lost: {e}");
                        let lost = Done::Counted { sent: 0, failed: ticket.points };
                        self.finish(vec![ticket], lost).await;
                        return None;
                    }
                }
            }
            (None, None) => return None,
        };
        Some(Parcel { request, tickets: vec![ticket] })
    }

    /// Forgets what is done.
    pub(super) async fn finish(&self, tickets: Vec<Ticket>, done: Done) {
        let Done::Counted { sent, failed } = done else { return };
        if let Some(disk) = &self.disk {
            let (disk, seqs) = (disk.clone(), tickets.iter().map(|t| t.seq).collect::<Vec<_>>());
            let removed = spawn_blocking(move || disk.remove(&seqs)).await;
            if let Err(e) = removed.unwrap_or_else(|e| Err(e.to_string())) {
                warn!(exporter = %self.id, "cannot remove delivered requests from sending_queue::storage, they will be sent again after a restart: {e}");
            }
        }
        let mut state = self.lock();
        self.counters.sent.add(sent);
        self.counters.send_failed.add(failed);
        for ticket in &tickets {
            state.remove(ticket);
        }
        self.gauge(&state);
        self.left.notify_one();
    }

    /// No more will come.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    /// At the very end: what is not done is lost, or stays on disk.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        let (requests, points) = (state.requests, state.points);
        state.waiting.clear();
        if state.refused > 0 {
            warn!(exporter = %self.id, points = state.refused, "so much has found no place in sending_queue since the start: it is lost");
        }
        if requests == 0 {
            return;
        }
        if self.disk.is_some() {
            info!(exporter = %self.id, requests, points, "what was not delivered stays in the stored queue");
        } else {
            self.counters.send_failed.add(points);
            state.points = 0;
            state.requests = 0;
            state.bytes = 0;
            warn!(exporter = %self.id, requests, points, "data is lost: it was not delivered before the end (`sending_queue::storage` would keep it)");
        }
        self.gauge(&state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gauge(&self, state: &State) {
        self.counters.queue_size.set(match self.sizer {
            Sizer::Requests => state.requests,
            Sizer::Items => state.points,
            Sizer::Bytes => state.bytes,
        } as f64);
    }

    fn has_room(&self, request: &Request) -> bool {
        let state = self.lock();
        state.closed || self.fits(&state, &ticket_of(0, request))
    }

    /// Whether there is space. An empty queue takes anything: what can never fit must still go out.
    fn fits(&self, state: &State, ticket: &Ticket) -> bool {
        let size = match self.sizer {
            Sizer::Requests => state.requests + 1,
            Sizer::Items => state.points + ticket.points,
            Sizer::Bytes => state.bytes + ticket.bytes,
        };
        let fits = size <= self.capacity && state.bytes + ticket.bytes <= self.max_bytes;
        fits || state.requests == 0
    }

    fn overflow(&self, state: &mut State, points: u64, why: &str) {
        self.counters.enqueue_failed.add(points);
        state.refused += points;
        if !std::mem::replace(&mut state.overflowing, true) {
            warn!(exporter = %self.id, capacity = self.capacity, "{why}, and counted in wattpipe_exporter_enqueue_failed_points_total");
        }
    }
}

fn ticket(state: &mut State, request: &Request) -> Ticket {
    state.next_seq += 1;
    ticket_of(state.next_seq - 1, request)
}

fn ticket_of(seq: u64, request: &Request) -> Ticket {
    let bytes = request.body.len() as u64;
    Ticket { seq, points: request.points, bytes, window: request.window }
}
