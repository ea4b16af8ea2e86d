//! Receivers that answer as they are told, and what they got.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    metrics::v1::{NumberDataPoint, metric::Data, number_data_point::Value},
};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinHandle,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    codec::CompressionEncoding,
    metadata::MetadataMap,
    transport::{Identity, Server, ServerTlsConfig},
};
use wattpipe_exporters::{counters::Counters, testing::Usage};
use wattpipe_pipeline::{BuildContext, Exporter};

/// What a receiver has got, and the answers it still has to give.
#[derive(Clone, Default)]
pub struct Inbox {
    pub requests: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
    pub headers: Arc<Mutex<Vec<MetadataMap>>>,
    pub answers: Arc<Mutex<VecDeque<Result<ExportMetricsServiceResponse, Status>>>>,
    pub asked: Arc<Mutex<u64>>,
    /// How long it takes to answer.
    pub takes: Duration,
}

impl Inbox {
    pub fn answering(
        answers: impl IntoIterator<Item = Result<ExportMetricsServiceResponse, Status>>,
    ) -> Self {
        let inbox = Self::default();
        inbox.answers.lock().unwrap().extend(answers);
        inbox
    }

    /// Takes everything, each request after a while.
    pub fn slow(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    /// All points, as (resource's pid or hw.id, metric, point).
    pub fn points(&self) -> Vec<(String, String, NumberDataPoint)> {
        let mut all = Vec::new();
        for request in &*self.requests.lock().unwrap() {
            for rm in &request.resource_metrics {
                let who = rm
                    .resource
                    .iter()
                    .flat_map(|r| &r.attributes)
                    .find(|kv| kv.key == "process.pid")
                    .map_or_else(|| "host".to_owned(), |kv| format!("{:?}", kv.value));
                for metric in rm.scope_metrics.iter().flat_map(|s| &s.metrics) {
                    if let Some(Data::Sum(sum)) = &metric.data {
                        for point in &sum.data_points {
                            all.push((who.clone(), metric.name.clone(), point.clone()));
                        }
                    }
                }
            }
        }
        all
    }

    pub fn sum(&self, metric: &str) -> f64 {
        let points = self.points();
        points.iter().filter(|(_, name, _)| name == metric).map(|(_, _, p)| value(p)).sum()
    }
}

pub fn value(point: &NumberDataPoint) -> f64 {
    match point.value {
        Some(Value::AsDouble(v)) => v,
        Some(Value::AsInt(v)) => v as f64,
        None => f64::NAN,
    }
}

#[tonic::async_trait]
impl MetricsService for Inbox {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        *self.asked.lock().unwrap() += 1;
        tokio::time::sleep(self.takes).await;
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_else(|| Ok(ok()));
        if answer.is_ok() {
            self.headers.lock().unwrap().push(request.metadata().clone());
            self.requests.lock().unwrap().push(request.into_inner());
        }
        answer.map(Response::new)
    }
}

pub fn ok() -> ExportMetricsServiceResponse {
    ExportMetricsServiceResponse::default()
}

/// Time enough for what does arrive, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An address that nobody listens at, and nobody else is given as long as the socket lives: one may
/// still listen there by name.
pub fn reserved() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// How a gRPC receiver listens.
#[derive(Default)]
pub struct GrpcOptions {
    pub address: Option<SocketAddr>,
    pub max_message: Option<usize>,
    pub tls: Option<ServerTlsConfig>,
}

/// A gRPC receiver; stops when dropped.
pub struct Grpc {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Grpc {
    pub async fn start(inbox: Inbox, options: GrpcOptions) -> Self {
        let address = options.address.unwrap_or(([127, 0, 0, 1], 0).into());
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = MetricsServiceServer::new(inbox)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd)
            .max_decoding_message_size(options.max_message.unwrap_or(4 << 20));
        let mut server = Server::builder();
        if let Some(tls) = options.tls {
            server = server.tls_config(tls).unwrap();
        }
        let serve =
            server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move {
            let _ = serve.await;
        });
        Self { address, task }
    }
}

/// A certificate authority with a server's and a client's certificate.
pub struct Certificates {
    pub ca: String,
    pub server: Identity,
    pub client: (String, String),
}

pub fn certificates(host: &str) -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let make = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (cert, key) = make();
    Certificates { ca: ca.pem(), server: Identity::from_pem(cert, key), client: make() }
}

/// A window of `processes` processes, each with a quarter of a millisecond.
pub fn window(n: u64, processes: u32) -> Usage {
    const S: u64 = 1_000_000_000;
    let mut usage = Usage::window(n * S, (n + 1) * S);
    for pid in 1..=processes {
        usage = usage.process(pid, "worker", 0, 250_000);
    }
    usage
}

/// Exports `windows`, shuts down within `timeout`, returns the counters.
pub async fn run(
    exporter: &mut dyn Exporter,
    context: &BuildContext,
    windows: impl IntoIterator<Item = Usage>,
    timeout: Duration,
) -> Counters {
    exporter.start().await.unwrap();
    for window in windows {
        exporter.export(window.batch()).await.unwrap();
    }
    exporter.shutdown(timeout).await.unwrap();
    exporter.shutdown(timeout).await.unwrap();
    Counters::with_queue(context)
}

pub fn context(id: &str) -> BuildContext {
    let _ = tracing_subscriber::fmt()
        .with_env_filter("wattpipe_exporters=debug")
        .with_test_writer()
        .try_init();
    BuildContext { id: id.into(), ..BuildContext::default() }
}
