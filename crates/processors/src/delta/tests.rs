//! What the contract says of `delta`, case by case; then random streams against a reference that
//! is as plain as the contract's sentences.

mod reference;

use std::sync::Arc;

use wattpipe_pipeline::{
    Batch, BuildContext, Processor, ProcessorComponent,
    batch::{CpuInfo, ProcessEventKind::*, State, Topology, UsageBatch},
    identity::attr,
    testing::{SwitchesBuilder, run_chain, zone},
    units::{Cpu, Nanos, Package},
};

use super::{Delta, DeltaConfig};

fn delta() -> Box<dyn Processor> {
    Box::new(Delta::build(DeltaConfig {}, &BuildContext::default()).unwrap())
}

fn run(batches: impl IntoIterator<Item = Batch>) -> Vec<Arc<UsageBatch>> {
    run_chain(&mut [delta()], batches).unwrap()
}

/// (pid, start, ns, switches, exited) of each row, by pid.
fn rows(usage: &UsageBatch) -> Vec<(u32, u64, u64, u64, bool)> {
    let mut rows: Vec<_> = usage
        .rows
        .iter()
        .map(|r| {
            let p = r.process.as_ref().unwrap();
            let start = p.start_time.unwrap_or_default().0;
            (p.pid.0, start, r.cpu.0, r.switches.unwrap(), r.state == State::Exited)
        })
        .collect();
    rows.sort_unstable();
    rows
}

#[track_caller]
fn check_window(usage: &UsageBatch, busy: u64, idle: u64, unattributed: u64) {
    let w = &usage.window;
    assert_eq!((w.busy.0, w.idle.0, w.unattributed.0), (busy, idle, unattributed));
    assert_eq!(busy + idle + unattributed, w.duration().0 * u64::from(w.cpus));
    assert_eq!(usage.rows.iter().map(|r| r.cpu.0).sum::<u64>(), busy);
}

fn start(cpus: u32) -> SwitchesBuilder {
    SwitchesBuilder::new().topology(cpus)
}

#[test]
fn an_interval_belongs_to_who_had_the_cpu() {
    let out = run([
        start(1).process(1, Snapshot, 7, "a", 1).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new().switch(100, 0, 0, 7).switch(160, 0, 7, 0).tick(201, 0, 0).edge(200),
    ]);
    assert_eq!(rows(&out[0]), [(7, 1, 60, 1, false)]);
    check_window(&out[0], 60, 130, 0);
    assert_eq!(out[0].window.switches, 2);
    assert!(out[0].window.complete);
    assert_eq!(out[0].rows[0].attributes.get_str(attr::PROCESS_EXECUTABLE_NAME), Some("a"));
}

#[test]
fn a_process_that_never_switches_is_credited_at_each_edge() {
    let out = run([
        start(1).process(1, Snapshot, 7, "a", 1).tick(5, 0, 7).edge(10),
        SwitchesBuilder::new().tick(101, 0, 7).edge(100),
        SwitchesBuilder::new().tick(202, 0, 7).edge(200),
    ]);
    assert_eq!(rows(&out[0]), [(7, 1, 90, 0, false)]);
    assert_eq!(rows(&out[1]), [(7, 1, 100, 0, false)]);
}

#[test]
fn what_is_later_than_the_edge_waits_for_the_next_window() {
    let out = run([
        start(1).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new()
            .process(104, Fork, 9, "late", 104)
            .switch(50, 0, 0, 7)
            .switch(105, 0, 7, 9)
            .edge(100),
        SwitchesBuilder::new().switch(150, 0, 9, 0).edge(200),
    ]);
    assert_eq!(rows(&out[0]), [(7, 0, 50, 0, false)]);
    assert_eq!(rows(&out[1]), [(7, 0, 5, 1, false), (9, 104, 45, 1, false)]);
}

#[test]
fn threads_switching_inside_a_process_count_as_switches() {
    let out = run([
        start(1).tick(5, 0, 7).edge(10),
        SwitchesBuilder::new().switch(20, 0, 7, 7).switch(30, 0, 7, 7).edge(40),
    ]);
    assert_eq!(rows(&out[0]), [(7, 0, 30, 2, false)]);
}

#[test]
fn time_before_the_first_record_is_nobodys() {
    let out = run([
        start(2).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new().switch(60, 1, 7, 0).edge(110),
    ]);
    check_window(&out[0], 0, 150, 50);
    assert_eq!(rows(&out[0]), [(7, 0, 0, 1, false)]);
    assert!(!out[0].window.complete);
}

#[test]
fn a_loss_takes_everything_from_the_last_known_switch_to_the_next() {
    let out = run([
        start(1).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new()
            .switch(100, 0, 0, 7)
            .lost(150, 0, 128)
            .tick(160, 0, 7)
            .switch(180, 0, 7, 0)
            .edge(200),
    ]);
    check_window(&out[0], 0, 110, 80);
    assert_eq!(out[0].window.lost, 128);
    assert!(!out[0].window.complete);
    assert_eq!(rows(&out[0]), [(7, 0, 0, 1, false)]);
}

#[test]
fn a_loss_found_after_the_edge_does_not_reach_behind_it() {
    let out = run([
        start(1).tick(5, 0, 7).edge(10),
        SwitchesBuilder::new().tick(101, 0, 7).edge(100),
        SwitchesBuilder::new().lost(120, 0, 3).switch(150, 0, 9, 0).edge(200),
    ]);
    check_window(&out[0], 90, 0, 0);
    check_window(&out[1], 0, 50, 50);
}

#[test]
fn a_reused_pid_is_another_process() {
    let out = run([
        start(1).process(1, Snapshot, 7, "old", 1).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new()
            .exit(120, 7)
            .process(150, Fork, 7, "new", 150)
            .switch(100, 0, 0, 7)
            .switch(130, 0, 7, 0)
            .switch(160, 0, 0, 7)
            .switch(170, 0, 7, 0)
            .edge(200),
    ]);
    assert_eq!(rows(&out[0]), [(7, 1, 30, 1, true), (7, 150, 10, 1, false)]);
}

#[test]
fn an_exit_is_reported_once_where_it_leaves_the_last_cpu() {
    let out = run([
        start(1).process(1, Snapshot, 7, "a", 1).tick(5, 0, 7).edge(10),
        SwitchesBuilder::new().exit(90, 7).tick(101, 0, 7).edge(100),
        SwitchesBuilder::new().switch(130, 0, 7, 0).edge(200),
        SwitchesBuilder::new().tick(301, 0, 0).edge(300),
    ]);
    assert_eq!(rows(&out[0]), [(7, 1, 90, 0, false)]);
    assert_eq!(rows(&out[1]), [(7, 1, 30, 1, true)]);
    assert_eq!(rows(&out[2]), []);
}

/// Preempted on its way out, 3 ms before the edge, it has the CPU once more after it.
#[test]
fn live_an_exit_close_to_the_edge_waits_for_what_its_thread_may_still_run() {
    const MS: u64 = 1_000_000;
    let check = |exit: u64, exited: [bool; 2]| {
        let switch = |ms: u64, prev, next| SwitchesBuilder::new().switch(ms * MS, 0, prev, next);
        let out = run([
            start(1).process(1, Snapshot, 7, "a", 1).tick(5, 0, 7).live().edge(10),
            switch(exit + 1, 7, 0).exit(exit * MS, 7).live().edge(100 * MS),
            switch(101, 0, 7).switch(102 * MS, 0, 7, 0).live().edge(200 * MS),
            SwitchesBuilder::new().tick(300 * MS + 1, 0, 0).live().edge(300 * MS),
        ]);
        let told = |i: usize| rows(&out[i]).iter().map(|r| r.4).collect::<Vec<_>>();
        assert_eq!([told(0), told(1), told(2)], [vec![exited[0]], vec![exited[1]], vec![]]);
    };
    check(96, [false, true]);
    check(80, [true, true]);
}

#[test]
fn a_process_of_no_time_at_all_is_not_missed() {
    let out = run([
        start(1).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new().process(20, Fork, 9, "brief", 20).exit(21, 9).edge(100),
    ]);
    assert_eq!(rows(&out[0]), [(9, 20, 0, 0, true)]);
}

#[test]
fn exec_gives_the_same_process_another_name() {
    let out = run([
        start(1).process(1, Snapshot, 7, "sh", 1).tick(5, 0, 7).edge(10),
        SwitchesBuilder::new().process(150, Exec, 7, "true", 1).tick(101, 0, 7).edge(100),
        SwitchesBuilder::new().tick(201, 0, 7).edge(200),
    ]);
    let name = |i: usize| out[i].rows[0].attributes.get_str(attr::PROCESS_EXECUTABLE_NAME);
    assert_eq!((name(0), name(1)), (Some("sh"), Some("true")));
}

#[test]
fn a_cpu_that_comes_silently_counts_from_the_edge_on() {
    let out = run([
        start(1).tick(5, 0, 0).edge(10),
        start(2).tick(111, 0, 0).edge(110),
        SwitchesBuilder::new().tick(211, 0, 0).switch(150, 1, 0, 7).edge(210),
    ]);
    check_window(&out[0], 0, 100, 0);
    check_window(&out[1], 60, 100, 40);
}

#[test]
fn a_cpu_that_goes_offline_is_idle_to_the_windows_end_and_then_gone() {
    let gone = Topology {
        cpus: vec![CpuInfo { cpu: Cpu(0), package: Package(0), core: 0 }],
        boot_unix_ns: 0,
    };
    let out = run([
        start(2).tick(5, 0, 0).tick(5, 1, 7).edge(10),
        SwitchesBuilder::new().topology_of(gone).switch(50, 1, 7, 0).tick(111, 0, 0).edge(110),
        SwitchesBuilder::new().tick(211, 0, 0).edge(210),
    ]);
    check_window(&out[0], 40, 160, 0);
    check_window(&out[1], 0, 100, 0);
    assert_eq!((out[0].window.cpus, out[1].window.cpus), (2, 1));
}

#[test]
fn cycles_of_a_cut_interval_are_split_by_time() {
    let out = run([
        start(1).switch_cycles(0, 0, 0, 7, 1000).edge(0),
        SwitchesBuilder::new()
            .switch_cycles(100, 0, 7, 7, 2000)
            .switch_cycles(300, 0, 7, 0, 4000)
            .edge(200),
        SwitchesBuilder::new().switch_cycles(390, 0, 0, 7, 4000).edge(400),
    ]);
    assert_eq!(out[0].rows[0].cycles, Some(2000));
    assert_eq!(out[1].rows[0].cycles, Some(1000));
}

#[test]
fn a_tick_tells_the_cycles_so_far() {
    let out = run([
        start(1).switch_cycles(0, 0, 0, 7, 1000).edge(0),
        SwitchesBuilder::new()
            .tick_cycles(100, 0, 7, 5000)
            .tick_cycles(190, 0, 7, 5900)
            .tick_cycles(210, 0, 7, 6300)
            .edge(200),
        SwitchesBuilder::new().switch_cycles(300, 0, 7, 0, 6390).edge(400),
    ]);
    assert_eq!(out[0].rows[0].cycles, Some(5100));
    assert_eq!(out[1].rows[0].cycles, Some(290));
}

#[test]
fn without_counters_there_are_no_cycles() {
    let out =
        run([start(1).tick(5, 0, 7).edge(10), SwitchesBuilder::new().tick(21, 0, 7).edge(20)]);
    assert_eq!(out[0].rows[0].cycles, None);
}

#[test]
fn usage_is_cut_at_meter_readings() {
    let zone = zone("package-0");
    let out = run([
        start(2).tick(1, 0, 7).tick(1, 1, 0).reading(10, &zone, 0).edge(10),
        SwitchesBuilder::new()
            .reading(40, &zone, 100)
            .switch(60, 0, 7, 0)
            .switch(30, 1, 0, 8)
            .reading(110, &zone, 200)
            .edge(110),
    ]);
    let usage = &out[0];
    assert_eq!(usage.readings.iter().map(|r| r.ts.0).collect::<Vec<_>>(), [10, 40, 110]);
    let slices: Vec<(u64, u64, Vec<u64>)> = usage
        .slices
        .iter()
        .map(|s| {
            let d = &s.domains[0];
            let mut cells: Vec<u64> = d.cells.iter().map(|c| c.cpu.0).collect();
            cells.sort_unstable();
            (s.end.0, d.idle.0, cells)
        })
        .collect();
    assert_eq!(slices, [(40, 20, vec![10, 30]), (110, 50, vec![20, 70])]);
}

#[test]
fn siblings_share_exactly_their_overlap() {
    let zone = zone("package-0");
    let smt = Topology {
        cpus: (0..2).map(|c| CpuInfo { cpu: Cpu(c), package: Package(0), core: 0 }).collect(),
        boot_unix_ns: 0,
    };
    let out = run([
        SwitchesBuilder::new()
            .topology_of(smt)
            .tick(1, 0, 7)
            .tick(1, 1, 0)
            .reading(10, &zone, 0)
            .edge(10),
        SwitchesBuilder::new()
            .switch(60, 1, 0, 8)
            .switch(80, 1, 8, 0)
            .reading(110, &zone, 5)
            .edge(110),
    ]);
    let domain = &out[0].slices[0].domains[0];
    let shared: Vec<(u64, u64)> = domain.cells.iter().map(|c| (c.cpu.0, c.shared.0)).collect();
    assert_eq!(shared, [(100, 20), (20, 20)]);
    assert_eq!(domain.pair_busy.0, 20);
}

#[test]
fn usage_from_a_polling_source_goes_through() {
    let out =
        run([start(1).tick(5, 0, 7).edge(10), SwitchesBuilder::new().tick(21, 0, 7).edge(20)]);
    let again = run([Batch::Usage(out[0].clone())]);
    assert_eq!(again[0], out[0]);
}

#[test]
fn hostile_numbers_do_not_hurt() {
    let out = run([
        start(1).tick(5, 0, 0).edge(10),
        SwitchesBuilder::new()
            .switch(20, 4_000_000_000, 0, u32::MAX)
            .switch(15, 4_000_000_000, u32::MAX, 3_000_000_000)
            .switch(u64::MAX - 1, 0, 0, 7)
            .edge(100),
    ]);
    check_window(&out[0], 0, 90, 0);
    assert_eq!(out[0].rows.iter().map(|r| r.cpu).sum::<Nanos>(), Nanos(0));
}
