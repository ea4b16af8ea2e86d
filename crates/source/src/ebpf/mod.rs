//! `ebpf`: every context switch, from a probe on `sched_switch` over a BPF ring buffer.
//!
//! ```yaml
//! sources:
//!   ebpf:
//!     window: 1s
//!     ring_buffer_size: 8MiB
//!     batch_events: 128
//! ```
//!
//! The probe (`crates/ebpf-probe`) collects switches per CPU and sends them in batches. One thread
//! ([`reader`]) drains them and closes windows; everything else here serves it: [`loader`] (programs
//! and maps), [`offsets`] over [`btf`] (the kernel's structures), [`ring`] and [`peek`] (shared
//! memory), [`stream`] and [`life`] (records to batches), [`cpus`], [`cgroup`], [`cycles`].

mod attach;
mod btf;
mod cgroup;
mod config;
mod cpus;
mod cycles;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod gauges;
mod host;
#[cfg(test)]
mod kernel_tests;
#[cfg(feature = "bench")]
pub mod lab;
mod life;
mod loader;
mod offsets;
mod peek;
mod proc_snapshot;
mod reader;
mod ring;
mod stream;
pub(crate) mod sys;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use tokio::sync::oneshot;
use wattpipe_pipeline::{
    BatchKind, BuildContext, Source, SourceComponent, SourceContext, SourceError, async_trait,
    registry::{BuildError, HostRoots},
    source::BatchSender,
    telemetry::Telemetry,
    units::Nanos,
};

pub use config::{Attach, Clock, Cycles, EbpfConfig, MeterInterval};
pub(crate) use cpus::{parse_list, place};
pub use error::EbpfError;
pub use host::{Check, probe_host};

use crate::meter::Meters;
use cgroup::Cgroups;
use gauges::Gauges;
use life::Lives;
use loader::{Options, Probe};
use reader::{Reader, Surroundings, Windows};
use sys::Bell;

/// See the module.
#[derive(Debug)]
pub struct Ebpf {
    config: EbpfConfig,
    host: HostRoots,
}

impl SourceComponent for Ebpf {
    const NAME: &'static str = "ebpf";
    const DOC: &'static str = "Every context switch, from an eBPF probe on sched_switch";
    const EMITS: BatchKind = BatchKind::Switches;
    type Config = EbpfConfig;

    fn build(config: EbpfConfig, context: &BuildContext) -> Result<Self, BuildError> {
        Ok(Self { config, host: context.host.clone() })
    }
}

#[async_trait]
impl Source for Ebpf {
    async fn run(self: Box<Self>, context: SourceContext) -> Result<(), SourceError> {
        let SourceContext { id, out, mut shutdown, telemetry, privileges, pace } = context;
        let stop = Stop {
            flag: Arc::default(),
            bell: Arc::new(Bell::new().map_err(EbpfError::io("making an event descriptor"))?),
        };
        let (flag, bell) = (Arc::clone(&stop.flag), Arc::clone(&stop.bell));
        let (done, mut result) = oneshot::channel();
        thread::Builder::new()
            .name("wattpipe-ebpf".into())
            .spawn(move || {
                let result = start(&self.config, self.host, &id, out, &telemetry)
                    .map_err(SourceError::from)
                    .and_then(|reader| {
                        reader.run(&bell, &flag, &Surroundings { privileges, pace })
                    });
                // Nobody waits any more when the source was dropped.
                let _ = done.send(result);
            })
            .map_err(EbpfError::io("starting the reader's thread"))?;
        let ended = tokio::select! {
            ended = &mut result => ended,
            () = shutdown.wait() => {
                stop.now();
                result.await
            }
        };
        ended.unwrap_or_else(|_| {
            Err(SourceError::Failed { what: "the reader's thread panicked".into(), source: None })
        })
    }
}

/// Ends the reader's thread, at the latest when the source is dropped.
struct Stop {
    flag: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl Stop {
    fn now(&self) {
        self.flag.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.now();
    }
}

/// Loads the probe; runs on the reader's thread.
fn start(
    config: &EbpfConfig,
    host: HostRoots,
    id: &str,
    out: BatchSender,
    telemetry: &Telemetry,
) -> Result<Reader, EbpfError> {
    host::privileges(&host.procfs)?;
    host::kernel(&host.procfs)?;
    let possible =
        cpus::Cpus::possible(&host.sysfs).map_err(EbpfError::io("reading the list of CPUs"))?;
    let online =
        cpus::Cpus::read(&host.sysfs).map_err(EbpfError::io("reading the list of CPUs"))?;
    let first = online.online.first().copied().unwrap_or(0);
    let ring_bytes = loader::ring_bytes(config.ring_buffer_size.bytes());
    if u64::from(ring_bytes) != config.ring_buffer_size.bytes() {
        tracing::info!(
            "{id}: ring_buffer_size {} becomes {ring_bytes} bytes, a power of two of pages",
            config.ring_buffer_size
        );
    }
    let limit = loader::batch_limit(ring_bytes);
    if config.batch_events > limit {
        tracing::info!("{id}: batch_events {} becomes {limit} in this ring", config.batch_events);
    }
    let (in_use, for_probe) = hierarchy(&host);
    let options = Options {
        attach: config.attach,
        clock: config.clock,
        cycles: loader::choose_cycles(config.cycles, first)?,
        batch_events: config.batch_events,
        ring_bytes,
        hierarchy: for_probe,
        cpus: possible,
        online: online.online,
    };
    let probe = Probe::load(&host.sysfs, &options)?;
    tracing::info!(
        "{id}: probe attached ({}), cycles {}, cgroups {}",
        probe.attach,
        if options.cycles.is_some() { "on" } else { "off" },
        in_use.as_ref().map_or_else(|| "unknown".to_owned(), |h| h.describe())
    );
    let meters = Meters::enumerate(&host, &config.meters).with_telemetry(telemetry);
    let slice = match config.meter_interval {
        _ if meters.is_empty() => None,
        MeterInterval::Auto => meters.slice_interval(),
        MeterInterval::Every(interval) => Some(interval.0),
    };
    Ok(Reader::new(
        probe,
        Lives::new(Cgroups::new(in_use.as_ref().map(|h| h.mount.as_path()))),
        Windows {
            length: config.window.nanos().0,
            slice: slice.map(|s| Nanos::from(s).0).filter(|s| *s < config.window.nanos().0),
            slices_when_idle: config.meter_interval != MeterInterval::Auto,
        },
        meters,
        host,
        out,
        Gauges::new(telemetry, id),
    ))
}

/// The cgroup hierarchy in use, and how the probe is told of it.
fn hierarchy(host: &HostRoots) -> (Option<crate::cgroup::Hierarchy>, offsets::Hierarchy) {
    let in_use = crate::cgroup::hierarchy(host);
    let own = std::fs::read_to_string(host.procfs.join("self/cgroup")).unwrap_or_default();
    let for_probe = cgroup::for_probe(in_use.as_ref(), &own);
    (in_use, for_probe)
}
