//! A kubelet and an API server on loopback, with TLS and a token.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use http_body_util::StreamBody;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, rustls};
use wattpipe_pipeline::{telemetry::Telemetry, units::ConfigDuration};

use super::*;
use crate::attribution::config::{ApiConfig, KubeletConfig};

const PODS: &str = include_str!("../../../tests/data/kubelet-pods.json");
const WEB_UID: &str = "4ee5cbd3-32e8-16a7-9654-6bbd6ce8c535";
const WEB_ID: &str = "793cf4220c917b853860886599b2ac757f8290996dd9de5798121e8fa462d6e8";

/// How the server behaves now.
#[derive(Default)]
struct Mood {
    status: Option<StatusCode>,
    delay: Duration,
    pods: String,
    changes: Vec<String>,
}

struct Server {
    address: SocketAddr,
    dir: tempfile::TempDir,
    mood: Arc<Mutex<Mood>>,
    requests: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

type Shared = (Arc<Mutex<Mood>>, Arc<AtomicU64>);

async fn answer(
    State((mood, requests)): State<Shared>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    requests.fetch_add(1, Relaxed);
    if headers.get("authorization").and_then(|v| v.to_str().ok()) != Some("Bearer secret") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let query = query.unwrap_or_default();
    if !query.is_empty() {
        assert!(query.contains("fieldSelector=spec.nodeName%3Dnode-1"), "{query}");
    }
    let (delay, status, pods, changes) = {
        let mut mood = mood.lock().unwrap();
        let changes =
            if query.contains("watch=1") { std::mem::take(&mut mood.changes) } else { vec![] };
        (mood.delay, mood.status, mood.pods.clone(), changes)
    };
    tokio::time::sleep(delay).await;
    if let Some(status) = status {
        return status.into_response();
    }
    if query.contains("watch=1") {
        assert!(query.contains("resourceVersion=4711"), "{query}");
        let lines = changes
            .into_iter()
            .map(|c| Ok::<_, std::io::Error>(hyper::body::Frame::data(Bytes::from(c))));
        let body = StreamBody::new(Lines(lines.collect::<Vec<_>>().into_iter()));
        return Body::new(body).into_response();
    }
    pods.into_response()
}

/// The lines, then silence: a watch stays open.
struct Lines(std::vec::IntoIter<Result<hyper::body::Frame<Bytes>, std::io::Error>>);

impl tokio_stream::Stream for Lines {
    type Item = Result<hyper::body::Frame<Bytes>, std::io::Error>;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        match self.0.next() {
            Some(line) => std::task::Poll::Ready(Some(line)),
            None => std::task::Poll::Pending,
        }
    }
}

impl Server {
    async fn start(pods: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(dir.path().join("ca.crt"), made.cert.pem()).unwrap();
        std::fs::write(dir.path().join("token"), "secret\n").unwrap();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mood = Arc::new(Mutex::new(Mood { pods: pods.to_owned(), ..Mood::default() }));
        let requests = Arc::new(AtomicU64::new(0));
        let app = Router::new()
            .route("/pods", get(answer))
            .route("/api/v1/pods", get(answer))
            .with_state((mood.clone(), requests.clone()));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, app) = (acceptor.clone(), app.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = TowerToHyperService::new(app);
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, dir, mood, requests, task }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    fn kubelet(&self) -> KubernetesConfig {
        KubernetesConfig {
            kubelet: Some(KubeletConfig {
                endpoint: self.endpoint(),
                ca_file: self.file("ca.crt"),
                token_file: self.file("token"),
                interval: ConfigDuration::from_secs(3600),
                ..KubeletConfig::default()
            }),
            labels: vec!["app".into(), "absent".into()],
            annotations: vec!["team/owner".into()],
            ..KubernetesConfig::default()
        }
    }

    fn mood(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.mood.lock().unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Client {
    knowledge: Arc<Knowledge>,
    wanted: mpsc::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    fn start(config: KubernetesConfig) -> Self {
        let knowledge = Arc::new(Knowledge::new(&Telemetry::default()));
        let (wanted, queue) = mpsc::channel(1);
        let task = tokio::spawn(run(config, knowledge.clone(), queue));
        Self { knowledge, wanted, task }
    }

    async fn pod(&self, uid: &str) -> Option<Arc<super::super::knowledge::PodMeta>> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(pod) = self.knowledge.pod(uid) {
                return Some(pod);
            }
            let _ = self.wanted.try_send(());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn the_kubelet_names_pods_and_containers() {
    let server = Server::start(PODS).await;
    let client = Client::start(server.kubelet());
    let web = client.pod(WEB_UID).await.unwrap();
    assert_eq!((web.name.as_str(), web.namespace.as_str()), ("web-7c5ddbdf54-x9k2p", "shop"));
    assert_eq!(
        web.extra,
        [
            ("k8s.pod.label.app".to_owned(), "web".to_owned()),
            ("k8s.pod.annotation.team/owner".to_owned(), "checkout".to_owned())
        ]
    );
    let (name, image) = &web.containers[WEB_ID];
    assert_eq!((name.as_str(), image.as_deref()), ("nginx", Some("docker.io/library/nginx:1.29")));
    // The init container, and the id a restarted container had before.
    let names: Vec<_> = web.containers.values().map(|(name, _)| name.as_str()).collect();
    assert_eq!(web.containers.len(), 3, "{names:?}");
    // A static pod's cgroup bears the hash of its file, not its uid.
    let node = client.pod("0f23c1a4b5d6e7f8091a2b3c4d5e6f70").await.unwrap();
    assert_eq!(node.name, "kube-proxy-node-1");
}

#[tokio::test]
async fn a_kubelet_that_restarts_and_is_slow() {
    let server = Server::start("{\"items\": null}").await;
    server.mood(|m| m.status = Some(StatusCode::SERVICE_UNAVAILABLE));
    let client = Client::start(server.kubelet());
    while server.requests.load(Relaxed) < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(client.knowledge.pod(WEB_UID).is_none());
    server.mood(|m| {
        m.status = None;
        m.delay = Duration::from_millis(300);
        m.pods = PODS.to_owned();
    });
    assert!(client.pod(WEB_UID).await.is_some());
    // A pod that is no longer listed stays known for its last usage.
    server.mood(|m| m.pods = "{\"items\": []}".to_owned());
    let before = server.requests.load(Relaxed);
    while server.requests.load(Relaxed) < before + 2 {
        let _ = client.wanted.try_send(());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(client.knowledge.pod(WEB_UID).is_some());
}

async fn ask_once(config: &KubernetesConfig) -> Result<usize, String> {
    let kubelet = config.kubelet.as_ref().unwrap();
    super::kubelet::ask(kubelet)
        .await
        .map(|l| l.items.map_or(0, |i| i.len()))
        .map_err(|e| e.to_string())
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let server = Server::start(PODS).await;
    let good = server.kubelet();
    assert_eq!(ask_once(&good).await, Ok(3));
    let with = |change: &dyn Fn(&mut KubeletConfig)| {
        let mut config = good.clone();
        change(config.kubelet.as_mut().unwrap());
        config
    };
    let check = async |config: KubernetesConfig, part: &str| {
        let error = ask_once(&config).await.unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    std::fs::write(server.file("old"), "old").unwrap();
    check(with(&|k| k.token_file = server.file("old")), "the token is not accepted").await;
    check(with(&|k| k.token_file = server.file("none")), "cannot use").await;
    check(with(&|k| k.ca_file = server.file("none")), "cannot use").await;
    check(with(&|k| k.endpoint = "https://127.0.0.1:1".into()), "cannot connect").await;
    // Signed by somebody else.
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(server.file("other.crt"), other.cert.pem()).unwrap();
    check(with(&|k| k.ca_file = server.file("other.crt")), "certificate").await;
    let unverified = with(&|k| {
        k.ca_file = server.file("none");
        k.insecure_skip_verify = true;
    });
    assert_eq!(ask_once(&unverified).await, Ok(3));
    server.mood(|m| m.pods = "[".into());
    check(good.clone(), "unexpected answer").await;
    server.mood(|m| m.status = Some(StatusCode::FORBIDDEN));
    check(good, "service account").await;
}

#[tokio::test]
async fn the_api_server_tells_changes() {
    let server = Server::start("{\"metadata\":{\"resourceVersion\":\"4711\"},\"items\":[]}").await;
    let list: serde_json::Value = serde_json::from_str(PODS).unwrap();
    let mut pod = list["items"][0].clone();
    pod["metadata"]["resourceVersion"] = "4711".into();
    let bookmark = serde_json::json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "4711"}}});
    let added = serde_json::json!({"type": "ADDED", "object": pod}).to_string();
    let (head, tail) = added.split_at(added.len() / 2);
    // Lines do not end where chunks do.
    server.mood(|m| m.changes = vec![format!("{bookmark}\n{head}"), format!("{tail}\n")]);
    let config = KubernetesConfig {
        api: Some(ApiConfig {
            node: "node-1".into(),
            endpoint: server.endpoint(),
            ca_file: server.file("ca.crt"),
            token_file: server.file("token"),
        }),
        ..KubernetesConfig::default()
    };
    let client = Client::start(config);
    assert_eq!(client.pod(WEB_UID).await.unwrap().namespace, "shop");
}
