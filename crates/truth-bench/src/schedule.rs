//! The simulated scheduler: who wakes when, on which CPU, and for how long.

use wattpipe_pipeline::{
    batch::{ProcessEventKind, Switch},
    units::{Nanos, Tgid},
};

use crate::sim::{Event, MS, Pattern, Polled, QUANTUM, Sim};

impl Sim {
    /// A thread becomes runnable: on the CPU of its set with the least to do, an idle core first.
    pub(crate) fn wake(&mut self, thread: usize) {
        let on = self.burst(thread);
        if on == 0 {
            return;
        }
        if matches!(self.threads[thread].pattern, Pattern::Forks { .. }) {
            let workload = self.threads[thread].workload;
            self.threads[thread].pid = self.fork(workload);
        }
        self.run_on_best(thread, on);
        for follower in self.threads[thread].followers.clone() {
            self.run_on_best(follower, on);
        }
    }

    fn run_on_best(&mut self, thread: usize, on: u64) {
        if self.threads[thread].left > 0 {
            return;
        }
        self.threads[thread].left = on;
        let load = |cpu: usize| {
            let state = &self.cpus[cpu];
            let own = state.queue.len() + usize::from(state.running.is_some());
            let half = self.machine.sockets * self.machine.cores;
            let sibling = self.machine.threads > 1
                && self.cpus[(cpu + half) % self.cpus.len()].running.is_some();
            own * 2 + usize::from(sibling)
        };
        let spread = self.rng.bits() as usize;
        let set = &self.threads[thread].cpus;
        let best = (0..set.len()).map(|i| set[(i + spread) % set.len()]).min_by_key(|c| load(*c));
        let Some(cpu) = best else { return };
        self.cpus[cpu].queue.push_back(thread);
        if self.cpus[cpu].running.is_none() {
            self.next(cpu);
        }
    }

    /// How long a thread runs now that it wakes; 0 where it does not yet.
    fn burst(&mut self, thread: usize) -> u64 {
        let seconds = self.now as f64 * 1e-9;
        let ms = match self.threads[thread].pattern.clone() {
            Pattern::Always | Pattern::With(_) => 1e12,
            Pattern::Bursts { on, .. } | Pattern::Tide { on, .. } => self.rng.exponential(on),
            Pattern::Forks { on, .. } => on * self.rng.range(0.8, 1.2),
            Pattern::Phases { half, odd } => {
                let phase = (seconds / half) as u64;
                let end = (phase + 1) as f64 * half;
                if (phase % 2 == 1) != odd {
                    self.schedule((end * 1e9) as u64 + 1, Event::Wake(thread));
                    return 0;
                }
                (end - seconds) * 1e3
            }
        };
        ((ms * MS as f64) as u64).max(20_000)
    }

    /// How long it sleeps after a burst.
    fn sleep(&mut self, thread: usize) -> Option<u64> {
        let seconds = self.now as f64 * 1e-9;
        let ms = match self.threads[thread].pattern.clone() {
            Pattern::Always => 0.0,
            Pattern::With(_) => return None,
            Pattern::Bursts { off, .. } | Pattern::Forks { off, .. } => self.rng.exponential(off),
            Pattern::Tide { off, off_peak, period, .. } => {
                let height = 0.5 - 0.5 * (std::f64::consts::TAU * seconds / period).cos();
                self.rng.exponential(off * (off_peak / off).powf(height))
            }
            Pattern::Phases { .. } => 0.1,
        };
        Some((ms * MS as f64) as u64 + 10_000)
    }

    /// The running thread's quantum or burst is over.
    pub(crate) fn leave(&mut self, cpu: usize) {
        let Some(thread) = self.credit(cpu) else { return };
        if self.threads[thread].left == 0 {
            if let Some(sleep) = self.sleep(thread) {
                self.schedule(self.now + sleep, Event::Wake(thread));
            }
            let dies = matches!(self.threads[thread].pattern, Pattern::Forks { .. });
            if dies {
                let pid = self.threads[thread].pid;
                self.life(pid, self.threads[thread].workload, ProcessEventKind::Exit);
                self.alive.remove(&pid);
            }
        } else {
            self.cpus[cpu].queue.push_back(thread);
        }
        let before = self.threads[thread].pid;
        self.cpus[cpu].running = None;
        self.take(cpu, before);
    }

    /// Books the running thread's time up to now.
    fn credit(&mut self, cpu: usize) -> Option<usize> {
        let thread = self.cpus[cpu].running?;
        let ran = self.now - self.cpus[cpu].since;
        self.cpus[cpu].since = self.now;
        self.threads[thread].left = self.threads[thread].left.saturating_sub(ran);
        if let Some((_, ns)) = self.alive.get_mut(&self.threads[thread].pid) {
            *ns += ran;
        }
        Some(thread)
    }

    /// CPU time of living processes up to now, as `/proc` shows it.
    pub fn poll(&mut self) -> Polled {
        for cpu in 0..self.cpus.len() {
            self.credit(cpu);
        }
        self.alive.clone()
    }

    fn next(&mut self, cpu: usize) {
        self.take(cpu, 0);
    }

    fn take(&mut self, cpu: usize, prev: u32) {
        let next = self.cpus[cpu].queue.pop_front();
        let state = &mut self.cpus[cpu];
        state.running = next;
        state.since = self.now;
        state.generation += 1;
        let generation = state.generation;
        let cycles = state.cycles as u64;
        let pid = next.map_or(0, |t| self.threads[t].pid);
        let (prev, next_pid) = (Tgid(prev), Tgid(pid));
        if prev != next_pid {
            self.entries[cpu].push(Switch { ts: Nanos(self.now), cycles, prev, next: next_pid });
        }
        self.stale[self.machine.place(cpu).0] = true;
        if let Some(thread) = next {
            let left = self.threads[thread].left.max(1);
            // A lone thread is not interrupted, but its time must be looked at now and then.
            let stretch = left.min(QUANTUM);
            self.schedule(self.now + stretch, Event::Leave { cpu, generation });
        }
    }
}
