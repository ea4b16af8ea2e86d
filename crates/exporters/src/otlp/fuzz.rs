//! Answers of receivers nobody trusts, for `fuzz/fuzz_targets/otlp_answers.rs`.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};

use super::status;
use crate::queue::Outcome;

/// Reads an answer as each of the transports would. No answer may ask for a wait without end.
pub fn answer(code: u16, header: &str, body: &[u8]) {
    let code_of = http::StatusCode::from_u16(100 + code % 900).unwrap_or_default();
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(header) {
        headers.insert(header::RETRY_AFTER, value.clone());
        headers.insert(header::LOCATION, value);
    }
    let outcomes = [
        status::of_http(code_of, &headers, body),
        status::delivered_json(body),
        status::delivered(status::answer(body)),
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
