//! The commands' own small client: one request, one answer.
//!
//! Not the transport, which guards against what strangers make us call; here a person names the server.

use super::{Usage, events::Events, print::Form};
use crate::{config::Hidden, deployment::read_ca};
use anyhow::Context;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use url::Url;

#[derive(clap::Args, Clone)]
pub struct ServerFlags {
    /// The server
    #[arg(long, value_name = "SERVER_URL", env = "POSTRIDER_URL", default_value = "http://127.0.0.1:8071")]
    url: Url,
    /// The API token
    #[arg(long, env = "POSTRIDER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A PEM file with an authority that the server's certificate may come from, besides the public ones
    #[arg(long, value_name = "FILE", env = "POSTRIDER_CA_FILE")]
    ca_file: Option<PathBuf>,
}

#[derive(clap::Args, Clone)]
pub struct AppFlags {
    #[command(flatten)]
    pub server: ServerFlags,
    /// The application, by id or uid
    #[arg(long)]
    pub app: String,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(clap::Args, Clone, Copy)]
pub struct OutputFlags {
    /// Print JSON: one object, or one on each line for a list
    #[arg(long)]
    json: bool,
}

impl OutputFlags {
    pub fn form(self) -> Form {
        if self.json { Form::Json } else { Form::Text }
    }
}

pub struct Client {
    server: Url,
    token: Hidden,
    /// In PEM, besides the public ones.
    authorities: Option<Vec<u8>>,
}

/// What the server said yes with. Kept as it came: a payload read into a tree would lose the order of its names.
pub struct Answer {
    pub status: StatusCode,
    body: Bytes,
}

impl Answer {
    pub fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let body = if self.body.is_empty() { b"null" } else { &self.body[..] };
        serde_json::from_slice(body).context("the server's answer is not what was expected; is the URL right?")
    }

    pub fn value(&self) -> anyhow::Result<Value> {
        self.read()
    }

    pub fn raw(&self) -> anyhow::Result<Box<RawValue>> {
        self.read()
    }
}

/// What became of a request that may be made again.
pub enum Offered {
    Taken(Answer),
    PutOff {
        after: Duration,
        why: anyhow::Error,
    },
    /// No answer came. It may have been carried out.
    Lost(anyhow::Error),
}

/// As much of a list as was asked for.
pub struct Rows {
    pub rows: Vec<Box<RawValue>>,
    /// The server has more of them.
    pub more: bool,
    /// What is there and cannot be shown like the others.
    pub unreadable: Vec<Value>,
}

impl Rows {
    pub fn values(&self) -> anyhow::Result<Vec<Value>> {
        self.rows.iter().map(|row| serde_json::from_str(row.get()).context("reading a list")).collect()
    }
}

#[derive(Deserialize)]
struct Page {
    data: Vec<Box<RawValue>>,
    iterator: Option<String>,
    #[serde(default = "is_last")]
    done: bool,
    #[serde(default)]
    unreadable: Vec<Value>,
}

fn is_last() -> bool {
    true
}

pub type Query = Vec<(&'static str, String)>;

/// What to do without the application that was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    Create,
    Fail,
}

impl IfMissing {
    pub fn from_flag(create_app: bool) -> Self {
        if create_app { Self::Create } else { Self::Fail }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("no server answers at {server} ({reason}); is `postrider serve` running?")]
    NoServer { server: String, reason: io::Error },
    #[error("the server did not accept the token; `postrider token --data FOLDER` makes one for it")]
    Token,
    #[error("there is no {0}")]
    Missing(String),
    #[error("the server answered {status}: {detail}")]
    Refused { status: StatusCode, detail: String },
}

/// Whether the server knows nothing by the names it was asked for.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CallError::Refused { status: StatusCode::NOT_FOUND, .. }))
}

impl Client {
    pub fn new(flags: &ServerFlags) -> anyhow::Result<Self> {
        let token = flags.token.clone().filter(|token| !token.is_empty()).ok_or_else(|| {
            Usage("no token: give --token, or run: export POSTRIDER_TOKEN=\"$(postrider token)\"".to_owned())
        })?;
        let client = Self::with_token(flags.url.clone(), token)?;
        Ok(Self { authorities: read_ca(flags.ca_file.as_deref())?, ..client })
    }

    pub fn with_token(server: Url, token: String) -> anyhow::Result<Self> {
        if !matches!(server.scheme(), "http" | "https") || server.host_str().is_none() {
            return Err(Usage("the server's URL must begin with http:// or https://".to_owned()).into());
        }
        Ok(Self { server, token: Hidden::new(token), authorities: None })
    }

    /// The same server, for what is not right below its API.
    pub fn under(mut self, part: &str) -> anyhow::Result<Self> {
        let room = self.server.path_segments_mut();
        room.map_err(|()| Usage("the server's URL has no room for a path".to_owned()))?.pop_if_empty().push(part);
        Ok(self)
    }

    pub async fn get(&self, path: &[&str], query: &[(&'static str, String)]) -> anyhow::Result<Answer> {
        self.call(Method::GET, path, query, Bytes::new()).await
    }

    pub async fn post(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<Answer> {
        self.call(Method::POST, path, &[], serde_json::to_vec(body).context("writing the request")?.into()).await
    }

    /// Asks for page after page until there are `limit` rows, or no more.
    pub async fn list(&self, path: &[&str], query: &Query, limit: usize) -> anyhow::Result<Rows> {
        let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
        let mut query = query.clone();
        query.push(("limit", limit.clamp(1, PAGE_MAX).to_string()));
        let fixed = query.len();
        loop {
            let page: Page = self.get(path, &query).await?.read()?;
            rows.extend(page.data);
            unreadable.extend(page.unreadable);
            match page.iterator {
                Some(iterator) if !page.done && rows.len() < limit => {
                    query.truncate(fixed);
                    query.push(("iterator", iterator));
                }
                Some(_) | None => {
                    let more = !page.done || rows.len() > limit;
                    rows.truncate(limit);
                    return Ok(Rows { rows, more, unreadable });
                }
            }
        }
    }

    /// Posts to something of an application, which is made first if the person asked for that.
    pub async fn post_in_app(
        &self,
        app: &str,
        missing: IfMissing,
        what: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<Answer> {
        match missing {
            IfMissing::Create => {
                self.create_app(app).await?;
                self.post(&["app", app, what], body).await
            }
            IfMissing::Fail => self.post(&["app", app, what], body).await.map_err(|error| match is_not_found(&error) {
                true => anyhow::anyhow!("{error}; if there is no application `{app}`, --create-app makes it"),
                false => error,
            }),
        }
    }

    /// Makes the application with this uid, or leaves it as it is.
    pub async fn create_app(&self, uid: &str) -> anyhow::Result<Answer> {
        let body = json!({ "name": uid, "uid": uid }).to_string();
        self.call(Method::POST, &["app"], &[("get_if_exists", "true".to_owned())], body.into()).await
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&'static str, String)],
        body: Bytes,
    ) -> anyhow::Result<Answer> {
        let (status, answer) = self.ask(method, &self.url(path, query)?, body).await?;
        if status.is_success() {
            let is_json = answer.is_empty() || serde_json::from_slice::<&RawValue>(&answer).is_ok();
            anyhow::ensure!(is_json, "the server's answer is not JSON; is the URL right?");
            return Ok(Answer { status, body: answer });
        }
        Err(refusal(status, &answer).into())
    }

    /// Posts what may be posted again as it is, and does not take it for a failure if that is what the server asks for.
    pub async fn offer(&self, path: &[&str], query: &Query, body: Bytes) -> anyhow::Result<Offered> {
        let url = self.url(path, query)?;
        let request = self.request(Method::POST, &url, body)?;
        let asked = async {
            let response = self.exchange(&url, request).await?;
            let after = response.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
            anyhow::Ok((whole(response).await?, after))
        };
        let ((status, answer), after) = match timeout(OFFER_TIME_MAX, asked).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(fault)) => return Ok(Offered::Lost(fault)),
            Err(_) => return Ok(Offered::Lost(anyhow::anyhow!("the server took too long"))),
        };
        match status {
            status if status.is_success() => Ok(Offered::Taken(Answer { status, body: answer })),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::REQUEST_TIMEOUT => {
                let why = refusal(status, &answer).into();
                Ok(Offered::PutOff { after: Duration::from_secs(after.unwrap_or(1)), why })
            }
            status => Err(refusal(status, &answer).into()),
        }
    }

    /// What the server tells Prometheus.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let mut url = self.server.clone();
        let room = url.path_segments_mut();
        room.map_err(|()| Usage("the server's URL has no room for a path".to_owned()))?.pop_if_empty().push("metrics");
        let (status, answer) = self.ask(Method::GET, &url, Bytes::new()).await?;
        if status.is_success() {
            return String::from_utf8(answer.to_vec()).context("the server's metrics are not text; is the URL right?");
        }
        Err(refusal(status, &answer).into())
    }

    /// Opens a stream of events that goes on until someone ends it. `last`: the id of the last one that was seen.
    pub async fn follow(&self, path: &[&str], query: &Query, last: Option<&str>) -> anyhow::Result<Events> {
        let url = self.url(path, query)?;
        let mut request = self.request(Method::GET, &url, Bytes::new())?;
        if let Some(last) = last {
            let last = HeaderValue::from_str(last).context("the server sent an id that cannot be sent back")?;
            request.headers_mut().insert("last-event-id", last);
        }
        let opening = timeout(CALL_TIME_MAX, self.exchange(&url, request));
        let response = opening.await.context("the server took too long")??;
        if response.status() != StatusCode::OK {
            let (status, answer) =
                timeout(CALL_TIME_MAX, whole(response)).await.context("the server took too long")??;
            return Err(refusal(status, &answer).into());
        }
        Ok(Events::of(response.into_body()))
    }

    async fn ask(&self, method: Method, url: &Url, body: Bytes) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = self.request(method, url, body)?;
        let asked = async { whole(self.exchange(url, request).await?).await };
        timeout(CALL_TIME_MAX, asked).await.context("the server took too long")?
    }

    fn request(&self, method: Method, url: &Url, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let request = Request::builder()
            .method(method)
            .uri(&url[url::Position::BeforePath..url::Position::AfterQuery])
            .header(header::HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token.reveal()))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("postrider-cli/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body));
        Ok(request.map_err(|_| Usage("the token or the URL holds characters that cannot be sent".to_owned()))?)
    }

    pub async fn delete(&self, path: &[&str]) -> anyhow::Result<Answer> {
        self.call(Method::DELETE, path, &[], Bytes::new()).await
    }

    fn url(&self, path: &[&str], query: &[(&'static str, String)]) -> anyhow::Result<Url> {
        // Dots would lead elsewhere in the path, and the server knows nothing by such a name.
        if let Some(dots) = path.iter().find(|segment| matches!(**segment, "" | "." | "..")) {
            return Err(Usage(format!("`{dots}` is not a name")).into());
        }
        let mut url = self.server.clone();
        url.path_segments_mut()
            .map_err(|()| Usage("the server's URL has no room for a path".to_owned()))?
            .pop_if_empty()
            .extend(["api", "v1"])
            .extend(path);
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// Sends a request, and hands the answer back once its head is there.
    async fn exchange(&self, url: &Url, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
        let host = url.host_str().expect("checked when the client was made");
        let port = url.port_or_known_default().expect("http and https have ports");
        // In brackets, as URLs have it, an IPv6 address is not understood.
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|reason| {
            let server = url[..url::Position::BeforePath].to_owned();
            CallError::NoServer { server, reason }
        })?;
        if url.scheme() == "https" {
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).context("reading the host")?;
            let stream = tls(self.authorities.as_deref())?
                .connect(name, stream)
                .await
                .context("the TLS handshake with the server failed")?;
            begin(stream, request).await
        } else {
            begin(stream, request).await
        }
    }
}

/// Talks about one application, and finds out which of several names it was that the server did not know.
pub struct InApp {
    pub client: Client,
    app: String,
}

impl InApp {
    pub fn new(flags: &AppFlags) -> anyhow::Result<Self> {
        Ok(Self::of(Client::new(&flags.server)?, &flags.app))
    }

    pub fn of(client: Client, app: &str) -> Self {
        Self { client, app: app.to_owned() }
    }

    pub async fn get(&self, path: &[&str], query: &Query) -> anyhow::Result<Answer> {
        let asked = self.client.get(&self.path(path), query).await;
        self.explained(asked, path, endpoint_in_query(query)).await
    }

    pub async fn list(&self, path: &[&str], query: &Query, limit: usize) -> anyhow::Result<Rows> {
        let asked = self.client.list(&self.path(path), query, limit).await;
        self.explained(asked, path, endpoint_in_query(query)).await
    }

    pub async fn post(&self, path: &[&str], body: &Value) -> anyhow::Result<Answer> {
        let asked = self.client.post(&self.path(path), body).await;
        self.explained(asked, path, body["endpointId"].as_str()).await
    }

    fn path<'a>(&'a self, path: &[&'a str]) -> Vec<&'a str> {
        [&["app", &self.app][..], path].concat()
    }

    async fn explained<T>(&self, asked: anyhow::Result<T>, path: &[&str], endpoint: Option<&str>) -> anyhow::Result<T> {
        let error = match asked {
            Ok(answer) => return Ok(answer),
            Err(error) if is_not_found(&error) => error,
            Err(error) => return Err(error),
        };
        let mut named = vec![(Vec::new(), format!("application `{}`", self.app))];
        for (of, name) in named_in(path).into_iter().chain(endpoint.map(|name| ("endpoint", name))) {
            let what = if of == "msg" { "message" } else { of };
            named.push((vec![of, name], format!("{what} `{name}` in application `{}`", self.app)));
        }
        for (path, what) in named {
            if let Err(again) = self.client.get(&self.path(&path), &[]).await
                && is_not_found(&again)
            {
                return Err(CallError::Missing(what).into());
            }
        }
        Err(error)
    }
}

fn endpoint_in_query(query: &Query) -> Option<&str> {
    query.iter().find(|(name, _)| *name == "endpoint_id").map(|(_, value)| value.as_str())
}

/// The things that a path names, and where each one can be looked up.
fn named_in<'a>(path: &[&'a str]) -> Vec<(&'static str, &'a str)> {
    match *path {
        ["dead-letter", message, "endpoint", endpoint, ..] | ["msg", message, "endpoint", endpoint, ..] => {
            vec![("msg", message), ("endpoint", endpoint)]
        }
        ["msg", message, ..] | ["attempt", "msg", message] => vec![("msg", message)],
        ["endpoint", endpoint, ..] => vec![("endpoint", endpoint)],
        _ => Vec::new(),
    }
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("connecting to the server")?;
    tokio::spawn(connection);
    sender.send_request(request).await.context("the connection to the server broke")
}

async fn whole(response: Response<Incoming>) -> anyhow::Result<(StatusCode, Bytes)> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!(error)).context("reading the server's answer")?.to_bytes();
    Ok((status, body))
}

fn tls(authorities: Option<&[u8]>) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in CertificateDer::pem_slice_iter(authorities.unwrap_or_default()) {
        let certificate = certificate.context("reading an authority")?;
        roots.add(certificate).context("taking an authority for one")?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .context("setting up TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn refusal(status: StatusCode, answer: &[u8]) -> CallError {
    match status {
        StatusCode::UNAUTHORIZED => CallError::Token,
        status => CallError::Refused { status, detail: detail(&serde_json::from_slice(answer).unwrap_or_default()) },
    }
}

/// What the server said is wrong, in words.
pub fn reason(error: &Value) -> String {
    detail(error)
}

/// The contract says `detail` as text, or as a list of what is wrong where.
fn detail(answer: &Value) -> String {
    match &answer["detail"] {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let told = items.iter().filter_map(|item| {
                let place: Vec<_> = item["loc"].as_array()?.iter().filter_map(Value::as_str).collect();
                Some(format!("{}: {}", place.join("."), item["msg"].as_str()?))
            });
            told.collect::<Vec<_>>().join("; ")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => "no reason given".to_owned(),
    }
}

/// The most that the server gives at a time.
const PAGE_MAX: usize = 250;
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Longer than the server takes for anything.
const OFFER_TIME_MAX: Duration = Duration::from_secs(90);
const ANSWER_MAX: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(server: &str) -> Client {
        Client::with_token(server.parse().expect("a URL"), "t".to_owned()).expect("a client")
    }

    #[test]
    fn names_stay_inside_their_place_in_the_path() {
        for (server, path, expected) in [
            ("http://h", &["app", "shop", "msg"][..], "http://h/api/v1/app/shop/msg"),
            ("http://h/", &["app", "a/b?c#d", "msg"], "http://h/api/v1/app/a%2Fb%3Fc%23d/msg"),
            ("https://h/behind/a/proxy/", &["app"], "https://h/behind/a/proxy/api/v1/app"),
            ("http://h/?x=1", &["app"], "http://h/api/v1/app"),
        ] {
            assert_eq!(client(server).url(path, &[]).expect("a URL").as_str(), expected);
        }
        for name in ["", ".", ".."] {
            assert!(client("http://h").url(&["app", name], &[]).is_err(), "{name}");
        }
    }

    #[test]
    fn a_path_tells_what_it_names() {
        for (path, expected) in [
            (&["msg"][..], &[][..]),
            (&["msg", "m", "cancel"], &[("msg", "m")]),
            (&["attempt", "msg", "m"], &[("msg", "m")]),
            (&["endpoint", "e", "health"], &[("endpoint", "e")]),
            (&["dead-letter", "count"], &[]),
            (&["dead-letter", "m", "endpoint", "e", "replay"], &[("msg", "m"), ("endpoint", "e")]),
        ] {
            assert_eq!(named_in(path), expected, "{path:?}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words() {
        for (answer, expected) in [
            (json!({ "code": "conflict", "detail": "taken" }), "taken"),
            (
                json!({ "detail": [{ "loc": ["body", "url"], "msg": "not a URL", "type": "value_error" }] }),
                "body.url: not a URL",
            ),
            (json!({}), "no reason given"),
            (Value::Null, "no reason given"),
        ] {
            assert_eq!(detail(&answer), expected);
        }
    }
}
