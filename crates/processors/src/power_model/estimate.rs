//! What a machine without meters draws, by its CPU model: whole-server wall watts per hardware
//! thread, idle and at full load, linear in between.
//!
//! The figures are medians recomputed from SPECpower_ssj2008 results as published with the Cloud
//! Carbon Footprint coefficients (`ccf-coefficients`, Apache-2.0, SPECpower-2026-03-09.csv), with
//! that project's matching of models to families. Watts per thread are a derivation and no metric
//! of SPEC's. Expect ±50 %: a linear estimate alone reads 10 to 35 % low between 10 and 50 % load.

use std::{fs, path::Path};

/// A CPU family of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// Its usual name.
    pub name: &'static str,
    /// Watts per hardware thread when idle.
    pub idle: f64,
    /// Watts per hardware thread at full load.
    pub max: f64,
    /// Servers behind the medians.
    pub servers: u32,
}

const fn family(name: &'static str, idle: f64, max: f64, servers: u32) -> Family {
    Family { name, idle, max, servers }
}

/// The table.
pub const FAMILIES: [Family; 14] = [
    family("Haswell", 0.66, 3.83, 17),
    family("Broadwell", 0.53, 3.09, 17),
    family("Skylake-SP", 0.53, 4.15, 72),
    family("Cascade Lake", 0.60, 4.05, 69),
    family("Ice Lake", 0.76, 3.88, 16),
    family("Sapphire Rapids", 0.95, 4.00, 47),
    family("Emerald Rapids", 0.80, 3.81, 4),
    family("Granite Rapids", 0.56, 2.69, 22),
    family("EPYC 1", 0.75, 2.33, 9),
    family("EPYC 2", 0.44, 1.66, 36),
    family("EPYC 3", 0.42, 1.92, 28),
    family("EPYC 4", 0.38, 1.85, 41),
    family("EPYC 5", 0.22, 1.18, 41),
    family("Neoverse N1", 0.62, 1.92, 7),
];

/// Where the model is not in the table or not known: the medians of the table's columns.
pub const GENERIC: Family = family("generic server", 0.58, 2.89, 14);

/// What is known about the machine's processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The table's row.
    pub family: Family,
    /// It runs under a hypervisor: its threads are a share of a machine it cannot see.
    pub virtual_machine: bool,
}

impl Machine {
    /// Reads `cpuinfo` under this procfs; an unreadable file or unknown model is [`GENERIC`].
    pub fn detect(procfs: &Path) -> Self {
        fs::read_to_string(procfs.join("cpuinfo")).map_or(Self::UNKNOWN, |text| Self::parse(&text))
    }

    /// Nothing is known.
    pub const UNKNOWN: Self = Self { family: GENERIC, virtual_machine: false };

    /// From the text of `cpuinfo`.
    pub fn parse(cpuinfo: &str) -> Self {
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim())
            })
        };
        let number = |name: &str| field(name).and_then(|v| v.parse::<u32>().ok());
        let hex = |name: &str| {
            let text = field(name)?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        let name = match (field("vendor_id"), number("cpu family"), number("model")) {
            (Some("GenuineIntel"), Some(6), Some(model)) => intel(model, number("stepping")),
            (Some("AuthenticAMD"), Some(family), Some(model)) => amd(family, model),
            // Arm's own implementer number and part number.
            _ if hex("CPU implementer") == Some(0x41) && hex("CPU part") == Some(0xd0c) => {
                Some("Neoverse N1")
            }
            _ => None,
        };
        let found = name.and_then(|n| FAMILIES.iter().find(|f| f.name == n));
        Self {
            family: found.copied().unwrap_or(GENERIC),
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor")),
        }
    }
}

fn intel(model: u32, stepping: Option<u32>) -> Option<&'static str> {
    Some(match model {
        60 | 63 | 69 | 70 => "Haswell",
        61 | 71 | 79 | 86 => "Broadwell",
        // One model number for three generations: Cascade and Cooper Lake are later steppings.
        85 if stepping.is_some_and(|s| s >= 5) => "Cascade Lake",
        85 => "Skylake-SP",
        106 | 108 => "Ice Lake",
        143 => "Sapphire Rapids",
        207 => "Emerald Rapids",
        173 | 174 => "Granite Rapids",
        _ => return None,
    })
}

fn amd(family: u32, model: u32) -> Option<&'static str> {
    Some(match (family, model) {
        (0x17, 0x00..=0x0f) => "EPYC 1",
        (0x17, 0x30..=0x3f) => "EPYC 2",
        (0x19, 0x00..=0x0f) => "EPYC 3",
        (0x19, 0x10..=0x1f | 0xa0..=0xaf) => "EPYC 4",
        (0x1a, 0x00..=0x1f) => "EPYC 5",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cpuinfo: &str, family: &str, virtual_machine: bool) {
        let got = Machine::parse(cpuinfo);
        assert_eq!((got.family.name, got.virtual_machine), (family, virtual_machine), "{cpuinfo}");
    }

    #[test]
    fn models_by_number() {
        let intel = |model: u32, stepping: u32| {
            format!(
                "processor : 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\nstepping\t: {stepping}\nflags\t\t: fpu vme\n"
            )
        };
        check(&intel(85, 4), "Skylake-SP", false);
        check(&intel(85, 7), "Cascade Lake", false);
        check(&intel(143, 8), "Sapphire Rapids", false);
        check(&intel(1, 0), "generic server", false);
        let amd = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\nmodel name : AMD EPYC\nflags : fpu hypervisor lm\n";
        check(amd, "EPYC 4", true);
        check("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Neoverse N1", false);
        check("", "generic server", false);
    }

    #[test]
    fn the_generic_row_is_the_median_of_each_column() {
        let median = |column: fn(&Family) -> f64| {
            let mut values: Vec<f64> = FAMILIES.iter().map(column).collect();
            values.sort_by(f64::total_cmp);
            (values[6] + values[7]) / 2.0
        };
        assert!((median(|f| f.idle) - GENERIC.idle).abs() < 1e-9);
        assert!((median(|f| f.max) - GENERIC.max).abs() < 1e-9);
    }
}
