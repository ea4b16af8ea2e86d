//! Who used the CPU: a process as the kernel's life-cycle records tell it, and the attribute set
//! that a row carries to the exporters.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::units::{CgroupId, Nanos, Tgid};

/// Whether a process runs user code or is one of the kernel's own threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessKind {
    /// An ordinary process.
    User,
    /// A kernel thread.
    Kernel,
}

impl ProcessKind {
    /// The value of `process.kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }
}

/// The cgroup of a process, as far as its source knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum CgroupRef {
    /// Nothing is known.
    #[default]
    Unknown,
    /// The kernel's id (inode) in the hierarchy in use; a path is still to be found.
    Id(CgroupId),
    /// The path in the hierarchy in use, as `/proc/<pid>/cgroup` shows it.
    Path(Arc<str>),
}

/// One process: `(pid, start_time)` names it for ever, since pids are reused.
///
/// Everything but the pid may be unknown: a lost life-cycle record, or a source without the right
/// to read it. Unknown stays `None`; nothing is made up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The kernel's tgid in the initial PID namespace (live `ebpf`) or the namespace of the source.
    pub pid: Tgid,
    /// `CLOCK_MONOTONIC` time of its start.
    pub start_time: Option<Nanos>,
    /// Its parent's pid.
    pub ppid: Option<Tgid>,
    /// The kernel's 15-byte name.
    pub comm: Option<Arc<str>>,
    /// Path of the executable.
    pub exe: Option<Arc<str>>,
    /// Real user id.
    pub uid: Option<u32>,
    /// User process or kernel thread.
    pub kind: Option<ProcessKind>,
    /// Where it is in the cgroup tree.
    pub cgroup: CgroupRef,
}

impl Process {
    /// A process of which only the pid is known.
    pub fn unknown(pid: Tgid) -> Self {
        Self {
            pid,
            start_time: None,
            ppid: None,
            comm: None,
            exe: None,
            uid: None,
            kind: None,
            cgroup: CgroupRef::Unknown,
        }
    }

    /// Takes over what `newer` knows; what it does not know stays as it was.
    pub fn update(&mut self, newer: &Process) {
        fn take<T: Clone>(slot: &mut Option<T>, newer: &Option<T>) {
            if newer.is_some() {
                slot.clone_from(newer);
            }
        }
        take(&mut self.start_time, &newer.start_time);
        take(&mut self.ppid, &newer.ppid);
        take(&mut self.comm, &newer.comm);
        take(&mut self.exe, &newer.exe);
        take(&mut self.uid, &newer.uid);
        take(&mut self.kind, &newer.kind);
        if newer.cgroup != CgroupRef::Unknown {
            self.cgroup.clone_from(&newer.cgroup);
        }
    }
}

/// A value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// Text.
    Str(Arc<str>),
    /// A whole number (pids).
    Int(i64),
}

impl Value {
    /// The text, where it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(s) => Some(s),
            Self::Int(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(s) => s.fmt(f),
            Self::Int(i) => i.fmt(f),
        }
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Self::Str(s.into())
    }
}
impl From<String> for Value {
    fn from(s: String) -> Self {
        Self::Str(s.into())
    }
}
impl From<Arc<str>> for Value {
    fn from(s: Arc<str>) -> Self {
        Self::Str(s)
    }
}
impl From<u32> for Value {
    fn from(i: u32) -> Self {
        Self::Int(i.into())
    }
}
impl From<i64> for Value {
    fn from(i: i64) -> Self {
        Self::Int(i)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Str(v) => s.serialize_str(v),
            Self::Int(v) => s.serialize_i64(*v),
        }
    }
}

/// The name of an attribute. Nearly all are constants of [`attr`]; pod labels are made at run time.
pub type Key = Cow<'static, str>;

/// Attribute names: OpenTelemetry's semantic conventions, and our own where they have none.
#[expect(missing_docs, reason = "each constant is its own name")]
pub mod attr {
    macro_rules! names {
        ($($name:ident = $text:literal;)*) => {
            $(pub const $name: &str = $text;)*
            /// All of them.
            pub const ALL: &[&str] = &[$($name),*];
        };
    }

    names! {
        PROCESS_PID = "process.pid";
        PROCESS_PARENT_PID = "process.parent_pid";
        PROCESS_CREATION_TIME = "process.creation.time";
        PROCESS_EXECUTABLE_NAME = "process.executable.name";
        PROCESS_EXECUTABLE_PATH = "process.executable.path";
        PROCESS_COMMAND_LINE = "process.command_line";
        PROCESS_OWNER = "process.owner";
        PROCESS_LINUX_CGROUP = "process.linux.cgroup";
        PROCESS_KIND = "process.kind";
        CONTAINER_ID = "container.id";
        CONTAINER_NAME = "container.name";
        CONTAINER_IMAGE_NAME = "container.image.name";
        CONTAINER_RUNTIME_NAME = "container.runtime.name";
        K8S_POD_UID = "k8s.pod.uid";
        K8S_POD_NAME = "k8s.pod.name";
        K8S_NAMESPACE_NAME = "k8s.namespace.name";
        K8S_CONTAINER_NAME = "k8s.container.name";
        SYSTEMD_UNIT = "systemd.unit";
        HOST_NAME = "host.name";
        HOST_ID = "host.id";
    }

    /// Marks a row that stands for rows not kept apart; its value says who made it: the id of a
    /// processor, or `memory_limit`. No row begins with it, so it is not among [`ALL`].
    pub const REST: &str = "wattpipe.rest";
}

/// A small ordered map of attributes. Rows share one set behind an `Arc` for as long as the
/// identity does not change, so a warm window copies no strings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeSet(Vec<(Key, Value)>);

impl AttributeSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key`, replacing what it held.
    pub fn set(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.0.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (key, value)),
        }
    }

    /// Sets `key` where there is a value: absent stays absent.
    pub fn set_some(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.binary_search_by(|(k, _)| k.as_ref().cmp(key)).ok().map(|i| &self.0[i].1)
    }

    /// The text under `key`.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let i = self.0.binary_search_by(|(k, _)| k.as_ref().cmp(key)).ok()?;
        Some(self.0.remove(i).1)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(k, v)| (k.as_ref(), v))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for AttributeSet {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.len()))?;
        for (k, v) in self.iter() {
            map.serialize_entry(k, v)?;
        }
        map.end()
    }
}

impl<K: Into<Key>, V: Into<Value>> FromIterator<(K, V)> for AttributeSet {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut set = Self::new();
        for (k, v) in pairs {
            set.set(k, v);
        }
        set
    }
}
