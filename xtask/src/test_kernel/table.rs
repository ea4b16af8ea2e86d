//! `docs/kernels.md`: what each kernel did, cell by cell, from the results that are kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result};

use super::{KERNELS, run::Outcome};

const PAGE: &str = "docs/kernels.md";
const BEGIN: &str = "<!-- table: written by cargo xtask test-kernel -->\n";
const END: &str = "<!-- end of table -->\n";

/// The order of the rows; a test that is not here comes last.
const ROWS: &[&str] = &[
    "boot",
    "source_tests",
    "probe",
    "windows",
    "cycles",
    "cycles_after_hotplug",
    "no_cycles",
    "hotplug",
    "stopped_reader",
    "detached",
    "clocks",
    "powercap",
];

pub(super) fn write(root: &Path, cache: &Path) -> Result<()> {
    let mut outcomes = BTreeMap::new();
    for kernel in KERNELS {
        let path = cache.join("results").join(format!("{}.json", kernel.name()));
        if let Ok(text) = fs::read(&path) {
            let outcome: Outcome = serde_json::from_slice(&text)
                .with_context(|| format!("reading {}", path.display()))?;
            outcomes.insert(kernel.name(), outcome);
        }
    }
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let (head, rest) = text.split_once(BEGIN).context("docs/kernels.md lost its table's mark")?;
    let (_, tail) = rest.split_once(END).context("docs/kernels.md lost its table's end")?;
    fs::write(page, format!("{head}{BEGIN}{}{END}{tail}", render(&outcomes)))?;
    Ok(())
}

fn render(outcomes: &BTreeMap<String, Outcome>) -> String {
    let columns: Vec<_> = KERNELS.iter().map(|k| (k.name(), outcomes.get(&k.name()))).collect();
    let mut out = String::from("\n| |");
    for (name, outcome) in &columns {
        let release = outcome.map_or("not run", |o| &o.release);
        let _ = write!(out, " {name}<br>{release} |");
    }
    let _ = write!(out, "\n|---|{}\n", "---|".repeat(columns.len()));
    let mut notes = Vec::new();
    let others: BTreeSet<&str> =
        outcomes.values().flat_map(|o| o.cells.keys()).map(String::as_str).collect();
    let others = others.into_iter().filter(|row| !ROWS.contains(row));
    for row in ROWS.iter().copied().chain(others) {
        let _ = write!(out, "| {} |", row.replace('_', " "));
        for (name, outcome) in &columns {
            let text = match outcome.map(|o| o.cells.get(row)) {
                None => "not run".to_owned(),
                Some(None)
                    if outcome.is_some_and(|o| !o.cells.get("boot").is_some_and(|b| b.passed)) =>
                {
                    "not reached".to_owned()
                }
                Some(None) => "n/a".to_owned(),
                Some(Some(cell)) if cell.passed => {
                    if !cell.note.is_empty() {
                        notes.push(format!("- {name}, {}: {}", row.replace('_', " "), cell.note));
                    }
                    "ok".to_owned()
                }
                Some(Some(cell)) => {
                    let row = row.replace('_', " ");
                    notes.push(format!("- **{name}, {row}**: {} ({})", cell.note, cell.host));
                    "**fails**".to_owned()
                }
            };
            let _ = write!(out, " {text} |");
        }
        out.push('\n');
    }
    let _ = writeln!(out, "\nFigures and failures, as the guests printed them:\n");
    for note in notes {
        let _ = writeln!(out, "{note}");
    }
    out.push('\n');
    out
}
