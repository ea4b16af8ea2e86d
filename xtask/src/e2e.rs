//! `cargo xtask e2e`: the real `wattpipe` against receivers that others wrote.
//!
//! One recording is replayed into all exporters at once. What the `file` exporter wrote as JSON
//! lines says what every receiver must have got: names, units, kinds, temporality, start times,
//! times and values of every point, no point missing and none too many.
//!
//! Receivers: rotel (gRPC plain and gzip, HTTP protobuf and JSON), the OpenTelemetry Collector
//! (the same, delta too, and its Prometheus exporter), Prometheus (its OTLP receiver, and scraping
//! us). They are built or installed once, under `target/e2e`.
//!
//! Needs: Go 1.25 or later, Python 3 with venv. About nine minutes from clean on two cores, under
//! one minute after that.

pub(crate) mod build;
mod compare;
mod expect;
mod otlp;
mod prom;
mod rotel;
mod stream;
pub(crate) mod world;

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, cargo, root};
use world::{Program, port};

/// Windows of the recording.
const WINDOWS: u64 = 8;
/// What programs may take to start, to answer, and to write what they have got.
const PATIENCE: Duration = Duration::from_secs(60);

/// How requests travel in one run to one receiver.
struct Way {
    name: &'static str,
    exporter: &'static str,
    settings: &'static str,
}

/// Every way that OTLP can take, to both receivers of OTLP.
const WAYS: [Way; 4] = [
    Way { name: "grpc-plain", exporter: "otlp_grpc", settings: "compression: none" },
    Way { name: "grpc-gzip", exporter: "otlp_grpc", settings: "compression: gzip" },
    Way { name: "http-proto", exporter: "otlp_http", settings: "encoding: proto" },
    Way { name: "http-json", exporter: "otlp_http", settings: "encoding: json" },
];

pub(crate) fn e2e() -> Result<()> {
    let base = root().join("target/e2e");
    fs::create_dir_all(&base)?;
    let tools = build::all(&base)?;
    process::run(&mut cargo(&["build", "--quiet", "--package", "wattpipe-agent"]))?;
    let wattpipe = root().join("target/debug/wattpipe");

    let run = base.join("run");
    if run.exists() {
        fs::remove_dir_all(&run)?;
    }
    fs::create_dir_all(&run)?;
    let mut world = World::new(&run)?;
    world.start_receivers(&tools)?;
    let config = world.write_config()?;

    println!("e2e: replaying {WINDOWS} windows into every receiver");
    let mut agent = Program::start(
        Command::new(&wattpipe).arg("run").arg("--config").arg(&config),
        "wattpipe",
        &run,
    )?;
    // One receiver is not there until half of the windows are over; it must miss nothing.
    std::thread::sleep(Duration::from_secs(WINDOWS / 2));
    world.start_late(&tools)?;
    // Prometheus needs a few scrapes of the running agent; promtool gets a page of it as well.
    let page = world::patiently(PATIENCE, || {
        let page = world::get(world.scrape, "/metrics", "text/plain")?;
        ensure!(page.contains("process_cpu_time_seconds_total{"), "no window is on the page");
        Ok(page)
    })?;
    agent.wait(2 * PATIENCE).context("wattpipe did not end by itself")?;

    let checks = world.check(&tools, &page)?;
    println!("e2e: {checks} comparisons hold");
    Ok(())
}

/// All programs of one run, and where they listen.
struct World {
    run: std::path::PathBuf,
    rotel: Vec<(u16, u16)>,
    collector: Vec<(u16, u16)>,
    collector_prometheus: u16,
    late: (u16, u16),
    prometheus: u16,
    scrape: u16,
    programs: Vec<Program>,
}

impl World {
    fn new(run: &Path) -> Result<Self> {
        let pair = || Ok::<_, anyhow::Error>((port()?, port()?));
        Ok(Self {
            run: run.to_owned(),
            rotel: WAYS.iter().map(|_| pair()).collect::<Result<_>>()?,
            // One more for delta sums.
            collector: (0..=WAYS.len()).map(|_| pair()).collect::<Result<_>>()?,
            collector_prometheus: port()?,
            late: pair()?,
            prometheus: port()?,
            scrape: port()?,
            programs: Vec::new(),
        })
    }

    fn start_receivers(&mut self, tools: &build::Tools) -> Result<()> {
        for (way, (grpc, http)) in WAYS.iter().zip(self.rotel.clone()) {
            self.programs.push(rotel::start(&tools.rotel, way.name, grpc, http, &self.run)?);
        }
        let config = otlp::collector_config("collector", &self.collector, &self.run);
        let config = otlp::with_prometheus(config, self.collector_prometheus);
        self.start_collector(tools, "collector", config)?;
        self.programs.push(prom::start(
            &tools.prometheus,
            self.prometheus,
            self.scrape,
            &self.run,
        )?);
        let ports = self.rotel.iter().chain(&self.collector).flat_map(|(a, b)| [*a, *b]);
        for port in ports.chain([self.collector_prometheus, self.prometheus]) {
            world::wait_for(port, 2 * PATIENCE)?;
        }
        Ok(())
    }

    fn start_late(&mut self, tools: &build::Tools) -> Result<()> {
        let config = otlp::collector_config("late", &[self.late], &self.run);
        self.start_collector(tools, "late", config)
    }

    fn start_collector(&mut self, tools: &build::Tools, name: &str, config: String) -> Result<()> {
        let path = self.run.join(format!("{name}.yaml"));
        fs::write(&path, config)?;
        let mut collector = Command::new(&tools.collector);
        collector.arg("--config").arg(&path);
        self.programs.push(Program::start(&mut collector, name, &self.run)?);
        Ok(())
    }

    /// The agent's configuration: one replayed stream into everything.
    fn write_config(&self) -> Result<std::path::PathBuf> {
        let recording = self.run.join("recording.jsonl");
        fs::write(&recording, stream::recording(WINDOWS)?)?;
        let mut exporters = vec![
            format!(
                "  file/lines: {{ path: {}, format: jsonl }}\n",
                self.run.join("out.jsonl").display()
            ),
            format!(
                "  file/otlp: {{ path: {}, format: otlp_json }}\n",
                self.run.join("file.json").display()
            ),
            format!("  prometheus: {{ endpoint: \"127.0.0.1:{}\" }}\n", self.scrape),
            format!(
                "  otlp_http/prometheus: {{ metrics_endpoint: \"http://127.0.0.1:{}/api/v1/otlp/v1/metrics\", resource_to_telemetry_conversion: true }}\n",
                self.prometheus
            ),
            format!(
                "  otlp_grpc/delta: {{ endpoint: \"127.0.0.1:{}\", temporality: delta }}\n",
                self.collector[WAYS.len()].0
            ),
        ];
        exporters.push(format!(
            "  otlp_grpc/late: {{ endpoint: \"127.0.0.1:{}\", retry_on_failure: {{ initial_interval: 500ms }} }}\n",
            self.late.0
        ));
        for (receiver, ports) in [("rotel", &self.rotel), ("collector", &self.collector)] {
            for (way, (grpc, http)) in WAYS.iter().zip(ports) {
                let endpoint = match way.exporter {
                    "otlp_grpc" => format!("127.0.0.1:{grpc}"),
                    _ => format!("http://127.0.0.1:{http}"),
                };
                exporters.push(format!(
                    "  {}/{receiver}-{}: {{ endpoint: \"{endpoint}\", {} }}\n",
                    way.exporter, way.name, way.settings
                ));
            }
        }
        let ids: Vec<&str> = exporters
            .iter()
            .filter_map(|e| e.trim_start().split_once(": {").map(|(id, _)| id))
            .collect();
        let text = format!(
            "sources: {{ replay: {{ path: {}, speed: 1 }} }}\n\
             processors: {{ delta: {{}}, attribution: {{ containers: [] }}, power_model: {{ weight: cpu_time }} }}\n\
             exporters:\n{}\
             service: {{ shutdown_timeout: 60s, pipelines: {{ energy: {{ sources: [replay], processors: [delta, attribution, power_model], exporters: [{}] }} }} }}\n",
            recording.display(),
            exporters.concat(),
            ids.join(", "),
        );
        let config = self.run.join("wattpipe.yaml");
        fs::write(&config, text)?;
        Ok(config)
    }

    /// Compares what everybody got with what the file says; returns how many comparisons were made.
    fn check(&mut self, tools: &build::Tools, page: &str) -> Result<usize> {
        let lines = fs::read_to_string(self.run.join("out.jsonl"))?;
        let cumulative = expect::points(&lines, expect::Kind::Cumulative)?;
        let delta = expect::points(&lines, expect::Kind::Delta)?;
        ensure!(cumulative.len() > 100, "the recording gave only {} points", cumulative.len());
        let collector_page = || world::get(self.collector_prometheus, "/metrics", "text/plain");
        let mut wrong = Vec::new();
        let mut checks = 0;
        // Receivers write what they have got when they see fit.
        let until = Instant::now() + PATIENCE;
        let mut check = |name: &str, compare: &dyn Fn() -> Result<()>| {
            checks += 1;
            match world::patiently(until.saturating_duration_since(Instant::now()), compare) {
                Ok(()) => println!("e2e: ok      {name}"),
                Err(e) => {
                    println!("e2e: FAILED  {name}: {e:#}");
                    wrong.push(name.to_owned());
                }
            }
        };
        let holds = |file: String, expected: &expect::Points| {
            compare::all(expected, &otlp::points(&self.run.join(file))?)
        };
        check("file otlp_json", &|| holds("file.json".to_owned(), &cumulative));
        for (i, way) in WAYS.iter().enumerate() {
            let name = format!("collector {}", way.name);
            check(&name, &|| holds(format!("collector-{i}.json"), &cumulative));
        }
        check("collector that was down", &|| holds("late-0.json".to_owned(), &cumulative));
        let file = || format!("collector-{}.json", WAYS.len());
        check("collector delta", &|| holds(file(), &delta));
        for way in &WAYS {
            let mut expected = cumulative.clone();
            if way.name == "http-json" {
                // rotel 0.0.1a15 reads no integer that is text, as JSON of protobuf has them.
                expected.retain(|id, _| id.metric != "process.context_switches");
            }
            let log = self.run.join(format!("rotel-{}.log", way.name));
            let name = format!("rotel {}", way.name);
            check(&name, &|| compare::all(&expected, &rotel::points(&log)?));
        }
        let last = expect::last(&cumulative);
        check("promtool on our page", &|| prom::promtool(&tools.promtool, page));
        check("promtool on the collector's page", &|| {
            prom::promtool(&tools.promtool, &collector_page()?)
        });
        check("collector's prometheus names", &|| compare::names(&last, &collector_page()?));
        check("prometheus otlp", &|| compare::last(&last, &prom::values(self.prometheus, "otlp")?));
        check("prometheus scrape", &|| {
            compare::some_window(&cumulative, &prom::values(self.prometheus, "scrape")?)
        });
        for program in &mut self.programs {
            program.stop();
        }
        if !wrong.is_empty() {
            bail!("{} of {checks} comparisons failed: {}", wrong.len(), wrong.join(", "));
        }
        Ok(checks)
    }
}
