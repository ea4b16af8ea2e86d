//! The generated documents are those of the program. `UPDATE_DOCS=1` (or `cargo xtask docs`)
//! writes them.
#![expect(clippy::unwrap_used, reason = "a test's own files")]

use std::{fs, path::Path};

use wattpipe_agent::{Agent, docs};

#[track_caller]
fn check(file: &str, rendered: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, rendered).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == rendered, "{file} is not what the program says: run `cargo xtask docs`");
}

#[test]
fn generated_documents_are_fresh() {
    let agent = Agent::builder().with_defaults();
    check("config/reference.yaml", &docs::reference_yaml(agent.registry()));
    check("docs/components.md", &docs::components_md(agent.registry()));
    check("docs/metrics.md", &docs::metrics_md());
}

/// Every metric that the sources spell, of the exporters' table and of the agent itself, has its
/// place on the page.
#[test]
fn the_page_of_metrics_is_complete() {
    let page = docs::metrics_md();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut missing = Vec::new();
    for name in ["agent", "exporters", "pipeline", "processors", "source"] {
        sources(&crates.join(name).join("src"), &mut |file, text| {
            let table = file.ends_with("semconv.rs");
            for word in text.split('"').skip(1).step_by(2) {
                let named = word.chars().all(|c| c.is_ascii_lowercase() || "._".contains(c));
                let ours = word.starts_with("wattpipe_") || (table && word.contains(['.', '_']));
                if named && ours && word != "wattpipe_x_total" && !page.contains(word) {
                    missing.push(format!("{}: {word}", file.display()));
                }
            }
        });
    }
    assert!(missing.is_empty(), "not on docs/metrics.md:\n{}", missing.join("\n"));
}

fn sources(dir: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, see);
        } else if path.extension().is_some_and(|e| e == "rs") {
            see(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}
