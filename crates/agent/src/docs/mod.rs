//! Documents that are made from what is compiled in: the JSON Schema of the configuration file,
//! `config/reference.yaml`, `docs/components.md` and `docs/metrics.md`. One source of truth: the components' own
//! types, their comments and defaults.

mod components;
mod metrics;
mod reference;
mod schema;

pub use components::components_md;
pub use metrics::metrics_md;
pub use reference::reference_yaml;
pub use schema::schema;

use serde_json::Value;
use wattpipe_pipeline::{Registry, Stability, batch::BatchKind, registry::Entry};

use crate::extension::EXTENSIONS;

/// A component as documents see it.
struct Row {
    name: &'static str,
    aliases: &'static [&'static str],
    doc: &'static str,
    stability: Stability,
    takes: &'static [BatchKind],
    emits: Option<BatchKind>,
    schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

/// All rows by section, in the order of the file.
fn sections(registry: &Registry) -> [(&'static str, Vec<Row>); 4] {
    fn rows<T: ?Sized>(entries: &[Entry<T>]) -> Vec<Row> {
        entries
            .iter()
            .map(|e| Row {
                name: e.name,
                aliases: e.aliases,
                doc: e.doc,
                stability: e.stability,
                takes: e.takes,
                emits: e.emits,
                schema: e.schema,
            })
            .collect()
    }
    let extensions = EXTENSIONS
        .iter()
        .map(|e| Row {
            name: e.name,
            aliases: &[],
            doc: e.doc,
            stability: e.stability,
            takes: &[],
            emits: None,
            schema: e.schema,
        })
        .collect();
    [
        ("sources", rows(&registry.sources)),
        ("processors", rows(&registry.processors)),
        ("exporters", rows(&registry.exporters)),
        ("extensions", extensions),
    ]
}

/// A JSON Schema with its definitions, to be walked.
struct Described {
    root: Value,
    definitions: Value,
}

impl Described {
    fn of(schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema) -> Self {
        let mut generator = schemars::SchemaGenerator::default();
        let root = schema(&mut generator).to_value();
        let definitions = Value::Object(generator.take_definitions(true));
        Self { root, definitions }
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let target = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|name| self.definitions.get(name.rsplit('/').next()?));
        target.map_or(schema, |t| self.resolve(t))
    }

    /// The keys of a map of settings, with their schemas; none where it is no such map, or is
    /// one only if it is not null.
    fn properties<'a>(&'a self, schema: &'a Value) -> Vec<(&'a str, &'a Value)> {
        let schema = self.resolve(schema);
        match schema.get("properties").and_then(Value::as_object) {
            Some(properties) => properties.iter().map(|(k, v)| (k.as_str(), v)).collect(),
            None => Vec::new(),
        }
    }

    /// The one non-null choice of an optional value.
    fn some<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let schema = self.resolve(schema);
        let Some(choices) = schema.get("anyOf").and_then(Value::as_array) else { return schema };
        let mut real = choices.iter().filter(|c| c.get("type") != Some(&Value::from("null")));
        match (real.next(), real.next()) {
            (Some(one), None) => self.resolve(one),
            _ => schema,
        }
    }

    /// What a key means: its own words, else those of its type.
    fn description<'a>(&'a self, schema: &'a Value) -> &'a str {
        let own = schema.get("description").and_then(Value::as_str);
        own.or_else(|| self.resolve(schema).get("description").and_then(Value::as_str))
            .unwrap_or("")
    }

    /// What is allowed, in a few words.
    fn form(&self, schema: &Value) -> String {
        let schema = self.resolve(schema);
        if let Some(word) = schema.get("const").and_then(Value::as_str) {
            return format!("`{word}`");
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            let words: Vec<String> =
                words.iter().filter_map(Value::as_str).map(|w| format!("`{w}`")).collect();
            return words.join(", ");
        }
        for key in ["oneOf", "anyOf"] {
            if let Some(choices) = schema.get(key).and_then(Value::as_array) {
                let mut forms: Vec<String> = choices.iter().map(|c| self.form(c)).collect();
                forms.dedup();
                return forms.join(", ");
            }
        }
        let types: Vec<&str> = match schema.get("type") {
            Some(Value::String(t)) => vec![t],
            Some(Value::Array(ts)) => ts.iter().filter_map(Value::as_str).collect(),
            _ => vec![],
        };
        let names: Vec<String> = types
            .iter()
            .map(|t| match *t {
                "string" if schema.get("pattern").is_some() => "duration".to_owned(),
                "string" => "text".to_owned(),
                "array" => match schema.get("items") {
                    Some(items) => format!("list of {}", self.form(items)),
                    None => "list".to_owned(),
                },
                "object" => "map".to_owned(),
                "integer" => "whole number".to_owned(),
                other => other.to_owned(),
            })
            .collect();
        names.join(", ")
    }
}
