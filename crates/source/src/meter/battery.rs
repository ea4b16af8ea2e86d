//! The battery's discharge: the whole machine's power while it runs from the battery. Only where
//! asked for (`meters: [battery]`): it updates every few seconds and says nothing while plugged in.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use wattpipe_pipeline::units::Nanos;

use super::{
    Found, Meter, MeterKind, Problem, ProblemKind, ZoneInfo, files, hwmon::Integral, zone,
};

/// What the power supplies offer.
pub(super) fn find(sysfs: &Path) -> Found {
    let mut found = Found::default();
    let class = sysfs.join("class/power_supply");
    let supplies: Vec<Supply> = files::names(&class)
        .into_iter()
        .map(|name| class.join(name))
        .filter(|dir| files::text(&dir.join("type")).is_ok_and(|t| t == "Battery"))
        // A mouse's battery is a device's, not the machine's.
        .filter(|dir| files::text(&dir.join("scope")).map_or(true, |s| s != "Device"))
        .map(|dir| Supply { dir })
        .collect();
    match supplies.first() {
        Some(first) => {
            let zone = zone("psys", "battery", None, "battery", None, None);
            found.zones.push(ZoneInfo {
                zone: Arc::new(zone),
                covers: "the whole machine, while it runs from the battery",
                path: first.dir.display().to_string(),
                resolution_uj: None,
                fine: false,
            });
            let meter = Battery { supplies, integral: Integral::default() };
            found.meters.push((Box::new(meter), vec![0]));
        }
        None => found.problems.push(Problem {
            meter: MeterKind::Battery,
            what: format!("no battery under {}", class.display()),
            consequence: "nothing is read from it".into(),
            remedy: "leave `battery` out of `meters`".into(),
            kind: ProblemKind::Absent,
        }),
    }
    found
}

struct Supply {
    dir: PathBuf,
}

impl Supply {
    /// Watts it gives; `None` while it charges, is full, or does not tell.
    fn watts(&self) -> Option<f64> {
        if files::text(&self.dir.join("status")).ok()? != "Discharging" {
            return None;
        }
        // Some drivers report discharge as a negative number.
        let micro = |file: &str| {
            let text = files::text(&self.dir.join(file)).ok()?;
            text.trim_start_matches('-').parse::<u64>().ok().map(|v| v as f64 * 1e-6)
        };
        micro("power_now").or_else(|| Some(micro("current_now")? * micro("voltage_now")?))
    }
}

struct Battery {
    supplies: Vec<Supply>,
    integral: Integral,
}

impl Meter for Battery {
    fn read(&mut self, ts: Nanos, out: &mut dyn FnMut(usize, u64)) {
        // Laptops with two batteries drain them one after the other.
        let discharging: Vec<f64> = self.supplies.iter().filter_map(Supply::watts).collect();
        if discharging.is_empty() {
            self.integral.interrupt();
        } else {
            out(0, self.integral.add(ts, discharging.iter().sum()));
        }
    }
}
