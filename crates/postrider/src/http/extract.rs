//! Reads bodies and queries strictly: what we take in is honoured, and all else is refused by name.

use super::{
    Api,
    error::{Error, Flaw},
};
use crate::ingest::content::{DEPTH_MAX, too_deep};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header, request::Parts};
use http_body_util::BodyExt;
use postrider_engine::Timestamp;
use serde::{Deserialize, Deserializer};
use std::{convert::Infallible, str::FromStr, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};

/// A body that says it is JSON, read whole and not looked into yet.
pub struct JsonBytes(pub Bytes);

impl FromRequest<Arc<Api>> for JsonBytes {
    type Rejection = Error;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Error> {
        json_bytes(request, api.settings.body_max).await.map(Self)
    }
}

pub async fn json_bytes(request: Request, bytes_max: usize) -> Result<Bytes, Error> {
    check_media(request.headers())?;
    read(request.into_body(), bytes_max).await
}

/// A body that may be left out and says nothing if it is there: empty, or `{}`.
pub struct NoBody;

impl FromRequest<Arc<Api>> for NoBody {
    type Rejection = Error;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}

        let body = read(request.into_body(), api.settings.body_max).await?;
        if !body.is_empty() {
            let Nothing {} = parse(&body)?;
        }
        Ok(Self)
    }
}

/// Reads a body of at most `bytes_max` bytes that comes at a fair pace.
pub async fn read<B>(mut body: B, bytes_max: usize) -> Result<Bytes, Error>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    // A length that is told beforehand need not be waited for.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(Error::TooLarge { bytes_max });
    }
    let started = Instant::now();
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    loop {
        let received = first.len().max(whole.len());
        let frame = match timeout_at(started + patience(received), body.frame()).await {
            Err(_) => return Err(Error::TooSlow),
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(Error::BrokenBody),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if received + data.len() > bytes_max {
            return Err(Error::TooLarge { bytes_max });
        }
        // A small body comes in one piece and is then not copied.
        if received == 0 {
            first = data;
            if body.is_end_stream() {
                break;
            }
        } else {
            if whole.is_empty() {
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// Takes a body off the wire without keeping any of it. False if it does not come.
pub async fn discard<B>(mut body: B) -> bool
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
{
    let taken_off = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    timeout(DISCARD_TIME_MAX, taken_off).await.unwrap_or(false)
}

/// How long after its start a body with this much received may go on: 1 KiB a second, and some to begin with.
fn patience(received: usize) -> Duration {
    (BODY_GRACE + Duration::from_secs(1) * u32::try_from(received / 1024).unwrap_or(u32::MAX)).min(BODY_TIME_MAX)
}

fn check_media(headers: &HeaderMap) -> Result<(), Error> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Error::UnsupportedMedia("Compressed bodies are not accepted"));
    }
    match headers.get(header::CONTENT_TYPE) {
        Some(media) if !is_json(media.as_bytes()) => Err(Error::UnsupportedMedia("The body must be application/json")),
        Some(_) | None => Ok(()),
    }
}

fn is_json(media: &[u8]) -> bool {
    let essence = media.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
        || (essence.len() > 17
            && essence[..12].eq_ignore_ascii_case(b"application/")
            && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json"))
}

/// Parses a body strictly. The structs it is parsed into refuse unknown and doubled fields.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Error> {
    check_beginning(body)?;
    if let Some(at) = too_deep(body) {
        return Err(invalid_json(format!("nested deeper than {DEPTH_MAX} levels, at byte {at}")));
    }
    parse_checked(body)
}

/// Parses what is around parts that are not looked into, and are parsed by themselves: how deep they are is for them to say.
pub fn parse_around<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Error> {
    check_beginning(body)?;
    parse_checked(body)
}

fn check_beginning(body: &[u8]) -> Result<(), Error> {
    if body.is_empty() {
        return Err(invalid_json("the body is empty"));
    }
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(invalid_json("the body begins with a byte order mark, at line 1 column 1"));
    }
    Ok(())
}

fn parse_checked<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Error> {
    // A struct would be read from a list as well, by the order of its fields, which is no interface.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Error::invalid([], "must be an object, not a list"));
    }
    serde_json::from_slice(body).map_err(|_| explain::<T>(body))
}

/// Parses again, now keeping track of where: the good way need not pay for it.
fn explain<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Error {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let (path, cause) = match serde_path_to_error::deserialize::<_, T>(&mut parser) {
        Err(fault) => (Some(fault.path().clone()), fault.into_inner()),
        Ok(_) => match parser.end() {
            Err(tail) => (None, tail),
            Ok(()) => return Error::invalid([], "not accepted"),
        },
    };
    let mut loc = vec!["body".to_owned()];
    for segment in path.iter().flat_map(|path| path.iter()) {
        match segment {
            serde_path_to_error::Segment::Unknown => {}
            other => loc.push(shortened(&other.to_string())),
        }
    }
    let kind = if cause.is_data() { "value_error" } else { "json_invalid" };
    Error::Invalid(vec![Flaw { loc, msg: without_middle(&cause.to_string()), kind }])
}

/// A message may quote what came in, which may be long. At its end it says where.
fn without_middle(msg: &str) -> String {
    if msg.len() <= MESSAGE_MAX {
        return msg.to_owned();
    }
    let (head, tail) = (msg.floor_char_boundary(MESSAGE_MAX / 2), msg.ceil_char_boundary(msg.len() - MESSAGE_MAX / 4));
    format!("{} [...] {}", &msg[..head], &msg[tail..])
}

fn invalid_json(msg: impl Into<String>) -> Error {
    Error::Invalid(vec![Flaw { kind: "json_invalid", ..Flaw::new("body", [], msg) }])
}

/// A field of a PATCH: absent, null and a value are three different wishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Patch<T> {
    #[default]
    Keep,
    Clear,
    Set(T),
}

impl<T> Patch<T> {
    pub fn apply(self, target: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *target = None,
            Self::Set(value) => *target = Some(value),
        }
    }

    /// A field that has an old and a new name. Both may be given if they agree.
    pub fn either(new: (&str, Self), old: (&str, Self)) -> Result<Self, Error>
    where
        T: PartialEq,
    {
        match (new.1, old.1) {
            (value, Self::Keep) | (Self::Keep, value) => Ok(value),
            (one, other) if one == other => Ok(one),
            _ => Err(Error::invalid([new.0], format!("differs from `{}`, which is another name of it", old.0))),
        }
    }

    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Patch<U> {
        match self {
            Self::Keep => Patch::Keep,
            Self::Clear => Patch::Clear,
            Self::Set(value) => Patch::Set(f(value)),
        }
    }
}

/// With `#[serde(default)]` on the field: what is absent is kept.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}

/// For a field that may be left out but not be null: `#[serde(default, deserialize_with = "given")]`.
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The query of a request. Take out what you know, then `finish` refuses the rest.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl FromRequestParts<Arc<Api>> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Infallible> {
        Ok(Self::read(parts.uri.query()))
    }
}

impl Query {
    pub fn read(query: Option<&str>) -> Self {
        let pairs = query.map(|text| url::form_urlencoded::parse(text.as_bytes()).into_owned().collect());
        Self { pairs: pairs.unwrap_or_default() }
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        let Some(at) = self.pairs.iter().position(|(key, _)| key == name) else { return Ok(None) };
        let (_, value) = self.pairs.swap_remove(at);
        if self.pairs.iter().any(|(key, _)| key == name) {
            return Err(Error::BadQuery(format!("`{name}` is given more than once")));
        }
        if value.contains('\0') {
            return Err(Error::BadQuery(format!("`{name}` holds a NUL character")));
        }
        Ok(Some(value))
    }

    pub fn parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, Error> {
        self.text(name)?
            .map(|value| value.parse().map_err(|_| Error::BadQuery(format!("`{name}` must be {expected}"))))
            .transpose()
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Error> {
        self.parsed(name, "true or false")
    }

    pub fn time(&mut self, name: &str) -> Result<Option<Timestamp>, Error> {
        Ok(self.parsed::<super::time::Time>(name, "a time like 2026-01-31T12:00:00Z")?.map(|time| time.0))
    }

    /// A list, in any spelling that the clients have: `a=1&a=2`, `a[]=1`, `a[0]=1`, `a=1,2`.
    pub fn list(&mut self, name: &str) -> Vec<String> {
        let mut values = Vec::new();
        self.pairs.retain(|(key, value)| {
            let ours = key.strip_prefix(name).is_some_and(|rest| {
                rest.is_empty()
                    || rest
                        .strip_prefix('[')
                        .and_then(|rest| rest.strip_suffix(']'))
                        .is_some_and(|index| index.bytes().all(|b| b.is_ascii_digit()))
            });
            if ours {
                values.extend(value.split(',').filter(|part| !part.is_empty()).map(str::to_owned));
            }
            !ours
        });
        values
    }

    pub fn finish(self) -> Result<(), Error> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::BadQuery(format!("unknown query parameter `{}`", shortened(name)))),
        }
    }
}

/// What stands in the path where the route has a name in braces.
pub async fn path_params(parts: &mut Parts) -> Result<RawPathParams, Error> {
    // It fails on text that is not UTF-8 once decoded. No id looks like that.
    RawPathParams::from_request_parts(parts, &()).await.map_err(|_| Error::NotFound)
}

fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

const MESSAGE_MAX: usize = 512;
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
const BODY_GRACE: Duration = Duration::from_secs(5);
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use serde_json::value::RawValue;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    #[allow(dead_code)]
    struct Sample<'a> {
        name: String,
        #[serde(default)]
        size: Option<u16>,
        #[serde(borrow, default)]
        payload: Option<&'a RawValue>,
    }

    #[test]
    fn what_is_not_strictly_json_is_refused_with_its_place() {
        for (body, loc, msg) in [
            (&b""[..], "body", "empty"),
            (b"\xef\xbb\xbf{}", "body", "byte order mark"),
            (b"{", "body", "line 1 column 1"),
            (b"{\"name\":\"a\"} x", "body", "trailing characters at line 1 column 14"),
            (b"{'name':1}", "body", "column 2"),
            (b"{\"name\":NaN}", "body.name", "column 9"),
            (b"{\"name\":\"a\"/**/}", "body", "column 12"),
            (b"{\"name\":\"\xff\"}", "body.name", "column"),
            (b"{\"name\":\"\\ud800\"}", "body.name", "column 16"),
            (b"{\"name\":\"a\",\"name\":\"b\"}", "body", "duplicate field `name`"),
            (b"{\"name\":\"a\",\"colour\":1}", "body", "unknown field `colour`"),
            (b"{\"name\":7}", "body.name", "invalid type"),
            (b"{\"name\":\"a\",\"size\":70000}", "body.size", "invalid value"),
            (b"{}", "body", "missing field `name`"),
            (b"[]", "body", "must be an object"),
            (b" [\"a\",1,null]", "body", "must be an object"),
        ] {
            let shown = String::from_utf8_lossy(body).into_owned();
            let Err(Error::Invalid(flaws)) = parse::<Sample>(body) else { panic!("{shown} was accepted") };
            assert!(flaws[0].loc.join(".").starts_with(loc), "{shown}: {:?}", flaws[0]);
            assert!(flaws[0].msg.contains(msg), "{shown}: {:?}", flaws[0]);
        }
    }

    #[test]
    fn a_payload_is_taken_byte_for_byte() {
        let payload = r#"{"a": 1e400,  "a":"\u0000", "b":123456789012345678901234567890}"#;
        let body = format!(r#"{{"name":"x","payload":{payload}}}"#);
        assert_eq!(parse::<Sample>(body.as_bytes()).unwrap().payload.unwrap().get(), payload);
    }

    #[test]
    fn depth_is_counted_where_serde_json_does_not() {
        let nested = |depth: usize| format!(r#"{{"name":"x","payload":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(parse::<Sample>(nested(63).as_bytes()).is_ok());
        for depth in [64, 200, 200_000] {
            assert!(parse::<Sample>(nested(depth).as_bytes()).is_err(), "{depth}");
        }
        let in_string = format!(r#"{{"name":"{}\"{}"}}"#, "[".repeat(100), "{".repeat(100));
        assert!(parse::<Sample>(in_string.as_bytes()).is_ok());
        let wide = format!(r#"{{"name":"x","payload":[{}]}}"#, vec!["{}"; 200].join(","));
        assert!(parse::<Sample>(wide.as_bytes()).is_ok());
    }

    #[test]
    fn absent_null_and_a_value_are_three_things() {
        #[derive(Deserialize)]
        struct Sample {
            #[serde(default)]
            uid: Patch<String>,
            #[serde(default, deserialize_with = "given")]
            name: Option<String>,
        }
        for (body, expected) in
            [("{}", Patch::Keep), (r#"{"uid":null}"#, Patch::Clear), (r#"{"uid":"a"}"#, Patch::Set("a".into()))]
        {
            assert_eq!(parse::<Sample>(body.as_bytes()).unwrap().uid, expected);
        }
        assert!(parse::<Sample>(br#"{"name":null}"#).is_err());
        assert_eq!(parse::<Sample>(br#"{"name":"n"}"#).unwrap().name.as_deref(), Some("n"));
    }

    #[test]
    fn only_plain_json_is_accepted() {
        for (name, value, accepted) in [
            ("content-type", "application/json", true),
            ("content-type", "Application/JSON; charset=utf-8", true),
            ("content-type", "application/cloudevents+json", true),
            ("content-type", "text/plain", false),
            ("content-type", "application/x-www-form-urlencoded", false),
            ("content-type", "+json", false),
            ("content-encoding", "gzip", false),
            ("content-encoding", "identity", true),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(check_media(&headers).is_ok(), accepted, "{name}: {value}");
        }
        assert!(check_media(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_list_comes_in_any_spelling() {
        for text in ["e=a&e=b", "e[]=a&e[]=b", "e[0]=a&e[1]=b", "e=a,b", "e%5B%5D=a%2Cb"] {
            let mut query = Query::read(Some(text));
            assert_eq!(query.list("e"), ["a", "b"], "{text}");
            assert_eq!(query.finish(), Ok(()));
        }
        let mut query = Query::read(Some("e[x]=a"));
        assert!(query.list("e").is_empty());
        assert!(query.finish().is_err());
    }

    #[test]
    fn a_query_value_of_the_wrong_type_is_a_bad_request() {
        let mut query = Query::read(Some("flag=yes&n=1e9&twice=1&twice=2&t=yesterday&nul=a%00"));
        assert!(matches!(query.flag("flag"), Err(Error::BadQuery(_))));
        assert!(matches!(query.parsed::<u32>("n", "a number"), Err(Error::BadQuery(_))));
        assert!(matches!(query.text("twice"), Err(Error::BadQuery(_))));
        assert!(matches!(query.time("t"), Err(Error::BadQuery(_))));
        assert!(matches!(query.text("nul"), Err(Error::BadQuery(_))));
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_the_limit() {
        assert_eq!(read(Full::new(Bytes::from("12345")), 5).await, Ok(Bytes::from("12345")));
        assert_eq!(read(Full::new(Bytes::from("123456")), 5).await, Err(Error::TooLarge { bytes_max: 5 }));
        let pieces = |count: usize| {
            let (sender, receiver) = tokio::sync::mpsc::channel(count);
            (0..count).for_each(|_| sender.try_send(Bytes::from("ab")).unwrap());
            Channel(receiver)
        };
        assert_eq!(read(pieces(3), 6).await, Ok(Bytes::from("ababab")));
        assert_eq!(read(pieces(3), 5).await, Err(Error::TooLarge { bytes_max: 5 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dripping_body_is_cut_off() {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
        let drip = tokio::spawn(async move {
            while sender.send(Bytes::from("x")).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let started = Instant::now();
        assert_eq!(read(Channel(receiver), 1000).await, Err(Error::TooSlow));
        assert!(started.elapsed() <= Duration::from_secs(6));
        drip.await.unwrap();
    }

    #[test]
    fn patience_grows_with_what_came_and_ends() {
        assert_eq!(patience(0), Duration::from_secs(5));
        assert_eq!(patience(10 * 1024), Duration::from_secs(15));
        assert_eq!(patience(usize::MAX), BODY_TIME_MAX);
    }

    struct Channel(tokio::sync::mpsc::Receiver<Bytes>);

    impl hyper::body::Body for Channel {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(context).map(|data| data.map(|data| Ok(hyper::body::Frame::data(data))))
        }
    }
}
