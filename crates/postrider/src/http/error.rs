//! Everything that can go wrong with a request, and the one form in which it is told.
//!
//! Always JSON: the official clients parse the body of every error, those of unknown routes included.
//! What went wrong inside is logged here, once, and never told to the outside.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use postrider_store::{AcceptError, PutError, StoreError};
use serde::Serialize;
use std::{borrow::Cow, time::Duration};
use tracing::error;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// Also the answer for what exists and belongs to someone else.
    NotFound,
    MethodNotAllowed,
    InvalidToken,
    InsufficientAccess,
    /// What a source was sent is not what it was told to believe.
    Unverified,
    /// Values in the body, or a list's position, that cannot be used.
    Invalid(Vec<Flaw>),
    /// A query value of the wrong type, or a parameter that we do not know.
    BadQuery(String),
    InvalidRange(&'static str),
    LimitReached(&'static str),
    Conflict(Cow<'static, str>),
    EventTypeExists,
    TooLarge {
        bytes_max: usize,
    },
    UnsupportedMedia(&'static str),
    /// The body came too slowly.
    TooSlow,
    /// The body ended before it should, or is not framed as the head says.
    BrokenBody,
    TooManyRequests {
        retry_after: Duration,
    },
    Unavailable {
        retry_after: Duration,
    },
    /// As many as may be are at it.
    Crowded(&'static str),
    NotImplemented(&'static str),
    Internal,
}

/// What is wrong with one value, and where it is.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Flaw {
    pub loc: Vec<String>,
    pub msg: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
}

/// How the official clients expect an error.
#[derive(Serialize, ToSchema)]
pub struct HttpErrorOut {
    pub code: &'static str,
    #[schema(value_type = String)]
    pub detail: Cow<'static, str>,
}

#[derive(Serialize, ToSchema)]
pub struct HttpValidationError {
    pub detail: Vec<Flaw>,
}

/// Either of the two.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ErrorOut {
    Http(HttpErrorOut),
    Validation(HttpValidationError),
}

/// What went wrong with a part of what was asked.
pub struct PartError {
    pub status: u16,
    pub error: ErrorOut,
    /// In seconds.
    pub retry_after: Option<u64>,
}

impl Error {
    /// A field of the body, by its path: `invalid(["url"], "...")`.
    pub fn invalid<const N: usize>(path: [&str; N], msg: impl Into<String>) -> Self {
        Self::Invalid(vec![Flaw::new("body", path, msg)])
    }

    pub fn invalid_query(name: &str, msg: impl Into<String>) -> Self {
        Self::Invalid(vec![Flaw::new("query", [name], msg)])
    }

    pub fn invalid_path(name: &str, msg: impl Into<String>) -> Self {
        Self::Invalid(vec![Flaw::new("path", [name], msg)])
    }

    pub fn invalid_header(name: &str, msg: impl Into<String>) -> Self {
        Self::Invalid(vec![Flaw::new("header", [name], msg)])
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::InvalidToken | Self::Unverified => StatusCode::UNAUTHORIZED,
            Self::InsufficientAccess => StatusCode::FORBIDDEN,
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::BadQuery(_) | Self::InvalidRange(_) | Self::LimitReached(_) | Self::BrokenBody => {
                StatusCode::BAD_REQUEST
            }
            Self::Conflict(_) | Self::EventTypeExists => StatusCode::CONFLICT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMedia(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooManyRequests { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable { .. } | Self::Crowded(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code_and_detail(self) -> (&'static str, Cow<'static, str>) {
        match self {
            Self::NotFound => ("not_found", "Entity not found".into()),
            Self::MethodNotAllowed => ("method_not_allowed", "This path does not have this method".into()),
            Self::InvalidToken => ("authentication_failed", "Invalid token".into()),
            Self::Unverified => {
                ("verification_failed", "The request could not be verified; the log of the source says why".into())
            }
            Self::InsufficientAccess => ("insufficient access", "This token may not do that".into()),
            Self::Invalid(flaws) => ("validation", flaws.into_iter().map(|flaw| flaw.msg).collect::<String>().into()),
            Self::BadQuery(detail) => ("generic_error", detail.into()),
            Self::InvalidRange(detail) => ("invalid_range", detail.into()),
            Self::LimitReached(detail) => ("limit_reached", detail.into()),
            Self::Conflict(detail) => ("conflict", detail),
            Self::EventTypeExists => ("event_type_exists", "An event type with this name exists already".into()),
            Self::TooLarge { bytes_max } => {
                ("payload_too_large", format!("The body is larger than {bytes_max} bytes").into())
            }
            Self::UnsupportedMedia(detail) => ("unsupported_media_type", detail.into()),
            Self::TooSlow => ("request_timeout", "The body came too slowly".into()),
            Self::BrokenBody => ("broken_body", "The body broke off, or is not what its head says".into()),
            Self::TooManyRequests { .. } => ("rate_limit", "Too many requests; try again later".into()),
            Self::Unavailable { .. } => ("unavailable", "The server cannot take this now; try again shortly".into()),
            Self::Crowded(detail) => ("unavailable", detail.into()),
            Self::NotImplemented(detail) => ("not_implemented", detail.into()),
            Self::Internal => ("server_error", "Internal server error".into()),
        }
    }

    /// What is wrong, in words, for a log.
    pub fn reason(&self) -> String {
        match self {
            Self::Invalid(flaws) => flaws.iter().map(|flaw| flaw.msg.as_str()).collect::<Vec<_>>().join("; "),
            Self::UnsupportedMedia(detail) => (*detail).to_owned(),
            Self::TooLarge { bytes_max } => format!("The body is larger than {bytes_max} bytes"),
            other => other.status().to_string(),
        }
    }

    /// The same, for a part of what was asked: it stands in an answer of its own among others.
    pub fn into_part(self) -> PartError {
        let (status, retry_after) = (self.status().as_u16(), self.retry_after().map(whole_seconds));
        let error = match self {
            Self::Invalid(detail) => ErrorOut::Validation(HttpValidationError { detail }),
            other => {
                let (code, detail) = other.code_and_detail();
                ErrorOut::Http(HttpErrorOut { code, detail })
            }
        };
        PartError { status, error, retry_after }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TooManyRequests { retry_after } | Self::Unavailable { retry_after } => Some(*retry_after),
            Self::Crowded(_) => Some(CROWDED_PAUSE),
            _ => None,
        }
    }

    /// Part of the body is still on its way, and we will not read it.
    fn leaves_body_unread(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::TooSlow | Self::BrokenBody)
    }
}

impl Flaw {
    pub fn new<'p>(part: &'p str, path: impl IntoIterator<Item = &'p str>, msg: impl Into<String>) -> Self {
        let loc = std::iter::once(part).chain(path).map(str::to_owned).collect();
        Self { loc, msg: msg.into(), kind: "value_error" }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let (status, close) = (self.status(), self.leaves_body_unread());
        let PartError { error, retry_after, .. } = self.into_part();
        let mut response = Response::new(Body::from(serde_json::to_vec(&error).expect("strings serialise")));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait));
        }
        if close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Long enough for someone to have gone.
const CROWDED_PAUSE: Duration = Duration::from_secs(10);

/// Rounded up: whoever comes when he was told to is not too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl From<StoreError> for Error {
    fn from(fault: StoreError) -> Self {
        match fault {
            StoreError::Busy | StoreError::Closed | StoreError::Unreachable(_) | StoreError::Deposed => {
                Self::Unavailable { retry_after: Duration::from_secs(1) }
            }
            StoreError::Full => {
                error!("the store has no room left: requests are refused");
                Self::Unavailable { retry_after: Duration::from_secs(30) }
            }
            StoreError::Database(cause) => {
                error!(cause, "the store failed");
                Self::Internal
            }
        }
    }
}

impl From<AcceptError> for Error {
    fn from(refusal: AcceptError) -> Self {
        match refusal {
            AcceptError::EventIdTaken => Self::Conflict("A message with this eventId exists already".into()),
            AcceptError::KeyReused => {
                Self::Conflict("This idempotency key was used before with another request".into())
            }
            AcceptError::Outdated => Self::Unavailable { retry_after: Duration::from_secs(1) },
            AcceptError::Store(fault) => fault.into(),
        }
    }
}

/// For puts whose answer is not remembered; the others look at `PutError` themselves.
impl From<PutError> for Error {
    fn from(fault: PutError) -> Self {
        match fault {
            PutError::Full => Self::LimitReached("A poller can have 100 consumers"),
            PutError::Taken => Self::Conflict("The uid is in use already".into()),
            PutError::Changed => Self::Conflict("Someone else changed this meanwhile; read it again".into()),
            PutError::KeyReused => Self::Conflict("This idempotency key was used before with another request".into()),
            PutError::Repeated(_) => Self::Conflict("This request was carried out before".into()),
            PutError::Store(fault) => fault.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn shown(error: Error) -> (u16, String) {
        let response = error.into_response();
        let status = response.status().as_u16();
        assert_eq!(response.headers()["content-type"], "application/json");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn an_error_is_json_with_a_code_and_a_detail() {
        assert_eq!(shown(Error::NotFound).await, (404, r#"{"code":"not_found","detail":"Entity not found"}"#.into()));
        assert_eq!(
            shown(Error::InvalidToken).await,
            (401, r#"{"code":"authentication_failed","detail":"Invalid token"}"#.into())
        );
        assert_eq!(
            shown(Error::invalid(["url"], "no")).await,
            (422, r#"{"detail":[{"loc":["body","url"],"msg":"no","type":"value_error"}]}"#.into())
        );
    }

    #[tokio::test]
    async fn what_broke_inside_stays_inside() {
        let (status, body) = shown(StoreError::Database("disk image malformed at /var/lib/x".into()).into()).await;
        assert_eq!(status, 500);
        assert_eq!(body, r#"{"code":"server_error","detail":"Internal server error"}"#);
    }

    #[test]
    fn a_full_or_busy_store_says_when_to_come_back() {
        for fault in [StoreError::Busy, StoreError::Full, StoreError::Closed] {
            let response = Error::from(fault).into_response();
            assert_eq!(response.status(), 503);
            assert!(response.headers().contains_key("retry-after"));
        }
    }

    #[test]
    fn who_comes_when_told_to_is_not_too_early() {
        for (millis, told) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (29_999, "30")] {
            let response = Error::TooManyRequests { retry_after: Duration::from_millis(millis) }.into_response();
            assert_eq!(response.headers()["retry-after"], told, "{millis} ms");
        }
    }

    #[test]
    fn a_connection_with_an_unread_body_is_closed() {
        assert_eq!(Error::TooLarge { bytes_max: 1 }.into_response().headers()["connection"], "close");
        assert!(!Error::NotFound.into_response().headers().contains_key("connection"));
    }
}
