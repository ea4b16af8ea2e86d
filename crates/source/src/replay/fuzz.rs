//! Recordings from whoever, for `fuzz/fuzz_targets/recording.rs`.

use std::path::Path;

use wattpipe_pipeline::batch::SwitchBatch;

use super::{Assembler, Lines};

/// The batches that the bytes of a recording give, up to the first line that is none of its.
pub fn batches(bytes: &[u8]) -> Vec<SwitchBatch> {
    let mut assembler = Assembler::default();
    let mut batches = Vec::new();
    let mut lines = Lines::new(bytes, Path::new("fuzz"));
    while let Ok(Some(ready)) = lines.next_with(|record| assembler.take(record)) {
        batches.extend(ready);
    }
    batches.extend(assembler.finish().0);
    batches
}
