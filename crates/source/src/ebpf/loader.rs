//! Loading and attaching the probe: maps sized for this machine, offsets from its BTF, the program
//! variant that fits, and everything back in the kernel's hands when it is dropped.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs, io,
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use aya::{
    Btf as AyaBtf, Ebpf, EbpfLoader, RawTracePointRunOptions, TestRun,
    maps::{Map, MapData},
    programs::{Iter, ProgramError, RawTracePoint},
};
use wattpipe_ebpf_probe_common::{
    BATCH_STRIDE, Counters as RareCounters, ENTRY_BYTES, HEADER_BYTES, MAX_BATCH, Offsets,
};

use super::{
    Attach, Clock,
    attach::{LIFE_TRACEPOINTS, attach_one, program, refused, switch_program},
    btf::Btf,
    cycles::{self, Counters},
    error::EbpfError,
    offsets::{self, Hierarchy},
    peek::Batches,
    ring::Ring,
    sys::{self, Mapping, PerfEvent, page_size},
};

/// The committed object (`cargo xtask ebpf` builds it), aligned as its parser wants it.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../probe/wattpipe.bpf.o");

/// The object to load. Tests and benchmarks may try another one.
fn object() -> Cow<'static, [u8]> {
    #[cfg(any(test, feature = "bench"))]
    if let Some(bytes) = std::env::var_os("PROBE_OBJECT").and_then(|path| fs::read(path).ok()) {
        return bytes.into();
    }
    OBJECT.into()
}

/// Bytes of the life-cycle ring: some 7,000 events between two looks.
const LIFE_BYTES: u32 = 512 << 10;

/// Where the kernel shows its type information.
pub(crate) const KERNEL_BTF: &str = "kernel/btf/vmlinux";

/// What to load.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) attach: Attach,
    pub(crate) clock: Clock,
    /// The counter to read at each switch, if any.
    pub(crate) cycles: Option<PerfEvent>,
    pub(crate) batch_events: u32,
    pub(crate) ring_bytes: u32,
    pub(crate) hierarchy: Hierarchy,
    /// CPU numbers are below this.
    pub(crate) cpus: u32,
    /// The CPUs that are online now.
    pub(crate) online: BTreeSet<u32>,
}

/// The loaded probe. Programs, links and maps are bound to descriptors of this process: they go
/// when it does, however it ends.
pub(crate) struct Probe {
    ebpf: Ebpf,
    pub(crate) switches: Ring,
    pub(crate) life: Ring,
    pub(crate) batches: Batches,
    pub(crate) counters: Option<Counters>,
    rare: Mapping,
    life_fd: OwnedFd,
    switches_fd: OwnedFd,
    flush: &'static str,
    /// CPU numbers are below this.
    pub(crate) cpus: u32,
    /// How it is attached: never `auto`.
    pub(crate) attach: Attach,
    iterator: bool,
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The CPU has sent what it had.
    Sent,
    /// The ring is full.
    Full,
    /// The CPU is offline.
    Offline,
    /// This thread may not: before 5.19, with kernel.unprivileged_bpf_disabled, it takes CAP_BPF.
    Forbidden,
    /// It does not work on this kernel.
    Failed,
}

/// Bytes a ring of at least `wanted` bytes really has: a power of two of pages.
pub(crate) fn ring_bytes(wanted: u64) -> u32 {
    let page = page_size() as u64;
    let bytes = wanted.clamp(page, 1 << 30).next_power_of_two().max(page);
    u32::try_from(bytes).unwrap_or(1 << 30)
}

/// Entries a batch may have, so that a small ring holds a few batches.
pub(crate) fn batch_limit(ring_bytes: u32) -> u32 {
    let record = (ring_bytes as usize / 4).saturating_sub(8 + HEADER_BYTES);
    u32::try_from((record / ENTRY_BYTES).clamp(1, MAX_BATCH)).unwrap_or(1)
}

/// Loads the kernel's type information.
pub(crate) fn kernel_btf(sysfs: &Path) -> Result<Btf, EbpfError> {
    let path = sysfs.join(KERNEL_BTF);
    let bytes = fs::read(&path)
        .map_err(|source| EbpfError::NoBtf { path: path.display().to_string(), source })?;
    Ok(Btf::parse(bytes)?)
}

/// Chooses the counter: `None` where there is none and none was insisted on.
pub(crate) fn choose_cycles(
    wanted: super::Cycles,
    cpu: u32,
) -> Result<Option<PerfEvent>, EbpfError> {
    match (wanted, cycles::available(PerfEvent::CYCLES, cpu)) {
        (super::Cycles::Off, _) => Ok(None),
        (_, Ok(())) => Ok(Some(PerfEvent::CYCLES)),
        (super::Cycles::Auto, Err(_)) => Ok(None),
        (super::Cycles::On, Err(source)) => Err(EbpfError::NoCycles { cpu, source }),
    }
}

impl Probe {
    /// Loads and attaches everything: life-cycle programs first, so that no process falls between
    /// the snapshot and them.
    pub(crate) fn load(sysfs: &Path, options: &Options) -> Result<Self, EbpfError> {
        let btf = kernel_btf(sysfs)?;
        let offsets = offsets::resolve(&btf, options.hierarchy)?;
        let iterator = btf.has_function("bpf_iter_task");
        drop(btf);
        match options.attach {
            Attach::RawTracepoint => {
                Self::load_as(Attach::RawTracepoint, options, &offsets, iterator)
            }
            Attach::Btf => Self::load_as(Attach::Btf, options, &offsets, iterator),
            Attach::Auto => match Self::load_as(Attach::Btf, options, &offsets, iterator) {
                // A program that is refused one way may load the other; what is forbidden stays so.
                Err(error @ EbpfError::Refused { .. }) => {
                    tracing::warn!("attaching by BTF failed ({error}); trying raw tracepoints");
                    Self::load_as(Attach::RawTracepoint, options, &offsets, iterator)
                }
                result => result,
            },
        }
    }

    fn load_as(
        attach: Attach,
        options: &Options,
        offsets: &Offsets,
        iterator: bool,
    ) -> Result<Self, EbpfError> {
        raise_locked_memory();
        let offsets = OffsetBytes(*offsets);
        let watermark = u64::from(options.ring_bytes / 4);
        let life_watermark = u64::from(LIFE_BYTES / 4);
        let batch_events = options.batch_events.clamp(1, batch_limit(options.ring_bytes));
        let scheduler_clock = u32::from(options.clock == Clock::Scheduler);
        let mut ebpf = EbpfLoader::new()
            .override_global("OFFSETS", &offsets, true)
            .override_global("BATCH_EVENTS", &batch_events, true)
            .override_global("WATERMARK", &watermark, true)
            .override_global("LIFE_WATERMARK", &life_watermark, true)
            .override_global("SCHEDULER_CLOCK", &scheduler_clock, true)
            .map_max_entries("SWITCHES", options.ring_bytes)
            .map_max_entries("LIFE", LIFE_BYTES)
            .map_max_entries("BATCHES", options.cpus)
            .map_max_entries("COUNTERS", options.cpus)
            .map_max_entries("CYCLES", options.cpus)
            .load(&object())
            .map_err(|e| refused("the probe's maps", &e))?;

        let switches_fd = map_fd(&ebpf, "SWITCHES")?;
        let life_fd = map_fd(&ebpf, "LIFE")?;
        let batches_fd = map_fd(&ebpf, "BATCHES")?;
        let state_fd = map_fd(&ebpf, "COUNTERS")?;
        let state_bytes =
            (options.cpus as usize * size_of::<RareCounters>()).next_multiple_of(page_size());
        let switches = Ring::new(switches_fd.as_fd(), options.ring_bytes as usize)
            .map_err(EbpfError::io("mapping the switch ring"))?;
        let life = Ring::new(life_fd.as_fd(), LIFE_BYTES as usize)
            .map_err(EbpfError::io("mapping the life-cycle ring"))?;
        let batches = Batches::new(batches_fd.as_fd(), options.cpus)
            .map_err(EbpfError::io("mapping the batches"))?;
        let rare = Mapping::new(state_fd.as_fd(), 0, state_bytes, false)
            .map_err(EbpfError::io("mapping the counters"))?;
        // Before the probe attaches, so that no entry lacks its reading.
        let counters = match options.cycles {
            Some(event) => {
                let mut counters = Counters::new(map_fd(&ebpf, "CYCLES")?, event);
                counters
                    .follow(&options.online, &[])
                    .map_err(EbpfError::io("opening the cycle counters"))?;
                Some(counters)
            }
            None => None,
        };

        let kernel = AyaBtf::from_sys_fs().map_err(|e| refused("type information", &e))?;
        for tracepoint in LIFE_TRACEPOINTS {
            attach_one(&mut ebpf, attach, tracepoint.program(attach), tracepoint.name, &kernel)?;
        }
        let iterator = iterator && {
            let loaded = program::<Iter>(&mut ebpf, "snapshot")
                .and_then(|p| p.load("task", &kernel).map_err(|e| refused("snapshot", &e)));
            if let Err(error) = &loaded {
                tracing::warn!("no task iterator ({error}); reading /proc for what runs already");
            }
            loaded.is_ok()
        };
        let flush = if options.cycles.is_some() { "flush_cycles" } else { "flush" };
        program::<RawTracePoint>(&mut ebpf, flush)?.load().map_err(|e| refused(flush, &e))?;
        let switch = switch_program(attach, options.clock, options.cycles.is_some());
        attach_one(&mut ebpf, attach, switch, "sched_switch", &kernel)?;
        drop(kernel);
        sys::trim_heap();

        Ok(Self {
            ebpf,
            switches,
            life,
            batches,
            counters,
            rare,
            life_fd,
            switches_fd,
            flush,
            cpus: options.cpus,
            attach,
            iterator,
        })
    }

    /// Descriptors that become readable when much is waiting.
    pub(crate) fn wakeups(&self) -> [BorrowedFd<'_>; 2] {
        [self.switches_fd.as_fd(), self.life_fd.as_fd()]
    }

    /// Runs `flush` on a CPU: an interrupt for it.
    pub(crate) fn flush(&self, cpu: u32) -> Flushed {
        let Some(aya::programs::Program::RawTracePoint(program)) = self.ebpf.program(self.flush)
        else {
            return Flushed::Failed;
        };
        match program.test_run(RawTracePointRunOptions { args: [0; 12], cpu: Some(cpu) }) {
            Ok(result) if result.return_value == 0 => Flushed::Full,
            Ok(_) => Flushed::Sent,
            Err(ProgramError::SyscallError(e))
                if e.io_error.raw_os_error() == Some(libc::ENXIO) =>
            {
                Flushed::Offline
            }
            Err(ProgramError::SyscallError(e))
                if e.io_error.raw_os_error() == Some(libc::EPERM) =>
            {
                Flushed::Forbidden
            }
            Err(error) => {
                tracing::debug!("flush on CPU {cpu}: {error}");
                Flushed::Failed
            }
        }
    }

    /// Life-cycle records lost so far.
    pub(crate) fn life_lost(&self) -> u64 {
        self.sum_of(std::mem::offset_of!(RareCounters, life_lost))
    }

    /// Switches the tracepoint did not show, put back in so far.
    pub(crate) fn untraced(&self) -> u64 {
        self.sum_of(std::mem::offset_of!(RareCounters, untraced))
    }

    fn sum_of(&self, offset: usize) -> u64 {
        (0..self.cpus as usize)
            .filter_map(|cpu| self.rare.u64(cpu * size_of::<RareCounters>() + offset))
            .map(|count| count.load(std::sync::atomic::Ordering::Relaxed))
            .sum()
    }

    /// Records of all live processes; `None` where the kernel has no task iterator.
    pub(crate) fn snapshot(&mut self) -> Option<io::Result<Vec<u8>>> {
        self.iterator.then(|| {
            let program = program::<Iter>(&mut self.ebpf, "snapshot").map_err(io::Error::other)?;
            let id = program.attach().map_err(io::Error::other)?;
            let link = program.take_link(id).map_err(io::Error::other)?;
            let mut bytes = Vec::new();
            link.into_file().map_err(io::Error::other)?.read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }

    /// Time the kernel spent in its programs, in seconds.
    pub(crate) fn run_seconds(&self) -> f64 {
        let programs = self.ebpf.programs().filter_map(|(_, p)| p.info().ok());
        programs.map(|info| info.run_time().as_secs_f64()).sum()
    }

    /// Ids of all programs it has in the kernel.
    #[cfg(test)]
    pub(crate) fn program_ids(&self) -> BTreeSet<u32> {
        self.ebpf.programs().filter_map(|(_, p)| p.info().ok()).map(|info| info.id()).collect()
    }

    /// A program's description and statistics.
    #[cfg(feature = "bench")]
    pub(crate) fn program_info(&self, name: &str) -> Option<aya::programs::ProgramInfo> {
        self.ebpf.program(name)?.info().ok()
    }
}

fn map_fd(ebpf: &Ebpf, name: &str) -> Result<OwnedFd, EbpfError> {
    let data: &MapData = match ebpf.map(name) {
        Some(Map::RingBuf(data) | Map::Array(data) | Map::PerfEventArray(data)) => data,
        _ => {
            return Err(EbpfError::Refused {
                what: format!("map {name}"),
                reason: "the object file has none".into(),
            });
        }
    };
    data.fd().as_fd().try_clone_to_owned().map_err(EbpfError::io("duplicating a map's descriptor"))
}

/// Before 5.11 maps count as locked memory. Where it cannot be raised, loading tells.
fn raise_locked_memory() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is valid for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
}

/// The offsets as aya takes globals.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct OffsetBytes(Offsets);

// SAFETY: 32-bit numbers only, no padding.
unsafe impl aya::Pod for OffsetBytes {}

const _: () = assert!(BATCH_STRIDE.is_multiple_of(64));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two_of_pages() {
        let page = page_size() as u64;
        let check = |wanted, expected: u64| assert_eq!(u64::from(ring_bytes(wanted)), expected);
        check(0, page);
        check(1, page);
        check(page, page);
        check(page + 1, 2 * page);
        check(8 << 20, 8 << 20);
        check(u64::MAX, 1 << 30);
    }

    #[test]
    fn a_small_ring_gets_small_batches() {
        assert_eq!(batch_limit(8 << 20), 128);
        assert_eq!(batch_limit(16 << 10), 128);
        let limit = batch_limit(4096);
        assert!(4 * (8 + HEADER_BYTES + limit as usize * ENTRY_BYTES) <= 4096, "{limit}");
    }
}
