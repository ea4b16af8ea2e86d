//! `docs/components.md`: every component with its keys.

use std::fmt::Write as _;

use serde_json::Value;
use wattpipe_pipeline::Registry;

use super::{Described, Row, sections};

const HEAD: &str = "\
# Components

Generated from the program (`cargo xtask docs`); do not edit. `wattpipe components` prints the same
list, and every key with its default stands in
[config/reference.yaml](../config/reference.yaml).
";

/// Renders the page of everything in `registry`.
pub fn components_md(registry: &Registry) -> String {
    let mut out = HEAD.to_owned();
    for (section, rows) in sections(registry) {
        let title = section[..1].to_uppercase() + &section[1..];
        let _ = write!(out, "\n## {title}\n");
        for row in &rows {
            component(row, &mut out);
        }
    }
    out
}

fn component(row: &Row, out: &mut String) {
    let _ = write!(
        out,
        "\n### `{}`\n\n{}\n\n",
        row.name,
        row.doc.trim_end_matches('.').to_owned() + "."
    );
    let stability = serde_json::to_value(row.stability).unwrap_or_default();
    let mut facts = vec![format!("Stability: {}", stability.as_str().unwrap_or("?"))];
    if !row.takes.is_empty() {
        let kinds: Vec<String> = row.takes.iter().map(ToString::to_string).collect();
        facts.push(format!("takes: {}", kinds.join(" or ")));
    }
    if let Some(emits) = row.emits {
        facts.push(format!("emits: {emits}"));
    }
    if !row.aliases.is_empty() {
        facts.push(format!("also called `{}`", row.aliases.join("`, `")));
    }
    let _ = writeln!(out, "{}.", facts.join("; "));
    let described = Described::of(row.schema);
    let mut rows = Vec::new();
    table(&described, &described.root, "", &mut rows);
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "\n| key | default | |\n|---|---|---|\n");
    for line in rows {
        let _ = writeln!(out, "{line}");
    }
}

fn table(described: &Described, schema: &Value, prefix: &str, rows: &mut Vec<String>) {
    for (key, property) in described.properties(schema) {
        let path = format!("{prefix}{key}");
        let default = property.get("default").unwrap_or(&Value::Null);
        let text = described.description(property).split_whitespace().collect::<Vec<_>>().join(" ");
        let form = described.form(property);
        let what = if form.contains('`') { format!("{text} One of: {form}.") } else { text };
        let inner = described.some(property);
        let nested = !described.properties(inner).is_empty();
        let shown = if nested && !default.is_null() {
            String::new()
        } else {
            format!("`{}`", default.to_string().trim_matches('"'))
        };
        rows.push(format!("| `{path}` | {} | {} |", cell(&shown), cell(&what)));
        if nested {
            table(described, inner, &format!("{path}::"), rows);
        }
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
