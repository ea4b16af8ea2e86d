//! Configuration of `attribution`.

use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use wattpipe_pipeline::{Config, ConfigProblem, units::ConfigDuration};

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Configuration of `attribution`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AttributionConfig {
    /// Add `process.command_line`. Command lines may hold secrets.
    pub command_line: bool,
    /// Sockets of container runtimes for names and images: `auto` looks in the usual places, an
    /// empty list asks none. Ids come from cgroup paths in any case.
    pub containers: Sockets,
    /// Where pod names come from; `null` leaves them to the labels of the container runtime.
    pub kubernetes: Option<KubernetesConfig>,
}

impl Default for AttributionConfig {
    fn default() -> Self {
        Self { command_line: false, containers: Sockets::Auto, kubernetes: None }
    }
}

/// Which sockets to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sockets {
    /// Those in the usual places.
    #[default]
    Auto,
    /// These.
    List(Vec<PathBuf>),
}

impl Serialize for Sockets {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => s.serialize_str("auto"),
            Self::List(paths) => paths.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Sockets {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Sockets;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`auto` or a list of sockets")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Sockets, E> {
                if v == "auto" {
                    return Ok(Sockets::Auto);
                }
                Err(E::invalid_value(de::Unexpected::Str(v), &self))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Sockets, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = seq.next_element::<String>()? {
                    paths.push(PathBuf::from(path.strip_prefix("unix://").unwrap_or(&path)));
                }
                Ok(Sockets::List(paths))
            }
        }
        d.deserialize_any(V)
    }
}

impl JsonSchema for Sockets {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sockets".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`auto`, or paths of unix sockets of Docker, Podman, containerd or CRI-O.",
            "oneOf": [
                { "const": "auto" },
                { "type": "array", "items": { "type": "string" } }
            ]
        })
    }
}

/// Where pod names come from: exactly one of `kubelet` and `api`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesConfig {
    /// The kubelet of this node.
    pub kubelet: Option<KubeletConfig>,
    /// The API server, asked for the pods of this node only.
    pub api: Option<ApiConfig>,
    /// Pod labels to add as `k8s.pod.label.<key>`.
    pub labels: Vec<String>,
    /// Pod annotations to add as `k8s.pod.annotation.<key>`.
    pub annotations: Vec<String>,
}

/// The kubelet of this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubeletConfig {
    /// Where it listens.
    pub endpoint: String,
    /// Certificates that its own must be signed by.
    pub ca_file: PathBuf,
    /// The bearer token; read anew for each request, since it rotates.
    pub token_file: PathBuf,
    /// Accept any certificate. Many kubelets serve a self-signed one.
    pub insecure_skip_verify: bool,
    /// Time between refreshes; an unknown pod asks at once.
    pub interval: ConfigDuration,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self {
            endpoint: "https://127.0.0.1:10250".into(),
            ca_file: format!("{SERVICE_ACCOUNT}/ca.crt").into(),
            token_file: format!("{SERVICE_ACCOUNT}/token").into(),
            insecure_skip_verify: false,
            interval: ConfigDuration::from_secs(30),
        }
    }
}

/// The API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Name of this node, usually `${env:NODE_NAME}` from the downward API.
    pub node: String,
    /// Where it listens; empty: `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub endpoint: String,
    /// Certificates that its own must be signed by.
    pub ca_file: PathBuf,
    /// The bearer token; read anew for each request, since it rotates.
    pub token_file: PathBuf,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            node: String::new(),
            endpoint: String::new(),
            ca_file: format!("{SERVICE_ACCOUNT}/ca.crt").into(),
            token_file: format!("{SERVICE_ACCOUNT}/token").into(),
        }
    }
}

impl Config for AttributionConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        let Some(kubernetes) = &self.kubernetes else { return problems };
        match (&kubernetes.kubelet, &kubernetes.api) {
            (Some(_), Some(_)) => problems.push(ConfigProblem::at(
                "kubernetes",
                "`kubelet` and `api` exclude one another: name one",
            )),
            (None, None) => problems.push(ConfigProblem::at(
                "kubernetes",
                "nothing to ask: name `kubelet: {}` or `api: { node: NAME }`",
            )),
            (Some(kubelet), None) => {
                check_endpoint("kubernetes.kubelet.endpoint", &kubelet.endpoint, &mut problems);
            }
            (None, Some(api)) => {
                if api.node.is_empty() {
                    let message = "the name of this node is needed, such as ${env:NODE_NAME}";
                    problems.push(ConfigProblem::at("kubernetes.api.node", message));
                }
                if !api.endpoint.is_empty() {
                    check_endpoint("kubernetes.api.endpoint", &api.endpoint, &mut problems);
                }
            }
        }
        problems
    }
}

fn check_endpoint(path: &str, endpoint: &str, problems: &mut Vec<ConfigProblem>) {
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    if host.is_none_or(|h| h.is_empty() || h.contains('/')) {
        let message = format!("`{endpoint}` is no endpoint: write https://HOST:PORT");
        problems.push(ConfigProblem::at(path, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: serde_json::Value, expected: &[&str]) {
        let config: AttributionConfig = serde_json::from_value(json).unwrap();
        let paths: Vec<_> = config.check().iter().map(|p| p.path.join(".")).collect();
        assert_eq!(paths, expected);
    }

    #[test]
    fn what_kubernetes_needs() {
        use serde_json::json;
        check(json!({}), &[]);
        check(json!({"kubernetes": {}}), &["kubernetes"]);
        check(json!({"kubernetes": {"kubelet": {}}}), &[]);
        check(json!({"kubernetes": {"kubelet": {}, "api": {"node": "a"}}}), &["kubernetes"]);
        check(json!({"kubernetes": {"api": {}}}), &["kubernetes.api.node"]);
        check(
            json!({"kubernetes": {"kubelet": {"endpoint": "localhost"}}}),
            &["kubernetes.kubelet.endpoint"],
        );
    }

    #[test]
    fn sockets() {
        let of = |json: &str| serde_json::from_str::<Sockets>(json);
        assert_eq!(of("\"auto\"").unwrap(), Sockets::Auto);
        assert_eq!(of("[]").unwrap(), Sockets::List(vec![]));
        assert_eq!(
            of("[\"unix:///a\",\"/b\"]").unwrap(),
            Sockets::List(vec!["/a".into(), "/b".into()])
        );
        assert!(of("\"no\"").unwrap_err().to_string().contains("`auto` or a list"));
        assert_eq!(serde_json::to_string(&Sockets::Auto).unwrap(), "\"auto\"");
    }
}
