//! `aggregate`: adds rows up over an interval and by any attributes. Every sum stays the same.
//!
//! ```yaml
//! processors:
//!   aggregate:
//!     interval: 10s            # windows are put together until they are nearest to it
//!     by: [container.id]       # rows with the same values become one
//! ```
//!
//! A row that has none of the attributes is added to the one row without attributes. Windows that
//! do not join (a gap, another number of CPUs, a clock step, a zone that starts or stops to count)
//! are never put together: the interval ends early instead, so that each sum stays exact.

use std::{collections::HashMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, ConfigProblem, Processor, ProcessorComponent,
    ProcessorError,
    batch::{State, UsageBatch, UsageRow, Window, ZoneUsage},
    identity::{AttributeSet, Process, attr},
    registry::BuildError,
    rows::Sum,
    telemetry::Counter,
    units::ConfigDuration,
};

/// Rows of one interval at most; more are added to one row marked `wattpipe.rest`.
const MAX_ROWS: usize = 65_536;

/// Configuration of `aggregate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AggregateConfig {
    /// Length of what comes out. `0s` keeps the windows.
    pub interval: ConfigDuration,
    /// Attributes that stay apart. An empty list gives one row.
    pub by: Vec<String>,
}

impl Default for AggregateConfig {
    fn default() -> Self {
        Self { interval: ConfigDuration::from_secs(10), by: vec![attr::CONTAINER_ID.to_owned()] }
    }
}

impl Config for AggregateConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let empty = self.by.iter().enumerate().filter(|(_, name)| name.trim().is_empty());
        empty
            .map(|(i, _)| ConfigProblem::at(&format!("by.{i}"), "an attribute has a name"))
            .collect()
    }

    fn attributes(&self) -> Vec<(Vec<String>, &str)> {
        let by = self.by.iter().enumerate();
        by.map(|(i, name)| (vec!["by".to_owned(), i.to_string()], &**name)).collect()
    }
}

/// The processor.
#[derive(Debug)]
pub struct Aggregate {
    interval: u64,
    by: Vec<String>,
    /// Rows stay one process's: `by` holds all that names a process.
    keeps_processes: bool,
    rest: Arc<AttributeSet>,
    /// The short set by the full one, so that a known row makes no strings.
    short: HashMap<usize, (Arc<AttributeSet>, Arc<AttributeSet>)>,
    pending: Option<Pending>,
    overflowed: Counter,
}

impl ProcessorComponent for Aggregate {
    const NAME: &'static str = "aggregate";
    const DOC: &'static str = "Adds rows up over an interval and by attributes.";
    const TAKES: BatchKind = BatchKind::Usage;
    const EMITS: BatchKind = BatchKind::Usage;
    const MERGES_ROWS: bool = true;
    type Config = AggregateConfig;

    fn build(config: AggregateConfig, context: &BuildContext) -> Result<Self, BuildError> {
        let names = |name: &str| config.by.iter().any(|by| by == name);
        Ok(Self {
            interval: config.interval.nanos().0,
            keeps_processes: names(attr::PROCESS_PID) && names(attr::PROCESS_CREATION_TIME),
            by: config.by,
            rest: Arc::new(AttributeSet::from_iter([(attr::REST, context.id.as_str())])),
            short: HashMap::new(),
            pending: None,
            overflowed: context.telemetry.counter(
                "wattpipe_aggregate_overflow_total",
                "Rows added to the one row of the rest because an interval had too many.",
                &[("processor", &context.id)],
            ),
        })
    }
}

impl Processor for Aggregate {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        let Batch::Usage(usage) = batch else { return Ok(Some(batch)) };
        let mut out = None;
        if self.pending.as_ref().is_some_and(|p| !p.joins(&usage)) {
            out = self.pending.take();
        }
        let mut pending = self.pending.take().unwrap_or_else(|| Pending::new(&usage));
        self.add(&mut pending, &usage);
        // The edge nearest to the interval's end closes it.
        let reached = pending.window.duration().0 + usage.window.duration().0 / 2;
        if reached >= self.interval && out.is_none() {
            out = Some(pending);
        } else {
            self.pending = Some(pending);
        }
        Ok(out.map(Pending::into_batch))
    }

    fn flush(&mut self) -> Result<Option<Batch>, ProcessorError> {
        Ok(self.pending.take().map(Pending::into_batch))
    }
}

impl Aggregate {
    fn add(&mut self, pending: &mut Pending, usage: &UsageBatch) {
        let zones = pending.add_window(usage);
        let to = |zone: u16| zones.get(usize::from(zone)).copied().unwrap_or(zone);
        // Only sets that this window brings are remembered.
        let mut short = std::mem::take(&mut self.short);
        for row in &usage.rows {
            // The pointer names the set as long as the map holds the set itself.
            let address = Arc::as_ptr(&row.attributes) as usize;
            let known = short.get(&address).filter(|(full, _)| Arc::ptr_eq(full, &row.attributes));
            let key = match known {
                Some((_, key)) => key.clone(),
                None => Arc::new(self.shorten(&row.attributes)),
            };
            self.short.insert(address, (row.attributes.clone(), key.clone()));
            let full = pending.groups.len() >= MAX_ROWS;
            let key = if full && !pending.groups.contains_key(&key) {
                self.overflowed.add(1);
                self.rest.clone()
            } else {
                key
            };
            let group = pending.groups.entry(key).or_default();
            group.sum.add(row, to);
            if self.keeps_processes {
                group.process = group.process.take().or_else(|| row.process.clone());
                group.exited |= row.state == State::Exited;
            }
        }
        short.clear();
    }

    fn shorten(&self, full: &AttributeSet) -> AttributeSet {
        full.iter()
            .filter(|(name, _)| self.by.iter().any(|by| by == name))
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }
}

/// What has come together of an interval.
#[derive(Debug)]
struct Pending {
    window: Window,
    zones: Vec<ZoneUsage>,
    groups: HashMap<Arc<AttributeSet>, Group>,
    live: bool,
}

#[derive(Debug, Default)]
struct Group {
    sum: Sum,
    process: Option<Arc<Process>>,
    exited: bool,
}

impl Pending {
    fn new(first: &UsageBatch) -> Self {
        let mut window = first.window;
        window.end = window.start;
        window.busy.0 = 0;
        window.idle.0 = 0;
        window.unattributed.0 = 0;
        window.switches = 0;
        window.lost = 0;
        window.complete = true;
        Self { window, zones: Vec::new(), groups: HashMap::new(), live: first.live }
    }

    /// Whether `next` can be put to it with every sum exact.
    fn joins(&self, next: &UsageBatch) -> bool {
        let (ours, theirs) = (&self.window, &next.window);
        let zones = self.zones.iter().all(|zone| {
            let same = next.zones.iter().find(|z| z.zone.name == zone.zone.name);
            same.is_none_or(|z| z.in_total == zone.in_total && z.zone.source == zone.zone.source)
        });
        ours.end == theirs.start
            && ours.cpus == theirs.cpus
            && ours.boot_unix_ns == theirs.boot_unix_ns
            && self.live == next.live
            && zones
    }

    /// Adds accounting and zones; gives the new index of each of the window's zones.
    fn add_window(&mut self, usage: &UsageBatch) -> Vec<u16> {
        let (ours, theirs) = (&mut self.window, &usage.window);
        ours.end = theirs.end;
        ours.busy.0 += theirs.busy.0;
        ours.idle.0 += theirs.idle.0;
        ours.unattributed.0 += theirs.unattributed.0;
        ours.switches += theirs.switches;
        ours.lost += theirs.lost;
        ours.complete &= theirs.complete;
        usage.zones.iter().map(|zone| self.add_zone(zone)).collect()
    }

    fn add_zone(&mut self, zone: &ZoneUsage) -> u16 {
        let at = self.zones.iter().position(|z| z.zone.name == zone.zone.name);
        if let Some(at) = at {
            let sum = &mut self.zones[at];
            sum.start = sum.start.min(zone.start);
            sum.joules += zone.joules;
            sum.active += zone.active;
            sum.idle += zone.idle;
            sum.unattributed += zone.unattributed;
            sum.idle_basis = zone.idle_basis;
        } else {
            self.zones.push(zone.clone());
        }
        u16::try_from(at.unwrap_or(self.zones.len() - 1)).unwrap_or(u16::MAX)
    }

    fn into_batch(self) -> Batch {
        let mut rows: Vec<UsageRow> = self
            .groups
            .into_iter()
            .map(|(attributes, group)| {
                let mut row = group.sum.into_row(attributes);
                row.process = group.process;
                if group.exited {
                    row.state = State::Exited;
                }
                row
            })
            .collect();
        rows.sort_unstable_by(|a, b| a.attributes.cmp(&b.attributes));
        Batch::Usage(Arc::new(UsageBatch {
            window: self.window,
            rows,
            zones: self.zones,
            readings: Vec::new(),
            slices: Vec::new(),
            live: self.live,
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{check_sums, row, window};

    fn aggregate(interval: u64, by: &[&str]) -> Aggregate {
        let config = AggregateConfig {
            interval: ConfigDuration::from_secs(interval),
            by: by.iter().map(|b| (*b).to_owned()).collect(),
        };
        Aggregate::build(config, &BuildContext::default()).unwrap()
    }

    fn run(mut a: Aggregate, windows: Vec<UsageBatch>) -> Vec<Arc<UsageBatch>> {
        let mut out: Vec<Batch> = windows
            .into_iter()
            .filter_map(|w| a.process(Batch::Usage(Arc::new(w))).unwrap())
            .collect();
        out.extend(a.flush().unwrap());
        assert!(a.flush().unwrap().is_none());
        out.into_iter()
            .map(|b| match b {
                Batch::Usage(u) => u,
                Batch::Switches(_) => panic!("switches"),
            })
            .collect()
    }

    fn seconds(out: &[Arc<UsageBatch>]) -> Vec<u64> {
        out.iter().map(|u| u.window.duration().0 / 1_000_000_000).collect()
    }

    const A: (&str, &str) = ("container.id", "a");
    const B: (&str, &str) = ("container.id", "b");

    #[test]
    fn by_attribute_and_over_time() {
        let windows = (0..7).map(|at| {
            let (p, q) = (("process.executable.name", "p"), ("process.executable.name", "q"));
            window(
                at,
                vec![
                    row(&[A, p], 10, 1.0),
                    row(&[A, q], 20, 2.0),
                    row(&[B, p], 5, 4.0),
                    row(&[p], 1, 0.0),
                ],
            )
        });
        let out = run(aggregate(3, &["container.id"]), windows.collect());
        assert_eq!(seconds(&out), [3, 3, 1]);
        out.iter().for_each(|u| check_sums(u));
        let got: Vec<_> = out[0]
            .rows
            .iter()
            .map(|r| {
                (
                    r.attributes.get_str("container.id"),
                    r.attributes.len(),
                    r.cpu.0,
                    r.cycles,
                    r.switches,
                )
            })
            .collect();
        assert_eq!(
            got,
            [
                (None, 0, 3, Some(6), Some(9)),
                (Some("a"), 1, 90, Some(180), Some(18)),
                (Some("b"), 1, 15, Some(30), Some(9))
            ]
        );
        assert_eq!(out[0].rows[1].energy[0].active, 9.0);
        assert_eq!(out[0].rows[1].confidence, Some(0.5));
        assert_eq!(out[0].zones[0].start, out[0].window.start);
    }

    #[test]
    fn windows_that_do_not_join_stay_apart() {
        let one = |at| window(at, vec![row(&[A], 10, 1.0)]);
        let mut four_cpus = one(4);
        four_cpus.window.cpus = 4;
        four_cpus.window.idle.0 += 2_000_000_000;
        let mut no_total = one(5);
        no_total.window.cpus = 4;
        no_total.window.idle.0 += 2_000_000_000;
        no_total.zones[1].in_total = false;
        let out = run(aggregate(60, &[]), vec![one(0), one(1), one(3), four_cpus, no_total]);
        assert_eq!(seconds(&out), [2, 1, 1, 1]);
        out.iter().for_each(|u| check_sums(u));
        assert_eq!(out[0].rows.len(), 1);
        assert!(out[0].rows[0].attributes.is_empty());
    }

    #[test]
    fn a_zone_that_comes_later_keeps_its_index() {
        let mut first = window(0, vec![row(&[A], 10, 1.0)]);
        first.zones.remove(0);
        first.rows[0].energy.remove(0);
        first.rows[0].energy[0].zone = 0;
        let out = run(aggregate(2, &[]), vec![first, window(1, vec![row(&[A], 10, 1.0)])]);
        check_sums(&out[0]);
        assert_eq!(&*out[0].zones[1].zone.name, "package-0");
    }

    #[test]
    fn a_process_over_time_stays_a_process() {
        let mut last = window(1, vec![row(&[("process.pid", "7")], 1, 0.0)]);
        last.rows[0].state = State::Exited;
        let process = Arc::new(Process::unknown(wattpipe_pipeline::units::Tgid(7)));
        last.rows[0].process = Some(process.clone());
        let by = ["process.pid", "process.creation.time"];
        let out = run(aggregate(2, &by), vec![window(0, vec![]), last.clone()]);
        assert_eq!(
            (&out[0].rows[0].process, out[0].rows[0].state),
            (&Some(process), State::Exited)
        );
        let out = run(aggregate(2, &["process.pid"]), vec![last]);
        assert_eq!((&out[0].rows[0].process, out[0].rows[0].state), (&None, State::Running));
    }

    #[test]
    fn too_many_rows_overflow_into_one() {
        let name = |i: usize| i.to_string();
        let rows = (0..MAX_ROWS + 10)
            .map(|i| row(&[("container.id", name(i).as_str())], 1, 0.0))
            .collect();
        let out = run(aggregate(1, &["container.id"]), vec![window(0, rows)]);
        check_sums(&out[0]);
        assert_eq!(out[0].rows.len(), MAX_ROWS + 1);
    }

    proptest! {
        #[test]
        fn every_sum_is_conserved(
            windows in prop::collection::vec(prop::collection::vec((0..4u8, 0..3u8, 0..1_000_000u64, 0.0..9.0f64), 0..20), 1..12),
            interval in 1..5u64,
        ) {
            let windows: Vec<_> = windows.into_iter().enumerate().map(|(at, rows)| {
                let rows = rows.into_iter().map(|(c, k, cpu, joules)| {
                    let (c, k) = (c.to_string(), k.to_string());
                    row(&[("container.id", &c), ("process.kind", &k)], cpu, joules)
                }).collect();
                window(at as u64, rows)
            }).collect();
            let joules: f64 = windows.iter().flat_map(|w| &w.zones).map(|z| z.joules).sum();
            let busy: u64 = windows.iter().map(|w| w.window.busy.0).sum();
            let switches: u64 = windows.iter().flat_map(|w| &w.rows).filter_map(|r| r.switches).sum();
            let out = run(aggregate(interval, &["container.id"]), windows);
            out.iter().for_each(|u| check_sums(u));
            let after: f64 = out.iter().flat_map(|w| &w.zones).map(|z| z.joules).sum();
            prop_assert!((after - joules).abs() <= 1e-9 * joules.max(1.0));
            prop_assert_eq!(out.iter().map(|w| w.window.busy.0).sum::<u64>(), busy);
            prop_assert_eq!(out.iter().flat_map(|w| &w.rows).filter_map(|r| r.switches).sum::<u64>(), switches);
        }
    }
}
