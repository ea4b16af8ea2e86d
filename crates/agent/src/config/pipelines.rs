//! Pipelines: what they refer to, what nobody refers to, and whether the kinds of batches fit.

use std::collections::BTreeSet;

use wattpipe_pipeline::{
    chain::{self, Step},
    exporter::Exporter,
    processor::Processor,
    source::Source,
};

use super::{
    diagnostic::Diagnostic,
    load::{Components, Loader},
    model::Service,
};

/// Ids that the file defines, valid or not: a broken component is reported once, not again at
/// each reference. `None` for a section that is no map.
pub(super) struct Defined {
    pub(super) sources: Option<BTreeSet<String>>,
    pub(super) processors: Option<BTreeSet<String>>,
    pub(super) exporters: Option<BTreeSet<String>>,
    pub(super) extensions: Option<BTreeSet<String>>,
}

/// Reports undefined references, empty pipelines, repeated ids, and (as warnings) what is unused.
pub(super) fn check_references(loader: &mut Loader<'_>, service: &Service, defined: &Defined) {
    let mut used: [BTreeSet<&str>; 4] = Default::default();
    let root = |section: &str| vec!["service".to_owned(), section.to_owned()];
    if service.pipelines.is_empty() {
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
            if needed && ids.is_empty() {
                let what = section.trim_end_matches('s');
                loader.error(&at(section), format!("pipeline `{name}` has no {what}"));
            }
            references(loader, &at(section), section, ids, known);
            used[kind].extend(ids.iter().map(String::as_str));
        }
    }
    references(loader, &root("extensions"), "extensions", &service.extensions, &defined.extensions);
    used[3].extend(service.extensions.iter().map(String::as_str));
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

/// Reports components that get a kind of batch they cannot take.
pub(super) fn check_kinds(
    loader: &mut Loader<'_>,
    service: &Service,
    sources: &Components<dyn Source>,
    processors: &Components<dyn Processor>,
    exporters: &Components<dyn Exporter>,
) {
    for (name, pipeline) in &service.pipelines {
        let from: Option<Vec<_>> = pipeline
            .sources
            .iter()
            .map(|id| Some((id.as_str(), sources.get(id)?.entry.emits?)))
            .collect();
        let steps: Option<Vec<Step<'_>>> = pipeline
            .processors
            .iter()
            .map(|id| {
                let entry = &processors.get(id)?.entry;
                Some(Step {
                    id,
                    takes: *entry.takes.first()?,
                    emits: entry.emits?,
                    passes: entry.passes,
                    needs_slices: entry.needs_slices,
                    merges_rows: entry.merges_rows,
                })
            })
            .collect();
        let to: Option<Vec<_>> = pipeline
            .exporters
            .iter()
            .map(|id| Some((id.as_str(), exporters.get(id)?.factory.takes())))
            .collect();
        // Something undefined or broken: that is already reported, and what flows is not known.
        let (Some(from), Some(steps), Some(to)) = (from, steps, to) else { continue };
        for misfit in chain::check(&from, &steps, &to) {
            let place = |list: &str, ids: &[String]| {
                let i = ids.iter().position(|id| *id == misfit.id)?;
                let path = ["service", "pipelines", name, list];
                Some(path.iter().map(|s| (*s).to_owned()).chain([i.to_string()]).collect())
            };
            let path: Vec<String> = place("processors", &pipeline.processors)
                .or_else(|| place("exporters", &pipeline.exporters))
                .unwrap_or_default();
            loader.error(&path, misfit.message);
        }
    }
}
