//! What the background has found, shared with the chain: the chain looks at a generation counter
//! once a window and takes short locks only when something is new.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use wattpipe_pipeline::{
    telemetry::{Counter, Gauge, Telemetry},
    units::{CgroupId, Nanos, Tgid},
};
use wattpipe_source::{cgroup::CgroupTree, procfs::details::Details};

/// Containers and pods remembered, each.
const MAX_REMEMBERED: usize = 8192;

/// A process: its pid and its start, 0 where that is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessKey {
    /// Its pid.
    pub pid: Tgid,
    /// Its start.
    pub start: Nanos,
}

/// What a runtime knows of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMeta {
    /// Its name.
    pub name: Option<String>,
    /// Its image.
    pub image: Option<String>,
    /// The runtime that answered.
    pub runtime: Option<&'static str>,
    /// What its Kubernetes labels say.
    pub pod: PodRef,
}

/// A container's place in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRef {
    /// Uid of its pod.
    pub uid: Option<String>,
    /// Name of its pod.
    pub name: Option<String>,
    /// Namespace of its pod.
    pub namespace: Option<String>,
    /// Its name within the pod.
    pub container: Option<String>,
}

/// What Kubernetes knows of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMeta {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The labels and annotations that are asked for, under their attribute names.
    pub extra: Vec<(String, String)>,
    /// Its containers by id: name and image.
    pub containers: HashMap<String, (String, Option<String>)>,
}

/// A map that forgets its oldest entries beyond a bound.
#[derive(Debug)]
struct Bounded<V> {
    map: HashMap<Arc<str>, V>,
    order: VecDeque<Arc<str>>,
}

impl<V> Default for Bounded<V> {
    fn default() -> Self {
        Self { map: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V: PartialEq> Bounded<V> {
    /// Whether this is news.
    fn insert(&mut self, key: &str, value: V) -> bool {
        if let Some(slot) = self.map.get_mut(key) {
            let news = *slot != value;
            *slot = value;
            return news;
        }
        if self.map.len() >= MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
        let key: Arc<str> = key.into();
        self.order.push_back(key.clone());
        self.map.insert(key, value);
        true
    }
}

/// What the background has found so far.
#[derive(Debug)]
pub struct Knowledge {
    generation: AtomicU64,
    tree: OnceLock<CgroupTree>,
    found: Mutex<Vec<(ProcessKey, Option<Arc<Details>>)>>,
    users: Mutex<Arc<Users>>,
    containers: Mutex<Bounded<Arc<ContainerMeta>>>,
    pods: Mutex<Bounded<Arc<PodMeta>>>,
    remembered: Gauge,
    /// Cgroups, containers or pods that stayed without a name.
    pub unresolved: Unresolved,
}

/// Counts of what could not be named until its process was gone.
#[derive(Clone, Debug)]
pub struct Unresolved {
    /// Processes whose cgroup id never got a path.
    pub cgroups: Counter,
    /// Look-ups of containers that no runtime knew.
    pub containers: Counter,
    /// Look-ups of pods that Kubernetes did not know.
    pub pods: Counter,
}

impl Unresolved {
    fn new(telemetry: &Telemetry) -> Self {
        let of = |what| {
            telemetry.counter(
                "wattpipe_attribution_unresolved_total",
                "Identities that could not be completed in time, by kind.",
                &[("kind", what)],
            )
        };
        Self { cgroups: of("cgroup"), containers: of("container"), pods: of("pod") }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Knowledge {
    /// Nothing yet.
    pub fn new(telemetry: &Telemetry) -> Self {
        Self {
            generation: AtomicU64::new(0),
            tree: OnceLock::new(),
            found: Mutex::default(),
            users: Mutex::default(),
            containers: Mutex::default(),
            pods: Mutex::default(),
            remembered: telemetry.gauge(
                "wattpipe_attribution_containers",
                "Containers whose name is remembered.",
                &[],
            ),
            unresolved: Unresolved::new(telemetry),
        }
    }

    /// Changes whenever containers, pods or users do.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    fn news(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    /// From now on cgroup ids are looked up in `tree`.
    pub fn set_tree(&self, tree: CgroupTree) {
        // It is set once, by the one worker.
        let _ = self.tree.set(tree);
    }

    /// The path of a cgroup.
    pub fn path(&self, id: CgroupId) -> Option<Arc<str>> {
        self.tree.get()?.path(id)
    }

    /// The line of the hierarchy in use in the text of `/proc/<pid>/cgroup`.
    pub fn path_in<'a>(&self, proc_cgroup: &'a str) -> Option<&'a str> {
        self.tree.get()?.hierarchy().path_in(proc_cgroup)
    }

    /// Hands over what was found about a process; `None` where it is gone.
    pub fn add_process(&self, key: ProcessKey, details: Option<Details>) {
        lock(&self.found).push((key, details.map(Arc::new)));
    }

    /// Takes what was found since the last call.
    pub fn take_processes(&self) -> Vec<(ProcessKey, Option<Arc<Details>>)> {
        std::mem::take(&mut *lock(&self.found))
    }

    /// The users of this host.
    pub fn users(&self) -> Arc<Users> {
        lock(&self.users).clone()
    }

    /// Replaces the users.
    pub fn set_users(&self, users: Users) {
        *lock(&self.users) = Arc::new(users);
        self.news();
    }

    /// What is known of a container.
    pub fn container(&self, id: &str) -> Option<Arc<ContainerMeta>> {
        lock(&self.containers).map.get(id).cloned()
    }

    /// Remembers a container.
    pub fn add_container(&self, id: &str, meta: ContainerMeta) {
        let mut containers = lock(&self.containers);
        let news = containers.insert(id, Arc::new(meta));
        self.remembered.set(containers.map.len() as f64);
        drop(containers);
        if news {
            self.news();
        }
    }

    /// What is known of a pod.
    pub fn pod(&self, uid: &str) -> Option<Arc<PodMeta>> {
        lock(&self.pods).map.get(uid).cloned()
    }

    /// Remembers pods. Ones that Kubernetes no longer lists stay known, within the bound: their
    /// last usage is still to come.
    pub fn add_pods(&self, pods: impl IntoIterator<Item = (String, Arc<PodMeta>)>) {
        let mut known = lock(&self.pods);
        let mut news = false;
        for (uid, meta) in pods {
            news |= known.insert(&uid, meta);
        }
        drop(known);
        if news {
            self.news();
        }
    }
}

/// Names by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(HashMap<u32, Arc<str>>);

impl Users {
    /// From the text of `/etc/passwd`; the first line of a uid counts.
    pub fn parse(passwd: &str) -> Self {
        let mut users = HashMap::new();
        for line in passwd.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(uid)) = (fields.next(), fields.nth(1)) else { continue };
            if let (false, Ok(uid)) = (name.is_empty(), uid.parse()) {
                users.entry(uid).or_insert_with(|| name.into());
            }
        }
        Self(users)
    }

    /// The name, else the number as text.
    pub fn name(&self, uid: u32) -> Arc<str> {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string().into())
    }
}

/// Where a file of the host may be: here, or where `/proc` is mounted elsewhere beside that mount
/// (`/host/proc` and `/host/etc`) and through process 1.
pub fn on_host(path: &str, host: &wattpipe_pipeline::registry::HostRoots) -> Vec<PathBuf> {
    if host.procfs == std::path::Path::new("/proc") {
        return vec![path.into()];
    }
    let below = path.trim_start_matches('/');
    let beside = host.procfs.parent().map(|root| root.join(below));
    beside.into_iter().chain([host.procfs.join("1/root").join(below)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_by_uid() {
        let users = Users::parse(
            "root:x:0:0::/root:/bin/sh\nbroken\n:x:5:\nwww:x:33:33:a:b:c\ntoor:x:0:0::/:/bin/sh\n",
        );
        assert_eq!(&*users.name(0), "root");
        assert_eq!(&*users.name(33), "www");
        assert_eq!(&*users.name(5), "5");
    }

    #[test]
    fn containers_are_bounded_and_only_news_is_news() {
        let knowledge = Knowledge::new(&Telemetry::default());
        let meta = || ContainerMeta { name: Some("a".into()), ..ContainerMeta::default() };
        knowledge.add_container("x", meta());
        let generation = knowledge.generation();
        knowledge.add_container("x", meta());
        assert_eq!(knowledge.generation(), generation);
        for i in 0..20_000 {
            knowledge.add_container(&i.to_string(), meta());
        }
        let containers = lock(&knowledge.containers);
        assert_eq!(
            (containers.map.len(), containers.order.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
    }
}
