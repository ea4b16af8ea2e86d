//! What the power model needs beyond time: how long any CPU of a package was busy, and how long a
//! process shared its core with a busy sibling. Kept only where meters are read.

use wattpipe_pipeline::units::{Cpu, Nanos};

use super::{accounts::Accounts, slots::SlotId};

/// Bits a package's busy map may have before its resolution is halved.
const MAX_BITS: usize = 1 << 21;
/// Resolution at first: 1.024 µs.
const SHIFT: u32 = 10;
/// Busy runs a CPU may hold for its sibling before they are counted as unshared.
const MAX_RUNS: usize = 1 << 20;

/// A run of a process on a CPU with siblings.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: Nanos,
    to: Nanos,
    slot: SlotId,
    slice: u32,
}

/// Time as bits: set where something was busy.
#[derive(Debug, Default)]
struct Map {
    words: Vec<u64>,
    shift: u32,
}

impl Map {
    /// Marks `[from, to)`, both relative to the window's start.
    fn mark(&mut self, from: u64, to: u64) {
        while (to >> self.shift) as usize >= MAX_BITS {
            self.halve();
        }
        let (first, last) = ((from >> self.shift) as usize, ((to - 1) >> self.shift) as usize);
        let (word, end) = (first / 64, last / 64);
        if self.words.len() <= end {
            self.words.resize((end + 1).next_multiple_of(1024), 0);
        }
        let head = !0u64 << (first % 64);
        let tail = !0u64 >> (63 - last % 64);
        if word == end {
            self.words[word] |= head & tail;
        } else {
            self.words[word] |= head;
            self.words[word + 1..end].fill(!0);
            self.words[end] |= tail;
        }
    }

    fn halve(&mut self) {
        if !self.words.len().is_multiple_of(2) {
            self.words.push(0);
        }
        for i in 0..self.words.len() / 2 {
            let (a, b) = (squeeze(self.words[2 * i]), squeeze(self.words[2 * i + 1]));
            self.words[i] = a | b << 32;
        }
        let half = self.words.len() / 2;
        self.words.truncate(half);
        self.shift += 1;
    }

    /// Marked time within `[from, to)`, to its resolution.
    fn time(&self, from: u64, to: u64) -> u64 {
        let (first, last) = ((from >> self.shift) as usize, (to >> self.shift) as usize);
        let bits: u32 = (first / 64..=last / 64)
            .map_while(|w| self.words.get(w).map(|word| (w, *word)))
            .map(|(w, mut word)| {
                if w == first / 64 {
                    word &= !0u64 << (first % 64);
                }
                if w == last / 64 {
                    word &= (1u64 << (last % 64)) - 1;
                }
                word.count_ones()
            })
            .sum();
        (u64::from(bits) << self.shift).min(to - from)
    }
}

/// Pairs of bits become one: set where either was.
fn squeeze(word: u64) -> u64 {
    let mut x = (word | word >> 1) & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        x = (x | x >> shift) & mask;
    }
    x
}

/// A core with siblings: each CPU's busy runs, in time order.
#[derive(Debug, Default)]
struct Core {
    package: usize,
    cpus: Vec<(Cpu, Vec<Run>)>,
}

/// Busy time of packages and cores in one window.
#[derive(Debug, Default)]
pub(super) struct Busy {
    wanted: bool,
    start: Nanos,
    maps: Vec<Map>,
    cores: Vec<Core>,
    /// Runs beyond [`MAX_RUNS`]: counted as unshared.
    pub(super) overflowed: u64,
}

impl Busy {
    pub(super) fn wanted(&self) -> bool {
        self.wanted
    }

    /// From the next window on, keep books.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Starts a window: `cores` lists each core with siblings (package, CPUs).
    pub(super) fn open(&mut self, start: Nanos, packages: usize, cores: &[(usize, Vec<Cpu>)]) {
        self.start = start;
        self.maps.resize_with(packages, Map::default);
        for map in &mut self.maps {
            map.words.clear();
            map.shift = SHIFT;
        }
        self.cores = cores
            .iter()
            .map(|(package, cpus)| Core {
                package: *package,
                cpus: cpus.iter().map(|c| (*c, Vec::new())).collect(),
            })
            .collect();
    }

    /// A process ran on a CPU during `[from, to)`.
    #[expect(clippy::too_many_arguments, reason = "one interval, as the caller has it at hand")]
    #[inline]
    pub(super) fn add(
        &mut self,
        package: usize,
        core: Option<usize>,
        cpu: Cpu,
        slot: SlotId,
        slice: usize,
        from: Nanos,
        to: Nanos,
    ) {
        if !self.wanted {
            return;
        }
        if let Some(map) = self.maps.get_mut(package) {
            map.mark(from.since(self.start).0, to.since(self.start).0.max(1));
        }
        if let Some(core) = core.and_then(|c| self.cores.get_mut(c))
            && let Some((_, runs)) = core.cpus.iter_mut().find(|(c, _)| *c == cpu)
        {
            let full = runs.len() >= MAX_RUNS;
            match runs.last_mut() {
                Some(last)
                    if last.to == from && last.slot == slot && last.slice == slice as u32 =>
                {
                    last.to = to;
                }
                _ if full => self.overflowed += 1,
                _ => runs.push(Run { from, to, slot, slice: slice as u32 }),
            }
        }
    }

    /// Time during which any CPU of the package was busy.
    pub(super) fn any(&self, package: usize, from: Nanos, to: Nanos) -> Nanos {
        match self.maps.get(package) {
            Some(map) if self.wanted => {
                Nanos(map.time(from.since(self.start).0, to.since(self.start).0))
            }
            _ => Nanos(0),
        }
    }

    /// Finds the overlaps of siblings and adds them to the accounts. Returns the time that both
    /// threads of a core were busy, by `slice × packages + package`.
    pub(super) fn settle(&mut self, accounts: &mut Accounts) -> Vec<Nanos> {
        let packages = accounts.packages();
        let mut pairs = vec![Nanos(0); (accounts.ends().len() + 1) * packages];
        for core in &self.cores {
            for (at, (_, runs)) in core.cpus.iter().enumerate() {
                let others: Vec<&[Run]> = core
                    .cpus
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != at)
                    .map(|(_, (_, runs))| runs.as_slice())
                    .collect();
                let mut cursors = vec![0; others.len()];
                for run in runs {
                    let ns = overlap(run, &others, &mut cursors);
                    if ns == 0 {
                        continue;
                    }
                    let extra = accounts.extra(run.slice as usize, core.package, run.slot);
                    extra.shared += ns;
                    pairs[run.slice as usize * packages + core.package].0 += ns;
                }
            }
        }
        // Each pair was seen from both sides.
        pairs.iter_mut().for_each(|p| p.0 /= 2);
        pairs
    }
}

/// Time of `run` during which any of `others` was busy. Cursors only move forward.
fn overlap(run: &Run, others: &[&[Run]], cursors: &mut [usize]) -> u64 {
    let mut covered = 0;
    let mut at = run.from;
    while at < run.to {
        // The furthest that a busy sibling reaches from here, or the next moment one becomes busy.
        let (mut until, mut next) = (at, run.to);
        for (runs, cursor) in others.iter().zip(cursors.iter_mut()) {
            while runs.get(*cursor).is_some_and(|r| r.to <= at) {
                *cursor += 1;
            }
            if let Some(r) = runs.get(*cursor) {
                if r.from <= at {
                    until = until.max(r.to);
                } else {
                    next = next.min(r.from);
                }
            }
        }
        if until > at {
            let end = until.min(run.to);
            covered += end.0 - at.0;
            at = end;
        } else {
            at = next;
        }
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: u64, to: u64) -> Run {
        Run { from: Nanos(from), to: Nanos(to), slot: 2, slice: 0 }
    }

    #[track_caller]
    fn check_overlap(own: (u64, u64), others: &[&[(u64, u64)]], expected: u64) {
        let lists: Vec<Vec<Run>> =
            others.iter().map(|l| l.iter().map(|&(a, b)| run(a, b)).collect()).collect();
        let refs: Vec<&[Run]> = lists.iter().map(Vec::as_slice).collect();
        let mut cursors = vec![0; refs.len()];
        assert_eq!(overlap(&run(own.0, own.1), &refs, &mut cursors), expected);
    }

    #[test]
    fn overlaps_are_exact() {
        check_overlap((10, 20), &[&[]], 0);
        check_overlap((10, 20), &[&[(0, 10), (20, 30)]], 0);
        check_overlap((10, 20), &[&[(0, 12), (15, 16), (19, 30)]], 4);
        check_overlap((10, 20), &[&[(0, 100)]], 10);
        check_overlap((10, 20), &[&[(11, 13)], &[(12, 15)]], 4);
    }

    #[test]
    fn the_busy_map_counts_the_union() {
        let mut map = Map { words: Vec::new(), shift: SHIFT };
        map.mark(0, 1 << 20);
        map.mark(1 << 19, 3 << 19);
        assert_eq!(map.time(0, 1 << 22), 3 << 19);
        assert_eq!(map.time(1 << 20, 1 << 22), 1 << 19);
        map.halve();
        assert_eq!(map.time(0, 1 << 22), 3 << 19);
    }

    #[test]
    fn what_is_marked_early_in_a_long_window_stays() {
        let mut map = Map { words: Vec::new(), shift: SHIFT };
        let (early, hour) = (50_000_000, 3_600_000_000_000);
        map.mark(0, early);
        map.mark(hour - 1, hour);
        assert!(map.time(0, hour / 2) >= early);
    }

    #[test]
    fn long_windows_lose_resolution_not_time() {
        let mut map = Map { words: Vec::new(), shift: SHIFT };
        let hour = 3_600_000_000_000;
        map.mark(0, hour);
        let error = map.time(0, hour).abs_diff(hour);
        assert!(error < hour / 100_000, "{error}");
        assert!(map.words.len() <= MAX_BITS / 64);
    }
}
