//! Records of the probe's rings, from bytes that no probe wrote.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| wattpipe_source::ebpf::fuzz::take(data));
