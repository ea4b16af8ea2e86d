//! Paths by cgroup id, of directories that are there and of ones that have gone.
//!
//! A container may live for 50 ms, and who asks for its path asks at a window's end, so paths are
//! learnt when the directory is made: inotify watches every directory of the hierarchy. A path
//! stays known after its directory has gone, within bounds. Where inotify cannot watch (its limit
//! is reached, or a file system without it), a look-up that finds nothing asks for a walk of the
//! tree; walks are rare, and rarer while they find nothing. A directory that vanishes midway is
//! normal.
//!
//! One thread owns the watches. Look-ups take a short lock and never wait for it to work.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{fs::MetadataExt, net::UnixStream},
    },
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
};
use tracing::{debug, warn};
use wattpipe_pipeline::{
    telemetry::{Counter, Gauge, Telemetry},
    units::CgroupId,
};

use super::Hierarchy;

/// Directories known at most, gone ones included.
const MAX_KNOWN: usize = 65_536;
/// Of these, gone ones kept at most.
const MAX_GONE: usize = 16_384;
/// Directories watched at most.
const MAX_WATCHES: usize = 32_768;
/// Time between walks on demand, doubled each time a walk finds nothing new.
const WALK_PAUSE: Duration = Duration::from_secs(1);
const WALK_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Called with each path that appears, from the watching thread: it must not wait.
pub type OnNew = Box<dyn Fn(&Arc<str>) + Send>;

/// Looks paths up. Clones share the same knowledge.
#[derive(Clone, Debug)]
pub struct CgroupTree(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    hierarchy: Hierarchy,
    known: Mutex<Known>,
    walk_wanted: AtomicBool,
    stop: AtomicBool,
    waker: UnixStream,
    wakes: UnixStream,
    walks: Counter,
    dropped: Counter,
    size: Gauge,
}

/// Keeps the watching thread; ends it when dropped.
#[derive(Debug)]
pub struct Watching {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl CgroupTree {
    /// The tree of `hierarchy`, nothing known yet.
    pub fn new(hierarchy: Hierarchy, telemetry: &Telemetry) -> io::Result<Self> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        Ok(Self(Arc::new(Shared {
            hierarchy,
            known: Mutex::default(),
            walk_wanted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            waker,
            wakes,
            walks: telemetry.counter(
                "wattpipe_cgroup_walks_total",
                "Walks of the cgroup tree.",
                &[],
            ),
            dropped: telemetry.counter(
                "wattpipe_cgroup_dropped_total",
                "Cgroups that were not remembered or not watched because a limit was reached.",
                &[],
            ),
            size: telemetry.gauge("wattpipe_cgroup_known", "Cgroups whose path is known.", &[]),
        })))
    }

    /// Which hierarchy it is of.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.0.hierarchy
    }

    /// The path of a cgroup, as far as it is known. Where it is not, the tree is walked soon.
    pub fn path(&self, id: CgroupId) -> Option<Arc<str>> {
        let path = self.0.known().by_id.get(&id.0).cloned();
        if path.is_none() && !self.0.walk_wanted.swap(true, Relaxed) {
            self.0.wake();
        }
        path
    }

    /// Starts the thread that walks the tree once and then watches it.
    pub fn watch(&self, on_new: OnNew) -> io::Result<Watching> {
        let shared = self.0.clone();
        let mut watcher = Watcher::new(shared.clone(), on_new);
        let thread = thread::Builder::new().name("cgroups".into()).spawn(move || watcher.run())?;
        Ok(Watching { shared, thread: Some(thread) })
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full pipe has woken it already.
        let _ = (&self.waker).write(&[1]);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is known of the tree.
#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<u64, Arc<str>>,
    by_path: HashMap<Arc<str>, u64>,
    gone: VecDeque<u64>,
}

/// What became of an insertion.
#[derive(PartialEq)]
enum Insert {
    New,
    Known,
    Full,
}

impl Known {
    fn insert(&mut self, id: u64, path: &Arc<str>) -> Insert {
        if self.by_path.get(path) == Some(&id) {
            return Insert::Known;
        }
        if !self.by_id.contains_key(&id) && self.by_id.len() >= MAX_KNOWN && !self.forget_oldest() {
            return Insert::Full;
        }
        if let Some(old) = self.by_path.insert(path.clone(), id) {
            self.gone.push_back(old);
        }
        if let Some(old) = self.by_id.insert(id, path.clone())
            && self.by_path.get(&old) == Some(&id)
            && old != *path
        {
            self.by_path.remove(&old);
        }
        Insert::New
    }

    fn mark_gone(&mut self, path: &str) {
        if let Some(id) = self.by_path.remove(path) {
            self.gone.push_back(id);
        }
        while self.gone.len() > MAX_GONE {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) -> bool {
        while let Some(id) = self.gone.pop_front() {
            // An id that came back (a renamed directory) lives under its new path.
            let lives = self.by_id.get(&id).is_some_and(|p| self.by_path.get(p) == Some(&id));
            if !lives && self.by_id.remove(&id).is_some() {
                return true;
            }
        }
        false
    }
}

/// The state of the watching thread.
struct Watcher {
    shared: Arc<Shared>,
    on_new: OnNew,
    inotify: Option<Inotify>,
    watched: HashMap<WatchDescriptor, Arc<str>>,
    refused: bool,
    next_walk: Instant,
    pause: Duration,
}

impl Watcher {
    fn new(shared: Arc<Shared>, on_new: OnNew) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .inspect_err(|e| warn!("cgroups are not watched ({e}): short-lived containers may stay unnamed; raise fs.inotify.max_user_instances"))
            .ok();
        Self {
            shared,
            on_new,
            inotify,
            watched: HashMap::new(),
            refused: false,
            next_walk: Instant::now(),
            pause: WALK_PAUSE,
        }
    }

    fn run(&mut self) {
        self.walk();
        while !self.shared.stop.load(Relaxed) {
            self.wait();
            self.read_events();
            if self.shared.walk_wanted.load(Relaxed) && Instant::now() >= self.next_walk {
                self.walk();
            }
        }
    }

    /// Until a directory changes, a walk is asked for or may be done, or the end.
    fn wait(&self) {
        let timeout = if self.shared.walk_wanted.load(Relaxed) {
            let left = self.next_walk.saturating_duration_since(Instant::now());
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        } else {
            PollTimeout::NONE
        };
        let mut fds = vec![PollFd::new(self.shared.wakes.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.inotify.as_ref().map(|i| PollFd::new(i.as_fd(), PollFlags::POLLIN)));
        // An interrupted or failed wait only means that nothing is ready.
        let _ = poll(&mut fds, timeout);
        let mut buffer = [0; 64];
        while (&self.shared.wakes).read(&mut buffer).is_ok_and(|n| n == buffer.len()) {}
    }

    fn read_events(&mut self) {
        loop {
            let Some(events) = self.inotify.as_ref().and_then(|i| i.read_events().ok()) else {
                return;
            };
            for event in events {
                self.event(event);
            }
        }
    }

    fn event(&mut self, event: InotifyEvent) {
        let mask = event.mask;
        if mask.intersects(AddWatchFlags::IN_Q_OVERFLOW | AddWatchFlags::IN_MOVE) {
            // Missed events, or a renamed subtree: the walk puts everything right.
            self.shared.walk_wanted.store(true, Relaxed);
            self.next_walk = Instant::now();
            return;
        }
        if mask.contains(AddWatchFlags::IN_IGNORED) {
            self.watched.remove(&event.wd);
            return;
        }
        let Some(name) = event.name.as_ref().and_then(|n| n.to_str()) else { return };
        let Some(parent) = self.watched.get(&event.wd) else { return };
        let path = child(parent, name);
        if mask.contains(AddWatchFlags::IN_DELETE) {
            self.shared.known().mark_gone(&path);
        } else if mask.contains(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_ISDIR) {
            self.scan(path.into(), &mut |_| {});
        }
        self.publish_size();
    }

    /// The whole tree: learns what is there and marks the rest as gone.
    fn walk(&mut self) {
        self.shared.walk_wanted.store(false, Relaxed);
        self.shared.walks.add(1);
        let mut seen = std::collections::HashSet::new();
        let found = self.scan("/".into(), &mut |path| {
            seen.insert(path.clone());
        });
        let mut known = self.shared.known();
        let gone: Vec<_> =
            known.by_path.keys().filter(|path| !seen.contains(*path)).cloned().collect();
        for path in gone {
            known.mark_gone(&path);
        }
        drop(known);
        self.pause = if found == 0 { (self.pause * 2).min(WALK_PAUSE_MAX) } else { WALK_PAUSE };
        self.next_walk = Instant::now() + self.pause;
        self.publish_size();
    }

    /// Learns and watches `top` and all below it; gives how many were new. Directories made while
    /// it runs are found: each is watched before its children are listed.
    fn scan(&mut self, top: Arc<str>, seen: &mut dyn FnMut(&Arc<str>)) -> usize {
        let mut new = 0;
        let mut stack = vec![top];
        while let Some(path) = stack.pop() {
            let directory = self.shared.hierarchy.mount.join(&path[1..]);
            // Its id first: that is what cannot be had any more once it has gone.
            let Ok(meta) = fs::symlink_metadata(&directory) else { continue };
            if !meta.is_dir() {
                continue;
            }
            let inserted = self.shared.known().insert(meta.ino(), &path);
            match inserted {
                Insert::New => {
                    new += 1;
                    (self.on_new)(&path);
                }
                Insert::Known => {}
                Insert::Full => self.shared.dropped.add(1),
            }
            seen(&path);
            self.add_watch(&directory, &path);
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir())
                    && let Some(name) = entry.file_name().to_str()
                {
                    stack.push(child(&path, name).into());
                }
            }
        }
        new
    }

    fn add_watch(&mut self, directory: &Path, path: &Arc<str>) {
        let Some(inotify) = &self.inotify else { return };
        if self.watched.len() >= MAX_WATCHES {
            return self.refuse("too many cgroups");
        }
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR;
        match inotify.add_watch(directory, flags) {
            Ok(wd) => {
                self.watched.insert(wd, path.clone());
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => debug!(%path, "a cgroup has gone"),
            Err(e) => self.refuse(e.desc()),
        }
    }

    fn refuse(&mut self, why: &str) {
        self.shared.dropped.add(1);
        if !std::mem::replace(&mut self.refused, true) {
            warn!(
                "not every cgroup is watched ({why}): short-lived containers may stay unnamed; raise fs.inotify.max_user_watches"
            );
        }
    }

    fn publish_size(&self) {
        let size = self.shared.known().by_id.len();
        self.shared.size.set(size as f64);
    }
}

fn child(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Version;

    struct Rig {
        dir: tempfile::TempDir,
        tree: CgroupTree,
        seen: Arc<Mutex<Vec<Arc<str>>>>,
        _watching: Watching,
    }

    fn rig(before: &[&str]) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        for path in before {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let hierarchy =
            Hierarchy { mount: dir.path().to_owned(), version: Version::V2, name: "unified" };
        let tree = CgroupTree::new(hierarchy, &Telemetry::default()).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let watching = tree.watch(Box::new(move |p| sink.lock().unwrap().push(p.clone()))).unwrap();
        Rig { dir, tree, seen, _watching: watching }
    }

    impl Rig {
        fn make(&self, path: &str) -> CgroupId {
            fs::create_dir_all(self.dir.path().join(path)).unwrap();
            self.id(path)
        }

        fn id(&self, path: &str) -> CgroupId {
            CgroupId(fs::metadata(self.dir.path().join(path)).unwrap().ino())
        }

        /// Waits until the path of `id` is known (the watching thread is another one).
        fn path(&self, id: CgroupId) -> Option<Arc<str>> {
            for _ in 0..6000 {
                if let Some(path) = self.tree.path(id) {
                    return Some(path);
                }
                thread::sleep(Duration::from_millis(10));
            }
            None
        }
    }

    #[test]
    fn what_was_there_is_known() {
        let rig = rig(&["a/b/c", "d"]);
        assert_eq!(rig.path(rig.id("a/b/c")).as_deref(), Some("/a/b/c"));
        assert_eq!(rig.path(rig.id("d")).as_deref(), Some("/d"));
        assert_eq!(rig.path(rig.id("")).as_deref(), Some("/"));
    }

    #[test]
    fn what_vanished_stays_known_and_its_successor_is_another() {
        let rig = rig(&["a"]);
        rig.path(rig.id("a")).unwrap();
        let first = rig.make("a/docker/x");
        assert_eq!(rig.path(first).as_deref(), Some("/a/docker/x"));
        // Held open, so that the file system cannot hand out the same inode again.
        let held = fs::File::open(rig.dir.path().join("a/docker/x")).unwrap();
        fs::remove_dir(rig.dir.path().join("a/docker/x")).unwrap();
        let second = rig.make("a/docker/x");
        assert_eq!(rig.path(second).as_deref(), Some("/a/docker/x"));
        assert_eq!(rig.path(first).as_deref(), Some("/a/docker/x"));
        drop(held);
        assert!(rig.seen.lock().unwrap().iter().any(|p| &**p == "/a/docker"));
    }

    #[test]
    fn renamed_subtrees_are_followed() {
        let rig = rig(&["a/b"]);
        let id = rig.id("a/b");
        assert_eq!(rig.path(id).as_deref(), Some("/a/b"));
        fs::rename(rig.dir.path().join("a"), rig.dir.path().join("z")).unwrap();
        for _ in 0..6000 {
            if rig.tree.path(id).as_deref() == Some("/z/b") {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("still {:?}", rig.tree.path(id));
    }

    #[test]
    fn knowledge_is_bounded() {
        let mut known = Known::default();
        for id in 0..200_000u64 {
            let path: Arc<str> = format!("/{id}").into();
            assert!(known.insert(id, &path) == Insert::New);
            known.mark_gone(&path);
        }
        assert!(known.by_id.len() <= MAX_GONE + 1, "{}", known.by_id.len());
        assert!(known.by_path.is_empty() && known.gone.len() <= MAX_GONE);
        for id in 1_000_000..1_000_000 + MAX_KNOWN as u64 {
            known.insert(id, &format!("/{id}").into());
        }
        assert_eq!(known.by_id.len(), MAX_KNOWN);
        assert!(known.insert(1, &"/one".into()) == Insert::Full);
    }
}
