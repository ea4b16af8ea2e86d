//! The chain's thread: all processors of all pipelines, fed by the sources' queue.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tokio::sync::{mpsc, oneshot};
use tracing::error;

use super::{
    Governor, Message, Part,
    exporter::Outlet,
    progress::Stage,
    shed::{Shedder, shed},
};
use crate::{
    batch::Batch,
    processor::{Processor, ProcessorError},
    telemetry::{Counter, Telemetry},
};

/// A processor that keeps panicking is given up after so many batches in a row.
const MAX_PANICS: u32 = 10;

/// How the chain is to look from now on.
pub(super) struct Layout {
    pub(super) pipelines: Vec<PipelineLayout>,
    /// Outlets that the chain does not have yet.
    pub(super) new_outlets: Vec<Outlet>,
}

/// One pipeline of a [`Layout`].
pub(super) struct PipelineLayout {
    pub(super) id: String,
    /// Numbers of its sources.
    pub(super) sources: Vec<usize>,
    pub(super) processors: Vec<StepLayout>,
    /// Ids of its exporters.
    pub(super) exporters: Vec<String>,
}

/// One processor of a [`PipelineLayout`].
pub(super) struct StepLayout {
    pub(super) part: Part<dyn Processor>,
    /// Built where the pipeline does not have the same already.
    pub(super) fresh: Option<Box<dyn Processor>>,
}

/// A request to change the chain, answered once it is done or refused.
pub(crate) struct Change {
    pub(super) layout: Layout,
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

struct Step {
    part: Part<dyn Processor>,
    name: Arc<str>,
    processor: Box<dyn Processor>,
    panics: u32,
    incoming: Counter,
    outgoing: Counter,
    failed: Counter,
}

impl Step {
    fn new(
        part: Part<dyn Processor>,
        processor: Box<dyn Processor>,
        pipeline: &str,
        telemetry: &Telemetry,
    ) -> Self {
        let labels = [("processor", part.id.as_str()), ("pipeline", pipeline)];
        let counter = |name, help| telemetry.counter(name, help, &labels);
        Self {
            incoming: counter(
                "wattpipe_processor_incoming_items_total",
                "Switches or rows that a processor was given.",
            ),
            outgoing: counter(
                "wattpipe_processor_outgoing_items_total",
                "Switches or rows that a processor passed on.",
            ),
            failed: counter(
                "wattpipe_processor_failed_items_total",
                "Switches or rows that a processor could not process.",
            ),
            name: part.id.as_str().into(),
            part,
            processor,
            panics: 0,
        }
    }

    /// Runs `call` and survives its panic: the processor is then built anew, its state is lost.
    fn guarded(
        &mut self,
        call: impl FnOnce(&mut dyn Processor) -> Result<Option<Batch>, ProcessorError>,
    ) -> Result<Option<Batch>, ProcessorError> {
        match catch_unwind(AssertUnwindSafe(|| call(self.processor.as_mut()))) {
            Ok(result) => {
                self.panics = 0;
                result
            }
            Err(_) => {
                self.panics += 1;
                let fresh = (self.part.make)().map_err(|e| ProcessorError(e.to_string()))?;
                self.processor = fresh;
                self.processor.start()?;
                Err(ProcessorError("it panicked and was built anew".to_owned()))
            }
        }
    }
}

struct Pipeline {
    id: String,
    sources: Vec<usize>,
    steps: Vec<Step>,
    exporters: Vec<String>,
}

/// The state of the chain's thread.
pub(super) struct Chain {
    pipelines: Vec<Pipeline>,
    outlets: BTreeMap<String, Outlet>,
    telemetry: Telemetry,
    stage: Arc<Stage>,
    governor: Option<Arc<dyn Governor>>,
    shedder: Shedder,
}

impl Chain {
    pub(super) fn new(
        telemetry: Telemetry,
        stage: Arc<Stage>,
        governor: Option<Arc<dyn Governor>>,
    ) -> Self {
        let shedder = Shedder::new(&telemetry);
        Self {
            pipelines: Vec::new(),
            outlets: BTreeMap::new(),
            telemetry,
            stage,
            governor,
            shedder,
        }
    }

    /// Runs until all senders are gone or a `Stop` comes. The reason, where it gave up.
    pub(super) fn run(mut self, mut rx: mpsc::Receiver<Message>) -> Result<(), String> {
        while let Some(message) = rx.blocking_recv() {
            match message {
                Message::Batch { source, batch } => {
                    self.stage.begin();
                    self.take(source, &batch)?;
                    self.stage.done();
                }
                Message::Change(change) => {
                    let Change { layout, answer } = *change;
                    let _ = answer.send(self.change(layout));
                }
                Message::Stop => break,
            }
        }
        for at in 0..self.pipelines.len() {
            for step in 0..self.pipelines[at].steps.len() {
                self.flush(at, step);
            }
        }
        Ok(())
    }

    fn take(&mut self, source: usize, batch: &Batch) -> Result<(), String> {
        for at in 0..self.pipelines.len() {
            if self.pipelines[at].sources.contains(&source) {
                let out = self.process(at, 0, batch.clone());
                self.fan_out(at, out);
                let worn = self.pipelines[at].steps.iter().find(|s| s.panics >= MAX_PANICS);
                if let Some(step) = worn {
                    return Err(format!(
                        "processor `{}` panicked on {MAX_PANICS} batches in a row",
                        step.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Takes `batch` through the processors of a pipeline from `first` on.
    fn process(&mut self, pipeline: usize, first: usize, batch: Batch) -> Option<Batch> {
        let mut batch = batch;
        for step in &mut self.pipelines[pipeline].steps[first..] {
            let items = batch.items();
            step.incoming.add(items);
            self.stage.at(&step.name);
            match step.guarded(|p| p.process(batch)) {
                Ok(Some(next)) => {
                    step.outgoing.add(next.items());
                    batch = next;
                }
                Ok(None) => return None,
                Err(e) => {
                    step.failed.add(items);
                    error!(processor = %step.name, "batch dropped: {e}");
                    return None;
                }
            }
        }
        Some(batch)
    }

    /// Empties one processor into those after it.
    fn flush(&mut self, pipeline: usize, at: usize) {
        let step = &mut self.pipelines[pipeline].steps[at];
        self.stage.at(&step.name);
        match step.guarded(|p| p.flush()) {
            Ok(Some(batch)) => {
                step.outgoing.add(batch.items());
                let out = self.process(pipeline, at + 1, batch);
                self.fan_out(pipeline, out);
            }
            Ok(None) => {}
            Err(e) => error!(processor = %step.name, "flush: {e}"),
        }
    }

    fn fan_out(&mut self, pipeline: usize, batch: Option<Batch>) {
        let Some(mut batch) = batch else { return };
        if let (Some(governor), Batch::Usage(usage)) = (&self.governor, &mut batch) {
            let limits = governor.window(&usage.window);
            if let Some(rows) = limits.max_rows {
                shed(usage, rows, &mut self.shedder);
            }
            for id in &self.pipelines[pipeline].exporters {
                if let Some(outlet) = self.outlets.get_mut(id) {
                    outlet.limit(limits.max_waiting);
                }
            }
        }
        for id in &self.pipelines[pipeline].exporters {
            if let Some(outlet) = self.outlets.get_mut(id) {
                outlet.send(batch.clone());
            }
        }
    }

    /// Changes the chain between two batches. What stays the same keeps its state; what goes is
    /// flushed through what stood behind it. On failure nothing has changed.
    fn change(&mut self, layout: Layout) -> Result<(), String> {
        let Layout { mut pipelines, new_outlets } = layout;
        for pipeline in &mut pipelines {
            for step in &mut pipeline.processors {
                if let Some(fresh) = &mut step.fresh {
                    fresh.start().map_err(|e| format!("processor `{}`: {e}", step.part.id))?;
                }
            }
        }
        for at in 0..self.pipelines.len() {
            let next = pipelines.iter().find(|p| p.id == self.pipelines[at].id);
            for step in 0..self.pipelines[at].steps.len() {
                let id = &self.pipelines[at].steps[step].part.id;
                let stays = next.is_some_and(|p| {
                    p.processors.iter().any(|s| s.part.id == *id && s.fresh.is_none())
                });
                if !stays {
                    self.flush(at, step);
                }
            }
        }
        let mut old: BTreeMap<(String, String), Step> = BTreeMap::new();
        for pipeline in self.pipelines.drain(..) {
            for step in pipeline.steps {
                old.insert((pipeline.id.clone(), step.part.id.clone()), step);
            }
        }
        for outlet in new_outlets {
            self.outlets.insert(outlet.id.clone(), outlet);
        }
        for PipelineLayout { id, sources, processors, exporters } in pipelines {
            let steps = processors
                .into_iter()
                .filter_map(|StepLayout { part, fresh }| match fresh {
                    Some(fresh) => Some(Step::new(part, fresh, &id, &self.telemetry)),
                    None => old.remove(&(id.clone(), part.id)),
                })
                .collect();
            self.pipelines.push(Pipeline { id, sources, steps, exporters });
        }
        let used: Vec<&String> = self.pipelines.iter().flat_map(|p| &p.exporters).collect();
        self.outlets.retain(|id, _| used.contains(&id));
        Ok(())
    }
}
