//! A CPU that goes and comes back while it is watched.

use std::path::PathBuf;

use super::whole::{check_promises, config, counter, record_with};

/// Puts the CPU back, whatever the test does.
struct Offline(PathBuf);

impl Offline {
    fn take(switch: PathBuf) -> Self {
        std::fs::write(&switch, "0").unwrap();
        Self(switch)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, "1");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: run by cargo xtask test"]
async fn a_cpu_may_go_and_come_back() {
    // The last CPU; the first can rarely be taken off. A machine with one CPU has nothing to show.
    let last = *super::online().last().unwrap();
    let switch = PathBuf::from(format!("/sys/devices/system/cpu/cpu{last}/online"));
    if !switch.exists() {
        return;
    }
    let (batches, counts) = record_with(config(), move |edges| {
        edges.wait(2);
        let offline = Offline::take(switch);
        edges.wait(3);
        drop(offline);
        edges.wait(3);
    })
    .await;
    check_promises(&batches);
    assert_eq!(counter(&counts, "wattpipe_source_lost_total"), 0);
    let told: Vec<bool> = batches
        .iter()
        .filter_map(|batch| batch.topology.as_ref())
        .map(|topology| topology.cpus.iter().any(|c| c.cpu.0 == last))
        .collect();
    assert_eq!(told, [true, false, true], "the CPU was there, went and came back");
    let back = batches.iter().rposition(|b| b.topology.is_some()).unwrap();
    let works = batches[back..].iter().flat_map(|b| &b.blocks).any(|b| b.cpu.0 == last);
    assert!(works, "nothing was heard of the CPU after it came back");
}
