//! The agent's own metrics at a gRPC receiver that is not ours: pushed where the environment says
//! so, each under its name with its labels, and once more with the end.
#![expect(clippy::unwrap_used, reason = "a test's own files and processes")]

#[path = "support/binary.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]
mod binary;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use binary::{ConfigFile, Running, wattpipe};
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    metrics::v1::{metric::Data, number_data_point::Value},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// What a receiver has got.
#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<ExportMetricsServiceRequest>>>);

#[tonic::async_trait]
impl MetricsService for Inbox {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

impl Inbox {
    fn listen(&self, runtime: &Runtime) -> SocketAddr {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = MetricsServiceServer::new(self.clone());
        let server = Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }

    /// The newest value of a sum's point that has this label.
    fn last(&self, name: &str, label: &str) -> Option<f64> {
        let requests = self.0.lock().unwrap();
        let metrics = requests.iter().rev().flat_map(|r| &r.resource_metrics);
        let metrics = metrics.flat_map(|r| &r.scope_metrics).flat_map(|s| &s.metrics);
        let sums = metrics.filter(|m| m.name == name).filter_map(|m| match &m.data {
            Some(Data::Sum(sum)) => Some(sum),
            _ => None,
        });
        let mut points = sums.flat_map(|sum| &sum.data_points).filter(|point| {
            label.is_empty() || point.attributes.iter().any(|kv| format!("{kv:?}").contains(label))
        });
        match points.next()?.value? {
            Value::AsDouble(v) => Some(v),
            Value::AsInt(v) => Some(v as f64),
        }
    }
}

fn start(endpoint: &str) -> Running {
    let file = ConfigFile::new(
        "sources: { procfs: { window: 50ms } }
exporters: { stdout: { format: json } }
service: { pipelines: { a: { sources: [procfs], exporters: [stdout] } } }
",
    );
    let mut command = wattpipe();
    command.arg("--config").arg(file.path());
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "200");
    let agent = Running::start(&mut command);
    agent.wait_for_windows(2);
    agent
}

#[test]
fn own_metrics_arrive_over_grpc() {
    let runtime = Runtime::new().unwrap();
    let inbox = Inbox::default();
    let agent = start(&format!("http://{}", inbox.listen(&runtime)));
    let sent = || inbox.last("wattpipe_exporter_sent_points_total", "stdout");
    agent.wait_until("points that were sent", |_| sent() > Some(0.0));
    let before = sent();
    agent.wait_until("more of them", |_| sent() > before);
    assert!(inbox.last("wattpipe_process_cpu_seconds", "") > Some(0.0));
    assert!(inbox.last("wattpipe_process_uptime", "") > Some(0.0));
    let lines = agent.lines.clone();
    agent.signal(Signal::SIGTERM);
    let (code, log) = agent.end();
    assert_eq!(code, Some(0), "{log}");
    // The last push has what the drain sent.
    let rows = lines.lock().unwrap().iter().filter(|l| l.contains("\"usage\"")).count();
    assert_eq!(sent(), Some(rows as f64), "{log}");
}

/// Nobody there, or somebody who takes connections and says nothing: the agent does not mind, and
/// its end is quiet.
#[test]
fn a_receiver_that_does_not_answer_holds_up_nothing() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for endpoint in ["http://127.0.0.1:9", &silent] {
        let agent = start(endpoint);
        agent.wait_for_windows(agent.windows() + 10);
        agent.signal(Signal::SIGTERM);
        let (code, log) = agent.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}
