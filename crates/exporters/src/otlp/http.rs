//! `otlp_http`: one POST per attempt, protobuf or JSON.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use wattpipe_pipeline::{ConfigProblem, async_trait};

use super::{
    config::{Compression, Encoding, OtlpHttpConfig, USER_AGENT},
    env,
    exporter::Protocol,
    requests, status,
    tls::Connector,
};
use crate::queue::{Outcome, Request, Transport};

const PATH: &str = "/v1/metrics";
/// More of an answer is not read.
const MAX_ANSWER: usize = 64 << 10;

/// Connects with the first request.
pub(super) fn transport(config: &OtlpHttpConfig) -> Result<Arc<dyn Transport>, String> {
    Ok(Arc::new(HttpTransport::new(config)?))
}

/// The URL that `endpoint` or `metrics_endpoint` comes to.
pub(super) fn target(config: &OtlpHttpConfig) -> Result<Uri, ConfigProblem> {
    let default = OtlpHttpConfig::default();
    let own = config.metrics_endpoint.as_deref();
    let own = own.filter(|own| !env::is_overruled(own, config, &default));
    let key = if own.is_some() { "metrics_endpoint" } else { "endpoint" };
    let said = own.unwrap_or(&config.endpoint).trim();
    let whole = match own {
        Some(_) => said.to_owned(),
        None => format!("{}{PATH}", said.trim_end_matches('/')),
    };
    let wrong = |what: String| ConfigProblem::at(key, format!("`{said}` is no valid URL: {what}"));
    let has_host = |uri: &Uri| uri.host().is_some_and(|host| !host.is_empty());
    if !said.contains("://") && format!("http://{whole}").parse().is_ok_and(|u| has_host(&u)) {
        return Err(wrong(format!("it begins with no scheme; write `http://{said}`")));
    }
    let uri: Uri = whole.parse().map_err(|e| wrong(format!("{e}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || !has_host(&uri) {
        return Err(wrong("write `http://host:4318` or `https://host:4318`".to_owned()));
    }
    Ok(uri)
}

/// `user:password@` of a URL as the header that carries it; a header of the configuration wins.
fn credentials(uri: &Uri) -> Option<HeaderValue> {
    let (user, _) = uri.authority()?.as_str().rsplit_once('@')?;
    let mut value =
        HeaderValue::try_from(format!("Basic {}", BASE64.encode(env::percent_decoded(user))))
            .ok()?;
    value.set_sensitive(true);
    Some(value)
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
        let uri = target(config).map_err(|p| p.message)?;
        let connector = if uri.scheme_str() == Some("https") {
            let tls = config.tls.clone().unwrap_or_default();
            Connector::tls(&tls, &[b"http/1.1"]).map_err(|e| e.to_string())?
        } else {
            Connector::plain()
        };
        let mut headers = HeaderMap::new();
        let kind = match config.encoding {
            Encoding::Proto => "application/x-protobuf",
            Encoding::Json => "application/json",
        };
        let coding = match config.compression {
            Compression::Gzip => Some("gzip"),
            Compression::Zstd => Some("zstd"),
            Compression::None => None,
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(coding) = coding {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.extend(credentials(&uri).map(|value| (header::AUTHORIZATION, value)));
        headers.extend(config.shared().headers()?);
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
        let body = answer(&head.headers, body).await;
        if !head.status.is_success() {
            return status::of_http(head.status, &head.headers, &body);
        }
        let kind = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
        if kind.starts_with(b"application/json") {
            status::delivered_json(&body)
        } else if kind.starts_with(b"text/html") && !body.is_empty() {
            let message = "it answers with a web page: `endpoint` may be no OTLP receiver".into();
            Outcome::Delivered { rejected: 0, message }
        } else {
            status::delivered(status::answer(&body))
        }
    }

    fn split(&self, request: &Request) -> Option<[Request; 2]> {
        requests::split(request)
    }
}

/// The body of an answer, as far as it is read and can be read: the status alone says what became
/// of the request.
async fn answer<B: BodyExt<Data = Bytes> + Unpin>(headers: &HeaderMap, mut body: B) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_ANSWER
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    // Not asked for, but some proxies do it.
    if headers.get(header::CONTENT_ENCODING).is_some_and(|v| v == "gzip") {
        let packed = std::mem::take(&mut bytes);
        let plain = flate2::read::MultiGzDecoder::new(&packed[..]);
        let _ = plain.take(MAX_ANSWER as u64).read_to_end(&mut bytes);
    }
    bytes
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

    #[track_caller]
    fn check_credentials(uri: &'static str, expected: Option<&str>) {
        let value = credentials(&Uri::from_static(uri));
        assert_eq!(value.as_ref().map(|v| v.to_str().unwrap()), expected);
        assert!(value.is_none_or(|v| v.is_sensitive()));
    }

    #[test]
    fn credentials_in_a_url_are_sent() {
        check_credentials("http://a:4318", None);
        check_credentials("http://user:pass@a:4318", Some("Basic dXNlcjpwYXNz"));
        check_credentials("http://user:p%40ss@a:4318", Some("Basic dXNlcjpwQHNz"));
    }

    #[track_caller]
    fn check_problem(endpoint: &str, expected: &str) {
        let config = OtlpHttpConfig { endpoint: endpoint.into(), ..OtlpHttpConfig::default() };
        assert_eq!(target(&config).unwrap_err().message, expected);
    }

    #[test]
    fn a_missing_scheme_is_proposed() {
        for endpoint in ["localhost:4318", "localhost", "10.0.0.1:4318/otlp", "[::1]:4318"] {
            let proposed = format!("it begins with no scheme; write `http://{endpoint}`");
            check_problem(endpoint, &format!("`{endpoint}` is no valid URL: {proposed}"));
        }
        let general = "write `http://host:4318` or `https://host:4318`";
        check_problem("ftp://a", &format!("`ftp://a` is no valid URL: {general}"));
    }
}
