//! Exchanging sources in a running graph.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tracing::warn;

use super::{
    Event, Graph, Part, Runner,
    apply::{Applied, Built, Undo, build},
    gate::Gate,
    source::{self, Incarnation, SourceSlot, State},
    supervise::with_causes,
};
use crate::source::{Source, SourceError};

/// A source that neither fails nor sends anything for so long counts as started.
const SETTLE: Duration = Duration::from_secs(2);

impl Runner {
    /// Stops what is gone or different and starts what is new, its batches held back. The gates of
    /// what was started.
    pub(super) async fn swap_sources(
        &mut self,
        graph: &Graph,
        numbers: &BTreeMap<String, usize>,
        sources: Vec<Built<dyn Source>>,
        applied: &mut Applied,
        undo: &mut Undo,
    ) -> Result<Vec<Arc<Gate>>, String> {
        let changed: Vec<&String> = sources.iter().map(|(part, _)| &part.id).collect();
        let leaving: Vec<usize> = self
            .sources
            .iter()
            .filter(|s| {
                changed.contains(&&s.part.id) || !graph.sources.iter().any(|p| p.id == s.part.id)
            })
            .map(|s| s.number)
            .collect();
        if !leaving.is_empty() {
            for (part, _) in &sources {
                self.try_out(part).await?;
            }
        }
        for number in leaving {
            if !self.stop_source(number).await {
                warn!("a source does not stop; its thread is left behind");
            }
            if let Some(at) = self.sources.iter().position(|s| s.number == number) {
                let slot = self.sources.remove(at);
                if !changed.contains(&&slot.part.id) {
                    applied.stopped.push(slot.part.id.clone());
                }
                undo.sources.push((number, slot.part));
            }
        }
        let mut fresh = Vec::new();
        for (part, made) in sources {
            let number = numbers[&part.id];
            applied.started.push(part.id.clone());
            undo.fresh.push(number);
            self.start_source(part, number, made, Gate::held())?;
            fresh.push(number);
        }
        self.settle(&fresh).await.map_err(|e| e.reason)?;
        let gates = self.sources.iter().filter(|s| fresh.contains(&s.number));
        Ok(gates
            .filter_map(|s| match &s.state {
                State::Running(Incarnation { gate, .. }) => Some(gate.clone()),
                _ => None,
            })
            .collect())
    }

    /// Runs a new source beside the old ones for a moment, its batches going nowhere: one that
    /// this host or these rights do not allow is found out before anything was stopped. Other
    /// failures do not count here, since the old one may hold what the new one needs.
    async fn try_out(&mut self, part: &Part<dyn Source>) -> Result<(), String> {
        let (part, made) = build(part, "source")?;
        self.next_number += 1;
        let number = self.next_number;
        self.start_source(part, number, made, Gate::held())?;
        let result = self.settle(&[number]).await;
        self.stop_source(number).await;
        self.sources.retain(|s| s.number != number);
        match result {
            Err(Unsettled { reason, unavailable: true }) => Err(reason),
            _ => Ok(()),
        }
    }

    pub(super) fn start_source(
        &mut self,
        part: Part<dyn Source>,
        number: usize,
        made: Box<dyn Source>,
        gate: Gate,
    ) -> Result<(), String> {
        self.next_generation += 1;
        let generation = self.next_generation;
        let incarnation =
            source::start(made, &part.id, number, generation, gate, &self.source_shared)?;
        let state = State::Running(incarnation);
        self.sources.push(SourceSlot { part, number, state, backoff: Default::default() });
        Ok(())
    }

    /// Waits until each of these has a first batch to send, or has been quiet for a while; the
    /// reason of one that failed.
    async fn settle(&mut self, numbers: &[usize]) -> Result<(), Unsettled> {
        let deadline = tokio::time::Instant::now() + SETTLE;
        for &number in numbers {
            let Some(slot) = self.sources.iter().find(|s| s.number == number) else { continue };
            let State::Running(Incarnation { gate, generation, .. }) = &slot.state else {
                continue;
            };
            let (gate, generation, id) = (gate.clone(), *generation, slot.part.id.clone());
            loop {
                tokio::select! {
                    () = gate.wait_arrived() => break,
                    () = tokio::time::sleep_until(deadline) => break,
                    event = self.events.recv() => match event {
                        Some(Event::SourceEnded { number: n, generation: g, result: Err(e) })
                            if n == number && g == generation =>
                        {
                            self.ended(number);
                            return Err(Unsettled::new(&id, &e));
                        }
                        Some(other) => {
                            let ended = matches!(
                                other,
                                Event::SourceEnded { number: n, generation: g, .. }
                                    if n == number && g == generation
                            );
                            self.deferred.push_back(other);
                            if ended {
                                break;
                            }
                        }
                        None => break,
                    }
                }
            }
        }
        // One that failed while another was waited for.
        let failed = self.deferred.iter().find_map(|e| match e {
            Event::SourceEnded { number, result: Err(e), .. } if numbers.contains(number) => {
                let slot = self.sources.iter().find(|s| s.number == *number)?;
                Some(Unsettled::new(&slot.part.id, e))
            }
            _ => None,
        });
        failed.map_or(Ok(()), Err)
    }

    fn ended(&mut self, number: usize) {
        if let Some(slot) = self.sources.iter_mut().find(|s| s.number == number) {
            slot.state = State::Ended;
        }
    }
}

/// Why a source did not come up.
struct Unsettled {
    reason: String,
    /// Starting it again would not help.
    unavailable: bool,
}

impl Unsettled {
    fn new(id: &str, error: &SourceError) -> Self {
        Self {
            reason: format!("source `{id}`: {}", with_causes(error)),
            unavailable: matches!(error, SourceError::Unavailable { .. }),
        }
    }
}
