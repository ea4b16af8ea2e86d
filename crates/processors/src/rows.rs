//! Adding rows up, for the processors that merge them. Whatever a row holds is in the sum.

use std::sync::Arc;

use wattpipe_pipeline::{
    batch::{RowEnergy, State, UsageRow},
    identity::AttributeSet,
    units::Nanos,
};

/// A sum of rows.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    cpu: Nanos,
    cycles: Option<u64>,
    switches: Option<u64>,
    energy: smallvec::SmallVec<[RowEnergy; 2]>,
    /// Σ confidence × CPU time and the CPU time it covers.
    confidence: (f64, f64),
}

impl Sum {
    /// Adds `row`, whose zone indices become `zones[index]`.
    pub fn add(&mut self, row: &UsageRow, zones: impl Fn(u16) -> u16) {
        self.cpu.0 += row.cpu.0;
        for (sum, more) in [(&mut self.switches, row.switches), (&mut self.cycles, row.cycles)] {
            if let Some(more) = more {
                *sum.get_or_insert(0) += more;
            }
        }
        for share in &row.energy {
            let zone = zones(share.zone);
            match self.energy.iter_mut().find(|e| e.zone == zone) {
                Some(sum) => {
                    sum.active += share.active;
                    sum.idle += share.idle;
                }
                None => self.energy.push(RowEnergy { zone, ..*share }),
            }
        }
        if let Some(confidence) = row.confidence {
            // A row without CPU time still says something about a sum that has none.
            let weight = (row.cpu.0 as f64).max(1.0);
            self.confidence.0 += f64::from(confidence) * weight;
            self.confidence.1 += weight;
        }
    }

    /// The sum as a row.
    pub fn into_row(self, attributes: Arc<AttributeSet>) -> UsageRow {
        let (weighted, weight) = self.confidence;
        UsageRow {
            process: None,
            attributes,
            state: State::Running,
            cpu: self.cpu,
            cycles: self.cycles,
            switches: self.switches,
            energy: self.energy,
            confidence: (weight > 0.0).then(|| (weighted / weight) as f32),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Windows with rows for tests of what merges or drops them.

    use wattpipe_pipeline::{
        batch::{IdleBasis, Slice, UsageBatch, Window, ZoneUsage},
        identity::Value,
    };

    use super::*;

    pub(crate) const SECOND: u64 = 1_000_000_000;

    /// A row of `cpu` ns with these attributes and joules in zone 0 (and a tenth in zone 1).
    pub(crate) fn row(attributes: &[(&'static str, &str)], cpu: u64, joules: f64) -> UsageRow {
        let share = |zone, active: f64| RowEnergy { zone, active, idle: active / 4.0 };
        UsageRow {
            process: None,
            attributes: Arc::new(attributes.iter().map(|(k, v)| (*k, Value::from(*v))).collect()),
            state: State::Running,
            cpu: Nanos(cpu),
            cycles: Some(cpu * 2),
            switches: Some(3),
            energy: [share(0, joules), share(1, joules / 10.0)].into_iter().collect(),
            confidence: Some(0.5),
        }
    }

    /// The window `at`..`at + 1` s of two CPUs with these rows, whose sums fit.
    pub(crate) fn window(at: u64, rows: Vec<UsageRow>) -> UsageBatch {
        let busy: u64 = rows.iter().map(|r| r.cpu.0).sum();
        let unattributed = 1000;
        let zone = |index: u16, name: &str| {
            let of = |f: fn(&RowEnergy) -> f64| -> f64 {
                rows.iter().flat_map(|r| &r.energy).filter(|e| e.zone == index).map(f).sum()
            };
            let (active, idle) = (of(|e| e.active), of(|e| e.idle));
            ZoneUsage {
                zone: wattpipe_pipeline::testing::zone(name),
                start: Nanos(at * SECOND),
                idle_basis: IdleBasis::Baseline,
                joules: active + idle + 0.5,
                active,
                idle,
                unattributed: 0.5,
                in_total: true,
            }
        };
        let zones = vec![zone(0, "package-0"), zone(1, "dram-0")];
        UsageBatch {
            window: Window {
                start: Nanos(at * SECOND),
                end: Nanos((at + 1) * SECOND),
                boot_unix_ns: 0,
                cpus: 2,
                busy: Nanos(busy),
                idle: Nanos(2 * SECOND - busy - unattributed),
                unattributed: Nanos(unattributed),
                switches: rows.iter().filter_map(|r| r.switches).sum(),
                lost: 0,
                complete: true,
            },
            rows,
            zones,
            readings: vec![],
            slices: vec![Slice::default()],
            live: true,
        }
    }

    /// Everything that must be the same before and after rows were merged.
    #[track_caller]
    pub(crate) fn check_sums(batch: &UsageBatch) {
        let w = &batch.window;
        assert_eq!(w.busy.0 + w.idle.0 + w.unattributed.0, u64::from(w.cpus) * w.duration().0);
        assert_eq!(batch.rows.iter().map(|r| r.cpu.0).sum::<u64>(), w.busy.0);
        for (index, zone) in batch.zones.iter().enumerate() {
            let shares = || {
                batch.rows.iter().flat_map(|r| &r.energy).filter(|e| usize::from(e.zone) == index)
            };
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            assert!(close(shares().map(|e| e.active).sum(), zone.active), "{zone:?}");
            assert!(close(shares().map(|e| e.idle).sum(), zone.idle), "{zone:?}");
            assert!(close(zone.active + zone.idle + zone.unattributed, zone.joules), "{zone:?}");
        }
        assert!(batch.slices.is_empty());
    }
}
