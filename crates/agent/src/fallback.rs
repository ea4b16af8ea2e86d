//! Where the embedded configuration's eBPF source cannot run, `procfs` takes its place, with a
//! warning. A configuration that somebody wrote is never second-guessed: there it is an error.

use std::time::Duration;

use tracing::warn;
use wattpipe_pipeline::runner::{Outcome, Runner};

use crate::{
    config::{self, Input, Loaded},
    serve::Setup,
};

/// How long a probe that fails takes to say so, at most.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);

/// What is to run.
pub(crate) enum Choice {
    /// What was started.
    AsConfigured(Box<Runner>, Loaded),
    /// Something else, which is not started yet.
    Instead(Loaded, Input),
}

/// Waits until the embedded configuration's source works, and replaces it where it does not.
pub(crate) async fn without_ebpf(mut runner: Runner, loaded: Loaded, setup: &Setup<'_>) -> Choice {
    let replaceable = loaded.embedded && setup.registry.source("procfs").is_some();
    if !replaceable {
        return Choice::AsConfigured(Box::new(runner), loaded);
    }
    let working = runner.working();
    tokio::select! {
        () = runner.supervise() => {}
        () = working => {}
        () = tokio::time::sleep(SETTLE) => {}
    }
    if !runner.is_unavailable() {
        return Choice::AsConfigured(Box::new(runner), loaded);
    }
    let input = with_procfs(setup.input, &loaded);
    let env = |name: &str| std::env::var(name).ok();
    let (Some(other), _) = config::load(&input, setup.registry, &env) else {
        return Choice::AsConfigured(Box::new(runner), loaded);
    };
    if let Outcome::Unavailable(reason) = runner.drain().await {
        warn!("{reason}");
    }
    warn!(
        "falling back to the procfs source: it sees only what outlives a window, and no process's switches"
    );
    Choice::Instead(other, input)
}

/// The same configuration with `procfs` in the place of `ebpf`, at the same window.
fn with_procfs(input: &Input, loaded: &Loaded) -> Input {
    let mut input = input.clone();
    let window = loaded
        .sources
        .get("ebpf")
        .and_then(|c| c.factory.effective().get("window")?.as_str().map(str::to_owned));
    input.sets.push(match window {
        Some(window) => format!("sources.procfs.window={window}"),
        None => "sources.procfs={}".to_owned(),
    });
    for name in loaded.service.pipelines.keys() {
        input.sets.push(format!("service::pipelines::{name}::sources=[procfs]"));
    }
    input
}
