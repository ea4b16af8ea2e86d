//! Sources: the only part of wattpipe that touches the kernel.
#![deny(unsafe_code)]

pub mod meter;
