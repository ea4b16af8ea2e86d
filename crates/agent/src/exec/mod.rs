//! `wattpipe exec -- CMD`: runs a command and measures it and all its descendants, by every
//! context switch where that is possible. The pipeline is the usual one (ebpf, delta,
//! power_model) with a step in front that follows forks, and an end that adds up.

mod collect;
mod fallback;
mod family;
mod report;

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use figment::value::{Dict, Value};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};
use tracing::warn;
use wattpipe_pipeline::{
    Registry,
    exporter::Exporter,
    processor::Processor,
    registry::{BuildContext, Entry, HostRoots},
    runner::{Graph, Options, Outcome, Part, Pipeline, Runner},
    telemetry::Telemetry,
};
use wattpipe_source::procfs::namespace::PidNamespace;

use crate::{Exit, commands, config::model::Logs, logs, privileges::Held, run};
use collect::{Collector, Totals};
use family::{Family, Members};
use report::{JsonFile, Method, Report};

/// A probe that fails says so within this time.
const SETTLE: Duration = Duration::from_secs(5);

/// Runs `command` and reports; the exit status is the command's.
pub(crate) fn exec(command: &[OsString], json: Option<&Path>, registry: &Registry) -> Exit {
    logs::init(&Logs { level: crate::config::model::LogLevel::Warn, ..Logs::default() });
    // Before the command: nobody wants to learn after an hour that there is no place for the result.
    let json = match json.map(JsonFile::create).transpose() {
        Ok(json) => json,
        Err(reason) => {
            let _ = commands::fail(&reason);
            return Exit::Usage;
        }
    };
    // The command gets this process's privileges untouched, so nothing is given up here.
    let runtime = match run::runtime(Held::default()) {
        Ok(runtime) => runtime,
        Err(e) => return commands::fail(&format!("cannot start: {e}")),
    };
    let exit = runtime.block_on(measure(command, json, registry));
    runtime.shutdown_timeout(Duration::from_millis(100));
    exit
}

async fn measure(command: &[OsString], json: Option<JsonFile>, registry: &Registry) -> Exit {
    let members = Members::default();
    let totals = Totals::default();
    // By the scheduler's own clock the figures are the kernel's account to the microsecond: time that
    // interrupts took or a hypervisor stole is nobody's.
    let started = match start(registry, "scheduler", &members, &totals).await {
        Ok(runner) => Ok(runner),
        Err(_) => start(registry, "monotonic", &members, &totals).await,
    };
    let (runner, method) = match started {
        Ok(runner) => (Some(runner), Method::Switches),
        Err(reason) => {
            warn!("{reason}");
            warn!(
                "without the probe: CPU time is what the kernel accounts to the command and the children it waited for"
            );
            (fallback::start(registry, &totals).await, Method::Accounting)
        }
    };
    let begin = Instant::now();
    let before = fallback::children_cpu();
    let child = match spawn(command) {
        Ok(child) => child,
        Err((exit, reason)) => {
            if let Some(runner) = runner {
                runner.drain().await;
            }
            let _ = commands::fail(&reason);
            return exit;
        }
    };
    let status = wait(child).await;
    let elapsed = begin.elapsed();
    let accounted = fallback::children_cpu().saturating_sub(before);
    if let Some(runner) = runner
        && let Outcome::Failed(reason) | Outcome::Unavailable(reason) = runner.drain().await
    {
        warn!("{reason}");
    }
    let status = match status {
        Ok(status) => status,
        Err(e) => return commands::fail(&format!("cannot wait for the command: {e}")),
    };
    let exit = exit_of(status);
    let report = Report::new(command, exit.code(), elapsed, accounted, method, &totals, &members);
    report.print();
    match json.map(|file| file.write(&report)) {
        Some(Err(reason)) => match (commands::fail(&reason), exit.code()) {
            (failed, 0) => failed,
            (_, _) => exit,
        },
        _ => exit,
    }
}

/// Starts the pipeline and waits until the probe is at work.
async fn start(
    registry: &Registry,
    clock: &str,
    members: &Members,
    totals: &Totals,
) -> Result<Runner, String> {
    if !PidNamespace::of(Path::new("/proc")).joins() {
        return Err("this PID namespace is not the initial one, so the probe's pids are not those of the command".to_owned());
    }
    let settings = Dict::from([("clock".to_owned(), Value::from(clock))]);
    let source = part(registry.source("ebpf"), "ebpf", settings)?;
    let family = members.clone();
    let follow: Part<dyn Processor> = Part {
        id: "family".to_owned(),
        revision: Value::from(0),
        make: Arc::new(move || Ok(Box::new(Family(family.clone())))),
    };
    let mut processors = vec![follow, part(registry.processor("delta"), "delta", Dict::new())?];
    if let Some(model) = registry.processor("power_model") {
        processors.push(part(Some(model), "power_model", Dict::new())?);
    }
    let graph = Graph {
        sources: vec![source],
        pipelines: vec![Pipeline {
            id: "exec".to_owned(),
            sources: vec!["ebpf".to_owned()],
            processors,
            exporters: vec!["collect".to_owned()],
        }],
        exporters: vec![collector(members, totals)],
    };
    let mut runner = Runner::start(graph, options()).await.map_err(|e| e.to_string())?;
    let working = runner.working();
    tokio::select! {
        () = runner.supervise() => {}
        () = working => return Ok(runner),
        () = tokio::time::sleep(SETTLE) => {}
    }
    match runner.drain().await {
        Outcome::Failed(reason) | Outcome::Unavailable(reason) => Err(reason),
        _ => Err("the probe does not come up".to_owned()),
    }
}

fn options() -> Options {
    Options { shutdown_timeout: Duration::from_secs(10), ..Options::default() }
}

fn collector(members: &Members, totals: &Totals) -> Part<dyn Exporter> {
    let collect = Collector { members: members.clone(), totals: totals.clone() };
    Part {
        id: "collect".to_owned(),
        revision: Value::from(0),
        make: Arc::new(move || Ok(Box::new(collect.clone()))),
    }
}

/// A component of the registry with these settings.
fn part<T: ?Sized + 'static>(
    entry: Option<&Entry<T>>,
    name: &str,
    settings: Dict,
) -> Result<Part<T>, String> {
    let entry = entry.ok_or_else(|| format!("`{name}` is not compiled in"))?;
    let factory = (entry.parse)(&Value::from(settings)).map_err(|problems| {
        problems.first().map_or_else(|| name.to_owned(), |p| format!("{name}: {}", p.message))
    })?;
    let context = BuildContext {
        id: name.to_owned(),
        host: HostRoots::default(),
        telemetry: Telemetry::default(),
        ..BuildContext::default()
    };
    Ok(Part {
        id: name.to_owned(),
        revision: Value::from(0),
        make: Arc::new(move || factory.build(&context)),
    })
}

fn spawn(command: &[OsString]) -> Result<Child, (Exit, String)> {
    let Some((program, args)) = command.split_first() else {
        return Err((Exit::Usage, "no command".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    command.spawn().map_err(|e| {
        let name = program.to_string_lossy();
        match e.kind() {
            io::ErrorKind::NotFound => (Exit::Command(127), format!("{name}: command not found")),
            _ => (Exit::Command(126), format!("{name}: cannot be executed: {e}")),
        }
    })
}

/// Waits for the command. The terminal's signals reach it by themselves; what is sent to this
/// process alone is passed on.
async fn wait(mut child: Child) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        let passed = tokio::select! {
            status = child.wait() => return status,
            _ = interrupt.recv() => None,
            _ = quit.recv() => None,
            _ = terminate.recv() => Some(Signal::SIGTERM),
            _ = hangup.recv() => Some(Signal::SIGHUP),
        };
        if let (Some(signal), Some(pid)) = (passed, pid) {
            // It may have ended this moment.
            let _ = kill(pid, signal);
        }
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 1,
    };
    Exit::Command(u8::try_from(code & 0xff).unwrap_or(1))
}
