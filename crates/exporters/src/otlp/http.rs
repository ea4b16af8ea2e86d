//! `otlp_http`: one POST per attempt, protobuf or JSON.

use std::{io::Write, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use wattpipe_pipeline::{
    BuildContext, ExportError, Exporter, ExporterComponent, Stability, async_trait, batch::Batch,
    registry::BuildError,
};

use super::{
    config::{Compression, Encoding, OtlpHttpConfig},
    encode::EncoderOptions,
    requests,
    sender::Sender,
    status,
    tls::Connector,
};
use crate::queue::{Outcome, QueueOptions, Request, Transport};

const PATH: &str = "/v1/metrics";
/// More of an answer is not read.
const MAX_ANSWER: usize = 64 << 10;

/// See the module's documentation.
pub struct OtlpHttpExporter {
    config: OtlpHttpConfig,
    sender: Sender,
}

impl ExporterComponent for OtlpHttpExporter {
    const NAME: &'static str = "otlp_http";
    const ALIASES: &'static [&'static str] = &["otlphttp"];
    const DOC: &'static str = "Sends OTLP metrics over HTTP, as protobuf or JSON.";
    const STABILITY: Stability = Stability::Beta;
    type Config = OtlpHttpConfig;

    fn build(config: OtlpHttpConfig, context: &BuildContext) -> Result<Self, BuildError> {
        target(&config).map_err(BuildError)?;
        let encoder = EncoderOptions {
            temporality: config.temporality,
            levels: config.levels.clone(),
            max_series: config.max_series,
            resource_to_telemetry_conversion: config.resource_to_telemetry_conversion,
        };
        let queue = QueueOptions {
            id: context.id.clone(),
            queue: config.sending_queue.clone(),
            retry: config.retry_on_failure.clone(),
            timeout: config.timeout.0,
            max_request_size: usize::try_from(config.max_request_size.bytes())
                .unwrap_or(usize::MAX),
        };
        Ok(Self { sender: Sender::new(&encoder, queue, context), config })
    }
}

#[async_trait]
impl Exporter for OtlpHttpExporter {
    async fn start(&mut self) -> Result<(), ExportError> {
        let transport = HttpTransport::new(&self.config).map_err(ExportError::Fatal)?;
        self.sender.start(Arc::new(transport))
    }

    async fn export(&mut self, batch: Batch) -> Result<(), ExportError> {
        self.sender.export(batch).await
    }

    async fn shutdown(&mut self, timeout: Duration) -> Result<(), ExportError> {
        self.sender.shutdown(timeout).await;
        Ok(())
    }
}

/// The URL that `endpoint` or `metrics_endpoint` comes to.
pub(super) fn target(config: &OtlpHttpConfig) -> Result<Uri, String> {
    let said = config.metrics_endpoint.as_deref().unwrap_or(&config.endpoint).trim();
    let whole = match &config.metrics_endpoint {
        Some(_) => said.to_owned(),
        None => format!("{}{PATH}", said.trim_end_matches('/')),
    };
    let uri: Uri = whole.parse().map_err(|e| format!("`{said}` is no valid URL: {e}"))?;
    let scheme = uri.scheme_str().unwrap_or_default();
    if !matches!(scheme, "http" | "https") || uri.host().is_none_or(str::is_empty) {
        return Err(format!(
            "`{said}` is no valid URL: write `http://host:4318` or `https://host:4318`"
        ));
    }
    Ok(uri)
}

struct HttpTransport {
    client: Client<Connector, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
    encoding: Encoding,
    compression: Compression,
}

impl HttpTransport {
    fn new(config: &OtlpHttpConfig) -> Result<Self, String> {
        let uri = target(config)?;
        let connector = if uri.scheme_str() == Some("https") {
            let tls = config.tls.clone().unwrap_or_default();
            Connector::tls(&tls, &[b"http/1.1"]).map_err(|e| e.to_string())?
        } else {
            Connector::plain()
        };
        let mut headers = HeaderMap::new();
        let (kind, coding) = (
            match config.encoding {
                Encoding::Proto => "application/x-protobuf",
                Encoding::Json => "application/json",
            },
            match config.compression {
                Compression::Gzip => Some("gzip"),
                Compression::Zstd => Some("zstd"),
                Compression::None => None,
            },
        );
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(coding) = coding {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        let agent = concat!("wattpipe/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        for (name, value) in &config.headers {
            let at = |e: &dyn std::fmt::Display| format!("headers::{name}: {e}");
            let key: HeaderName = name.parse().map_err(|e| at(&e))?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|e| at(&e))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            uri,
            headers,
            encoding: config.encoding,
            compression: config.compression,
        })
    }

    fn body(&self, body: Bytes) -> Result<Bytes, String> {
        let body = match self.encoding {
            Encoding::Proto => body,
            Encoding::Json => {
                let request =
                    ExportMetricsServiceRequest::decode(body).map_err(|e| e.to_string())?;
                serde_json::to_vec(&request).map_err(|e| e.to_string())?.into()
            }
        };
        match self.compression {
            Compression::None => Ok(body),
            Compression::Zstd => {
                zstd::bulk::compress(&body, 0).map(Bytes::from).map_err(|e| e.to_string())
            }
            Compression::Gzip => {
                let mut gzip =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                let done = gzip.write_all(&body).and_then(|()| gzip.finish());
                done.map(Bytes::from).map_err(|e| e.to_string())
            }
        }
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, body: Bytes) -> Outcome {
        let body = match self.body(body) {
            Ok(body) => body,
            Err(reason) => return Outcome::Refused { reason },
        };
        let mut request = http::Request::post(self.uri.clone());
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let request = match request.body(Full::new(body)) {
            Ok(request) => request,
            Err(e) => return Outcome::Refused { reason: e.to_string() },
        };
        let failed = |e: &(dyn std::error::Error + 'static)| {
            let mut reason = e.to_string();
            status::causes(&mut reason, e.source());
            Outcome::Retry { after: None, reason }
        };
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(e) => return failed(&e),
        };
        let (head, body) = response.into_parts();
        let body = match Limited::new(body, MAX_ANSWER).collect().await {
            Ok(body) => body.to_bytes(),
            // The status alone says what became of the request.
            Err(_) => Bytes::new(),
        };
        if head.status.is_success() {
            let json = head
                .headers
                .get(header::CONTENT_TYPE)
                .is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
            return if json {
                status::delivered_json(&body)
            } else {
                status::delivered(ExportMetricsServiceResponse::decode(body).unwrap_or_default())
            };
        }
        let after = head.headers.get(header::RETRY_AFTER).and_then(|v| v.to_str().ok());
        status::of_http(head.status, after, &body)
    }

    fn split(&self, request: &Request) -> Option<[Request; 2]> {
        requests::split(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(endpoint: &str, metrics_endpoint: Option<&str>, expected: Option<&str>) {
        let config = OtlpHttpConfig {
            endpoint: endpoint.into(),
            metrics_endpoint: metrics_endpoint.map(Into::into),
            ..OtlpHttpConfig::default()
        };
        assert_eq!(target(&config).ok().map(|u| u.to_string()).as_deref(), expected);
    }

    #[test]
    fn endpoints() {
        check("http://a:4318", None, Some("http://a:4318/v1/metrics"));
        check("http://a:4318/", None, Some("http://a:4318/v1/metrics"));
        check("https://a/otlp", None, Some("https://a/otlp/v1/metrics"));
        check("http://a", Some("http://b:9090/api/v1/otlp"), Some("http://b:9090/api/v1/otlp"));
        check("a:4318", None, None);
        check("", None, None);
    }
}
