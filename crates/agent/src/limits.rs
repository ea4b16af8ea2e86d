//! What the agent allows itself: `service::cpu_limit` and `service::memory_limit`, looked at with
//! each window and at no other time.

use std::{
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use tracing::{info, warn};
use wattpipe_pipeline::{
    batch::Window,
    runner::{Governor, Limits},
    source::Pace,
    telemetry::{Gauge, Telemetry},
};

use crate::config::model::Service;

/// CPU use is judged over at least so long.
const CPU_SPAN: Duration = Duration::from_secs(5);
/// Windows grow to at most so many times their length.
const MAX_PACE: u32 = 64;
/// From this part of the memory limit on, windows may not queue up.
const REFUSE_AT: f64 = 0.80;
/// From this part on, rows are folded.
const SHED_AT: f64 = 0.90;
/// Rows that a window keeps then, and above the limit itself.
const SHED_ROWS: [usize; 2] = [256, 32];

/// The governor of this process.
pub(crate) struct SelfLimits {
    pace: Pace,
    memory_limit: AtomicU64,
    state: Mutex<State>,
    factor: Gauge,
}

struct State {
    cpu_limit: Option<f64>,
    since: Instant,
    cpu: Duration,
    level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Free,
    Refuse,
    Shed,
    ShedHard,
}

impl SelfLimits {
    pub(crate) fn new(service: &Service, pace: Pace, telemetry: &Telemetry) -> Arc<Self> {
        let limits = Self {
            pace,
            memory_limit: AtomicU64::new(0),
            state: Mutex::new(State {
                cpu_limit: None,
                since: Instant::now(),
                cpu: cpu_time(),
                level: Level::Free,
            }),
            factor: telemetry.gauge(
                "wattpipe_window_factor",
                "By how much windows are longer than configured, because of service::cpu_limit.",
                &[],
            ),
        };
        limits.factor.set(1.0);
        limits.configure(service);
        Arc::new(limits)
    }

    /// New limits, from now on.
    pub(crate) fn configure(&self, service: &Service) {
        self.memory_limit.store(service.memory_limit.map_or(0, |l| l.bytes()), Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.cpu_limit = service.cpu_limit.map(|l| l.0);
        if state.cpu_limit.is_none() {
            self.pace.set(1);
            self.factor.set(1.0);
        }
    }

    fn judge_cpu(&self, state: &mut State) {
        let Some(limit) = state.cpu_limit else { return };
        let elapsed = state.since.elapsed();
        if elapsed < CPU_SPAN {
            return;
        }
        let cpu = cpu_time();
        let used = cpu.saturating_sub(state.cpu).as_secs_f64() / elapsed.as_secs_f64();
        (state.since, state.cpu) = (Instant::now(), cpu);
        let now = self.pace.factor();
        let next = next_pace(now, used, limit);
        if next == now {
            return;
        }
        self.pace.set(next);
        self.factor.set(f64::from(next));
        let (used, limit) = (used * 100.0, limit * 100.0);
        if next > now {
            warn!(
                "the agent uses {used:.1} % of a CPU, service::cpu_limit is {limit:.1} %: windows are now {next} times as long"
            );
        } else {
            info!(
                "the agent uses {used:.1} % of a CPU, within service::cpu_limit: windows are now {next} times as long"
            );
        }
    }

    fn judge_memory(&self, state: &mut State) -> Level {
        let limit = self.memory_limit.load(Relaxed);
        if limit == 0 {
            return Level::Free;
        }
        let Some(rss) = resident_bytes() else { return Level::Free };
        let level = memory_level(rss, limit);
        if level > state.level {
            let (rss, limit) = (rss >> 20, limit >> 20);
            let what = match level {
                Level::Refuse => "windows no longer queue up for slow exporters",
                _ => "the smallest rows are folded into one",
            };
            warn!(
                "resident memory {rss} MiB nears service::memory_limit {limit} MiB: {what}; what is dropped is counted"
            );
        }
        state.level = level;
        level
    }
}

impl Governor for SelfLimits {
    fn window(&self, _: &Window) -> Limits {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.judge_cpu(&mut state);
        let level = self.judge_memory(&mut state);
        Limits {
            max_waiting: (level >= Level::Refuse).then_some(1),
            max_rows: match level {
                Level::Shed => Some(SHED_ROWS[0]),
                Level::ShedHard => Some(SHED_ROWS[1]),
                _ => None,
            },
        }
    }
}

fn next_pace(now: u32, used: f64, limit: f64) -> u32 {
    if used > limit {
        (now * 2).min(MAX_PACE)
    } else if used < limit * 0.4 {
        (now / 2).max(1)
    } else {
        now
    }
}

fn memory_level(rss: u64, limit: u64) -> Level {
    match rss as f64 / limit as f64 {
        part if part >= 1.0 => Level::ShedHard,
        part if part >= SHED_AT => Level::Shed,
        part if part >= REFUSE_AT => Level::Refuse,
        _ => Level::Free,
    }
}

/// CPU time of the whole process so far.
pub(crate) fn cpu_time() -> Duration {
    cpu_time_of(UsageWho::RUSAGE_SELF)
}

/// CPU time by the kernel's account, user and system.
pub(crate) fn cpu_time_of(who: UsageWho) -> Duration {
    let Ok(usage) = getrusage(who) else { return Duration::ZERO };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|t| {
            let micros = u64::try_from(t.tv_usec()).unwrap_or(0);
            Duration::from_secs(u64::try_from(t.tv_sec()).unwrap_or(0))
                + Duration::from_micros(micros)
        })
        .sum()
}

/// Resident memory of the process in bytes. The probe's ring counts twice in it, since it is
/// mapped twice.
pub(crate) fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten()?;
    Some(pages * u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_above_the_limit_and_halve_well_below_it() {
        for (now, used, limit, next) in [
            (1, 0.03, 0.02, 2),
            (2, 0.03, 0.02, 4),
            (64, 0.03, 0.02, 64),
            (4, 0.015, 0.02, 4),
            (4, 0.005, 0.02, 2),
            (1, 0.001, 0.02, 1),
        ] {
            assert_eq!(next_pace(now, used, limit), next, "{now} {used} {limit}");
        }
    }

    #[test]
    fn memory_is_refused_before_it_is_shed() {
        for (rss, level) in [
            (79, Level::Free),
            (80, Level::Refuse),
            (90, Level::Shed),
            (100, Level::ShedHard),
            (500, Level::ShedHard),
        ] {
            assert_eq!(memory_level(rss, 100), level, "{rss}");
        }
    }

    #[test]
    fn own_use_is_readable() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(cpu_time() > Duration::ZERO);
    }
}
