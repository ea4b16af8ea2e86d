//! Whether components fit together: the kinds of batches from source to exporter, checked when
//! the configuration loads.

use crate::batch::BatchKind;

/// A step as the check sees it.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Its id in the configuration.
    pub id: &'a str,
    /// The kind it is for.
    pub takes: BatchKind,
    /// The kind it emits.
    pub emits: BatchKind,
    /// It lets batches of kind `emits` through.
    pub passes: bool,
    /// It needs usage per slice.
    pub needs_slices: bool,
    /// It ends usage per slice.
    pub merges_rows: bool,
}

/// What does not fit, and at which component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Id of the component that gets what it cannot take.
    pub id: String,
    /// A sentence on what is wrong and how to mend it.
    pub message: String,
}

/// Checks one pipeline: `sources` are (id, kind), `exporters` are (id, kinds it takes).
pub fn check(
    sources: &[(&str, BatchKind)],
    processors: &[Step<'_>],
    exporters: &[(&str, &[BatchKind])],
) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    for &(source, kind) in sources {
        check_from(source, kind, processors, exporters, &mut misfits);
    }
    let mut merged_by = None;
    for step in processors {
        if let (true, Some(by)) = (step.needs_slices, merged_by) {
            misfits.push(Misfit {
                id: step.id.to_owned(),
                message: format!(
                    "`{}` must stand before `{by}`, which merges the rows that it weighs",
                    step.id
                ),
            });
        }
        if step.merges_rows {
            merged_by = Some(step.id);
        }
    }
    misfits.dedup();
    misfits
}

fn check_from(
    source: &str,
    mut kind: BatchKind,
    processors: &[Step<'_>],
    exporters: &[(&str, &[BatchKind])],
    misfits: &mut Vec<Misfit>,
) {
    let mut from = source;
    for step in processors {
        if step.takes == kind {
            kind = step.emits;
        } else if !(step.passes && step.emits == kind) {
            misfits.push(Misfit {
                id: step.id.to_owned(),
                message: format!(
                    "`{}` takes {}, but gets {kind} from `{from}`{}",
                    step.id,
                    step.takes,
                    hint(kind)
                ),
            });
            return;
        }
        from = step.id;
    }
    for (exporter, takes) in exporters {
        if !takes.contains(&kind) {
            let wanted = takes.first().map_or_else(String::new, ToString::to_string);
            misfits.push(Misfit {
                id: (*exporter).to_owned(),
                message: format!(
                    "`{exporter}` takes {wanted}, but gets {kind} from `{from}`{}",
                    hint(kind)
                ),
            });
        }
    }
}

fn hint(kind: BatchKind) -> &'static str {
    match kind {
        BatchKind::Switches => ": put `delta` before it",
        BatchKind::Usage => ": `delta` has already turned switches into usage",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BatchKind::{Switches, Usage};

    fn delta(id: &str) -> Step<'_> {
        Step {
            id,
            takes: Switches,
            emits: Usage,
            passes: true,
            needs_slices: false,
            merges_rows: false,
        }
    }

    fn usage(id: &str, needs_slices: bool, merges_rows: bool) -> Step<'_> {
        Step { id, takes: Usage, emits: Usage, passes: false, needs_slices, merges_rows }
    }

    #[track_caller]
    fn check_ids(source: BatchKind, steps: &[Step<'_>], takes: &[BatchKind], expected: &[&str]) {
        let got = check(&[("s", source)], steps, &[("e", takes)]);
        assert_eq!(got.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), expected, "{got:?}");
    }

    #[test]
    fn kinds_must_meet() {
        check_ids(Switches, &[delta("d"), usage("a", false, false)], &[Usage], &[]);
        check_ids(Usage, &[delta("d"), usage("a", false, false)], &[Usage], &[]);
        check_ids(Usage, &[usage("a", false, false)], &[Usage], &[]);
        check_ids(Switches, &[usage("a", false, false), delta("d")], &[Usage], &["a"]);
        check_ids(Switches, &[], &[Usage], &["e"]);
        check_ids(Switches, &[], &[Switches], &[]);
        check_ids(Switches, &[delta("d")], &[Switches], &["e"]);
    }

    #[test]
    fn the_model_stands_before_what_merges_rows() {
        let model = usage("power_model", true, false);
        let top = usage("top", false, true);
        check_ids(Switches, &[delta("d"), model.clone(), top.clone()], &[Usage], &[]);
        check_ids(Switches, &[delta("d"), top, model], &[Usage], &["power_model"]);
    }
}
