//! Who belongs to the command: whatever a member forked is a member.

use std::{
    collections::HashSet,
    process,
    sync::{Arc, Mutex, PoisonError},
};

use wattpipe_pipeline::{
    Batch, Processor, ProcessorError,
    batch::ProcessEventKind,
    identity::Process,
    units::{Nanos, Tgid},
};

/// A process and its start: a pid alone may be used again.
type Identity = (Tgid, Option<Nanos>);

/// The command's processes; clones share them.
#[derive(Clone, Default)]
pub(super) struct Members(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Members that have not exited.
    alive: HashSet<Tgid>,
    /// All members so far.
    all: HashSet<Identity>,
}

impl Members {
    /// Whether a row's process is a member.
    pub(super) fn contain(&self, process: &Process) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.all.contains(&(process.pid, process.start_time))
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.len()
    }

    /// How many have not exited.
    pub(super) fn still_run(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).alive.len()
    }

    fn event(&self, kind: ProcessEventKind, process: &Process) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kind {
            ProcessEventKind::Fork => {
                let Some(parent) = process.ppid else { return };
                // The only process that this one forks is the command.
                if parent.0 == process::id() || state.alive.contains(&parent) {
                    state.alive.insert(process.pid);
                    state.all.insert((process.pid, process.start_time));
                } else {
                    // A pid used again by a stranger.
                    state.alive.remove(&process.pid);
                }
            }
            ProcessEventKind::Exit => {
                state.alive.remove(&process.pid);
            }
            ProcessEventKind::Snapshot | ProcessEventKind::Exec => {}
        }
    }
}

/// The step that follows forks; batches pass unchanged.
pub(super) struct Family(pub(super) Members);

impl Processor for Family {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        if let Batch::Switches(switches) = &batch {
            for event in &switches.processes {
                self.0.event(event.kind, &event.process);
            }
        }
        Ok(Some(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, ppid: u32, start: u64) -> Process {
        let mut process = Process::unknown(Tgid(pid));
        process.ppid = Some(Tgid(ppid));
        process.start_time = Some(Nanos(start));
        process
    }

    #[test]
    fn descendants_belong_and_strangers_do_not() {
        use ProcessEventKind::{Exit, Fork};
        let members = Members::default();
        let me = process::id();
        members.event(Fork, &process(10, me, 1));
        members.event(Fork, &process(11, 10, 2));
        members.event(Exit, &process(10, me, 1));
        members.event(Fork, &process(12, 11, 3));
        members.event(Fork, &process(20, 1, 4));
        members.event(Exit, &process(12, 11, 3));
        // The pid of a member that is gone, used again by a stranger, whose child is one too.
        members.event(Fork, &process(12, 1, 5));
        members.event(Fork, &process(13, 12, 6));
        for (pid, start, expected) in [
            (10, 1, true),
            (11, 2, true),
            (12, 3, true),
            (12, 5, false),
            (13, 6, false),
            (20, 4, false),
        ] {
            assert_eq!(members.contain(&process(pid, 0, start)), expected, "{pid} {start}");
        }
        assert_eq!((members.count(), members.still_run()), (3, 1));
    }
}
