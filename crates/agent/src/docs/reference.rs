//! `config/reference.yaml`: every key with its meaning and default.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde_json::Value;
use wattpipe_pipeline::{Registry, registry::Entry};

use super::{Described, sections};
use crate::{
    config::model::{Host, Service},
    extension::EXTENSIONS,
};

const HEAD: &str = "\
# Every key of a wattpipe configuration with its default. Generated from the program (`cargo xtask
# docs`); do not edit. A file needs only what differs from here; `wattpipe print-config` shows what
# a file comes to. Blocks that cannot stand as they are, because a key without a default is needed,
# are commented out.
";

/// The pipelines of the embedded configuration.
const PIPELINES: &str = "\
  # Pipelines by name: component ids in flow order.
  pipelines:
    energy:
      sources: [ebpf]
      processors: [delta, attribution, power_model]
      exporters: [stdout]
";

/// Renders the reference of everything in `registry`.
pub fn reference_yaml(registry: &Registry) -> String {
    let mut out = HEAD.to_owned();
    let host = Described::of(<Host as JsonSchema>::json_schema);
    let _ = write!(out, "\n# Where the host's file systems are mounted.\nhost:\n");
    keys(&host, &host.root, 1, &[], &mut out);
    for (section, rows) in sections(registry) {
        let _ = write!(out, "\n{section}:\n");
        for row in rows {
            let described = Described::of(row.schema);
            let mut block = String::new();
            comment(row.doc, 1, &mut block);
            let _ = writeln!(block, "  {}:", row.name);
            keys(&described, &described.root, 2, &[], &mut block);
            if stands(registry, section, row.name) {
                out.push_str(&block);
            } else {
                for line in block.lines() {
                    let _ = writeln!(out, "  #{}", line.strip_prefix("  ").unwrap_or(line));
                }
            }
        }
    }
    let service = Described::of(<Service as JsonSchema>::json_schema);
    let _ = write!(out, "\nservice:\n");
    keys(&service, &service.root, 1, &["pipelines"], &mut out);
    out.push_str(PIPELINES);
    out
}

/// Whether a component's defaults are a valid configuration.
fn stands(registry: &Registry, section: &str, name: &str) -> bool {
    fn valid<T: ?Sized>(entry: Option<&Entry<T>>) -> bool {
        let nothing = figment::value::Value::from(figment::value::Dict::new());
        entry.is_some_and(|e| (e.parse)(&nothing).is_ok())
    }
    match section {
        "sources" => valid(registry.source(name)),
        "processors" => valid(registry.processor(name)),
        "exporters" => valid(registry.exporter(name)),
        _ => EXTENSIONS.iter().any(|e| e.name == name),
    }
}

fn keys(described: &Described, schema: &Value, depth: usize, skip: &[&str], out: &mut String) {
    let indent = "  ".repeat(depth);
    for (key, property) in described.properties(schema) {
        if skip.contains(&key) {
            continue;
        }
        comment(described.description(property), depth, out);
        let nested = described.properties(property);
        let default = property.get("default").unwrap_or(&Value::Null);
        if !nested.is_empty() && !default.is_null() {
            let _ = writeln!(out, "{indent}{key}:");
            keys(described, property, depth + 1, &[], out);
            continue;
        }
        let form = described.form(property);
        if form.contains('`') {
            let _ = writeln!(out, "{indent}# {}", form.replace('`', "").replace("null, ", ""));
        }
        let _ = writeln!(out, "{indent}{key}: {}", inline(default));
        // What an optional map holds once it is there.
        let inner = described.some(property);
        if default.is_null() && !described.properties(inner).is_empty() {
            let mut block = String::new();
            keys(described, inner, depth + 1, &[], &mut block);
            for line in block.lines() {
                let _ = writeln!(out, "{indent}#{}", line.strip_prefix(&indent).unwrap_or(line));
            }
        }
    }
}

fn comment(text: &str, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    let width = 96 - indent.len();
    for paragraph in text.split('\n').filter(|p| !p.trim().is_empty()) {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > width {
                let _ = writeln!(out, "{indent}# {line}");
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        let _ = writeln!(out, "{indent}# {line}");
    }
}

/// A value on one line, as YAML.
fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let plain = serde_yaml::to_string(text).unwrap_or_default();
            plain.trim_end().to_owned()
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(map) => {
            let pairs: Vec<_> = map.iter().map(|(k, v)| format!("{k}: {}", inline(v))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}
