//! Both components on a stream of switches, without a kernel, a meter or an agent.

use wattpipe_pipeline::{
    batch::{CpuInfo, ProcessEventKind::Fork, Topology, UsageBatch},
    testing::{SwitchesBuilder, run_chain, zone},
    units::{Cpu, Package},
};
use wattpipe_processors::{delta::Delta, power_model::PowerModel};

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Builds `P` with `config` as an agent would.
fn processor<P: ProcessorComponent>(config: P::Config) -> Box<dyn Processor> {
    Box::new(P::build(config, &BuildContext::default()).unwrap())
}

/// One CPU, on which process 7 runs for the second that starts at `hour` o'clock (UTC) while the
/// package draws 36 J, through `delta`, `power_model` and `price`.
fn a_busy_second_at(hour: u64) -> Arc<UsageBatch> {
    let zone = zone("package-0");
    let midnight = 20_000 * 86_400 * SECOND;
    let topology = Topology {
        cpus: vec![CpuInfo { cpu: Cpu(0), package: Package(0), core: 0 }],
        boot_unix_ns: midnight + hour * 3600 * SECOND,
    };
    let first = SwitchesBuilder::new()
        .topology_of(topology)
        .process(0, Fork, 7, "worker", 1)
        .switch(0, 0, 0, 7)
        .reading(1, &zone, 0)
        .edge(1);
    let second = SwitchesBuilder::new()
        .switch(SECOND + 1, 0, 7, 0)
        .reading(SECOND + 1, &zone, 36_000_000)
        .edge(SECOND + 1);
    let mut chain = [
        processor::<Delta>(Default::default()),
        processor::<PowerModel>(Default::default()),
        processor::<Price>(PriceConfig::default()),
    ];
    run_chain(&mut chain, [first, second]).unwrap().pop().unwrap()
}

#[track_caller]
fn check_price(hour: u64, expected: &str) {
    let usage = a_busy_second_at(hour);
    let prices: Vec<_> =
        usage.rows.iter().map(|r| r.attributes.get_str("energy.price").unwrap()).collect();
    assert_eq!(prices, [expected], "at {hour} o'clock");
}

#[test]
fn the_price_goes_by_the_hour() {
    check_price(5, "0.24");
    check_price(6, "0.32");
    check_price(21, "0.32");
    check_price(22, "0.24");
}

#[tokio::test(flavor = "current_thread")]
async fn a_bill_is_kilowatt_hours_times_price() {
    let mut bill = Bill::build(BillConfig::default(), &BuildContext::default()).unwrap();
    bill.export(Batch::Usage(a_busy_second_at(12))).await.unwrap();
    // 36 J are 1e-5 kWh.
    let cost = bill.1["worker"];
    assert!((cost - 0.32e-5).abs() < 1e-12, "{cost}");
}

#[test]
fn hours_that_make_no_sense_are_refused() {
    let problems = PriceConfig { day_hours: [22, 6], ..PriceConfig::default() }.check();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].path, ["day_hours"]);
}

#[test]
fn the_agent_lists_both() {
    let agent = wattpipe_agent::Agent::builder().with_defaults();
    let agent = agent.processor::<Price>().exporter::<Bill>();
    assert_eq!(agent.registry().processor("price").unwrap().doc, Price::DOC);
    assert!(agent.registry().exporter("bill").is_some());
}
