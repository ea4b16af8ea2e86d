//! `otlp_grpc`: one attempt at a time over one multiplexed connection, which comes and goes by
//! itself.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use tonic::{
    Status,
    client::Grpc,
    codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder as MessageEncoder},
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};
use wattpipe_pipeline::{ConfigProblem, async_trait};

use super::{
    config::{Compression, OtlpGrpcConfig, TlsConfig, USER_AGENT},
    exporter::Protocol,
    requests, status,
    tls::Connector,
};
use crate::queue::{Outcome, Request, Transport};

const METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// Pings on an idle connection, and how long their answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Connects with the first request.
pub(super) fn transport(config: &OtlpGrpcConfig) -> Result<Arc<dyn Transport>, String> {
    Ok(Arc::new(GrpcTransport::new(config)?))
}

/// Where to connect to, and how.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    pub(super) uri: http::Uri,
    pub(super) tls: Option<TlsConfig>,
}

/// What `endpoint` and `tls` come to.
pub(super) fn target(config: &OtlpGrpcConfig) -> Result<Target, ConfigProblem> {
    let wrong = |what: String| Err(ConfigProblem::at("endpoint", what));
    let endpoint = config.endpoint.trim();
    let said = config.tls.clone().unwrap_or_default();
    let (authority, tls) = match endpoint.split_once("://") {
        Some(("http", rest)) => (rest, None),
        Some(("https", rest)) => (rest, Some(TlsConfig { insecure: false, ..said })),
        Some(("dns", rest)) => (rest.trim_start_matches('/'), secure(config, rest)),
        Some((scheme, _)) => {
            return wrong(format!(
                "unknown scheme `{scheme}`: write `host:port`, `http://host:port` for plain text or `https://host:port`"
            ));
        }
        None => (endpoint, secure(config, endpoint)),
    };
    let authority = authority.trim_end_matches('/');
    let scheme = if tls.is_some() { "https" } else { "http" };
    match format!("{scheme}://{authority}").parse::<http::Uri>() {
        Err(e) => wrong(format!("`{endpoint}` is no valid endpoint: {e}")),
        Ok(uri) if uri.host().is_none_or(str::is_empty) || uri.port_u16().is_none() => {
            wrong(format!("`{endpoint}` needs a host and a port, such as `localhost:4317`"))
        }
        Ok(uri) => Ok(Target { uri, tls }),
    }
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
        let target = target(config).map_err(|p| p.message)?;
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
            .user_agent(USER_AGENT)
            .map_err(|e| e.to_string())?
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let headers = MetadataMap::from_headers(config.shared().headers()?);
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
        Ok(Some(status::answer(&body)))
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
            (Err(e), Err(part)) => assert!(e.message.contains(part), "{endpoint}: {e:?}"),
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
