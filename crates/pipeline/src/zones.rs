//! Which energy zone holds which, by name: the one rule for meters, recordings and the model.
//!
//! `psys` (the platform) holds every package and its memory; a package holds its cores and its
//! uncore (integrated graphics); memory (`dram`) stands beside the package. A zone of a die,
//! `core-0-die-1`, lies in the zone of the same die, `package-0-die-1`.

/// Names of the zones that hold all of zone `name`'s energy where they exist, nearest first.
pub fn containers(name: &str) -> Vec<String> {
    let (kind, place) = match name.find('-') {
        Some(at) => name.split_at(at),
        None => (name, ""),
    };
    match kind {
        // As the kernel names it, without a place: the machine has one package.
        "core" | "uncore" if place.is_empty() => {
            ["package", "package-0", "psys"].map(str::to_owned).to_vec()
        }
        "core" | "uncore" => vec![format!("package{place}"), "psys".to_owned()],
        "package" | "dram" => vec!["psys".to_owned()],
        _ => Vec::new(),
    }
}

/// The zone that contains `name` among those that `present` knows: the nearest one.
pub fn container(name: &str, present: impl Fn(&str) -> bool) -> Option<String> {
    containers(name).into_iter().find(|c| present(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, present: &[&str], expected: Option<&str>) {
        let got = container(name, |z| present.contains(&z));
        assert_eq!(got.as_deref(), expected, "{name} among {present:?}");
    }

    #[test]
    fn a_zone_lies_in_the_nearest_one_that_is_there() {
        check("core-0", &["package-0", "package-1", "psys"], Some("package-0"));
        check("core-1", &["package-0", "psys"], Some("psys"));
        check("uncore-0-die-1", &["package-0-die-0", "package-0-die-1"], Some("package-0-die-1"));
        check("core", &["package-0", "psys"], Some("package-0"));
        check("dram-0", &["package-0"], None);
        check("dram-0", &["package-0", "psys"], Some("psys"));
        check("package-0", &["package-0"], None);
        check("psys", &["package-0"], None);
        check("host", &["psys", "package-0"], None);
    }
}
