//! Sources: the only part of wattpipe that touches the kernel.

pub mod ebpf;
