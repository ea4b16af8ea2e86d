//! Least privilege. Capabilities belong to threads, so the order matters: the main thread gives
//! up its effective ones before any other thread is made; all threads inherit that. A thread that
//! needs them raises what is permitted around its call ([`wattpipe_pipeline::privileges`]) and,
//! when it lowers them again, keeps permitted only what `service::security` says.

use std::sync::{Arc, Mutex, PoisonError};

use caps::{CapSet, Capability, CapsHashSet};
use tracing::{debug, info, warn};
use wattpipe_pipeline::privileges::{Privileges, Raise};

use crate::config::model::{KeepCapabilities, Security};

/// What reload, restart, hotplug and window flush may need.
const NEEDED_LATER: [Capability; 5] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_SYS_RESOURCE,
];

/// The process's privileges.
#[derive(Clone, Default)]
pub(crate) struct Held(Option<Arc<Caps>>);

struct Caps {
    keep: Mutex<CapsHashSet>,
}

impl Caps {
    fn keep(&self) -> CapsHashSet {
        self.keep.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Raise for Caps {
    fn raise(&self) {
        if let Err(e) = caps::read(None, CapSet::Permitted)
            .and_then(|permitted| caps::set(None, CapSet::Effective, &permitted))
        {
            debug!("cannot raise capabilities: {e}");
        }
    }

    fn lower(&self) {
        let keep = self.keep();
        if let Err(e) = caps::clear(None, CapSet::Effective)
            .and_then(|()| caps::read(None, CapSet::Permitted))
            .and_then(|permitted| {
                let kept = permitted.intersection(&keep).copied().collect();
                caps::set(None, CapSet::Permitted, &kept)
            })
        {
            warn!("cannot lower capabilities: {e}");
        }
    }
}

impl Held {
    /// Takes stock and gives up what is effective. To be called before any thread is made.
    pub(crate) fn prepare(security: &Security) -> Self {
        // Whoever adds privileges by executing a set-uid file gets none.
        if let Err(e) = nix::sys::prctl::set_no_new_privs() {
            warn!("cannot set no_new_privs: {e}");
        }
        let permitted = match caps::read(None, CapSet::Permitted) {
            Ok(permitted) if !permitted.is_empty() => permitted,
            Ok(_) => return Self(None),
            Err(e) => {
                warn!("cannot read capabilities: {e}");
                return Self(None);
            }
        };
        let keep = keep_set(security, &permitted);
        for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective] {
            if let Err(e) = caps::clear(None, set) {
                warn!("cannot clear {set:?} capabilities: {e}");
            }
        }
        Self(Some(Arc::new(Caps { keep: Mutex::new(keep) })))
    }

    /// For the pipelines.
    pub(crate) fn for_pipelines(&self) -> Privileges {
        match &self.0 {
            Some(caps) => Privileges::new(caps.clone()),
            None => Privileges::default(),
        }
    }

    /// For a thread that never needs any.
    pub(crate) fn lower(&self) {
        if let Some(caps) = &self.0 {
            caps.lower();
        }
    }

    /// Everything has started: the calling (main) thread keeps only what is to be kept.
    pub(crate) fn seal(&self) {
        let Some(caps) = &self.0 else { return };
        caps.lower();
        let mut kept: Vec<String> = caps.keep().iter().map(ToString::to_string).collect();
        kept.sort();
        match kept.is_empty() {
            true => info!("no capability is effective or kept"),
            false => {
                info!(kept = %kept.join(","), "no capability is effective; some are kept for reload and restart")
            }
        }
    }

    /// A reload may give up more, never get back.
    pub(crate) fn narrow(&self, security: &Security) {
        let Some(caps) = &self.0 else { return };
        let wanted = keep_set(security, &caps.keep());
        *caps.keep.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        caps.lower();
    }

    /// Whether nothing is left that a new privileged source could use.
    pub(crate) fn all_given_up(&self) -> bool {
        self.0.as_ref().is_some_and(|caps| caps.keep().is_empty())
    }
}

fn keep_set(security: &Security, permitted: &CapsHashSet) -> CapsHashSet {
    let wanted: CapsHashSet = match &security.keep_capabilities {
        KeepCapabilities::Auto(_) => NEEDED_LATER.into_iter().collect(),
        KeepCapabilities::List(names) => {
            names.iter().filter_map(|n| caps::to_canonical(n).parse().ok()).collect()
        }
    };
    permitted.intersection(&wanted).copied().collect()
}
