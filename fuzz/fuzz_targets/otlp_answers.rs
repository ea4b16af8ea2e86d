//! What OTLP receivers answer, over gRPC and HTTP.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u16, String, Vec<u8>)| {
    wattpipe_exporters::otlp::fuzz::answer(data.0, &data.1, &data.2);
});
