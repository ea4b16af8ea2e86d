//! The container runtime interface (CRI) of containerd and CRI-O, version 1: two calls of it, with
//! the few fields they need. Fields that are not here are skipped when an answer is read.
//!
//! The published bindings generate the whole interface while building and need `protoc` for it;
//! the numbers below are those of `runtime.v1` in Kubernetes' `cri-api`.

use std::{collections::HashMap, path::Path, time::Duration};

use tonic::{
    Request, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    super::knowledge::{ContainerMeta, PodRef},
    pod_of_labels,
};

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, PartialEq, prost::Message)]
struct IdFilter {
    #[prost(string, tag = "1")]
    id: String,
}

/// `ListContainersRequest`, and `ListPodSandboxRequest`, which has the same form.
#[derive(Clone, PartialEq, prost::Message)]
struct ListRequest {
    #[prost(message, optional, tag = "1")]
    filter: Option<IdFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    image: Option<ImageSpec>,
    #[prost(string, tag = "5")]
    image_ref: String,
    #[prost(map = "string, string", tag = "8")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
    #[prost(string, tag = "18")]
    user_specified_image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodSandboxMetadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

/// What the runtime at `socket` knows of a container or a pod's sandbox.
pub(super) async fn find(socket: &Path, id: &str) -> Result<Option<ContainerMeta>, Status> {
    let asked = async {
        let unavailable = |e: tonic::transport::Error| {
            let cause = std::error::Error::source(&e).map(ToString::to_string);
            let cause = cause.unwrap_or_else(|| e.to_string());
            Status::unavailable(format!("cannot connect to {}: {cause}", socket.display()))
        };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let channel = endpoint.map_err(unavailable)?.connect().await.map_err(unavailable)?;
        let containers: ListContainersResponse = call(&channel, "ListContainers", id).await?;
        if let Some(container) = containers.containers.into_iter().find(|c| c.id == id) {
            return Ok(Some(of_container(container)));
        }
        let sandboxes: ListPodSandboxResponse = call(&channel, "ListPodSandbox", id).await?;
        let sandbox = sandboxes.items.into_iter().find(|s| s.id == id);
        Ok(sandbox.and_then(|s| s.metadata).map(of_sandbox))
    };
    tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(|_| {
        let seconds = TIMEOUT.as_secs();
        Err(Status::deadline_exceeded(format!(
            "{} did not answer within {seconds} s",
            socket.display()
        )))
    })
}

async fn call<R>(channel: &Channel, method: &str, id: &str) -> Result<R, Status>
where
    R: prost::Message + Default + Send + Sync + 'static,
{
    let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{method}"))
        .map_err(|e| Status::internal(e.to_string()))?;
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
    let request = ListRequest { filter: Some(IdFilter { id: id.to_owned() }) };
    let codec: ProstCodec<ListRequest, R> = ProstCodec::default();
    client.unary(Request::new(request), path, codec).await.map(tonic::Response::into_inner)
}

fn of_container(container: Container) -> ContainerMeta {
    let text = |s: &str| (!s.is_empty()).then(|| s.to_owned());
    let name = container.metadata.as_ref().and_then(|m| text(&m.name));
    // What the pod asked for reads better than the digest the runtime made of it.
    let spec = container.image.as_ref();
    let image = spec
        .and_then(|i| text(&i.user_specified_image))
        .or_else(|| spec.and_then(|i| text(&i.image)))
        .or_else(|| text(&container.image_ref));
    let pod = pod_of_labels(|label| container.labels.get(label).map(String::as_str));
    ContainerMeta { name, image, runtime: None, pod }
}

fn of_sandbox(sandbox: PodSandboxMetadata) -> ContainerMeta {
    let text = |s: String| (!s.is_empty()).then_some(s);
    ContainerMeta {
        pod: PodRef {
            uid: text(sandbox.uid),
            name: text(sandbox.name),
            namespace: text(sandbox.namespace),
            container: None,
        },
        ..ContainerMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Bytes, http::HeaderMap, response::IntoResponse, routing::post};
    use prost::Message;

    use super::*;

    /// A unary gRPC answer: five bytes of frame before the message, the status in trailers.
    fn reply<M: Message>(message: &M) -> impl IntoResponse + use<M> {
        let body = message.encode_to_vec();
        let mut frame = vec![0];
        frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        frame.extend(body);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames = http_body_util::Full::new(Bytes::from(frame));
        let body =
            http_body_util::BodyExt::with_trailers(frames, async move { Some(Ok(trailers)) });
        ([("content-type", "application/grpc")], axum::body::Body::new(body))
    }

    fn id_of(body: &Bytes) -> String {
        ListRequest::decode(&body[5..]).unwrap().filter.unwrap().id
    }

    async fn containers(frame: Bytes) -> impl IntoResponse {
        let container = Container {
            id: "abc".into(),
            metadata: Some(ContainerMetadata { name: "app".into() }),
            image: Some(ImageSpec {
                image: "sha256:1".into(),
                user_specified_image: "shop/app:2".into(),
            }),
            image_ref: "sha256:1".into(),
            labels: [("io.kubernetes.pod.name".to_owned(), "shop-1".to_owned())].into(),
        };
        let containers = if id_of(&frame) == "abc" { vec![container] } else { vec![] };
        reply(&ListContainersResponse { containers })
    }

    async fn sandboxes(frame: Bytes) -> impl IntoResponse {
        let metadata =
            PodSandboxMetadata { name: "shop-1".into(), uid: "u".into(), namespace: "shop".into() };
        let sandbox = PodSandbox { id: "pause".into(), metadata: Some(metadata) };
        let items = if id_of(&frame) == "pause" { vec![sandbox] } else { vec![] };
        reply(&ListPodSandboxResponse { items })
    }

    #[tokio::test]
    async fn containers_and_sandboxes_by_id() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("crio.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let app = Router::new()
            .route("/runtime.v1.RuntimeService/ListContainers", post(containers))
            .route("/runtime.v1.RuntimeService/ListPodSandbox", post(sandboxes));
        tokio::spawn(async move { axum::serve(listener, app).await });

        let app = find(&socket, "abc").await.unwrap().unwrap();
        assert_eq!((app.name.as_deref(), app.image.as_deref()), (Some("app"), Some("shop/app:2")));
        assert_eq!(app.pod.name.as_deref(), Some("shop-1"));
        let pause = find(&socket, "pause").await.unwrap().unwrap();
        assert_eq!((pause.name, pause.pod.namespace.as_deref()), (None, Some("shop")));
        assert_eq!(find(&socket, "none").await.unwrap(), None);
        let error = find(&dir.path().join("no.sock"), "abc").await.unwrap_err();
        assert!(error.message().contains("no.sock"), "{error}");
    }
}
