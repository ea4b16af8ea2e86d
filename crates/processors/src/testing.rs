//! Windows with rows for tests of what merges or drops them.

use std::sync::Arc;

use wattpipe_pipeline::{
    batch::{IdleBasis, RowEnergy, Slice, State, UsageBatch, UsageRow, Window, ZoneUsage},
    identity::Value,
    units::Nanos,
};

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
        let shares =
            || batch.rows.iter().flat_map(|r| &r.energy).filter(|e| usize::from(e.zone) == index);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
        assert!(close(shares().map(|e| e.active).sum(), zone.active), "{zone:?}");
        assert!(close(shares().map(|e| e.idle).sum(), zone.idle), "{zone:?}");
        assert!(close(zone.active + zone.idle + zone.unattributed, zone.joules), "{zone:?}");
    }
    assert!(batch.slices.is_empty());
}
