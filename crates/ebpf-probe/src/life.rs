//! The life of processes: fork, exec, exit, cgroup moves, and an iterator for those that were there
//! before. Rare next to switches, and in a ring of their own, so that no storm of switches can push
//! them out.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_ktime_get_ns, bpf_seq_write},
    macros::{btf_tracepoint, raw_tracepoint},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use wattpipe_ebpf_probe_common::{LIFE_KTHREAD, LifeRecord, hierarchy, life};

use crate::{
    access::{Access, Direct, Helper, pointer},
    globals::{LIFE, counters, life_watermark, offset},
};

/// `task_struct.flags` of a kernel thread.
const PF_KTHREAD: u32 = 0x0020_0000;
/// A css_set is linked to one cgroup per hierarchy; v1 has 14 controllers and a few named ones.
const MAX_HIERARCHIES: usize = 24;

/// The id of a task's cgroup in the hierarchy in use.
#[inline(always)]
unsafe fn cgroup_id<A: Access>(task: *const u8) -> u64 {
    let set = unsafe { pointer::<A>(task, offset!(task_cgroups)) };
    let cgroup = match offset!(cgroup_hierarchy) as u32 {
        hierarchy::V2 => unsafe { pointer::<A>(set, offset!(css_set_dfl_cgrp)) },
        hierarchy::SUBSYS => unsafe {
            let state =
                pointer::<A>(set, offset!(css_set_subsys) + offset!(cgroup_key) * size_of::<u64>());
            pointer::<A>(state, offset!(css_cgroup))
        },
        _ => return unsafe { named_cgroup_id(set) },
    };
    unsafe {
        let node = pointer::<A>(cgroup, offset!(cgroup_kn));
        A::read(node, offset!(kn_id))
    }
}

/// A hierarchy without a controller is found through the css_set's list of links only. The list's
/// pointers are into the middle of structures, which the verifier does not follow: by helper.
#[inline(always)]
unsafe fn named_cgroup_id(set: *const u8) -> u64 {
    let head = set.wrapping_add(offset!(css_set_cgrp_links));
    let mut at = unsafe { pointer::<Helper>(head, 0) };
    for _ in 0..MAX_HIERARCHIES {
        if at.is_null() || at == head {
            break;
        }
        let link = at.wrapping_sub(offset!(link_cgrp_link));
        unsafe {
            let cgroup = pointer::<Helper>(link, offset!(link_cgrp));
            let root = pointer::<Helper>(cgroup, offset!(cgroup_root));
            if Helper::read::<u32>(root, offset!(root_hierarchy_id)) as usize == offset!(cgroup_key)
            {
                let node = pointer::<Helper>(cgroup, offset!(cgroup_kn));
                return Helper::read(node, offset!(kn_id));
            }
            at = pointer::<Helper>(at, 0);
        }
    }
    0
}

/// All there is to say about the process of `task`.
#[inline(always)]
unsafe fn describe<A: Access>(task: *const u8, kind: u32) -> LifeRecord {
    unsafe {
        let leader = pointer::<A>(task, offset!(task_group_leader));
        let parent = pointer::<A>(task, offset!(task_real_parent));
        let cred = pointer::<A>(task, offset!(task_cred));
        let flags: u32 = A::read(task, offset!(task_flags));
        let comm: [u64; 2] =
            [A::read(task, offset!(task_comm)), A::read(task, offset!(task_comm) + 8)];
        LifeRecord {
            ts: bpf_ktime_get_ns(),
            start_time: A::read(leader, offset!(task_start_time)),
            cgroup: cgroup_id::<A>(task),
            pid: A::read(task, offset!(task_tgid)),
            ppid: A::read(parent, offset!(task_tgid)),
            uid: A::read(cred, offset!(cred_uid)),
            kind,
            flags: if flags & PF_KTHREAD != 0 { LIFE_KTHREAD } else { 0 },
            reserved: 0,
            comm: core::mem::transmute::<[u64; 2], [u8; 16]>(comm),
        }
    }
}

#[inline(always)]
unsafe fn emit<A: Access>(task: *const u8, kind: u32) -> i32 {
    let record = unsafe { describe::<A>(task, kind) };
    let wakeup = if LIFE.query(BPF_RB_AVAIL_DATA.into()) >= life_watermark() {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    if LIFE.output::<LifeRecord>(&record, wakeup.into()).is_err() {
        if let Some(counters) = counters() {
            counters.life_lost += 1;
        }
    }
    0
}

/// A new thread of a process that exists is no event.
#[inline(always)]
unsafe fn on_fork<A: Access>(child: *const u8) -> i32 {
    let (tid, tgid): (u32, u32) =
        unsafe { (A::read(child, offset!(task_pid)), A::read(child, offset!(task_tgid))) };
    if tid != tgid { 0 } else { unsafe { emit::<A>(child, life::FORK) } }
}

/// Called for each thread; the count of live ones has already been lowered.
#[inline(always)]
unsafe fn on_exit<A: Access>(task: *const u8) -> i32 {
    unsafe {
        let signal = pointer::<A>(task, offset!(task_signal));
        let live: u32 = A::read(signal, offset!(signal_live));
        if live != 0 { 0 } else { emit::<A>(task, life::EXIT) }
    }
}

macro_rules! programs {
    ($($tracepoint:literal, $btf:ident, $raw:ident: $arg:literal => $handler:expr, $raw_handler:expr;)*) => {$(
        #[btf_tracepoint(function = $tracepoint)]
        pub fn $btf(ctx: BtfTracePointContext) -> i32 {
            // SAFETY: this argument of the tracepoint is a task.
            unsafe { $handler(ctx.arg($arg)) }
        }

        #[raw_tracepoint(tracepoint = $tracepoint)]
        pub fn $raw(ctx: RawTracePointContext) -> i32 {
            // SAFETY: this argument of the tracepoint is a task.
            unsafe { $raw_handler(ctx.arg($arg)) }
        }
    )*};
}

programs! {
    "sched_process_fork", fork_btf, fork_raw: 1 => on_fork::<Direct>, on_fork::<Helper>;
    "sched_process_exec", exec_btf, exec_raw: 0 => on_exec::<Direct>, on_exec::<Helper>;
    "sched_process_exit", exit_btf, exit_raw: 0 => on_exit::<Direct>, on_exit::<Helper>;
    "cgroup_attach_task", cgroup_btf, cgroup_raw: 2 => on_cgroup::<Direct>, on_cgroup::<Helper>;
}

#[inline(always)]
unsafe fn on_exec<A: Access>(task: *const u8) -> i32 {
    unsafe { emit::<A>(task, life::EXEC) }
}

#[inline(always)]
unsafe fn on_cgroup<A: Access>(task: *const u8) -> i32 {
    unsafe { emit::<A>(task, life::CGROUP) }
}

/// What the kernel hands to a task iterator.
#[repr(C)]
pub struct IterContext {
    meta: *const IterMeta,
    task: *const u8,
}

#[repr(C)]
pub struct IterMeta {
    seq: *mut c_void,
}

/// One record for each live process.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub extern "C" fn snapshot(ctx: *const IterContext) -> i32 {
    // SAFETY: the kernel's context; the task is null at the end of the iteration.
    unsafe {
        let task = (*ctx).task;
        if task.is_null() {
            return 0;
        }
        let (tid, tgid): (u32, u32) =
            (Direct::read(task, offset!(task_pid)), Direct::read(task, offset!(task_tgid)));
        let signal = pointer::<Direct>(task, offset!(task_signal));
        let live: u32 = Direct::read(signal, offset!(signal_live));
        if tid != tgid || live == 0 {
            return 0;
        }
        let record = describe::<Direct>(task, life::SNAPSHOT);
        let seq = (*(*ctx).meta).seq;
        bpf_seq_write(seq.cast(), (&raw const record).cast(), size_of::<LifeRecord>() as u32);
    }
    0
}
