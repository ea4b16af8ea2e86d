//! What exporting costs for a host with 10,000 processes of two metrics each. Targets: a window
//! below 100 ms of CPU and 32 MiB above what the series themselves take, a scrape below 50 ms.
//!
//! `cargo bench -p wattpipe-exporters`

use std::sync::Arc;

use divan::{Bencher, counter::ItemsCount};
use wattpipe_exporters::{
    otlp::{Encoder, EncoderOptions, Requests, Temporality},
    prometheus::{PrometheusConfig, PrometheusExporter},
    records,
    semconv::Level,
    stdout::table,
    testing::Usage,
};
use wattpipe_pipeline::{Batch, BuildContext, Exporter, ExporterComponent, batch::UsageBatch};

/// Reports the most memory that each takes at once (`max alloc`).
#[global_allocator]
static ALLOCATOR: divan::AllocProfiler = divan::AllocProfiler::system();

const PROCESSES: u32 = 10_000;
const SECOND: u64 = 1_000_000_000;

fn main() {
    divan::main();
}

fn window(n: u64) -> UsageBatch {
    let mut usage = Usage::window(n * SECOND, (n + 1) * SECOND);
    for pid in 1..=PROCESSES {
        usage = usage
            .process(pid, "worker-process", 0, 250_000)
            .attribute("process.owner", "www-data")
            .attribute("process.linux.cgroup", "/system.slice/some-service.service")
            .attribute("systemd.unit", "some-service.service");
    }
    usage.build()
}

fn encoder() -> Encoder {
    let options = EncoderOptions {
        temporality: Temporality::Cumulative,
        levels: vec![Level::Container, Level::Pod, Level::Process],
        max_series: 20_000,
        resource_to_telemetry_conversion: false,
    };
    Encoder::new(&options, &BuildContext::default())
}

fn requests(encoder: &mut Encoder, batch: &UsageBatch) -> usize {
    let mut requests = Requests::new(0, 3 << 20, u64::MAX);
    encoder.encode(batch, |metrics, points| requests.push(&metrics, points));
    requests.finish().iter().map(|r| r.body.len()).sum()
}

/// A window as OTLP requests, encoded.
#[divan::bench]
fn otlp_encode(bencher: Bencher<'_, '_>) {
    let mut encoder = encoder();
    let batch = window(0);
    bencher.counter(ItemsCount::new(PROCESSES)).bench_local(|| requests(&mut encoder, &batch));
}

/// The same, compressed as it travels by default.
#[divan::bench]
fn otlp_encode_and_gzip(bencher: Bencher<'_, '_>) {
    use std::io::Write;
    let mut encoder = encoder();
    let batch = window(0);
    bencher.counter(ItemsCount::new(PROCESSES)).bench_local(|| {
        let mut all = Requests::new(0, 3 << 20, u64::MAX);
        encoder.encode(&batch, |metrics, points| all.push(&metrics, points));
        let mut size = 0;
        for request in all.finish() {
            let mut gzip =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            gzip.write_all(&request.body).ok();
            size += gzip.finish().map_or(0, |z| z.len());
        }
        size
    });
}

/// A page of 20,000 samples.
#[divan::bench(args = [false, true])]
fn prometheus_scrape(bencher: Bencher<'_, '_>, open_metrics: bool) {
    let config = PrometheusConfig { max_series: 20_000, ..PrometheusConfig::default() };
    let exporter = PrometheusExporter::build(config, &BuildContext::default());
    let (Ok(mut exporter), Ok(runtime)) =
        (exporter, tokio::runtime::Builder::new_current_thread().build())
    else {
        return;
    };
    let batch = Batch::Usage(Arc::new(window(0)));
    let _ = runtime.block_on(exporter.export(batch));
    bencher.counter(ItemsCount::new(2 * PROCESSES)).bench_local(|| exporter.page(open_metrics));
}

/// A window as JSON lines.
#[divan::bench]
fn json_lines(bencher: Bencher<'_, '_>) {
    let batch = window(0);
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(PROCESSES)).bench_local(|| {
        out.clear();
        records::write_lines(&batch, &mut out)
    });
}

/// A window as the table on a terminal.
#[divan::bench]
fn stdout_table(bencher: Bencher<'_, '_>) {
    let batch = window(0);
    let layout = table::Layout { width: 80, top: Some(20), styled: true };
    bencher.counter(ItemsCount::new(PROCESSES)).bench_local(|| table::render(&batch, layout));
}
