//! Every point that goes in is counted once, whatever the receiver does.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};

use tokio::sync::Semaphore;
use wattpipe_pipeline::units::ConfigDuration;

use super::*;

/// A receiver that answers as it is told, then takes everything.
#[derive(Default)]
struct Script {
    answers: Mutex<Vec<Outcome>>,
    got: Mutex<Vec<Bytes>>,
    slow: Option<Duration>,
    /// Each attempt waits for a permit, and takes it away.
    gate: Option<Semaphore>,
    /// Attempts so far.
    asked: AtomicU64,
    max: Option<usize>,
}

#[async_trait]
impl Transport for Script {
    async fn send(&self, body: Bytes) -> Outcome {
        self.asked.fetch_add(1, SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        if let Some(slow) = self.slow {
            tokio::time::sleep(slow).await;
        }
        if self.max.is_some_and(|max| body.len() > max) {
            return Outcome::TooLarge { reason: "4 MiB".into() };
        }
        let answer = self.answers.lock().unwrap().pop();
        let answer = answer.unwrap_or(Outcome::Delivered { rejected: 0, message: String::new() });
        if matches!(answer, Outcome::Delivered { .. }) {
            self.got.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        }
        answer
    }

    fn split(&self, request: &Request) -> Option<[Request; 2]> {
        let half = request.points / 2;
        (half > 0).then(|| {
            let part = |points| Request {
                body: Bytes::from(vec![0; points as usize]),
                points,
                window: request.window,
            };
            [part(half), part(request.points - half)]
        })
    }
}

fn options() -> QueueOptions {
    QueueOptions {
        id: "otlp_grpc/test".into(),
        queue: QueueConfig::default(),
        retry: RetryConfig {
            initial_interval: ConfigDuration::from_millis(1),
            ..RetryConfig::default()
        },
        timeout: PATIENCE,
        max_request_size: 1 << 20,
        max_request_points: u64::MAX,
    }
}

fn request(points: u64, window: u64) -> Request {
    Request { body: Bytes::from(vec![0; points as usize]), points, window }
}

fn retry() -> Outcome {
    Outcome::Retry { after: None, reason: "unavailable".into() }
}

/// Sent, failed, refused.
fn counts(c: &Counters) -> (u64, u64, u64) {
    (c.sent.get(), c.send_failed.get(), c.enqueue_failed.get())
}

/// Time enough for what does arrive, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn check(
    options: QueueOptions,
    script: Script,
    requests: Vec<Request>,
    expected: (u64, u64, u64),
) -> Arc<Script> {
    check_within(PATIENCE, options, script, requests, expected).await
}

async fn check_within(
    end: Duration,
    options: QueueOptions,
    script: Script,
    requests: Vec<Request>,
    expected: (u64, u64, u64),
) -> Arc<Script> {
    let counters = Counters::default();
    let script = Arc::new(script);
    let mut queue = Queue::start(options, script.clone(), counters.clone()).await.unwrap();
    queue.push(requests, false).await;
    queue.shutdown(end).await;
    assert_eq!(counts(&counters), expected);
    assert_eq!(counters.queue_size.get(), 0.0);
    script
}

#[tokio::test]
async fn retries_until_it_goes_through() {
    let script =
        Script { answers: Mutex::new(vec![retry(), retry(), retry()]), ..Script::default() };
    let script = check(options(), script, vec![request(10, 1)], (10, 0, 0)).await;
    assert_eq!(script.got.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn rejected_and_refused_points_are_counted() {
    let answers = vec![
        Outcome::Refused { reason: "bad".into() },
        Outcome::Delivered { rejected: 3, message: "old".into() },
    ];
    let script = Script { answers: Mutex::new(answers), ..Script::default() };
    check(options(), script, vec![request(10, 1), request(5, 2)], (7, 8, 0)).await;
}

#[tokio::test]
async fn without_retries_a_failure_is_a_loss() {
    let mut o = options();
    o.retry.enabled = false;
    let script = Script { answers: Mutex::new(vec![retry()]), ..Script::default() };
    check(o, script, vec![request(10, 1), request(5, 2)], (5, 10, 0)).await;
}

/// Takes its time, and notes how many requests came at once.
#[derive(Default)]
struct AtOnce {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Transport for AtOnce {
    async fn send(&self, _: Bytes) -> Outcome {
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.now.fetch_sub(1, SeqCst);
        Outcome::Delivered { rejected: 0, message: String::new() }
    }

    fn split(&self, _: &Request) -> Option<[Request; 2]> {
        None
    }
}

#[tokio::test]
async fn nothing_overtakes_what_a_merged_request_has_of_an_earlier_window() {
    let mut o = options();
    o.queue.batch = Some(BatchConfig { min_size: 2, ..BatchConfig::default() });
    let check = async |requests: &[(u64, u64)], most| {
        let transport = Arc::new(AtOnce::default());
        let mut queue =
            Queue::start(o.clone(), transport.clone(), Counters::default()).await.unwrap();
        let requests = requests.iter().map(|&(points, window)| request(points, window));
        queue.push(requests.collect(), false).await;
        queue.shutdown(Duration::from_secs(2)).await;
        assert_eq!(transport.most.load(SeqCst), most);
    };
    // Of one window, side by side.
    check(&[(2, 1), (2, 1), (2, 1)], 3).await;
    // The second and third become one, with the end of one window and the beginning of the next.
    check(&[(2, 1), (1, 1), (1, 2), (2, 2)], 1).await;
    check(&[(1, 1), (1, 2), (1, 2), (1, 3)], 1).await;
}

#[tokio::test]
async fn gives_up_after_max_elapsed_time() {
    let mut o = options();
    o.retry.max_elapsed_time = ConfigDuration::from_millis(20);
    let script = Script { answers: Mutex::new(vec![retry(); 1000]), ..Script::default() };
    check(o, script, vec![request(10, 1)], (0, 10, 0)).await;
}

#[test]
fn a_loss_tells_the_time_that_passed() {
    let (tried, limit) = (Duration::from_millis(12_480), Duration::from_secs(20));
    assert_eq!(
        send::given_up("unavailable", tried, limit),
        "unavailable; tried for 12.5s, the next attempt would be after 20s (`max_elapsed_time`)"
    );
}

/// The waits of a shutdown are short: it is its end that ends the attempts, not the wait that would
/// have come without it. What is left is told once, by the store.
#[tokio::test]
async fn at_shutdown_max_elapsed_time_counts_time_that_passes() {
    let mut o = options();
    o.retry.randomization_factor = 0.0;
    o.retry.initial_interval = ConfigDuration::from_secs(19);
    o.retry.max_elapsed_time = ConfigDuration::from_secs(20);
    let script = Script { answers: Mutex::new(vec![retry(); 1000]), ..Script::default() };
    let (closing, closes) = watch::channel(Some(Instant::now() + Duration::from_millis(600)));
    let courier = Courier::new(&o, Arc::new(script), closes);
    assert_eq!(courier.deliver(request(10, 1)).await, Done::GivenBack);
    drop(closing);
}

#[tokio::test]
async fn without_max_elapsed_time_it_never_gives_up() {
    let mut o = options();
    o.retry.max_elapsed_time = ConfigDuration::from_secs(0);
    o.retry.max_interval = ConfigDuration::from_millis(1);
    let script = Script { answers: Mutex::new(vec![retry(); 30]), ..Script::default() };
    check(o, script, vec![request(10, 1)], (10, 0, 0)).await;
}

#[test]
fn waits_grow_to_a_bound_and_vary() {
    let retry = RetryConfig::default();
    let mut interval = retry.initial_interval.0;
    let mut seconds = Vec::new();
    for _ in 0..7 {
        seconds.push(interval.as_secs_f64());
        for _ in 0..50 {
            let wait = send::jitter(&retry, interval).as_secs_f64() / interval.as_secs_f64();
            assert!((0.5..=1.5).contains(&wait), "{wait}");
        }
        interval = send::longer(&retry, interval);
    }
    assert_eq!(seconds, [5.0, 7.5, 11.25, 16.875, 25.3125, 30.0, 30.0]);
    let exact = RetryConfig { randomization_factor: 0.0, ..retry };
    assert_eq!(send::jitter(&exact, interval), interval);
}

#[tokio::test]
async fn too_large_requests_are_halved() {
    let script = Script { max: Some(4), ..Script::default() };
    let script = check(options(), script, vec![request(10, 1)], (10, 0, 0)).await;
    let sizes: Vec<usize> = script.got.lock().unwrap().iter().map(Bytes::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 10);
    assert!(sizes.iter().all(|s| *s <= 4));
    // One that cannot be halved any further is lost.
    let script = Script { max: Some(0), ..Script::default() };
    check(options(), script, vec![request(3, 1)], (0, 3, 0)).await;
}

#[tokio::test]
async fn a_peer_that_never_answers_costs_what_was_on_its_way() {
    let mut o = options();
    o.timeout = Duration::from_millis(20);
    let script = Script { slow: Some(Duration::from_secs(60)), ..Script::default() };
    let end = Duration::from_secs(2);
    check_within(end, o, script, vec![request(10, 1), request(5, 2)], (0, 15, 0)).await;
}

#[tokio::test]
async fn a_full_memory_queue_refuses_the_new() {
    let mut o = options();
    o.queue.queue_size = 2;
    let script = Script { slow: Some(Duration::from_millis(10)), ..Script::default() };
    let requests = (0..5).map(|n| request(1 << n, n)).collect();
    check(o.clone(), script, requests, (3, 0, 28)).await;
    // Or waits, where it is told to.
    o.queue.block_on_overflow = true;
    let script = Script { slow: Some(Duration::from_millis(10)), ..Script::default() };
    let requests = (0..5).map(|n| request(1 << n, n)).collect();
    check(o, script, requests, (31, 0, 0)).await;
}

#[tokio::test]
async fn queue_size_counts_what_the_sizer_says() {
    let mut o = options();
    o.queue.sizer = Sizer::Items;
    o.queue.queue_size = 10;
    let script = Script { slow: Some(Duration::from_millis(10)), ..Script::default() };
    let requests = vec![request(6, 0), request(4, 1), request(1, 2)];
    check(o, script, requests, (10, 0, 1)).await;
}

#[tokio::test]
async fn windows_arrive_in_order_even_after_failures() {
    let script = Script { answers: Mutex::new(vec![retry(), retry()]), ..Script::default() };
    let requests = (1..=20).map(|n| request(n, n)).collect();
    let script = check(options(), script, requests, (210, 0, 0)).await;
    let sizes: Vec<usize> = script.got.lock().unwrap().iter().map(Bytes::len).collect();
    assert_eq!(sizes, (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn small_requests_are_merged() {
    let mut o = options();
    o.queue.batch = Some(BatchConfig { min_size: 8, max_size: 10, ..Default::default() });
    let requests = (0..9).map(|n| request(3, n)).collect();
    let script = check(o, Script::default(), requests, (27, 0, 0)).await;
    let sizes: Vec<usize> = script.got.lock().unwrap().iter().map(Bytes::len).collect();
    assert_eq!(sizes, [9, 9, 9]);
}

#[test]
fn what_a_batch_counts() {
    #[track_caller]
    fn check(queue: Sizer, batch: Option<Sizer>, expected: (Sizer, (u64, u64))) {
        let batch = BatchConfig { sizer: batch, max_size: 9000, ..Default::default() };
        let c = QueueConfig { sizer: queue, batch: Some(batch), ..Default::default() };
        assert_eq!((c.batch_sizer(), c.largest()), expected);
    }
    let (items, bytes) = ((9000, u64::MAX), (u64::MAX, 9000));
    check(Sizer::Requests, None, (Sizer::Items, items));
    check(Sizer::Items, None, (Sizer::Items, items));
    check(Sizer::Bytes, None, (Sizer::Bytes, bytes));
    check(Sizer::Bytes, Some(Sizer::Items), (Sizer::Items, items));
    check(Sizer::Items, Some(Sizer::Bytes), (Sizer::Bytes, bytes));
    assert_eq!(QueueConfig::default().largest(), (u64::MAX, u64::MAX));
}

#[tokio::test]
async fn without_a_queue_push_waits_for_delivery() {
    let mut o = options();
    o.queue.enabled = false;
    let counters = Counters::default();
    let script = Arc::new(Script { answers: Mutex::new(vec![retry()]), ..Script::default() });
    let mut queue = Queue::start(o, script, counters.clone()).await.unwrap();
    queue.push(vec![request(10, 1)], false).await;
    assert_eq!(counts(&counters), (10, 0, 0));
    queue.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_stored_queue_goes_on_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut o = options();
    o.queue.storage = Some(dir.path().join("queue"));
    let down = Arc::new(Script { answers: Mutex::new(vec![retry(); 1000]), ..Script::default() });
    let counters = Counters::default();
    let mut queue = Queue::start(o.clone(), down, counters.clone()).await.unwrap();
    queue.push((1..=5).map(|n| request(n, n)).collect(), false).await;
    queue.shutdown(Duration::from_millis(200)).await;
    assert_eq!(counts(&counters), (0, 0, 0));
    assert_eq!(counters.queue_size.get(), 5.0);
    drop(queue);

    let up = check(o.clone(), Script::default(), vec![request(6, 6)], (21, 0, 0)).await;
    let sizes: Vec<usize> = up.got.lock().unwrap().iter().map(Bytes::len).collect();
    assert_eq!(sizes, [1, 2, 3, 4, 5, 6]);
    check(o, Script::default(), vec![], (0, 0, 0)).await;
}

#[tokio::test]
async fn a_full_stored_queue_drops_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let mut o = options();
    o.queue.storage = Some(dir.path().to_owned());
    o.queue.max_storage_size = wattpipe_pipeline::units::ConfigSize(10);
    let script = Script { gate: Some(Semaphore::new(0)), ..Script::default() };
    // The first is on its way when the others come; 4 + 5 do not fit beside it.
    let counters = Counters::default();
    let script = Arc::new(script);
    let mut queue = Queue::start(o, script.clone(), counters.clone()).await.unwrap();
    queue.push(vec![request(3, 1)], false).await;
    while script.asked.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    queue.push(vec![request(4, 2), request(5, 3)], false).await;
    script.gate.as_ref().unwrap().add_permits(2);
    queue.shutdown(PATIENCE).await;
    assert_eq!(counts(&counters), (8, 0, 4));
}

#[tokio::test]
async fn a_broken_store_is_set_aside_and_one_in_use_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut o = options();
    o.queue.storage = Some(dir.path().to_owned());
    std::fs::write(dir.path().join("otlp_grpc_test.redb"), "garbage").unwrap();
    let script = Arc::new(Script::default());
    let mut first = Queue::start(o.clone(), script.clone(), Counters::default()).await.unwrap();
    assert!(dir.path().join("otlp_grpc_test.broken.redb").exists());
    let second = Queue::start(o, script, Counters::default()).await;
    assert!(second.err().unwrap().to_string().contains("another process"));
    first.shutdown(PATIENCE).await;
}
