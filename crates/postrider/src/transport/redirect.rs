//! Where a redirect leads, and whether we go there.
//!
//! A redirect is a stranger who chooses our next URL, so each one is vetted like the first, and what proves
//! who we are (signatures, the owner's own headers) is not carried to another origin. Only 307 and 308 are
//! followed, because the others let a client turn a POST into a GET.

use super::url::{EndpointUrl, UrlRules};
use http::header::{self, HeaderMap, HeaderName};
use http::response::Parts;
use http::{StatusCode, Uri, uri::Scheme};

/// The URLs of one attempt, in the order they were called.
pub(super) struct Trail<'a> {
    first: &'a EndpointUrl,
    followed: Vec<EndpointUrl>,
    followed_max: usize,
}

pub(super) enum Step {
    /// This answer is the outcome.
    Stay,
    Follow(Box<EndpointUrl>),
    /// It would have been followed, but for this.
    Refuse(Refusal),
}

/// Says nothing about addresses behind a name: they are nobody's business outside.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the redirect was not followed: it is one more than the {0} that are followed")]
    TooMany(usize),
    #[error("the redirect was not followed: it does not say where to")]
    NoLocation,
    #[error("the redirect was not followed: it names several places")]
    SeveralLocations,
    #[error("the redirect was not followed: its location is not a URL that Postrider calls")]
    Unusable,
    #[error("the redirect was not followed: it leads from https to http")]
    Downgrade,
    #[error("the redirect was not followed: it leads back to a URL that was called before")]
    Loop,
}

impl<'a> Trail<'a> {
    pub fn new(first: &'a EndpointUrl, redirects_max: u8) -> Self {
        Self { first, followed: Vec::new(), followed_max: usize::from(redirects_max.min(REDIRECTS_MAX)) }
    }

    pub fn here(&self) -> &EndpointUrl {
        self.followed.last().unwrap_or(self.first)
    }

    pub fn followed(&self) -> usize {
        self.followed.len()
    }

    fn may_follow(&self) -> bool {
        self.followed.len() < self.followed_max
    }

    pub fn step(&self, answer: &Parts, rules: &UrlRules<'_>) -> Step {
        let is_followed = match answer.status {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => self.followed_max > 0,
            _ => false,
        };
        if !is_followed {
            return Step::Stay;
        }
        self.next(&answer.headers, rules).map_or_else(Step::Refuse, |url| Step::Follow(Box::new(url)))
    }

    pub fn go(&mut self, url: EndpointUrl) {
        self.followed.push(url);
    }

    pub fn go_back(&mut self) {
        self.followed.pop();
    }

    fn next(&self, headers: &HeaderMap, rules: &UrlRules<'_>) -> Result<EndpointUrl, Refusal> {
        if !self.may_follow() {
            return Err(Refusal::TooMany(self.followed_max));
        }
        let mut locations = headers.get_all(header::LOCATION).iter();
        let location = locations.next().ok_or(Refusal::NoLocation)?;
        if locations.next().is_some() {
            return Err(Refusal::SeveralLocations);
        }
        let location = std::str::from_utf8(location.as_bytes()).map_err(|_| Refusal::Unusable)?;
        let next = self.here().join(location, rules).map_err(|_| Refusal::Unusable)?;
        if is_https(self.here().absolute()) && !is_https(next.absolute()) {
            return Err(Refusal::Downgrade);
        }
        if *self.first == next || self.followed.contains(&next) {
            return Err(Refusal::Loop);
        }
        Ok(next)
    }
}

/// What of a request's headers goes along from one URL to the next. Once another origin was called, what
/// was left behind stays behind, even if the next redirect leads home.
pub(super) fn carry_over(headers: &mut HeaderMap, from: &EndpointUrl, to: &EndpointUrl, kept: &[HeaderName]) {
    if is_same_origin(from, to) {
        return;
    }
    let carried = headers.iter().filter(|(name, _)| kept.contains(name));
    *headers = carried.map(|(name, value)| (name.clone(), value.clone())).collect();
}

/// The same scheme, host and port.
pub(super) fn is_same_origin(from: &EndpointUrl, to: &EndpointUrl) -> bool {
    from.destination().key == to.destination().key
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme() == Some(&Scheme::HTTPS)
}

/// Followed at most, whatever an endpoint asks for.
pub const REDIRECTS_MAX: u8 = 5;
