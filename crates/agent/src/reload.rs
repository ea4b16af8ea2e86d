//! SIGHUP: load again and change only what differs. Whatever goes wrong, what runs runs on.

use std::time::Instant;

use tracing::{error, info, warn};

use crate::{
    assemble, config, notify,
    serve::{Agent, surroundings},
};

/// Loads the configuration again and applies it.
pub(crate) async fn reload(agent: &mut Agent<'_>) {
    notify::reloading();
    let begin = Instant::now();
    match try_reload(agent).await {
        Ok(done) => info!(took = ?begin.elapsed(), "reloaded: {done}"),
        Err(reasons) => {
            for reason in reasons {
                error!("{}", reason.trim_end());
            }
            error!("not reloaded: the running configuration stays as it is");
        }
    }
    notify::ready();
}

async fn try_reload(agent: &mut Agent<'_>) -> Result<String, Vec<String>> {
    let env = |name: &str| std::env::var(name).ok();
    let (loaded, report) = config::load(&agent.input, agent.setup.registry, &env);
    for warning in &report.warnings {
        warn!("{}", warning.trim_end());
    }
    let loaded = loaded.ok_or(report.errors)?;
    let around = surroundings(&loaded, &agent.telemetry, &agent.setup.held);
    let graph = assemble::graph(&loaded, &around);
    let applied = agent.runner.apply(graph).await.map_err(|reason| {
        let mut reasons = vec![reason];
        if agent.setup.held.all_given_up() {
            reasons.push(
                "service::security::keep_capabilities is [], so what needs capabilities cannot be started again: restart the agent"
                    .to_owned(),
            );
        }
        reasons
    })?;
    agent.runner.set_shutdown_timeout(loaded.service.shutdown_timeout.0);
    agent.setup.log.set_level(loaded.service.telemetry.logs.level);
    agent.setup.held.narrow(&loaded.service.security);
    agent.limits.configure(&loaded.service);
    agent.beside.apply(&loaded, &agent.telemetry, &around.resource).await;
    if applied.started.is_empty() && applied.stopped.is_empty() {
        return Ok("nothing changed".to_owned());
    }
    let named = |ids: &[String], what: &str| match ids {
        [] => format!("0 {what}"),
        ids => format!("{} {what} ({})", ids.len(), ids.join(", ")),
    };
    let (started, stopped) =
        (named(&applied.started, "started"), named(&applied.stopped, "stopped"));
    Ok(format!("{started}, {stopped}, {} untouched", applied.kept))
}
