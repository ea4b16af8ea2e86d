//! Telling components to stop: one trigger, any number of listeners, usable from async code and
//! from plain threads.

use tokio::sync::watch;

/// Stops everything that listens to its [`Shutdown`]s. Dropping it triggers too.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

/// A listener.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// A trigger and its first listener.
pub fn channel() -> (Trigger, Shutdown) {
    let (tx, rx) = watch::channel(false);
    (Trigger(tx), Shutdown(rx))
}

impl Trigger {
    /// Tells all listeners, once and for all.
    pub fn fire(&self) {
        self.0.send_replace(true);
    }

    /// Another listener.
    pub fn listen(&self) -> Shutdown {
        Shutdown(self.0.subscribe())
    }
}

impl Shutdown {
    /// Whether it was triggered (or its trigger is gone).
    pub fn is_triggered(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Waits until it is.
    pub async fn wait(&mut self) {
        // An error means that the trigger is gone, which counts as triggered.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fires_for_all_and_on_drop() {
        let (trigger, mut a) = channel();
        let b = trigger.listen();
        assert!(!a.is_triggered());
        trigger.fire();
        a.wait().await;
        assert!(a.is_triggered() && b.is_triggered());

        let (trigger, mut a) = channel();
        drop(trigger);
        a.wait().await;
        assert!(a.is_triggered());
    }
}
