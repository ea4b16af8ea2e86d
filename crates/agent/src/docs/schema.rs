//! The JSON Schema of a configuration file, for editors.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use wattpipe_pipeline::Registry;

use super::sections;
use crate::config::model::{Host, Service};

/// One schema for the whole file, everything in `registry` included.
pub fn schema(registry: &Registry) -> Value {
    let mut generator = SchemaGenerator::default();
    let mut properties = Map::new();
    properties
        .insert("host".to_owned(), <Host as JsonSchema>::json_schema(&mut generator).to_value());
    for (section, rows) in sections(registry) {
        let mut patterns = Map::new();
        for row in rows {
            let mut schema = (row.schema)(&mut generator).to_value();
            if let Some(object) = schema.as_object_mut() {
                object.insert("description".to_owned(), Value::from(row.doc));
            }
            let names: Vec<&str> =
                [row.name].into_iter().chain(row.aliases.iter().copied()).collect();
            // An id is a type or type/name; an empty body means defaults.
            patterns.insert(
                format!("^({})(/.+)?$", names.join("|")),
                json!({ "anyOf": [schema, { "type": "null" }] }),
            );
        }
        properties.insert(
            section.to_owned(),
            json!({
                "type": ["object", "null"],
                "patternProperties": patterns,
                "additionalProperties": false,
            }),
        );
    }
    properties.insert(
        "service".to_owned(),
        <Service as JsonSchema>::json_schema(&mut generator).to_value(),
    );
    let definitions = Value::Object(generator.take_definitions(true));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "wattpipe configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "$defs": definitions,
    })
}
