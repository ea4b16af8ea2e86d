//! `docs/metrics.md`: every metric that leaves the agent. Names, units and attributes come from the
//! exporters' table; when one is absent, and the agent's own metrics, stand here.

use std::fmt::Write as _;

use wattpipe_exporters::semconv::{
    ACTIVE, CONTEXT_SWITCHES, CPU_TIME, ENERGY, ENERGY_MODE, ENERGY_SOURCE, ENERGY_ZONE, HW_ENERGY,
    HW_ID, HW_TYPE, IDENTIFYING, IDLE, LEVELS, Level, Metric, OVERFLOW, POWER_MODEL_NAME, SCOPE,
    SERVICE_NAME, SHORT_LIVED, UNATTRIBUTED,
};

const HEAD: &str = "\
# Metrics

Generated from the program (`cargo xtask docs`); do not edit.

What the exporters `otlp_grpc`, `otlp_http`, `prometheus` and `file` (`format: otlp_json`) send. All are monotonic sums
(of integers for `process.context_switches`, of doubles for the rest) that start at 0 with their workload; power is their
rate. `temporality: delta` sends increases instead. Records (`stdout`, `file`) are another form of the same figures.

## Metrics of the host and its workloads

| OTLP | Prometheus | unit | one series for each | absent |
|---|---|---|---|---|
";

const OWN_HEAD: &str = "
## The agent's own metrics

Served on `service::telemetry::metrics::endpoint` (nowhere by default), and pushed by OTLP where
`OTEL_EXPORTER_OTLP_ENDPOINT` names a receiver. `level: basic` keeps what tells of losses; names are the same in both
protocols. A metric comes into being with the component that counts it.

| metric | labels | what it tells |
|---|---|---|
";

/// Names, their labels, and what they tell.
const OWN: &[(&str, &str, &str)] = &[
    ("wattpipe_source_switches_total", "source", "context switches received"),
    (
        "wattpipe_source_lost_total",
        "source",
        "context switches lost before userland; their time is unattributed",
    ),
    (
        "wattpipe_source_late_total",
        "source",
        "switches moved up to the window edge that they missed",
    ),
    ("wattpipe_source_malformed_total", "source", "records that made no sense"),
    (
        "wattpipe_source_life_cycle_lost_total",
        "source",
        "fork, exec and exit records lost; a snapshot makes up for them",
    ),
    (
        "wattpipe_source_untraced_switches_total",
        "source",
        "switches the kernel's tracepoint did not show, put back in",
    ),
    ("wattpipe_source_flush_ipis_total", "source", "CPUs interrupted to close a window"),
    (
        "wattpipe_probe_run_seconds_total",
        "source",
        "time the kernel spent in the probe; only where `kernel.bpf_stats_enabled` is set",
    ),
    ("wattpipe_source_processes", "", "processes that `procfs` follows"),
    (
        "wattpipe_meter_missed_readings_total",
        "",
        "meter readings that failed or did not come within 50 ms",
    ),
    (
        "wattpipe_meter_dropped_readings_total",
        "zone, reason",
        "meter readings that gave no energy, or whose energy is in doubt",
    ),
    ("wattpipe_cgroup_walks_total", "", "walks of the cgroup tree"),
    (
        "wattpipe_cgroup_dropped_total",
        "",
        "cgroups not remembered or not watched because of a limit",
    ),
    ("wattpipe_cgroup_known", "", "cgroups whose path is known"),
    (
        "wattpipe_processor_incoming_items_total",
        "pipeline, processor",
        "switches or rows that a processor was given",
    ),
    (
        "wattpipe_processor_outgoing_items_total",
        "pipeline, processor",
        "switches or rows that it passed on",
    ),
    (
        "wattpipe_processor_failed_items_total",
        "pipeline, processor",
        "switches or rows that it could not process",
    ),
    (
        "wattpipe_delta_contradictions_total",
        "processor",
        "switches whose predecessor was not who had the CPU",
    ),
    ("wattpipe_attribution_processes", "", "processes in the cache"),
    ("wattpipe_attribution_containers", "", "containers whose name is remembered"),
    (
        "wattpipe_attribution_evicted_total",
        "",
        "processes dropped from the cache while they may still run",
    ),
    ("wattpipe_attribution_deferred_total", "", "look-ups put off because too many were waiting"),
    (
        "wattpipe_attribution_unresolved_total",
        "kind",
        "identities that could not be completed in time",
    ),
    (
        "wattpipe_energy_residual_joules",
        "",
        "measured minus attributed minus idle minus unattributed, in joules; 0 but for rounding",
    ),
    ("wattpipe_idle_baseline_watts", "zone", "idle power as learnt, in watts"),
    ("wattpipe_idle_baseline_error_watts", "zone", "its standard error, in watts"),
    ("wattpipe_idle_baseline_trusted", "zone", "1 where it is used, 0 while it is being learnt"),
    ("wattpipe_filter_dropped_total", "processor", "rows that a filter took out"),
    (
        "wattpipe_aggregate_overflow_total",
        "processor",
        "rows added to the row of the rest: an interval had too many",
    ),
    ("wattpipe_exporter_sent_points_total", "exporter", "points delivered"),
    ("wattpipe_exporter_send_failed_points_total", "exporter", "points given up on"),
    (
        "wattpipe_exporter_enqueue_failed_points_total",
        "exporter",
        "points that found the queue full",
    ),
    (
        "wattpipe_exporter_queue_size",
        "exporter",
        "what the queue holds, in the unit of its `sizer`",
    ),
    ("wattpipe_exporter_queue_capacity", "exporter", "what the queue can hold"),
    ("wattpipe_exporter_inbox_size", "exporter", "windows that wait for an exporter"),
    (
        "wattpipe_component_restarts_total",
        "kind, id",
        "components that failed and were started again",
    ),
    (
        "wattpipe_memory_limit_shed_rows_total",
        "",
        "rows folded into one near `service::memory_limit`",
    ),
    (
        "wattpipe_window_factor",
        "",
        "by how much windows are longer than configured, because of `service::cpu_limit`",
    ),
    ("wattpipe_process_cpu_seconds", "", "CPU seconds that the agent has used"),
    (
        "wattpipe_process_memory_rss",
        "",
        "its resident memory in bytes; the probe's ring counts twice",
    ),
    ("wattpipe_process_uptime", "", "seconds since it began"),
];

/// Renders the page.
pub fn metrics_md() -> String {
    let mut out = HEAD.to_owned();
    for level in LEVELS {
        row(&CPU_TIME[level.index()], subject(level), no_series(level), &mut out);
    }
    row(
        &CONTEXT_SWITCHES,
        subject(Level::Process),
        "with the `procfs` source, which sees no process's switches",
        &mut out,
    );
    for level in LEVELS {
        let each = format!("{}, `{ENERGY_ZONE}` and `{ENERGY_MODE}`", subject(level));
        row(
            &ENERGY[level.index()],
            &each,
            "without `power_model`, or where nothing is metered or estimated",
            &mut out,
        );
    }
    row(
        &HW_ENERGY,
        &format!("zone (`{HW_ID}`)"),
        "the same; until a zone's first reading",
        &mut out,
    );
    row(&UNATTRIBUTED, &format!("zone (`{ENERGY_ZONE}`)"), "the same", &mut out);
    attributes(&mut out);
    out += OWN_HEAD;
    for (name, labels, tells) in OWN {
        let labels = match *labels {
            "" => String::new(),
            some => format!("`{}`", some.replace(", ", "`, `")),
        };
        let _ = writeln!(out, "| `{name}` | {labels} | {tells} |");
    }
    out
}

fn subject(level: Level) -> &'static str {
    match level {
        Level::Process => "process",
        Level::Container => "container",
        Level::Pod => "pod",
    }
}

fn no_series(level: Level) -> &'static str {
    match level {
        Level::Process => "where `levels` leaves `process` out",
        Level::Container => "where `levels` leaves it out; for what is in no container",
        Level::Pod => "where `levels` leaves it out; for what is in no pod",
    }
}

fn row(metric: &Metric, each: &str, absent: &str, out: &mut String) {
    let Metric { name, unit, prometheus, .. } = metric;
    let _ = writeln!(out, "| `{name}` | `{prometheus}_total` | {unit} | {each} | {absent} |");
}

fn attributes(out: &mut String) {
    let identifying = IDENTIFYING.join("`, `");
    let _ = write!(
        out,
        "
## Attributes

In OTLP each process, container and pod is a resource of its own, with all that is known about it and `{SERVICE_NAME}`;
the instrumentation scope is `{SCOPE}`. In Prometheus the dots are underscores, and these attributes are labels of
every sample of a workload, where it has them; with `resource_to_telemetry_conversion: true` all are:

`{identifying}`

| attribute | on | is |
|---|---|---|
| `{ENERGY_ZONE}` | points of energy | the zone, as `package-0`; `host` where it is estimated |
| `{HW_ID}` | `{hw}` | the same |
| `{HW_TYPE}` | points of energy | the kind of hardware: `cpu`, `memory`, … |
| `{ENERGY_MODE}` | energy of workloads | `{ACTIVE}`: for what it did; `{IDLE}`: its share of the idle floor, only with `power_model: {{ attribute_idle: true }}` |
| `{ENERGY_SOURCE}` | points of energy | `estimate` where no meter reads, else absent |
| `{POWER_MODEL_NAME}` | the scope | `wattpipe`, or `estimate`; absent without energy |
| `{OVERFLOW}` | one series a level | `true`: the sum of what found no place below `max_series` |
| `{rest}` | one series | made of what was not kept apart: by the processor of this id (`top`, `aggregate`), or near `service::memory_limit` (`memory_limit`) |

The series `process.executable.name=\"{SHORT_LIVED}\"` holds the processes that lived less than a window and have no
container.

## Idle energy

There is no metric for it: it is what a zone has used less what its workloads were given and what has no owner.
`energy.zone` of a workload is `hw.id` of the zone. Levels overlap, and what lived less than a window in a container is in
the container's series alone: each joule is to be taken at its largest level. In Prometheus, with all levels and no
overflow:

```promql
label_replace(rate({hw_energy}_total[2m]), \"energy_zone\", \"$1\", \"hw_id\", \"(.*)\")
  - on (job, instance, energy_zone) rate({unattributed}_total[2m])
  - on (job, instance, energy_zone)
    sum by (job, instance, energy_zone) (
         rate({process}_total{{container_id=\"\",k8s_pod_uid=\"\"}}[2m])
      or rate({container}_total{{k8s_pod_uid=\"\"}}[2m])
      or rate({pod}_total[2m])
    )
```

With `attribute_idle: true` the idle part is `{mode}=\"{IDLE}\"`, and the difference is 0. In records it stands in each
`zone` line (`idle`). Zones may contain one another (`core-0` lies in `package-0`, all in `psys`): never add a zone and its
part.
",
        hw = HW_ENERGY.name,
        rest = wattpipe_pipeline::identity::attr::REST,
        hw_energy = HW_ENERGY.prometheus,
        unattributed = UNATTRIBUTED.prometheus,
        process = ENERGY[0].prometheus,
        container = ENERGY[1].prometheus,
        pod = ENERGY[2].prometheus,
        mode = ENERGY_MODE.replace('.', "_"),
    );
}
