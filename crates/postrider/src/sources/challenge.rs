//! What a service asks before it sends anything, to know that the URL is meant for it, and what it is answered.

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use sha2::Sha256;
use subtle::ConstantTimeEq;

pub enum Challenge {
    None,
    /// Wants its text back, in a request that is signed like any other.
    Slack,
    /// Wants its text back, and signed; the request is signed, too.
    Zoom {
        secret: String,
    },
    /// Asks by GET, with a token that was agreed on.
    Meta {
        verify_token: String,
    },
    /// Wants to hear the client's id again, with every answer and by GET.
    AdobeSign {
        client_id: HeaderValue,
    },
}

/// What to answer with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Text(String),
    Json(Value),
    Header(&'static str, HeaderValue),
}

impl Challenge {
    /// What a verified request asks, if it is a question and no event.
    pub fn answer(&self, body: &[u8]) -> Option<Answer> {
        match self {
            Self::Slack => {
                let asked = json_with(body, "type", "url_verification")?;
                Some(Answer::Text(asked["challenge"].as_str()?.to_owned()))
            }
            Self::Zoom { secret } => {
                let asked = json_with(body, "event", "endpoint.url_validation")?;
                let plain = asked["payload"]["plainToken"].as_str()?;
                let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length is fine");
                mac.update(plain.as_bytes());
                let signed: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                Some(Answer::Json(json!({"plainToken": plain, "encryptedToken": signed})))
            }
            Self::None | Self::Meta { .. } | Self::AdobeSign { .. } => None,
        }
    }

    /// What is asked by GET. `None`: this source answers no such question.
    pub fn answer_get(&self, headers: &HeaderMap, query: &[(String, String)]) -> Option<Answer> {
        match self {
            Self::Meta { verify_token } => {
                let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
                let is_known = bool::from(value("hub.verify_token")?.as_bytes().ct_eq(verify_token.as_bytes()));
                (value("hub.mode")? == "subscribe" && is_known).then_some(())?;
                Some(Answer::Text(value("hub.challenge")?.to_owned()))
            }
            Self::AdobeSign { client_id } => {
                let is_known = bool::from(headers.get(ADOBE_SIGN)?.as_bytes().ct_eq(client_id.as_bytes()));
                is_known.then(|| Answer::Header(ADOBE_SIGN, client_id.clone()))
            }
            Self::None | Self::Slack | Self::Zoom { .. } => None,
        }
    }

    /// What goes with the answer to every event that was taken.
    pub fn echo(&self) -> Option<(&'static str, &HeaderValue)> {
        match self {
            Self::AdobeSign { client_id } => Some((ADOBE_SIGN, client_id)),
            Self::None | Self::Slack | Self::Zoom { .. } | Self::Meta { .. } => None,
        }
    }
}

/// A body that is an object with this field. Looked at only if it can be: most are events.
fn json_with(body: &[u8], field: &str, expected: &str) -> Option<Value> {
    let may_be = body.len() <= QUESTION_MAX && body.windows(expected.len()).any(|text| text == expected.as_bytes());
    let parsed: Value = may_be.then(|| serde_json::from_slice(body).ok())??;
    (parsed[field] == expected).then_some(parsed)
}

pub const ADOBE_SIGN: &str = "x-adobesign-clientid";
const QUESTION_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_hears_its_own_text_and_events_are_no_question() {
        let asked = br#"{"token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}"#;
        let expected = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P";
        assert_eq!(Challenge::Slack.answer(asked), Some(Answer::Text(expected.to_owned())));
        for event in [&br#"{"type":"event_callback","text":"url_verification"}"#[..], b"url_verification", b"", b"{}"] {
            assert_eq!(Challenge::Slack.answer(event), None);
        }
        assert_eq!(Challenge::None.answer(asked), None);
    }

    #[test]
    fn zoom_hears_its_text_signed() {
        let challenge = Challenge::Zoom { secret: "It's a Secret to Everybody".to_owned() };
        let asked = br#"{"event":"endpoint.url_validation","payload":{"plainToken":"Hello, World!"}}"#;
        // GitHub's example of the same hash.
        let signed = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let expected = json!({"plainToken": "Hello, World!", "encryptedToken": signed});
        assert_eq!(challenge.answer(asked), Some(Answer::Json(expected)));
        assert_eq!(challenge.answer(br#"{"event":"meeting.started","payload":{"plainToken":"x"}}"#), None);
    }

    #[test]
    fn meta_is_answered_only_with_the_token_that_was_agreed_on() {
        let challenge = Challenge::Meta { verify_token: "ours".to_owned() };
        let ask = |mode: &str, token: &str| {
            let query = [("hub.mode", mode), ("hub.challenge", "1158201444"), ("hub.verify_token", token)];
            let query = query.map(|(name, value)| (name.to_owned(), value.to_owned()));
            challenge.answer_get(&HeaderMap::new(), &query)
        };
        assert_eq!(ask("subscribe", "ours"), Some(Answer::Text("1158201444".to_owned())));
        assert_eq!(ask("subscribe", "theirs"), None);
        assert_eq!(ask("unsubscribe", "ours"), None);
        assert_eq!(challenge.answer_get(&HeaderMap::new(), &[]), None);
    }
}
