//! `top`: the largest rows of each window; the rest becomes one row, so nothing is lost.
//!
//! ```yaml
//! processors:
//!   top: { n: 50 }   # by joules; by CPU time where nothing is metered
//! ```
//!
//! The row of the rest carries the attribute `wattpipe.rest` and nothing else.

use std::{cmp::Ordering, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wattpipe_pipeline::{
    Batch, BatchKind, BuildContext, Config, ConfigProblem, Processor, ProcessorComponent,
    ProcessorError,
    batch::UsageBatch,
    identity::{AttributeSet, attr},
    registry::BuildError,
    rows::Sum,
    runner,
};

/// Configuration of `top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TopConfig {
    /// How many rows to keep.
    pub n: usize,
}

impl Default for TopConfig {
    fn default() -> Self {
        Self { n: 50 }
    }
}

impl Config for TopConfig {
    fn check(&self) -> Vec<ConfigProblem> {
        let none =
            (self.n == 0).then(|| ConfigProblem::at("n", "0 would keep nothing: write 1 or more"));
        none.into_iter().collect()
    }
}

/// The processor.
#[derive(Debug)]
pub struct Top {
    n: usize,
    rest: Arc<AttributeSet>,
}

impl ProcessorComponent for Top {
    const NAME: &'static str = "top";
    const DOC: &'static str = "Keeps the n largest rows and adds the rest up in one.";
    const TAKES: BatchKind = BatchKind::Usage;
    const EMITS: BatchKind = BatchKind::Usage;
    const MERGES_ROWS: bool = true;
    type Config = TopConfig;

    fn build(config: TopConfig, context: &BuildContext) -> Result<Self, BuildError> {
        let rest = AttributeSet::from_iter([(attr::REST, context.id.as_str())]);
        Ok(Self { n: config.n, rest: Arc::new(rest) })
    }
}

impl Processor for Top {
    fn process(&mut self, batch: Batch) -> Result<Option<Batch>, ProcessorError> {
        let Batch::Usage(usage) = batch else { return Ok(Some(batch)) };
        let mut usage = runner::own(usage);
        usage.slices.clear();
        if usage.rows.len() > self.n {
            self.cut(&mut usage);
        }
        Ok(Some(Batch::Usage(Arc::new(usage))))
    }
}

impl Top {
    fn cut(&self, usage: &mut UsageBatch) {
        let rows = std::mem::take(&mut usage.rows);
        let mut ranked: Vec<_> =
            rows.into_iter().map(|row| (usage.joules_total(&row), row)).collect();
        ranked.select_nth_unstable_by(self.n - 1, |(a_joules, a), (b_joules, b)| {
            // Ties end somewhere, but always at the same place.
            largest_first(*a_joules, *b_joules)
                .then_with(|| b.cpu.cmp(&a.cpu))
                .then_with(|| a.attributes.cmp(&b.attributes))
        });
        let mut rest = Sum::default();
        for (_, row) in ranked.drain(self.n..) {
            rest.add(&row, |zone| zone);
        }
        usage.rows = ranked.into_iter().map(|(_, row)| row).collect();
        usage.rows.push(rest.into_row(self.rest.clone()));
    }
}

fn largest_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    b.unwrap_or(0.0).total_cmp(&a.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_sums, row, window};

    fn top(n: usize, usage: UsageBatch) -> UsageBatch {
        let context = BuildContext { id: "top".into(), ..BuildContext::default() };
        let mut top = Top::build(TopConfig { n }, &context).unwrap();
        match top.process(Batch::Usage(Arc::new(usage))).unwrap() {
            Some(Batch::Usage(usage)) => runner::own(usage),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check(n: usize, rows: &[(&str, u64, f64)], kept: &[&str], rest_cpu: Option<u64>) {
        let rows = rows.iter().map(|(name, cpu, j)| row(&[("container.id", name)], *cpu, *j));
        let out = top(n, window(0, rows.collect()));
        check_sums(&out);
        let mut names: Vec<_> =
            out.rows.iter().filter_map(|r| r.attributes.get_str("container.id")).collect();
        names.sort_unstable();
        assert_eq!(names, kept);
        let rest = out.rows.iter().find(|r| r.attributes.get_str(attr::REST) == Some("top"));
        assert_eq!(rest.map(|r| r.cpu.0), rest_cpu);
    }

    #[test]
    fn the_largest_stay_and_the_rest_is_one_row() {
        let rows = [("a", 5, 1.0), ("b", 9, 3.0), ("c", 7, 2.0), ("d", 1, 0.0)];
        check(2, &rows, &["b", "c"], Some(6));
        check(4, &rows, &["a", "b", "c", "d"], None);
        check(9, &rows, &["a", "b", "c", "d"], None);
        // Without joules CPU time decides.
        check(1, &[("a", 5, 0.0), ("b", 9, 0.0), ("c", 7, 0.0)], &["b"], Some(12));
        check(1, &[], &[], None);
    }

    #[test]
    fn nothing_to_keep_is_refused() {
        assert_eq!(TopConfig { n: 0 }.check().len(), 1);
    }
}
