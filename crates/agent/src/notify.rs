//! What the service manager is told, where there is one (`NOTIFY_SOCKET`).

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::{debug, warn};

use crate::health::Judge;

/// Started, or done with a reload.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload begins.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Draining.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Feeds the service manager's watchdog for as long as the pipelines make progress. There is no
/// timer where no watchdog is asked for.
pub(crate) fn watchdog(judge: Judge) -> Option<tokio::task::JoinHandle<()>> {
    let interval = sd_notify::watchdog_enabled()? / 2;
    Some(tokio::spawn(async move {
        let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(100)));
        loop {
            ticks.tick().await;
            match judge.fault() {
                None => tell(&[NotifyState::Watchdog]),
                Some(reason) => warn!("the watchdog is not fed: {reason}"),
            }
        }
    }))
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        debug!("the service manager cannot be told: {e}");
    }
}
