//! Whether the probe runs here: the one way to know is to run it for a moment.

use std::time::Duration;

use figment::value::{Dict, Value};
use wattpipe_pipeline::{
    Registry, SourceError,
    registry::{BuildContext, HostRoots},
    testing::{SourceHarness, source_harness},
};

use super::{Finding, Status};

const AREA: &str = "probe";
/// Loading takes a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the probe needs or uses, piece by piece.
pub(super) fn needs(roots: &HostRoots) -> Vec<Finding> {
    wattpipe_source::ebpf::probe_host(roots)
        .into_iter()
        .map(|check| {
            let some = |text: String| (!text.is_empty()).then_some(text);
            Finding {
                area: check.name,
                status: if check.ok { Status::Ok } else { Status::Missing },
                found: check.found,
                consequence: some(check.consequence),
                remedy: some(check.remedy),
            }
        })
        .collect()
}

/// Loads and attaches the probe, waits for its first batch, and takes it away again.
pub(super) async fn attach(registry: &Registry, roots: &HostRoots) -> Finding {
    let settings = Value::from(Dict::new());
    let Some(factory) = registry.source("ebpf").and_then(|e| (e.parse)(&settings).ok()) else {
        return Finding::note(
            AREA,
            "not compiled in",
            "the procfs source is used",
            "build with `ebpf`",
        );
    };
    let context =
        BuildContext { id: "doctor".to_owned(), host: roots.clone(), ..BuildContext::default() };
    let source = match factory.build(&context) {
        Ok(source) => source,
        Err(e) => return failed(e.to_string(), String::new()),
    };
    let SourceHarness { context, mut batches, trigger } = source_harness("doctor", 64);
    let run = tokio::spawn(source.run(context));
    let came = tokio::time::timeout(PATIENCE, batches.recv()).await;
    trigger.fire();
    let ended = tokio::time::timeout(PATIENCE, run).await;
    match (came, ended) {
        (Ok(Some(_)), _) => Finding::ok(AREA, "loads and attaches to sched_switch"),
        (_, Ok(Ok(Err(SourceError::Unavailable { what, remedy })))) => failed(what, remedy),
        (_, Ok(Ok(Err(e)))) => failed(e.to_string(), String::new()),
        _ => failed("it does not come up in time".to_owned(), String::new()),
    }
}

fn failed(what: String, remedy: String) -> Finding {
    let remedy = if remedy.is_empty() { "see the cause".to_owned() } else { remedy };
    Finding::missing(
        AREA,
        what,
        "CPU time is polled from /proc: processes that live less than a window are missed",
        remedy,
    )
}
