//! What became of a request, and what is answered: a pure function of it.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use postrider_signature::Refusal;

use crate::sequence::Arrival;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "what was not recorded must not be answered 2xx"]
pub enum Outcome {
    /// Recorded and queued in one commit.
    Accepted {
        arrival: Option<Arrival>,
    },
    /// It is known already: it waits, is worked on, was done, or is dead until somebody replays it.
    Duplicate,
    Refused(Fault),
    /// The body has more bytes than the door lets in.
    TooLarge {
        max: usize,
    },
    /// So much waits that nothing more is taken in.
    Full {
        retry_after: Duration,
    },
    /// The store cannot be reached, or refused.
    StoreOut,
}

/// Why a request is not taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    #[error(transparent)]
    Signature(#[from] Refusal),
    #[error("the request has no id by which its repetition could be recognised")]
    NoId,
    #[error(transparent)]
    BadId(#[from] crate::EventIdError),
    #[error("the body broke off before its end")]
    BrokenBody,
}

impl Fault {
    /// One of a closed list, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Signature(Refusal::MissingHeader { .. }) => "missing-header",
            Self::Signature(Refusal::Unreadable { .. }) => "unreadable-header",
            Self::Signature(Refusal::BodyChanged { .. }) => "body-changed",
            Self::Signature(Refusal::TooOld { .. }) => "too-old",
            Self::Signature(Refusal::TooNew { .. }) => "too-new",
            Self::Signature(Refusal::NoMatch { .. }) => "no-match",
            Self::Signature(Refusal::UnknownUrl) => "unknown-url",
            Self::NoId => "no-id",
            Self::BadId(_) => "bad-id",
            Self::BrokenBody => "broken-body",
        }
    }

    /// 401 where whoever sent it has not shown that it may; 400 where the request is not one that could be judged.
    fn status(&self) -> StatusCode {
        match self {
            Self::Signature(Refusal::NoMatch { .. } | Refusal::TooOld { .. } | Refusal::TooNew { .. }) => {
                StatusCode::UNAUTHORIZED
            }
            Self::Signature(
                Refusal::MissingHeader { .. }
                | Refusal::Unreadable { .. }
                | Refusal::BodyChanged { .. }
                | Refusal::UnknownUrl,
            )
            | Self::NoId
            | Self::BadId(_)
            | Self::BrokenBody => StatusCode::BAD_REQUEST,
        }
    }
}

/// What goes back over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub retry_after: Option<Duration>,
    pub text: String,
}

impl Outcome {
    /// A sender only looks at the status: a duplicate is a success to it, or it would send again.
    pub fn answer(&self) -> Answer {
        let answer = |status, retry_after, text: String| Answer { status, retry_after, text };
        match self {
            Self::Accepted { .. } => answer(StatusCode::ACCEPTED, None, "accepted".to_owned()),
            Self::Duplicate => answer(StatusCode::OK, None, "known already".to_owned()),
            Self::Refused(fault) => answer(fault.status(), None, fault.to_string()),
            Self::TooLarge { max } => {
                answer(StatusCode::PAYLOAD_TOO_LARGE, None, format!("the body may have {max} bytes at most"))
            }
            Self::Full { retry_after } => {
                answer(StatusCode::TOO_MANY_REQUESTS, Some(*retry_after), "too much waits already".to_owned())
            }
            Self::StoreOut => {
                answer(StatusCode::SERVICE_UNAVAILABLE, Some(STORE_OUT_PAUSE), "not recorded; send it again".to_owned())
            }
        }
    }
}

impl Answer {
    pub fn into_response<B: From<String>>(self) -> Response<B> {
        let mut response = Response::new(self.text.into());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(pause) = self.retry_after {
            // In whole seconds, and never early.
            let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

const STORE_OUT_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_answer() {
        let refused = |refusal: Refusal| Outcome::Refused(Fault::Signature(refusal));
        let (age, allowed) = (Duration::from_secs(900), Duration::from_secs(300));
        for (outcome, status, retry_after) in [
            (Outcome::Accepted { arrival: None }, 202, None),
            (Outcome::Duplicate, 200, None),
            (refused(Refusal::MissingHeader { name: "webhook-id".to_owned() }), 400, None),
            (refused(Refusal::Unreadable { header: "t".to_owned(), expected: "a time".to_owned() }), 400, None),
            (refused(Refusal::BodyChanged { announced: 3, received: 2 }), 400, None),
            (refused(Refusal::NoMatch { secrets: 1 }), 401, None),
            (refused(Refusal::TooOld { age, allowed }), 401, None),
            (refused(Refusal::TooNew { ahead: age, allowed }), 401, None),
            (Outcome::Refused(Fault::NoId), 400, None),
            (Outcome::Refused(Fault::BadId(crate::EventIdError)), 400, None),
            (Outcome::Refused(Fault::BrokenBody), 400, None),
            (Outcome::TooLarge { max: 10 }, 413, None),
            (Outcome::Full { retry_after: Duration::from_millis(1_500) }, 429, Some("2")),
            (Outcome::StoreOut, 503, Some("5")),
        ] {
            let response: Response<String> = outcome.answer().into_response();
            assert_eq!(response.status(), status, "{outcome:?}");
            let told = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(told, retry_after, "{outcome:?}");
            assert!(!response.body().is_empty(), "{outcome:?}");
        }
    }
}
