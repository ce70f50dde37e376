//! The way to the collector of traces: one request over one connection, by the same hyper and rustls as everything else.
//!
//! The operator names the collector, so nothing guards its address, and it may be on this machine.

use crate::transport::trusted;
use anyhow::Context;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::{ClientConfig, pki_types::ServerName};
use std::{fmt, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// More than a collector has to say.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub struct Collector {
    tls: TlsConnector,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl Collector {
    pub fn new(extra_ca_pem: Option<&[u8]>) -> anyhow::Result<Self> {
        let roots = trusted(extra_ca_pem).context("reading whom to trust")?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("aws-lc-rs has cipher suites for both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(config)) })
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let authority = request.uri().authority().ok_or("an address without a host")?.clone();
        let is_secure = request.uri().scheme_str() == Some("https");
        let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        let host_header = HeaderValue::try_from(authority.as_str())?;
        if is_secure {
            let stream = self.tls.connect(ServerName::try_from(host)?, stream).await?;
            exchange(stream, request, host_header).await
        } else {
            exchange(stream, request, host_header).await
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
    host: HeaderValue,
) -> Result<Response<Bytes>, HttpError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse()?;
    head.headers.insert(header::HOST, host);
    let answered = async {
        let (head, body) = sender.send_request(Request::from_parts(head, Full::new(body))).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    };
    // Both end here: a request that is given up takes its connection along.
    tokio::select! {
        answer = answered => answer,
        Err(error) = connection => Err(error.into()),
    }
}
