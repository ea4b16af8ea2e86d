//! `otlp_grpc` and `otlp_http`: usage as OTLP metrics, with the Collector's keys, defaults and
//! meaning.
//!
//! ```yaml
//! exporters:
//!   otlp_grpc:
//!     endpoint: collector:4317
//!     tls: { ca_file: /etc/ssl/collector.pem }
//!   otlp_http:
//!     endpoint: https://collector:4318   # /v1/metrics is appended
//!     encoding: proto                    # proto | json
//! ```
//!
//! Flow: [`encode`] turns a window into requests below `max_request_size`, [`crate::queue`] holds
//! and retries them, [`grpc`] or [`http`] makes one attempt over a [`tls`] connection; [`exporter`]
//! is all of that but the transport.
//!
//! Departures from the Collector, each to lose less: ResourceExhausted is retried without
//! RetryInfo too, a request the receiver finds too large is divided, windows are not reordered.
//! Without `tls` and without a scheme a loopback endpoint is plain text, since what never leaves
//! the host needs no certificate; every other one is TLS, as there.

pub mod config;
mod encode;
mod env;
mod exporter;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod grpc;
mod http;
mod requests;
mod status;
mod tls;

pub use config::{
    Compression, Encoding, OtlpGrpcConfig, OtlpHttpConfig, Shared, Temporality, TlsConfig,
};
pub use encode::{Encoder, EncoderOptions};
pub use env::percent_decoded;
pub use exporter::{OtlpExporter, Protocol};
pub use requests::Requests;

/// `otlp_grpc`.
pub type OtlpGrpcExporter = OtlpExporter<OtlpGrpcConfig>;
/// `otlp_http`.
pub type OtlpHttpExporter = OtlpExporter<OtlpHttpConfig>;
