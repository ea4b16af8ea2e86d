//! Counters and gauges that components keep about themselves. The agent reads them through
//! [`Telemetry::snapshot`] and publishes them with the OpenTelemetry SDK.
//!
//! An instrument is named once per set of labels: asking again gives the same one, so counters
//! stay monotonic when a component is rebuilt.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A count that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that goes up and down (a sum of floats, too).
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Replaces the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// What an instrument is called: name in Prometheus form, and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstrumentId {
    /// `wattpipe_source_lost_total`, ...
    pub name: &'static str,
    /// Label names and values.
    pub labels: Vec<(&'static str, String)>,
}

/// An instrument.
#[derive(Clone, Debug)]
pub enum Instrument {
    /// A counter.
    Counter(Counter),
    /// A gauge.
    Gauge(Gauge),
}

/// An instrument with its help text, as registered.
#[derive(Clone, Debug)]
pub struct Registered {
    /// One line on what it counts, with the unit.
    pub help: &'static str,
    /// The instrument.
    pub instrument: Instrument,
}

/// The registry of instruments; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Telemetry(Arc<Mutex<BTreeMap<InstrumentId, Registered>>>);

impl Telemetry {
    /// The counter of this name and these labels.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        let fresh = Instrument::Counter(Counter::default());
        match self.register(name, help, labels, fresh) {
            Instrument::Counter(c) => c,
            // Two kinds under one name is a programming error; a detached counter harms nobody.
            Instrument::Gauge(_) => Counter::default(),
        }
    }

    /// The gauge of this name and these labels.
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Gauge {
        match self.register(name, help, labels, Instrument::Gauge(Gauge::default())) {
            Instrument::Gauge(g) => g,
            Instrument::Counter(_) => Gauge::default(),
        }
    }

    fn register(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        fresh: Instrument,
    ) -> Instrument {
        let id = InstrumentId {
            name,
            labels: labels.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
        };
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.entry(id).or_insert(Registered { help, instrument: fresh }).instrument.clone()
    }

    /// Everything registered so far, by name and labels.
    pub fn snapshot(&self) -> Vec<(InstrumentId, Registered)> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.iter().map(|(id, r)| (id.clone(), r.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_and_labels_give_the_same_instrument() {
        let t = Telemetry::default();
        t.counter("wattpipe_x_total", "x", &[("source", "a")]).add(2);
        t.counter("wattpipe_x_total", "x", &[("source", "a")]).add(3);
        t.counter("wattpipe_x_total", "x", &[("source", "b")]).add(1);
        assert_eq!(t.counter("wattpipe_x_total", "x", &[("source", "a")]).get(), 5);
        assert_eq!(t.snapshot().len(), 2);
    }
}
