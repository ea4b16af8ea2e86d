//! The processes that run already, from `/proc`: where the kernel has no task iterator, and what
//! the iterator leaves out (pid 1, on some).

use std::{collections::HashSet, path::Path};

use wattpipe_pipeline::{
    batch::{ProcessEvent, ProcessEventKind},
    identity::Process,
    units::{Nanos, Tgid},
};

use crate::procfs::{details, namespace::PidNamespace};

use super::sys;

/// Appends an event per process that `out` has none of: pid, parent, name and kind. The start time
/// in `/proc` is in ticks of a hundredth of a second, too coarse to be the identity that the
/// probe's records carry, and is left out.
pub(crate) fn complete(procfs: &Path, out: &mut Vec<ProcessEvent>) {
    if !PidNamespace::of(procfs).joins() {
        return;
    }
    let known: HashSet<Tgid> = out.iter().map(|event| event.process.pid).collect();
    let Ok(entries) = std::fs::read_dir(procfs) else { return };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).map(Tgid);
        let Some(pid) = pid.filter(|pid| !known.contains(pid)) else { continue };
        let Ok(stat) = details::read_stat(&entry.path()) else { continue };
        // Of a zombie no exit will be told any more.
        if matches!(stat.state, 'Z' | 'X') {
            continue;
        }
        let found = details::of_stat(&stat);
        let mut process = Process::unknown(pid);
        process.comm = Some(found.comm.into());
        process.ppid = found.ppid;
        process.kind = found.kind;
        let ts = Nanos(sys::monotonic());
        out.push(ProcessEvent { ts, kind: ProcessEventKind::Snapshot, process });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_living_that_are_not_known() {
        let tree = tempfile::tempdir().unwrap();
        let rest = "1 7 7 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 250 1000000 200 \
                    18446744073709551615 1 1 0 0 0 0 0 4096 1256 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";
        for (pid, comm, state) in [(1, "init", 'S'), (7, "known", 'S'), (8, "gone", 'Z')] {
            let directory = tree.path().join(pid.to_string());
            std::fs::create_dir(&directory).unwrap();
            std::fs::write(directory.join("stat"), format!("{pid} ({comm}) {state} {rest}"))
                .unwrap();
        }
        let known = ProcessEvent {
            ts: Nanos(1),
            kind: ProcessEventKind::Snapshot,
            process: Process::unknown(Tgid(7)),
        };
        let mut out = vec![known];
        complete(tree.path(), &mut out);
        let told: Vec<_> =
            out[1..].iter().map(|e| (e.process.pid, e.process.comm.as_deref())).collect();
        assert_eq!(told, [(Tgid(1), Some("init"))]);
    }
}
