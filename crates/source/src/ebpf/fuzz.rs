//! The probe's records from hostile memory, for `fuzz/fuzz_targets/ring.rs`.

use std::collections::HashMap;

use wattpipe_pipeline::{batch::SwitchBatch, units::Cpu};

use super::{cgroup::Cgroups, life::Lives, stream::Streams};

/// Takes in records, each with its length before it: what comes out is in time order for each CPU,
/// not before what was settled, and its blocks add up.
pub fn take(bytes: &[u8]) {
    const CPUS: u32 = 4;
    let mut streams = Streams::new(CPUS);
    let mut lives = Lives::new(Cgroups::new(None));
    let mut batch = SwitchBatch::default();
    let mut rest = bytes;
    let mut settled = 0;
    while let Some((&[kind, length], after)) = rest.split_first_chunk::<2>() {
        // In steps of eight, as the ring's records are.
        let length = (usize::from(length) * 8).min(after.len());
        let (record, after) = after.split_at(length);
        rest = after;
        match kind % 4 {
            0 => lives.record(record, &mut batch.processes),
            1 => {
                settled = settled.max(record.first().map_or(0, |b| u64::from(*b)));
                streams.settle(settled);
            }
            _ => streams.record(record, &mut batch),
        }
    }
    let mut last: HashMap<Cpu, u64> = HashMap::new();
    let mut entries = 0;
    for (block, block_entries) in batch.iter_blocks() {
        assert!(block.cpu.0 < CPUS);
        entries += block_entries.len();
        for entry in block_entries {
            let last = last.entry(block.cpu).or_default();
            assert!(entry.ts.0 >= *last, "time runs backward on CPU {:?}", block.cpu);
            *last = entry.ts.0;
        }
    }
    assert_eq!(entries, batch.entries.len());
}
