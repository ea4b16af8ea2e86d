//! A window as a table: the largest workloads by joules, then by CPU time; below them the rest,
//! the totals, what was idle and what nobody is known for, and one line per zone.
//!
//! Energy columns are there only where a zone counts towards totals; where that zone is an
//! estimate, every energy figure stands under or beside `est.`.

use std::{borrow::Cow, cmp::Ordering, fmt::Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use wattpipe_pipeline::{
    batch::{IdleBasis, State, UsageBatch, UsageRow},
    identity::attr,
};

/// How a table must look.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Columns it may take.
    pub width: usize,
    /// Workloads it lists; `None` for all.
    pub top: Option<u32>,
    /// Bold headings and dim ended workloads.
    pub styled: bool,
}

const PID: usize = 8;
const NAME: usize = 15;
const CPU: usize = 9;
const PERCENT: usize = 6;
const JOULES: usize = 10;
const WATTS: usize = 9;

/// Draws `batch`.
pub fn render(batch: &UsageBatch, layout: Layout) -> String {
    let table = Table::new(batch, layout);
    let mut out = String::with_capacity(4096);
    table.heading(&mut out);
    let mut rows: Vec<Figures<'_>> = batch.rows.iter().map(|r| table.figures(r)).collect();
    rows.sort_by(|a, b| {
        b.joules.partial_cmp(&a.joules).unwrap_or(Ordering::Equal).then(b.cpu.total_cmp(&a.cpu))
    });
    let listed = layout.top.map_or(rows.len(), |top| rows.len().min(top as usize));
    for row in &rows[..listed] {
        table.workload(&mut out, row);
    }
    if listed < rows.len() {
        let rest = Figures::sum(&rows[listed..]);
        table.line(&mut out, "", &format!("({} more)", rows.len() - listed), "", &rest, "");
    }
    table.totals(&mut out, &Figures::sum(&rows), rows.len());
    table.zones(&mut out);
    out
}

/// What one line of the table shows.
#[derive(Clone, Copy, Default)]
struct Figures<'a> {
    row: Option<&'a UsageRow>,
    /// CPU seconds.
    cpu: f64,
    /// Over the zones that count; `None` where there is none.
    joules: Option<f64>,
    watts: Option<f64>,
}

impl Figures<'_> {
    fn sum(rows: &[Figures<'_>]) -> Figures<'static> {
        let add = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        rows.iter().fold(Figures::default(), |sum, r| Figures {
            row: None,
            cpu: sum.cpu + r.cpu,
            joules: add(sum.joules, r.joules),
            watts: add(sum.watts, r.watts),
        })
    }
}

struct Table<'a> {
    batch: &'a UsageBatch,
    layout: Layout,
    /// Some zone counts towards totals.
    metered: bool,
    /// One that does is an estimate.
    estimated: bool,
    /// Columns of the free column.
    place: usize,
}

impl<'a> Table<'a> {
    fn new(batch: &'a UsageBatch, layout: Layout) -> Self {
        let metered = batch.zones.iter().any(|z| z.in_total);
        let estimated = batch.zones.iter().any(|z| z.in_total && is_estimate(&z.zone.source));
        let energy = if metered { JOULES + WATTS + 2 } else { 0 };
        let taken = PID + 1 + NAME + 1 + CPU + 1 + PERCENT + 1 + energy;
        Self { batch, layout, metered, estimated, place: layout.width.saturating_sub(taken).max(4) }
    }

    fn figures<'r>(&self, row: &'r UsageRow) -> Figures<'r> {
        let watts = self.metered.then(|| {
            let of_zone = |e: &wattpipe_pipeline::batch::RowEnergy| {
                let zone = self.batch.zones.get(e.zone as usize).filter(|z| z.in_total)?;
                per_second(e.active + e.idle, self.batch.zone_seconds(zone))
            };
            row.energy.iter().filter_map(of_zone).sum()
        });
        Figures {
            row: Some(row),
            cpu: row.cpu.as_secs_f64(),
            joules: self.batch.joules_total(row),
            watts,
        }
    }

    /// Energy of the zones that count, by what `part` takes of each.
    fn energy(&self, part: impl Fn(usize) -> f64) -> (Option<f64>, Option<f64>) {
        if !self.metered {
            return (None, None);
        }
        let counted = self.batch.zones.iter().enumerate().filter(|(_, z)| z.in_total);
        let (mut joules, mut watts) = (0.0, 0.0);
        for (i, zone) in counted {
            joules += part(i);
            watts += per_second(part(i), self.batch.zone_seconds(zone)).unwrap_or(0.0);
        }
        (Some(joules), Some(watts))
    }

    fn heading(&self, out: &mut String) {
        let w = &self.batch.window;
        let at = wattpipe_pipeline::units::rfc3339(w.unix_ns(w.end));
        let time = at.get(..19).unwrap_or(&at).replace('T', " ");
        let mut line = format!(
            "{time} UTC   {:.3} s   {} CPUs   {} switches",
            w.duration().as_secs_f64(),
            w.cpus,
            w.switches,
        );
        let _ = write!(line, "   {} lost", w.lost);
        if !w.complete {
            line.push_str("   INCOMPLETE");
        }
        self.put(out, &line, None);
        let est = if self.estimated { " est." } else { "" };
        let titles = [
            right("PID", PID),
            left("NAME", NAME),
            left("WHERE", self.place),
            right("CPU s", CPU),
            right("CPU %", PERCENT),
        ];
        let mut line = titles.join(" ");
        if self.metered {
            let _ = write!(
                line,
                " {} {}",
                right(&format!("J{est}"), JOULES),
                right(&format!("W{est}"), WATTS)
            );
        }
        self.put(out, &line, Some("1"));
    }

    fn workload(&self, out: &mut String, figures: &Figures<'_>) {
        let Some(row) = figures.row else { return };
        let pid =
            row.attributes.get(attr::PROCESS_PID).map_or_else(String::new, ToString::to_string);
        let exited = row.state == State::Exited;
        let place = place(row);
        let place = if exited { Cow::Owned(format!("{place} (exited)")) } else { place };
        let style = if exited { "2" } else { "" };
        self.line(out, &pid, &name(row), &place, figures, style);
    }

    fn totals(&self, out: &mut String, sum: &Figures<'_>, workloads: usize) {
        let shared_idle = |zone: usize| -> f64 {
            let of_zone = |r: &UsageRow| -> f64 {
                r.energy.iter().filter(|e| e.zone as usize == zone).map(|e| e.idle).sum()
            };
            self.batch.rows.iter().map(of_zone).sum()
        };
        let idle = self.energy(|z| (self.batch.zones[z].idle - shared_idle(z)).max(0.0));
        let unknown = self.energy(|z| self.batch.zones[z].unattributed);
        let w = &self.batch.window;
        let figures = |cpu, (joules, watts)| Figures { row: None, cpu, joules, watts };
        // Without a row there is still a zone: its workloads took nothing, which is known.
        let sum = if workloads == 0 { figures(0.0, self.energy(|_| 0.0)) } else { *sum };
        let title = format!("{workloads} workload{}", if workloads == 1 { "" } else { "s" });
        self.line(out, "", &title, "", &sum, "1");
        self.line(out, "", "idle", "", &figures(w.idle.as_secs_f64(), idle), "");
        self.line(out, "", "unattributed", "", &figures(w.unattributed.as_secs_f64(), unknown), "");
    }

    fn zones(&self, out: &mut String) {
        for usage in &self.batch.zones {
            let est = if is_estimate(&usage.zone.source) { " est." } else { "" };
            let mut line = format!("{}: {} J{est}", clean(&usage.zone.name), number(usage.joules));
            if let Some(watts) = per_second(usage.joules, self.batch.zone_seconds(usage)) {
                let _ = write!(line, ", {} W{est}", number(watts));
            }
            let _ =
                write!(line, ", idle {} J{est} ({})", number(usage.idle), basis(usage.idle_basis));
            if !est.is_empty() {
                line.push_str(", no meter");
            } else {
                let _ = write!(line, ", {}", clean(&usage.zone.source));
            }
            if !usage.in_total {
                line.push_str(", not in totals");
            }
            self.put(out, &line, Some("2"));
        }
    }

    fn line(
        &self,
        out: &mut String,
        pid: &str,
        name: &str,
        place: &str,
        f: &Figures<'_>,
        style: &str,
    ) {
        let w = &self.batch.window;
        let capacity = w.duration().as_secs_f64() * f64::from(w.cpus.max(1));
        let percent = if capacity > 0.0 { 100.0 * f.cpu / capacity } else { 0.0 };
        let cells = [
            right(pid, PID),
            left(name, NAME),
            left(place, self.place),
            right(&format!("{:.3}", f.cpu), CPU),
            right(&format!("{percent:.1}"), PERCENT),
        ];
        let mut line = cells.join(" ");
        if self.metered {
            let joules = f.joules.map_or_else(|| "-".to_owned(), number);
            let watts = f.watts.map_or_else(|| "-".to_owned(), number);
            let _ = write!(line, " {} {}", right(&joules, JOULES), right(&watts, WATTS));
        }
        self.put(out, &line, (!style.is_empty()).then_some(style));
    }

    /// One line, cut to the width.
    fn put(&self, out: &mut String, line: &str, style: Option<&str>) {
        let line = cut(line.trim_end(), self.layout.width);
        match style.filter(|_| self.layout.styled) {
            Some(style) => {
                let _ = writeln!(out, "\x1b[{style}m{line}\x1b[0m");
            }
            None => {
                let _ = writeln!(out, "{line}");
            }
        }
    }
}

fn is_estimate(source: &str) -> bool {
    source == "estimate"
}

fn per_second(joules: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| joules / seconds)
}

fn basis(basis: IdleBasis) -> &'static str {
    match basis {
        IdleBasis::Baseline => "baseline",
        IdleBasis::Configured => "configured",
        IdleBasis::Proportional => "proportional",
        IdleBasis::None => "none",
    }
}

/// What a workload is called: its program, or whatever names an aggregated row best.
fn name(row: &UsageRow) -> Cow<'_, str> {
    const NAMES: [&str; 6] = [
        attr::PROCESS_EXECUTABLE_NAME,
        attr::K8S_CONTAINER_NAME,
        attr::CONTAINER_NAME,
        attr::K8S_POD_NAME,
        attr::SYSTEMD_UNIT,
        attr::CONTAINER_ID,
    ];
    let known = NAMES.iter().find_map(|key| row.attributes.get_str(key));
    match known {
        Some(name) => clean(name),
        None => {
            row.attributes.iter().next().map_or(Cow::Borrowed("-"), |(_, v)| match v.as_str() {
                Some(text) => clean(text),
                None => Cow::Owned(v.to_string()),
            })
        }
    }
}

/// Where it runs: pod, container, unit or cgroup, the most telling one.
fn place(row: &UsageRow) -> Cow<'_, str> {
    let get = |key| row.attributes.get_str(key);
    if let Some(pod) = get(attr::K8S_POD_NAME) {
        return match get(attr::K8S_NAMESPACE_NAME) {
            Some(namespace) => Cow::Owned(format!("{}/{}", clean(namespace), clean(pod))),
            None => clean(pod),
        };
    }
    if let Some(container) = get(attr::CONTAINER_NAME) {
        return clean(container);
    }
    if let Some(id) = get(attr::CONTAINER_ID) {
        return clean(id.get(..12).unwrap_or(id));
    }
    if let Some(unit) = get(attr::SYSTEMD_UNIT) {
        return clean(unit);
    }
    if get(attr::PROCESS_KIND) == Some("kernel") {
        return Cow::Borrowed("kernel");
    }
    clean(get(attr::PROCESS_LINUX_CGROUP).unwrap_or(""))
}

/// Text that others chose, without characters that would steer a terminal, or turn what follows
/// around, or not be seen.
fn clean(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        let unseen = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        c.is_control() || unseen
    };
    if text.chars().any(steers) {
        Cow::Owned(text.chars().map(|c| if steers(c) { '?' } else { c }).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Five or six digits, whatever the size.
fn number(value: f64) -> String {
    let size = value.abs();
    if size < 100.0 {
        format!("{value:.3}")
    } else if size < 10_000.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// `text` cut to `width` columns, marked where something is missing.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        let w = c.width().unwrap_or(0);
        if used + w + 1 > width {
            break;
        }
        used += w;
        kept.push(c);
    }
    kept.push('…');
    Cow::Owned(kept)
}

fn left(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let pad = width.saturating_sub(text.width());
    format!("{text}{:pad$}", "")
}

fn right(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let pad = width.saturating_sub(text.width());
    format!("{:pad$}{text}", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Usage, zone};

    fn layout(top: u32) -> Layout {
        Layout { width: 80, top: Some(top), styled: false }
    }

    #[track_caller]
    fn check(batch: &UsageBatch, top: u32, expected: &str) {
        let got = render(batch, layout(top));
        assert_eq!(got.trim_end(), expected.trim_matches('\n'), "\n{got}");
        assert!(got.lines().all(|l| l.width() <= 80));
    }

    fn busy() -> Usage {
        Usage::window(0, 1_000_000_000)
            .process(7, "small", 0, 100_000_000)
            .process(70_000, "a-very-long-name-of-a-program", 0, 900_000_000)
            .attribute(attr::K8S_POD_NAME, "web-6c9f-abcde")
            .attribute(attr::K8S_NAMESPACE_NAME, "shop")
            .process(9, "esc\u{1b}[2J\u{202e}", 0, 50_000_000)
            .attribute(attr::SYSTEMD_UNIT, "cron.service")
            .exited()
    }

    #[test]
    fn without_a_meter_there_are_no_energy_columns() {
        check(
            &busy().build(),
            2,
            "
2026-09-21 14:13:21 UTC   1.000 s   2 CPUs   3 switches   0 lost
     PID NAME            WHERE                                      CPU s  CPU %
   70000 a-very-long-na… shop/web-6c9f-abcde                        0.900   45.0
       7 small                                                      0.100    5.0
         (1 more)                                                   0.050    2.5
         3 workloads                                                1.050   52.5
         idle                                                       0.950   47.5
         unattributed                                               0.000    0.0
",
        );
    }

    #[test]
    fn joules_sort_first_and_totals_add_up() {
        let batch = Usage::window(0, 1_000_000_000)
            .zone(zone("package-0", "rapl"), 10.0, 4.0)
            .process(1, "light", 0, 800_000_000)
            .energy(0, 2.0, 0.0)
            .process(2, "heavy", 0, 100_000_000)
            .energy(0, 4.0, 0.0)
            .lost(3)
            .build();
        check(
            &batch,
            20,
            "
2026-09-21 14:13:21 UTC   1.000 s   2 CPUs   2 switches   3 lost   INCOMPLETE
     PID NAME            WHERE                 CPU s  CPU %          J         W
       2 heavy                                 0.100    5.0      4.000     4.000
       1 light                                 0.800   40.0      2.000     2.000
         2 workloads                           0.900   45.0      6.000     6.000
         idle                                  1.100   55.0      4.000     4.000
         unattributed                          0.000    0.0      0.000     0.000
package-0: 10.000 J, 10.000 W, idle 4.000 J (baseline), rapl
",
        );
    }

    #[test]
    fn an_estimate_says_so_everywhere() {
        let batch = Usage::window(0, 1_000_000_000)
            .zone(zone("host", "estimate"), 10.0, 4.0)
            .process(1, "a", 0, 800_000_000)
            .energy(0, 6.0, 0.0)
            .build();
        let text = render(&batch, layout(20));
        assert!(text.contains("J est.    W est."), "{text}");
        assert!(text.contains("host: 10.000 J est., 10.000 W est., idle 4.000 J est."), "{text}");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        let text = render(&busy().build(), layout(20));
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        assert!(text.contains("esc?[2J") && text.contains("cron.service (exited)"), "{text}");
    }
}
