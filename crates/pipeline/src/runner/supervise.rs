//! Keeping a graph going until its end, and draining it.

use std::time::Instant;

use tokio::time::{sleep_until, timeout};
use tracing::{debug, error, warn};

use super::{
    Event, Message, Outcome, Runner,
    gate::Gate,
    source::{self, STOP_TIMEOUT, State, may_recover},
};
use crate::source::SourceError;

impl Runner {
    /// Restarts what fails until everything has ended or something failed for good. May be
    /// dropped and called again.
    pub async fn supervise(&mut self) {
        while self.outcome.is_none() {
            let restart = self
                .sources
                .iter()
                .filter_map(|s| if let State::Waiting(at) = s.state { Some(at) } else { None })
                .chain(self.exporters.values().filter_map(|e| e.restart_at))
                .min();
            let event = match self.deferred.pop_front() {
                Some(event) => Some(event),
                None => tokio::select! {
                    event = self.events.recv() => event,
                    () = until(restart) => {
                        self.restart_due().await;
                        continue;
                    }
                },
            };
            match event {
                Some(event) => self.handle(event),
                None => break,
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::SourceEnded { number, generation, result } => {
                self.source_ended(number, generation, result);
            }
            Event::ReaderGone => {
                self.outcome.get_or_insert(Outcome::ReaderGone);
            }
            Event::ExporterFailed { id, generation, reason } => {
                if self.is_current(&id, generation) {
                    self.fail(format!("exporter `{id}`: {reason}"));
                }
            }
            Event::ExporterPanicked { id, generation, reason } => {
                if self.is_current(&id, generation)
                    && let Some(slot) = self.exporters.get_mut(&id)
                {
                    let now = Instant::now();
                    let wait = slot.backoff.failed(now);
                    slot.restart_at = Some(now + wait);
                    error!(exporter = %id, "{reason}; it is started again in {} s", wait.as_secs());
                    self.count_restart("exporter", &id);
                }
            }
            Event::ChainEnded(Err(reason)) => self.fail(reason),
            Event::ChainEnded(Ok(())) => {}
        }
    }

    fn is_current(&self, id: &str, generation: u64) -> bool {
        self.exporters.get(id).is_some_and(|slot| slot.generation == generation)
    }

    fn fail(&mut self, reason: String) {
        if !matches!(self.outcome, Some(Outcome::Failed(_) | Outcome::Unavailable(_))) {
            self.outcome = Some(Outcome::Failed(reason));
        }
    }

    fn source_ended(&mut self, number: usize, generation: u64, result: Result<(), SourceError>) {
        let Some(slot) = self.sources.iter_mut().find(|s| s.number == number) else { return };
        let State::Running(incarnation) = &slot.state else { return };
        if incarnation.generation != generation {
            return;
        }
        let delivered = incarnation.gate.has_arrived();
        let id = slot.part.id.clone();
        match result {
            Ok(()) => {
                debug!(source = %id, "source ended");
                slot.state = State::Ended;
                if self.sources.iter().all(|s| matches!(s.state, State::Ended)) {
                    self.outcome.get_or_insert(Outcome::Done);
                }
            }
            Err(e) if may_recover(&e, delivered) => {
                let now = Instant::now();
                let wait = slot.backoff.failed(now);
                slot.state = State::Waiting(now + wait);
                error!(source = %id, "{}; it is started again in {} s", with_causes(&e), wait.as_secs());
                self.count_restart("source", &id);
            }
            Err(e) => {
                slot.state = State::Ended;
                let reason = format!("source `{id}`: {}", with_causes(&e));
                match e {
                    SourceError::Unavailable { .. } => {
                        self.outcome.get_or_insert(Outcome::Unavailable(reason));
                    }
                    _ => self.fail(reason),
                }
            }
        }
    }

    fn count_restart(&self, kind: &'static str, id: &str) {
        self.options
            .telemetry
            .counter(
                "wattpipe_component_restarts_total",
                "Components that failed and were started again.",
                &[("kind", kind), ("id", id)],
            )
            .add(1);
    }

    async fn restart_due(&mut self) {
        let now = Instant::now();
        for slot in &mut self.sources {
            let State::Waiting(at) = slot.state else { continue };
            if at > now {
                continue;
            }
            self.next_generation += 1;
            let started = (slot.part.make)().map_err(|e| e.to_string()).and_then(|made| {
                source::start(
                    made,
                    &slot.part.id,
                    slot.number,
                    self.next_generation,
                    Gate::open_from_start(),
                    &self.source_shared,
                )
            });
            slot.state = match started {
                Ok(incarnation) => State::Running(incarnation),
                Err(reason) => {
                    error!(source = %slot.part.id, "{reason}");
                    State::Waiting(now + slot.backoff.failed(now))
                }
            };
        }
        for slot in self.exporters.values_mut() {
            if slot.restart_at.is_none_or(|at| at > now) {
                continue;
            }
            slot.restart_at = None;
            let started = match (slot.part.make)() {
                Ok(made) => slot.start(made, &self.exporter_shared).await,
                Err(e) => Err(e.to_string()),
            };
            if let Err(reason) = started {
                error!("{reason}");
                slot.restart_at = Some(now + slot.backoff.failed(now));
            }
        }
    }

    /// Stops the sources and empties each stage into the next, then tells how the run ended.
    pub async fn drain(mut self) -> Outcome {
        let limit = self.options.shutdown_timeout;
        let deadline = Instant::now() + limit;
        while let Some(event) = self.deferred.pop_front().or_else(|| self.events.try_recv().ok()) {
            self.handle(event);
        }
        // From the very beginning: one that waits for its receiver holds up a replayed stream.
        for slot in self.exporters.values() {
            slot.close(deadline);
        }
        for slot in &self.sources {
            if let State::Running(incarnation) = &slot.state {
                incarnation.stop.fire();
                // One that still waits to be let in must not wait for ever.
                incarnation.gate.open();
            }
        }
        let exporters = &mut self.exporters;
        let stages = exporters.iter().map(|(id, slot)| (id.clone(), slot.stage.clone()));
        let gone = self.leaving.iter().map(|leaving| (leaving.id.clone(), leaving.stage.clone()));
        let stages: Vec<_> = stages.chain(gone).collect();
        let backstop = deadline + std::time::Duration::from_secs(1);
        let in_time = tokio::time::timeout_at(backstop.into(), async {
            while self.sources.iter().any(|s| matches!(s.state, State::Running(_))) {
                match self.next_event().await {
                    Some(event) => self.drained(event),
                    None => break,
                }
            }
            // A source that does not end must not keep the chain from ending.
            let _ = self.chain.send(Message::Stop).await;
            let _ = (&mut self.chain_done).await;
            let mut draining = tokio::task::JoinSet::new();
            for (_, slot) in std::mem::take(&mut self.exporters) {
                draining.spawn(slot.drain(self.exporter_shared.clone(), deadline));
            }
            while draining.join_next().await.is_some() {}
            for leaving in std::mem::take(&mut self.leaving) {
                let _ = leaving.task.await;
            }
        })
        .await;
        if in_time.is_err() {
            warn!(timeout = ?limit, "not everything drained within service::shutdown_timeout; the rest is lost");
            for (id, stage) in stages {
                self.exporter_shared.abandon(&id, &stage);
            }
        }
        while let Ok(event) = self.events.try_recv() {
            self.drained(event);
        }
        self.outcome.unwrap_or(Outcome::Done)
    }

    async fn next_event(&mut self) -> Option<Event> {
        match self.deferred.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// An event while draining: nothing is started again.
    fn drained(&mut self, event: Event) {
        match event {
            Event::SourceEnded { number, result, .. } => {
                if let Some(slot) = self.sources.iter_mut().find(|s| s.number == number) {
                    slot.state = State::Ended;
                    if let Err(e) = result {
                        let reason = format!("source `{}`: {}", slot.part.id, with_causes(&e));
                        self.fail(reason);
                    }
                }
            }
            Event::ReaderGone => {
                self.outcome.get_or_insert(Outcome::ReaderGone);
            }
            Event::ExporterFailed { id, reason, .. } => {
                self.fail(format!("exporter `{id}`: {reason}"));
            }
            Event::ChainEnded(Err(reason)) => self.fail(reason),
            // Draining a queue starts its exporter once more where that is needed.
            Event::ExporterPanicked { .. } | Event::ChainEnded(Ok(())) => {}
        }
    }

    /// Stops the running incarnation of a source and waits until it has ended. What it still sends
    /// goes through the chain as it is. False where it does not end: it is then left behind.
    pub(super) async fn stop_source(&mut self, number: usize) -> bool {
        let Some(slot) = self.sources.iter().find(|s| s.number == number) else { return true };
        let State::Running(incarnation) = &slot.state else { return true };
        let (generation, gate) = (incarnation.generation, incarnation.gate.clone());
        incarnation.stop.fire();
        gate.turn_away();
        let is_end = |event: &Event| {
            matches!(event, Event::SourceEnded { number: n, generation: g, .. }
                if *n == number && *g == generation)
        };
        if let Some(at) = self.deferred.iter().position(is_end) {
            self.deferred.remove(at);
            return true;
        }
        let ended = timeout(STOP_TIMEOUT, async {
            loop {
                match self.events.recv().await {
                    Some(event) if is_end(&event) => return,
                    Some(other) => self.deferred.push_back(other),
                    None => return,
                }
            }
        })
        .await;
        gate.shut();
        ended.is_ok()
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// An error with its causes behind it.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        text.push_str(": ");
        text.push_str(&c.to_string());
        cause = c.source();
    }
    text
}
