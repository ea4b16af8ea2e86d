//! The kubelet's `/pods`: all pods of this node in one answer.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    super::{
        config::KubeletConfig,
        http::{self, HttpError, Peer},
        knowledge::Knowledge,
    },
    Log,
    pods::{PodList, Wants},
    token,
};

/// Never asked more often, however many pods are unknown.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(
    config: KubeletConfig,
    wants: Wants,
    knowledge: Arc<Knowledge>,
    mut wanted: mpsc::Receiver<()>,
) {
    let mut log = Log::default();
    loop {
        let asked = Instant::now();
        match ask(&config).await {
            Ok(list) => {
                log.fine("the kubelet");
                let pods = list.items.unwrap_or_default();
                knowledge.add_pods(pods.into_iter().flat_map(|p| p.into_known(&wants)));
            }
            Err(e) => log.failed("the kubelet", &e),
        }
        sleep_until(asked + PAUSE).await;
        let next = asked + config.interval.0.max(PAUSE);
        tokio::select! {
            () = sleep_until(next) => {}
            more = wanted.recv() => if more.is_none() { return },
        }
    }
}

pub(super) async fn ask(config: &KubeletConfig) -> Result<PodList, HttpError> {
    // All anew each time: certificates and tokens are renewed while we run.
    let peer = Peer::from_endpoint(&config.endpoint, || {
        if config.insecure_skip_verify {
            http::tls_unverified()
        } else {
            http::tls(&config.ca_file)
        }
    })?;
    let token = match &peer {
        // Never a token in clear.
        Peer::Tcp { tls: Some(_), .. } => token(&config.token_file)?,
        _ => None,
    };
    let body = peer.get("/pods", token.as_deref()).await?;
    serde_json::from_slice(&body).map_err(|e| HttpError::Protocol {
        peer: peer.to_string(),
        reason: format!("unexpected answer: {e}"),
    })
}
