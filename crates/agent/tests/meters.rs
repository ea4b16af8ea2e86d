//! Meters through the real binary: trees as hosts have them under `host.sysfs`, whose counters the
//! test moves while the agent runs. The right zones come out, with every joule that the counters
//! went on by and no other, and in each window the parts add up to what was measured. No
//! privileges are needed.
#![expect(clippy::unwrap_used, reason = "a test's own files and processes")]

#[path = "support/binary.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]
mod binary;
#[path = "support/powercap.rs"]
#[allow(missing_docs, unreachable_pub, reason = "a module of this test binary")]
mod powercap;
#[path = "support/watched.rs"]
#[allow(missing_docs, unreachable_pub, reason = "a module of this test binary")]
mod watched;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use binary::wattpipe;
use nix::sys::signal::Signal;
use powercap::{Host, RANGE, SMALL_RANGE};
use serde_json::Value;
use watched::{Watched, Zone, check_sums, incomplete_for_a_meter, of, zone};

const PIPELINE: &str = "\
sources: { procfs: {} }
exporters: { stdout: {} }
service: { pipelines: { a: { sources: [procfs], exporters: [stdout] } } }
";

#[test]
fn one_socket_with_all_that_rapl_has() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0", 5_000_000, RANGE)
        .rapl("intel-rapl:0:0", "core", 3_000_000, RANGE)
        .rapl("intel-rapl:0:1", "uncore", 7, RANGE)
        .rapl("intel-rapl:0:2", "dram", 1_000_000, SMALL_RANGE);
    let watched = Watched::start(&host);
    watched.advance(
        8,
        &[
            ("intel-rapl:0", 1_500_001),
            ("intel-rapl:0:0", 1_000_000),
            ("intel-rapl:0:1", 3),
            ("intel-rapl:0:2", 400_000),
        ],
    );
    let (records, log) = watched.check(&[
        zone("package-0", "cpu", 0, 8 * 1_500_001, true),
        zone("core-0", "cpu", 0, 8_000_000, false),
        zone("uncore-0", "gpu", 0, 24, false),
        zone("dram-0", "memory", 0, 3_200_000, true),
    ]);
    assert!(of(&records, "zone").all(|z| z["source"] == "rapl"));
    // Something ran on this machine, the agent at least: it has energy.
    assert!(of(&records, "usage").any(|r| r["joules_total"].as_f64().unwrap_or(0.0) > 0.0));
    assert!(!log.contains("estimated"), "{log}");
}

#[test]
fn two_sockets_that_came_up_in_the_other_order() {
    let host = Host::new(2);
    host.rapl("intel-rapl:0", "package-1", 11, RANGE)
        .rapl("intel-rapl:0:0", "dram", 12, SMALL_RANGE)
        .rapl("intel-rapl:1", "package-0", 1, RANGE)
        .rapl("intel-rapl:1:0", "dram", 2, SMALL_RANGE);
    let watched = Watched::start(&host);
    watched.advance(
        6,
        &[
            ("intel-rapl:0", 3_000_000),
            ("intel-rapl:0:0", 300_000),
            ("intel-rapl:1", 1_000_000),
            ("intel-rapl:1:0", 100_000),
        ],
    );
    watched.check(&[
        zone("package-1", "cpu", 1, 18_000_000, true),
        zone("dram-1", "memory", 1, 1_800_000, true),
        zone("package-0", "cpu", 0, 6_000_000, true),
        zone("dram-0", "memory", 0, 600_000, true),
    ]);
}

#[test]
fn dies_are_zones_of_their_own() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0-die-0", 1, RANGE)
        .rapl("intel-rapl:0:0", "core", 2, RANGE)
        .rapl("intel-rapl:1", "package-0-die-1", 3, RANGE);
    let watched = Watched::start(&host);
    let moved = [("intel-rapl:0", 900_000), ("intel-rapl:0:0", 500_000), ("intel-rapl:1", 700_000)];
    watched.advance(5, &moved);
    watched.check(&[
        zone("package-0-die-0", "cpu", 0, 4_500_000, true),
        zone("core-0-die-0", "cpu", 0, 2_500_000, false),
        zone("package-0-die-1", "cpu", 0, 3_500_000, true),
    ]);
}

#[test]
fn amd_has_a_package_and_its_cores() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0", 9, SMALL_RANGE).rapl(
        "intel-rapl:0:0",
        "core",
        4,
        SMALL_RANGE,
    );
    // What this driver shows is the same once more.
    host.put("class/hwmon/hwmon1/name", "amd_energy")
        .put("class/hwmon/hwmon1/energy1_label", "Esocket0")
        .put("class/hwmon/hwmon1/energy1_input", "77");
    let watched = Watched::start(&host);
    watched.advance(5, &[("intel-rapl:0", 2_000_000), ("intel-rapl:0:0", 800_000)]);
    watched.check(&[
        zone("package-0", "cpu", 0, 10_000_000, true),
        zone("core-0", "cpu", 0, 4_000_000, false),
    ]);
}

#[test]
fn mmio_shows_the_package_once_more() {
    let host = Host::new(1);
    host.rapl("intel-rapl-mmio:0", "package-0", 500, RANGE).rapl(
        "intel-rapl:0",
        "package-0",
        100,
        RANGE,
    );
    let watched = Watched::start(&host);
    watched.advance(5, &[("intel-rapl:0", 1_000_000), ("intel-rapl-mmio:0", 1_000_000)]);
    watched.check(&[zone("package-0", "cpu", 0, 5_000_000, true)]);
}

#[test]
fn dram_alone() {
    let host = Host::new(1);
    host.put("class/powercap/intel-rapl:0/name", "package-0").rapl(
        "intel-rapl:0:0",
        "dram",
        2,
        SMALL_RANGE,
    );
    let watched = Watched::start(&host);
    watched.advance(5, &[("intel-rapl:0:0", 250_000)]);
    watched.check(&[zone("dram-0", "memory", 0, 1_250_000, true)]);
}

#[test]
fn psys_holds_the_rest() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0", 100, RANGE)
        .rapl("intel-rapl:0:0", "dram", 100, RANGE)
        .rapl("intel-rapl:1", "psys", 100, RANGE);
    let watched = Watched::start(&host);
    let moved = [("intel-rapl:0", 500_000), ("intel-rapl:0:0", 50_000), ("intel-rapl:1", 900_000)];
    watched.advance(5, &moved);
    watched.check(&[
        Zone { package: None, ..zone("psys", "cpu", 0, 4_500_000, true) },
        zone("package-0", "cpu", 0, 2_500_000, false),
        zone("dram-0", "memory", 0, 250_000, false),
    ]);
}

#[test]
fn a_sensor_where_rapl_is_not() {
    let host = Host::new(1);
    host.put("class/hwmon/hwmon1/name", "amd_energy");
    for (n, label) in [(1, "Ecore000"), (2, "Ecore001"), (3, "Esocket0")] {
        host.put(&format!("class/hwmon/hwmon1/energy{n}_label"), label)
            .put(&format!("class/hwmon/hwmon1/energy{n}_input"), "1000");
    }
    let watched = Watched::start(&host);
    for step in 1..=5u64 {
        for (n, each) in [(1, 200_000), (2, 100_000), (3, 900_000)] {
            let text = (1000 + step * each).to_string();
            host.put(&format!("class/hwmon/hwmon1/energy{n}_input"), &text);
        }
        watched.wait_read();
    }
    let (records, _) = watched.check(&[
        zone("package-0", "cpu", 0, 4_500_000, true),
        zone("core-0", "cpu", 0, 1_500_000, false),
    ]);
    assert!(of(&records, "zone").all(|z| z["source"] == "hwmon"));
}

#[test]
fn a_counter_wraps() {
    let host = Host::new(1);
    let range = SMALL_RANGE.unwrap();
    host.rapl("intel-rapl:0", "package-0", range - 2_500_000, SMALL_RANGE);
    let watched = Watched::start(&host);
    watched.advance(5, &[("intel-rapl:0", 1_000_000)]);
    assert_eq!(host.value("intel-rapl:0"), 2_500_000, "it has wrapped");
    watched.wait(2);
    // Where this machine kept a meter waiting, the window without its reading is incomplete.
    let missed = watched.metric("wattpipe_meter_missed_readings_total");
    let (records, _) = watched.check(&[zone("package-0", "cpu", 0, 5_000_000, true)]);
    assert!(missed > 0.0 || incomplete_for_a_meter(&records) == 0);
}

#[test]
fn without_a_range_a_fall_is_a_new_start() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0", 50_000_000, None);
    let watched = Watched::start(&host);
    watched.advance(3, &[("intel-rapl:0", 1_000_000)]);
    host.set("intel-rapl:0", 400_000);
    watched.wait_read();
    watched.advance(3, &[("intel-rapl:0", 1_000_000)]);
    assert_eq!(watched.metric("wattpipe_meter_dropped_readings_total"), 1.0);
    // What the counter held when it started anew is nobody's.
    let (records, _) = watched.check(&[zone("package-0", "cpu", 0, 6_000_000, true)]);
    assert!(of(&records, "window").any(|w| w["complete"] == false));
}

#[test]
fn a_zone_that_goes_has_no_line_and_owes_nothing_when_it_comes_back() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0", 0, RANGE).rapl("intel-rapl:0:0", "dram", 0, SMALL_RANGE);
    let watched = Watched::start(&host);
    let both = [("intel-rapl:0", 1_000_000), ("intel-rapl:0:0", 100_000)];
    watched.advance(3, &both);
    host.hide("intel-rapl:0:0");
    watched.zones.set(1);
    watched.wait_read();
    let gone = watched.windows();
    watched.advance(3, &both[..1]);
    let back = watched.windows();
    assert!(watched.metric("wattpipe_meter_missed_readings_total") >= 3.0);
    // It counted on meanwhile.
    host.set("intel-rapl:0:0", 1_000_000);
    watched.zones.set(2);
    watched.advance(3, &both);
    let (records, log) = watched.check(&[
        zone("package-0", "cpu", 0, 9_000_000, true),
        zone("dram-0", "memory", 0, 1_300_000, true),
    ]);
    let ends: Vec<&Value> = of(&records, "window").map(|w| &w["end"]).collect();
    let dram =
        |end: &Value| of(&records, "zone").any(|z| z["zone"] == "dram-0" && z["end"] == *end);
    assert!(ends[gone + 1..back].iter().all(|end| !dram(end)), "{log}");
    // The line after the gap covers it.
    let longest = of(&records, "zone").filter(|z| z["zone"] == "dram-0").map(|z| {
        let edge = |key: &str| ends.iter().position(|e| **e == z[key]).unwrap_or(0);
        edge("end") - edge("start")
    });
    assert!(longest.max().unwrap() > back - gone - 1);
}

#[test]
fn a_file_for_root_only_is_told_and_the_rest_reads() {
    let host = Host::new(1);
    host.rapl("intel-rapl:0", "package-0", 0, RANGE).rapl("intel-rapl:0:0", "dram", 0, SMALL_RANGE);
    let file = host.sysfs().join("class/powercap/intel-rapl:0/energy_uj");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let watched = Watched::by(without_root(&file), &host);
    watched.advance(4, &[("intel-rapl:0:0", 100_000)]);
    let (_, log) = watched.check(&[zone("dram-0", "memory", 0, 400_000, true)]);
    assert!(log.contains("WARN") && log.contains("CVE-2020-8694"), "{log}");
    let output = without_root(&file).arg("doctor").arg("--config").arg(host.config()).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("CVE-2020-8694") && text.contains("dram-0 (rapl)"), "{text}");
}

/// The binary as somebody who cannot read this file: root reads everything, unless it has given
/// that up.
fn without_root(file: &Path) -> Command {
    let plain = wattpipe();
    if fs::read(file).is_err() {
        return plain;
    }
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(plain.get_program());
    command
}

#[test]
fn a_virtual_machine_is_told_apart_by_doctor() {
    #[track_caller]
    fn check(flags: &str, expected: bool) {
        let host = Host::new(1);
        let procfs = host.sysfs().with_file_name("proc");
        fs::create_dir(&procfs).unwrap();
        fs::write(procfs.join("cpuinfo"), format!("vendor_id : GenuineIntel\nflags : {flags}\n"))
            .unwrap();
        let roots = format!(
            "host: {{ sysfs: {}, procfs: {} }}\n{PIPELINE}",
            host.sysfs().display(),
            procfs.display()
        );
        fs::write(host.config(), roots).unwrap();
        let output = wattpipe().arg("doctor").arg("--config").arg(host.config()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("energy: an estimate"), "{text}");
        assert_eq!(text.contains("a share of a machine"), expected, "{text}");
    }
    check("fpu vme hypervisor", true);
    check("fpu vme", false);
}

#[test]
fn where_nothing_reads_it_is_an_estimate_and_says_so() {
    let host = Host::new(1);
    let watched = Watched::start(&host);
    watched.wait(2);
    watched.agent.signal(Signal::SIGTERM);
    let (code, log) = watched.agent.end();
    assert_eq!(code, Some(0));
    assert!(log.contains("no meter reads: energy is estimated"), "{log}");
    let text = fs::read_to_string(host.out()).unwrap();
    let records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let zones: Vec<&Value> = of(&records, "zone").collect();
    assert!(!zones.is_empty());
    assert!(zones.iter().all(|z| z["zone"] == "host" && z["source"] == "estimate"));
    let host_zone = Zone { package: None, ..zone("host", "enclosure", 0, 0, true) };
    check_sums(&records, &[host_zone]);
}
