//! Answers of receivers nobody trusts, for `fuzz/fuzz_targets/otlp_answers.rs`.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;

use super::status;
use crate::queue::Outcome;

/// Reads an answer as each of the transports would. No answer may ask for a wait without end.
pub fn answer(code: u16, header: &str, body: &[u8]) {
    let code_of = http::StatusCode::from_u16(100 + code % 900).unwrap_or_default();
    let outcomes = [
        status::of_http(code_of, Some(header), body),
        status::delivered_json(body),
        status::delivered(ExportMetricsServiceResponse::decode(body).unwrap_or_default()),
        status::of_grpc(&tonic::Status::with_details(
            tonic::Code::from_i32(i32::from(code % 17)),
            header,
            body.to_vec().into(),
        )),
    ];
    for outcome in outcomes {
        if let Outcome::Retry { after: Some(after), .. } = outcome {
            assert!(after <= Duration::from_secs(3600), "{after:?}");
        }
    }
}
