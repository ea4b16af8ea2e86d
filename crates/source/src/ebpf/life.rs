//! Life-cycle records: from the probe's bytes to the pipeline's events, and the snapshot of what
//! was there before.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use wattpipe_ebpf_probe_common::{LIFE_KTHREAD, LifeRecord, life};
use wattpipe_pipeline::{
    batch::{ProcessEvent, ProcessEventKind},
    identity::{CgroupRef, Process, ProcessKind},
    units::{Nanos, Tgid},
};

use super::cgroup::Cgroups;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = size_of::<LifeRecord>();
/// Names remembered, so that the hundredth `bash` costs no allocation.
const MAX_NAMES: usize = 4096;
/// The last threads of a process may end on two CPUs at once, and each then sees none left: the
/// second exit of a pair is at most this many exits away.
const RECENT_EXITS: usize = 64;

/// Turns records into events.
pub(crate) struct Lives {
    names: HashMap<[u8; 16], Arc<str>>,
    exits: VecDeque<(u32, u64)>,
    cgroups: Cgroups,
    pub(crate) malformed: u64,
}

impl Lives {
    pub(crate) fn new(cgroups: Cgroups) -> Self {
        Self {
            names: HashMap::new(),
            exits: VecDeque::with_capacity(RECENT_EXITS),
            cgroups,
            malformed: 0,
        }
    }

    /// Takes in one record.
    pub(crate) fn record(&mut self, record: &[u8], out: &mut Vec<ProcessEvent>) {
        let Some(record) = parse(record) else {
            self.malformed += 1;
            return;
        };
        let kind = match record.kind {
            life::FORK => ProcessEventKind::Fork,
            life::EXEC => ProcessEventKind::Exec,
            life::EXIT if self.is_repeated_exit(&record) => return,
            life::EXIT => ProcessEventKind::Exit,
            life::SNAPSHOT | life::CGROUP => ProcessEventKind::Snapshot,
            _ => {
                self.malformed += 1;
                return;
            }
        };
        let known = |value: u64| (value != 0).then_some(Nanos(value));
        out.push(ProcessEvent {
            ts: Nanos(record.ts),
            kind,
            process: Process {
                pid: Tgid(record.pid),
                start_time: known(record.start_time),
                ppid: Some(Tgid(record.ppid)),
                comm: Some(self.name(record.comm)),
                exe: None,
                uid: Some(record.uid),
                kind: Some(if record.flags & LIFE_KTHREAD != 0 {
                    ProcessKind::Kernel
                } else {
                    ProcessKind::User
                }),
                cgroup: match record.cgroup {
                    // An exiting task may have been detached already; it stays where it was.
                    _ if kind == ProcessEventKind::Exit => CgroupRef::Unknown,
                    0 => CgroupRef::Unknown,
                    id => self.cgroups.path(id),
                },
            },
        });
    }

    fn is_repeated_exit(&mut self, record: &LifeRecord) -> bool {
        let id = (record.pid, record.start_time);
        if self.exits.contains(&id) {
            return true;
        }
        if self.exits.len() == RECENT_EXITS {
            self.exits.pop_front();
        }
        self.exits.push_back(id);
        false
    }

    fn name(&mut self, comm: [u8; 16]) -> Arc<str> {
        if let Some(name) = self.names.get(&comm) {
            return Arc::clone(name);
        }
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        let text = comm.split(|b| *b == 0).next().unwrap_or_default();
        let name: Arc<str> = String::from_utf8_lossy(text).into();
        self.names.insert(comm, Arc::clone(&name));
        name
    }
}

/// Takes a record apart; `None` where it is not one.
fn parse(bytes: &[u8]) -> Option<LifeRecord> {
    if bytes.len() != RECORD_BYTES {
        return None;
    }
    let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    Some(LifeRecord {
        ts: long(0)?,
        start_time: long(8)?,
        cgroup: long(16)?,
        pid: word(24)?,
        ppid: word(28)?,
        uid: word(32)?,
        kind: word(36)?,
        flags: word(40)?,
        reserved: 0,
        comm: bytes.get(48..64)?.try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32, pid: u32, start: u64, comm: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for long in [100, start, 0] {
            out.extend(long.to_ne_bytes());
        }
        for word in [pid, 1, 1000, kind, 0, 0] {
            out.extend(word.to_ne_bytes());
        }
        let mut name = [0; 16];
        name[..comm.len()].copy_from_slice(comm);
        out.extend(name);
        out
    }

    fn lives() -> Lives {
        Lives::new(Cgroups::none())
    }

    #[test]
    fn records_become_events() {
        let (mut lives, mut out) = (lives(), Vec::new());
        let check = |out: &mut Vec<ProcessEvent>, kind| {
            assert_eq!(out.pop().map(|e| e.kind), Some(kind));
        };
        for (code, kind) in [
            (life::SNAPSHOT, ProcessEventKind::Snapshot),
            (life::FORK, ProcessEventKind::Fork),
            (life::EXEC, ProcessEventKind::Exec),
            (life::EXIT, ProcessEventKind::Exit),
            (life::CGROUP, ProcessEventKind::Snapshot),
        ] {
            lives.record(&bytes(code, 7, 50, b"worker"), &mut out);
            check(&mut out, kind);
        }
        lives.record(&bytes(life::FORK, 7, 50, b"0123456789abcdef"), &mut out);
        let process = out.pop().unwrap().process;
        assert_eq!((process.pid, process.start_time), (Tgid(7), Some(Nanos(50))));
        assert_eq!(process.comm.as_deref(), Some("0123456789abcdef"));
        assert_eq!(process.kind, Some(ProcessKind::User));
    }

    #[test]
    fn a_process_exits_once_and_its_successor_too() {
        let (mut lives, mut out) = (lives(), Vec::new());
        for start in [50, 50, 60] {
            lives.record(&bytes(life::EXIT, 7, start, b"x"), &mut out);
        }
        let starts: Vec<_> = out.iter().map(|e| e.process.start_time).collect();
        assert_eq!(starts, [Some(Nanos(50)), Some(Nanos(60))]);
    }

    #[test]
    fn hostile_records_are_counted() {
        let (mut lives, mut out) = (lives(), Vec::new());
        let whole = bytes(life::FORK, 7, 50, &[0xff; 16]);
        for length in 0..whole.len() {
            lives.record(&whole[..length], &mut out);
        }
        lives.record(&bytes(99, 7, 50, b"x"), &mut out);
        assert_eq!(lives.malformed, whole.len() as u64 + 1);
        lives.record(&whole, &mut out);
        assert_eq!(out.len(), 1);
    }
}
