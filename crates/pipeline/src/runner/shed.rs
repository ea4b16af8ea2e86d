//! Fewer rows where memory runs short: the smallest are folded into one, so that every sum stays
//! what it was, and counted.

use std::sync::Arc;

use crate::{
    batch::UsageBatch,
    identity::{AttributeSet, attr},
    rows::Sum,
    telemetry::{Counter, Telemetry},
};

/// Counts what was folded.
pub(super) struct Shedder {
    rows: Counter,
    attributes: Arc<AttributeSet>,
}

impl Shedder {
    pub(super) fn new(telemetry: &Telemetry) -> Self {
        let attributes: AttributeSet = [(attr::REST, "memory_limit")].into_iter().collect();
        Self {
            rows: telemetry.counter(
                "wattpipe_memory_limit_shed_rows_total",
                "Rows folded into one because the agent was near service::memory_limit.",
                &[],
            ),
            attributes: Arc::new(attributes),
        }
    }
}

/// Keeps the `max` rows with the most CPU time and folds the rest into one row.
pub(super) fn shed(usage: &mut Arc<UsageBatch>, max: usize, shedder: &mut Shedder) {
    if usage.rows.len() <= max {
        return;
    }
    let usage = Arc::make_mut(usage);
    usage.rows.sort_by_key(|row| std::cmp::Reverse(row.cpu));
    // Usage per slice names rows by their index.
    usage.slices.clear();
    shedder.rows.add((usage.rows.len() - max) as u64);
    let mut rest = Sum::default();
    for row in usage.rows.drain(max..) {
        rest.add(&row, |zone| zone);
    }
    usage.rows.push(rest.into_row(shedder.attributes.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{RowEnergy, State, UsageRow, Window},
        units::Nanos,
    };

    #[test]
    fn sums_stay_when_rows_go() {
        let row = |cpu: u64| UsageRow {
            process: None,
            attributes: Arc::default(),
            state: State::Running,
            cpu: Nanos(cpu),
            cycles: (cpu > 2).then_some(cpu * 10),
            switches: Some(1),
            energy: [RowEnergy { zone: 0, active: cpu as f64, idle: 0.5 }].into_iter().collect(),
            confidence: None,
        };
        let mut usage = Arc::new(UsageBatch {
            window: Window::default(),
            rows: (1..=5).map(row).collect(),
            zones: vec![],
            readings: vec![],
            slices: vec![],
            live: true,
        });
        let telemetry = Telemetry::default();
        shed(&mut usage, 2, &mut Shedder::new(&telemetry));
        let cpu: Vec<u64> = usage.rows.iter().map(|r| r.cpu.0).collect();
        assert_eq!(cpu, [5, 4, 6]);
        let rest = &usage.rows[2];
        assert_eq!((rest.switches, rest.cycles), (Some(3), Some(30)));
        assert_eq!(rest.energy[0], RowEnergy { zone: 0, active: 6.0, idle: 1.5 });
        assert_eq!(telemetry.snapshot().len(), 1);
    }
}
