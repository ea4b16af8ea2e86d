//! Sources: the only part of wattpipe that touches the kernel.
#![deny(unsafe_code)]

pub mod cgroup;
#[expect(unsafe_code, reason = "the ring, perf events and BPF test runs have no safe wrapper")]
pub mod ebpf;
pub mod meter;
pub mod procfs;
pub mod replay;

pub use ebpf::sys::share_heaps;
use wattpipe_pipeline::registry::SourceEntry;

/// Every source of this crate.
pub const SOURCES: &[SourceEntry] = &[
    SourceEntry::of::<ebpf::Ebpf>(),
    SourceEntry::of::<procfs::Procfs>(),
    SourceEntry::of::<replay::Replay>(),
];
