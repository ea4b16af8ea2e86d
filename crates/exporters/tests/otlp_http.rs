//! `otlp_http` against a receiver that checks what it is sent and fails in every way.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::{
    collections::VecDeque,
    io::Read,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use support::{Inbox, PATIENCE, certificates, context, run, window};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use wattpipe_exporters::otlp::{
    Compression, Encoding, OtlpHttpConfig, OtlpHttpExporter, TlsConfig,
};
use wattpipe_pipeline::{
    ExporterComponent,
    units::{ConfigDuration, Secret},
};

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

#[derive(Clone, Default)]
struct Receiver {
    inbox: Inbox,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    headers: Arc<Mutex<Vec<HeaderMap>>>,
    max_body: Option<usize>,
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> Response {
    if receiver.max_body.is_some_and(|max| body.len() > max) {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    let answer = receiver.answers.lock().unwrap().pop_front();
    let (code, extra, answer) = answer.unwrap_or((200, vec![], vec![]));
    if code == 200 {
        let plain = match headers.get("content-encoding").map(|v| v.to_str().unwrap()) {
            Some("gzip") => {
                let mut out = Vec::new();
                flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut out).unwrap();
                out
            }
            Some("zstd") => zstd::decode_all(&body[..]).unwrap(),
            None => body.to_vec(),
            other => panic!("{other:?}"),
        };
        let request: ExportMetricsServiceRequest = match headers["content-type"].to_str().unwrap() {
            "application/x-protobuf" => Message::decode(&plain[..]).unwrap(),
            "application/json" => serde_json::from_slice(&plain).unwrap(),
            other => panic!("{other}"),
        };
        receiver.inbox.requests.lock().unwrap().push(request);
        receiver.headers.lock().unwrap().push(headers);
    }
    let mut response = (StatusCode::from_u16(code).unwrap(), answer).into_response();
    for (name, value) in extra {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

impl Receiver {
    fn answering(answers: impl IntoIterator<Item = Answer>) -> Self {
        let receiver = Self::default();
        receiver.answers.lock().unwrap().extend(answers);
        receiver
    }

    fn app(&self) -> Router {
        let app = Router::new().route("/v1/metrics", post(take)).with_state(self.clone());
        app.layer(axum::extract::DefaultBodyLimit::disable())
    }

    async fn start(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, app) = (listener.local_addr().unwrap(), self.app());
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    async fn start_tls(&self, (cert, key): &(String, String)) -> SocketAddr {
        let chain = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![chain], key).unwrap();
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, app) = (tcp.local_addr().unwrap(), self.app());
        let listener = Tls { tcp, acceptor: Arc::new(config).into() };
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }
}

struct Tls {
    tcp: tokio::net::TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<tokio::net::TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, address) = self.tcp.accept().await.unwrap();
            // A client that does not trust it goes away here.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Exports three windows of ten processes (2 points each) and checks sent and failed.
async fn check(
    receiver: &Receiver,
    change: impl FnOnce(&mut OtlpHttpConfig),
    expected: (u64, u64),
) {
    let address = receiver.start().await;
    let mut config =
        OtlpHttpConfig { endpoint: format!("http://{address}"), ..OtlpHttpConfig::default() };
    config.retry_on_failure.initial_interval = ConfigDuration::from_millis(20);
    change(&mut config);
    let context = context("otlp_http");
    let mut exporter = OtlpHttpExporter::build(config, &context).unwrap();
    let windows = (0..3).map(|n| window(n, 10));
    // What cannot arrive is tried until the end.
    let end = if expected.0 > 0 { PATIENCE } else { Duration::from_secs(2) };
    let c = run(&mut exporter, &context, windows, end).await;
    assert_eq!((c.sent.get(), c.send_failed.get()), expected);
    assert_eq!(c.queue_size.get(), 0.0);
}

#[tokio::test]
async fn every_encoding_and_compression_arrives() {
    for encoding in [Encoding::Proto, Encoding::Json] {
        for compression in [Compression::Gzip, Compression::Zstd, Compression::None] {
            let receiver = Receiver::default();
            let change = |c: &mut OtlpHttpConfig| {
                c.encoding = encoding;
                c.compression = compression;
                c.headers.insert("x-token".into(), Secret::from("t".to_owned()));
            };
            check(&receiver, change, (60, 0)).await;
            assert_eq!(receiver.inbox.points().len(), 60);
            assert!((receiver.inbox.sum("process.cpu.time") - 0.015).abs() < 1e-12);
            assert_eq!(receiver.headers.lock().unwrap()[0]["x-token"], "t");
        }
    }
}

#[tokio::test]
async fn busy_receivers_are_tried_again_and_others_not() {
    for code in [429, 502, 503, 504] {
        let receiver = Receiver::answering([(code, vec![], vec![])]);
        check(&receiver, |_| {}, (60, 0)).await;
    }
    for code in [400, 401, 404, 500] {
        let receiver = Receiver::answering([(code, vec![], vec![])]);
        check(&receiver, |_| {}, (40, 20)).await;
    }
}

#[tokio::test]
async fn retry_after_is_obeyed() {
    let receiver = Receiver::answering([(503, vec![("retry-after", "1".into())], vec![])]);
    let began = Instant::now();
    check(&receiver, |_| {}, (60, 0)).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn rejected_points_are_counted_in_both_encodings() {
    let answer = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 7,
            error_message: "too old".into(),
        }),
    };
    let proto = vec![("content-type", "application/x-protobuf".into())];
    let receiver = Receiver::answering([(200, proto, answer.encode_to_vec())]);
    check(&receiver, |_| {}, (53, 7)).await;
    // 64-bit integers are text in the JSON that others write.
    let json = br#"{"partialSuccess":{"rejectedDataPoints":"7","errorMessage":"too old"}}"#;
    let head = vec![("content-type", "application/json".into())];
    let receiver = Receiver::answering([(200, head, json.to_vec())]);
    check(&receiver, |c| c.encoding = Encoding::Json, (53, 7)).await;
}

#[tokio::test]
async fn rejected_points_are_counted_in_packed_and_endless_answers() {
    let answer = |message: String| {
        let partial_success =
            Some(ExportMetricsPartialSuccess { rejected_data_points: 7, error_message: message });
        ExportMetricsServiceResponse { partial_success }.encode_to_vec()
    };
    let proto = ("content-type", "application/x-protobuf".to_owned());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, &answer("too old".into())).unwrap();
    let head = vec![proto.clone(), ("content-encoding", "gzip".to_owned())];
    let receiver = Receiver::answering([(200, head, gzip.finish().unwrap())]);
    check(&receiver, |_| {}, (53, 7)).await;
    let receiver = Receiver::answering([(200, vec![proto], answer("x\n\"".repeat(1_000_000)))]);
    check(&receiver, |_| {}, (53, 7)).await;
}

#[tokio::test]
async fn a_request_that_is_too_large_is_divided() {
    let receiver = Receiver { max_body: Some(1500), ..Receiver::default() };
    check(&receiver, |c| c.compression = Compression::None, (60, 0)).await;
    assert!(receiver.inbox.requests.lock().unwrap().len() > 3);
}

#[tokio::test]
async fn a_receiver_that_is_not_there_costs_what_it_would_have_got() {
    let receiver = Receiver::default();
    check(&receiver, |c| c.endpoint = "http://127.0.0.1:9".into(), (0, 60)).await;
}

#[tokio::test]
async fn https_checks_whom_it_talks_to() {
    let (good, other) = (certificates("localhost"), certificates("localhost"));
    for (ca, expected) in [(&good.ca, (60, 0)), (&other.ca, (0, 60))] {
        let receiver = Receiver::default();
        let port = receiver.start_tls(&good.client).await.port();
        let change = |c: &mut OtlpHttpConfig| {
            c.endpoint = format!("https://localhost:{port}");
            c.tls = Some(TlsConfig { ca_pem: Some(ca.clone()), ..TlsConfig::default() });
        };
        check(&receiver, change, expected).await;
        assert_eq!(receiver.inbox.points().len() as u64, expected.0);
    }
}

#[tokio::test]
async fn a_date_to_retry_after_is_obeyed() {
    let date = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(2));
    let receiver = Receiver::answering([(429, vec![("retry-after", date.clone())], vec![])]);
    check(&receiver, |_| {}, (60, 0)).await;
    // It has whole seconds.
    assert!(std::time::SystemTime::now() >= httpdate::parse_http_date(&date).unwrap());
}
