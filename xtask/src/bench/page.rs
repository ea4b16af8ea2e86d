//! `docs/performance.md`: the tables between its marks, from the results there are.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

const PAGE: &str = "docs/performance.md";
const BEGIN: &str = "<!-- results: written by cargo xtask bench -->\n";
const END: &str = "<!-- end of results -->\n";

pub(super) fn write(root: &Path, results: &Path) -> Result<()> {
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let (head, rest) = text.split_once(BEGIN).context("docs/performance.md lost its mark")?;
    let (_, tail) = rest.split_once(END).context("docs/performance.md lost its end mark")?;
    let mut out = String::new();
    type Section = fn(&Value, &mut String);
    let sections: [(&str, Section); 5] =
        [("probe", probe), ("whole", whole), ("stages", stages), ("load", load), ("agent", agent)];
    for (name, section) in sections {
        match fs::read(results.join(format!("{name}.json"))) {
            Ok(bytes) => section(&serde_json::from_slice(&bytes)?, &mut out),
            Err(_) => {
                let _ = writeln!(out, "\n(`{name}` was not measured.)");
            }
        }
    }
    fs::write(page, format!("{head}{BEGIN}{out}\n{END}{tail}"))?;
    Ok(())
}

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn probe(value: &Value, out: &mut String) {
    let _ = writeln!(out, "\n### A switch in the kernel\n");
    let _ = writeln!(out, "| program | ns a run | over empty | ratio |\n|---|---|---|---|");
    for row in rows(&value["probe"]["programs"]) {
        let _ = writeln!(
            out,
            "| {} | {:.1} | {:.1} | {:.2} |",
            text(&row["program"]),
            number(&row["ns"]),
            number(&row["over_empty"]),
            number(&row["ratio"])
        );
    }
    let _ = writeln!(
        out,
        "\nReading the ring: {:.1} ns a switch. Under load: `{}`. Idle: `{}`.",
        number(&value["probe"]["reader_ns_per_switch"]),
        value["agent"],
        value["idle"]
    );
}

fn whole(value: &Value, out: &mut String) {
    let _ = writeln!(out, "\n### The whole machine\n");
    let _ = writeln!(
        out,
        "{} pipe pairs, about {} switches a run, {} interleaved rounds; seconds of wall time.\n",
        value["cpus"], value["switches"], value["rounds"]
    );
    let _ =
        writeln!(out, "| beside the load | median | least | most | ratio |\n|---|---|---|---|---|");
    for row in rows(&value["whole_machine"]) {
        let _ = writeln!(
            out,
            "| {} | {:.3} | {:.3} | {:.3} | {:.3} |",
            text(&row["beside"]),
            number(&row["seconds"]),
            number(&row["least"]),
            number(&row["most"]),
            number(&row["ratio"])
        );
    }
    let _ = writeln!(
        out,
        "\nThe agent itself used {:.3} CPUs meanwhile.\n\n### Waking in time\n\n\
         A thread that wakes every millisecond; by how many µs it is late (medians over the rounds).\n",
        number(&value["agent_cpus"])
    );
    let _ = writeln!(out, "| | p50 | p99 | worst |\n|---|---|---|---|");
    for (name, key) in [("without", "without"), ("with wattpipe", "with")] {
        let row = &value["wakeup"][key];
        let _ = writeln!(
            out,
            "| {name} | {:.0} | {:.0} | {:.0} |",
            number(&row["p50_us"]),
            number(&row["p99_us"]),
            number(&row["max_us"])
        );
    }
}

fn stages(value: &Value, out: &mut String) {
    let _ = writeln!(out, "\n### From memory, one core\n");
    let _ = writeln!(out, "| `delta` alone | ns a switch | M switches/s |\n|---|---|---|");
    for row in rows(&value["delta"]) {
        let _ = writeln!(
            out,
            "| {} | {:.1} | {:.1} |",
            text(&row["case"]),
            number(&row["ns_per_switch"]),
            number(&row["million_switches_per_second"])
        );
    }
    let _ = writeln!(
        out,
        "\n| what varies | CPUs | processes | switches/s | ns a switch | µs a window | M \
         switches/s |\n|---|---|---|---|---|---|---|"
    );
    for row in rows(&value["chain"]) {
        let ns = number(&row["ns_per_switch"]);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {ns:.1} | {:.0} | {:.1} |",
            text(&row["group"]),
            row["cpus"],
            row["processes"],
            row["switches_per_second"],
            number(&row["us_per_window"]),
            1e3 / ns
        );
    }
}

fn load(value: &Value, out: &mut String) {
    let _ = writeln!(
        out,
        "\n### The agent under load\n\n| load beside what ran | window | switches/s | agent, % of one \
         CPU | resident MiB | series | page KiB | lost |\n|---|---|---|---|---|---|---|---|"
    );
    for row in rows(value) {
        let _ = writeln!(
            out,
            "| {} | {} | {:.0} | {:.2} | {:.0} | {} | {:.0} | {} |",
            text(&row["load"]),
            text(&row["window"]),
            number(&row["switches_per_second"]),
            number(&row["cpu_percent"]),
            number(&row["rss_mib"]),
            row["series"],
            number(&row["page_kib"]),
            row["lost"]
        );
    }
}

fn agent(value: &Value, out: &mut String) {
    let _ = writeln!(out, "\n### The agent\n");
    let _ = writeln!(out, "| | |\n|---|---|");
    for row in rows(&value["memory"]) {
        let _ = writeln!(
            out,
            "| resident at {} processes that run in every window | {:.1} MiB; {:.1} MiB without \
             the mapped BPF maps |",
            row["processes"],
            number(&row["rss_mib"]),
            number(&row["rss_without_bpf_maps_mib"])
        );
    }
    let _ = writeln!(out, "| binary, stripped | {:.1} MiB |", number(&value["binary_mib"]));
    let first = &value["first_record_ms_beyond_window"];
    let _ = writeln!(
        out,
        "| start to first record, beyond the window | {:.0} ms (median of 9; {:.0} to {:.0}) |",
        number(&first["median"]),
        number(&first["least"]),
        number(&first["most"])
    );
}
