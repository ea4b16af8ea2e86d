//! `otlp_grpc`: one attempt at a time over one multiplexed connection, which comes and goes by
//! itself.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;
use tonic::{
    Status,
    client::Grpc,
    codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder as MessageEncoder},
    metadata::{MetadataKey, MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};
use wattpipe_pipeline::{
    BuildContext, ExportError, Exporter, ExporterComponent, Stability, async_trait, batch::Batch,
    registry::BuildError,
};

use super::{
    config::{Compression, OtlpGrpcConfig, TlsConfig},
    encode::EncoderOptions,
    requests, status,
    tls::Connector,
};
use crate::{
    otlp::sender::Sender,
    queue::{Outcome, QueueOptions, Request, Transport},
};

const METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// Pings on an idle connection, and how long their answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub struct OtlpGrpcExporter {
    config: OtlpGrpcConfig,
    sender: Sender,
}

impl ExporterComponent for OtlpGrpcExporter {
    const NAME: &'static str = "otlp_grpc";
    const ALIASES: &'static [&'static str] = &["otlp"];
    const DOC: &'static str = "Sends OTLP metrics over gRPC.";
    const STABILITY: Stability = Stability::Beta;
    type Config = OtlpGrpcConfig;

    fn build(config: OtlpGrpcConfig, context: &BuildContext) -> Result<Self, BuildError> {
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
impl Exporter for OtlpGrpcExporter {
    async fn start(&mut self) -> Result<(), ExportError> {
        let transport = GrpcTransport::new(&self.config).map_err(ExportError::Fatal)?;
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

/// Where to connect to, and how.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    pub(super) uri: http::Uri,
    pub(super) tls: Option<TlsConfig>,
}

/// What `endpoint` and `tls` come to.
pub(super) fn target(config: &OtlpGrpcConfig) -> Result<Target, String> {
    let endpoint = config.endpoint.trim();
    let said = config.tls.clone().unwrap_or_default();
    let (authority, tls) = match endpoint.split_once("://") {
        Some(("http", rest)) => (rest, None),
        Some(("https", rest)) => (rest, Some(TlsConfig { insecure: false, ..said })),
        Some(("dns", rest)) => (rest.trim_start_matches('/'), secure(config, rest)),
        Some((scheme, _)) => {
            return Err(format!(
                "unknown scheme `{scheme}`: write `host:port`, `http://host:port` for plain text or `https://host:port`"
            ));
        }
        None => (endpoint, secure(config, endpoint)),
    };
    let authority = authority.trim_end_matches('/');
    let scheme = if tls.is_some() { "https" } else { "http" };
    let uri: http::Uri = format!("{scheme}://{authority}")
        .parse()
        .map_err(|e| format!("`{endpoint}` is no valid endpoint: {e}"))?;
    if uri.host().is_none_or(str::is_empty) || uri.port_u16().is_none() {
        return Err(format!("`{endpoint}` needs a host and a port, such as `localhost:4317`"));
    }
    Ok(Target { uri, tls })
}

/// TLS or not, where no scheme tells.
fn secure(config: &OtlpGrpcConfig, authority: &str) -> Option<TlsConfig> {
    match &config.tls {
        Some(tls) => (!tls.insecure).then(|| tls.clone()),
        None => (!is_loopback(authority)).then(TlsConfig::default),
    }
}

fn is_loopback(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('/').trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

struct GrpcTransport {
    channel: Channel,
    headers: MetadataMap,
    compression: Option<CompressionEncoding>,
}

impl GrpcTransport {
    fn new(config: &OtlpGrpcConfig) -> Result<Self, String> {
        let target = target(config)?;
        let connector = match &target.tls {
            Some(tls) => Connector::tls(tls, &[b"h2"]).map_err(|e| e.to_string())?,
            None => Connector::plain(),
        };
        // TLS is the connector's: tonic is told `http` and sends the receiver's own scheme.
        let authority = target.uri.authority().map(ToString::to_string).unwrap_or_default();
        let dial = format!("http://{authority}").parse::<http::Uri>().map_err(|e| e.to_string())?;
        let name = config.tls.as_ref().and_then(|t| t.server_name_override.as_deref());
        let scheme = target.uri.scheme_str().unwrap_or("http");
        let origin = format!("{scheme}://{}", name.unwrap_or(&authority))
            .parse()
            .map_err(|e| format!("tls::server_name_override: {e}"))?;
        let endpoint = Endpoint::from(dial)
            .origin(origin)
            .user_agent(concat!("wattpipe/", env!("CARGO_PKG_VERSION")))
            .map_err(|e| e.to_string())?
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let mut headers = MetadataMap::new();
        for (name, value) in &config.headers {
            let at = |e: &dyn std::fmt::Display| format!("headers::{name}: {e}");
            let key = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes())
                .map_err(|e| at(&e))?;
            let mut value = MetadataValue::try_from(value.expose()).map_err(|e| at(&e))?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        Ok(Self {
            channel: endpoint.connect_with_connector_lazy(connector),
            headers,
            compression: match config.compression {
                Compression::Gzip => Some(CompressionEncoding::Gzip),
                Compression::Zstd => Some(CompressionEncoding::Zstd),
                Compression::None => None,
            },
        })
    }

    async fn call(&self, body: Bytes) -> Result<ExportMetricsServiceResponse, Status> {
        let mut client = Grpc::new(self.channel.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        if let Some(compression) = self.compression {
            client = client.send_compressed(compression);
        }
        let failed = |e: tonic::transport::Error| Status::from_error(e.into());
        client.ready().await.map_err(failed)?;
        let mut request = tonic::Request::new(body);
        *request.metadata_mut() = self.headers.clone();
        let path = http::uri::PathAndQuery::from_static(METHOD);
        Ok(client.unary(request, path, Encoded).await?.into_inner())
    }
}

#[async_trait]
impl Transport for GrpcTransport {
    async fn send(&self, body: Bytes) -> Outcome {
        match self.call(body).await {
            Ok(response) => status::delivered(response),
            Err(status) => status::of_grpc(&status),
        }
    }

    fn split(&self, request: &Request) -> Option<[Request; 2]> {
        requests::split(request)
    }
}

/// Requests are encoded already; responses are decoded here.
#[derive(Clone, Copy)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = ExportMetricsServiceResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl MessageEncoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, body: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(body);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = ExportMetricsServiceResponse;
    type Error = Status;

    fn decode(&mut self, body: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let body = body.copy_to_bytes(body.remaining());
        let decoded = ExportMetricsServiceResponse::decode(body);
        // What cannot be read is an answer all the same: the request has arrived.
        Ok(Some(decoded.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(endpoint: &str, tls: Option<TlsConfig>, expected: Result<&str, &str>) {
        let config = OtlpGrpcConfig { endpoint: endpoint.into(), tls, ..OtlpGrpcConfig::default() };
        match (target(&config), expected) {
            (Ok(t), Ok(uri)) => {
                assert_eq!(t.uri.to_string(), uri, "{endpoint}");
                assert_eq!(t.tls.is_some(), uri.starts_with("https"), "{endpoint}");
            }
            (Err(e), Err(part)) => assert!(e.contains(part), "{endpoint}: {e}"),
            (got, _) => panic!("{endpoint}: {got:?}"),
        }
    }

    #[test]
    fn endpoints() {
        let insecure = || Some(TlsConfig { insecure: true, ..TlsConfig::default() });
        let secure = || Some(TlsConfig::default());
        check("localhost:4317", None, Ok("http://localhost:4317/"));
        check("127.0.0.1:4317", None, Ok("http://127.0.0.1:4317/"));
        check("[::1]:4317", None, Ok("http://[::1]:4317/"));
        check("localhost:4317", secure(), Ok("https://localhost:4317/"));
        check("collector:4317", None, Ok("https://collector:4317/"));
        check("collector:4317", insecure(), Ok("http://collector:4317/"));
        check("http://collector:4317", None, Ok("http://collector:4317/"));
        check("https://localhost:4317/", insecure(), Ok("https://localhost:4317/"));
        check("dns:///collector:4317", insecure(), Ok("http://collector:4317/"));
        check("collector", None, Err("a host and a port"));
        check(":4317", None, Err("a host and a port"));
        check("ftp://collector:1", None, Err("unknown scheme"));
    }
}
