//! Usage per package of a polled window.
//!
//! `/proc` tells how long a process ran, not where. With one package there is nothing to tell.
//! With several, each process's time is split as the packages were busy: of all splits that fit
//! both the rows and the CPUs it supposes the least. How siblings overlapped is not told either;
//! it is put as if they were busy independently of one another.

use std::collections::BTreeMap;

use wattpipe_pipeline::{
    batch::{Cell, CpuInfo, Domain, Slice, UsageRow},
    units::{Cpu, Nanos, Package},
};

use super::host_stat::CpuTicks;

/// What a package's CPUs did.
#[derive(Debug, Default)]
struct Load {
    cpus: u32,
    busy: u64,
    /// Probability that none of its CPUs is busy.
    all_idle: f64,
    /// Per core: how busy each of its CPUs was, as a fraction.
    cores: BTreeMap<u32, Vec<f64>>,
}

/// The window's one slice. `idle` and `unattributed` are the window's, to be split exactly.
pub(super) fn slice(
    end: Nanos,
    duration: Nanos,
    topology: &[CpuInfo],
    did: &BTreeMap<Cpu, CpuTicks>,
    rows: &[UsageRow],
    idle: Nanos,
) -> Slice {
    let loads = loads(duration, topology, did);
    let weights: Vec<u64> = loads.values().map(|l| l.busy).collect();
    let mut domains: Vec<Domain> = loads
        .iter()
        .map(|(package, load)| Domain { package: *package, cpus: load.cpus, ..Domain::default() })
        .collect();
    let mut used = vec![0u64; domains.len()];
    for (index, row) in rows.iter().enumerate().filter(|(_, r)| r.cpu.0 > 0) {
        for (at, part) in split(row.cpu.0, &weights).into_iter().enumerate() {
            if part > 0 {
                used[at] += part;
                let row = u32::try_from(index).unwrap_or(u32::MAX);
                let cpu = Nanos(part);
                // `/proc` counts no cycles; whatever the row holds came from elsewhere.
                domains[at].cells.push(Cell { row, cpu, ..Cell::default() });
            }
        }
    }
    // What a package's CPUs have left after its processes is idle or unattributed.
    let room: Vec<u64> = domains
        .iter()
        .zip(&used)
        .map(|(d, used)| (u64::from(d.cpus) * duration.0).saturating_sub(*used))
        .collect();
    for ((at, domain), load) in domains.iter_mut().enumerate().zip(loads.values()) {
        domain.idle = Nanos(split(idle.0, &room)[at]);
        domain.unattributed = Nanos(room[at].saturating_sub(domain.idle.0));
        domain.any_busy = Nanos(((1.0 - load.all_idle) * duration.0 as f64).round() as u64);
        let both: f64 = load.cores.values().map(|core| at_least_two(core)).sum();
        domain.pair_busy = Nanos((both * duration.0 as f64).round() as u64);
        let shared = if used[at] == 0 {
            0.0
        } else {
            (2.0 * domain.pair_busy.0 as f64 / used[at] as f64).min(1.0)
        };
        for cell in &mut domain.cells {
            cell.shared = Nanos((cell.cpu.0 as f64 * shared) as u64);
        }
    }
    Slice { end, domains }
}

fn loads(
    duration: Nanos,
    topology: &[CpuInfo],
    did: &BTreeMap<Cpu, CpuTicks>,
) -> BTreeMap<Package, Load> {
    let mut loads = BTreeMap::<Package, Load>::new();
    for info in topology {
        let load =
            loads.entry(info.package).or_insert_with(|| Load { all_idle: 1.0, ..Load::default() });
        let busy = did.get(&info.cpu).map_or(0, |d| d.busy.0).min(duration.0);
        let fraction = busy as f64 / duration.0.max(1) as f64;
        load.cpus += 1;
        load.busy += busy;
        load.all_idle *= 1.0 - fraction;
        load.cores.entry(info.core).or_default().push(fraction);
    }
    loads
}

/// The chance that at least two of these are busy at once.
fn at_least_two(busy: &[f64]) -> f64 {
    let none: f64 = busy.iter().map(|b| 1.0 - b).product();
    let one: f64 = (0..busy.len())
        .map(|i| {
            let others = busy.iter().enumerate().filter(|(j, _)| *j != i);
            busy[i] * others.map(|(_, b)| 1.0 - b).product::<f64>()
        })
        .sum();
    (1.0 - none - one).clamp(0.0, 1.0)
}

/// Splits `total` in proportion to `weights` so that the parts add up to it exactly. Without any
/// weight all of it goes to the first.
fn split(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    let mut parts = vec![0; weights.len()];
    let mut left = total;
    if let Some(sum) = std::num::NonZeroU128::new(sum) {
        for (part, weight) in parts.iter_mut().zip(weights) {
            let share = u128::from(total) * u128::from(*weight) / sum;
            *part = u64::try_from(share).unwrap_or(u64::MAX).min(left);
            left -= *part;
        }
    }
    let heaviest = (0..weights.len()).max_by_key(|i| (weights[*i], std::cmp::Reverse(*i)));
    if let Some(heaviest) = heaviest {
        parts[heaviest] += left;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use wattpipe_pipeline::{batch::State, identity::AttributeSet};

    use super::*;

    fn row(cpu: u64) -> UsageRow {
        UsageRow {
            process: None,
            attributes: Arc::new(AttributeSet::new()),
            state: State::Running,
            cpu: Nanos(cpu),
            cycles: None,
            switches: None,
            energy: Default::default(),
            confidence: None,
        }
    }

    fn cpu(cpu: u32, package: u32, core: u32) -> CpuInfo {
        CpuInfo { cpu: Cpu(cpu), package: Package(package), core }
    }

    #[test]
    fn two_packages_share_as_they_were_busy() {
        let topology = [cpu(0, 0, 0), cpu(1, 0, 0), cpu(4, 1, 0)];
        let did = [(0, 300), (1, 300), (4, 200)]
            .map(|(c, busy)| (Cpu(c), CpuTicks { idle: Nanos(1000 - busy), busy: Nanos(busy) }));
        let slice = slice(
            Nanos(9),
            Nanos(1000),
            &topology,
            &did.into(),
            &[row(400), row(0), row(100)],
            Nanos(2300),
        );
        let [a, b] = slice.domains.as_slice() else { panic!("{slice:?}") };
        let cells = |d: &Domain| d.cells.iter().map(|c| (c.row, c.cpu.0)).collect::<Vec<_>>();
        assert_eq!(cells(a), [(0, 300), (2, 75)]);
        assert_eq!(cells(b), [(0, 100), (2, 25)]);
        assert_eq!((a.cpus, b.cpus), (2, 1));
        assert_eq!(a.pair_busy.0, 90);
        assert_eq!((a.any_busy.0, b.any_busy.0), (510, 200));
        assert_eq!(b.pair_busy.0, 0);
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            rows in prop::collection::vec(0..500u64, 0..20),
            busy in prop::collection::vec(0..20_000u64, 1..6),
            idle_part in 0.0..1.0f64,
        ) {
            let duration = 10_000u64;
            let topology: Vec<_> = (0..busy.len() as u32).map(|c| cpu(c, c % 3, c / 2)).collect();
            let did = busy.iter().enumerate()
                .map(|(c, b)| (Cpu(c as u32), CpuTicks { idle: Nanos(0), busy: Nanos(*b) })).collect();
            let total = duration * busy.len() as u64;
            let rows: Vec<_> = rows.into_iter().map(row).collect();
            let used: u64 = rows.iter().map(|r| r.cpu.0).sum();
            prop_assume!(used <= total);
            let idle = ((total - used) as f64 * idle_part) as u64;
            let slice = slice(Nanos(1), Nanos(duration), &topology, &did, &rows, Nanos(idle));
            for (index, row) in rows.iter().enumerate() {
                let sum: u64 = slice.domains.iter().flat_map(|d| &d.cells)
                    .filter(|c| c.row == index as u32).map(|c| c.cpu.0).sum();
                prop_assert_eq!(sum, row.cpu.0);
            }
            for d in &slice.domains {
                for c in &d.cells {
                    prop_assert!(c.shared <= c.cpu);
                }
                prop_assert!(d.any_busy.0 <= duration);
            }
            prop_assert_eq!(slice.domains.iter().map(|d| d.idle.0).sum::<u64>(), idle);
        }
    }
}
