//! Between a source and the chain: a new source's batches wait until the chain knows it, and one
//! that was given up gets no batch through any more.

use std::sync::{Condvar, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::source::Closed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Open,
    Shut,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<(State, bool)>,
    opened: Condvar,
    opened_async: Notify,
    arrived: Notify,
}

impl Gate {
    pub(crate) fn open_from_start() -> Self {
        Self::new(State::Open)
    }

    pub(super) fn held() -> Self {
        Self::new(State::Held)
    }

    fn new(state: State) -> Self {
        Self {
            state: Mutex::new((state, false)),
            opened: Condvar::new(),
            opened_async: Notify::new(),
            arrived: Notify::new(),
        }
    }

    pub(super) fn open(&self) {
        self.set(State::Open);
    }

    pub(super) fn shut(&self) {
        self.set(State::Shut);
    }

    /// Shuts it where it was still held: what never got in need not be waited for.
    pub(super) fn turn_away(&self) {
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner).0 == State::Held;
        if held {
            self.shut();
        }
    }

    fn set(&self, state: State) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = state;
        self.opened.notify_all();
        self.opened_async.notify_waiters();
    }

    /// Notes that a batch has come here.
    fn arrive(&self) -> State {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut state.1, true) {
            self.arrived.notify_one();
        }
        state.0
    }

    /// Whether a batch has come here.
    pub(super) fn has_arrived(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Waits until one has.
    pub(super) async fn wait_arrived(&self) {
        while !self.has_arrived() {
            self.arrived.notified().await;
        }
    }

    pub(crate) async fn pass(&self) -> Result<(), Closed> {
        loop {
            let opened = self.opened_async.notified();
            match self.arrive() {
                State::Open => return Ok(()),
                State::Shut => return Err(Closed),
                State::Held => opened.await,
            }
        }
    }

    pub(crate) fn pass_blocking(&self) -> Result<(), Closed> {
        match self.arrive() {
            State::Open => return Ok(()),
            State::Shut => return Err(Closed),
            State::Held => {}
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let held = |s: &mut (State, bool)| s.0 == State::Held;
        let state = self.opened.wait_while(state, held).unwrap_or_else(PoisonError::into_inner);
        if state.0 == State::Open { Ok(()) } else { Err(Closed) }
    }
}
