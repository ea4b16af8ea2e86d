//! Energy and power sensors of hardware monitoring, for processors without RAPL: the AMD energy
//! driver, X-Gene, ACPI power meters. Only sensors whose meaning is known are used: a graphics
//! card's or a disk's power has nothing to do with who had the CPU.
//!
//! A power sensor's watts are integrated over the time between readings (trapezoid), so it is as
//! good as it is read often.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use wattpipe_pipeline::units::Nanos;

use super::{Found, Meter, MeterKind, Problem, ProblemKind, ZoneInfo, files, zone};

/// Beyond this gap a power reading says nothing about the time in between.
const MAX_GAP_SECONDS: f64 = 60.0;

/// What a chip's sensor means: zone, `hw.type`, package, what it covers.
type Meaning = (String, &'static str, Option<u32>, &'static str);

/// What hardware monitoring offers.
pub(super) fn find(sysfs: &Path) -> Found {
    let mut found = Found::default();
    let class = sysfs.join("class/hwmon");
    let mut denied = None;
    for chip in files::names(&class) {
        let dir = class.join(chip);
        let Ok(driver) = files::text(&dir.join("name")) else { continue };
        let mut sensors = Vec::new();
        let mut zones = Vec::new();
        let files_of_chip = files::names(&dir);
        let label =
            |stem: &str| files::text(&dir.join(format!("{stem}_label"))).unwrap_or_default();
        let sockets = files_of_chip
            .iter()
            .filter_map(|f| sensor(f))
            .filter(|(stem, _)| label(stem).starts_with("Esocket"))
            .count();
        for file in &files_of_chip {
            let Some((stem, power)) = sensor(file) else { continue };
            if file.ends_with("_input") && files_of_chip.contains(&format!("{stem}_average")) {
                continue;
            }
            let Some(meaning) = meaning(&driver, &label(stem), sockets) else { continue };
            let path = dir.join(file);
            if let Err(e) = files::number_now(&path) {
                denied.get_or_insert((path, e));
                continue;
            }
            add(&mut found, &mut sensors, &mut zones, meaning, path, power);
        }
        if !sensors.is_empty() {
            found.meters.push((Box::new(Hwmon { sensors }), zones));
        }
    }
    if let Some((path, e)) = denied {
        found.problems.push(Problem {
            meter: MeterKind::Hwmon,
            what: format!("cannot read {}: {e}", path.display()),
            consequence: "this sensor is left out".into(),
            remedy: "run as root, or give read access to the sensor's file".into(),
            kind: ProblemKind::Unreadable,
        });
    }
    found
}

/// Puts a sensor to its zone; several sensors of one zone (the cores of a package) are added up.
fn add(
    found: &mut Found,
    sensors: &mut Vec<Sensor>,
    zones: &mut Vec<usize>,
    (name, hw_type, package, covers): Meaning,
    path: PathBuf,
    power: bool,
) {
    let at = match found.zones.iter().position(|z| *z.zone.name == *name) {
        Some(at) => at,
        None => {
            found.zones.push(ZoneInfo {
                zone: Arc::new(zone(&name, hw_type, package, "hwmon", None, None)),
                covers,
                path: path.display().to_string(),
                resolution_uj: None,
                fine: false,
            });
            found.zones.len() - 1
        }
    };
    let own = match zones.iter().position(|z| *z == at) {
        Some(own) => own,
        None => {
            zones.push(at);
            zones.len() - 1
        }
    };
    let integral = power.then(Integral::default);
    sensors.push(Sensor { path, zone: own, integral });
}

/// `energy3_input` (µJ) or `power1_average`, `power1_input` (µW): the stem, and whether power.
fn sensor(file: &str) -> Option<(&str, bool)> {
    let (stem, what) = file.split_once('_')?;
    match (stem.trim_end_matches(|c: char| c.is_ascii_digit()), what) {
        ("energy", "input") => Some((stem, false)),
        ("power", "average" | "input") => Some((stem, true)),
        _ => None,
    }
}

/// `sockets`: how many the chip has sensors for. Its cores are numbered over all of them, so that
/// only with one socket it is known whose they are.
fn meaning(driver: &str, label: &str, sockets: usize) -> Option<Meaning> {
    let package = "the processor package";
    match driver {
        "amd_energy" => {
            if let Some(socket) = label.strip_prefix("Esocket") {
                let n: u32 = socket.parse().ok()?;
                return Some((format!("package-{n}"), "cpu", Some(n), package));
            }
            label.strip_prefix("Ecore")?;
            let cores = "the cores of the package, in its figure too";
            (sockets == 1).then(|| ("core-0".into(), "cpu", Some(0), cores))
        }
        "xgene" | "apm_xgene" => match label {
            "CPU power" => Some(("package-0".into(), "cpu", Some(0), package)),
            _ => None,
        },
        "power_meter" => {
            Some(("psys".into(), "enclosure", None, "the whole machine, by its ACPI power meter"))
        }
        _ => None,
    }
}

/// Power summed over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Integral {
    last: Option<(Nanos, f64)>,
    joules: f64,
}

impl Integral {
    /// Takes the power at `ts`; the energy so far in microjoules. After a gap too long to bridge
    /// the counter starts anew, as a hardware counter does after a reset.
    pub(super) fn add(&mut self, ts: Nanos, watts: f64) -> u64 {
        if let Some((last, before)) = self.last.replace((ts, watts)) {
            let seconds = ts.since(last).as_secs_f64();
            if seconds > MAX_GAP_SECONDS {
                self.joules = 0.0;
            } else {
                self.joules += 0.5 * (before + watts) * seconds;
            }
        }
        (self.joules * 1e6) as u64
    }

    /// The sensor has stopped meaning what it did: what follows is not connected.
    pub(super) fn interrupt(&mut self) {
        self.last = None;
        self.joules = 0.0;
    }
}

struct Sensor {
    path: PathBuf,
    /// Index into the meter's zones.
    zone: usize,
    integral: Option<Integral>,
}

/// One chip.
struct Hwmon {
    sensors: Vec<Sensor>,
}

impl Meter for Hwmon {
    fn read(&mut self, ts: Nanos, out: &mut dyn FnMut(usize, u64)) {
        let zones = self.sensors.iter().map(|s| s.zone + 1).max().unwrap_or(0);
        // A zone is the sum of its sensors, and only where all of them read.
        let mut sums: Vec<Option<u64>> = vec![Some(0); zones];
        for sensor in &mut self.sensors {
            let value = files::number(&sensor.path).ok().map(|value| match &mut sensor.integral {
                Some(integral) => integral.add(ts, value as f64 * 1e-6),
                None => value,
            });
            sums[sensor.zone] = sums[sensor.zone].zip(value).map(|(a, b)| a.saturating_add(b));
        }
        for (zone, sum) in sums.into_iter().enumerate() {
            if let Some(uj) = sum {
                out(zone, uj);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_integrated_by_trapezoids() {
        let mut integral = Integral::default();
        assert_eq!(integral.add(Nanos(0), 10.0), 0);
        assert_eq!(integral.add(Nanos(1_000_000_000), 20.0), 15_000_000);
        assert_eq!(integral.add(Nanos(1_500_000_000), 20.0), 25_000_000);
        assert_eq!(integral.add(Nanos(100_000_000_000), 20.0), 0, "a gap is not bridged");
    }

    #[test]
    fn sensors_by_file_name() {
        for (file, expected) in [
            ("energy12_input", Some(("energy12", false))),
            ("power1_average", Some(("power1", true))),
            ("power1_input", Some(("power1", true))),
            ("power1_label", None),
            ("temp1_input", None),
            ("name", None),
        ] {
            assert_eq!(sensor(file), expected, "{file}");
        }
    }
}
