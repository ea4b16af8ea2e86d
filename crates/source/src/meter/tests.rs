//! Trees as real hosts have them: each gives the zones it should, with joules that follow its
//! files, and says what it could not use.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Instant};

use super::*;

/// A host made of files.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn put(&self, path: &str, text: &str) -> &Self {
        let path = self.dir.path().join("sys").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// A powercap zone.
    fn rapl(&self, id: &str, name: &str, uj: u64, range: Option<u64>) -> &Self {
        let dir = format!("class/powercap/{id}");
        self.put(&format!("{dir}/name"), name).put(&format!("{dir}/energy_uj"), &uj.to_string());
        if let Some(range) = range {
            self.put(&format!("{dir}/max_energy_range_uj"), &range.to_string());
        }
        self
    }

    fn roots(&self) -> HostRoots {
        let root = |name: &str| self.dir.path().join(name);
        HostRoots { procfs: root("proc"), sysfs: root("sys"), cgroupfs: root("sys/fs/cgroup") }
    }

    fn meters(&self) -> Meters {
        Meters::enumerate(&self.roots(), &MeterSelection::Auto)
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("sys").join(path)
    }
}

/// Zones as (name, `hw.type`, package, µJ).
#[track_caller]
fn check(host: &Host, expected: &[(&str, &str, Option<u32>, u64)]) {
    check_meters(&mut host.meters(), expected);
}

#[track_caller]
fn check_meters(meters: &mut Meters, expected: &[(&str, &str, Option<u32>, u64)]) {
    let readings = meters.read_all(Nanos(1));
    let got: Vec<_> = readings
        .iter()
        .map(|r| (&*r.zone.name, &*r.zone.hw_type, r.zone.package.map(|p| p.0), r.energy_uj))
        .collect();
    assert_eq!(got, expected);
    assert!(readings.iter().all(|r| r.ts == Nanos(1)));
}

const RANGE: Option<u64> = Some(262_143_328_850);

#[test]
fn one_socket() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 100, RANGE)
        .rapl("intel-rapl:0:0", "core", 60, RANGE)
        .rapl("intel-rapl:0:1", "uncore", 5, RANGE)
        .rapl("intel-rapl:0:2", "dram", 30, Some(65_712_999_613))
        .put("class/powercap/intel-rapl/enabled", "1")
        .put("class/powercap/intel-rapl:0/constraint_0_power_limit_uw", "65000000")
        .put("class/powercap/intel-rapl:0/constraint_1_power_limit_uw", "120000000");
    check(
        &host,
        &[
            ("package-0", "cpu", Some(0), 100),
            ("core-0", "cpu", Some(0), 60),
            ("uncore-0", "gpu", Some(0), 5),
            ("dram-0", "memory", Some(0), 30),
        ],
    );
    let meters = host.meters();
    let zone = &meters.zones()[0].zone;
    assert_eq!((zone.max_energy_range_uj, zone.max_watts), (RANGE, Some(120.0)));
    assert_eq!(meters.zones()[3].zone.max_energy_range_uj, Some(65_712_999_613));
    assert_eq!(meters.slice_interval(), Some(FINE_INTERVAL));
    assert!(meters.problems().is_empty());
}

#[test]
fn two_sockets_in_any_order() {
    let host = Host::new();
    // The kernel numbers zones as they come up: the first may be of the second socket.
    host.rapl("intel-rapl:0", "package-1", 11, RANGE)
        .rapl("intel-rapl:0:0", "dram", 12, RANGE)
        .rapl("intel-rapl:1", "package-0", 1, RANGE)
        .rapl("intel-rapl:1:0", "dram", 2, RANGE);
    check(
        &host,
        &[
            ("package-1", "cpu", Some(1), 11),
            ("dram-1", "memory", Some(1), 12),
            ("package-0", "cpu", Some(0), 1),
            ("dram-0", "memory", Some(0), 2),
        ],
    );
}

#[test]
fn dies_are_zones_of_their_own() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0-die-0", 1, RANGE)
        .rapl("intel-rapl:0:0", "core", 2, RANGE)
        .rapl("intel-rapl:1", "package-0-die-1", 3, RANGE)
        .rapl("intel-rapl:1:0", "core", 4, RANGE);
    check(
        &host,
        &[
            ("package-0-die-0", "cpu", Some(0), 1),
            ("core-0-die-0", "cpu", Some(0), 2),
            ("package-0-die-1", "cpu", Some(0), 3),
            ("core-0-die-1", "cpu", Some(0), 4),
        ],
    );
}

#[test]
fn children_only_inside_their_parents() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, None).rapl(
        "intel-rapl:0/intel-rapl:0:0",
        "core",
        2,
        None,
    );
    check(&host, &[("package-0", "cpu", Some(0), 1), ("core-0", "cpu", Some(0), 2)]);
    let host = Host::new();
    let base = "devices/virtual/powercap/intel-rapl/intel-rapl:0";
    host.put(&format!("{base}/name"), "package-0").put(&format!("{base}/energy_uj"), "7");
    check(&host, &[("package-0", "cpu", Some(0), 7)]);
}

#[test]
fn a_missing_range_stays_missing() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, None);
    assert_eq!(host.meters().zones()[0].zone.max_energy_range_uj, None);
}

#[test]
fn mmio_shows_the_package_a_second_time() {
    let host = Host::new();
    host.rapl("intel-rapl-mmio:0", "package-0", 999, RANGE)
        .rapl("intel-rapl:0", "package-0", 1, RANGE)
        .rapl("intel-rapl:1", "psys", 5, RANGE);
    check(&host, &[("package-0", "cpu", Some(0), 1), ("psys", "cpu", None, 5)]);
    let only = Host::new();
    only.rapl("intel-rapl-mmio:0", "package-0", 999, RANGE);
    check(&only, &[("package-0", "cpu", Some(0), 999)]);
}

#[test]
fn dram_only() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, RANGE).rapl("intel-rapl:0:0", "dram", 2, RANGE);
    fs::remove_file(host.path("class/powercap/intel-rapl:0/energy_uj")).unwrap();
    check(&host, &[("dram-0", "memory", Some(0), 2)]);
    assert_eq!(host.meters().problems()[0].kind, ProblemKind::Unreadable);
}

#[test]
fn files_for_root_only_say_so() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, RANGE);
    let file = host.path("class/powercap/intel-rapl:0/energy_uj");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&file).is_ok() {
        // Root reads everything: a directory in its place fails too, for another reason.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(host.meters().problems()[0].kind, ProblemKind::Unreadable);
    } else {
        let meters = host.meters();
        assert!(meters.is_empty());
        assert!(meters.problems()[0].remedy.contains("CVE-2020-8694"));
    }
    let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let problem = powercap::unreadable_problem(Path::new("energy_uj"), &denied, true);
    assert!(problem.remedy.contains("CVE-2020-8694"));
}

#[test]
fn nothing_at_all() {
    let meters = Host::new().meters();
    assert!(meters.is_empty() && meters.slice_interval().is_none());
    assert!(meters.problems()[0].remedy.contains("modprobe"));
    let none = Meters::enumerate(&Host::new().roots(), &MeterSelection::These(vec![]));
    assert!(none.problems().is_empty());
}

#[test]
fn counters_advance_vanish_and_come_back() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, RANGE).rapl("intel-rapl:0:0", "dram", 2, RANGE);
    let mut meters = host.meters();
    host.put("class/powercap/intel-rapl:0/energy_uj", "10");
    check_meters(
        &mut meters,
        &[("package-0", "cpu", Some(0), 10), ("dram-0", "memory", Some(0), 2)],
    );
    fs::remove_dir_all(host.path("class/powercap/intel-rapl:0")).unwrap();
    check_meters(&mut meters, &[("dram-0", "memory", Some(0), 2)]);
    host.put("class/powercap/intel-rapl:0/energy_uj", "garbage");
    check_meters(&mut meters, &[("dram-0", "memory", Some(0), 2)]);
    host.put("class/powercap/intel-rapl:0/energy_uj", "20");
    check_meters(
        &mut meters,
        &[("package-0", "cpu", Some(0), 20), ("dram-0", "memory", Some(0), 2)],
    );
}

#[test]
fn amd_energy_driver() {
    let host = Host::new();
    host.put("class/hwmon/hwmon0/name", "k10temp").put("class/hwmon/hwmon0/temp1_input", "40000");
    host.put("class/hwmon/hwmon1/name", "amd_energy");
    for (n, label, uj) in [(1, "Ecore000", 10), (2, "Ecore001", 20), (3, "Esocket0", 100)] {
        host.put(&format!("class/hwmon/hwmon1/energy{n}_label"), label)
            .put(&format!("class/hwmon/hwmon1/energy{n}_input"), &format!("{uj}"));
    }
    check(&host, &[("core-0", "cpu", Some(0), 30), ("package-0", "cpu", Some(0), 100)]);
    assert_eq!(&*host.meters().zones()[0].zone.source, "hwmon");
    assert_eq!(host.meters().slice_interval(), None);
}

#[test]
fn amd_by_powercap() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 9, Some(65_532_610_987)).rapl(
        "intel-rapl:0:0",
        "core",
        4,
        Some(65_532_610_987),
    );
    host.put("class/hwmon/hwmon1/name", "amd_energy")
        .put("class/hwmon/hwmon1/energy1_label", "Esocket0")
        .put("class/hwmon/hwmon1/energy1_input", "77");
    check(&host, &[("package-0", "cpu", Some(0), 9), ("core-0", "cpu", Some(0), 4)]);
    // Both asked for: what one reads, the other does not read again.
    let both = MeterSelection::These(vec![MeterKind::Hwmon, MeterKind::Rapl]);
    let mut meters = Meters::enumerate(&host.roots(), &both);
    check_meters(&mut meters, &[("package-0", "cpu", Some(0), 77), ("core-0", "cpu", Some(0), 4)]);
}

#[test]
fn a_power_meter_is_integrated() {
    let host = Host::new();
    host.put("class/hwmon/hwmon0/name", "power_meter")
        .put("class/hwmon/hwmon0/power1_average", "200000000")
        .put("class/hwmon/hwmon0/power1_input", "1");
    let mut meters = host.meters();
    let uj = |meters: &mut Meters, s: u64| meters.read_all(Nanos(s * 1_000_000_000))[0].energy_uj;
    assert_eq!(uj(&mut meters, 10), 0);
    host.put("class/hwmon/hwmon0/power1_average", "300000000");
    assert_eq!(uj(&mut meters, 11), 250_000_000);
    assert_eq!(&*meters.zones()[0].zone.name, "psys");
}

#[test]
fn a_battery_where_asked_for() {
    let host = Host::new();
    host.put("class/power_supply/AC/type", "Mains")
        .put("class/power_supply/hid-mouse/type", "Battery")
        .put("class/power_supply/hid-mouse/scope", "Device")
        .put("class/power_supply/BAT0/type", "Battery")
        .put("class/power_supply/BAT0/status", "Discharging")
        .put("class/power_supply/BAT0/current_now", "2000000")
        .put("class/power_supply/BAT0/voltage_now", "12000000");
    assert!(host.meters().is_empty());
    let these = MeterSelection::These(vec![MeterKind::Battery]);
    let mut meters = Meters::enumerate(&host.roots(), &these);
    meters.read_all(Nanos(0));
    assert_eq!(meters.read_all(Nanos(1_000_000_000))[0].energy_uj, 24_000_000);
    host.put("class/power_supply/BAT0/status", "Charging");
    assert!(meters.read_all(Nanos(2_000_000_000)).is_empty());
    host.put("class/power_supply/BAT0/status", "Discharging");
    assert_eq!(meters.read_all(Nanos(3_000_000_000))[0].energy_uj, 0, "starts anew");
}

/// Blocks on each read until told to go on.
struct Stuck(std::sync::mpsc::Receiver<()>);

impl Meter for Stuck {
    fn read(&mut self, _: Nanos, out: &mut dyn FnMut(usize, u64)) {
        out(0, 4);
        let _ = self.0.recv();
        out(1, 5);
    }
}

#[test]
fn a_meter_that_blocks_holds_up_nobody() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, RANGE);
    let mut meters = host.meters();
    let (go, blocked) = std::sync::mpsc::channel();
    let info = |name: &str| ZoneInfo {
        zone: Arc::new(zone(name, "cpu", None, "hwmon", None, None)),
        covers: "",
        path: String::new(),
        resolution_uj: None,
        fine: false,
    };
    meters.take(Found {
        zones: vec![info("psys"), info("late")],
        meters: vec![(Box::new(Stuck(blocked)), vec![0, 1])],
        problems: Vec::new(),
    });
    let telemetry = Telemetry::default();
    let mut meters = meters.with_telemetry(&telemetry);
    // What it read before it hung is there; then it is not asked again while it hangs.
    check_meters(&mut meters, &[("package-0", "cpu", Some(0), 1), ("psys", "cpu", None, 4)]);
    check_meters(&mut meters, &[("package-0", "cpu", Some(0), 1)]);
    assert_eq!(meters.missed.as_ref().unwrap().get(), 3);

    // It comes back: a late answer is not taken for the present one.
    let deadline = Instant::now() + Duration::from_secs(10);
    while meters.read_all(Nanos(2)).len() < 3 {
        assert!(Instant::now() < deadline, "it never came back");
        let _ = go.send(());
    }
}

#[test]
fn a_file_that_blocks_is_not_waited_for_at_the_start() {
    let host = Host::new();
    host.rapl("intel-rapl:0", "package-0", 1, RANGE).rapl("intel-rapl:0:0", "dram", 2, RANGE);
    let file = host.path("class/powercap/intel-rapl:0:0/energy_uj");
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    check(&host, &[("package-0", "cpu", Some(0), 1)]);
    // One that blocks only later.
    fs::remove_file(&file).unwrap();
    fs::write(&file, "2").unwrap();
    let mut meters = host.meters();
    fs::remove_file(&file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    check_meters(&mut meters, &[("package-0", "cpu", Some(0), 1)]);
}
