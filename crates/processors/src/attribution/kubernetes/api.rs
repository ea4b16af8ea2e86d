//! The API server: a list of this node's pods, then the stream of their changes.

use std::{
    env,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::BodyExt;
use serde::Deserialize;
use tracing::debug;

use super::{
    super::{
        config::ApiConfig,
        http::{self, HttpError, Peer},
        knowledge::Knowledge,
    },
    Log,
    pods::{Pod, PodList, Wants},
    token,
};

/// After a failure; doubled up to the maximum.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The server ends a watch after this; it is opened again.
const WATCH_SECONDS: u64 = 300;
/// One change is no larger.
const MAX_LINE: usize = 4 << 20;

#[derive(Deserialize)]
struct Change {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    object: serde_json::Value,
}

pub(super) async fn run(config: ApiConfig, wants: Wants, knowledge: Arc<Knowledge>) {
    let mut log = Log::default();
    let mut pause = PAUSE;
    loop {
        let begun = Instant::now();
        match list_and_watch(&config, &wants, &knowledge, &mut log).await {
            Ok(()) => pause = PAUSE,
            Err(e) => {
                log.failed("the API server", &e);
                pause = longer(pause, begun.elapsed());
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// The pause after a failure, the last one having been `pause`. What went well for a while has
/// nothing to do with failures before.
fn longer(pause: Duration, went_well: Duration) -> Duration {
    if went_well > PAUSE_MAX { PAUSE } else { (pause * 2).min(PAUSE_MAX) }
}

/// Ends without an error where the server ends the watch, or tells to list again.
async fn list_and_watch(
    config: &ApiConfig,
    wants: &Wants,
    knowledge: &Knowledge,
    log: &mut Log,
) -> Result<(), HttpError> {
    let peer = Peer::from_endpoint(&endpoint(config)?, || http::tls(&config.ca_file))?;
    let secure = matches!(peer, Peer::Tcp { tls: Some(_), .. });
    let credentials = || if secure { token(&config.token_file) } else { Ok(None) };
    let node: String = config.node.bytes().map(escape).collect();
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");

    // Version 0: what the server has at hand will do.
    let body = peer.get(&format!("{path}&resourceVersion=0"), credentials()?.as_deref()).await?;
    let unexpected = |e: serde_json::Error| HttpError::Protocol {
        peer: peer.to_string(),
        reason: format!("unexpected answer: {e}"),
    };
    let list: PodList = serde_json::from_slice(&body).map_err(unexpected)?;
    log.fine("the API server");
    let mut version = list.metadata.resource_version;
    let pods = list.items.unwrap_or_default();
    knowledge.add_pods(pods.into_iter().flat_map(|p| p.into_known(wants)));

    loop {
        let watch = format!(
            "{path}&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}"
        );
        let (_connection, mut body) = peer.stream(&watch, credentials()?.as_deref()).await?;
        let mut buffer = Vec::new();
        let idle = Duration::from_secs(WATCH_SECONDS + 30);
        while let Ok(Some(frame)) = tokio::time::timeout(idle, body.frame()).await {
            let frame = frame.map_err(|e| HttpError::Protocol {
                peer: peer.to_string(),
                reason: e.to_string(),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            buffer.extend_from_slice(&data);
            while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let change: Change = serde_json::from_slice(&line).map_err(unexpected)?;
                if change.kind == "ERROR" {
                    // Mostly 410 Gone: too old to go on from.
                    debug!(answer = %change.object, "the watch of pods starts anew");
                    return Ok(());
                }
                let pod: Pod = serde_json::from_value(change.object).map_err(unexpected)?;
                if !pod.metadata.resource_version.is_empty() {
                    version.clone_from(&pod.metadata.resource_version);
                }
                // Deleted ones stay known: their last usage is still to come.
                if matches!(change.kind.as_str(), "ADDED" | "MODIFIED") {
                    knowledge.add_pods(pod.into_known(wants));
                }
            }
            if buffer.len() > MAX_LINE {
                let reason = "a change of more than 4 MiB".to_owned();
                return Err(HttpError::Protocol { peer: peer.to_string(), reason });
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn endpoint(config: &ApiConfig) -> Result<String, HttpError> {
    if !config.endpoint.is_empty() {
        return Ok(config.endpoint.clone());
    }
    let get = |name| env::var(name).ok().filter(|v| !v.is_empty());
    match (get("KUBERNETES_SERVICE_HOST"), get("KUBERNETES_SERVICE_PORT")) {
        (Some(host), Some(port)) if host.contains(':') => Ok(format!("https://[{host}]:{port}")),
        (Some(host), Some(port)) => Ok(format!("https://{host}:{port}")),
        _ => Err(HttpError::Protocol {
            peer: "the API server".into(),
            reason: "no KUBERNETES_SERVICE_HOST: not in a pod; name kubernetes::api::endpoint"
                .into(),
        }),
    }
}

/// A node's name holds letters, digits, `-` and `.`; all else is escaped.
fn escape(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-.".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_forgotten_once_the_watch_went_well() {
        let check = |pause, went_well, expected| {
            let [pause, went_well] = [pause, went_well].map(Duration::from_secs);
            assert_eq!(longer(pause, went_well), Duration::from_secs(expected));
        };
        check(1, 0, 2);
        check(32, 5, 60);
        check(60, 5, 60);
        check(60, 3600, 1);
    }
}
