//! Which containers and pods are being asked for. Bounded; asked again at growing distances while
//! they may still become known, counted as unresolved after a grace period, then left alone for a
//! while.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Names being asked for, or known to be unknown, at most.
const MAX: usize = 4096;
/// First distance between questions; doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
/// For this long a new one may still become known.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// A name that stayed unknown may be asked for again after this.
const NEGATIVE: Duration = Duration::from_secs(60);

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It will be asked again.
    Pending,
    /// The grace period is over: count it.
    Unresolved,
}

/// Names of one kind.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    names: HashMap<Arc<str>, Lookup>,
}

#[derive(Debug)]
struct Lookup {
    since: Instant,
    pause: Duration,
    next: Instant,
    given_up: bool,
}

impl Lookups {
    /// Adds a name; `false` where it is there already (asked for, or unknown a moment ago) or
    /// there are too many.
    pub(crate) fn add(&mut self, name: &Arc<str>, now: Instant) -> bool {
        if let Some(lookup) = self.names.get(name)
            && !(lookup.given_up && now >= lookup.next)
        {
            return false;
        }
        if self.names.len() >= MAX && !self.names.contains_key(name) {
            self.names.retain(|_, l| !(l.given_up && now >= l.next));
            if self.names.len() >= MAX {
                return false;
            }
        }
        let lookup = Lookup { since: now, pause: PAUSE, next: now, given_up: false };
        self.names.insert(name.clone(), lookup);
        true
    }

    /// Takes out the names that are due, to be given back with [`Self::known`] or
    /// [`Self::unknown`].
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let due = self.names.iter_mut().filter(|(_, l)| !l.given_up && now >= l.next);
        due.map(|(name, lookup)| {
            // Not twice while it is being asked.
            lookup.next = now + GRACE;
            name.clone()
        })
        .collect()
    }

    /// When the next name is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.names.values().filter(|l| !l.given_up).map(|l| l.next).min()
    }

    /// It is known now.
    pub(crate) fn known(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Nobody knows it yet.
    pub(crate) fn unknown(&mut self, name: &str, now: Instant) -> Verdict {
        let Some(lookup) = self.names.get_mut(name) else { return Verdict::Pending };
        if now.duration_since(lookup.since) >= GRACE {
            lookup.given_up = true;
            lookup.next = now + NEGATIVE;
            return Verdict::Unresolved;
        }
        lookup.next = now + lookup.pause;
        lookup.pause *= 2;
        Verdict::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_again_until_the_grace_is_over() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let name: Arc<str> = "a".into();
        let mut lookups = Lookups::default();
        assert!(lookups.add(&name, at(0)));
        assert!(!lookups.add(&name, at(0)));
        assert_eq!(lookups.due(at(0)), std::slice::from_ref(&name));
        assert!(lookups.due(at(1)).is_empty(), "not twice at once");
        assert_eq!(lookups.unknown("a", at(10)), Verdict::Pending);
        assert_eq!(lookups.next(), Some(at(110)));
        assert_eq!(lookups.due(at(110)).len(), 1);
        assert_eq!(lookups.unknown("a", at(120)), Verdict::Pending);
        assert_eq!(lookups.next(), Some(at(320)));
        assert_eq!(lookups.unknown("a", at(10_000)), Verdict::Unresolved);
        assert_eq!(lookups.next(), None);
        assert!(!lookups.add(&name, at(11_000)), "unknown a moment ago");
        assert!(lookups.add(&name, at(80_000)), "which expires");
        lookups.known("a");
        assert!(lookups.names.is_empty());
    }

    #[test]
    fn bounded() {
        let now = Instant::now();
        let mut lookups = Lookups::default();
        for i in 0..MAX {
            assert!(lookups.add(&i.to_string().into(), now));
        }
        assert!(!lookups.add(&"more".into(), now));
        for i in 0..MAX {
            lookups.unknown(&i.to_string(), now + GRACE);
        }
        assert!(lookups.add(&"more".into(), now + GRACE + NEGATIVE));
        assert_eq!(lookups.names.len(), 1);
    }
}
