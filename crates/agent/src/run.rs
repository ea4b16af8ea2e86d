//! Running: one tokio runtime with one worker, the pipelines, and the signals.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};
use wattpipe_pipeline::{
    Registry,
    runner::{self, Outcome},
    shutdown,
    telemetry::Telemetry,
};

use crate::{
    Exit,
    assemble::{self, Surroundings},
    commands,
    config::{Input, Loaded},
    logs,
};

/// `wattpipe run`.
pub(crate) fn run(input: &Input, registry: &Registry) -> Exit {
    let loaded = match commands::load(input, registry) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let _log = logs::init(&loaded.service.telemetry.logs);
    // One worker: the agent's work is on its own threads, and every idle worker is a wakeup.
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(8)
        .thread_name("runtime")
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => return commands::fail(&format!("cannot start: {e}")),
    };
    let exit = runtime.block_on(serve(&loaded));
    // What still waits (a blocked write) was given its time; it must not hold the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    exit
}

async fn serve(loaded: &Loaded) -> Exit {
    let telemetry = Telemetry::default();
    let around = Surroundings { telemetry: telemetry.clone(), ..Surroundings::default() };
    let graph = match assemble::graph(loaded, &around) {
        Ok(graph) => graph,
        Err(reasons) => {
            for reason in &reasons {
                error!("{reason}");
            }
            return Exit::Usage;
        }
    };
    let (trigger, shutdown) = shutdown::channel();
    let signals = tokio::spawn(async move {
        let (Ok(mut term), Ok(mut int)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            error!("cannot listen for signals");
            std::future::pending::<()>().await;
            return;
        };
        tokio::select! {
            _ = term.recv() => info!("SIGTERM: draining"),
            _ = int.recv() => info!("SIGINT: draining; again to end at once"),
        }
        trigger.fire();
        int.recv().await;
        warn!("SIGINT again: ending at once, what was not exported is lost");
        std::process::exit(i32::from(Exit::Failed.code()));
    });
    let timeout = loaded.service.shutdown_timeout.0;
    let outcome = runner::run(graph, shutdown, telemetry, timeout).await;
    signals.abort();
    match outcome {
        Outcome::Done | Outcome::ReaderGone => Exit::Done,
        Outcome::Failed(reason) => {
            error!("{reason}");
            Exit::Failed
        }
    }
}
