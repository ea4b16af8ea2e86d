//! The end, with a receiver that does not take what there is: every point is in exactly one count
//! (sent, failed, refused by a full queue) or still in the stored queue, and it ends in time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use support::{Grpc, GrpcOptions, Inbox, context, window};
use tokio::{
    io::AsyncWriteExt,
    net::TcpListener,
    task::{AbortHandle, JoinSet},
};
use tonic::{Code, Status};
use wattpipe_exporters::{
    counters::Counters,
    otlp::{OtlpExporter, OtlpGrpcConfig, OtlpHttpConfig, Protocol},
    queue::QueueConfig,
};
use wattpipe_pipeline::{Exporter, ExporterComponent, units::ConfigDuration};

const WINDOWS: u64 = 30;
/// Two for each of ten processes.
const POINTS: u64 = 20 * WINDOWS;
/// What the end may take.
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
enum Receiver {
    /// Nobody listens.
    Dead,
    /// Takes connections and says nothing.
    Mute,
    /// Says something without end, a byte at a time.
    Drip,
    /// Takes each request after a while.
    Slow,
    /// Always busy, and says so.
    Busy,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Full, so that the newest is refused.
    Full,
    /// Full, so that `export` waits.
    Blocking,
    /// `export` delivers.
    NoQueue,
    /// Merges what waits.
    Merging,
    Stored,
}

fn queue(kind: Kind, directory: &std::path::Path) -> QueueConfig {
    let small = QueueConfig { queue_size: 5, ..QueueConfig::default() };
    match kind {
        Kind::Full => small,
        Kind::Blocking => QueueConfig { block_on_overflow: true, ..small },
        Kind::NoQueue => QueueConfig { enabled: false, ..small },
        Kind::Merging => QueueConfig { batch: Some(Default::default()), ..QueueConfig::default() },
        Kind::Stored => QueueConfig { storage: Some(PathBuf::from(directory)), ..small },
    }
}

/// A peer on TCP that takes connections and, with `drip`, gives a byte now and then.
async fn peer(drip: bool) -> (SocketAddr, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                // Neither a frame of HTTP/2 nor an answer of HTTP/1.1 is over with it.
                while !drip || stream.write_all(b"\0").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
    });
    (address, task.abort_handle())
}

async fn check<P: Protocol>(
    receiver: Receiver,
    kind: Kind,
    config: impl Fn(String, QueueConfig) -> P,
) {
    let case = format!("{}: {receiver:?}, {kind:?}", P::NAME);
    let directory = tempfile::tempdir().unwrap();
    let inbox = match receiver {
        Receiver::Slow => Inbox::slow(Duration::from_millis(100)),
        _ => Inbox::answering((0..10_000).map(|_| Err(Status::new(Code::Unavailable, "busy")))),
    };
    let grpc = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
    let (address, peer) = match receiver {
        Receiver::Dead => ("127.0.0.1:9".parse().unwrap(), None),
        Receiver::Mute | Receiver::Drip => {
            let (address, peer) = peer(matches!(receiver, Receiver::Drip)).await;
            (address, Some(peer))
        }
        Receiver::Slow | Receiver::Busy => (grpc.address, None),
    };
    let context = context(P::NAME);
    let mut exporter = OtlpExporter::<P>::build(
        config(address.to_string(), queue(kind, directory.path())),
        &context,
    )
    .unwrap();
    exporter.start().await.unwrap();
    let closer = exporter.closer().unwrap();
    let answered = inbox.clone();
    let ended = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        // A slow receiver takes something before the end, however slow this machine is.
        while matches!(receiver, Receiver::Slow) && answered.points().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        closer(Instant::now() + TIMEOUT);
        Instant::now()
    });
    for n in 0..WINDOWS {
        exporter.export(window(n, 10).batch()).await.unwrap();
    }
    let ended = ended.await.unwrap();
    exporter.shutdown(TIMEOUT).await.unwrap();
    let took = ended.elapsed();
    // Far from the minutes that retries take.
    assert!(took < 30 * TIMEOUT, "{case}: {took:?}");
    drop(exporter);

    let c = Counters::with_queue(&context);
    let (sent, lost) = (c.sent.get(), c.send_failed.get() + c.enqueue_failed.get());
    let mut kept = 0;
    if matches!(kind, Kind::Stored) {
        let inbox = Inbox::default();
        let up = Grpc::start(inbox.clone(), GrpcOptions::default()).await;
        let context = support::context("again");
        let config = OtlpGrpcConfig {
            endpoint: up.address.to_string(),
            sending_queue: queue(kind, directory.path()),
            ..OtlpGrpcConfig::default()
        };
        // The queue's file bears the exporter's name.
        let context = wattpipe_pipeline::BuildContext { id: P::NAME.into(), ..context };
        let mut again = OtlpExporter::<OtlpGrpcConfig>::build(config, &context).unwrap();
        again.start().await.unwrap();
        again.shutdown(support::PATIENCE).await.unwrap();
        kept = Counters::with_queue(&context).sent.get();
        assert_eq!(inbox.points().len() as u64, kept, "{case}");
        assert!(kept > 0 || matches!(receiver, Receiver::Slow), "{case}");
    }
    assert_eq!(sent + lost + kept, POINTS, "{case}: {sent} sent, {lost} lost, {kept} kept");
    if matches!(receiver, Receiver::Slow) {
        assert!(sent > 0, "{case}");
        let arrived = inbox.points().len() as u64;
        // An attempt that the end cuts off may have arrived all the same.
        assert!((sent..=POINTS).contains(&arrived), "{case}: {sent} sent, {arrived} arrived");
    } else {
        assert_eq!(sent, 0, "{case}");
    }
    if let Some(peer) = peer {
        peer.abort();
    }
}

const KINDS: [Kind; 5] = [Kind::Full, Kind::Blocking, Kind::NoQueue, Kind::Merging, Kind::Stored];

#[tokio::test(flavor = "multi_thread")]
async fn over_grpc() {
    use Receiver::*;
    let mut cases = JoinSet::new();
    for receiver in [Dead, Mute, Drip, Slow, Busy] {
        for kind in KINDS {
            cases.spawn(check(receiver, kind, |endpoint, sending_queue| OtlpGrpcConfig {
                endpoint,
                sending_queue,
                ..OtlpGrpcConfig::default()
            }));
        }
    }
    cases.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http() {
    use Receiver::*;
    let mut cases = JoinSet::new();
    for receiver in [Dead, Mute, Drip] {
        for kind in KINDS {
            cases.spawn(check(receiver, kind, |address, sending_queue| OtlpHttpConfig {
                endpoint: format!("http://{address}"),
                sending_queue,
                // No limit, as there: only the end cuts it off.
                timeout: ConfigDuration::from_secs(0),
                ..OtlpHttpConfig::default()
            }));
        }
    }
    cases.join_all().await;
}
