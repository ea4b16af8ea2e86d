//! The connection to a receiver: TCP, with TLS by rustls (ring) where it is wanted.

use std::{
    fs, io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    version,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower_service::Service;

use super::config::{TlsConfig, TlsVersion};

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("tls::{key}: cannot read `{path}`: {cause}")]
    Read { key: &'static str, path: String, cause: io::Error },
    #[error("tls::{key}: not valid PEM: {cause}")]
    Pem { key: &'static str, cause: String },
    #[error("tls::{key}: holds no certificate")]
    Empty { key: &'static str },
    #[error("tls: the system has no certificate authorities ({0}); name a `ca_file`")]
    NoSystemAuthorities(String),
    #[error("tls: {0}")]
    Rustls(#[from] rustls::Error),
    #[error("tls::server_name_override: `{0}` is no valid host name")]
    ServerName(String),
}

/// Connects to the host and port of a URI.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<Tls>,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl Connector {
    /// In plain text.
    pub(super) fn plain() -> Self {
        Self { tls: None }
    }

    /// With TLS, offering these application protocols. Reads the files that `config` names.
    pub(super) fn tls(config: &TlsConfig, protocols: &[&[u8]]) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions(config))?;
        let builder = if config.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier(provider)))
        } else {
            builder.with_root_certificates(roots(config)?)
        };
        let mut client = match identity(config)? {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key)?,
            None => builder.with_no_client_auth(),
        };
        client.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        let name = config
            .server_name_override
            .as_ref()
            .map(|n| ServerName::try_from(n.clone()).map_err(|_| TlsError::ServerName(n.clone())))
            .transpose()?;
        Ok(Self { tls: Some(Tls { connector: Arc::new(client).into(), name }) })
    }
}

impl Service<http::Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
            let tcp = TcpStream::connect((host.as_str(), port)).await.map_err(|e| {
                io::Error::new(e.kind(), format!("cannot connect to {host}:{port}: {e}"))
            })?;
            tcp.set_nodelay(true)?;
            let Some(Tls { connector, name }) = tls else {
                return Ok(TokioIo::new(Stream::Plain(tcp)));
            };
            let name = match name {
                Some(name) => name,
                None => ServerName::try_from(host.clone()).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidInput, format!("`{host}` is no host name"))
                })?,
            };
            let stream = connector.connect(name, tcp).await.map_err(|e| {
                io::Error::new(e.kind(), format!("TLS with {host}:{port} failed: {e}; check `tls`"))
            })?;
            Ok(TokioIo::new(Stream::Tls(Box::new(stream))))
        })
    }
}

/// A connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

fn versions(config: &TlsConfig) -> Vec<&'static SupportedProtocolVersion> {
    let within = |v| v >= config.min_version && config.max_version.is_none_or(|max| v <= max);
    [(TlsVersion::V12, &version::TLS12), (TlsVersion::V13, &version::TLS13)]
        .into_iter()
        .filter(|(v, _)| within(*v))
        .map(|(_, version)| version)
        .collect()
}

fn roots(config: &TlsConfig) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let own = pem("ca_file", config.ca_file.as_deref(), config.ca_pem.as_deref())?;
    if let Some(text) = &own {
        for certificate in certificates("ca_file", text)? {
            store.add(certificate)?;
        }
    }
    if own.is_none() || config.include_system_ca_certs_pool {
        let native = rustls_native_certs::load_native_certs();
        store.add_parsable_certificates(native.certs);
        if store.is_empty() {
            let why = native.errors.first().map_or("none found".into(), ToString::to_string);
            return Err(TlsError::NoSystemAuthorities(why));
        }
    }
    Ok(store)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(config: &TlsConfig) -> Result<Option<Identity>, TlsError> {
    let chain = pem("cert_file", config.cert_file.as_deref(), config.cert_pem.as_deref())?;
    let key_text = config.key_pem.as_ref().map(|k| k.expose());
    let key = pem("key_file", config.key_file.as_deref(), key_text)?;
    let (Some(chain), Some(key)) = (chain, key) else { return Ok(None) };
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|e| TlsError::Pem { key: "key_file", cause: e.to_string() })?;
    Ok(Some((certificates("cert_file", &chain)?, key)))
}

fn pem(
    key: &'static str,
    file: Option<&Path>,
    text: Option<&str>,
) -> Result<Option<Vec<u8>>, TlsError> {
    match (file, text) {
        (Some(path), _) => fs::read(path).map(Some).map_err(|cause| TlsError::Read {
            key,
            path: path.display().to_string(),
            cause,
        }),
        (None, Some(text)) => Ok(Some(text.as_bytes().to_vec())),
        (None, None) => Ok(None),
    }
}

fn certificates(key: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|e| TlsError::Pem { key, cause: e.to_string() })?;
    if found.is_empty() { Err(TlsError::Empty { key }) } else { Ok(found) }
}

/// `insecure_skip_verify`: any certificate will do, but the handshake must be sound.
#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
