//! The API of Docker, which Podman speaks too: one container by its id. The path names no API
//! version, so each server answers with the newest it has; the fields used are in all of them.

use std::collections::HashMap;

use hyper::StatusCode;
use serde::Deserialize;

use super::{
    super::{
        http::{HttpError, Peer},
        knowledge::ContainerMeta,
    },
    pod_of_labels,
};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    name: Option<String>,
    config: Option<Config>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    image: Option<String>,
    labels: Option<HashMap<String, String>>,
}

/// What the runtime at `peer` knows of a container; `None` where it knows none by this id.
pub(super) async fn inspect(peer: &Peer, id: &str) -> Result<Option<ContainerMeta>, HttpError> {
    // Ids come from directory names; only what cannot change the path is asked for.
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return Ok(None);
    }
    match peer.get(&format!("/containers/{id}/json"), None).await {
        Ok(body) => parse(&body)
            .map(Some)
            .map_err(|reason| HttpError::Protocol { peer: peer.to_string(), reason }),
        Err(HttpError::Status { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn parse(body: &[u8]) -> Result<ContainerMeta, String> {
    let container: Container =
        serde_json::from_slice(body).map_err(|e| format!("unexpected answer: {e}"))?;
    let (image, labels) = container.config.map_or((None, None), |c| (c.image, c.labels));
    let labels = labels.unwrap_or_default();
    let text = |s: Option<String>| s.filter(|s| !s.is_empty());
    Ok(ContainerMeta {
        name: text(container.name.map(|n| n.trim_start_matches('/').to_owned())),
        image: text(image),
        runtime: None,
        pod: pod_of_labels(|name| labels.get(name).map(String::as_str)),
    })
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc};

    use axum::{Router, extract::Path, http::StatusCode as Code, routing::get};

    use super::*;

    const WEB: &str = r#"{"Id":"abc","Name":"/web","Image":"sha256:1","State":{"Pid":7},
        "Config":{"Image":"nginx:1.29","Labels":{"io.kubernetes.pod.name":"p","io.kubernetes.pod.namespace":"n","io.kubernetes.pod.uid":"u","io.kubernetes.container.name":"c","other":""}}}"#;

    async fn serve(dir: &std::path::Path) -> PathBuf {
        let socket = dir.join("docker.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let answer = |Path(id): Path<String>| async move {
            match id.as_str() {
                "abc" => (Code::OK, WEB.to_owned()),
                "bad" => (Code::OK, "[".to_owned()),
                "ill" => (Code::INTERNAL_SERVER_ERROR, String::new()),
                _ => (Code::NOT_FOUND, r#"{"message":"No such container"}"#.to_owned()),
            }
        };
        let app = Router::new().route("/containers/{id}/json", get(answer));
        tokio::spawn(async move { axum::serve(listener, app).await });
        socket
    }

    #[tokio::test]
    async fn a_container_by_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let peer = Arc::new(Peer::Unix(serve(dir.path()).await));
        let web = inspect(&peer, "abc").await.unwrap().unwrap();
        assert_eq!((web.name.as_deref(), web.image.as_deref()), (Some("web"), Some("nginx:1.29")));
        let pod = web.pod;
        let pod = [pod.name, pod.namespace, pod.uid, pod.container].map(Option::unwrap);
        assert_eq!(pod, ["p", "n", "u", "c"]);
        assert_eq!(inspect(&peer, "gone").await.unwrap(), None);
        assert_eq!(inspect(&peer, "../../x").await.unwrap(), None);
        assert!(matches!(inspect(&peer, "bad").await, Err(HttpError::Protocol { .. })));
        assert!(matches!(inspect(&peer, "ill").await, Err(HttpError::Status { .. })));
    }

    #[test]
    fn absent_stays_absent() {
        let bare = parse(b"{}").unwrap();
        assert_eq!(bare, ContainerMeta::default());
        let null = parse(br#"{"Name":"/","Config":{"Image":"","Labels":null}}"#).unwrap();
        assert_eq!(null, ContainerMeta::default());
    }
}
