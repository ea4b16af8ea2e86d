//! The few fields of a pod that are used, and what becomes of them.

use std::{collections::HashMap, sync::Arc};

use serde::Deserialize;

use super::super::knowledge::PodMeta;

/// A list of pods.
#[derive(Debug, Default, Deserialize)]
pub(super) struct PodList {
    #[serde(default)]
    pub(super) metadata: ListMeta,
    // An empty list of Go is `null`.
    #[serde(default)]
    pub(super) items: Option<Vec<Pod>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    #[serde(default)]
    pub(super) resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectMeta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    #[serde(default)]
    name: String,
    #[serde(default)]
    image: Option<String>,
    #[serde(default, rename = "containerID")]
    container_id: Option<String>,
    #[serde(default)]
    state: States,
    #[serde(default)]
    last_state: States,
}

#[derive(Debug, Default, Deserialize)]
struct States {
    terminated: Option<Terminated>,
}

#[derive(Debug, Deserialize)]
struct Terminated {
    #[serde(default, rename = "containerID")]
    container_id: Option<String>,
}

/// Labels and annotations that become attributes.
#[derive(Clone, Debug, Default)]
pub(super) struct Wants {
    pub(super) labels: Vec<String>,
    pub(super) annotations: Vec<String>,
}

impl Pod {
    /// Under each uid that its cgroup may bear: a static pod's is the hash of its file, which the
    /// API server's mirror of it keeps as an annotation.
    pub(super) fn into_known(self, wants: &Wants) -> Vec<(String, Arc<PodMeta>)> {
        let Self { metadata, status } = self;
        let annotations = metadata.annotations.unwrap_or_default();
        let labels = metadata.labels.unwrap_or_default();
        let mut uids = vec![metadata.uid];
        for key in ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"] {
            uids.extend(annotations.get(key).cloned());
        }
        uids.retain(|uid| !uid.is_empty());
        uids.dedup();

        let mut extra = Vec::new();
        for (kind, names, values) in
            [("label", &wants.labels, &labels), ("annotation", &wants.annotations, &annotations)]
        {
            for name in names {
                let value = values.get(name);
                extra.extend(value.map(|v| (format!("k8s.pod.{kind}.{name}"), v.clone())));
            }
        }
        let statuses = [
            status.init_container_statuses,
            status.container_statuses,
            status.ephemeral_container_statuses,
        ];
        let mut containers = HashMap::new();
        for status in statuses.into_iter().flatten().flatten() {
            let ended = [status.state, status.last_state].map(|s| s.terminated?.container_id);
            // A restarted container had another id before, whose last usage may still come.
            for id in ended.into_iter().chain([status.container_id]).flatten() {
                let id = id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned();
                containers.insert(id, (status.name.clone(), status.image.clone()));
            }
        }
        let (name, namespace) = (metadata.name, metadata.namespace);
        let meta = Arc::new(PodMeta { name, namespace, extra, containers });
        uids.into_iter().map(|uid| (uid, meta.clone())).collect()
    }
}
