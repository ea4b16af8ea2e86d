//! What the log says of losses and of a receiver's warnings, now and then. Counting is the caller's;
//! the lines' points add up to what was counted.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tracing::warn;
use wattpipe_pipeline::news::{News, Tally};

/// A warning that repeats itself is told at most this often.
const WARNINGS_EVERY: Duration = Duration::from_secs(600);
/// More of what a receiver says is not told.
const MAX_CHARS: usize = 300;

/// The news of one exporter.
#[derive(Default)]
pub(super) struct Losses {
    id: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    losses: Tally,
    warning: String,
    warned: Option<Instant>,
}

impl Losses {
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), state: Mutex::default() }
    }

    /// Points of a request are lost.
    pub(super) fn lost(&self, points: u64, reason: &str) {
        let news = self.lock().losses.add(points, reason);
        self.tell(news);
    }

    /// The receiver took a request and has something to say.
    pub(super) fn warning(&self, message: &str) {
        let mut state = self.lock();
        let old = state.warned.is_some_and(|at| at.elapsed() < WARNINGS_EVERY);
        if !(old && state.warning == message) {
            message.clone_into(&mut state.warning);
            state.warned = Some(Instant::now());
            warn!(exporter = %self.id, "the receiver warns: {message}");
        }
    }

    /// Tells what was held back.
    pub(super) fn flush(&self) {
        let news = self.lock().losses.rest();
        self.tell(news);
    }

    fn tell(&self, news: Option<News>) {
        let Some(News { amount: points, times: requests, reason }) = news else { return };
        match requests {
            1 => warn!(exporter = %self.id, points, "data is lost: {reason}"),
            _ => {
                warn!(exporter = %self.id, points, requests, "data is lost, the last of it: {reason}");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Losses {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Words of a receiver as one line of a log: they could look like lines of it, and are as long as
/// the receiver likes.
pub(super) fn one_line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.trim().chars().take(MAX_CHARS).map(clean).collect();
    if text.trim().chars().nth(MAX_CHARS).is_some() {
        line.push_str(" ...");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::Arc,
    };

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Log {
        type Writer = Self;
        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn logged(run: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let subscriber =
            tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, run);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_thousand_losses_are_two_lines_that_add_up() {
        let lines = logged(|| {
            let losses = Losses::new("x");
            (1..=1000).for_each(|n| losses.lost(n, "no"));
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("data is lost: no exporter=x points=1"), "{lines:?}");
        assert!(lines[1].contains("points=500499 requests=999"), "{lines:?}");
    }

    #[test]
    fn a_warning_is_told_when_it_changes() {
        let lines = logged(|| {
            let losses = Losses::new("x");
            ["a", "a", "a", "b", "b"].iter().for_each(|w| losses.warning(w));
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn a_receiver_writes_no_lines_of_the_log() {
        assert_eq!(one_line("no\n2026 ERROR \u{1b}[2Jgone\r\n"), "no 2026 ERROR  [2Jgone");
        assert_eq!(one_line(&"é".repeat(5_000_000)).chars().count(), MAX_CHARS + 4);
    }
}
