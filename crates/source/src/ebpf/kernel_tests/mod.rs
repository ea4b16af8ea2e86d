//! The probe on the running kernel. These need root, and fail where they cannot run; the project's
//! test command runs them.

mod clock;
mod hotplug;
mod leftovers;
mod life;
mod whole;

use std::{collections::BTreeSet, path::Path};

use wattpipe_pipeline::{batch::SwitchBatch, registry::HostRoots};

use super::{
    Attach, Clock,
    cpus::Cpus,
    loader::{Flushed, Options, Probe},
    stream::Streams,
    sys::{self, PerfEvent},
};

fn sysfs() -> &'static Path {
    Path::new("/sys")
}

fn options() -> Options {
    Options {
        attach: Attach::Btf,
        clock: Clock::Monotonic,
        cycles: None,
        batch_events: 128,
        ring_bytes: 1 << 20,
        hierarchy: super::hierarchy(&HostRoots::default()).1,
        cpus: Cpus::possible(sysfs()).unwrap(),
        online: online(),
    }
}

fn online() -> BTreeSet<u32> {
    Cpus::read(sysfs()).unwrap().online
}

fn drain(probe: &mut Probe, streams: &mut Streams) -> SwitchBatch {
    let mut batch = SwitchBatch::default();
    let head = probe.switches.head();
    probe.switches.drain_to(head, |record| streams.record(record, &mut batch));
    batch
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn every_variant_loads_attaches_and_delivers() {
    for attach in [Attach::Btf, Attach::RawTracepoint] {
        for clock in [Clock::Monotonic, Clock::Scheduler] {
            for cycles in [None, Some(PerfEvent::SOFTWARE_CLOCK)] {
                for batch_events in [128, 7, 1] {
                    // A busy host fills much ring with records of one switch meanwhile.
                    let ring_bytes = 16 << 20;
                    let options =
                        Options { attach, clock, cycles, batch_events, ring_bytes, ..options() };
                    let before = sys::monotonic();
                    let mut probe = Probe::load(sysfs(), &options).unwrap();
                    for _ in 0..300 {
                        std::thread::sleep(std::time::Duration::from_micros(50));
                    }
                    for cpu in online() {
                        assert_eq!(probe.flush(cpu), Flushed::Sent, "{options:?}");
                    }
                    let mut streams = Streams::new(options.cpus);
                    let batch = drain(&mut probe, &mut streams);
                    let after = sys::monotonic();
                    let own = std::process::id();
                    let switches = batch
                        .iter_blocks()
                        .flat_map(|(_, entries)| entries)
                        .filter(|e| e.prev.0 == own && e.next.0 != own)
                        .count();
                    assert!(switches >= 200, "{options:?}: {switches} of 300 sleeps seen");
                    assert_eq!(streams.counts.malformed + streams.counts.lost, 0, "{options:?}");
                    if clock == Clock::Monotonic {
                        let times = || batch.entries.iter().map(|e| e.ts.0);
                        assert!(times().max().unwrap() <= after, "{options:?}");
                        assert!(times().min().unwrap() >= before, "{options:?}");
                    }
                    let counted = batch.blocks.iter().all(|b| b.has_cycles);
                    assert_eq!(counted, cycles.is_some());
                    if counted {
                        assert!(batch.entries.iter().all(|e| e.cycles > 0), "{options:?}");
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn this_host_offers_everything_but_perhaps_cycles() {
    for check in super::probe_host(&HostRoots::default()) {
        assert!(check.ok || check.name == "cycles", "{check:?}");
    }
}
