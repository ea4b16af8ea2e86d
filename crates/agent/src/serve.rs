//! The life of a running agent in one function you can read: start, supervise, reload, drain.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};
use wattpipe_pipeline::{
    Registry,
    runner::{Options, Outcome, Runner},
    source::Pace,
    telemetry::{Instrument, InstrumentId, Registered, Telemetry},
};

use crate::{
    Exit,
    assemble::{self, Surroundings},
    beside::Beside,
    config::{Input, Loaded},
    fallback,
    limits::SelfLimits,
    logs::LogHandle,
    notify,
    privileges::Held,
    reload, resource,
    run::with_remedy,
};

/// Points that an exporter gave up on, or never took.
const LOSSES: [&str; 2] =
    ["wattpipe_exporter_send_failed_points_total", "wattpipe_exporter_enqueue_failed_points_total"];

/// What was set up before the runtime.
pub(crate) struct Setup<'a> {
    pub(crate) input: &'a Input,
    pub(crate) registry: &'a Registry,
    pub(crate) log: LogHandle,
    pub(crate) held: Held,
}

/// What lives as long as the process, over reloads.
pub(crate) struct Agent<'a> {
    pub(crate) setup: Setup<'a>,
    /// What was loaded last: the given input, or the one without eBPF.
    pub(crate) input: Input,
    pub(crate) telemetry: Telemetry,
    pub(crate) limits: Arc<SelfLimits>,
    pub(crate) runner: Runner,
    pub(crate) beside: Beside,
}

/// Runs `loaded` to the end.
pub(crate) async fn serve(setup: Setup<'_>, loaded: Loaded) -> Exit {
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(e) => {
            error!("cannot listen for signals: {e}");
            return Exit::Failed;
        }
    };
    let telemetry = Telemetry::default();
    let pace = Pace::default();
    let limits = SelfLimits::new(&loaded.service, pace.clone(), &telemetry);
    let options = |loaded: &Loaded| Options {
        telemetry: telemetry.clone(),
        shutdown_timeout: loaded.service.shutdown_timeout.0,
        privileges: setup.held.for_pipelines(),
        pace: pace.clone(),
        governor: Some(limits.clone()),
    };
    let around = surroundings(&loaded, &telemetry, &setup.held);
    let graph = assemble::graph(&loaded, &around);
    let failed = assemble::build_all(&graph);
    if !failed.is_empty() {
        failed.iter().for_each(|reason| error!("{reason}"));
        return Exit::Usage;
    }
    let mut input = setup.input.clone();
    let runner = match Runner::start(graph, options(&loaded)).await {
        Ok(runner) => runner,
        Err(e) => {
            error!("{}", with_remedy(&e.to_string()));
            return Exit::Failed;
        }
    };
    let (runner, loaded) = match fallback::without_ebpf(runner, loaded, &setup).await {
        fallback::Choice::AsConfigured(runner, loaded) => (*runner, loaded),
        fallback::Choice::Instead(other, with) => {
            input = with;
            let graph = assemble::graph(&other, &surroundings(&other, &telemetry, &setup.held));
            match Runner::start(graph, options(&other)).await {
                Ok(runner) => (runner, other),
                Err(e) => {
                    error!("{}", with_remedy(&e.to_string()));
                    return Exit::Failed;
                }
            }
        }
    };
    let beside = Beside::start(&loaded, &runner, &telemetry, &around.resource).await;
    let mut agent = Agent { setup, input, telemetry, limits, runner, beside };
    agent.setup.held.seal();
    // What cannot work says so before the service manager is told that all is well.
    let up = tokio::time::timeout(fallback::SETTLE, agent.runner.working());
    tokio::pin!(up);
    let mut told = false;
    let stopped = loop {
        tokio::select! {
            _ = &mut up, if !told => {
                notify::ready();
                told = true;
            }
            () = agent.runner.supervise() => break false,
            signal = signals.next() => match signal {
                Told::Reload => reload::reload(&mut agent).await,
                Told::Stop(name) => {
                    info!("{name}: draining");
                    break true;
                }
            },
        }
    };
    notify::stopping();
    let outcome = tokio::select! {
        outcome = agent.runner.drain() => outcome,
        () = signals.interrupted_again() => {
            warn!("SIGINT again: ending at once, what was not exported is lost");
            std::process::exit(i32::from(Exit::Failed.code()));
        }
    };
    agent.beside.close().await;
    match outcome {
        Outcome::ReaderGone => Exit::Done,
        // Whoever stops a service is not to be told that it failed because a receiver is away; a
        // stream that ends by itself was to get somewhere.
        Outcome::Done => match lost_points(&agent.telemetry) {
            points if points > 0 && !stopped => {
                error!(points, "data is lost, as told above");
                Exit::Failed
            }
            _ => Exit::Done,
        },
        Outcome::Failed(reason) | Outcome::Unavailable(reason) => {
            error!("{}", with_remedy(&reason));
            Exit::Failed
        }
    }
}

/// What exporters did not deliver so far.
fn lost_points(telemetry: &Telemetry) -> u64 {
    let of = |(id, registered): (InstrumentId, Registered)| match registered.instrument {
        Instrument::Counter(counter) if LOSSES.contains(&id.name) => counter.get(),
        _ => 0,
    };
    telemetry.snapshot().into_iter().map(of).sum()
}

/// What components of `loaded` are built with.
pub(crate) fn surroundings(loaded: &Loaded, telemetry: &Telemetry, held: &Held) -> Surroundings {
    let resource = resource::detect(loaded, &|name| std::env::var(name).ok());
    Surroundings { resource, telemetry: telemetry.clone(), privileges: held.for_pipelines() }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Listened to so that a file at the process's size limit is a write that fails, not the end.
    _file_size: Signal,
}

enum Told {
    Stop(&'static str),
    Reload,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            _file_size: signal(SignalKind::from_raw(libc::SIGXFSZ))?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Told::Stop("SIGINT"),
            _ = self.hangup.recv() => Told::Reload,
        }
    }

    /// Somebody does not want to wait for the drain. `timeout` and shells signal a process and then
    /// its group: what comes right after the first signal is that one again.
    async fn interrupted_again(&mut self) {
        const SAME: Duration = Duration::from_millis(300);
        tokio::time::sleep(SAME).await;
        // By now it has arrived, however late this thread has got to look.
        let _ = poll_fn(|cx| Poll::Ready(self.interrupt.poll_recv(cx).is_ready())).await;
        if self.interrupt.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }
}
