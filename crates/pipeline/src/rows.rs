//! Adding rows up, for whoever merges them. Whatever a row holds is in the sum.

use std::sync::Arc;

use crate::{
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
