//! One look at all processes, and what changed since the one before.
//!
//! A process that has used no CPU time since the last look costs one system call. One that has is
//! looked at closely: its start time (a pid may be another process by now), name, parent, cgroup.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use wattpipe_pipeline::{
    batch::{State, UsageRow},
    identity::{AttributeSet, CgroupRef, Process, attr},
    units::{Nanos, Tgid, rfc3339},
};

use super::{
    cpu_time::{CpuTime, Method},
    details::{self, Details},
};
use crate::cgroup::Hierarchy;

/// Everything that outlives a window.
#[derive(Debug)]
pub(super) struct Processes {
    procfs: PathBuf,
    method: Method,
    hierarchy: Option<Hierarchy>,
    known: HashMap<Tgid, Known>,
    looks: u64,
}

#[derive(Debug)]
struct Known {
    process: Arc<Process>,
    attributes: Arc<AttributeSet>,
    /// Start since boot, as `stat` tells it: with the pid it names the process.
    started: Nanos,
    time: CpuTime,
    /// CPU time that rows have shown.
    shown: Nanos,
    seen: u64,
    exited: bool,
}

/// When a look takes place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Unix time of `CLOCK_MONOTONIC` 0.
    pub(super) boot_unix_ns: u64,
    /// How far `CLOCK_BOOTTIME` is ahead.
    pub(super) suspended: Nanos,
    /// The last look, on `CLOCK_MONOTONIC`; `None` for the first one.
    pub(super) last: Option<Nanos>,
}

impl Processes {
    pub(super) fn new(procfs: &Path, hierarchy: Option<Hierarchy>) -> Self {
        Self {
            procfs: procfs.to_owned(),
            method: Method::of(procfs),
            hierarchy,
            known: HashMap::new(),
            looks: 0,
        }
    }

    pub(super) fn method(&self) -> Method {
        self.method
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Looks at all processes. Rows have the time since the last look, at most `room` in all: what
    /// is beyond (the look takes time itself) comes with the next one.
    pub(super) fn look(&mut self, moment: Moment, room: Nanos) -> std::io::Result<Vec<UsageRow>> {
        self.looks += 1;
        let mut rows = Vec::new();
        for entry in fs::read_dir(&self.procfs)?.flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
                self.look_at(Tgid(pid), moment, &mut rows);
            }
        }
        let looks = self.looks;
        self.known.retain(|_, known| {
            let there = known.seen == looks;
            if !there && !known.exited {
                rows.push(known.row(State::Exited));
            }
            there
        });
        if moment.last.is_none() {
            // The first look only tells where to start.
            rows.clear();
        }
        self.fit(&mut rows, room);
        Ok(rows)
    }

    fn look_at(&mut self, pid: Tgid, moment: Moment, rows: &mut Vec<UsageRow>) {
        if let Some(known) = self.known.get_mut(&pid) {
            match known.time.advance(self.method, &self.procfs, pid) {
                Some(false) => {
                    known.seen = self.looks;
                    return;
                }
                Some(true) => {}
                // Gone since the directory was read.
                None => return,
            }
            let directory = self.procfs.join(pid.to_string());
            let Ok(stat) = details::read_stat(&directory) else { return };
            let now = details::of_stat(&stat);
            if now.started == known.started {
                known.seen = self.looks;
                // A zombie whose last thread this is has used all it ever will.
                let exited = matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1;
                known.refresh(&now, &directory, self.hierarchy.as_ref());
                let state = if exited { State::Exited } else { State::Running };
                known.exited |= exited;
                rows.push(known.row(state));
                return;
            }
            // The pid is another process now; this one's last stretch is not told any more.
            known.time.total = known.shown;
            let gone = (!known.exited).then(|| known.row(State::Exited));
            rows.extend(gone);
            self.known.remove(&pid);
        }
        if let Some(known) = self.meet(pid, moment) {
            let news = known.time.total > known.shown;
            let mut known = known;
            if news {
                rows.push(known.row(if known.exited { State::Exited } else { State::Running }));
            }
            self.known.insert(pid, known);
        }
    }

    /// A process not seen before.
    fn meet(&self, pid: Tgid, moment: Moment) -> Option<Known> {
        let mut time = CpuTime::default();
        time.advance(self.method, &self.procfs, pid)?;
        let details = details::read(&self.procfs, pid, false)?;
        let start = details.started.since(moment.suspended);
        let mut process = Process {
            start_time: Some(start),
            uid: details.uid,
            exe: details.exe.as_deref().map(Into::into),
            ..Process::unknown(pid)
        };
        update(&mut process, &details);
        process.cgroup = cgroup(details.cgroups.as_deref(), self.hierarchy.as_ref());
        // One that is older than the last look had its time before (or was hidden from us).
        let slack = Nanos(20_000_000);
        let fresh = moment.last.is_some_and(|last| start.0 + slack.0 >= last.0);
        let shown = if fresh { Nanos(0) } else { time.total };
        Some(Known {
            attributes: Arc::new(attributes(&process, moment)),
            process: Arc::new(process),
            started: details.started,
            time,
            shown,
            seen: self.looks,
            exited: false,
        })
    }

    /// Holds back what does not fit into `room`, from the largest rows.
    fn fit(&mut self, rows: &mut [UsageRow], room: Nanos) {
        let used: u64 = rows.iter().map(|r| r.cpu.0).sum();
        let mut excess = used.saturating_sub(room.0);
        while excess > 0 {
            let Some(row) = rows.iter_mut().max_by_key(|r| r.cpu) else { return };
            let part = excess.min((row.cpu.0 / 2).max(1)).min(row.cpu.0);
            if part == 0 {
                return;
            }
            row.cpu.0 -= part;
            excess -= part;
            let pid = row.process.as_ref().map(|p| p.pid);
            if let Some(known) = pid.and_then(|pid| self.known.get_mut(&pid)) {
                known.shown.0 -= part;
            }
        }
    }
}

impl Known {
    fn row(&mut self, state: State) -> UsageRow {
        let cpu = self.time.total.since(self.shown);
        self.shown = self.time.total;
        UsageRow {
            process: Some(self.process.clone()),
            attributes: self.attributes.clone(),
            state,
            cpu,
            cycles: None,
            // `/proc` counts a process's switches per thread and forgets those of ended threads.
            switches: None,
            energy: Default::default(),
            confidence: None,
        }
    }

    /// Takes over what may have changed: the program, the parent, the cgroup.
    fn refresh(&mut self, now: &Details, directory: &Path, hierarchy: Option<&Hierarchy>) {
        let text = fs::read_to_string(directory.join("cgroup")).ok();
        let group = match cgroup(text.as_deref(), hierarchy) {
            CgroupRef::Unknown => self.process.cgroup.clone(),
            group => group,
        };
        let renamed = self.process.comm.as_deref() != Some(now.comm.as_str());
        if !renamed && self.process.ppid == now.ppid && self.process.cgroup == group {
            return;
        }
        let mut process = (*self.process).clone();
        update(&mut process, now);
        process.cgroup = group;
        if renamed {
            process.exe = None;
            let again = directory.parent().and_then(|p| details::read(p, process.pid, false));
            if let Some(again) = again {
                process.exe = again.exe.map(Into::into);
                process.uid = again.uid.or(process.uid);
            }
            // A name is part of the set, the creation time stays as it was first shown.
            let mut set = (*self.attributes).clone();
            set.set_some(attr::PROCESS_EXECUTABLE_NAME, process.comm.clone());
            self.attributes = Arc::new(set);
        }
        self.process = Arc::new(process);
    }
}

fn update(process: &mut Process, details: &Details) {
    process.ppid = details.ppid.or(process.ppid);
    process.comm = Some(details.comm.as_str().into());
    process.kind = details.kind.or(process.kind);
}

fn cgroup(text: Option<&str>, hierarchy: Option<&Hierarchy>) -> CgroupRef {
    let path = text.zip(hierarchy).and_then(|(text, hierarchy)| hierarchy.path_in(text));
    path.map_or(CgroupRef::Unknown, |path| CgroupRef::Path(path.into()))
}

fn attributes(process: &Process, moment: Moment) -> AttributeSet {
    let mut set = AttributeSet::new();
    set.set(attr::PROCESS_PID, process.pid.0);
    let created = process.start_time.map(|s| rfc3339(moment.boot_unix_ns.saturating_add(s.0)));
    set.set_some(attr::PROCESS_CREATION_TIME, created);
    set.set_some(attr::PROCESS_EXECUTABLE_NAME, process.comm.clone());
    set
}
