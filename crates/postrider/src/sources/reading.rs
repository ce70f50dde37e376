//! Makes a message of a request: what it is called, by what it is known when it comes again, and which headers stay with it.

use super::Source;
use crate::{
    ids::is_name,
    ingest::content::{is_content_type, too_deep},
    rules::headers::{is_forbidden, is_sensitive},
};
use bytes::Bytes;
use http::{HeaderMap, header};
use postrider_signature::{Cause, Received as Request, Refusal, Verified};
use postrider_store::{Content, Received};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::{borrow::Cow, collections::HashMap};

/// Where something stands in a request: `header:<name>`, or `body:<JSON pointer>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Header(String),
    Body(String),
}

impl Place {
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > PLACE_MAX {
            return None;
        }
        match text.split_once(':')? {
            ("header", name) => Some(Self::Header(http::HeaderName::from_bytes(name.as_bytes()).ok()?.to_string())),
            ("body", pointer) if pointer.starts_with('/') => Some(Self::Body(pointer.to_owned())),
            _ => None,
        }
    }

    pub fn shown(&self) -> String {
        match self {
            Self::Header(name) => format!("header:{name}"),
            Self::Body(pointer) => format!("body:{pointer}"),
        }
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.shown().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom("must be `header:` and a name, or `body:` and a JSON pointer like `/data/id`")
        })
    }
}

impl Source {
    /// `url`: where it was sent, as far as that is known. `now`: unix seconds.
    pub fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        url: Option<&str>,
        now: i64,
    ) -> Result<Option<Verified>, Refusal> {
        let Some(verifier) = &self.verifier else { return Ok(None) };
        let header = |name: &str| only(headers, name);
        verifier.verify(&request(&header, body, url), now).map(Some)
    }

    /// What would have to be otherwise for a request that was refused to be believed, as far as that can be found out by trying.
    pub fn explain(&self, headers: &HeaderMap, body: &[u8], url: Option<&str>, now: i64) -> Vec<Cause> {
        let header = |name: &str| only(headers, name);
        match &self.verifier {
            Some(verifier) if body.len() <= EXPLAINED_MAX => verifier.explain(&request(&header, body, url), now),
            Some(_) | None => Vec::new(),
        }
    }

    /// The message that a request becomes. The bytes are as they came. `signed_id`: the id that the signature is of, where it is
    /// of one.
    pub fn content(&self, headers: &HeaderMap, signed_id: Option<String>, body: Bytes) -> Content {
        let find = |place: &Place| match place {
            Place::Header(name) => only(headers, name).map(str::to_owned),
            Place::Body(pointer) => at(pointer, &body),
        };
        // Of two forms of the same headers one is signed, and the other anybody's to add.
        let signed_id = signed_id.filter(|_| self.preset.signs_id && self.settings.id_from.is_none());
        let found = signed_id.or_else(|| self.ids.iter().filter_map(find).find(|id| !id.is_empty()));
        let event_id = found.map(|id| event_id(&id));
        let event_type = self.types.iter().filter_map(find).find_map(|text| event_type(&text));
        Content {
            event_type: event_type.unwrap_or_else(|| format!("ingest.{}", self.preset.name)),
            event_id,
            channels: Vec::new(),
            tags: Vec::new(),
            content_type: content_type(headers, &body),
            ordering_key: None,
            deliver_at: None,
            received: Some(self.received(headers)),
            payload: body,
        }
    }

    /// What is kept of a request's headers, and what goes along.
    pub fn received(&self, headers: &HeaderMap) -> Received {
        let mut received = Received::default();
        let own = |name: &str| self.settings.pass_headers.iter().any(|other| other.eq_ignore_ascii_case(name));
        for (name, value) in headers {
            let name = name.as_str();
            let is_wanted = self.preset.headers.contains(&name) || own(name);
            let is_secret = is_credential(name)
                || self.secret_header.as_deref() == Some(name)
                || is_sensitive(name) && !name.contains("signature") && !is_wanted;
            // Proxies tell in headers of their own where a request went, and our URL is a credential.
            if is_secret || self.settings.has_token_in(value.as_bytes()) {
                continue;
            }
            let is_passed_on = is_wanted && !is_forbidden(name);
            match value.to_str() {
                Ok(text) if is_passed_on => received.passed_on.push((name.to_owned(), text.to_owned())),
                _ => received.kept.push((name.to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())),
            }
        }
        received
    }
}

fn request<'h, 'b>(
    header: &'h dyn Fn(&str) -> Option<&'h str>,
    body: &'b [u8],
    url: Option<&'h str>,
) -> Request<'h, 'b> {
    let request = Request::new(header, body);
    if let Some(url) = url { request.at(url) } else { request }
}

/// The text or number that a JSON pointer leads to. What lies beside the way is passed over unread, whatever it is.
fn at(pointer: &str, body: &[u8]) -> Option<String> {
    let mut here: &RawValue = serde_json::from_slice(body).ok()?;
    for part in pointer.split('/').skip(1) {
        let name = part.replace("~1", "/").replace("~0", "~");
        here = match here.get().as_bytes().first()? {
            b'{' => serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(here.get()).ok()?.get(&*name).copied()?,
            b'[' => {
                serde_json::from_str::<Vec<&RawValue>>(here.get()).ok()?.get(name.parse::<usize>().ok()?).copied()?
            }
            _ => return None,
        };
    }
    match here.get().as_bytes().first()? {
        b'"' => serde_json::from_str(here.get()).ok(),
        b'0'..=b'9' | b'-' => Some(here.get().to_owned()),
        _ => None,
    }
}

/// A header that is there once. Of two, one reader believes the first and another the last.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut given = headers.get_all(name).iter();
    match (given.next(), given.next()) {
        (Some(only), None) => only.to_str().ok(),
        _ => None,
    }
}

/// What is a secret of the sender's whoever it is.
pub fn is_credential(name: &str) -> bool {
    CREDENTIALS.contains(&name)
}

/// Whether a body of this type is taken.
pub fn is_taken(media: &[u8]) -> bool {
    let essence = media.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let is_text = essence.starts_with(b"text/") && essence.len() > b"text/".len();
    is_text || TAKEN.contains(&&essence[..]) || essence.ends_with(b"+json") || essence.ends_with(b"+xml")
}

/// `None` for a JSON object that says that it is one: it can be shown as JSON. All else goes out under the type that it came
/// with, and is shown as text.
fn content_type(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_object = || {
        body.trim_ascii_start().starts_with(b"{")
            && too_deep(body).is_none()
            && serde_json::from_slice::<&RawValue>(body).is_ok()
    };
    match given {
        None | Some(JSON) if is_object() => None,
        Some(given) if is_content_type(given) => Some(given.to_owned()),
        Some(_) | None => Some(if is_object() { JSON } else { BYTES }.to_owned()),
    }
}

/// The sender's id, if it can be a message's; otherwise something that stands for it.
fn event_id(id: &str) -> String {
    if !is_name(id) {
        let hash: String = Sha256::digest(id).iter().map(|byte| format!("{byte:02x}")).collect();
        return format!("sha256.{hash}");
    }
    // What begins so is taken for an id of ours wherever messages are looked up.
    if id.starts_with("msg_") && id.len() + FROM.len() <= NAME_MAX { format!("{FROM}{id}") } else { id.to_owned() }
}

/// What a service calls its event, as the name of an event type.
fn event_type(text: &str) -> Option<String> {
    let letter = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => letter,
        '/' | ':' | ' ' => '.',
        _ => '_',
    };
    let name: String = text.trim().chars().take(NAME_MAX).map(letter).collect();
    is_name(&name).then_some(name)
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";
/// It takes a dozen looks at the whole body.
const EXPLAINED_MAX: usize = 64 * 1024;
const FROM: &str = "from.";
const NAME_MAX: usize = 256;
const PLACE_MAX: usize = 256;
const TAKEN: [&[u8]; 3] = [b"application/json", b"application/x-www-form-urlencoded", b"application/xml"];
const CREDENTIALS: [&str; 6] =
    ["authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key", "x-auth-token"];

#[cfg(test)]
mod tests {
    use super::{super::Settings, *};
    use serde_json::{Value, json};

    fn source(kind: &str, config: Option<Value>) -> Source {
        let settings = Settings {
            kind: kind.to_owned(),
            config,
            token: "t".to_owned(),
            old_token: None,
            pass_headers: vec!["X-Mine".to_owned()],
            id_from: None,
            type_from: None,
        };
        Source::of(settings).unwrap_or_else(|flaw| panic!("{kind}: {flaw:?}"))
    }

    fn headers(given: &[(&str, &str)]) -> HeaderMap {
        given.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn each_service_says_in_its_own_place_what_an_event_is() {
        let secret = || Some(json!({"secret": "s"}));
        for (kind, config, given, body, id, event_type) in [
            (
                "github",
                None,
                &[("x-github-event", "pull_request"), ("x-github-delivery", "72d3-1")][..],
                "{}",
                Some("72d3-1"),
                "pull_request",
            ),
            ("stripe", secret(), &[], r#"{"id":"evt_1","type":"invoice.paid"}"#, Some("evt_1"), "invoice.paid"),
            ("stripe", secret(), &[], "no JSON", None, "ingest.stripe"),
            (
                "shopify",
                secret(),
                &[("x-shopify-topic", "orders/create"), ("x-shopify-webhook-id", "b5"), ("x-shopify-event-id", "e1")],
                "{}",
                Some("b5"),
                "orders.create",
            ),
            (
                "slack",
                secret(),
                &[],
                r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}"#,
                Some("Ev1"),
                "app_mention",
            ),
            ("slack", secret(), &[], "payload=%7B%7D", None, "ingest.slack"),
            (
                "generic-webhook",
                None,
                &[("x-github-event", "push")],
                r#"{"type":"x","id":1}"#,
                None,
                "ingest.generic-webhook",
            ),
            (
                "airwallex",
                secret(),
                &[],
                r#"{"id":"a b","name":"x: y"}"#,
                Some("sha256.c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65"),
                "x..y",
            ),
            ("segment", None, &[], r#"{"messageId":7,"type":"track"}"#, Some("7"), "track"),
        ] {
            let content = source(kind, config).content(&headers(given), None, Bytes::from(body.to_owned()));
            assert_eq!((content.event_id.as_deref(), &*content.event_type), (id, event_type), "{kind} {body}");
            assert_eq!(content.payload, body);
        }
    }

    #[test]
    fn a_pointer_leads_past_whatever_stands_beside_it() {
        let body = br#"{"n": 1e400, "a/b": [{"c": "\u00e9"}, 12345678901234567890123], "deep": {"t": true}}"#;
        for (pointer, expected) in [
            ("/a~1b/0/c", Some("\u{e9}")),
            ("/a~1b/1", Some("12345678901234567890123")),
            ("/n", Some("1e400")),
            ("/deep", None),
            ("/deep/t", None),
            ("/a~1b/2", None),
            ("/a~1b/x", None),
            ("/n/x", None),
            ("/none", None),
        ] {
            assert_eq!(at(pointer, body).as_deref(), expected, "{pointer}");
        }
        assert_eq!(at("/a", b"{broken"), None);
    }

    #[test]
    fn ids_of_messages_elsewhere_are_not_taken_for_ours() {
        assert_eq!(event_id("msg_27UH4WbU6Z5A5EzD8u03UvzRbpk"), "from.msg_27UH4WbU6Z5A5EzD8u03UvzRbpk");
        assert_eq!(event_id("evt_1"), "evt_1");
    }

    #[test]
    fn an_id_that_was_signed_is_believed_and_one_beside_it_is_not() {
        let svix = source("svix", Some(json!({"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})));
        let given = headers(&[("svix-id", "evt_1"), ("webhook-id", "evt_2")]);
        let content = svix.content(&given, Some("evt_1".to_owned()), Bytes::from_static(b"{}"));
        assert_eq!(content.event_id.as_deref(), Some("evt_1"));
    }

    #[test]
    fn what_someone_names_goes_before_the_preset() {
        let settings = Settings {
            id_from: Place::parse("header:X-Id"),
            type_from: Place::parse("body:/a/0"),
            ..source("stripe", Some(json!({"secret": "s"}))).settings
        };
        let source = Source::of(settings).unwrap();
        let body = Bytes::from_static(br#"{"id":"evt_1","type":"t","a":["b.c"]}"#);
        let content = source.content(&headers(&[("x-id", "mine")]), None, body.clone());
        assert_eq!((content.event_id.as_deref(), &*content.event_type), (Some("mine"), "b.c"));
        let content = source.content(&HeaderMap::new(), None, body);
        assert_eq!(content.event_id.as_deref(), Some("evt_1"), "where it does not stand, the preset knows");
        for wrong in ["", "x-id", "header:", "header:a b", "body:id", "query:id", &format!("body:/{}", "x".repeat(256))]
        {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn credentials_are_not_kept_and_only_what_is_listed_goes_along() {
        let given = headers(&[
            ("x-github-event", "push"),
            ("x-mine", "1"),
            ("authorization", "Bearer canary"),
            ("cookie", "canary"),
            ("host", "example.com"),
            ("x-hub-signature-256", "sha256=00"),
        ]);
        let received = source("github", None).received(&given);
        let names = |list: &[(String, String)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&received.passed_on), ["x-github-event", "x-mine"]);
        assert_eq!(names(&received.kept), ["host", "x-hub-signature-256"]);
        let given = headers(&[
            ("x-gitlab-token", "canary"),
            ("x-amz-security-token", "canary"),
            ("x-telegram-bot-api-secret-token", "canary"),
            ("x-original-uri", "/ingest/in/canary-in-the-url"),
            ("x-forwarded-for", "192.0.2.1"),
        ]);
        let settings = Settings { token: "canary-in-the-url".to_owned(), ..source("generic-webhook", None).settings };
        let received = Source::of(settings).unwrap().received(&given);
        assert_eq!(names(&received.kept), ["x-forwarded-for"], "neither secrets by their names nor our own URL");
        let adobe = source("adobe-sign", Some(json!({"clientId": "canary"})));
        let received = adobe.received(&headers(&[("x-adobesign-clientid", "canary")]));
        assert_eq!((received.kept.len(), received.passed_on.len()), (0, 0));
        let token = source("token", Some(json!({"header": "X-Mine-Too", "token": "canary"})));
        let received = token.received(&headers(&[("x-mine-too", "canary"), ("x-other", "1")]));
        assert_eq!(names(&received.kept), ["x-other"]);
    }

    #[test]
    fn only_some_types_of_content_are_taken() {
        for (media, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/cloudevents+json", true),
            ("application/x-www-form-urlencoded", true),
            ("text/xml", true),
            ("application/xml", true),
            ("application/soap+xml", true),
            ("text/", false),
            ("image/png", false),
            ("multipart/form-data; boundary=x", false),
            ("application/octet-stream", false),
            ("", false),
        ] {
            assert_eq!(is_taken(media.as_bytes()), expected, "{media}");
        }
    }

    #[test]
    fn a_body_goes_out_under_the_type_it_came_with() {
        for (given, body, expected) in [
            (Some("application/json"), "{\"a\":1}", None),
            (None, "{}", None),
            (Some("application/json"), "[1]", Some("application/json")),
            (Some("application/json"), "{broken", Some("application/json")),
            (Some("application/json; charset=utf-8"), "{}", Some("application/json; charset=utf-8")),
            (Some("text/xml"), "<a/>", Some("text/xml")),
            (None, "a=1", Some("application/octet-stream")),
        ] {
            let headers = headers(&given.map(|given| ("content-type", given)).into_iter().collect::<Vec<_>>());
            assert_eq!(content_type(&headers, body.as_bytes()).as_deref(), expected, "{given:?} {body}");
        }
    }
}
