//! How long to wait before a failed component is started again.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);
/// One that ran this long has recovered.
const RECOVERED: Duration = Duration::from_secs(120);

/// Doubling waits, forgotten once a component has run well for a while.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// Notes a failure at `now` and gives the wait.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let recovered =
            self.last.is_none_or(|last| now.saturating_duration_since(last) > RECOVERED + MOST);
        self.failures = if recovered { 1 } else { self.failures + 1 };
        self.last = Some(now);
        FIRST.saturating_mul(1 << (self.failures - 1).min(10)).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_a_bound_and_start_over() {
        let mut backoff = Backoff::default();
        let t = Instant::now();
        let waits: Vec<_> = (0..8).map(|_| backoff.failed(t).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.failed(t + Duration::from_secs(600)).as_secs(), 1);
    }
}
