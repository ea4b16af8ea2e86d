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
}
