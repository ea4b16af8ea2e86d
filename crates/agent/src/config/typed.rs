//! From merged values to typed configuration, with every problem of a component found in one
//! run: unknown keys by its schema, and the rest by parsing again without what was wrong.

use figment::value::{Dict, Value};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value as Json;
use wattpipe_pipeline::registry::ConfigProblem;

/// Parses `value` with `parse`. Beside the problems, sorted by the caller, stands what could be
/// read without the parts that have them.
pub fn parse_all<T>(
    value: &Value,
    schema: fn(&mut SchemaGenerator) -> Schema,
    parse: impl Fn(&Value) -> Result<T, Vec<ConfigProblem>>,
) -> (Option<T>, Vec<ConfigProblem>) {
    let mut problems = Vec::new();
    let mut rest = value.clone();
    let schema = ComponentSchema::of(schema);
    schema.unknown_keys(&schema.root, &mut rest, &mut Vec::new(), &mut problems);
    // Serde stops at its first error: take that part out and look on.
    for _ in 0..64 {
        match parse(&rest) {
            Ok(parsed) => return (Some(parsed), problems),
            Err(found) => {
                let mut removed = false;
                for mut problem in found {
                    if let Some(better) = schema.expectation(&problem) {
                        problem.message = better;
                    }
                    removed |= remove(&mut rest, &problem.path);
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
                if !removed {
                    break;
                }
            }
        }
    }
    (None, problems)
}

/// Takes the deepest part of `path` that exists out of `value`.
fn remove(value: &mut Value, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    match value {
        Value::Dict(_, dict) => match dict.get_mut(first) {
            Some(inner) => remove(inner, rest) || dict.remove(first).is_some(),
            None => false,
        },
        Value::Array(_, items) => match first.parse::<usize>().ok().filter(|i| *i < items.len()) {
            Some(i) => {
                if !remove(&mut items[i], rest) {
                    items.remove(i);
                }
                true
            }
            None => false,
        },
        _ => false,
    }
}

/// A component's JSON Schema with its definitions.
pub struct ComponentSchema {
    root: Json,
    definitions: Json,
}

impl ComponentSchema {
    /// Of the type that `schema` describes.
    pub fn of(schema: fn(&mut SchemaGenerator) -> Schema) -> Self {
        let mut generator = SchemaGenerator::default();
        let root = schema(&mut generator).to_value();
        let definitions = Json::Object(generator.take_definitions(true));
        Self { root, definitions }
    }

    /// Whether `key` is one of the component's own.
    pub fn has_key(&self, key: &str) -> bool {
        self.object(&self.root).and_then(|object| object.get("properties")?.get(key)).is_some()
    }

    /// Takes unknown keys out of `value` and reports them.
    fn unknown_keys(
        &self,
        schema: &Json,
        value: &mut Value,
        path: &mut Vec<String>,
        out: &mut Vec<ConfigProblem>,
    ) {
        match value {
            Value::Dict(_, dict) => {
                if let Some(object) = self.object(schema) {
                    self.unknown_in_map(object, dict, path, out);
                }
            }
            Value::Array(_, items) => {
                let Some(item_schema) = self.variant(schema, |s| s.get("items")) else { return };
                for (i, item) in items.iter_mut().enumerate() {
                    path.push(i.to_string());
                    self.unknown_keys(item_schema, item, path, out);
                    path.pop();
                }
            }
            _ => {}
        }
    }

    fn unknown_in_map(
        &self,
        object: &Json,
        dict: &mut Dict,
        path: &mut Vec<String>,
        out: &mut Vec<ConfigProblem>,
    ) {
        let properties = object.get("properties").and_then(Json::as_object);
        let others = object.get("additionalProperties");
        let closed = others == Some(&Json::Bool(false));
        dict.retain(|key, value| {
            path.push(key.clone());
            let known = match properties.and_then(|p| p.get(key)) {
                Some(schema) => {
                    self.unknown_keys(schema, value, path, out);
                    true
                }
                None if closed => {
                    let mut problem = ConfigProblem {
                        path: path.clone(),
                        message: format!("unknown key `{key}`{}", self.deeper(properties, key)),
                        allowed: Vec::new(),
                    };
                    problem.allowed =
                        properties.into_iter().flat_map(|p| p.keys().cloned()).collect();
                    out.push(problem);
                    false
                }
                None => {
                    if let Some(schema @ Json::Object(_)) = others {
                        self.unknown_keys(schema, value, path, out);
                    }
                    true
                }
            };
            path.pop();
            known
        });
    }

    /// Where `key` would be known one level below `properties`, if anywhere.
    fn deeper(&self, properties: Option<&serde_json::Map<String, Json>>, key: &str) -> String {
        let has = |schema| Some(self.object(schema)?.get("properties")?.get(key).is_some());
        let below = properties.into_iter().flatten().filter(|(_, s)| has(s) == Some(true));
        let places: Vec<_> = below.map(|(parent, _)| format!("`{parent}::{key}`")).collect();
        if places.is_empty() { String::new() } else { format!("; there is {}", join_or(&places)) }
    }

    /// The one variant of `schema` that describes a map; `None` where several do.
    fn object<'a>(&'a self, schema: &'a Json) -> Option<&'a Json> {
        self.variant(schema, |s| {
            (s.get("properties").is_some() || s.get("additionalProperties").is_some()).then_some(s)
        })
    }

    /// What `pick` finds in `schema` or, if it is a choice, in exactly one of its variants.
    fn variant<'a>(
        &'a self,
        schema: &'a Json,
        pick: impl Fn(&'a Json) -> Option<&'a Json> + Copy,
    ) -> Option<&'a Json> {
        let schema = self.resolve(schema);
        if let Some(found) = pick(schema) {
            return Some(found);
        }
        let mut found = self.choices(schema).into_iter().filter_map(|s| self.variant(s, pick));
        match (found.next(), found.next()) {
            (Some(one), None) => Some(one),
            _ => None,
        }
    }

    fn choices<'a>(&'a self, schema: &'a Json) -> Vec<&'a Json> {
        ["anyOf", "oneOf", "allOf"]
            .iter()
            .filter_map(|k| schema.get(k)?.as_array())
            .flatten()
            .collect()
    }

    fn resolve<'a>(&'a self, schema: &'a Json) -> &'a Json {
        let mut schema = schema;
        for _ in 0..8 {
            let Some(name) = schema.get("$ref").and_then(Json::as_str) else { break };
            let key = name.rsplit('/').next().unwrap_or(name);
            match self.definitions.get(key) {
                Some(target) => schema = target,
                None => break,
            }
        }
        schema
    }

    /// The schema of the value at `path`.
    fn at<'a>(&'a self, path: &[String]) -> Option<&'a Json> {
        let mut schema = &self.root;
        for step in path {
            schema = if step.parse::<usize>().is_ok()
                && let Some(items) = self.variant(schema, |s| s.get("items"))
            {
                items
            } else {
                let object = self.object(schema)?;
                object
                    .get("properties")
                    .and_then(|p| p.get(step))
                    .or_else(|| object.get("additionalProperties"))?
            };
        }
        Some(self.resolve(schema))
    }

    /// Whether text, any text, is the only thing that fits at `path`.
    pub fn wants_text(&self, path: &[String]) -> bool {
        let Some(schema) = self.at(path) else { return false };
        let is_text = |s: &Json| {
            let free = s.get("pattern").is_none() && s.get("enum").is_none();
            free && s.get("type").is_some_and(|t| t == "string")
        };
        let choices = self.choices(schema);
        let nullable = schema.get("type").and_then(Json::as_array).is_some_and(|types| {
            types.iter().any(|t| t == "string")
                && types.iter().all(|t| t == "string" || t == "null")
        });
        is_text(schema)
            || nullable
            || (!choices.is_empty()
                && choices.iter().all(|c| {
                    let c = self.resolve(c);
                    is_text(c) || c.get("type").is_some_and(|t| t == "null")
                }))
    }

    /// Serde says of a choice only that no variant fitted; the schema knows what would.
    fn expectation(&self, problem: &ConfigProblem) -> Option<String> {
        if !problem.message.starts_with("data did not match any variant") {
            return None;
        }
        let schema = self.at(&problem.path)?;
        let mut forms = Vec::new();
        self.forms(schema, &mut forms);
        (!forms.is_empty()).then(|| format!("expected {}", join_or(&forms)))
    }

    fn forms(&self, schema: &Json, out: &mut Vec<String>) {
        let schema = self.resolve(schema);
        if let Some(word) = schema.get("const").and_then(Json::as_str) {
            out.push(format!("`{word}`"));
        } else if let Some(words) = schema.get("enum").and_then(Json::as_array) {
            out.extend(words.iter().filter_map(Json::as_str).map(|w| format!("`{w}`")));
        } else if !self.choices(schema).is_empty() {
            self.choices(schema).into_iter().for_each(|s| self.forms(s, out));
        } else {
            let types: Vec<&str> = match schema.get("type") {
                Some(Json::String(t)) => vec![t],
                Some(Json::Array(ts)) => ts.iter().filter_map(Json::as_str).collect(),
                _ => vec![],
            };
            for t in types {
                let form = match t {
                    "string" => "text",
                    "array" => "a list",
                    "object" => "a map",
                    "integer" => "a whole number",
                    "number" => "a number",
                    "boolean" => "true or false",
                    _ => continue,
                };
                out.push(form.to_owned());
            }
        }
        out.dedup();
    }
}

fn join_or(forms: &[String]) -> String {
    match forms {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// Where text is wanted and a substitution or a plain scalar only looks like a number, its text
/// is taken: `token: ${env:TOKEN}` must work for a token of digits.
pub fn restore_text(
    schema: &ComponentSchema,
    value: &mut Value,
    path: &mut Vec<String>,
    raw: &dyn Fn(&[String]) -> Option<String>,
) {
    match value {
        Value::Num(tag, _) | Value::Bool(tag, _) => {
            let tag = *tag;
            if schema.wants_text(path)
                && let Some(text) = raw(path)
            {
                *value = Value::String(tag, text);
            }
        }
        Value::Dict(_, dict) => {
            for (key, inner) in dict.iter_mut() {
                path.push(key.clone());
                restore_text(schema, inner, path, raw);
                path.pop();
            }
        }
        Value::Array(_, items) => {
            for (i, inner) in items.iter_mut().enumerate() {
                path.push(i.to_string());
                restore_text(schema, inner, path, raw);
                path.pop();
            }
        }
        _ => {}
    }
}
