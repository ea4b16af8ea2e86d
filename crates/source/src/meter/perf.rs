//! RAPL by the perf `power` PMU, where powercap is absent: one counter per event and package,
//! 64 bits wide, in units of 2⁻³² J as its `scale` file says.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use wattpipe_pipeline::units::Nanos;

use crate::ebpf::{
    parse_list,
    sys::{PerfEvent, perf_event_open},
};

use super::{Found, Meter, MeterKind, Problem, ProblemKind, ZoneInfo, files, zone};

/// Events of the PMU: name, kind of zone, `hw.type`, what it covers.
const EVENTS: [(&str, &str, &str, &str); 5] = [
    ("energy-pkg", "package", "cpu", "the processor package: cores, caches, memory controller"),
    ("energy-cores", "core", "cpu", "the cores of the package, in its figure too"),
    ("energy-gpu", "uncore", "gpu", "the integrated graphics, in the package's figure too"),
    ("energy-ram", "dram", "memory", "the memory of the package, beside its figure"),
    (
        "energy-psys",
        "psys",
        "cpu",
        "the platform: packages, memory and what else the board measures",
    ),
];

/// What the PMU offers.
pub(super) fn find(sysfs: &Path) -> Found {
    find_with(sysfs, |event, cpu| perf_event_open(event, cpu).map(File::from))
}

/// `find` with a way to open an event's counter on a CPU.
fn find_with(sysfs: &Path, open: impl Fn(PerfEvent, u32) -> io::Result<File>) -> Found {
    let mut found = Found::default();
    let pmu = sysfs.join("bus/event_source/devices/power");
    let Ok(pmu_type) = files::number(&pmu.join("type")) else {
        return found;
    };
    let cpus = files::text(&pmu.join("cpumask")).map(|t| parse_list(&t)).unwrap_or_default();
    let mut counters = Vec::new();
    let mut refused = None;
    for (event, kind, hw_type, covers) in EVENTS {
        let events = pmu.join("events");
        let Some(config) = files::text(&events.join(event)).ok().and_then(|t| event_code(&t))
        else {
            continue;
        };
        let scale = files::text(&events.join(format!("{event}.scale")));
        let Some(joules) = scale.ok().and_then(|t| t.parse::<f64>().ok()) else { continue };
        for &cpu in &cpus {
            let package = files::package_of(sysfs, cpu);
            let name = match (kind, package) {
                ("psys", _) => "psys".to_owned(),
                (_, Some(package)) => format!("{kind}-{package}"),
                (_, None) => continue,
            };
            // Several CPUs of the mask on one package are its dies; their sum would need all of
            // them, which perf does not promise: the first stands for the package's name.
            if found.zones.iter().any(|z| *z.zone.name == *name) {
                continue;
            }
            match open(PerfEvent { pmu: pmu_type as u32, config }, cpu) {
                Ok(file) => {
                    counters.push(Counter { file, microjoules: joules * 1e6 });
                    let package = package.filter(|_| kind != "psys");
                    found.zones.push(ZoneInfo {
                        zone: Arc::new(zone(&name, hw_type, package, "rapl", None, None)),
                        covers,
                        path: format!("perf power/{event}/ on CPU {cpu}"),
                        resolution_uj: Some(joules * 1e6),
                        fine: true,
                    });
                }
                Err(e) => {
                    refused.get_or_insert(e);
                }
            }
        }
    }
    if !counters.is_empty() {
        let all = (0..counters.len()).collect();
        found.meters.push((Box::new(Perf { counters }), all));
    } else if let Some(e) = refused {
        found.problems.push(Problem {
            meter: MeterKind::Rapl,
            what: format!("the perf power PMU is there but cannot be opened: {e}"),
            consequence: "no energy of the processor is measured".into(),
            remedy: "run as root, grant CAP_PERFMON, or set kernel.perf_event_paranoid to 0".into(),
            kind: ProblemKind::Unreadable,
        });
    }
    found
}

/// `event=0x02`.
fn event_code(text: &str) -> Option<u64> {
    let code = text.split(',').find_map(|term| term.trim().strip_prefix("event="))?;
    match code.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => code.parse().ok(),
    }
}

struct Counter {
    file: File,
    /// Of one count.
    microjoules: f64,
}

struct Perf {
    counters: Vec<Counter>,
}

impl Meter for Perf {
    fn read(&mut self, _: Nanos, out: &mut dyn FnMut(usize, u64)) {
        for (zone, counter) in self.counters.iter_mut().enumerate() {
            let mut count = [0; 8];
            if counter.file.read_exact(&mut count).is_ok() {
                // 2⁶⁴ counts are 4 GJ: the product fits.
                let microjoules = u64::from_ne_bytes(count) as f64 * counter.microjoules;
                out(zone, microjoules as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    #[test]
    fn codes() {
        assert_eq!(event_code("event=0x02"), Some(2));
        assert_eq!(event_code("config=1,event=5"), Some(5));
        assert_eq!(event_code("umask=1"), None);
    }

    #[test]
    fn each_package_by_its_cpu() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("bus/event_source/devices/power/type", "18\n");
        put("bus/event_source/devices/power/cpumask", "0,8\n");
        put("bus/event_source/devices/power/events/energy-pkg", "event=0x02\n");
        put(
            "bus/event_source/devices/power/events/energy-pkg.scale",
            "2.3283064365386962890625e-10\n",
        );
        put("bus/event_source/devices/power/events/energy-psys", "event=0x05\n");
        put(
            "bus/event_source/devices/power/events/energy-psys.scale",
            "2.3283064365386962890625e-10\n",
        );
        put("devices/system/cpu/cpu0/topology/physical_package_id", "0\n");
        put("devices/system/cpu/cpu8/topology/physical_package_id", "1\n");
        let counts = |event: PerfEvent, cpu: u32| {
            let mut file = tempfile::tempfile()?;
            file.write_all(&(((event.config << 32) * u64::from(cpu + 1)).to_ne_bytes()))?;
            io::Seek::rewind(&mut file)?;
            Ok(file)
        };
        let mut found = find_with(dir.path(), counts);
        let names: Vec<_> = found.zones.iter().map(|z| z.zone.name.to_string()).collect();
        assert_eq!(names, ["package-0", "package-1", "psys"]);
        assert_eq!(found.zones[2].zone.package, None);
        let mut out = Vec::new();
        found.meters[0].0.read(Nanos(0), &mut |zone, uj| out.push((zone, uj)));
        assert_eq!(out, [(0, 2_000_000), (1, 18_000_000), (2, 5_000_000)]);

        let denied = find_with(dir.path(), |_, _| Err(io::Error::from_raw_os_error(libc::EACCES)));
        assert!(denied.zones.is_empty() && denied.problems[0].remedy.contains("CAP_PERFMON"));
    }
}
