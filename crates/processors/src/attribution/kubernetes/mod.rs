//! Pod names, from the kubelet of this node ([`kubelet`]) or the API server ([`api`]).
//!
//! Both fill the same map by pod uid. The kubelet is asked at intervals and at once for a pod not
//! seen before; the API server tells changes by itself. A failure is told once, and again only
//! after an answer in between.

use std::{fs, path::Path, sync::Arc};

use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{config::KubernetesConfig, http::HttpError, knowledge::Knowledge};

mod api;
mod kubelet;
mod pods;

#[cfg(test)]
mod tests;

/// Asks Kubernetes until the task is dropped. `wanted` tells of pods that are not known.
pub(crate) async fn run(
    config: KubernetesConfig,
    knowledge: Arc<Knowledge>,
    wanted: mpsc::Receiver<()>,
) {
    let wants = pods::Wants { labels: config.labels, annotations: config.annotations };
    if let Some(kubelet) = config.kubelet {
        kubelet::run(kubelet, wants, knowledge, wanted).await;
    } else if let Some(api) = config.api {
        api::run(api, wants, knowledge).await;
    }
}

/// The token as it is now: it is renewed every hour or so.
fn token(file: &Path) -> Result<Option<String>, HttpError> {
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    fs::read_to_string(file).map(|t| Some(t.trim().to_owned())).map_err(|e| {
        HttpError::Credentials { path: file.display().to_string(), reason: e.to_string() }
    })
}

/// Tells a failure once, and its end.
#[derive(Debug, Default)]
struct Log {
    failing: bool,
}

impl Log {
    fn failed(&mut self, who: &str, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.failing, true) {
            warn!("pods stay without a name until {who} answers: {error}");
        }
    }

    fn fine(&mut self, who: &str) {
        if std::mem::take(&mut self.failing) {
            info!("{who} answers again");
        }
    }
}
