//! The model on windows made by hand: each case states energies that can be checked in the head.

use std::sync::Arc;

use smallvec::SmallVec;
use wattpipe_pipeline::{
    batch::{
        Batch, Cell, Domain, IdleBasis, MeterReading, Slice, State, UsageBatch, UsageRow, Window,
        Zone, ZoneUsage,
    },
    identity::{AttributeSet, Process},
    processor::{Processor, ProcessorComponent},
    registry::{BuildContext, Config},
    units::{Nanos, Package, Tgid},
};

use super::{PowerModel, PowerModelConfig};

pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) fn zone(name: &str, package: Option<u32>) -> Arc<Zone> {
    Arc::new(Zone {
        name: name.into(),
        hw_type: if name.starts_with("dram") { "memory" } else { "cpu" }.into(),
        package: package.map(Package),
        source: "rapl".into(),
        contained_in: None,
        max_energy_range_uj: Some(262_143_328_850),
        max_watts: None,
    })
}

pub(super) fn row(pid: u32) -> UsageRow {
    let mut process = Process::unknown(Tgid(pid));
    process.start_time = Some(Nanos(u64::from(pid)));
    UsageRow {
        process: Some(Arc::new(process)),
        attributes: Arc::new(AttributeSet::new()),
        state: State::Running,
        cpu: Nanos(0),
        cycles: None,
        switches: Some(0),
        energy: SmallVec::new(),
        confidence: None,
    }
}

/// One package in one slice: (package, idle ms, lost ms, [(pid, ms)]).
pub(super) type PackageSlice<'a> = (u32, u64, u64, &'a [(u32, u64)]);

/// One window of one-second length, ending at second `end`.
pub(super) struct WindowBuilder(pub(super) UsageBatch);

impl WindowBuilder {
    pub(super) fn new(end: u64) -> Self {
        let window = Window {
            start: Nanos((end - 1) * SECOND),
            end: Nanos(end * SECOND),
            cpus: 4,
            complete: true,
            ..Window::default()
        };
        Self(UsageBatch {
            window,
            rows: Vec::new(),
            zones: Vec::new(),
            readings: Vec::new(),
            slices: Vec::new(),
            live: false,
        })
    }

    fn row_of(&mut self, pid: u32) -> u32 {
        let at = self.0.rows.iter().position(|r| r.process.as_ref().unwrap().pid.0 == pid);
        at.unwrap_or_else(|| {
            self.0.rows.push(row(pid));
            self.0.rows.len() - 1
        }) as u32
    }

    /// A slice until `end_ms` after the window's start.
    pub(super) fn slice(mut self, end_ms: u64, packages: &[PackageSlice<'_>]) -> Self {
        let ms = |n: u64| Nanos(n * 1_000_000);
        let mut slice = Slice { end: Nanos(self.0.window.start.0 + ms(end_ms).0), domains: vec![] };
        for &(package, idle, lost, used) in packages {
            let mut domain = Domain {
                package: Package(package),
                idle: ms(idle),
                unattributed: ms(lost),
                ..Domain::default()
            };
            for &(pid, time) in used {
                let row = self.row_of(pid);
                self.0.rows[row as usize].cpu.0 += ms(time).0;
                domain.cells.push(Cell { row, cpu: ms(time), ..Cell::default() });
            }
            slice.domains.push(domain);
        }
        self.0.slices.push(slice);
        self
    }

    /// A reading `at_ms` after the window's start, in joules.
    pub(super) fn read(mut self, at_ms: u64, zone: &Arc<Zone>, joules: f64) -> Self {
        let ts = Nanos(self.0.window.start.0 + at_ms * 1_000_000);
        let energy_uj = (joules * 1e6).round() as u64;
        self.0.readings.push(MeterReading { ts, zone: zone.clone(), energy_uj });
        self
    }
}

pub(super) fn model(config: &str) -> PowerModel {
    let config: PowerModelConfig = serde_json::from_str(config).unwrap();
    assert!(config.check().is_empty());
    PowerModel::build(config, &BuildContext::default()).unwrap()
}

pub(super) fn run(model: &mut PowerModel, window: WindowBuilder) -> UsageBatch {
    match model.process(Batch::Usage(Arc::new(window.0))).unwrap() {
        Some(Batch::Usage(usage)) => Arc::unwrap_or_clone(usage),
        other => panic!("no usage: {other:?}"),
    }
}

pub(super) fn line<'a>(usage: &'a UsageBatch, name: &str) -> Option<&'a ZoneUsage> {
    usage.zones.iter().find(|z| &*z.zone.name == name)
}

/// (active, idle) of a process in a zone.
pub(super) fn energy(usage: &UsageBatch, pid: u32, name: &str) -> Option<(f64, f64)> {
    let at = usage.zones.iter().position(|z| &*z.zone.name == name)?;
    let row = usage.rows.iter().find(|r| r.process.as_ref().is_some_and(|p| p.pid.0 == pid))?;
    row.energy.iter().find(|e| e.zone as usize == at).map(|e| (e.active, e.idle))
}

#[track_caller]
fn close(got: f64, expected: f64, what: &str) {
    assert!(
        (got - expected).abs() <= 1e-9 * expected.abs().max(1.0),
        "{what}: {got}, not {expected}"
    );
}

/// Two processes, 300 and 100 ms of four CPU-seconds; 100 J measured. Checks idle, unattributed
/// and the larger process's active joules.
#[track_caller]
fn check(config: &str, lost_ms: u64, basis: IdleBasis, expected: [f64; 3]) {
    let package = zone("package-0", Some(0));
    let mut model = model(config);
    let used: &[(u32, u64)] = &[(1, 300), (2, 100)];
    let window = WindowBuilder::new(1)
        .slice(1000, &[(0, 3600 - lost_ms, lost_ms, used)])
        .read(0, &package, 1000.0)
        .read(1000, &package, 1100.0);
    let usage = run(&mut model, window);
    let z = line(&usage, "package-0").expect("a line");
    close(z.joules, 100.0, "joules");
    close(z.idle, expected[0], "idle");
    close(z.unattributed, expected[1], "unattributed");
    close(energy(&usage, 1, "package-0").unwrap().0, expected[2], "active");
    close(energy(&usage, 2, "package-0").unwrap().0, expected[2] / 3.0, "active of the other");
    assert_eq!(z.idle_basis, basis);
    assert!(usage.window.complete && z.in_total);
}

#[test]
fn exact_shares() {
    use IdleBasis::{Configured, None, Proportional};
    check(r#"{"weight":"cpu_time","idle":"none"}"#, 0, None, [0.0, 0.0, 75.0]);
    check(r#"{"weight":"cpu_time","idle":"none"}"#, 400, None, [0.0, 50.0, 37.5]);
    check(r#"{"weight":"cpu_time","idle":"proportional"}"#, 0, Proportional, [90.0, 0.0, 7.5]);
    check(r#"{"weight":"cpu_time","idle":"proportional"}"#, 400, Proportional, [90.0, 5.0, 3.75]);
    let configured = r#"{"weight":"cpu_time","idle_watts":{"package-0":60}}"#;
    check(configured, 0, Configured, [60.0, 0.0, 30.0]);
    check(configured, 400, Configured, [60.0, 20.0, 15.0]);
    check(r#"{"weight":"cpu_time","idle_watts":{"package-0":600}}"#, 0, Configured, [100., 0., 0.]);
    // Not trusted yet.
    check(r#"{"weight":"cpu_time"}"#, 0, Proportional, [90.0, 0.0, 7.5]);
    check("{}", 0, Proportional, [90.0, 0.0, 7.5]);
}

#[test]
fn with_nothing_running_active_energy_is_nobodys() {
    let package = zone("package-0", Some(0));
    let mut model = model(r#"{"weight":"cpu_time","idle_watts":{"package-0":60}}"#);
    let window = WindowBuilder::new(1)
        .slice(1000, &[(0, 4000, 0, &[])])
        .read(0, &package, 0.0)
        .read(1000, &package, 100.0);
    let usage = run(&mut model, window);
    let z = line(&usage, "package-0").unwrap();
    assert_eq!((z.idle, z.unattributed, z.active), (60.0, 40.0, 0.0));
}

#[test]
fn the_energy_between_two_readings_belongs_to_the_usage_between_them() {
    let package = zone("package-0", Some(0));
    let mut model = model(r#"{"weight":"cpu_time","idle":"none"}"#);
    let window = WindowBuilder::new(1)
        .slice(500, &[(0, 1900, 0, &[(1, 100)])])
        .slice(1000, &[(0, 1800, 0, &[(1, 100), (2, 100)])])
        .read(0, &package, 0.0)
        .read(500, &package, 10.0)
        .read(1000, &package, 40.0);
    let usage = run(&mut model, window);
    close(energy(&usage, 1, "package-0").unwrap().0, 25.0, "both slices");
    close(energy(&usage, 2, "package-0").unwrap().0, 15.0, "the second");
}

#[test]
fn a_package_is_shared_by_what_ran_on_it() {
    let (p0, p1, psys) =
        (zone("package-0", Some(0)), zone("package-1", Some(1)), zone("psys", None));
    let mut model = model(r#"{"weight":"cpu_time","idle":"none"}"#);
    let mut window = WindowBuilder::new(1)
        .slice(1000, &[(0, 0, 0, &[(1, 1000)]), (1, 0, 0, &[(1, 500), (2, 500)])]);
    for (z, joules) in [(&p0, 10.0), (&p1, 40.0), (&psys, 90.0)] {
        window = window.read(0, z, 0.0).read(1000, z, joules);
    }
    let usage = run(&mut model, window);
    close(energy(&usage, 1, "package-0").unwrap().0, 10.0, "alone on 0");
    assert_eq!(energy(&usage, 2, "package-0"), None);
    close(energy(&usage, 2, "package-1").unwrap().0, 20.0, "half of 1");
    close(energy(&usage, 2, "psys").unwrap().0, 22.5, "a quarter of all");
    let in_total: Vec<_> = usage.zones.iter().map(|z| z.in_total).collect();
    assert_eq!(in_total, [false, false, true]);
    close(usage.joules_total(&usage.rows[1]).unwrap(), 22.5, "psys alone");
}

#[test]
fn dram_stands_beside_the_package_and_core_inside() {
    let zones = [("package-0", 10.0), ("core-0", 7.0), ("dram-0", 3.0)];
    let mut model = model(r#"{"weight":"cpu_time","idle":"none"}"#);
    let mut window = WindowBuilder::new(1).slice(1000, &[(0, 0, 0, &[(1, 1000)])]);
    for (name, joules) in zones {
        let z = zone(name, Some(0));
        window = window.read(0, &z, 0.0).read(1000, &z, joules);
    }
    let usage = run(&mut model, window);
    close(usage.joules_total(&usage.rows[0]).unwrap(), 13.0, "package and dram");
    close(energy(&usage, 1, "core-0").unwrap().0, 7.0, "core");
}

#[test]
fn a_missed_edge_is_made_up_for_with_rows_of_earlier_windows() {
    let (package, dram) = (zone("package-0", Some(0)), zone("dram-0", Some(0)));
    let mut model = model(r#"{"weight":"cpu_time","idle":"none"}"#);
    let first = WindowBuilder::new(1)
        .slice(1000, &[(0, 3000, 0, &[(1, 500), (2, 500)])])
        .read(0, &package, 0.0)
        .read(0, &dram, 0.0)
        .read(1000, &package, 10.0);
    let usage = run(&mut model, first);
    assert!(line(&usage, "package-0").is_some() && line(&usage, "dram-0").is_none());

    let second = WindowBuilder::new(2)
        .slice(1000, &[(0, 3000, 0, &[(1, 1000)])])
        .read(1000, &package, 20.0)
        .read(1000, &dram, 8.0);
    let usage = run(&mut model, second);
    let z = line(&usage, "dram-0").unwrap();
    assert_eq!(z.start, Nanos(0));
    close(usage.zone_seconds(z), 2.0, "its own interval");
    close(energy(&usage, 1, "dram-0").unwrap().0, 6.0, "1.5 of 2 s");
    close(energy(&usage, 2, "dram-0").unwrap().0, 2.0, "0.5 of 2 s, without a row of its own");
    let gone = &usage.rows[1];
    assert_eq!((usage.rows.len(), gone.cpu, gone.switches), (2, Nanos(0), Some(0)));
    assert_eq!(energy(&usage, 2, "package-0"), None);

    // Nothing is owed any more.
    let third = WindowBuilder::new(3)
        .slice(1000, &[(0, 3000, 0, &[(1, 1000)])])
        .read(1000, &package, 30.0)
        .read(1000, &dram, 9.0);
    let usage = run(&mut model, third);
    assert_eq!(usage.rows.len(), 1);
    assert!(model.carried.is_empty());
}

#[test]
fn a_reset_or_an_impossible_step_is_dropped_and_the_window_says_so() {
    for (to, next) in [(5.0, 15.0), (90_000.0, 90_010.0)] {
        let package = zone("package-0", Some(0));
        let mut model = model(r#"{"weight":"cpu_time","idle":"none"}"#);
        let used: &[PackageSlice<'_>] = &[(0, 0, 0, &[(1, 1000)])];
        let first = WindowBuilder::new(1).slice(1000, used).read(0, &package, 1000.0);
        let usage = run(&mut model, first.read(1000, &package, to));
        assert!(usage.zones.is_empty() && !usage.window.complete, "to {to}");
        assert_eq!(usage.joules_total(&usage.rows[0]), None);
        let usage =
            run(&mut model, WindowBuilder::new(2).slice(1000, used).read(1000, &package, next));
        close(line(&usage, "package-0").unwrap().joules, 10.0, "after it");
        assert_eq!(usage.zones[0].start, Nanos(SECOND));
        assert!(usage.window.complete);
        let drops: u64 = model
            .telemetry
            .snapshot()
            .into_iter()
            .filter(|(id, _)| id.name == "wattpipe_meter_dropped_readings_total")
            .map(|(_, r)| match r.instrument {
                wattpipe_pipeline::telemetry::Instrument::Counter(c) => c.get(),
                _ => 0,
            })
            .sum();
        assert_eq!(drops, 1);
    }
}

#[test]
fn idle_joules_are_shared_out_on_request() {
    let package = zone("package-0", Some(0));
    let mut model =
        model(r#"{"weight":"cpu_time","idle_watts":{"package-0":60},"attribute_idle":true}"#);
    let window = WindowBuilder::new(1)
        .slice(1000, &[(0, 3600, 0, &[(1, 300), (2, 100)])])
        .read(0, &package, 0.0)
        .read(1000, &package, 100.0);
    let usage = run(&mut model, window);
    close(energy(&usage, 1, "package-0").unwrap().1, 45.0, "three quarters of the floor");
    close(usage.zones[0].idle, 60.0, "the zone's line keeps it");
}

#[test]
fn nothing_reads_then_a_meter_appears() {
    let estimate = r#"{"estimate":{"idle_watts_per_cpu":1,"max_watts_per_cpu":5}}"#;
    let mut with = model(estimate);
    let used: &[PackageSlice<'_>] = &[(0, 3000, 0, &[(1, 1000)])];
    let usage = run(&mut with, WindowBuilder::new(1).slice(1000, used));
    let z = line(&usage, "host").unwrap();
    assert_eq!((&*z.zone.source, &*z.zone.hw_type), ("estimate", "enclosure"));
    assert_eq!((z.joules, z.idle, z.active, z.idle_basis), (8.0, 4.0, 4.0, IdleBasis::Configured));
    close(energy(&usage, 1, "host").unwrap().0, 4.0, "its share");

    let package = zone("package-0", Some(0));
    let usage = run(&mut with, WindowBuilder::new(2).slice(1000, used).read(1000, &package, 9.0));
    assert!(usage.zones.is_empty());
    let usage = run(&mut with, WindowBuilder::new(3).slice(1000, used).read(1000, &package, 19.0));
    assert_eq!(usage.zones.iter().map(|z| &*z.zone.name).collect::<Vec<_>>(), ["package-0"]);

    let mut without = model(r#"{"estimate":{"mode":"off"}}"#);
    let usage = run(&mut without, WindowBuilder::new(1).slice(1000, used));
    assert!(usage.zones.is_empty() && usage.rows[0].energy.is_empty());
}

#[test]
fn usage_without_slices_is_shared_by_the_rows() {
    let package = zone("package-0", Some(0));
    let mut model = model(r#"{"weight":"cpu_time","idle":"none"}"#);
    let mut window = WindowBuilder::new(1)
        .slice(1000, &[(0, 0, 0, &[(1, 300), (2, 100)])])
        .read(0, &package, 0.0)
        .read(400, &package, 1.0)
        .read(1000, &package, 100.0);
    window.0.slices.clear();
    let usage = run(&mut model, window);
    close(energy(&usage, 1, "package-0").unwrap().0, 75.0, "by CPU time");
}

#[test]
fn a_process_that_ran_nowhere_used_nothing() {
    let package = zone("package-0", Some(0));
    let mut model = model(r#"{"weight":"cpu_time"}"#);
    let mut window = WindowBuilder::new(1)
        .slice(1000, &[(0, 0, 0, &[(1, 1000)])])
        .read(0, &package, 0.0)
        .read(1000, &package, 10.0);
    window.0.rows.push(row(9));
    let usage = run(&mut model, window);
    assert_eq!(energy(&usage, 9, "package-0"), Some((0.0, 0.0)));
}

/// The page's own table: what each configuration gives, in joules.
#[test]
fn the_worked_example_of_the_documentation() {
    let page = include_str!("../../../../docs/attribution.md");
    let cases = [
        ("| `idle_watts: 24` |", r#"{"weight":"cpu_time","idle_watts":{"package-0":24}}"#),
        ("| `idle: proportional` |", r#"{"weight":"cpu_time","idle":"proportional"}"#),
        ("| `idle: none` |", r#"{"weight":"cpu_time","idle":"none"}"#),
    ];
    for (line_start, config) in cases {
        let written = page.lines().find_map(|l| l.strip_prefix(line_start)).expect(line_start);
        let written: Vec<f64> =
            written.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
        let package = zone("package-0", Some(0));
        let mut model = model(config);
        let window = WindowBuilder::new(1)
            .slice(500, &[(0, 1600, 0, &[(1, 400)])])
            .slice(1000, &[(0, 1400, 200, &[(1, 200), (2, 200)])])
            .read(0, &package, 1000.0)
            .read(500, &package, 1020.0)
            .read(1000, &package, 1050.0);
        let usage = run(&mut model, window);
        let z = line(&usage, "package-0").unwrap();
        let (web, db) = (energy(&usage, 1, "package-0"), energy(&usage, 2, "package-0"));
        let got = [z.joules, z.idle, z.unattributed, web.unwrap().0, db.unwrap().0];
        assert_eq!(written.len(), got.len(), "{line_start}");
        for (got, written) in got.into_iter().zip(written) {
            close(got, written, line_start);
        }
    }
}
