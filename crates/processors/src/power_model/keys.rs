//! Which workloads coefficients are learnt for. A workload is a container and a program's name,
//! so that short-lived processes inherit what was learnt from those before them. The ones that
//! weigh most are followed each on their own; the rest are one pool.

use std::collections::HashMap;

use wattpipe_pipeline::{batch::UsageRow, identity::attr};

/// Workloads followed on their own. Slot 0 is the pool.
pub(super) const TRACKED: usize = 128;
/// Workloads that wait for a slot.
const WAITING: usize = 1024;
/// How much of a workload's weight is remembered from window to window.
const KEEP: f64 = 0.98;

/// A workload's place in the regression; 0 is the pool.
pub(super) type Slot = u16;

/// (container, program), hashed: a collision would pool two workloads, no more.
type Key = u64;

/// The slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    slots: HashMap<Key, Slot>,
    /// Key and recent CPU seconds per slot, from slot 1 on.
    used: Vec<(Key, f64)>,
    waiting: HashMap<Key, f64>,
    /// Slot of each row of the window at hand.
    pub(super) of_row: Vec<Slot>,
}

impl Keys {
    /// Gives each row its slot. Returns slots that change hands: what was learnt there is void.
    pub(super) fn window(&mut self, rows: &[UsageRow]) -> Vec<Slot> {
        let mut changed = Vec::new();
        self.used.iter_mut().for_each(|(_, seconds)| *seconds *= KEEP);
        self.of_row.clear();
        for row in rows {
            let key = key_of(row);
            let seconds = row.cpu.as_secs_f64();
            let slot = match self.slots.get(&key) {
                Some(slot) => *slot,
                None if self.used.len() < TRACKED => {
                    self.used.push((key, 0.0));
                    let slot = self.used.len() as Slot;
                    self.slots.insert(key, slot);
                    slot
                }
                None => self.wait(key, seconds, &mut changed),
            };
            if slot > 0 {
                self.used[usize::from(slot) - 1].1 += seconds;
            }
            self.of_row.push(slot);
        }
        self.waiting.retain(|_, seconds| {
            *seconds *= KEEP;
            *seconds > 1e-4
        });
        changed
    }

    /// A workload without a slot takes that of one that weighs half as much by now.
    fn wait(&mut self, key: Key, seconds: f64, changed: &mut Vec<Slot>) -> Slot {
        if seconds <= 0.0 || (self.waiting.len() >= WAITING && !self.waiting.contains_key(&key)) {
            return 0;
        }
        let mine = self.waiting.entry(key).or_insert(0.0);
        *mine += seconds;
        let mine = *mine;
        let least = self.used.iter().enumerate().min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
        let Some((at, &(old, theirs))) = least else { return 0 };
        let slot = at as Slot + 1;
        // Rows of this window may have the slot already.
        if mine < 2.0 * theirs || self.of_row.contains(&slot) {
            return 0;
        }
        self.slots.remove(&old);
        self.slots.insert(key, slot);
        self.waiting.remove(&key);
        self.used[at] = (key, mine);
        changed.push(slot);
        slot
    }
}

fn key_of(row: &UsageRow) -> Key {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    row.attributes.get_str(attr::CONTAINER_ID).hash(&mut hasher);
    row.attributes.get_str(attr::PROCESS_EXECUTABLE_NAME).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use wattpipe_pipeline::{identity::AttributeSet, units::Nanos};

    fn row(name: &str, ms: u64) -> UsageRow {
        let mut row = super::super::tests::row(1);
        let mut attributes = AttributeSet::new();
        attributes.set(attr::PROCESS_EXECUTABLE_NAME, name);
        row.attributes = Arc::new(attributes);
        row.cpu = Nanos(ms * 1_000_000);
        row
    }

    #[test]
    fn a_name_keeps_its_slot_and_the_rest_is_pooled() {
        let mut keys = Keys::default();
        keys.window(&[row("a", 100), row("b", 100), row("a", 100)]);
        assert_eq!(keys.of_row, [1, 2, 1]);
        let many: Vec<_> = (0..TRACKED).map(|i| row(&format!("p{i}"), 100)).collect();
        assert!(keys.window(&many).is_empty());
        assert_eq!(keys.of_row[TRACKED - 2..], [0, 0], "two too many");
        assert_eq!(keys.used.len(), TRACKED);
    }

    #[test]
    fn a_heavy_newcomer_takes_over_the_lightest_slot() {
        let mut keys = Keys::default();
        let many: Vec<_> = (0..TRACKED).map(|i| row(&format!("p{i}"), 100 + i as u64)).collect();
        keys.window(&many);
        assert_eq!(keys.window(&[row("new", 50)]), Vec::<Slot>::new());
        assert_eq!(keys.of_row, [0]);
        assert_eq!(keys.window(&[row("new", 500)]), [1]);
        assert_eq!(keys.window(&[row("p0", 10)]), Vec::<Slot>::new());
        assert_eq!(keys.of_row, [0], "its slot is gone");
    }
}
