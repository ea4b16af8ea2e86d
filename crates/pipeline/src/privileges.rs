//! Privileges that are held ready and raised only for the call that needs them.
//!
//! Capabilities belong to a thread. The agent's threads run without effective ones; what needs
//! them (loading a probe, opening a counter) holds a [`Raised`] meanwhile. How that is done on
//! this system is the agent's matter: elsewhere, and in tests, nothing happens.

use std::{cell::Cell, fmt, marker::PhantomData, sync::Arc};

/// How to raise and lower privileges of the calling thread.
pub trait Raise: Send + Sync {
    /// Makes what is permitted effective.
    fn raise(&self);
    /// Makes nothing effective.
    fn lower(&self);
}

/// The privileges of this process; clones share them.
#[derive(Clone, Default)]
pub struct Privileges(Option<Arc<dyn Raise>>);

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static LOWERED: Cell<bool> = const { Cell::new(false) };
}

impl Privileges {
    /// Raised and lowered by `raise`.
    pub fn new(raise: Arc<dyn Raise>) -> Self {
        Self(Some(raise))
    }

    /// Raises them on this thread until the guard is dropped. Threads that are started meanwhile
    /// inherit them; they lose them with their first batch ([`Self::lower_inherited`]).
    #[must_use = "privileges last as long as the guard"]
    pub fn raise(&self) -> Raised<'_> {
        if let Some(raise) = &self.0 {
            if DEPTH.get() == 0 {
                raise.raise();
            }
            DEPTH.set(DEPTH.get() + 1);
        }
        Raised { privileges: self, thread: PhantomData }
    }

    /// Lowers what this thread inherited from the one that started it. Cheap after the first call.
    pub fn lower_inherited(&self) {
        if let Some(raise) = &self.0
            && DEPTH.get() == 0
            && !LOWERED.replace(true)
        {
            raise.lower();
        }
    }
}

impl fmt::Debug for Privileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Privileges").field(&self.0.is_some()).finish()
    }
}

/// Raised privileges of one thread.
#[derive(Debug)]
pub struct Raised<'a> {
    privileges: &'a Privileges,
    /// It must be dropped on the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        if let Some(raise) = &self.privileges.0 {
            DEPTH.set(DEPTH.get().saturating_sub(1));
            if DEPTH.get() == 0 {
                raise.lower();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Log(Mutex<Vec<&'static str>>);

    impl Raise for Log {
        fn raise(&self) {
            self.0.lock().unwrap().push("raise");
        }
        fn lower(&self) {
            self.0.lock().unwrap().push("lower");
        }
    }

    #[test]
    fn nested_raises_count_once_and_inherited_ones_end_once() {
        let log = Arc::new(Log::default());
        let privileges = Privileges::new(log.clone());
        let outer = privileges.raise();
        drop(privileges.raise());
        privileges.lower_inherited();
        assert_eq!(*log.0.lock().unwrap(), ["raise"], "still raised while a guard lives");
        drop(outer);
        privileges.lower_inherited();
        privileges.lower_inherited();
        assert_eq!(*log.0.lock().unwrap(), ["raise", "lower", "lower"]);
    }
}
