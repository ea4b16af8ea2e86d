//! Which row is which process, over windows: a zone that was not read at an edge owes energy to
//! processes that may have no row in the window in which it is read again.

use std::{collections::HashMap, sync::Arc};

use smallvec::SmallVec;
use wattpipe_pipeline::{
    batch::{State, UsageRow},
    identity::{AttributeSet, Process, Value, attr},
    units::Nanos,
};

/// A process by (pid, start time).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RowKey(u32, u64);

impl RowKey {
    pub(super) fn of(row: &UsageRow) -> Self {
        match &row.process {
            Some(p) => Self(p.pid.0, p.start_time.map_or(u64::MAX, |t| t.0)),
            None => match row.attributes.get(attr::PROCESS_PID) {
                Some(Value::Int(pid)) => Self(u32::try_from(*pid).unwrap_or(0), u64::MAX),
                _ => Self(0, u64::MAX),
            },
        }
    }
}

/// What is needed to give a process a row once more.
#[derive(Clone, Debug)]
struct Remembered {
    process: Option<Arc<Process>>,
    attributes: Arc<AttributeSet>,
    state: State,
    /// 0 where its source sees them.
    switches: Option<u64>,
}

/// Processes that some zone still owes energy.
#[derive(Clone, Debug, Default)]
pub(super) struct Carried(HashMap<RowKey, Remembered>);

impl Carried {
    /// How many.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends a row without usage for each that has none here, and says where each row is.
    pub(super) fn append_to(&self, rows: &mut Vec<UsageRow>) -> HashMap<RowKey, u32> {
        let mut index = HashMap::with_capacity(rows.len() + self.0.len());
        for (at, row) in rows.iter().enumerate() {
            index.insert(RowKey::of(row), at as u32);
        }
        let mut missing: Vec<_> = self.0.iter().filter(|(k, _)| !index.contains_key(k)).collect();
        missing.sort_unstable_by_key(|(k, _)| **k);
        for (key, kept) in missing {
            index.insert(*key, rows.len() as u32);
            rows.push(UsageRow {
                process: kept.process.clone(),
                attributes: kept.attributes.clone(),
                state: kept.state,
                cpu: Nanos(0),
                cycles: None,
                switches: kept.switches,
                energy: SmallVec::new(),
                confidence: None,
            });
        }
        index
    }

    /// Remembers exactly the rows whose number `held` tells.
    pub(super) fn keep(&mut self, rows: &[UsageRow], held: impl Iterator<Item = RowKey>) {
        let held: std::collections::HashSet<RowKey> = held.collect();
        if held.is_empty() {
            self.0.clear();
            return;
        }
        self.0.retain(|key, _| held.contains(key));
        for row in rows {
            let key = RowKey::of(row);
            if held.contains(&key) {
                let kept = Remembered {
                    process: row.process.clone(),
                    attributes: row.attributes.clone(),
                    state: row.state,
                    switches: row.switches.map(|_| 0),
                };
                self.0.insert(key, kept);
            }
        }
    }
}
