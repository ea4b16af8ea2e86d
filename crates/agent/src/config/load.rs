//! Loading: texts to layers to typed configuration, all problems at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use figment::value::{Dict, Empty, Tag, Value};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use wattpipe_pipeline::{
    ConfigProblem, Registry,
    exporter::Exporter,
    identity::attr,
    processor::Processor,
    registry::{Config, Entry, Factory, parse_config},
    source::Source,
};

use super::{
    diagnostic::{Diagnostic, Severity, nearest},
    expand::{self, Env},
    layers::{self, Layers},
    model::{Host, Service},
    node::Kind,
    pipelines,
    source::{SourceSet, Span, read_file},
    typed::{ComponentSchema, parse_all, restore_text},
    yaml,
};
use crate::extension::{EXTENSIONS, Extension};

/// The configuration that runs where no `--config` is given.
pub const EMBEDDED: &str = include_str!("../../../../config/default.yaml");
/// Sections of the file.
pub const SECTIONS: [&str; 6] =
    ["host", "sources", "processors", "exporters", "extensions", "service"];

/// What to load.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// `--config`, in order; none means the embedded configuration.
    pub files: Vec<PathBuf>,
    /// `--set`, in order.
    pub sets: Vec<String>,
}

impl Input {
    /// Whether the embedded configuration is the base.
    pub fn is_embedded(&self) -> bool {
        self.files.is_empty()
    }
}

/// A component by its id, ready to build.
pub struct Component<T: ?Sized + 'static> {
    /// Its row.
    pub entry: Entry<T>,
    /// Its validated configuration.
    pub factory: Arc<dyn Factory<T>>,
}

/// Components by id.
pub type Components<T> = BTreeMap<String, Component<T>>;

/// A valid configuration.
#[derive(Default)]
pub struct Loaded {
    /// `host`.
    pub host: Host,
    /// `service`.
    pub service: Service,
    /// `sources`.
    pub sources: Components<dyn Source>,
    /// `processors`.
    pub processors: Components<dyn Processor>,
    /// `exporters`.
    pub exporters: Components<dyn Exporter>,
    /// `extensions`.
    pub extensions: BTreeMap<String, Extension>,
    /// It is the embedded configuration (perhaps with `--set`).
    pub embedded: bool,
}

/// The findings of a load, already as text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Errors, in the order of the text.
    pub errors: Vec<String>,
    /// Warnings, in the order of the text.
    pub warnings: Vec<String>,
}

/// Loads `input`. Without errors there is a configuration.
pub fn load(input: &Input, registry: &Registry, env: Env<'_>) -> (Option<Loaded>, Report) {
    let mut errors = Vec::new();
    let mut texts = Vec::new();
    if input.is_embedded() {
        texts.push(("embedded default".to_owned(), EMBEDDED.to_owned()));
    }
    for file in &input.files {
        match read_file(file) {
            Ok(text) => texts.push((file.display().to_string(), text)),
            Err(e) => errors.push(format!("error: {e}\n")),
        }
    }
    let (loaded, mut report) = load_texts(texts, &input.sets, !errors.is_empty(), registry, env);
    errors.append(&mut report.errors);
    report.errors = errors;
    let loaded = loaded.filter(|_| report.errors.is_empty());
    (loaded.map(|l| Loaded { embedded: input.is_embedded(), ..l }), report)
}

/// Loads texts (name and content) instead of files, `sets` on top. `partial` says that more texts
/// should have been there.
pub fn load_texts(
    texts: Vec<(String, String)>,
    sets: &[String],
    partial: bool,
    registry: &Registry,
    env: Env<'_>,
) -> (Option<Loaded>, Report) {
    let mut sources = SourceSet::default();
    let mut report = Report::default();
    let mut loader = Loader {
        registry,
        layers: Layers::default(),
        found: Vec::new(),
        misplaced: BTreeSet::new(),
        partial,
    };
    for (name, text) in texts {
        let source = sources.add(name, text);
        let parsed = yaml::parse(source, sources.text(source));
        loader.partial |= parsed.broken;
        loader.add(parsed.root, parsed.diagnostics, env);
    }
    for set in sets {
        let mut found = Vec::new();
        let node = layers::parse_set(set, &mut sources, &mut found);
        loader.add(node, found, env);
    }
    let loaded = loader.typed();
    let mut found = loader.found;
    found.sort_by_key(|d| d.span.map(|s| (s.source, s.line, s.column)));
    found.dedup();
    for diagnostic in found {
        let text = diagnostic.render(&sources);
        match diagnostic.severity {
            Severity::Error => report.errors.push(text),
            Severity::Warning => report.warnings.push(text),
        }
    }
    let loaded = loaded.filter(|_| report.errors.is_empty());
    (loaded, report)
}

/// Work in progress.
pub(super) struct Loader<'a> {
    pub(super) registry: &'a Registry,
    pub(super) layers: Layers,
    pub(super) found: Vec<Diagnostic>,
    /// Section and id of what is indented too deep or too little: reported there, once.
    pub(super) misplaced: BTreeSet<(String, String)>,
    /// A text is missing or no YAML: what it defines is not known, so nothing is called undefined.
    partial: bool,
}

impl Loader<'_> {
    fn add(
        &mut self,
        root: Option<super::node::Node>,
        mut diagnostics: Vec<Diagnostic>,
        env: Env<'_>,
    ) {
        self.found.append(&mut diagnostics);
        let Some(mut root) = root else { return };
        match &mut root.kind {
            Kind::Map(entries) => entries.retain(|entry| {
                // A section whose keys are all commented out is as good as absent.
                let empty =
                    entry.value.kind == Kind::Null && SECTIONS.contains(&entry.key.as_str());
                if empty {
                    let path = [entry.key.clone()];
                    self.found.push(Diagnostic::warning(
                        entry.key_span,
                        &path,
                        format!("`{}` is empty", entry.key),
                    ));
                }
                !empty
            }),
            Kind::Null => return,
            _ => {
                let message =
                    format!("a configuration is a map of sections, not {}", root.describe());
                self.found.push(Diagnostic::error(root.span, &[], message).allow(SECTIONS));
                self.partial = true;
                return;
            }
        }
        expand::expand(&mut root, &mut Vec::new(), env, &mut self.found);
        self.layers.push(root);
    }

    fn typed(&mut self) -> Option<Loaded> {
        let mut found = Vec::new();
        self.layers.warn_erased(&mut found);
        self.found.append(&mut found);
        let merged = self.layers.merged();
        for key in merged.keys().filter(|k| !SECTIONS.contains(&k.as_str())) {
            let path = [key.clone()];
            let span = self.layers.locate(&path);
            if let Some(section) = self.section_of(key) {
                let message = format!(
                    "`{key}` is no section, it stands below `{section}`: is it indented too little?"
                );
                self.misplaced.insert((section.to_owned(), key.clone()));
                self.found.push(Diagnostic::error(span, &path, message));
                continue;
            }
            let mut message = format!("unknown section `{key}`");
            if nearest(key, ["receivers"].into_iter()).is_some() {
                message.push_str("; wattpipe's pipelines begin with `sources`");
            }
            let diagnostic = Diagnostic::error(span, &path, message);
            self.found.push(diagnostic.allow(SECTIONS).for_name(key));
        }
        let registry = self.registry;
        let (host, wrong) = self.section::<Host>(&merged, "host");
        let host = host.filter(|_| wrong.is_empty());
        let (service, wrong) = self.section::<Service>(&merged, "service");
        let sources = self.components(&merged, "sources", &registry.sources);
        let processors = self.components(&merged, "processors", &registry.processors);
        let exporters = self.components(&merged, "exporters", &registry.exporters);
        let extensions = self.extensions(&merged);
        let ids = |section: &str| -> Option<BTreeSet<String>> {
            match merged.get(section) {
                Some(Value::Dict(_, dict)) => {
                    Some(dict.keys().filter(|id| is_id(id)).cloned().collect())
                }
                None => Some(BTreeSet::new()),
                Some(_) => None,
            }
        };
        if let Some(service) = service.as_ref().filter(|_| !self.partial) {
            let defined = pipelines::Defined {
                sources: ids("sources"),
                processors: ids("processors"),
                exporters: ids("exporters"),
                extensions: ids("extensions"),
            };
            pipelines::check_references(self, service, &wrong, &defined);
            pipelines::check_kinds(self, service, &exporters);
            pipelines::check_sense(self, service, &sources, &processors, &exporters);
        }
        Some(Loaded {
            host: host?,
            service: service.filter(|_| wrong.is_empty())?,
            sources,
            processors,
            exporters,
            extensions,
            embedded: false,
        })
    }

    /// A section that is one typed map: what of it could be read, and the keys of what could not.
    fn section<C: Config + JsonSchema>(
        &mut self,
        merged: &Dict,
        name: &str,
    ) -> (Option<C>, Vec<Vec<String>>) {
        let value = merged.get(name).cloned().unwrap_or(Value::Empty(Tag::Default, Empty::None));
        let path = vec![name.to_owned()];
        self.parse_partly(value, path, <C as JsonSchema>::json_schema, parse_config::<C>)
    }

    fn components<T: ?Sized + 'static>(
        &mut self,
        merged: &Dict,
        section: &str,
        entries: &[Entry<T>],
    ) -> Components<T> {
        let mut components = Components::new();
        for (id, value) in self.bodies(merged, section) {
            let path = vec![section.to_owned(), id.clone()];
            let kind = id.split('/').next().unwrap_or(&id);
            match entries.iter().find(|e| e.answers_to(kind)) {
                Some(entry) => {
                    if let Some(factory) =
                        self.parse(value, path.clone(), entry.schema, entry.parse)
                    {
                        self.check_attributes(&path, &factory.attributes());
                        let factory = Arc::from(factory);
                        components.insert(id, Component { entry: *entry, factory });
                    }
                }
                None => self.unknown_type(section, &path, kind, entries.iter().map(|e| e.name)),
            }
        }
        components
    }

    fn extensions(&mut self, merged: &Dict) -> BTreeMap<String, Extension> {
        let mut extensions = BTreeMap::new();
        for (id, value) in self.bodies(merged, "extensions") {
            let path = vec!["extensions".to_owned(), id.clone()];
            let kind = id.split('/').next().unwrap_or(&id);
            match EXTENSIONS.iter().find(|e| e.name == kind) {
                Some(entry) => {
                    if let Some(extension) = self.parse(value, path, entry.schema, entry.parse) {
                        extensions.insert(id, extension);
                    }
                }
                None => {
                    self.unknown_type("extensions", &path, kind, EXTENSIONS.iter().map(|e| e.name))
                }
            }
        }
        extensions
    }

    /// The bodies of a section by id; ids that are none are reported.
    fn bodies(&mut self, merged: &Dict, section: &str) -> Vec<(String, Value)> {
        let mut bodies = Vec::new();
        match merged.get(section) {
            None => {}
            Some(Value::Dict(_, dict)) => {
                for (id, value) in dict {
                    if is_id(id) {
                        bodies.push((id.clone(), value.clone()));
                    } else {
                        let path = [section.to_owned(), id.clone()];
                        self.error(&path, format!("`{id}` is no id: write `type` or `type/name`"));
                    }
                }
            }
            Some(_) => {
                let path = [section.to_owned()];
                let what = self.layers.node(&path).map_or("that", |n| n.describe());
                let kind = section.trim_end_matches('s');
                self.error(
                    &path,
                    format!("`{section}` is a map of ids to {kind} settings, not {what}"),
                );
            }
        }
        bodies
    }

    fn unknown_type<'n>(
        &mut self,
        section: &str,
        path: &[String],
        kind: &str,
        names: impl Iterator<Item = &'n str>,
    ) {
        let what = section.trim_end_matches('s');
        let span = self.layers.locate(path);
        let names: Vec<&str> = names.collect();
        self.found.push(
            Diagnostic::error(span, path, format!("unknown {what} type `{kind}`"))
                .allow(names)
                .for_name(kind),
        );
    }

    fn parse<T>(
        &mut self,
        value: Value,
        path: Vec<String>,
        schema: fn(&mut SchemaGenerator) -> Schema,
        parse: impl Fn(&Value) -> Result<T, Vec<ConfigProblem>>,
    ) -> Option<T> {
        let (parsed, wrong) = self.parse_partly(value, path, schema, parse);
        parsed.filter(|_| wrong.is_empty())
    }

    /// What could be read, and the keys (from the root) of what could not.
    fn parse_partly<T>(
        &mut self,
        mut value: Value,
        path: Vec<String>,
        schema: fn(&mut SchemaGenerator) -> Schema,
        parse: impl Fn(&Value) -> Result<T, Vec<ConfigProblem>>,
    ) -> (Option<T>, Vec<Vec<String>>) {
        if !matches!(value, Value::Dict(..) | Value::Empty(..)) {
            let what = self.layers.node(&path).map_or("that", |n| n.describe());
            let span = self.layers.locate_value(&path);
            let message = format!("expected a map of settings, found {what}");
            self.found.push(Diagnostic::error(span, &path, message));
            return (None, vec![path]);
        }
        let raw = |below: &[String]| {
            let full = [&path[..], below].concat();
            self.layers.node(&full).and_then(|n| n.raw.clone())
        };
        restore_text(&ComponentSchema::of(schema), &mut value, &mut Vec::new(), &raw);
        let (parsed, problems) = parse_all(&value, schema, parse);
        let mut wrong = Vec::new();
        for problem in problems {
            let full = [&path[..], &problem.path[..]].concat();
            let key = problem.message.starts_with("unknown key");
            let span = match key {
                true => self.layers.locate(&full),
                false => self.layers.locate_value(&full),
            };
            let mut diagnostic = Diagnostic::error(span, &full, problem.message);
            match full.as_slice() {
                [section, _, .., id] if key && self.is_type(section, id) => {
                    let what = section.trim_end_matches('s');
                    let article = if what == "exporter" { "an" } else { "a" };
                    diagnostic.message = format!(
                        "unknown key `{id}`, which is {article} {what}: is it indented too deep?"
                    );
                    self.misplaced.insert((section.clone(), id.clone()));
                }
                _ => {
                    diagnostic.wrong_name = wrong_name(&diagnostic.message);
                    diagnostic.allowed = problem.allowed;
                }
            }
            self.found.push(diagnostic);
            wrong.push(full);
        }
        (parsed, wrong)
    }

    /// The section that a component, or a key of `service`, belongs in.
    fn section_of(&self, key: &str) -> Option<&'static str> {
        let components = ["sources", "processors", "exporters", "extensions"];
        components.into_iter().find(|section| self.is_type(section, key)).or_else(|| {
            let service = ComponentSchema::of(<Service as JsonSchema>::json_schema);
            service.has_key(key).then_some("service")
        })
    }

    /// Whether the type of `id` is compiled in for `section`.
    pub(super) fn is_type(&self, section: &str, id: &str) -> bool {
        let kind = id.split('/').next().unwrap_or(id);
        match section {
            "sources" => self.registry.source(kind).is_some(),
            "processors" => self.registry.processor(kind).is_some(),
            "exporters" => self.registry.exporter(kind).is_some(),
            "extensions" => EXTENSIONS.iter().any(|e| e.name == kind),
            _ => false,
        }
    }

    /// Warns of attributes that nothing sets, where the name is nearly one that something sets:
    /// a processor of somebody else's may set others.
    fn check_attributes(&mut self, path: &[String], named: &[(Vec<String>, &str)]) {
        for (below, name) in named.iter().filter(|(_, name)| !attr::ALL.contains(name)) {
            if let Some(meant) = nearest(name, attr::ALL.iter().copied()) {
                let path = [path, below].concat();
                self.warn(&path, format!("unknown attribute `{name}`; did you mean `{meant}`?"));
            }
        }
    }

    /// An error at `path`, or at the top of the first text where nothing of `path` exists.
    pub(super) fn error(&mut self, path: &[String], message: impl Into<String>) {
        let top = Span { source: 0, line: 1, column: 1, len: 1 };
        let span = self.layers.locate(path).unwrap_or(top);
        self.found.push(Diagnostic::error(span, path, message));
    }

    pub(super) fn warn(&mut self, path: &[String], message: impl Into<String>) {
        let span = self.layers.locate(path);
        self.found.push(Diagnostic::warning(span, path, message));
    }
}

/// Whether `id` is `type` or `type/name`.
fn is_id(id: &str) -> bool {
    let parts = match id.split_once('/') {
        Some((kind, name)) => !kind.is_empty() && !name.is_empty(),
        None => !id.is_empty(),
    };
    parts && !id.contains(char::is_whitespace)
}

/// The name in `unknown key `x`` and its like; none where more is said than that.
fn wrong_name(message: &str) -> Option<String> {
    let (_, name) = message.strip_prefix("unknown ")?.strip_suffix('`')?.split_once('`')?;
    Some(name.to_owned()).filter(|name| !name.contains('`'))
}
