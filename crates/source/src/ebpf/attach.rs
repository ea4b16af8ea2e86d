//! The probe's programs by name, and attaching them.

use std::io;

use aya::{
    Btf as AyaBtf, Ebpf,
    programs::{BtfTracePoint, ProgramError, RawTracePoint},
};

use super::{Attach, Clock, error::EbpfError};

/// One of the life-cycle tracepoints.
pub(super) struct LifeTracepoint {
    pub(super) name: &'static str,
    btf: &'static str,
    raw: &'static str,
}

impl LifeTracepoint {
    pub(super) fn program(&self, attach: Attach) -> &'static str {
        if attach == Attach::RawTracepoint { self.raw } else { self.btf }
    }
}

pub(super) const LIFE_TRACEPOINTS: &[LifeTracepoint] = &[
    LifeTracepoint { name: "sched_process_fork", btf: "fork_btf", raw: "fork_raw" },
    LifeTracepoint { name: "sched_process_exec", btf: "exec_btf", raw: "exec_raw" },
    LifeTracepoint { name: "sched_process_exit", btf: "exit_btf", raw: "exit_raw" },
    LifeTracepoint { name: "cgroup_attach_task", btf: "cgroup_btf", raw: "cgroup_raw" },
];

/// The variant of the hot program.
pub(super) fn switch_program(attach: Attach, clock: Clock, cycles: bool) -> &'static str {
    match (attach == Attach::RawTracepoint, clock, cycles) {
        (false, Clock::Monotonic, false) => "switch_btf",
        (false, Clock::Monotonic, true) => "switch_btf_cycles",
        (false, Clock::Scheduler, false) => "switch_btf_sched",
        (false, Clock::Scheduler, true) => "switch_btf_sched_cycles",
        (true, Clock::Monotonic, false) => "switch_raw",
        (true, Clock::Monotonic, true) => "switch_raw_cycles",
        (true, Clock::Scheduler, false) => "switch_raw_sched",
        (true, Clock::Scheduler, true) => "switch_raw_sched_cycles",
    }
}

pub(super) fn attach_one(
    ebpf: &mut Ebpf,
    attach: Attach,
    name: &str,
    tracepoint: &str,
    kernel: &AyaBtf,
) -> Result<(), EbpfError> {
    let result = if attach == Attach::RawTracepoint {
        let program = program::<RawTracePoint>(ebpf, name)?;
        program.load().and_then(|()| program.attach(tracepoint).map(drop))
    } else {
        let program = program::<BtfTracePoint>(ebpf, name)?;
        program.load(tracepoint, kernel).and_then(|()| program.attach().map(drop))
    };
    result.map_err(|e| refused(name, &e))
}

pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, EbpfError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let missing = || EbpfError::Refused {
        what: format!("program {name}"),
        reason: "the object file has none".into(),
    };
    let program = ebpf.program_mut(name).ok_or_else(missing)?;
    program.try_into().map_err(|e: ProgramError| refused(name, &e))
}

/// The verifier's log can be thousands of lines; its end says why.
pub(super) fn refused(what: &str, error: &(dyn std::error::Error + 'static)) -> EbpfError {
    const LINES: usize = 12;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>()
            && io.raw_os_error() == Some(libc::EPERM)
        {
            // The capabilities are there, or this would not have been tried.
            return EbpfError::Forbidden { what: what.to_owned() };
        }
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    let lines: Vec<&str> = text.lines().collect();
    let reason = if lines.len() > LINES {
        format!("{}\n…\n{}", lines[0], lines[lines.len() - LINES..].join("\n"))
    } else {
        text
    };
    EbpfError::Refused { what: what.to_owned(), reason }
}
