//! What the probe is measured against (`cargo xtask bench-probe`): other ways to get at the same
//! knowledge, each as lean as we could write it. Not part of the product.

#![no_std]
#![no_main]

use aya_ebpf::{
    bindings::BPF_RB_NO_WAKEUP,
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{btf_tracepoint, map},
    maps::{Array, PerCpuArray, PerCpuHashMap, RingBuf},
    programs::BtfTracePointContext,
};

/// Offset of `task_struct.tgid`; userland sets it.
#[unsafe(no_mangle)]
static TGID: u32 = 0;

#[derive(Clone, Copy)]
#[repr(C)]
struct Stored {
    ts: u64,
    prev: u32,
    next: u32,
}

#[repr(C)]
struct Event {
    ts: u64,
    cycles: u64,
    prev: u32,
    next: u32,
    cpu: u32,
    pad: u32,
}

#[repr(C)]
struct Used {
    ns: u64,
    switches: u64,
}

#[map]
static LAST: PerCpuArray<Stored> = PerCpuArray::with_max_entries(1, 0);
/// By CPU number: the faster of the two look-ups on some kernels.
#[map]
static LAST_BY_CPU: Array<[u64; 8]> = Array::with_max_entries(1, 0);
#[map]
static BY_TGID: PerCpuHashMap<u32, Used> = PerCpuHashMap::with_max_entries(10_240, 0);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

#[inline(always)]
fn switch(ctx: &BtfTracePointContext) -> Stored {
    // SAFETY: a static of plain data.
    let at = unsafe { core::ptr::read_volatile(&TGID) } as usize;
    let (prev, next): (*const u8, *const u8) = (ctx.arg(1), ctx.arg(2));
    // SAFETY: arguments 1 and 2 are tasks, checked by the verifier.
    unsafe {
        Stored {
            ts: bpf_ktime_get_ns(),
            prev: *prev.add(at).cast::<u32>(),
            next: *next.add(at).cast::<u32>(),
        }
    }
}

/// What the kernel charges for any program.
#[btf_tracepoint(function = "sched_switch")]
pub fn empty(_ctx: BtfTracePointContext) -> i32 {
    0
}

/// The least that can be known of a switch; nothing leaves the kernel.
#[btf_tracepoint(function = "sched_switch")]
pub fn stored(ctx: BtfTracePointContext) -> i32 {
    let entry = switch(&ctx);
    if let Some(last) = LAST.get_ptr_mut(0) {
        // SAFETY: this CPU's element.
        unsafe { *last = entry };
    }
    0
}

/// The same in an array by CPU number.
#[btf_tracepoint(function = "sched_switch")]
pub fn stored_by_cpu(ctx: BtfTracePointContext) -> i32 {
    let entry = switch(&ctx);
    if let Some(last) = LAST_BY_CPU.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) {
        // SAFETY: this CPU's element, which is large enough.
        unsafe { *last.cast::<Stored>() = entry };
    }
    0
}

/// The sums per process, in the kernel.
#[btf_tracepoint(function = "sched_switch")]
pub fn aggregate(ctx: BtfTracePointContext) -> i32 {
    let entry = switch(&ctx);
    let Some(last) = LAST.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's elements.
    unsafe {
        let before = (*last).ts;
        (*last).ts = entry.ts;
        let ns = entry.ts - before;
        if let Some(used) = BY_TGID.get_ptr_mut(&entry.prev) {
            (*used).ns += ns;
            (*used).switches += 1;
        } else {
            let _ = BY_TGID.insert(&entry.prev, &Used { ns, switches: 1 }, 0);
        }
    }
    0
}

/// One record of the ring for each switch, without wakeups.
#[btf_tracepoint(function = "sched_switch")]
pub fn each(ctx: BtfTracePointContext) -> i32 {
    let entry = switch(&ctx);
    if let Some(mut record) = EVENTS.reserve::<Event>(0) {
        let cpu = unsafe { bpf_get_smp_processor_id() };
        let Stored { ts, prev, next } = entry;
        record.write(Event { ts, cycles: 0, prev, next, cpu, pad: 0 });
        record.submit(BPF_RB_NO_WAKEUP.into());
    }
    0
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The helpers used are for GPL-compatible programs only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
