//! Small HTTP requests, over a unix socket or TLS: one connection each, bounded in size and time.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, StatusCode,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{AUTHORIZATION, HOST},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

/// A whole request takes no longer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A body is no larger.
const MAX_BODY: usize = 32 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// Nobody there, or no right to connect.
    #[error("cannot connect to {peer}: {source}")]
    Connect {
        /// Whom.
        peer: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file of certificates or the token cannot be used.
    #[error("cannot use {path}: {reason}")]
    Credentials {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
    /// It broke off, or spoke something else.
    #[error("{peer}: {reason}")]
    Protocol {
        /// Whom.
        peer: String,
        /// How.
        reason: String,
    },
    /// An answer that is no success.
    #[error("{peer} answered {status}{hint}")]
    Status {
        /// Whom.
        peer: String,
        /// What.
        status: StatusCode,
        /// What to do, where that is known.
        hint: &'static str,
    },
    /// No answer in time.
    #[error("{peer} did not answer within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// Whom.
        peer: String,
    },
}

/// Whom to ask.
#[derive(Clone)]
pub(crate) enum Peer {
    /// A socket of this host.
    Unix(PathBuf),
    /// A server, in clear or with TLS.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// How to secure it.
        tls: Option<TlsConnector>,
    },
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
        }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({self})")
    }
}

impl Peer {
    /// From `https://host:port` or `http://host:port`.
    pub(crate) fn from_endpoint(
        endpoint: &str,
        tls: impl FnOnce() -> Result<TlsConnector, HttpError>,
    ) -> Result<Self, HttpError> {
        let bad = || HttpError::Protocol {
            peer: endpoint.to_owned(),
            reason: "no endpoint of the form https://HOST:PORT".into(),
        };
        let uri: hyper::Uri = endpoint.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tls = if secure { Some(tls()?) } else { None };
        Ok(Self::Tcp { host, port, tls })
    }

    /// `GET path`; the body of a success.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> Result<Bytes, HttpError> {
        let whole = async {
            let (_connection, body) = self.open(path, token).await?;
            let body = Limited::new(body, MAX_BODY).collect().await;
            body.map(http_body_util::Collected::to_bytes).map_err(|e| self.broken(e))
        };
        tokio::time::timeout(TIMEOUT, whole).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// `GET path`; the body as it comes.
    pub(crate) async fn stream(
        &self,
        path: &str,
        token: Option<&str>,
    ) -> Result<(Connection, Incoming), HttpError> {
        tokio::time::timeout(TIMEOUT, self.open(path, token))
            .await
            .unwrap_or_else(|_| Err(self.late()))
    }

    async fn open(
        &self,
        path: &str,
        token: Option<&str>,
    ) -> Result<(Connection, Incoming), HttpError> {
        let refused = |source| HttpError::Connect { peer: self.to_string(), source };
        match self {
            Self::Unix(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(refused)?;
                self.send(stream, "localhost", path, token).await
            }
            Self::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(refused)?;
                let name = format!("{host}:{port}");
                match tls {
                    None => self.send(stream, &name, path, token).await,
                    Some(tls) => {
                        let server =
                            ServerName::try_from(host.clone()).map_err(|e| self.broken(e))?;
                        let stream = tls.connect(server, stream).await.map_err(refused)?;
                        self.send(stream, &name, path, token).await
                    }
                }
            }
        }
    }

    async fn send<S>(
        &self,
        stream: S,
        host: &str,
        path: &str,
        token: Option<&str>,
    ) -> Result<(Connection, Incoming), HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(e))?;
        // Ends with the guard: an abandoned request leaves no connection behind.
        let connection = Connection(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let mut request = Request::get(path).header(HOST, host);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|e| self.broken(e))?;
        let response = sender.send_request(request).await.map_err(|e| self.broken(e))?;
        let status = response.status();
        if status.is_success() {
            return Ok((connection, response.into_body()));
        }
        let hint = match status {
            StatusCode::UNAUTHORIZED => ": the token is not accepted",
            StatusCode::FORBIDDEN => {
                ": the service account may not read it (for the kubelet: get nodes/pods or nodes/proxy; for the API server: list and watch pods)"
            }
            _ => "",
        };
        Err(HttpError::Status { peer: self.to_string(), status, hint })
    }

    fn broken(&self, reason: impl std::fmt::Display) -> HttpError {
        HttpError::Protocol { peer: self.to_string(), reason: reason.to_string() }
    }

    fn late(&self) -> HttpError {
        HttpError::Timeout { peer: self.to_string() }
    }
}

/// Keeps a connection going.
#[derive(Debug)]
pub(crate) struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// TLS towards a server whose certificate one of `ca_file` has signed.
pub(crate) fn tls(ca_file: &std::path::Path) -> Result<TlsConnector, HttpError> {
    let unusable =
        |reason: String| HttpError::Credentials { path: ca_file.display().to_string(), reason };
    let mut roots = rustls::RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(ca_file).map_err(|e| unusable(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|e| unusable(e.to_string()))?;
        roots.add(certificate).map_err(|e| unusable(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it holds no certificate".into()));
    }
    let config = builder()?.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// TLS towards any server at all.
pub(crate) fn tls_unverified() -> Result<TlsConnector, HttpError> {
    let provider = rustls::crypto::ring::default_provider();
    let algorithms = provider.signature_verification_algorithms;
    let config = builder()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(unverified::Anybody(algorithms)))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn builder() -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier>, HttpError>
{
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| HttpError::Credentials { path: "TLS".into(), reason: e.to_string() })
}

mod unverified {
    //! Accepts whoever holds the key of the certificate it shows.

    use rustls::{
        DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, ServerName, UnixTime},
    };

    #[derive(Debug)]
    pub(super) struct Anybody(pub(super) WebPkiSupportedAlgorithms);

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, certificate, signature, &self.0)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, certificate, signature, &self.0)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.supported_schemes()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(endpoint: &str, expected: Option<(&str, u16)>) {
        let got = Peer::from_endpoint(endpoint, tls_unverified).ok();
        let got = got.as_ref().map(|p| match p {
            Peer::Tcp { host, port, .. } => (host.as_str(), *port),
            Peer::Unix(_) => panic!("{p}"),
        });
        assert_eq!(got, expected, "{endpoint}");
    }

    #[test]
    fn endpoints() {
        check("https://127.0.0.1:10250", Some(("127.0.0.1", 10250)));
        check("https://[::1]:10250", Some(("::1", 10250)));
        check("http://kubelet", Some(("kubelet", 80)));
        check("https://a.b", Some(("a.b", 443)));
        check("ftp://a", None);
        check("nothing", None);
    }

    #[test]
    fn a_file_without_certificates_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, "no certificate").unwrap();
        let error = tls(&file).err().unwrap().to_string();
        assert!(error.contains("ca.crt") && error.contains("no certificate"), "{error}");
    }

    #[tokio::test]
    async fn a_body_that_comes_later_than_its_head() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.write_all(b"hello").await.unwrap();
        });
        assert_eq!(&Peer::Unix(socket).get("/", None).await.unwrap()[..], b"hello");
    }
}
