//! What happens again and again, for a log: the first is told at once, then at most every ten seconds
//! with all that came since. A receiver that refuses every request, or a full disk, must not fill a
//! disk with the news. Whatever is told adds up to what happened.

use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);

/// What has happened and is not told yet.
#[derive(Debug, Default)]
pub struct Tally {
    told: Option<Instant>,
    waiting: News,
}

/// What is to be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Σ of the amounts.
    pub amount: u64,
    /// How often it happened.
    pub times: u64,
    /// Why, the last time.
    pub reason: String,
}

impl Tally {
    /// It happened once more. What is to be told now, if anything.
    pub fn add(&mut self, amount: u64, reason: &str) -> Option<News> {
        self.waiting.amount += amount;
        self.waiting.times += 1;
        reason.clone_into(&mut self.waiting.reason);
        self.due()
    }

    /// What is to be told now, if anything.
    pub fn due(&mut self) -> Option<News> {
        if self.told.is_none_or(|at| at.elapsed() >= EVERY) { self.rest() } else { None }
    }

    /// What was held back, if anything.
    pub fn rest(&mut self) -> Option<News> {
        if self.waiting.times == 0 {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_at_once_and_then_the_sum() {
        let news =
            |amount, times, reason: &str| Some(News { amount, times, reason: reason.to_owned() });
        let mut tally = Tally::default();
        assert_eq!((tally.due(), tally.rest()), (None, None));
        assert_eq!(tally.add(5, "a"), news(5, 1, "a"));
        assert_eq!((tally.add(2, "b"), tally.add(3, "c"), tally.due()), (None, None, None));
        assert_eq!(tally.rest(), news(5, 2, "c"));
        assert_eq!(tally.rest(), None);
    }
}
