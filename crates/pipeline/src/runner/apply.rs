//! Changing what runs: only what is new or different is started, only what is gone or different
//! is stopped, and a graph that cannot start leaves everything as it was.

use std::{collections::BTreeMap, time::Duration};

use figment::value::Value;
use tokio::sync::oneshot;
use tracing::error;

use super::{
    Graph, Message, Part, Runner,
    chain_thread::{Change, Layout, PipelineLayout, StepLayout},
    exporter::{ExporterSlot, Outlet},
    gate::Gate,
    source::SourceSlot,
};
use crate::{exporter::Exporter, source::Source};

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Components that were started or restarted.
    pub started: Vec<String>,
    /// Components that were stopped for good.
    pub stopped: Vec<String>,
    /// Sources and exporters that go on untouched.
    pub kept: usize,
}

/// What to do again if the change fails half-way.
#[derive(Default)]
pub(super) struct Undo {
    /// Exporters by id, with what ran under the id before.
    exporters: Vec<(String, Option<Part<dyn Exporter>>)>,
    /// Sources by number, with what ran before.
    pub(super) sources: Vec<(usize, Part<dyn Source>)>,
    /// Sources started in vain.
    pub(super) fresh: Vec<usize>,
}

impl Runner {
    /// Makes `graph` what runs. On failure the reason, and what ran before runs on.
    pub async fn apply(&mut self, graph: Graph) -> Result<Applied, String> {
        let mut applied = Applied::default();
        // Build first: most of what can go wrong goes wrong here, with nothing touched.
        let exporters = self.new_exporters(&graph)?;
        let sources = self.new_sources(&graph)?;
        let (mut layout, processors, fresh_processors) = self.layout(&graph)?;
        applied.started.extend(fresh_processors);
        applied.kept =
            graph.exporters.len() + graph.sources.len() - exporters.len() - sources.len();

        let initial = self.sources.is_empty();
        let mut undo = Undo::default();
        for (part, made) in exporters {
            applied.started.push(part.id.clone());
            let result = self.start_exporter(part, made, &mut layout.new_outlets, &mut undo).await;
            if let Err(reason) = result {
                return Err(self.undo(undo, reason).await);
            }
        }
        let numbers = self.numbers(&graph);
        let mut held = Vec::new();
        if !initial {
            match self.swap_sources(&graph, &numbers, sources, &mut applied, &mut undo).await {
                Ok(started) => held = started,
                Err(reason) => return Err(self.undo(undo, reason).await),
            }
            self.set_numbers(&graph, &numbers, &mut layout);
            if let Err(reason) = self.change_chain(layout).await {
                return Err(self.undo(undo, reason).await);
            }
        } else {
            self.set_numbers(&graph, &numbers, &mut layout);
            self.change_chain(layout).await?;
            for (part, made) in sources {
                applied.started.push(part.id.clone());
                let number = numbers[&part.id];
                self.start_source(part, number, made, Gate::open_from_start())?;
            }
        }
        for gate in held {
            gate.open();
        }
        self.forget_gone(&graph, &mut applied);
        self.processors = processors;
        Ok(applied)
    }

    fn new_exporters(&self, graph: &Graph) -> Result<Vec<Built<dyn Exporter>>, String> {
        graph
            .exporters
            .iter()
            .filter(|p| self.exporters.get(&p.id).is_none_or(|s| s.part.revision != p.revision))
            .map(|p| build(p, "exporter"))
            .collect()
    }

    fn new_sources(&self, graph: &Graph) -> Result<Vec<Built<dyn Source>>, String> {
        graph
            .sources
            .iter()
            .filter(|p| {
                let same = |s: &&SourceSlot| s.part.id == p.id && s.part.revision == p.revision;
                !self.sources.iter().any(|s| same(&s))
            })
            .map(|p| build(p, "source"))
            .collect()
    }

    /// The chain's new layout, the revisions in it, and the ids of processors built anew.
    #[expect(clippy::type_complexity, reason = "three results of one walk, used once")]
    fn layout(
        &self,
        graph: &Graph,
    ) -> Result<(Layout, BTreeMap<(String, String), Value>, Vec<String>), String> {
        let mut revisions = BTreeMap::new();
        let mut started = Vec::new();
        let mut pipelines = Vec::new();
        for pipeline in &graph.pipelines {
            let mut processors = Vec::new();
            for part in &pipeline.processors {
                let key = (pipeline.id.clone(), part.id.clone());
                let fresh = match self.processors.get(&key) == Some(&part.revision) {
                    true => None,
                    false => {
                        started.push(part.id.clone());
                        Some(build(part, "processor")?.1)
                    }
                };
                revisions.insert(key, part.revision.clone());
                processors.push(StepLayout { part: part.clone(), fresh });
            }
            pipelines.push(PipelineLayout {
                id: pipeline.id.clone(),
                sources: Vec::new(),
                processors,
                exporters: pipeline.exporters.clone(),
            });
        }
        Ok((Layout { pipelines, new_outlets: Vec::new() }, revisions, started))
    }

    /// Numbers of the graph's sources: what is there keeps its number.
    fn numbers(&mut self, graph: &Graph) -> BTreeMap<String, usize> {
        graph
            .sources
            .iter()
            .map(|part| {
                let known = self.sources.iter().find(|s| s.part.id == part.id).map(|s| s.number);
                let number = known.unwrap_or_else(|| {
                    self.next_number += 1;
                    self.next_number
                });
                (part.id.clone(), number)
            })
            .collect()
    }

    fn set_numbers(&self, graph: &Graph, numbers: &BTreeMap<String, usize>, layout: &mut Layout) {
        for (to, from) in layout.pipelines.iter_mut().zip(&graph.pipelines) {
            to.sources = from.sources.iter().filter_map(|id| numbers.get(id).copied()).collect();
        }
    }

    async fn start_exporter(
        &mut self,
        part: Part<dyn Exporter>,
        made: Box<dyn Exporter>,
        outlets: &mut Vec<Outlet>,
        undo: &mut Undo,
    ) -> Result<(), String> {
        let id = part.id.clone();
        let limit = self.options.shutdown_timeout;
        match self.exporters.get_mut(&id) {
            // The old one goes first: two cannot have the same file or port.
            Some(slot) => {
                slot.stop(limit).await;
                undo.exporters.push((id, Some(std::mem::replace(&mut slot.part, part))));
                slot.start(made, &self.exporter_shared).await
            }
            None => {
                // So does one that left just now under the same id.
                while let Some(at) = self.leaving.iter().position(|leaving| leaving.id == id) {
                    let _ = self.leaving.swap_remove(at).task.await;
                }
                let mut slot = ExporterSlot::new(part, &self.progress);
                let result = slot.start(made, &self.exporter_shared).await;
                if result.is_ok() {
                    outlets.push(slot.outlet(&self.exporter_shared));
                    self.exporters.insert(id.clone(), slot);
                    undo.exporters.push((id, None));
                }
                result
            }
        }
    }

    async fn change_chain(&mut self, layout: Layout) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let change = Message::Change(Box::new(Change { layout, answer }));
        let gone = || "the chain has ended".to_owned();
        self.chain.send(change).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    fn forget_gone(&mut self, graph: &Graph, applied: &mut Applied) {
        let gone: Vec<String> = self
            .exporters
            .keys()
            .filter(|id| !graph.exporters.iter().any(|p| p.id == **id))
            .cloned()
            .collect();
        for id in gone {
            if let Some(slot) = self.exporters.remove(&id) {
                self.progress.forget(&id);
                self.leaving.retain(|leaving| !leaving.task.is_finished());
                self.leaving.push(slot.leave(&self.exporter_shared));
                applied.stopped.push(id);
            }
        }
    }

    /// Puts everything back that a failed change has touched.
    async fn undo(&mut self, undo: Undo, reason: String) -> String {
        let limit = self.options.shutdown_timeout;
        for number in undo.fresh {
            self.stop_source(number).await;
            self.sources.retain(|s| s.number != number);
        }
        for (number, part) in undo.sources {
            let id = part.id.clone();
            let again = build(&part, "source").and_then(|(part, made)| {
                self.start_source(part, number, made, Gate::open_from_start())
            });
            if let Err(e) = again {
                error!(source = %id, "cannot be put back: {e}");
            }
        }
        for (id, old) in undo.exporters.into_iter().rev() {
            let Some(mut slot) = self.exporters.remove(&id) else { continue };
            slot.stop(limit).await;
            let Some(old) = old else { continue };
            let made = build(&old, "exporter");
            slot.part = old;
            let again = match made {
                Ok((_, made)) => slot.start(made, &self.exporter_shared).await,
                Err(e) => Err(e),
            };
            if let Err(e) = again {
                error!("cannot be put back, it is tried again: {e}");
                slot.restart_at = Some(std::time::Instant::now() + Duration::from_secs(1));
            }
            self.exporters.insert(id, slot);
        }
        reason
    }
}

/// A part with the component built from it.
pub(super) type Built<T> = (Part<T>, Box<T>);

pub(super) fn build<T: ?Sized>(part: &Part<T>, what: &str) -> Result<Built<T>, String> {
    let made = (part.make)().map_err(|e| format!("{what} `{}`: {e}", part.id))?;
    Ok((part.clone(), made))
}
