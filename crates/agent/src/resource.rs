//! Static attributes of everything that leaves this agent: the host, and what the user says.

use std::{fs, path::Path, sync::Arc};

use wattpipe_exporters::{otlp::percent_decoded, semconv::SERVICE_NAME};
use wattpipe_pipeline::identity::{AttributeSet, Value, attr};

use crate::config::{
    Loaded,
    model::{AttributeValue, Host},
};

/// The resource of `loaded` on this host. `service::resource` wins over `OTEL_SERVICE_NAME`, that
/// over `OTEL_RESOURCE_ATTRIBUTES`, that over what the host says.
pub(crate) fn detect(loaded: &Loaded, env: &dyn Fn(&str) -> Option<String>) -> Arc<AttributeSet> {
    let mut set = AttributeSet::new();
    set.set(SERVICE_NAME, "wattpipe");
    set.set_some(attr::HOST_NAME, host_name(&loaded.host));
    set.set_some(attr::HOST_ID, host_id());
    if let Some(pairs) = env("OTEL_RESOURCE_ATTRIBUTES") {
        for (key, value) in parse_pairs(&pairs) {
            set.set(key, value);
        }
    }
    if let Some(name) = env("OTEL_SERVICE_NAME").filter(|n| !n.is_empty()) {
        set.set(SERVICE_NAME, name);
    }
    for (key, value) in &loaded.service.resource {
        let Some(value) = value else {
            // Every resource has a `service.name`.
            if key != SERVICE_NAME {
                set.remove(key);
            }
            continue;
        };
        let value = match value {
            AttributeValue::Text(text) => Value::from(text.as_str()),
            AttributeValue::Integer(number) => Value::from(*number),
            AttributeValue::Bool(flag) => Value::from(flag.to_string()),
            AttributeValue::Number(number) => Value::from(number.to_string()),
        };
        set.set(key.clone(), value);
    }
    Arc::new(set)
}

/// `key=value` pairs separated by commas, percent-encoded, as the OpenTelemetry specification
/// writes them. A pair that is none is left out.
fn parse_pairs(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.split(',').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then(|| (percent_decoded(key), percent_decoded(value.trim())))
    })
}

fn host_name(host: &Host) -> Option<String> {
    read_line(&host.procfs.join("sys/kernel/hostname"))
}

fn host_id() -> Option<String> {
    read_line(Path::new("/etc/machine-id"))
        .or_else(|| read_line(Path::new("/var/lib/dbus/machine-id")))
}

fn read_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_and_layers_are_ordered() {
        let env = |name: &str| match name {
            "OTEL_RESOURCE_ATTRIBUTES" => {
                Some("a=1, b=x%20y%2C,broken,=z,service.name=env,c=1,d=50%".to_owned())
            }
            _ => None,
        };
        let mut loaded = Loaded::default();
        loaded.service.resource.insert("a".into(), Some(AttributeValue::Text("config".into())));
        loaded
            .service
            .resource
            .extend(["c", "host.name", "service.name"].map(|k| (k.into(), None)));
        let set = detect(&loaded, &env);
        let get = |key| set.get_str(key);
        assert_eq!(get("a"), Some("config"));
        assert_eq!(get("b"), Some("x y,"));
        assert_eq!(get("d"), Some("50%"));
        assert_eq!(get("service.name"), Some("env"));
        assert_eq!((get("c"), get("host.name")), (None, None));
    }
}
