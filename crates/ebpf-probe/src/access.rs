//! Two ways to read kernel memory: plain loads, where the verifier knows the pointer's type (programs
//! attached through BTF), and the helper, where it does not.

use aya_ebpf::helpers::bpf_probe_read_kernel;

/// Reads fields of kernel structures.
pub(crate) trait Access {
    /// The `T` at `base + offset`.
    ///
    /// # Safety
    /// `base` came from the kernel (a program argument or a field read with this), and `T` is plain
    /// data that lies at `offset` in what it points to.
    unsafe fn read<T: Copy + Default>(base: *const u8, offset: usize) -> T;
}

/// Plain loads; the verifier checks them, a bad pointer reads as 0.
pub(crate) struct Direct;

impl Access for Direct {
    #[inline(always)]
    unsafe fn read<T: Copy + Default>(base: *const u8, offset: usize) -> T {
        // SAFETY: the caller's promise; the verifier checks type and offset again.
        unsafe { *base.add(offset).cast::<T>() }
    }
}

/// Reads through the helper; what cannot be read is `T::default()`.
pub(crate) struct Helper;

impl Access for Helper {
    #[inline(always)]
    unsafe fn read<T: Copy + Default>(base: *const u8, offset: usize) -> T {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(base.wrapping_add(offset).cast::<T>()) }.unwrap_or_default()
    }
}

/// A pointer inside a kernel structure, null when it cannot be read.
#[inline(always)]
pub(crate) unsafe fn pointer<A: Access>(base: *const u8, offset: usize) -> *const u8 {
    // A pointer has no `Default`, and an integer would lose its type for the verifier: the load is
    // the same, the cast is after it.
    // SAFETY: the caller's promise is that of `Access::read`.
    unsafe { A::read::<Pointer>(base, offset) }.0
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pointer(*const u8);

impl Default for Pointer {
    fn default() -> Self {
        Self(core::ptr::null())
    }
}
