//! The effective configuration, for `print-config`.

use serde_json::{Map, Value, json};

use super::{Components, Loaded};

impl Loaded {
    /// Everything with its defaults filled in, secrets redacted.
    pub fn effective(&self) -> Value {
        let extensions: Map<String, Value> =
            self.extensions.iter().map(|(id, e)| (id.clone(), e.effective())).collect();
        let mut all = json!({
            "host": self.host,
            "sources": bodies(&self.sources),
            "processors": bodies(&self.processors),
            "exporters": bodies(&self.exporters),
            "extensions": extensions,
            "service": self.service,
        });
        redact(&mut all);
        all
    }
}

/// Hides the credentials in URLs (`http://user:password@host`); other secrets hide themselves.
fn redact(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((scheme, rest)) = text.split_once("://")
                && let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest)
                && let Some(at) = authority.rfind('@')
            {
                *text = format!("{scheme}://[REDACTED]{}", &rest[at..]);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(map) => map.values_mut().for_each(redact),
        _ => {}
    }
}

fn bodies<T: ?Sized>(components: &Components<T>) -> Map<String, Value> {
    components.iter().map(|(id, c)| (id.clone(), c.factory.effective())).collect()
}
