//! The system calls the probe needs and the standard library has not: clocks, mapped memory, perf
//! events, waiting. Each `unsafe` of the source's userland is here, in `ring.rs` or in `peek.rs`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize},
};

/// Lets all threads share two heaps. A batch is made by one thread and freed by another, and each
/// reload brings new threads: glibc's heap per thread would keep every thread's peak for ever. To be
/// called before there is a second thread.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number of the allocator and touches no memory of ours. Where it fails,
    // memory is as it would be without it.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Nanoseconds of a clock; 0 for one the kernel does not have.
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
        return 0;
    }
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Unix time, in nanoseconds, of `CLOCK_MONOTONIC` 0. Of a few attempts the one with the least time
/// between its readings counts.
pub(crate) fn boot_unix_ns() -> u64 {
    let sample = || {
        let before = monotonic();
        let unix = clock(libc::CLOCK_REALTIME);
        let after = monotonic();
        (after - before, unix.saturating_sub(before + (after - before) / 2))
    };
    (0..3).map(|_| sample()).min_by_key(|(width, _)| *width).map_or(0, |(_, boot)| boot)
}

/// CPU time this thread has used, in nanoseconds.
#[cfg(any(test, feature = "bench"))]
pub(crate) fn thread_cpu() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

pub(crate) fn page_size() -> usize {
    // SAFETY: no memory is involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Shared memory of a map, unmapped on drop.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain shared memory, reached through atomics and raw pointers only.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { base, bytes })
    }

    /// Memory of its own, zeroed, to play the kernel's side in tests (and under miri).
    #[cfg(test)]
    pub(crate) fn anonymous(bytes: usize) -> Self {
        // SAFETY: a fresh private mapping at an address of the kernel's choice; it is checked below.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: NonNull::new(base.cast()).unwrap(), bytes }
    }

    /// Address of `bytes` bytes at `offset`, aligned for `T`; `None` outside the mapping.
    pub(crate) fn at<T>(&self, offset: usize, bytes: usize) -> Option<*const T> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping, as checked.
        Some(unsafe { self.base.as_ptr().add(offset) }.cast_const().cast())
    }

    pub(crate) fn u32(&self, offset: usize) -> Option<&AtomicU32> {
        // SAFETY: mapped and aligned, as `at` checked; shared memory is read by atomics.
        self.at::<AtomicU32>(offset, 4).map(|p| unsafe { &*p })
    }

    pub(crate) fn u64(&self, offset: usize) -> Option<&AtomicU64> {
        // SAFETY: as in `u32`.
        self.at::<AtomicU64>(offset, 8).map(|p| unsafe { &*p })
    }

    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicUsize> {
        // SAFETY: as in `u32`.
        self.at::<AtomicUsize>(offset, size_of::<usize>()).map(|p| unsafe { &*p })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// What can be counted on a CPU: a PMU's number, and its own number for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerfEvent {
    pub(crate) pmu: u32,
    pub(crate) config: u64,
}

impl PerfEvent {
    /// The hardware's cycles.
    pub(crate) const CYCLES: Self = Self { pmu: 0, config: 0 };
    /// A software clock: works everywhere, to measure what a successful read costs.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) const SOFTWARE_CLOCK: Self = Self { pmu: 1, config: 0 };
}

/// `struct perf_event_attr` up to the first published size; the kernel accepts that.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// Opens a counter of everything that happens on `cpu`.
pub(crate) fn perf_event_open(event: PerfEvent, cpu: u32) -> io::Result<OwnedFd> {
    const FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    let attr = PerfEventAttr {
        kind: event.pmu,
        size: size_of::<PerfEventAttr>() as u32,
        config: event.config,
        ..PerfEventAttr::default()
    };
    let cpu = libc::c_int::try_from(cpu).map_err(io::Error::other)?;
    // SAFETY: `attr` is valid for the call and says its own size.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, cpu, -1, FLAG_FD_CLOEXEC)
    };
    owned_fd(fd)
}

fn owned_fd(fd: libc::c_long) -> io::Result<OwnedFd> {
    match libc::c_int::try_from(fd) {
        // SAFETY: a descriptor the kernel has just made for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The part of `union bpf_attr` that updates an element.
#[repr(C)]
struct MapElem {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Puts a descriptor into a perf event array, which aya offers for its own buffers only.
pub(crate) fn set_perf_event(
    map: BorrowedFd<'_>,
    cpu: u32,
    event: BorrowedFd<'_>,
) -> io::Result<()> {
    const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
    let value = event.as_raw_fd().cast_unsigned();
    let attr = MapElem {
        map_fd: map.as_raw_fd().cast_unsigned(),
        _pad: 0,
        key: (&raw const cpu) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    // SAFETY: key and value are four bytes each, as the map was created, and outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &raw const attr, size_of::<MapElem>())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Wakes a thread that waits.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        owned_fd(fd.into()).map(Self)
    }

    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight valid bytes. The only error, a full counter, means it has rung already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until a moment, or until one of its descriptors is *woken*: a ring that merely holds data
/// does not end the sleep, which is why this is an edge-triggered epoll and no poll.
pub(crate) struct Sleeper {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Sleeper {
    /// Watches `fds`.
    pub(crate) fn new(fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        // SAFETY: no memory is involved in either call.
        let (epoll, timer) = unsafe {
            (
                owned_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC).into())?,
                owned_fd(
                    libc::timerfd_create(
                        libc::CLOCK_MONOTONIC,
                        libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
                    )
                    .into(),
                )?,
            )
        };
        let sleeper = Self { epoll, timer };
        for fd in fds.iter().copied().chain([sleeper.timer.as_fd()]) {
            let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
            let mut event = libc::epoll_event { events, u64: 0 };
            let (epoll, fd) = (sleeper.epoll.as_raw_fd(), fd.as_raw_fd());
            // SAFETY: `event` is valid for the call.
            if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(sleeper)
    }

    /// Sets the moment, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) fn until(&self, moment: u64) -> io::Result<()> {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: (moment / 1_000_000_000).cast_signed(),
            tv_nsec: (moment % 1_000_000_000).max(1).cast_signed(),
        };
        let setting = libc::itimerspec { it_interval: zero, it_value: value };
        let timer = self.timer.as_raw_fd();
        // SAFETY: `setting` is valid for the call.
        let result = unsafe {
            libc::timerfd_settime(
                timer,
                libc::TFD_TIMER_ABSTIME,
                &raw const setting,
                std::ptr::null_mut(),
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sleeps. A signal may end it early.
    pub(crate) fn sleep(&self) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: four valid events.
        let result =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 4, -1) };
        match result {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
            _ => Ok(()),
        }
    }
}

/// The CPU this thread is on.
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: no memory is involved.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Gives freed memory back to the system, where the C library can.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no memory of ours is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_forward_and_agree() {
        let (a, b) = (monotonic(), monotonic());
        assert!(a > 0 && b >= a);
        let unix = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        assert!(unix.abs_diff(boot_unix_ns() + monotonic()) < 1_000_000_000);
        assert!(thread_cpu() > 0);
    }

    #[test]
    fn the_perf_attribute_has_the_first_published_size() {
        assert_eq!(size_of::<PerfEventAttr>(), 64);
    }

    #[test]
    fn a_bell_and_the_moment_end_the_sleep() {
        let bell = Bell::new().unwrap();
        let sleeper = Sleeper::new(&[bell.as_fd()]).unwrap();
        bell.ring();
        sleeper.until(monotonic() + 60_000_000_000).unwrap();
        sleeper.sleep().unwrap();
        let moment = monotonic() + 1_000_000;
        sleeper.until(moment).unwrap();
        sleeper.sleep().unwrap();
        assert!(monotonic() >= moment);
    }
}
