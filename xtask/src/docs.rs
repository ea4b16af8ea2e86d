//! `cargo xtask docs`: writes `config/reference.yaml`, `docs/components.md` and `docs/metrics.md`. The test that says
//! whether they are fresh is also what writes them, so that both see the same components.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Writes the generated documents.
pub(crate) fn write() -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--package", "wattpipe-agent", "--test", "docs_fresh"])
        .env("UPDATE_DOCS", "1")
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the documents could not be written");
    Ok(())
}
