//! A closed window becomes a [`UsageBatch`]: accounting, a row per process, slices for the power
//! model.

use smallvec::SmallVec;
use wattpipe_pipeline::{
    batch::{Domain, Slice, State, UsageBatch, UsageRow, Window},
    units::Nanos,
};

use super::{
    Delta,
    slots::{IDLE, Life, SlotId, UNKNOWN},
};

/// Nanoseconds in which a thread that was preempted on its way out gets to its end: an exit so
/// close to the edge waits for the next window, or the process would exit twice.
const SETTLE: u64 = 10_000_000;

impl Delta {
    pub(super) fn emit(&mut self, start: Nanos, edge: Nanos, live: bool) -> UsageBatch {
        let pairs = self.busy.settle(&mut self.accounts);
        let mut row_of = vec![u32::MAX; self.slots.len()];
        let mut rows = Vec::new();
        let mut busy = 0;
        let mut switches = [IDLE, UNKNOWN].iter().map(|s| self.accounts.total(*s).0.switches).sum();
        // A recording's later windows cannot be waited for: what it holds decides.
        let settled = if live { Nanos(edge.0.saturating_sub(SETTLE)) } else { edge };
        let ids: Vec<SlotId> = self.slots.processes().map(|(id, _)| id).collect();
        for id in ids {
            let (hot, cycles) = self.accounts.total(id);
            busy += hot.ns;
            switches += hot.switches;
            let Some(state) = self.live_on(id, hot.ns, settled) else { continue };
            if state == State::Running && hot.ns == 0 && hot.switches == 0 {
                continue;
            }
            row_of[id as usize] = rows.len() as u32;
            rows.push(UsageRow {
                attributes: self.slots.attributes(id, self.boot_unix_ns),
                process: Some(self.slots.get(id).process.clone()),
                state,
                cpu: Nanos(hot.ns),
                cycles: self.any_cycles.then_some(cycles),
                switches: Some(hot.switches),
                energy: SmallVec::new(),
                confidence: None,
            });
        }
        let (idle, unattributed) =
            (self.accounts.total(IDLE).0.ns, self.accounts.total(UNKNOWN).0.ns);
        let window = Window {
            start,
            end: edge,
            boot_unix_ns: self.boot_unix_ns,
            cpus: self.counted,
            busy: Nanos(busy),
            idle: Nanos(idle),
            unattributed: Nanos(unattributed),
            switches,
            lost: self.lost,
            complete: self.lost == 0 && unattributed == 0,
        };
        let slices = self.slices(start, edge, &row_of, &pairs);
        // Readings later than the edge have not been taken in yet: these are the window's.
        let readings = std::mem::take(&mut self.readings);
        UsageBatch { window, rows, zones: Vec::new(), readings, slices, live }
    }

    /// Moves a process along its life; who exited by `settled` and has no CPU is told as exited.
    /// `None`: its slot was released, nothing to tell.
    fn live_on(&mut self, id: SlotId, ns: u64, settled: Nanos) -> Option<State> {
        let on_cpu = || self.cpus.iter().any(|c| c.current() == id);
        match self.slots.get(id).life {
            Life::Exiting(at) if at <= settled && !on_cpu() => {
                self.slots.set_life(id, Life::Reported);
                Some(State::Exited)
            }
            // A thread that was preempted on its way out ran once more.
            Life::Reported if on_cpu() => Some(State::Running),
            Life::Reported if ns > 0 => Some(State::Exited),
            Life::Reported => {
                self.slots.release(id);
                None
            }
            Life::Live | Life::Exiting(_) => Some(State::Running),
            Life::Free => None,
        }
    }

    fn slices(&self, start: Nanos, edge: Nanos, row_of: &[u32], pairs: &[Nanos]) -> Vec<Slice> {
        let packages = self.accounts.packages();
        let mut ends: Vec<Nanos> =
            self.accounts.ends().iter().copied().take_while(|end| *end < edge).collect();
        ends.push(edge);
        let mut from = start;
        let mut slices = Vec::with_capacity(ends.len());
        for (slice, end) in ends.into_iter().enumerate() {
            let domains = (0..packages).map(|package| {
                let (idle, unattributed) = self.accounts.idle_unknown(slice, package);
                Domain {
                    package: self.packages[package],
                    cpus: self.cpus.iter().filter(|c| c.counted && c.package == package).count()
                        as u32,
                    idle,
                    unattributed,
                    any_busy: self.busy.any(package, from, end),
                    pair_busy: pairs.get(slice * packages + package).copied().unwrap_or_default(),
                    cells: self.accounts.cells(slice, package, row_of),
                }
            });
            slices.push(Slice { end, domains: domains.collect() });
            from = end;
        }
        slices
    }

    /// Before the first edge nothing is reported: whoever exited by then is forgotten.
    pub(super) fn forget_before_first_edge(&mut self, edge: Nanos) {
        let ids: Vec<SlotId> = self.slots.processes().map(|(id, _)| id).collect();
        for id in ids {
            if self.live_on(id, 0, edge) == Some(State::Exited) {
                self.slots.set_life(id, Life::Reported);
            }
        }
        self.readings.retain(|r| r.ts == edge);
    }
}
