//! From a valid configuration to what runs.

use std::{collections::BTreeSet, sync::Arc};

use figment::value::{Tag, Value};
use wattpipe_pipeline::{
    identity::AttributeSet,
    privileges::Privileges,
    registry::{BuildContext, HostRoots},
    runner::{Graph, Part, Pipeline},
    telemetry::Telemetry,
};

use crate::config::{Components, Loaded};

/// The source whose processes are not this host's.
const REPLAY: &str = "replay";

/// What components are built with, their ids aside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) resource: Arc<AttributeSet>,
    pub(crate) telemetry: Telemetry,
    pub(crate) privileges: Privileges,
}

/// Everything that a pipeline names.
pub(crate) fn graph(loaded: &Loaded, around: &Surroundings) -> Graph {
    let maker = Maker { host: loaded.host.clone().into(), around };
    let mut graph = Graph::default();
    let mut known: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (name, pipeline) in &loaded.service.pipelines {
        let replay = pipeline
            .sources
            .iter()
            .all(|id| loaded.sources.get(id).is_some_and(|s| s.entry.name == REPLAY));
        let new = |kind, ids: &'_ [String]| -> Vec<String> {
            ids.iter().filter(|id| !known.contains(&(kind, id.as_str()))).cloned().collect()
        };
        for id in new("source", &pipeline.sources) {
            graph.sources.extend(maker.part(&loaded.sources, &id, false));
        }
        for id in new("exporter", &pipeline.exporters) {
            graph.exporters.extend(maker.part(&loaded.exporters, &id, false));
        }
        known.extend(pipeline.sources.iter().map(|id| ("source", id.as_str())));
        known.extend(pipeline.exporters.iter().map(|id| ("exporter", id.as_str())));
        graph.pipelines.push(Pipeline {
            id: name.clone(),
            sources: pipeline.sources.clone(),
            processors: pipeline
                .processors
                .iter()
                .filter_map(|id| maker.part(&loaded.processors, id, replay))
                .collect(),
            exporters: pipeline.exporters.clone(),
        });
    }
    graph
}

/// Builds everything once and throws it away; what could not be built.
pub(crate) fn build_all(graph: &Graph) -> Vec<String> {
    fn check<T: ?Sized>(what: &str, part: &Part<T>) -> Option<String> {
        (part.make)().err().map(|e| format!("{what} `{}`: {e}", part.id))
    }
    let sources = graph.sources.iter().filter_map(|p| check("source", p));
    let processors = graph.pipelines.iter().flat_map(|p| &p.processors);
    let processors = processors.filter_map(|p| check("processor", p));
    let exporters = graph.exporters.iter().filter_map(|p| check("exporter", p));
    sources.chain(processors).chain(exporters).collect()
}

struct Maker<'a> {
    host: HostRoots,
    around: &'a Surroundings,
}

impl Maker<'_> {
    /// One component. None where it is not defined, which the check of references has refused.
    fn part<T: ?Sized + 'static>(
        &self,
        components: &Components<T>,
        id: &str,
        replay: bool,
    ) -> Option<Part<T>> {
        let component = components.get(id)?;
        let factory = component.factory.clone();
        let context = BuildContext {
            id: id.to_owned(),
            host: self.host.clone(),
            resource: self.around.resource.clone(),
            telemetry: self.around.telemetry.clone(),
            replay,
            privileges: self.around.privileges.clone(),
        };
        // All that a component is made from: its type, its settings, and what surrounds it.
        let surroundings = format!("{:?} {:?} {replay}", context.host, context.resource);
        let revision = Value::Array(
            Tag::Default,
            vec![component.entry.name.into(), factory.raw().clone(), surroundings.into()],
        );
        Some(Part { id: id.to_owned(), revision, make: Arc::new(move || factory.build(&context)) })
    }
}
