//! Pipelines: what they refer to, what nobody refers to, and whether the kinds of batches fit.

use std::collections::{BTreeMap, BTreeSet};

use wattpipe_pipeline::{
    chain::{self, Step},
    exporter::Exporter,
    identity::attr,
    processor::Processor,
    source::Source,
};

use super::{
    diagnostic::Diagnostic,
    load::{Components, Loader},
    model::{Pipeline, Service},
};

/// Sources that measure the host they run on, all of it.
const LIVE: [&str; 2] = ["ebpf", "procfs"];
/// Exporters that add windows up, whichever pipeline they come from.
const SUMMING: [&str; 3] = ["prometheus", "otlp_grpc", "otlp_http"];
/// Attributes that rows have from the start; `attribution` adds the others.
const FROM_THE_START: [&str; 3] =
    [attr::PROCESS_PID, attr::PROCESS_CREATION_TIME, attr::PROCESS_EXECUTABLE_NAME];

/// Ids that the file defines, valid or not: a broken component is reported once, not again at
/// each reference. `None` for a section that is no map.
pub(super) struct Defined {
    pub(super) sources: Option<BTreeSet<String>>,
    pub(super) processors: Option<BTreeSet<String>>,
    pub(super) exporters: Option<BTreeSet<String>>,
    pub(super) extensions: Option<BTreeSet<String>>,
}

/// Reports undefined references, empty pipelines, repeated ids, and (as warnings) what is unused.
/// What `wrong` has of `service` is reported already, and may be just what is missing here.
pub(super) fn check_references(
    loader: &mut Loader<'_>,
    service: &Service,
    wrong: &[Vec<String>],
    defined: &Defined,
) {
    let is_whole =
        |path: &[String]| !wrong.iter().any(|w| w.starts_with(path) || path.starts_with(w));
    let mut used: [BTreeSet<&str>; 4] = Default::default();
    let root = |section: &str| vec!["service".to_owned(), section.to_owned()];
    if service.pipelines.is_empty() && is_whole(&root("pipelines")) {
        if loader.misplaced.contains(&("service".to_owned(), "pipelines".to_owned())) {
            return;
        }
        return loader.error(
            &root("pipelines"),
            "there is no pipeline: write `service: { pipelines: { NAME: { sources: [...], exporters: [...] } } }`",
        );
    }
    for (name, pipeline) in &service.pipelines {
        let at = |list: &str| [&root("pipelines")[..], &[name.clone(), list.to_owned()]].concat();
        let lists = [
            ("sources", &pipeline.sources, &defined.sources, true),
            ("processors", &pipeline.processors, &defined.processors, false),
            ("exporters", &pipeline.exporters, &defined.exporters, true),
        ];
        for (kind, (section, ids, known, needed)) in lists.into_iter().enumerate() {
            if needed && ids.is_empty() && is_whole(&at(section)[..3]) {
                let what = section.trim_end_matches('s');
                loader.error(&at(section), format!("pipeline `{name}` has no {what}"));
            }
            references(loader, &at(section), section, ids, known);
            used[kind].extend(ids.iter().map(String::as_str));
        }
    }
    references(loader, &root("extensions"), "extensions", &service.extensions, &defined.extensions);
    used[3].extend(service.extensions.iter().map(String::as_str));
    if !is_whole(&root("pipelines")) || !is_whole(&root("extensions")) {
        return;
    }
    let sections = [
        ("sources", &defined.sources),
        ("processors", &defined.processors),
        ("exporters", &defined.exporters),
        ("extensions", &defined.extensions),
    ];
    for (kind, (section, ids)) in sections.into_iter().enumerate() {
        let whose = if kind == 3 {
            "`service::extensions` does not name it"
        } else {
            "no pipeline names it"
        };
        for id in ids.iter().flatten().filter(|id| !used[kind].contains(id.as_str())) {
            let what = section.trim_end_matches('s');
            loader.warn(
                &[section.to_owned(), id.clone()],
                format!("{what} `{id}` is not used: {whose}"),
            );
        }
    }
}

fn references(
    loader: &mut Loader<'_>,
    path: &[String],
    section: &str,
    ids: &[String],
    known: &Option<BTreeSet<String>>,
) {
    let Some(known) = known else { return };
    let what = section.trim_end_matches('s');
    for (i, id) in ids.iter().enumerate() {
        let at = [path, &[i.to_string()]].concat();
        let span = loader.layers.locate(&at);
        if ids[..i].contains(id) {
            loader.error(&at, format!("{what} `{id}` is named twice"));
        } else if !known.contains(id)
            && !loader.misplaced.contains(&(section.to_owned(), id.clone()))
        {
            let message = format!("{what} `{id}` is not defined under `{section}`");
            let mut diagnostic =
                Diagnostic::error(span, &at, message).allow(known.iter().cloned()).for_name(id);
            if diagnostic.nearest().is_none() && loader.is_type(section, id) {
                let kind = id.split('/').next().unwrap_or(id);
                let hint = format!("; `{kind}` exists: add `{id}:` under `{section}`");
                diagnostic.message.push_str(&hint);
            }
            loader.found.push(diagnostic);
        }
    }
}

/// Reports components that get a kind of batch they cannot take. A broken component still has the
/// kinds of its type; from one of no known type on, the next one's are taken as given.
pub(super) fn check_kinds(
    loader: &mut Loader<'_>,
    service: &Service,
    exporters: &Components<dyn Exporter>,
) {
    let registry = loader.registry;
    for (name, pipeline) in &service.pipelines {
        let from = pipeline
            .sources
            .iter()
            .filter_map(|id| Some((id.as_str(), registry.source(kind_of(id))?.emits?)));
        let step = |id| {
            let entry = registry.processor(kind_of(id))?;
            Some(Step {
                id,
                takes: *entry.takes.first()?,
                emits: entry.emits?,
                passes: entry.passes,
                needs_slices: entry.needs_slices,
                merges_rows: entry.merges_rows,
            })
        };
        let to: Vec<_> = pipeline
            .exporters
            .iter()
            .filter_map(|id| Some((id.as_str(), exporters.get(id)?.factory.takes())))
            .collect();
        let mut from: Vec<_> = from.collect();
        let mut steps: Vec<Step<'_>> = Vec::new();
        let mut misfits = Vec::new();
        for id in &pipeline.processors {
            match step(id.as_str()) {
                Some(step) if from.is_empty() && steps.is_empty() => {
                    from.push((step.id, step.emits))
                }
                Some(step) => steps.push(step),
                None => {
                    misfits.extend(chain::check(&from, &steps, &[]));
                    from.clear();
                    steps.clear();
                }
            }
        }
        misfits.extend(chain::check(&from, &steps, &to));
        for misfit in misfits {
            let find = |list: &str, ids: &[String]| {
                let i = ids.iter().position(|id| *id == misfit.id)?;
                Some(place(name, list, Some(i)))
            };
            let path = find("processors", &pipeline.processors)
                .or_else(|| find("exporters", &pipeline.exporters))
                .unwrap_or_default();
            loader.error(&path, misfit.message);
        }
    }
}

/// The type in an id.
fn kind_of(id: &str) -> &str {
    id.split('/').next().unwrap_or(id)
}

/// Warns of what runs, but comes to something else than is meant.
pub(super) fn check_sense(
    loader: &mut Loader<'_>,
    service: &Service,
    sources: &Components<dyn Source>,
    processors: &Components<dyn Processor>,
    exporters: &Components<dyn Exporter>,
) {
    // By exporters that add up: the pipelines that tell them of this host.
    let mut told: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, pipeline) in &service.pipelines {
        let is_live = |id: &&String| sources.get(*id).is_some_and(|s| LIVE.contains(&s.entry.name));
        let live: BTreeSet<&str> =
            pipeline.sources.iter().filter(is_live).map(String::as_str).collect();
        if live.len() > 1 {
            let (ids, times) = each(live.iter().copied());
            let message = format!(
                "{ids} measure this host: CPU time and energy of pipeline `{name}` add up {times}; \
                 give each source a pipeline and exporters of its own"
            );
            loader.warn(&place(name, "sources", None), message);
        }
        for id in pipeline.exporters.iter().filter(|_| !live.is_empty()) {
            if exporters.get(id).is_some_and(|e| SUMMING.contains(&e.entry.name)) {
                told.entry(id).or_default().push(name);
            }
        }
        check_order(loader, name, pipeline, processors);
    }
    for (id, names) in told {
        if let [.., last] = *names
            && names.len() > 1
        {
            let at = service.pipelines[last].exporters.iter().position(|e| e == id);
            let (names, times) = each(names.into_iter());
            let kind = id.split('/').next().unwrap_or(id);
            let message = format!(
                "pipelines {names} tell `{id}` of this host: energy and CPU time add up {times}; \
                 give each pipeline an exporter of its own, such as `{kind}/{last}`"
            );
            loader.warn(&place(last, "exporters", at), message);
        }
    }
}

/// Names for a message, and how often they say a thing.
fn each<'a>(names: impl Iterator<Item = &'a str>) -> (String, String) {
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    match &*names {
        [a, b] => (format!("{a} and {b} both"), "twice".to_owned()),
        names => (format!("{} all", names.join(", ")), format!("{} times", names.len())),
    }
}

/// Warns of processors that use attributes before they are known.
fn check_order(
    loader: &mut Loader<'_>,
    name: &str,
    pipeline: &Pipeline,
    processors: &Components<dyn Processor>,
) {
    let is = |id: &String, kind| processors.get(id).is_some_and(|p| p.entry.name == kind);
    let ids = &pipeline.processors;
    let Some(end) = ids.iter().rposition(|id| is(id, "attribution")) else { return };
    for (i, id) in ids[..end].iter().enumerate() {
        let factory = processors.get(id).map(|p| &p.factory);
        let mut named = factory.iter().flat_map(|f| f.attributes()).map(|(_, name)| name);
        let why = if is(id, "power_model") {
            "it learns per container and program, and there it knows no container".to_owned()
        } else if let Some(late) =
            named.find(|n| attr::ALL.contains(n) && !FROM_THE_START.contains(n))
        {
            format!("no row has `{late}` there")
        } else {
            continue;
        };
        let message = format!("`{id}` stands before `{}`: {why}", ids[end]);
        loader.warn(&place(name, "processors", Some(i)), message);
    }
}

/// Keys of a pipeline's list, or of one id in it.
fn place(name: &str, list: &str, at: Option<usize>) -> Vec<String> {
    let keys = ["service", "pipelines", name, list].into_iter().map(str::to_owned);
    keys.chain(at.map(|i| i.to_string())).collect()
}
