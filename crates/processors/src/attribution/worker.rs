//! The background of `attribution`: one thread that watches the cgroup tree, reads `/proc` and
//! asks runtimes and Kubernetes. The chain hands requests over a bounded queue and never waits.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet};
use tracing::warn;
use wattpipe_pipeline::{
    identity::ProcessKind,
    privileges::Privileges,
    registry::HostRoots,
    telemetry::{Counter, Telemetry},
    units::Tgid,
};
use wattpipe_source::{
    cgroup::{self, CgroupTree, tree::Watching},
    procfs::{
        details::{self, Details},
        namespace::PidNamespace,
    },
};

use super::{
    cache::Ask,
    cgroup_path::{self, PodUid},
    config::{AttributionConfig, Sockets},
    facts::Missing,
    knowledge::{Knowledge, ProcessKey, Users, on_host},
    kubernetes,
    lookups::{Lookups, Verdict},
    runtimes::{self, Answer},
};

/// Requests that may wait. More are deferred: the chain asks again with the next window.
const QUEUE: usize = 8192;
/// How often `/etc/passwd` is looked at.
const USERS_EVERY: Duration = Duration::from_secs(60);
/// Containers that may wait for a runtime's answer.
const ASKED: usize = 256;
/// How often sockets are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What the chain asks for.
#[derive(Debug)]
pub enum Request {
    /// A process's `/proc`.
    Process(ProcessKey),
    /// A container's or pod's name.
    Container(Missing),
}

/// The chain's end: ends the thread when dropped.
#[derive(Debug)]
pub struct Worker {
    requests: mpsc::Sender<Request>,
    deferred: Counter,
}

impl Ask for Worker {
    fn process(&mut self, key: ProcessKey) -> bool {
        self.send(Request::Process(key))
    }

    fn container(&mut self, missing: &Missing) -> bool {
        self.send(Request::Container(missing.clone()))
    }
}

impl Worker {
    /// Starts the thread. All I/O happens there.
    pub fn start(
        config: &AttributionConfig,
        host: &HostRoots,
        privileges: &Privileges,
        knowledge: &Arc<Knowledge>,
        telemetry: &Telemetry,
    ) -> std::io::Result<Self> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let background = Background {
            config: config.clone(),
            host: host.clone(),
            privileges: privileges.clone(),
            knowledge: knowledge.clone(),
            telemetry: telemetry.clone(),
            requests: requests.downgrade(),
            joins: true,
            passwd: None,
            containers: Lookups::default(),
            pods: Lookups::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("attribution".into()).spawn(move || {
            // Dropping the runtime, rather than waiting for it, leaves no look-up behind.
            runtime.block_on(background.run(queue));
            runtime.shutdown_background();
        })?;
        let deferred = telemetry.counter(
            "wattpipe_attribution_deferred_total",
            "Look-ups put off because too many were waiting.",
            &[],
        );
        Ok(Self { requests, deferred })
    }

    fn send(&self, request: Request) -> bool {
        let sent = self.requests.try_send(request).is_ok();
        if !sent {
            self.deferred.add(1);
        }
        sent
    }
}

struct Background {
    config: AttributionConfig,
    host: HostRoots,
    privileges: Privileges,
    knowledge: Arc<Knowledge>,
    telemetry: Telemetry,
    /// The chain's queue from its other end: cgroups that appear are asked for at once, since a
    /// short-lived container is known to its runtime only while it lives.
    requests: mpsc::WeakSender<Request>,
    joins: bool,
    passwd: Option<String>,
    containers: Lookups,
    pods: Lookups,
}

/// What runs beside the background's own loop.
struct Helpers {
    ask: Option<mpsc::Sender<Arc<str>>>,
    answers: mpsc::Receiver<(Arc<str>, Answer)>,
    pod_wanted: Option<mpsc::Sender<()>>,
    tasks: JoinSet<()>,
}

impl Background {
    async fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        let _watching = self.watch();
        self.refresh_users();
        self.joins = PidNamespace::of(&self.host.procfs).joins();
        if !self.joins {
            warn!(
                procfs = %self.host.procfs.display(),
                "this /proc is of another PID namespace than the kernel's records: processes keep what the kernel says and get no executable path, command line or owner from /proc; run in the host's PID namespace (hostPID: true) or mount the host's /proc and name it in host::procfs"
            );
        }
        let mut helpers = self.helpers();
        let mut users = tokio::time::interval(USERS_EVERY);
        users.reset();
        loop {
            let next = [self.containers.next(), self.pods.next()].into_iter().flatten().min();
            tokio::select! {
                request = queue.recv() => match request {
                    Some(request) => {
                        self.answer(request);
                        // Reading `/proc` does not wait, so others must be let in now and then.
                        tokio::task::yield_now().await;
                    }
                    None => break,
                },
                Some((id, answer)) = helpers.answers.recv() => self.container_answered(&id, answer),
                () = sleep_until(next) => self.ask_for_due(&helpers),
                _ = users.tick() => self.refresh_users(),
            }
        }
        helpers.tasks.abort_all();
    }

    fn watch(&self) -> Option<Watching> {
        let Some(hierarchy) = cgroup::hierarchy(&self.host) else {
            warn!(
                cgroupfs = %self.host.cgroupfs.display(),
                "no cgroup file system: processes stay without cgroup, container and unit; mount it and name it in host::cgroupfs"
            );
            return None;
        };
        let tree = CgroupTree::new(hierarchy, &self.telemetry)
            .inspect_err(|e| warn!("cgroups are not watched: {e}"))
            .ok()?;
        self.knowledge.set_tree(tree.clone());
        let requests = self.requests.clone();
        let on_new = move |path: &Arc<str>| {
            let facts = cgroup_path::parse(path);
            let pod = facts.pod_uid.as_ref().map(PodUid::as_str);
            if let Some(missing) = Missing::of(facts.container_id, pod)
                && let Some(requests) = requests.upgrade()
            {
                // A full queue only means that the first row asks.
                let _ = requests.try_send(Request::Container(missing));
            }
        };
        tree.watch(Box::new(on_new)).inspect_err(|e| warn!("cgroups are not watched: {e}")).ok()
    }

    fn helpers(&self) -> Helpers {
        let mut tasks = JoinSet::new();
        let (answers_tx, answers) = mpsc::channel(ASKED);
        let ask = (self.config.containers != Sockets::List(Vec::new())).then(|| {
            let (ask, queue) = mpsc::channel(ASKED);
            let asker = Asker {
                sockets: self.config.containers.clone(),
                host: self.host.clone(),
                names_elsewhere: self.config.kubernetes.is_some(),
            };
            tasks.spawn(asker.run(queue, answers_tx));
            ask
        });
        let pod_wanted = self.config.kubernetes.clone().map(|config| {
            let (wanted_tx, wanted) = mpsc::channel(1);
            tasks.spawn(kubernetes::run(config, self.knowledge.clone(), wanted));
            wanted_tx
        });
        Helpers { ask, answers, pod_wanted, tasks }
    }

    fn refresh_users(&mut self) {
        let files = on_host("/etc/passwd", &self.host);
        let text = files.iter().find_map(|file| fs::read_to_string(file).ok());
        if text != self.passwd {
            self.knowledge.set_users(Users::parse(text.as_deref().unwrap_or_default()));
            self.passwd = text;
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Process(key) => {
                let found = self.joins.then(|| self.details(key.pid)).flatten();
                let suspended = details::suspended();
                let found =
                    found.filter(|d| key.start.0 == 0 || d.started_at(key.start, suspended));
                self.knowledge.add_process(key, found);
            }
            Request::Container(Missing { container, pod }) => {
                let now = Instant::now();
                if let Some(id) = container.filter(|id| self.knowledge.container(id).is_none()) {
                    self.containers.add(&id, now);
                }
                if let Some(uid) = pod.filter(|uid| self.knowledge.pod(uid).is_none()) {
                    self.pods.add(&uid, now);
                }
            }
        }
    }

    /// What `/proc` says. Another user's executable is told to the privileged alone.
    fn details(&self, pid: Tgid) -> Option<Details> {
        let read = || details::read(&self.host.procfs, pid, self.config.command_line);
        let found = read()?;
        if found.exe.is_some() || found.kind == Some(ProcessKind::Kernel) {
            return Some(found);
        }
        let _raised = self.privileges.raise();
        read()
    }

    fn ask_for_due(&mut self, helpers: &Helpers) {
        let now = Instant::now();
        for id in self.containers.due(now) {
            let asked = helpers.ask.as_ref().map(|ask| ask.try_send(id.clone()));
            match asked {
                Some(Ok(())) => {}
                Some(Err(_)) => {
                    self.containers.unknown(&id, now);
                }
                // Nobody is to be asked.
                None => self.containers.known(&id),
            }
        }
        for uid in self.pods.due(now) {
            if helpers.pod_wanted.is_none() || self.knowledge.pod(&uid).is_some() {
                self.pods.known(&uid);
            } else if self.pods.unknown(&uid, now) == Verdict::Unresolved {
                self.knowledge.unresolved.pods.add(1);
            } else if let Some(wanted) = &helpers.pod_wanted {
                // One is already on its way where this is full.
                let _ = wanted.try_send(());
            }
        }
    }

    fn container_answered(&mut self, id: &Arc<str>, answer: Answer) {
        match answer {
            Answer::Known(meta) => {
                self.knowledge.add_container(id, *meta);
                self.containers.known(id);
            }
            Answer::Unknown | Answer::Nobody => {
                if self.containers.unknown(id, Instant::now()) == Verdict::Unresolved {
                    self.knowledge.unresolved.containers.add(1);
                }
            }
        }
    }
}

/// Until then, or for ever.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Asks the runtimes, one container after the other: a runtime that hangs holds up nobody else.
struct Asker {
    sockets: Sockets,
    host: HostRoots,
    names_elsewhere: bool,
}

impl Asker {
    async fn run(
        self,
        mut queue: mpsc::Receiver<Arc<str>>,
        answers: mpsc::Sender<(Arc<str>, Answer)>,
    ) {
        let mut runtimes = Vec::new();
        let mut looked: Option<Instant> = None;
        let mut told = false;
        while let Some(id) = queue.recv().await {
            // A runtime may start after us.
            if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                looked = Some(Instant::now());
                runtimes::find_more(&mut runtimes, &self.sockets, &self.host);
            }
            if runtimes.is_empty() && !self.names_elsewhere && !std::mem::replace(&mut told, true) {
                warn!(
                    "containers are named by id only: no socket of Docker, Podman, containerd or CRI-O in the usual places; mount it, or name it in attribution::containers"
                );
            }
            let answer = runtimes::ask(&mut runtimes, &id).await;
            if answers.send((id, answer)).await.is_err() {
                return;
            }
        }
    }
}
