//! From a cgroup path to attributes: what the path says, completed by what the runtime and
//! Kubernetes know.

use std::sync::Arc;

use wattpipe_pipeline::identity::{AttributeSet, CgroupRef, Key, ProcessKind, Value, attr};
use wattpipe_source::procfs::details::Details;

use super::{
    cgroup_path::{self, PodUid},
    knowledge::{ContainerMeta, Knowledge, PodMeta, Users},
};
use wattpipe_pipeline::identity::Process;

/// What all processes of one cgroup have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupFacts {
    /// Its path, once known.
    pub path: Option<Arc<str>>,
    /// The attributes that follow from it.
    pub attributes: Vec<(Key, Value)>,
    /// A container or pod whose name is still missing, to be asked for.
    pub missing: Option<Missing>,
}

/// A container or pod to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The container's id.
    pub container: Option<Arc<str>>,
    /// The pod's uid.
    pub pod: Option<Arc<str>>,
}

impl Missing {
    /// `None` where nothing is to be asked for. Only full ids are: runtimes take names as well,
    /// and an LXC container may be called like another one of Docker.
    pub fn of(container: Option<&str>, pod: Option<&str>) -> Option<Self> {
        let full = |id: &&str| id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let (container, pod) = (container.filter(full), pod);
        (container.is_some() || pod.is_some())
            .then(|| Self { container: container.map(Into::into), pod: pod.map(Into::into) })
    }
}

impl GroupFacts {
    /// Works out what is known of a cgroup now. `knowledge` is `None` for recordings.
    pub fn of(cgroup: &CgroupRef, knowledge: Option<&Knowledge>) -> Self {
        let path = match cgroup {
            CgroupRef::Unknown => None,
            CgroupRef::Path(path) => Some(path.clone()),
            CgroupRef::Id(id) => knowledge.and_then(|k| k.path(*id)),
        };
        path.map(|path| Self::of_path(path, knowledge)).unwrap_or_default()
    }

    fn of_path(path: Arc<str>, knowledge: Option<&Knowledge>) -> Self {
        // A directory that has gone is the same cgroup still.
        let path = path.strip_suffix(" (deleted)").map_or_else(|| path.clone(), Into::into);
        let facts = cgroup_path::parse(&path);
        let container = knowledge.zip(facts.container_id).and_then(|(k, id)| k.container(id));
        let uid = facts
            .pod_uid
            .as_ref()
            .map(PodUid::as_str)
            .or_else(|| container.as_ref().and_then(|c| c.pod.uid.as_deref()));
        let pod = knowledge.zip(uid).and_then(|(k, uid)| k.pod(uid));

        let missing = Missing::of(
            facts.container_id.filter(|_| container.is_none()),
            uid.filter(|_| pod.is_none()),
        );
        let mut out = Attributes(Vec::with_capacity(10));
        out.add(attr::PROCESS_LINUX_CGROUP, Some(path.clone()));
        out.add(attr::CONTAINER_ID, facts.container_id);
        out.add(attr::SYSTEMD_UNIT, facts.unit);
        out.add(attr::K8S_POD_UID, uid);
        out.add_container(facts.container_id, facts.runtime, container.as_deref(), pod.as_deref());
        out.add_pod(container.as_deref(), pod.as_deref());
        Self { path: Some(path), attributes: out.0, missing }
    }
}

struct Attributes(Vec<(Key, Value)>);

impl Attributes {
    fn add(&mut self, key: impl Into<Key>, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.0.push((key.into(), value.into()));
        }
    }

    fn add_container(
        &mut self,
        id: Option<&str>,
        runtime: Option<&'static str>,
        meta: Option<&ContainerMeta>,
        pod: Option<&PodMeta>,
    ) {
        let in_pod = pod.zip(id).and_then(|(pod, id)| pod.containers.get(id));
        let image = meta
            .and_then(|m| m.image.as_deref())
            .or_else(|| in_pod.and_then(|(_, image)| image.as_deref()));
        self.add(attr::CONTAINER_NAME, meta.and_then(|m| m.name.as_deref()));
        self.add(attr::CONTAINER_IMAGE_NAME, image);
        self.add(attr::CONTAINER_RUNTIME_NAME, runtime.or_else(|| meta.and_then(|m| m.runtime)));
        let name = in_pod
            .map(|(name, _)| name.as_str())
            .or_else(|| meta.and_then(|m| m.pod.container.as_deref()));
        self.add(attr::K8S_CONTAINER_NAME, name);
    }

    fn add_pod(&mut self, container: Option<&ContainerMeta>, pod: Option<&PodMeta>) {
        let by_labels = container.map(|c| &c.pod);
        let name = pod.map(|p| p.name.as_str());
        let namespace = pod.map(|p| p.namespace.as_str());
        self.add(attr::K8S_POD_NAME, name.or_else(|| by_labels.and_then(|p| p.name.as_deref())));
        self.add(
            attr::K8S_NAMESPACE_NAME,
            namespace.or_else(|| by_labels.and_then(|p| p.namespace.as_deref())),
        );
        for (key, value) in pod.map(|p| p.extra.as_slice()).unwrap_or_default() {
            self.add(key.clone(), Some(value.as_str()));
        }
    }
}

/// The full set of one process: `base` as the source made it, the process's own attributes, and
/// its cgroup's.
pub fn complete(
    base: &AttributeSet,
    process: &Process,
    details: Option<&Details>,
    group: Option<&GroupFacts>,
    users: &Users,
) -> AttributeSet {
    let mut set = base.clone();
    let ppid = process.ppid.or_else(|| details.and_then(|d| d.ppid));
    set.set_some(attr::PROCESS_PARENT_PID, ppid.map(|p| p.0));
    let kind = process.kind.or_else(|| details.and_then(|d| d.kind));
    set.set_some(attr::PROCESS_KIND, kind.map(ProcessKind::as_str));
    let uid = process.uid.or_else(|| details.and_then(|d| d.uid));
    set.set_some(attr::PROCESS_OWNER, uid.map(|uid| users.name(uid)));
    let found = details.and_then(|d| d.exe.as_deref()).map(Value::from);
    set.set_some(attr::PROCESS_EXECUTABLE_PATH, process.exe.clone().map(Value::from).or(found));
    let command_line = details.and_then(|d| d.command_line.as_deref());
    set.set_some(attr::PROCESS_COMMAND_LINE, command_line);
    for (key, value) in group.map(|g| g.attributes.as_slice()).unwrap_or_default() {
        set.set(key.clone(), value.clone());
    }
    set
}
