//! The background of `attribution`: one thread that watches the cgroup tree, reads `/proc` and
//! asks runtimes and Kubernetes. The chain hands requests over a bounded queue and never waits.

use std::{fs, sync::Arc, thread, time::Duration};

use tokio::sync::mpsc;
use tracing::warn;
use wattpipe_pipeline::{
    registry::HostRoots,
    telemetry::{Counter, Telemetry},
};
use wattpipe_source::{
    cgroup::{self, CgroupTree, tree::Watching},
    procfs::{details, namespace::PidNamespace},
};

use super::{
    cache::Ask,
    config::AttributionConfig,
    facts::Missing,
    knowledge::{Knowledge, ProcessKey, Users, passwd_files},
};

/// Requests that may wait. More are deferred: the chain asks again with the next window.
const QUEUE: usize = 8192;
/// How often `/etc/passwd` is looked at.
const USERS_EVERY: Duration = Duration::from_secs(60);

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
        knowledge: &Arc<Knowledge>,
        telemetry: &Telemetry,
    ) -> std::io::Result<Self> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let background = Background {
            config: config.clone(),
            host: host.clone(),
            knowledge: knowledge.clone(),
            telemetry: telemetry.clone(),
            joins: true,
            passwd: None,
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
    knowledge: Arc<Knowledge>,
    telemetry: Telemetry,
    joins: bool,
    passwd: Option<String>,
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
        let mut users = tokio::time::interval(USERS_EVERY);
        users.reset();
        loop {
            tokio::select! {
                request = queue.recv() => match request {
                    Some(request) => {
                        self.answer(request);
                        // Reading `/proc` does not wait, so others must be let in now and then.
                        tokio::task::yield_now().await;
                    }
                    None => return,
                },
                _ = users.tick() => self.refresh_users(),
            }
        }
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
        tree.watch(Box::new(|_| {})).inspect_err(|e| warn!("cgroups are not watched: {e}")).ok()
    }

    fn refresh_users(&mut self) {
        let text = passwd_files(&self.host).iter().find_map(|file| fs::read_to_string(file).ok());
        if text != self.passwd {
            self.knowledge.set_users(Users::parse(text.as_deref().unwrap_or_default()));
            self.passwd = text;
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Process(key) => {
                let found = self
                    .joins
                    .then(|| details::read(&self.host.procfs, key.pid, self.config.command_line));
                let suspended = details::suspended();
                let found = found
                    .flatten()
                    .filter(|d| key.start.0 == 0 || d.started_at(key.start, suspended));
                self.knowledge.add_process(key, found);
            }
            Request::Container(_) => {}
        }
    }
}
