//! `wattpipe doctor`: what this host offers, what will be used, and what each missing thing costs.

mod host;
mod probe;

use std::fmt::Write as _;

use serde::Serialize;
use wattpipe_pipeline::{Registry, registry::HostRoots};

use crate::{
    Exit,
    cli::DoctorFormat,
    commands,
    config::{self, Input},
    privileges::Held,
    run,
};

/// Whether a thing is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// There, and used.
    Ok,
    /// Worth knowing; nothing is lost.
    Note,
    /// Not there; something is lost.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// `privileges`, `kernel`, `btf`, ...
    pub(crate) area: &'static str,
    /// Whether it is there.
    pub(crate) status: Status,
    /// What was found.
    pub(crate) found: String,
    /// What follows from that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consequence: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(crate) fn ok(area: &'static str, found: impl Into<String>) -> Self {
        Self { area, status: Status::Ok, found: found.into(), consequence: None, remedy: None }
    }

    pub(crate) fn note(
        area: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { status: Status::Note, ..Self::missing(area, found, consequence, remedy) }
    }

    pub(crate) fn missing(
        area: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Missing,
            consequence: Some(consequence.into()),
            remedy: Some(remedy.into()),
            ..Self::ok(area, found)
        }
    }
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    version: &'static str,
    findings: Vec<Finding>,
    /// What an agent started now, without a configuration, would use.
    used: Vec<String>,
    /// A configuration was given: its `host` roots were looked at.
    #[serde(skip)]
    configured: bool,
}

/// Looks at the host and prints what it finds.
pub(crate) fn doctor(format: DoctorFormat, input: &Input, registry: &Registry) -> Exit {
    let roots: HostRoots = match input.files.is_empty() && input.sets.is_empty() {
        true => HostRoots::default(),
        false => {
            let env = |name: &str| std::env::var(name).ok();
            let (loaded, report) = config::load(input, registry, &env);
            commands::tell(&report);
            match loaded {
                Some(loaded) => loaded.host.into(),
                None => return Exit::Usage,
            }
        }
    };
    let runtime = match run::runtime(Held::default()) {
        Ok(runtime) => runtime,
        Err(e) => return commands::fail(&format!("cannot start: {e}")),
    };
    let mut diagnosis = runtime.block_on(diagnose(&roots, registry));
    diagnosis.configured = !input.files.is_empty();
    runtime.shutdown_background();
    match format {
        DoctorFormat::Text => commands::print(&text(&diagnosis)),
        DoctorFormat::Json => match serde_json::to_string_pretty(&diagnosis) {
            Ok(json) => commands::print(&format!("{json}\n")),
            Err(e) => commands::fail(&e.to_string()),
        },
    }
}

async fn diagnose(roots: &HostRoots, registry: &Registry) -> Diagnosis {
    let mut findings = probe::needs(roots);
    let probe = probe::attach(registry, roots).await;
    let works = probe.status == Status::Ok;
    findings.push(probe);
    let (meters, energy) = host::meters(roots);
    findings.extend(meters);
    findings.push(host::cgroups(roots));
    findings.push(host::pid_namespace(roots));
    findings.extend(host::runtimes(roots));
    findings.push(host::statistics(roots));
    let source = match works {
        true => "source: ebpf (every context switch, exact)",
        false => "source: procfs (what outlives a window, no process's switches)",
    };
    let cgroup = findings.iter().find(|f| f.area == "cgroups").map(|f| f.found.clone());
    let used = [Some(source.to_owned()), Some(energy), cgroup.map(|c| format!("cgroups: {c}"))];
    Diagnosis {
        version: env!("CARGO_PKG_VERSION"),
        findings,
        used: used.into_iter().flatten().collect(),
        configured: false,
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    for finding in &diagnosis.findings {
        let mark = match finding.status {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Missing => "MISSING",
        };
        let _ = writeln!(out, "{mark:<8} {:<17} {}", finding.area, finding.found);
        for (name, what) in [("consequence", &finding.consequence), ("remedy", &finding.remedy)] {
            if let Some(what) = what {
                let _ = writeln!(out, "{:<26} {name}: {what}", "");
            }
        }
    }
    let _ = match diagnosis.configured {
        true => writeln!(
            out,
            "\nYour configuration was asked where the host is (`host`), no more: `wattpipe validate` \
             checks it. Without one, wattpipe would use here:"
        ),
        false => writeln!(out, "\nWithout a configuration, wattpipe will use here:"),
    };
    for line in &diagnosis.used {
        let _ = writeln!(out, "  {line}");
    }
    out
}
