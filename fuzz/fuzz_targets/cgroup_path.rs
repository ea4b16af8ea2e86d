//! The parser of cgroup paths: whatever a directory is called, what it says borrows from the path,
//! a unit stands only outside containers and pods, and there is never a panic. Seeds:
//! `crates/processors/tests/data/cgroup-paths.jsonl`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wattpipe_processors::attribution::cgroup_path::parse;

fuzz_target!(|path: &str| {
    let facts = parse(path);
    for part in [facts.container_id, facts.unit].into_iter().flatten() {
        assert!(!part.is_empty() && path.contains(part) && !part.contains('/'));
    }
    let uid = facts.pod_uid.as_ref().map(|uid| uid.as_str());
    assert!(uid.is_none_or(|uid| matches!(uid.len(), 32 | 36) && uid.is_ascii()));
    assert!(facts.unit.is_none() || (facts.container_id.is_none() && uid.is_none()));
});
