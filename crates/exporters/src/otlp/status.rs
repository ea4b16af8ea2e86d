//! What a receiver's answer means for the request: delivered, to be tried again and when, too
//! large, or refused for good.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, header};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use prost::Message;
use tonic::{Code, Status};

use crate::queue::Outcome;

/// Longest wait that a receiver can ask for.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// `google.rpc.Status`, which travels in a gRPC status's details and in OTLP/HTTP error bodies.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub(super) retry_delay: Option<ProtoDuration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ProtoDuration {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

/// A receiver's answer. What cannot be read is an answer all the same, the request has arrived; but
/// where only its words are at fault (cut short, or no UTF-8), the rejected points still count.
pub(super) fn answer(body: &[u8]) -> ExportMetricsServiceResponse {
    ExportMetricsServiceResponse::decode(body)
        .unwrap_or_else(|_| ExportMetricsServiceResponse { partial_success: salvage(body) })
}

/// `partial_success` (field 1), of which `rejected_data_points` (1) comes before `error_message` (2).
fn salvage(body: &[u8]) -> Option<ExportMetricsPartialSuccess> {
    let (_, partial) = varint(body.strip_prefix(&[0x0a])?)?;
    let (rejected, rest) = varint(partial.strip_prefix(&[0x08])?)?;
    let said = rest.strip_prefix(&[0x12]).and_then(varint);
    let said = said.map(|(length, text)| text.get(..length as usize).unwrap_or(text));
    Some(ExportMetricsPartialSuccess {
        rejected_data_points: rejected as i64,
        error_message: String::from_utf8_lossy(said.unwrap_or_default()).into_owned(),
    })
}

fn varint(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let value = prost::encoding::decode_varint(&mut bytes).ok()?;
    Some((value, bytes))
}

/// A delivered request, perhaps in part.
pub(super) fn delivered(response: ExportMetricsServiceResponse) -> Outcome {
    let partial = response.partial_success.unwrap_or_default();
    Outcome::Delivered {
        rejected: u64::try_from(partial.rejected_data_points).unwrap_or(0),
        message: partial.error_message,
    }
}

/// The same as JSON, where 64-bit integers may be text.
pub(super) fn delivered_json(body: &[u8]) -> Outcome {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let partial = &answer["partialSuccess"];
    let rejected = match &partial["rejectedDataPoints"] {
        serde_json::Value::String(text) => text.parse().unwrap_or(0),
        number => number.as_u64().unwrap_or(0),
    };
    let message = partial["errorMessage"].as_str().unwrap_or_default().to_owned();
    Outcome::Delivered { rejected, message }
}

/// A gRPC failure.
pub(super) fn of_grpc(status: &Status) -> Outcome {
    let reason = describe(status);
    let after = retry_info(status.details());
    match status.code() {
        // What a receiver's limit on message size looks like, from one library or another.
        Code::OutOfRange => Outcome::TooLarge { reason },
        Code::ResourceExhausted if after.is_none() && is_about_size(status.message()) => {
            Outcome::TooLarge { reason }
        }
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Unavailable
        | Code::DataLoss
        // The specification has it tried again only with RetryInfo; to drop the data instead
        // helps nobody, since the wait grows either way.
        | Code::ResourceExhausted => Outcome::Retry { after, reason },
        _ if is_transport(status) => Outcome::Retry { after, reason },
        _ => Outcome::Refused { reason },
    }
}

/// An answer over HTTP that is no success.
pub(super) fn of_http(status: http::StatusCode, headers: &HeaderMap, body: &[u8]) -> Outcome {
    let header = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let json = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let said = match json["message"].as_str() {
        Some(message) => message.to_owned(),
        None => RpcStatus::decode(body).map(|s| s.message).unwrap_or_default(),
    };
    let mut reason = format!("the receiver answers {status}");
    if !said.is_empty() {
        reason = format!("{reason}: {said}");
    }
    if let Some(to) = header(header::LOCATION).filter(|_| status.is_redirection()) {
        reason = format!("{reason}; set `endpoint` to where it redirects to: `{to}`");
    }
    match status.as_u16() {
        401 | 403 => reason.push_str("; check the credentials in `headers`"),
        404 | 405 => reason.push_str("; check the path of `endpoint`"),
        _ => {}
    }
    match status.as_u16() {
        429 | 502 | 503 | 504 => Outcome::Retry {
            after: header(header::RETRY_AFTER).and_then(|v| wait_of(v, SystemTime::now())),
            reason,
        },
        413 => Outcome::TooLarge { reason },
        _ => Outcome::Refused { reason },
    }
}

/// `Retry-After`: seconds, or a date.
fn wait_of(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(MAX_WAIT))
}

fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|d| d.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&info.value[..]).ok()?.retry_delay.unwrap_or_default();
    let seconds = u64::try_from(delay.seconds).unwrap_or(0);
    Some(Duration::new(seconds, u32::try_from(delay.nanos).unwrap_or(0)).min(MAX_WAIT))
}

/// Words that gRPC libraries have for a message above their limit; a quota reads differently.
fn is_about_size(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["larger than", "too large", "size limit", "message size"].iter().any(|w| message.contains(w))
}

/// A broken or refused connection comes as a status that no receiver has sent.
fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// The status in words, with what is behind it.
fn describe(status: &Status) -> String {
    let mut text = format!("{:?}", status.code());
    if !status.message().is_empty() {
        text = format!("{text}: {}", status.message());
    }
    causes(&mut text, std::error::Error::source(status));
    text
}

/// Appends the chain of causes, skipping what is said already.
pub(super) fn causes(text: &mut String, mut cause: Option<&(dyn std::error::Error + 'static)>) {
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, delay: Option<(i64, i32)>) -> Status {
        let details = delay.map_or_else(Vec::new, |(seconds, nanos)| {
            let info = RetryInfo { retry_delay: Some(ProtoDuration { seconds, nanos }) };
            let any = Any {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".into(),
                value: info.encode_to_vec(),
            };
            RpcStatus { code: code as i32, message: String::new(), details: vec![any] }
                .encode_to_vec()
        });
        Status::with_details(code, "m", details.into())
    }

    #[test]
    fn grpc_codes_as_the_specification_says() {
        use Code::*;
        let kind = |code| match of_grpc(&status(code, None)) {
            Outcome::Retry { .. } => "retry",
            Outcome::TooLarge { .. } => "large",
            Outcome::Refused { .. } => "refused",
            Outcome::Delivered { .. } => "delivered",
        };
        for code in [Cancelled, DeadlineExceeded, Aborted, Unavailable, DataLoss, ResourceExhausted]
        {
            assert_eq!(kind(code), "retry", "{code:?}");
        }
        for code in [
            Unknown,
            InvalidArgument,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            Unauthenticated,
            FailedPrecondition,
            Unimplemented,
            Internal,
        ] {
            assert_eq!(kind(code), "refused", "{code:?}");
        }
        assert_eq!(kind(OutOfRange), "large");
    }

    #[test]
    fn retry_info_is_read() {
        let after = |delay| match of_grpc(&status(Code::ResourceExhausted, delay)) {
            Outcome::Retry { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(None), None);
        assert_eq!(after(Some((2, 500_000_000))), Some(Duration::from_millis(2500)));
        assert_eq!(after(Some((-2, -5))), Some(Duration::ZERO));
        assert_eq!(after(Some((i64::MAX, 0))), Some(MAX_WAIT));
    }

    #[test]
    fn rejected_points_count_whatever_the_words() {
        #[track_caller]
        fn check(body: &[u8], rejected: i64, message: &str) {
            let partial = answer(body).partial_success.unwrap_or_default();
            assert_eq!(
                (partial.rejected_data_points, &*partial.error_message),
                (rejected, message)
            );
        }
        let whole = ExportMetricsServiceResponse {
            partial_success: Some(ExportMetricsPartialSuccess {
                rejected_data_points: 300,
                error_message: "too old".into(),
            }),
        }
        .encode_to_vec();
        check(&whole, 300, "too old");
        check(&whole[..whole.len() - 4], 300, "too");
        check(&whole[..5], 300, "");
        check(b"\x0a\x06\x08\x05\x12\x02\xffa", 5, "\u{fffd}a");
        check(b"", 0, "");
        check(b"<html>", 0, "");
        check(b"\nOK", 0, "");
        check(&[0xff; 100], 0, "");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, "https://b/v1/metrics".parse().unwrap());
        let refused = |code: u16| {
            let code = http::StatusCode::from_u16(code).unwrap();
            match of_http(code, &headers, b"") {
                Outcome::Refused { reason } => reason,
                other => panic!("{other:?}"),
            }
        };
        assert!(refused(301).ends_with("where it redirects to: `https://b/v1/metrics`"));
        assert!(refused(401).ends_with("check the credentials in `headers`"));
        assert!(refused(404).ends_with("check the path of `endpoint`"));
    }

    #[test]
    fn http_codes_and_retry_after() {
        #[track_caller]
        fn check(code: u16, header: Option<&str>, expected: Option<Option<u64>>) {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(header::RETRY_AFTER, header.parse().unwrap());
            }
            let got = match of_http(http::StatusCode::from_u16(code).unwrap(), &headers, b"") {
                Outcome::Retry { after, .. } => Some(after.map(|a| a.as_secs())),
                _ => None,
            };
            assert_eq!(got, expected, "{code}");
        }
        for code in [429, 502, 503, 504] {
            check(code, None, Some(None));
            check(code, Some("7"), Some(Some(7)));
            check(code, Some("later"), Some(None));
        }
        for code in [400, 401, 403, 404, 413, 500, 501] {
            check(code, Some("7"), None);
        }
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 60);
        assert_eq!(wait_of("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(60)));
        assert_eq!(
            wait_of("Sun, 06 Nov 1994 08:49:37 GMT", SystemTime::now()),
            Some(Duration::ZERO)
        );
    }
}
