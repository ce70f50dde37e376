//! How a page asks the API.

use super::session::Session;
use crate::http::guesses::Peer;
use axum::{
    Router,
    body::{Body, to_bytes},
    response::Response,
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tower::ServiceExt;
use url::form_urlencoded;

pub struct Inside(Router);

/// Why a page cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no session, or what it was opened with does not hold any more.
    SignedOut,
    /// A form that did not come from a page of ours.
    Forged,
    Refused {
        status: StatusCode,
        detail: String,
    },
}

impl Inside {
    pub fn new(api: Router) -> Self {
        Self(api)
    }

    pub async fn get<T: DeserializeOwned>(&self, session: &Session, path: &Path) -> Result<T, Fault> {
        let answer = self.call_of(session, Method::GET, path, None).await?;
        serde_json::from_slice(&answer).map_err(|_| Fault::broken())
    }

    /// One page of a list.
    pub async fn list<T: DeserializeOwned>(&self, session: &Session, path: &Path) -> Result<List<T>, Fault> {
        self.get(session, path).await
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        session: &Session,
        method: Method,
        path: &Path,
        body: Value,
    ) -> Result<T, Fault> {
        let answer = self.call_of(session, method, path, Some(body)).await?;
        serde_json::from_slice(&answer).map_err(|_| Fault::broken())
    }

    pub async fn post(&self, session: &Session, path: &Path, body: Option<Value>) -> Result<(), Fault> {
        self.call_of(session, Method::POST, path, body).await.map(|_| ())
    }

    pub async fn delete(&self, session: &Session, path: &Path) -> Result<(), Fault> {
        self.call_of(session, Method::DELETE, path, None).await.map(|_| ())
    }

    /// What answers with addresses of ours is to name them as the person has reached us.
    async fn call_of(
        &self,
        session: &Session,
        method: Method,
        path: &Path,
        body: Option<Value>,
    ) -> Result<Bytes, Fault> {
        let mut request = request((session.token(), session.peer()), method, path, body)?;
        if let Some(host) = session.host().and_then(|host| HeaderValue::from_str(host).ok()) {
            request.headers_mut().insert(header::HOST, host);
        }
        self.answer(request).await
    }

    /// What goes on coming, as it comes. `since`: the last of it that was seen.
    pub async fn follow(&self, session: &Session, path: &Path, since: Option<HeaderValue>) -> Result<Response, Fault> {
        let mut request = request((session.token(), session.peer()), Method::GET, path, None)?;
        if let Some(since) = since {
            request.headers_mut().insert(HeaderName::from_static("last-event-id"), since);
        }
        let response = self.ask(request).await;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(refusal(response).await?),
        }
    }

    /// `peer`: who stands behind it, for whom wrong tokens are counted and by whom changes are written down.
    pub async fn call(
        &self,
        (token, peer): (&str, Option<Peer>),
        method: Method,
        path: &Path,
        body: Option<Value>,
    ) -> Result<Bytes, Fault> {
        self.answer(request((token, peer), method, path, body)?).await
    }

    async fn answer(&self, request: Request<Body>) -> Result<Bytes, Fault> {
        let response = self.ask(request).await;
        match response.status().is_success() {
            true => to_bytes(response.into_body(), ANSWER_MAX).await.map_err(|_| Fault::broken()),
            false => Err(refusal(response).await?),
        }
    }

    async fn ask(&self, request: Request<Body>) -> Response {
        match self.0.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

fn request(
    (token, peer): (&str, Option<Peer>),
    method: Method,
    path: &Path,
    body: Option<Value>,
) -> Result<Request<Body>, Fault> {
    let mut request =
        Request::builder().method(method).uri(&path.0).header(header::AUTHORIZATION, format!("Bearer {token}"));
    if let Some(peer) = peer {
        request = request.extension(peer);
    }
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    // A token that is no header's value is none of ours.
    request.body(body).map_err(|_| Fault::SignedOut)
}

async fn refusal(response: Response) -> Result<Fault, Fault> {
    let status = response.status();
    let answer = to_bytes(response.into_body(), ANSWER_MAX).await.map_err(|_| Fault::broken())?;
    Ok(Fault::of(status, &serde_json::from_slice(&answer).unwrap_or_default()))
}

impl Fault {
    fn of(status: StatusCode, answer: &Value) -> Self {
        if status == StatusCode::UNAUTHORIZED {
            return Self::SignedOut;
        }
        let detail = match &answer["detail"] {
            Value::String(text) => text.clone(),
            Value::Array(flaws) => flaws.iter().filter_map(flaw).collect::<Vec<_>>().join("; "),
            _ => status.canonical_reason().unwrap_or("It did not work").to_owned(),
        };
        Self::Refused { status, detail }
    }

    /// Which field of the body is refused, and why. Of several the first.
    pub fn place(&self) -> Option<(&str, &str)> {
        match self {
            Self::Refused { status: StatusCode::UNPROCESSABLE_ENTITY, detail } => detail.split_once(": "),
            Self::Refused { .. } | Self::SignedOut | Self::Forged => None,
        }
    }

    pub fn unknown() -> Self {
        Self::Refused { status: StatusCode::NOT_FOUND, detail: "Nothing was done.".to_owned() }
    }

    fn broken() -> Self {
        Self::Refused { status: StatusCode::INTERNAL_SERVER_ERROR, detail: "The server could not answer".to_owned() }
    }
}

/// `["body", "url"]` and what is wrong with it.
fn flaw(flaw: &Value) -> Option<String> {
    let place = flaw["loc"].as_array()?.iter().skip(1).filter_map(Value::as_str).collect::<Vec<_>>().join(".");
    let words = flaw["msg"].as_str()?;
    // Where it stands in a body that the person has not seen.
    let words = words.split_once(" at line ").map_or(words, |(words, _)| words);
    Some(format!("{place}: {words}"))
}

#[derive(Debug, Deserialize)]
pub struct List<T> {
    pub data: Vec<T>,
    pub iterator: Option<String>,
    pub done: bool,
}

/// A path of the API, or of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// Of the API.
    pub fn api(parts: &[&str]) -> Self {
        Self::under("/api/v1", parts)
    }

    /// Of the API, for what concerns sources.
    pub fn ingest(parts: &[&str]) -> Self {
        Self::under("/ingest/api/v1", parts)
    }

    /// Of a page.
    pub fn page(parts: &[&str]) -> Self {
        Self::under("", parts)
    }

    fn under(root: &str, parts: &[&str]) -> Self {
        let mut path = root.to_owned();
        for part in parts {
            path.push('/');
            path.extend(utf8_percent_encode(part, PLAIN));
        }
        Self(path)
    }

    /// Left out where there is no value.
    pub fn with(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.0.push(if self.0.contains('?') { '&' } else { '?' });
            self.0.push_str(&form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish());
        }
        self
    }

    pub fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Far more than a page of the longest list.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whatever_is_in_a_name_stays_one_part_of_the_path() {
        let path = Path::api(&["app", "a/../b?c#d", "msg"]).with("tag", Some("x&y=z")).with("channel", None);
        assert_eq!(path.text(), "/api/v1/app/a%2F..%2Fb%3Fc%23d/msg?tag=x%26y%3Dz");
        assert_eq!(Path::page(&["apps", "ä"]).with("done", Some("")).text(), "/apps/%C3%A4");
    }

    #[test]
    fn a_refusal_is_told_in_the_api_s_words() {
        let told = |status: u16, answer: Value| Fault::of(StatusCode::from_u16(status).unwrap(), &answer);
        let refused = |status: u16, detail: &str| Fault::Refused {
            status: StatusCode::from_u16(status).unwrap(),
            detail: detail.to_owned(),
        };
        assert_eq!(told(401, json!({"detail": "no"})), Fault::SignedOut);
        assert_eq!(told(409, json!({"code": "conflict", "detail": "It is there"})), refused(409, "It is there"));
        let flaws = json!({"detail": [{"loc": ["body", "url"], "msg": "is private", "type": "value_error"}]});
        assert_eq!(told(422, flaws.clone()), refused(422, "url: is private"));
        assert_eq!(told(422, flaws).place(), Some(("url", "is private")));
        assert_eq!(told(409, json!({"code": "conflict", "detail": "no: never"})).place(), None);
        let flaws = json!({"detail": [{"loc": ["body", "a"], "msg": "is no b at line 1 column 7", "type": "x"}]});
        assert_eq!(told(422, flaws), refused(422, "a: is no b"));
        assert_eq!(told(503, Value::Null), refused(503, "Service Unavailable"));
    }
}
