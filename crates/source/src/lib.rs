//! Sources: where usage and switches come from, and everything else that touches the kernel.

pub mod cgroup;
pub mod procfs;
