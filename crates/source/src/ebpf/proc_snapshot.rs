//! The processes that run already, from `/proc`: where the kernel has no task iterator.

use std::path::Path;

use wattpipe_pipeline::{
    batch::{ProcessEvent, ProcessEventKind},
    identity::Process,
    units::{Nanos, Tgid},
};

use super::sys;

/// Appends an event per process: pid, parent and name. The start time in `/proc` is in ticks of a
/// hundredth of a second, too coarse to be the identity that the probe's records carry, and is left
/// out.
pub(crate) fn read(procfs: &Path, out: &mut Vec<ProcessEvent>) {
    let Ok(entries) = std::fs::read_dir(procfs) else { return };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read(entry.path().join("stat")) else { continue };
        let Some((comm, ppid)) = parse_stat(&stat) else { continue };
        let mut process = Process::unknown(Tgid(pid));
        process.comm = Some(comm.into());
        process.ppid = Some(Tgid(ppid));
        let ts = Nanos(sys::monotonic());
        out.push(ProcessEvent { ts, kind: ProcessEventKind::Snapshot, process });
    }
}

/// Name and parent. The name may hold anything, parentheses and spaces too.
fn parse_stat(stat: &[u8]) -> Option<(String, u32)> {
    let open = stat.iter().position(|b| *b == b'(')?;
    let close = stat.iter().rposition(|b| *b == b')')?;
    let comm = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let ppid = rest.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some((comm, ppid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        let check = |stat: &[u8], expected: Option<(&str, u32)>| {
            assert_eq!(parse_stat(stat), expected.map(|(c, p)| (c.to_owned(), p)));
        };
        check(b"7 (a) S 1 7 7", Some(("a", 1)));
        check(b"7 (a b) (c)) R 12 7", Some(("a b) (c)", 12)));
        check(b"7 )a( S 1", None);
        check(b"7 (a", None);
        check(b"", None);
    }
}
