//! Series as receivers see them.

use wattpipe_pipeline::{batch::UsageBatch, identity::attr, units::Nanos};

use super::*;
use crate::{
    semconv::{Level, OVERFLOW},
    testing::{BOOT_UNIX_NS, Usage, zone},
};

const S: u64 = 1_000_000_000;

fn state(levels: &[Level], max_series: usize) -> SeriesState {
    SeriesState::new(SeriesConfig { levels: levels.to_vec(), max_series, linger_ns: 0 })
}

/// The window of second `n`.
fn second(n: u64) -> Usage {
    Usage::window(n * S, (n + 1) * S)
}

/// Seconds after boot at which a series started, its CPU seconds, and whether it has ended.
type Line = (String, f64, f64, bool);

/// Adds a window and returns the series given out for it, by name.
fn step(state: &mut SeriesState, batch: &UsageBatch) -> Vec<Line> {
    state.update(batch);
    let mut lines = Vec::new();
    state.for_each_due(false, |e| lines.push(line(e)));
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

fn line(e: &Entity) -> Line {
    let a = &e.attributes;
    let name = [attr::PROCESS_EXECUTABLE_NAME, attr::CONTAINER_ID, attr::K8S_POD_UID, OVERFLOW]
        .iter()
        .find_map(|k| a.get_str(k))
        .unwrap_or("?");
    let start = (e.start - BOOT_UNIX_NS) as f64 / 1e9;
    (name.to_owned(), start, e.cpu.as_secs_f64(), e.ended.is_some())
}

fn lines(expected: &[(&str, f64, f64, bool)]) -> Vec<Line> {
    expected.iter().map(|l| (l.0.to_owned(), l.1, l.2, l.3)).collect()
}

#[test]
fn a_series_starts_at_the_later_of_first_edge_and_birth_and_ends_with_a_last_point() {
    let mut s = state(&[Level::Process], 10);
    // `old` is older than the agent, `new` is born in the second window, `idle` was there all
    // along but runs only now.
    let first = second(5).process(1, "old", S, S / 2).build();
    assert_eq!(step(&mut s, &first), lines(&[("old", 5.0, 0.5, false)]));
    let next = second(6)
        .process(1, "old", S, S / 2)
        .process(2, "new", 6 * S + S / 4, S / 4)
        .process(3, "idle", 2 * S, S / 4)
        .build();
    assert_eq!(
        step(&mut s, &next),
        lines(&[("idle", 5.0, 0.25, false), ("new", 6.25, 0.25, false), ("old", 5.0, 1.0, false)])
    );
    let last = second(7).process(2, "new", 6 * S + S / 4, S / 4).exited().build();
    assert_eq!(step(&mut s, &last), lines(&[("new", 6.25, 0.5, true)]));
    // A reused pid is another process.
    let reused = second(8).process(2, "new", 8 * S, S / 4).build();
    assert_eq!(step(&mut s, &reused), lines(&[("new", 8.0, 0.25, false)]));
}

#[test]
fn an_ended_process_may_still_leave_its_cpus() {
    let mut s = state(&[Level::Process], 10);
    step(&mut s, &second(0).process(1, "a", 0, S / 2).build());
    let exit = |n| second(n).process(1, "a", 0, S / 8).exited().build();
    assert_eq!(step(&mut s, &exit(1)), lines(&[("a", 0.0, 0.625, true)]));
    assert_eq!(step(&mut s, &exit(2)), lines(&[("a", 0.0, 0.75, true)]));
    for n in 3..6 {
        assert_eq!(step(&mut s, &second(n).build()), lines(&[]));
    }
    assert_eq!(s.entities().count(), 0);
}

#[test]
fn aggregated_rows_are_series_by_their_attributes() {
    let mut s = state(&[Level::Process, Level::Container], 10);
    let by = |n, key: &'static str, value: &'static str| {
        let mut b = second(n).process(1, "a", 0, S / 2).build();
        b.rows[0].process = None;
        b.rows[0].attributes = std::sync::Arc::new([(key, value)].into_iter().collect());
        b
    };
    assert_eq!(step(&mut s, &by(0, attr::PROCESS_OWNER, "root")), lines(&[("?", 0.0, 0.5, false)]));
    assert_eq!(step(&mut s, &by(1, attr::CONTAINER_ID, "c")), lines(&[("c", 0.0, 0.5, false)]));
    let rest = step(&mut s, &by(2, attr::REST, "aggregate/x"));
    assert_eq!(rest, lines(&[("?", 0.0, 0.5, false)]));
    assert_eq!(s.entities().count(), 3);
}

#[test]
fn silent_series_are_given_out_now_and_then() {
    let mut s = state(&[Level::Process], 10);
    step(&mut s, &second(0).process(1, "a", 0, S).build());
    assert_eq!(step(&mut s, &second(1).build()), lines(&[]));
    assert_eq!(step(&mut s, &second(60).build()), lines(&[("a", 0.0, 1.0, false)]));
    assert_eq!(step(&mut s, &second(61).build()), lines(&[]));
    // And forgotten after long silence; back, they count from after that.
    assert_eq!(step(&mut s, &second(2000).build()), lines(&[]));
    step(&mut s, &second(2001).build());
    assert_eq!(
        step(&mut s, &second(2002).process(1, "a", 0, S / 2).build()),
        lines(&[("a", 2001.0, 0.5, false)])
    );
}

#[test]
fn short_lives_fold_into_their_container_or_one_series() {
    let all = [Level::Container, Level::Pod, Level::Process];
    let batch = second(3)
        .process(1, "in", 3 * S + 1, S / 8)
        .attribute(attr::CONTAINER_ID, "c1")
        .exited()
        .process(2, "out", 3 * S + 2, S / 4)
        .exited()
        .process(3, "out", 3 * S + 3, S / 4)
        .exited()
        .process(4, "long", S, S / 2)
        .attribute(attr::CONTAINER_ID, "c1")
        .build();
    let mut s = state(&all, 10);
    assert_eq!(
        step(&mut s, &batch),
        lines(&[
            ("c1", 3.0, 0.625, false),
            ("long", 3.0, 0.5, false),
            ("short-lived", 3.0, 0.5, false)
        ])
    );
    // Without the level of containers nothing else would hold `in`.
    let mut s = state(&[Level::Process], 10);
    assert_eq!(
        step(&mut s, &batch),
        lines(&[("long", 3.0, 0.5, false), ("short-lived", 3.0, 0.625, false)])
    );
}

#[test]
fn levels_agree() {
    let mut s = state(&[Level::Container, Level::Pod, Level::Process], 10);
    let pod = |u: Usage, id: &'static str| {
        u.attribute(attr::CONTAINER_ID, id).attribute(attr::K8S_POD_UID, "pod")
    };
    let mut u = second(0);
    u = pod(u.process(1, "a", 0, S / 2), "c1");
    u = pod(u.process(2, "b", 0, S / 4), "c1");
    u = pod(u.process(3, "c", 0, S / 8), "c2");
    let got = step(&mut s, &u.build());
    assert_eq!(
        got,
        lines(&[
            ("a", 0.0, 0.5, false),
            ("b", 0.0, 0.25, false),
            ("c", 0.0, 0.125, false),
            ("c1", 0.0, 0.75, false),
            ("c2", 0.0, 0.125, false),
            ("pod", 0.0, 0.875, false)
        ])
    );
    // A container ends with its last process.
    let u = pod(second(1).process(3, "c", 0, S / 8).exited(), "c2");
    assert_eq!(
        step(&mut s, &u.build()),
        lines(&[("c", 0.0, 0.25, true), ("c2", 0.0, 0.25, true), ("pod", 0.0, 1.0, false)])
    );
}

#[test]
fn what_leaves_and_returns_starts_anew() {
    // `top` keeps one row: `b` is merged in the second window and back in the third.
    let merged = |n: u64, name: &'static str, pid: u32| {
        let mut b = second(n).process(pid, name, 0, S / 4).process(9, "x", 0, S / 8).build();
        b.rows[1].process = None;
        b.rows[1].attributes = std::sync::Arc::new([(attr::REST, "top")].into_iter().collect());
        b
    };
    let mut s = state(&[Level::Process], 10);
    step(&mut s, &merged(0, "b", 2));
    assert_eq!(
        step(&mut s, &merged(1, "a", 1)),
        lines(&[("a", 1.0, 0.25, false), ("true", 0.0, 0.25, false)])
    );
    assert_eq!(
        step(&mut s, &merged(2, "b", 2)),
        lines(&[("b", 2.0, 0.25, false), ("true", 0.0, 0.375, false)])
    );
}

#[test]
fn beyond_max_series_the_smallest_overflow_and_nothing_is_lost() {
    let mut s = state(&[Level::Process], 2);
    let three = |n| {
        second(n)
            .process(1, "a", 0, S / 8)
            .process(2, "b", 0, S / 2)
            .process(3, "c", 0, S / 4)
            .build()
    };
    let expected = [("b", 0.0, 0.5, false), ("c", 0.0, 0.25, false), ("true", 0.0, 0.125, false)];
    assert_eq!(step(&mut s, &three(0)), lines(&expected));
    // Whoever has a series keeps it while it runs; a silent one gives way.
    let next = second(1).process(1, "a", 0, S / 8).process(2, "b", 0, S / 2).build();
    assert_eq!(step(&mut s, &next), lines(&[("a", 1.0, 0.125, false), ("b", 0.0, 1.0, false)]));
}

#[test]
fn a_renamed_process_is_a_new_series() {
    let mut s = state(&[Level::Process], 10);
    step(&mut s, &second(0).process(1, "sh", 0, S / 2).build());
    assert_eq!(
        step(&mut s, &second(1).process(1, "make", 0, S / 4).build()),
        lines(&[("make", 1.0, 0.25, false)])
    );
}

#[test]
fn a_container_is_renamed_by_the_row_that_says_most() {
    let mut s = state(&[Level::Container], 10);
    let poor = |u: Usage, pid| u.process(pid, "p", 0, S / 4).attribute(attr::CONTAINER_ID, "c");
    let rich = |u: Usage, pid| poor(u, pid).attribute(attr::CONTAINER_NAME, "web");
    step(&mut s, &poor(second(0), 1).build());
    let both = poor(rich(poor(second(1), 1), 2), 3).build();
    assert_eq!(step(&mut s, &both), lines(&[("c", 1.0, 0.75, false)]));
    let both = rich(poor(second(2), 1), 2).build();
    assert_eq!(step(&mut s, &both), lines(&[("c", 1.0, 1.25, false)]));
}

#[test]
fn zones_count_on_and_never_fall() {
    let mut s = state(&[Level::Process], 10);
    let z = zone("package-0", "rapl");
    let with = |n, joules, active| {
        second(n).zone(z.clone(), joules, 1.0).process(1, "a", 0, S).energy(0, active, 0.5).build()
    };
    s.update(&with(0, 5.0, 4.0));
    s.update(&with(1, 3.0, f64::NAN));
    s.update(&with(2, -7.0, 2.0));
    assert_eq!(s.zones().len(), 1);
    assert_eq!(s.zones()[0].joules, 8.0);
    let e = s.entities().next().unwrap();
    assert_eq!(e.energy, [Energy { zone: 0, active: 6.0, idle: 1.5 }]);
}

#[test]
fn delta_series_start_where_the_last_one_ended() {
    let mut s = state(&[Level::Process], 10);
    for n in 0..3 {
        s.update(&second(n).process(1, "a", 0, S / 2).build());
        let mut got = Vec::new();
        s.for_each_due(true, |e| got.push(line(e)));
        assert_eq!(got, lines(&[("a", n as f64, 0.5, false)]));
    }
    assert_eq!(s.entities().next().map(|e| e.cpu), Some(Nanos(0)));
}
