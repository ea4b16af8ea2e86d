//! One thread per meter, so that a read that blocks (a slow controller behind a sensor, a stuck
//! firmware call) holds up nothing but its own zones. Each zone's value is told as soon as it is
//! read: those before the one that blocks are not lost.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    thread,
    time::{Duration, Instant},
};

use tracing::warn;
use wattpipe_pipeline::units::Nanos;

use super::Meter;

/// The most that one wait for an answer counts.
const STEP: Duration = Duration::from_millis(10);

/// What a meter tells.
enum Answer {
    /// A zone's microjoules at the instant it was asked for.
    Reading(Nanos, usize, u64),
    /// That was all.
    Done,
}

/// A meter on its thread. The thread ends when this is dropped, as soon as its read returns.
pub(super) struct Worker {
    ask: SyncSender<Nanos>,
    answers: Receiver<Answer>,
    /// Index of each of the meter's zones among all zones; `None` where another meter reads it.
    zones: Vec<Option<usize>>,
    /// It was asked and has not answered in full.
    busy: bool,
    late_before: bool,
}

impl Worker {
    pub(super) fn new(mut meter: Box<dyn Meter>, zones: Vec<Option<usize>>) -> Self {
        let (ask, asked) = mpsc::sync_channel::<Nanos>(1);
        let (tell, answers) = mpsc::sync_channel::<Answer>(zones.len() + 1);
        let spawned = thread::Builder::new().name("meter".into()).spawn(move || {
            while let Ok(ts) = asked.recv() {
                let mut gone = false;
                meter.read(ts, &mut |zone, uj| {
                    gone |= tell.send(Answer::Reading(ts, zone, uj)).is_err();
                });
                if gone || tell.send(Answer::Done).is_err() {
                    return;
                }
            }
        });
        if let Err(e) = spawned {
            warn!("cannot start a meter's thread: {e}");
        }
        Self { ask, answers, zones, busy: false, late_before: false }
    }

    /// Asks for a reading; false where the one before is still under way.
    pub(super) fn ask(&mut self, ts: Nanos) -> bool {
        while self.busy {
            // Late answers belong to an instant that has passed.
            match self.answers.try_recv() {
                Ok(Answer::Done) => self.busy = false,
                Ok(Answer::Reading(..)) => {}
                Err(_) => return false,
            }
        }
        match self.ask.try_send(ts) {
            Ok(()) => {
                self.busy = true;
                true
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Takes the answer for `ts`, waiting for as long as `patience`, which is what it leaves of it. A
    /// [`STEP`] counts as one however long it took: where this thread does not get its CPU, be it for
    /// a CPU limit, the meter's thread does not get one either.
    pub(super) fn collect(
        &mut self,
        ts: Nanos,
        patience: &mut Duration,
        out: &mut Vec<(usize, u64)>,
    ) {
        while self.busy {
            let begun = Instant::now();
            let answer = self.answers.recv_timeout(STEP.min(*patience));
            let over = patience.is_zero();
            *patience = patience.saturating_sub(begun.elapsed().min(STEP));
            match answer {
                Ok(Answer::Reading(of, zone, uj)) => {
                    let place = self.zones.get(zone).copied().flatten();
                    out.extend(place.filter(|_| of == ts).map(|at| (at, uj)));
                }
                Ok(Answer::Done) => {
                    self.busy = false;
                    self.late_before = false;
                }
                Err(RecvTimeoutError::Timeout) if !over => {}
                Err(_) => {
                    if !std::mem::replace(&mut self.late_before, true) {
                        warn!("a meter did not answer in time: zones of it have no reading");
                    }
                    return;
                }
            }
        }
    }
}
