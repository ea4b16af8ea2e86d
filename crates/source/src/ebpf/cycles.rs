//! The CPUs' cycle counters: one perf event per online CPU, which the probe reads by CPU number.
//!
//! A CPU that goes off and comes back leaves its old event frozen, without any error: what is
//! offline is closed, what is online is opened, and a counter that stood still is opened anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::sys::{PerfEvent, perf_event_open, set_perf_event};

/// Open counters and the map that hands them to the probe.
pub(crate) struct Counters {
    map: OwnedFd,
    event: PerfEvent,
    open: BTreeMap<u32, OwnedFd>,
}

/// Whether the counter can be opened on this CPU at all: decides which program is loaded.
pub(crate) fn available(event: PerfEvent, cpu: u32) -> io::Result<()> {
    perf_event_open(event, cpu).map(drop)
}

impl Counters {
    pub(crate) fn new(map: OwnedFd, event: PerfEvent) -> Self {
        Self { map, event, open: BTreeMap::new() }
    }

    /// Whether exactly the CPUs that are online have theirs open.
    pub(crate) fn covers(&self, online: &BTreeSet<u32>) -> bool {
        self.open.keys().eq(online)
    }

    /// Opens what is online and not open, closes what is not online, and opens anew what stood still
    /// (`frozen`). A CPU that vanishes meanwhile is no error, and is found offline next time. After
    /// an error the others have been seen to all the same.
    pub(crate) fn follow(&mut self, online: &BTreeSet<u32>, frozen: &[u32]) -> io::Result<()> {
        self.open.retain(|cpu, _| online.contains(cpu) && !frozen.contains(cpu));
        let mut result = Ok(());
        for &cpu in online {
            if !self.open.contains_key(&cpu) {
                result = result.and(self.open(cpu));
            }
        }
        result
    }

    fn open(&mut self, cpu: u32) -> io::Result<()> {
        let event = match perf_event_open(self.event, cpu) {
            Ok(event) => event,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => return Err(error),
        };
        set_perf_event(self.map.as_fd(), cpu, event.as_fd())?;
        self.open.insert(cpu, event);
        Ok(())
    }
}
