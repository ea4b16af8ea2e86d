//! `otlp_grpc` against receivers that fail in every way: what arrives is complete, or the loss is
//! counted, to the point.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message;
use support::{
    Grpc, GrpcOptions, Inbox, PATIENCE, certificates, context, ok, reserved, run, window,
};
use tonic::{Code, Status, transport::ServerTlsConfig};
use wattpipe_exporters::{
    otlp::{Compression, OtlpGrpcConfig, OtlpGrpcExporter, Temporality, TlsConfig},
    queue::BatchConfig,
};
use wattpipe_pipeline::{
    BuildContext, Exporter, ExporterComponent,
    units::{ConfigDuration, ConfigSize, Secret},
};

const SECOND: Duration = Duration::from_secs(1);

fn config(receiver: &Grpc) -> OtlpGrpcConfig {
    let mut config =
        OtlpGrpcConfig { endpoint: receiver.address.to_string(), ..OtlpGrpcConfig::default() };
    config.retry_on_failure.initial_interval = ConfigDuration::from_millis(20);
    config
}

fn build(config: OtlpGrpcConfig) -> (OtlpGrpcExporter, BuildContext) {
    let context = context("otlp_grpc");
    (OtlpGrpcExporter::build(config, &context).unwrap(), context)
}

/// Exports three windows of ten processes (2 points each) and checks sent, failed and refused.
async fn check(config: OtlpGrpcConfig, expected: (u64, u64, u64)) {
    let (mut exporter, context) = build(config);
    let windows = (0..3).map(|n| window(n, 10));
    let c = run(&mut exporter, &context, windows, PATIENCE).await;
    assert_eq!((c.sent.get(), c.send_failed.get(), c.enqueue_failed.get()), expected);
    assert_eq!(c.queue_size.get(), 0.0);
}

#[tokio::test]
async fn cumulative_and_delta_sums_arrive() {
    for (temporality, last, total) in
        [(Temporality::Cumulative, 0.00075, 0.015), (Temporality::Delta, 0.00025, 0.0075)]
    {
        let inbox = Inbox::default();
        let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
        check(OtlpGrpcConfig { temporality, ..config(&receiver) }, (60, 0, 0)).await;
        let points = inbox.points();
        let cpu: Vec<_> = points.iter().filter(|p| p.1 == "process.cpu.time").collect();
        assert_eq!(cpu.len(), 30);
        assert!((support::value(&cpu[29].2) - last).abs() < 1e-12);
        assert!((inbox.sum("process.cpu.time") - total).abs() < 1e-12);
        for (i, (_, _, p)) in cpu.iter().enumerate() {
            let window = i as u64 / 10;
            let start = if temporality == Temporality::Delta { window } else { 0 };
            let base = wattpipe_exporters::testing::BOOT_UNIX_NS;
            assert_eq!(p.start_time_unix_nano, base + start * 1_000_000_000);
            assert_eq!(p.time_unix_nano, base + (window + 1) * 1_000_000_000);
        }
    }
}

#[tokio::test]
async fn every_compression_arrives() {
    for compression in [Compression::Gzip, Compression::Zstd, Compression::None] {
        let inbox = Inbox::default();
        let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
        check(OtlpGrpcConfig { compression, ..config(&receiver) }, (60, 0, 0)).await;
        assert_eq!(inbox.points().len(), 60);
    }
}

#[tokio::test]
async fn headers_travel() {
    let inbox = Inbox::default();
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    let mut config = config(&receiver);
    config.headers.insert("Authorization".into(), Secret::from("Bearer x".to_owned()));
    check(config, (60, 0, 0)).await;
    let headers = inbox.headers.lock().unwrap();
    assert_eq!(headers[0].get("authorization").unwrap(), "Bearer x");
    assert!(headers[0].get("user-agent").unwrap().to_str().unwrap().starts_with("wattpipe/"));
}

#[tokio::test]
async fn unavailable_and_exhausted_receivers_are_tried_again() {
    for code in [Code::Unavailable, Code::ResourceExhausted, Code::Aborted] {
        let inbox = Inbox::answering((0..4).map(|_| Err(Status::new(code, "busy"))));
        let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
        check(config(&receiver), (60, 0, 0)).await;
        assert_eq!(*inbox.asked.lock().unwrap(), 7);
    }
}

#[tokio::test]
async fn retry_info_is_obeyed() {
    // google.rpc.Status with one RetryInfo of 400 ms, spelt out.
    let delay = [0x10, 0x80, 0x88, 0xde, 0xbe, 0x01]; // nanos: 400,000,000
    let info = [&[0x0a, delay.len() as u8][..], &delay].concat();
    let url = b"type.googleapis.com/google.rpc.RetryInfo";
    let any = [&[0x0a, url.len() as u8][..], url, &[0x12, info.len() as u8], &info].concat();
    let details = [&[0x1a, any.len() as u8][..], &any].concat();
    for code in [Code::Unavailable, Code::ResourceExhausted] {
        let busy = Status::with_details(code, "busy", details.clone().into());
        let inbox = Inbox::answering([Err(busy)]);
        let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
        let began = Instant::now();
        check(config(&receiver), (60, 0, 0)).await;
        assert!(began.elapsed() >= Duration::from_millis(400));
    }
}

#[tokio::test]
async fn permanent_failures_are_counted_at_once() {
    let inbox = Inbox::answering([Err(Status::unauthenticated("who are you"))]);
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    check(config(&receiver), (40, 20, 0)).await;
    assert_eq!(*inbox.asked.lock().unwrap(), 3);
}

#[tokio::test]
async fn rejected_points_of_a_partial_success_are_counted() {
    let partial = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 7,
            error_message: "too old".into(),
        }),
    };
    let inbox = Inbox::answering([Ok(partial), Ok(ok())]);
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    check(config(&receiver), (53, 7, 0)).await;
}

#[tokio::test]
async fn a_large_window_arrives_in_parts_below_the_receivers_limit() {
    let inbox = Inbox::default();
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    let mut config = config(&receiver);
    config.max_series = 20_000;
    let (mut exporter, context) = build(config);
    let c = run(&mut exporter, &context, [window(0, 10_000)], PATIENCE).await;
    assert_eq!((c.sent.get(), c.send_failed.get()), (20_000, 0));
    let sizes: Vec<usize> =
        inbox.requests.lock().unwrap().iter().map(Message::encoded_len).collect();
    assert!(sizes.len() > 1 && sizes.iter().all(|s| *s <= 3 << 20), "{sizes:?}");
    assert!((inbox.sum("process.cpu.time") - 2.5).abs() < 1e-9);
}

#[tokio::test]
async fn batches_are_divided_at_their_largest_size() {
    let inbox = Inbox::default();
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    let mut config = config(&receiver);
    let batch = BatchConfig { min_size: 6, max_size: 6, ..BatchConfig::default() };
    config.sending_queue.batch = Some(batch);
    check(config, (60, 0, 0)).await;
    let asked = *inbox.asked.lock().unwrap();
    assert!(asked >= 10, "{asked} requests of at most 6 points for 60");
}

#[tokio::test]
async fn a_receiver_with_a_lower_limit_gets_smaller_parts() {
    let inbox = Inbox::default();
    let options = GrpcOptions { max_message: Some(16 << 10), ..GrpcOptions::default() };
    let receiver = Grpc::start(inbox.clone(), options).await;
    let (mut exporter, context) = build(config(&receiver));
    let c = run(&mut exporter, &context, [window(0, 500)], PATIENCE).await;
    assert_eq!((c.sent.get(), c.send_failed.get()), (1000, 0));
    assert_eq!(inbox.points().len(), 1000);
    // One resource alone above the limit can only be lost.
    let options = GrpcOptions { max_message: Some(100), ..GrpcOptions::default() };
    let receiver = Grpc::start(inbox, options).await;
    check(config(&receiver), (0, 60, 0)).await;
}

#[tokio::test]
async fn a_peer_that_takes_connections_and_says_nothing() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let hold = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let mut config = OtlpGrpcConfig { endpoint: address.to_string(), ..OtlpGrpcConfig::default() };
    config.timeout = ConfigDuration::from_millis(100);
    let (mut exporter, context) = build(config);
    exporter.start().await.unwrap();
    let began = Instant::now();
    for n in 0..3 {
        exporter.export(window(n, 10).batch()).await.unwrap();
    }
    // Waiting for a delivery would take the five minutes of `max_elapsed_time`.
    assert!(began.elapsed() < PATIENCE, "export waits for nobody");
    exporter.shutdown(SECOND).await.unwrap();
    let c = wattpipe_exporters::counters::Counters::with_queue(&context);
    assert_eq!((c.sent.get(), c.send_failed.get()), (0, 60));
    hold.abort();
}

#[tokio::test]
async fn a_receiver_that_comes_back_gets_everything() {
    let inbox = Inbox::default();
    let (_held, address) = reserved();
    let options = || GrpcOptions { address: Some(address), ..GrpcOptions::default() };
    let receiver = Grpc::start(inbox.clone(), options()).await;
    let (mut exporter, context) = build(config(&receiver));
    exporter.start().await.unwrap();
    exporter.export(window(0, 10).batch()).await.unwrap();
    drop(receiver);
    tokio::time::sleep(Duration::from_millis(50)).await;
    for n in 1..10 {
        exporter.export(window(n, 10).batch()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _receiver = Grpc::start(inbox.clone(), options()).await;
    exporter.shutdown(PATIENCE).await.unwrap();
    let c = wattpipe_exporters::counters::Counters::with_queue(&context);
    assert_eq!(c.sent.get() + c.send_failed.get(), 200);
    // The first may have been cut off in the middle; none of the others is lost.
    assert!(c.sent.get() >= 180, "{}", c.sent.get());
    assert!(inbox.points().len() as u64 >= c.sent.get());
    // Windows come in order.
    let times: Vec<u64> = inbox.points().iter().map(|p| p.2.time_unix_nano).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test]
async fn tls_checks_whom_it_talks_to() {
    let good = certificates("localhost");
    let other = certificates("localhost");
    let tls = |config: ServerTlsConfig| GrpcOptions { tls: Some(config), ..Default::default() };
    let server = || ServerTlsConfig::new().identity(good.server.clone());
    let mutual = || server().client_ca_root(tonic::transport::Certificate::from_pem(&good.ca));
    let trusting = |ca: &str| TlsConfig { ca_pem: Some(ca.into()), ..TlsConfig::default() };
    let client = |(cert, key): &(String, String)| TlsConfig {
        cert_pem: Some(cert.clone()),
        key_pem: Some(Secret::from(key.clone())),
        ..trusting(&good.ca)
    };
    let renamed =
        TlsConfig { server_name_override: Some("example.org".into()), ..trusting(&good.ca) };
    let blind = TlsConfig { insecure_skip_verify: true, ..TlsConfig::default() };
    let cases = [
        (server(), trusting(&good.ca), true),
        (server(), trusting(&other.ca), false),
        (server(), renamed, false),
        (server(), blind, true),
        (mutual(), trusting(&good.ca), false),
        (mutual(), client(&good.client), true),
        (mutual(), client(&other.client), false),
    ];
    for (i, (server, client, arrives)) in cases.into_iter().enumerate() {
        let inbox = Inbox::default();
        let receiver = Grpc::start(inbox.clone(), tls(server)).await;
        let mut config = config(&receiver);
        config.endpoint = format!("https://localhost:{}", receiver.address.port());
        config.tls = Some(client);
        let (mut exporter, context) = build(config);
        // What cannot arrive is tried until the end.
        let end = if arrives { PATIENCE } else { SECOND };
        let c = run(&mut exporter, &context, [window(0, 10)], end).await;
        let expected = if arrives { (20, 0) } else { (0, 20) };
        assert_eq!((c.sent.get(), c.send_failed.get()), expected, "case {i}");
        assert_eq!(inbox.points().len() as u64, c.sent.get(), "case {i}");
    }
}

#[tokio::test]
async fn an_unreadable_ca_fails_the_start() {
    let mut config =
        OtlpGrpcConfig { endpoint: "https://localhost:1".into(), ..Default::default() };
    config.tls = Some(TlsConfig { ca_file: Some("/nonexistent".into()), ..TlsConfig::default() });
    let (mut exporter, _) = build(config);
    let error = exporter.start().await.unwrap_err().to_string();
    assert!(error.contains("tls::ca_file") && error.contains("/nonexistent"), "{error}");
}

#[tokio::test]
async fn resource_attributes_are_copied_where_asked_for() {
    let inbox = Inbox::default();
    let receiver = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    let mut config = config(&receiver);
    config.resource_to_telemetry_conversion = true;
    config.max_request_size = ConfigSize(4096);
    check(config, (60, 0, 0)).await;
    for (_, _, point) in inbox.points() {
        let keys: Vec<&str> = point.attributes.iter().map(|a| a.key.as_str()).collect();
        assert!(keys.contains(&"process.pid") && keys.contains(&"service.name"), "{keys:?}");
    }
}
