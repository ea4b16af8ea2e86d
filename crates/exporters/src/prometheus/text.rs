//! The page: all series in one of Prometheus' two text forms.
//!
//! Both forms want all samples of a metric together, so the series are walked once per metric.
//! Labels of a workload are written once and copied.

use std::{borrow::Cow, fmt::Write};

use wattpipe_pipeline::identity::{AttributeSet, Value};

use crate::{
    semconv::{self, ACTIVE, IDLE, LEVELS, Level},
    series::{Entity, SeriesState, ZoneSeries},
};

/// One of the two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Classic,
    OpenMetrics,
}

impl Format {
    /// What a scraper asks for.
    pub(super) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What goes on the page.
pub(super) struct Page<'a> {
    pub(super) resource: &'a AttributeSet,
    pub(super) expiration_ns: u64,
    pub(super) convert: bool,
    pub(super) format: Format,
}

impl Page<'_> {
    pub(super) fn render(&self, series: &SeriesState) -> String {
        let now = series.now();
        let visible =
            |e: &&Entity| e.ended.is_none_or(|end| now.saturating_sub(end) <= self.expiration_ns);
        // (entity, its labels without braces)
        let workloads: Vec<(&Entity, String)> = series
            .entities()
            .filter(visible)
            .map(|e| (e, self.labels(&e.attributes, e.is_group())))
            .collect();
        let size: usize = workloads.iter().map(|(_, l)| 3 * (l.len() + 96)).sum();
        let mut out = String::with_capacity(size + 1024);
        self.zones(&mut out, series.zones());
        for level in LEVELS {
            let of: Vec<&(&Entity, String)> =
                workloads.iter().filter(|(e, _)| e.level == level).collect();
            if of.is_empty() {
                continue;
            }
            self.workloads(&mut out, level, &of, series.zones());
        }
        if self.format == Format::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }

    fn zones(&self, out: &mut String, zones: &[ZoneSeries]) {
        if zones.is_empty() {
            return;
        }
        let base =
            if self.convert { self.labels(&AttributeSet::new(), false) } else { String::new() };
        let mut family = |metric, id, value: fn(&ZoneSeries) -> f64| {
            self.head(out, metric);
            for zone in zones {
                let mut labels = base.clone();
                label(&mut labels, id, &zone.zone.name);
                label(&mut labels, semconv::HW_TYPE, &zone.zone.hw_type);
                if zone.is_estimate() {
                    label(&mut labels, semconv::ENERGY_SOURCE, "estimate");
                }
                self.sample(out, metric, &labels, value(zone), zone.start);
            }
        };
        family(&semconv::HW_ENERGY, semconv::HW_ID, |z| z.joules);
        family(&semconv::UNATTRIBUTED, semconv::ENERGY_ZONE, |z| z.unattributed);
    }

    fn workloads(
        &self,
        out: &mut String,
        level: Level,
        of: &[&(&Entity, String)],
        zones: &[ZoneSeries],
    ) {
        let cpu = &semconv::CPU_TIME[level.index()];
        self.head(out, cpu);
        for (e, labels) in of {
            self.sample(out, cpu, labels, e.cpu.as_secs_f64(), e.start);
        }
        if level == Level::Process && of.iter().any(|(e, _)| e.switches.is_some()) {
            let metric = &semconv::CONTEXT_SWITCHES;
            self.head(out, metric);
            for (e, labels) in of {
                if let Some(switches) = e.switches {
                    self.sample(out, metric, labels, switches as f64, e.start);
                }
            }
        }
        if of.iter().all(|(e, _)| e.energy.is_empty()) {
            return;
        }
        let energy = &semconv::ENERGY[level.index()];
        self.head(out, energy);
        // The labels of each zone and mode are the same for all workloads.
        let suffixes: Vec<[String; 2]> =
            zones.iter().map(|z| [ACTIVE, IDLE].map(|m| suffix(z, m))).collect();
        let mut all = String::new();
        for (e, labels) in of {
            for part in &e.energy {
                let Some([active, idle]) = suffixes.get(part.zone) else { continue };
                for (suffix, joules) in [(active, part.active), (idle, part.idle)] {
                    // Idle energy is there only where it is shared out.
                    if std::ptr::eq(suffix, idle) && joules == 0.0 {
                        continue;
                    }
                    all.clear();
                    all.push_str(labels);
                    if !labels.is_empty() {
                        all.push(',');
                    }
                    all.push_str(suffix);
                    self.sample(out, energy, &all, joules, e.start);
                }
            }
        }
    }

    fn head(&self, out: &mut String, metric: &semconv::Metric) {
        let name = metric.prometheus;
        let (family, unit) = match self.format {
            Format::Classic => (format!("{name}_total"), None),
            Format::OpenMetrics => (name.to_owned(), unit_of(name)),
        };
        let _ = writeln!(out, "# HELP {family} {}", metric.description);
        let _ = writeln!(out, "# TYPE {family} counter");
        if let Some(unit) = unit {
            let _ = writeln!(out, "# UNIT {family} {unit}");
        }
    }

    fn sample(
        &self,
        out: &mut String,
        metric: &semconv::Metric,
        labels: &str,
        value: f64,
        start: u64,
    ) {
        let name = metric.prometheus;
        let _ = writeln!(out, "{name}_total{{{labels}}} {value}");
        if self.format == Format::OpenMetrics {
            let (seconds, millis) = (start / 1_000_000_000, start / 1_000_000 % 1000);
            let _ = writeln!(out, "{name}_created{{{labels}}} {seconds}.{millis:03}");
        }
    }

    fn labels(&self, own: &AttributeSet, all: bool) -> String {
        let mut labels = String::new();
        if !all && !self.convert {
            for (key, value) in own.iter().filter(|(key, _)| semconv::IDENTIFYING.contains(key)) {
                attribute(&mut labels, key, value);
            }
            return labels;
        }
        let resource =
            self.resource.iter().filter(|(key, _)| self.convert && own.get(key).is_none());
        for (key, value) in resource.chain(own.iter()) {
            let before = labels.len();
            attribute(&mut labels, key, value);
            if is_repeated(&labels, before) {
                labels.truncate(before);
            }
        }
        labels
    }
}

/// Whether the label that begins at `at` has the name of one before it: attributes that users name
/// may differ in what no label can hold. Of two the first stays, since a scraper refuses both.
fn is_repeated(labels: &str, at: usize) -> bool {
    let (before, label) = labels.split_at(at);
    let label = label.trim_start_matches(',');
    // With the quote behind it, which is escaped within a value.
    let Some(name) = label.find('"').map(|end| &label[..=end]) else { return false };
    before.match_indices(name).any(|(at, _)| at == 0 || before.as_bytes()[at - 1] == b',')
}

fn suffix(zone: &ZoneSeries, mode: &str) -> String {
    let mut labels = String::new();
    label(&mut labels, semconv::ENERGY_ZONE, &zone.zone.name);
    label(&mut labels, semconv::HW_TYPE, &zone.zone.hw_type);
    label(&mut labels, semconv::ENERGY_MODE, mode);
    if zone.is_estimate() {
        label(&mut labels, semconv::ENERGY_SOURCE, "estimate");
    }
    labels
}

/// The unit that a name ends with, as OpenMetrics wants it.
fn unit_of(name: &str) -> Option<&'static str> {
    ["seconds", "joules"].into_iter().find(|unit| name.ends_with(unit))
}

fn attribute(labels: &mut String, key: &str, value: &Value) {
    match value {
        Value::Str(text) => label(labels, key, text),
        Value::Int(number) => label(labels, key, &number.to_string()),
    }
}

fn label(labels: &mut String, key: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    // Names are ours but for pod labels, which may hold any character.
    if key.starts_with(|c: char| c.is_ascii_digit()) {
        labels.push('_');
    }
    labels.extend(key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    let _ = write!(labels, "=\"{}\"", escaped(value));
}

fn escaped(value: &str) -> Cow<'_, str> {
    if value.contains(['\\', '"', '\n']) {
        Cow::Owned(value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
    } else {
        Cow::Borrowed(value)
    }
}
