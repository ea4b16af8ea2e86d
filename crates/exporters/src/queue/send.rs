//! Delivering one request: attempts with a timeout each, growing waits between them, halves where
//! it is too large.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tracing::warn;

use super::{
    Closes, NOT_DELIVERED, Outcome, QueueOptions, Request, RetryConfig, Transport,
    losses::{Losses, one_line},
    out_of_time, report_recovery,
};

/// Wait between attempts while the agent shuts down, where the receiver asks for none.
const CLOSING_WAIT: Duration = Duration::from_millis(250);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It is done; each of its points is in one of these.
    Counted {
        /// Delivered points.
        sent: u64,
        /// Lost points.
        failed: u64,
    },
    /// The agent ends and it is not delivered: whoever holds it decides.
    GivenBack,
}

/// Delivers requests.
pub(super) struct Courier {
    pub(super) id: String,
    transport: Arc<dyn Transport>,
    retry: RetryConfig,
    timeout: Duration,
    stored: bool,
    closes: Closes,
    pub(super) losses: Losses,
    failing: AtomicBool,
}

impl Courier {
    pub(super) fn new(
        options: &QueueOptions,
        transport: Arc<dyn Transport>,
        closes: Closes,
    ) -> Self {
        Self {
            id: options.id.clone(),
            transport,
            retry: options.retry.clone(),
            timeout: match options.timeout {
                Duration::ZERO => Duration::MAX,
                limit => limit,
            },
            stored: options.queue.storage.is_some(),
            closes,
            losses: Losses::new(&options.id),
            failing: AtomicBool::new(false),
        }
    }

    /// Delivers `request`, whole or in parts.
    pub(super) async fn deliver(&self, request: Request) -> Done {
        let mut waiting = vec![request];
        let (mut sent, mut failed) = (0, 0);
        while let Some(request) = waiting.pop() {
            let points = request.points;
            match self.attempt_until_done(&request).await {
                Attempt::Delivered { rejected } => {
                    sent += points - rejected.min(points);
                    failed += rejected.min(points);
                }
                Attempt::Lost => failed += points,
                Attempt::TooLarge(reason) => match self.transport.split(&request) {
                    Some(halves) => waiting.extend(halves),
                    None => {
                        failed += points;
                        let reason = format!("too large for the receiver: {reason}");
                        self.losses.lost(points, &reason);
                    }
                },
                // A stored one is sent again, whole: at least once.
                Attempt::Closing if self.stored || (sent + failed == 0 && waiting.is_empty()) => {
                    return Done::GivenBack;
                }
                Attempt::Closing => {
                    let rest = points + waiting.drain(..).map(|r| r.points).sum::<u64>();
                    failed += rest;
                    self.losses.lost(rest, NOT_DELIVERED);
                }
            }
        }
        Done::Counted { sent, failed }
    }

    async fn attempt_until_done(&self, request: &Request) -> Attempt {
        let began = Instant::now();
        let mut interval = self.retry.initial_interval.0;
        loop {
            let attempt = self.transport.send(request.body.clone());
            let outcome = tokio::select! {
                biased;
                () = out_of_time(&self.closes) => return Attempt::Closing,
                outcome = tokio::time::timeout(self.timeout, attempt) => outcome,
            };
            let outcome = outcome.unwrap_or_else(|_| Outcome::Retry {
                after: None,
                reason: format!("no answer within {:?} (`timeout`)", self.timeout),
            });
            let (after, reason) = match outcome {
                Outcome::Delivered { rejected, message } => {
                    if self.failing.swap(false, Relaxed) {
                        self.losses.flush();
                        report_recovery(&self.id);
                    }
                    if rejected > 0 {
                        let message = one_line(&message);
                        let reason = format!("the receiver rejected points: {message}");
                        self.losses.lost(rejected.min(request.points), &reason);
                    } else if !message.is_empty() {
                        self.losses.warning(&one_line(&message));
                    }
                    return Attempt::Delivered { rejected };
                }
                Outcome::TooLarge { reason } => return Attempt::TooLarge(one_line(&reason)),
                Outcome::Refused { reason } => {
                    self.losses.lost(request.points, &one_line(&reason));
                    return Attempt::Lost;
                }
                Outcome::Retry { after, reason } => (after, one_line(&reason)),
            };
            if !self.retry.enabled {
                let reason = format!("{reason} (`retry_on_failure` is off)");
                self.losses.lost(request.points, &reason);
                return Attempt::Lost;
            }
            if !self.failing.swap(true, Relaxed) {
                warn!(exporter = %self.id, "cannot deliver: {reason}; it is tried again (`retry_on_failure`)");
            }
            let wait = match (after, self.closing()) {
                (Some(after), _) => after,
                // The waits are short then: those that were to come say nothing of the time that
                // will have passed.
                (None, true) => jitter(&self.retry, interval).min(CLOSING_WAIT),
                (None, false) => jitter(&self.retry, interval),
            };
            interval = longer(&self.retry, interval);
            let (tried, limit) = (began.elapsed(), self.retry.max_elapsed_time.0);
            if !limit.is_zero() && tried + wait > limit {
                self.losses.lost(request.points, &given_up(&reason, tried, limit));
                return Attempt::Lost;
            }
            if !self.wait(wait, after.is_some()).await {
                return Attempt::Closing;
            }
        }
    }

    fn closing(&self) -> bool {
        self.closes.borrow().is_some()
    }

    /// Waits before the next attempt; false where the end of the agent leaves no time for one.
    async fn wait(&self, wait: Duration, asked_for: bool) -> bool {
        let until = Instant::now() + wait;
        let mut closes = self.closes.clone();
        let closing = *closes.borrow_and_update();
        let deadline = match closing {
            Some(deadline) => Some(deadline),
            None => tokio::select! {
                () = tokio::time::sleep_until(until.into()) => return true,
                _ = closes.changed() => *closes.borrow(),
            },
        };
        let now = Instant::now();
        let deadline = deadline.unwrap_or(now);
        let until = if asked_for { until } else { until.min(now + CLOSING_WAIT) };
        if until >= deadline {
            return false;
        }
        tokio::time::sleep_until(until.into()).await;
        true
    }
}

/// The next attempt would come too late; `tried` is the time since the first.
pub(super) fn given_up(reason: &str, tried: Duration, limit: Duration) -> String {
    format!(
        "{reason}; tried for {tried:.1?}, the next attempt would be after {limit:?} (`max_elapsed_time`)"
    )
}

/// The next interval.
pub(super) fn longer(retry: &RetryConfig, interval: Duration) -> Duration {
    interval.mul_f64(retry.multiplier).min(retry.max_interval.0)
}

/// The interval, more or less by the configured part.
pub(super) fn jitter(retry: &RetryConfig, interval: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // The standard library's one source of randomness is enough to spread retries.
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    let factor = 1.0 + retry.randomization_factor * (2.0 * random - 1.0);
    interval.mul_f64(factor.max(0.0))
}

enum Attempt {
    Delivered { rejected: u64 },
    TooLarge(String),
    Lost,
    Closing,
}
