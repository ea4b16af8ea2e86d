//! `wattpipe run`: what must happen before the first thread is made, then the runtime.

use std::time::Duration;

use tracing::{info, warn};
use wattpipe_pipeline::Registry;

use crate::{
    Exit, commands,
    config::{Input, Report, model::LogFormat},
    logs,
    privileges::Held,
    sandbox,
    serve::{self, Setup},
};

/// Runs the pipelines until they end or a signal comes.
pub(crate) fn run(input: &Input, registry: &Registry) -> Exit {
    let (loaded, warnings) = match commands::load_quietly(input, registry) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let log = logs::init(&loaded.service.telemetry.logs);
    // Whoever reads the log as JSON gets these in it, too.
    match loaded.service.telemetry.logs.format {
        LogFormat::Text => commands::tell(&Report { warnings, ..Report::default() }),
        LogFormat::Json => warnings.iter().for_each(|text| warn!("{}", text.trim_end())),
    }
    info!(version = env!("CARGO_PKG_VERSION"), "starting");
    wattpipe_source::share_heaps();
    // Capabilities and filters belong to threads and are inherited: before any other thread.
    let held = Held::prepare(&loaded.service.security);
    if let Err(e) = sandbox::apply() {
        warn!("no system call filter: {e}");
    }
    let runtime = match runtime(held.clone()) {
        Ok(runtime) => runtime,
        Err(e) => return commands::fail(&format!("cannot start: {e}")),
    };
    let setup = Setup { input, registry, log, held };
    let exit = runtime.block_on(serve::serve(setup, loaded));
    // What still waits (a blocked write) was given its time; it must not hold the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    exit
}

/// One worker: the agent's work is on its own threads, and every idle worker is a wakeup.
pub(crate) fn runtime(held: Held) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(8)
        .thread_name("runtime")
        .on_thread_start(move || held.lower())
        .enable_all()
        .build()
}
