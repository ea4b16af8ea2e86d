//! From a valid configuration to what runs.

use std::sync::Arc;

use wattpipe_pipeline::{
    identity::AttributeSet,
    registry::BuildContext,
    runner::{Graph, NamedExporter, NamedProcessor, NamedSource, Pipeline},
    source::SourceComponent,
    telemetry::Telemetry,
};
use wattpipe_source::replay::Replay;

use crate::config::{Components, Loaded};

/// What components are built with, their ids aside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) resource: Arc<AttributeSet>,
    pub(crate) telemetry: Telemetry,
}

/// Builds everything that a pipeline names, or tells everything that could not be built.
pub(crate) fn graph(loaded: &Loaded, around: &Surroundings) -> Result<Graph, Vec<String>> {
    let mut failed = Vec::new();
    let context = |id: &str, replay: bool| BuildContext {
        id: id.to_owned(),
        replay,
        host: loaded.host.clone().into(),
        resource: around.resource.clone(),
        telemetry: around.telemetry.clone(),
    };
    let mut graph = Graph { sources: Vec::new(), pipelines: Vec::new(), exporters: Vec::new() };
    let mut source_ids: Vec<&str> = Vec::new();
    let mut exporter_ids: Vec<&str> = Vec::new();
    for (name, pipeline) in &loaded.service.pipelines {
        let replay = pipeline.sources.iter().all(|id| id.split('/').next() == Some(Replay::NAME));
        let sources = indices(&pipeline.sources, &mut source_ids, |id| {
            let source = build(&loaded.sources, "source", id, &context(id, replay), &mut failed);
            graph.sources.extend(source.map(|source| NamedSource { id: id.to_owned(), source }));
        });
        let mut processors = Vec::new();
        for id in &pipeline.processors {
            let built =
                build(&loaded.processors, "processor", id, &context(id, replay), &mut failed);
            processors.extend(built.map(|processor| NamedProcessor { id: id.clone(), processor }));
        }
        let exporters = indices(&pipeline.exporters, &mut exporter_ids, |id| {
            let exporter =
                build(&loaded.exporters, "exporter", id, &context(id, replay), &mut failed);
            graph
                .exporters
                .extend(exporter.map(|exporter| NamedExporter { id: id.to_owned(), exporter }));
        });
        graph.pipelines.push(Pipeline { id: name.clone(), sources, processors, exporters });
    }
    if failed.is_empty() { Ok(graph) } else { Err(failed) }
}

/// Numbers of `ids`, each new one built once.
fn indices<'a>(
    ids: &'a [String],
    known: &mut Vec<&'a str>,
    mut build: impl FnMut(&str),
) -> Vec<usize> {
    ids.iter()
        .map(|id| match known.iter().position(|k| k == id) {
            Some(i) => i,
            None => {
                build(id);
                known.push(id);
                known.len() - 1
            }
        })
        .collect()
}

/// Builds one component; a failure is noted. One that is not defined cannot get here: the check
/// of references has refused it.
fn build<T: ?Sized + 'static>(
    components: &Components<T>,
    what: &str,
    id: &str,
    context: &BuildContext,
    failed: &mut Vec<String>,
) -> Option<Box<T>> {
    components
        .get(id)?
        .factory
        .build(context)
        .map_err(|e| failed.push(format!("{what} `{id}`: {e}")))
        .ok()
}
