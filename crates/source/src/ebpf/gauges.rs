//! What the source counts.

use wattpipe_pipeline::telemetry::{Counter, Gauge, Telemetry};

use super::{loader::Probe, stream::StreamCounts};

/// The source's instruments.
pub(crate) struct Gauges {
    told: Told,
    switches: Counter,
    lost: Counter,
    late: Counter,
    malformed: Counter,
    pub(crate) life_lost: Counter,
    untraced: Counter,
    pub(crate) ipis: Counter,
    /// There from the first time on that the kernel measures: a zero would be a lie.
    run_seconds: Option<Gauge>,
    telemetry: Telemetry,
    source: String,
}

impl Gauges {
    pub(crate) fn new(telemetry: &Telemetry, source: &str) -> Self {
        let labels = [("source", source)];
        let counter = |name, help| telemetry.counter(name, help, &labels);
        Self {
            told: Told::default(),
            run_seconds: None,
            telemetry: telemetry.clone(),
            source: source.to_owned(),
            switches: counter("wattpipe_source_switches_total", "Context switches received"),
            lost: counter("wattpipe_source_lost_total", "Context switches lost before userland"),
            late: counter(
                "wattpipe_source_late_total",
                "Switches moved up to the window edge they missed",
            ),
            malformed: counter("wattpipe_source_malformed_total", "Records that made no sense"),
            life_lost: counter(
                "wattpipe_source_life_cycle_lost_total",
                "Fork, exec and exit records lost; each time a snapshot makes up for them",
            ),
            untraced: counter(
                "wattpipe_source_untraced_switches_total",
                "Switches the kernel's tracepoint did not show, put back in",
            ),
            ipis: counter("wattpipe_source_flush_ipis_total", "CPUs interrupted to close a window"),
        }
    }

    /// Tells what has come since the last time, and returns the number of switches.
    pub(crate) fn tell(&mut self, now: &StreamCounts, probe: &Probe) -> u64 {
        let told =
            std::mem::replace(&mut self.told, Told { streams: *now, untraced: probe.untraced() });
        let switches = now.switches - told.streams.switches;
        self.switches.add(switches);
        self.lost.add(now.lost - told.streams.lost);
        self.late.add(now.late - told.streams.late);
        self.malformed.add(now.malformed - told.streams.malformed);
        self.untraced.add(self.told.untraced - told.untraced);
        if statistics_are_on() {
            let gauge = self.run_seconds.get_or_insert_with(|| {
                self.telemetry.gauge(
                    "wattpipe_probe_run_seconds_total",
                    "Time the kernel spent in the probe; told where kernel.bpf_stats_enabled is set",
                    &[("source", &self.source)],
                )
            });
            gauge.set(probe.run_seconds());
        }
        switches
    }
}

/// What has been told already.
#[derive(Clone, Copy, Default)]
struct Told {
    streams: StreamCounts,
    untraced: u64,
}

/// Whether the kernel measures programs already; the source never switches that on.
fn statistics_are_on() -> bool {
    std::fs::read("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.starts_with(b"1"))
}
