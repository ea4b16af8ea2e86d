//! The effective configuration, for `print-config`.

use serde_json::{Map, Value, json};

use super::{Components, Loaded};

impl Loaded {
    /// Everything with its defaults filled in, secrets redacted.
    pub fn effective(&self) -> Value {
        let extensions: Map<String, Value> =
            self.extensions.iter().map(|(id, e)| (id.clone(), e.effective())).collect();
        json!({
            "host": self.host,
            "sources": bodies(&self.sources),
            "processors": bodies(&self.processors),
            "exporters": bodies(&self.exporters),
            "extensions": extensions,
            "service": self.service,
        })
    }
}

fn bodies<T: ?Sized>(components: &Components<T>) -> Map<String, Value> {
    components.iter().map(|(id, c)| (id.clone(), c.factory.effective())).collect()
}
