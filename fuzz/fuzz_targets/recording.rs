//! The recording reader, and `delta` behind it: whatever the lines say, every window's time adds up
//! and its rows are its busy time.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use wattpipe_pipeline::{Batch, BuildContext, Processor, ProcessorComponent};
use wattpipe_processors::delta::{Delta, DeltaConfig};
use wattpipe_source::replay::fuzz::batches;

fuzz_target!(|data: &[u8]| {
    let context = BuildContext { replay: true, ..BuildContext::default() };
    let mut delta = Delta::build(DeltaConfig {}, &context).expect("no configuration to be wrong");
    for batch in batches(data) {
        let Ok(Some(Batch::Usage(usage))) = delta.process(Batch::Switches(Arc::new(batch))) else {
            continue;
        };
        let window = &usage.window;
        let total = u128::from(window.busy.0)
            + u128::from(window.idle.0)
            + u128::from(window.unattributed.0);
        let expected = u128::from(window.cpus) * u128::from(window.duration().0);
        assert_eq!(total, expected, "{window:?}");
        let rows: u128 = usage.rows.iter().map(|row| u128::from(row.cpu.0)).sum();
        assert_eq!(rows, u128::from(window.busy.0), "{window:?}");
    }
});
