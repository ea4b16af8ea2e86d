//! The kernel programs of wattpipe. Built by `cargo xtask ebpf` for `bpfel-unknown-none`; the built
//! object is committed beside the loader (`crates/source/probe`).
//!
//! - `switch`: one run per context switch, appends to its CPU's batch;
//! - `flush`: run by userland on a CPU at a window's edge, sends the partial batch with a tick;
//! - `untraced`: puts back what the tracepoint did not show;
//! - `life`: fork, exec, exit and cgroup moves of processes, and the task iterator.
//!
//! There are no fixed structure offsets: userland reads them from the kernel's BTF and puts them
//! into the read-only globals in `globals`, which the verifier treats as constants.

#![no_std]
#![no_main]

mod access;
mod batch;
mod flush;
mod globals;
mod life;
mod switch;
mod untraced;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers used are for GPL-compatible programs only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
