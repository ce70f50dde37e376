//! One poller: what it lets through, how to fetch by it, and how far its consumers have come.

use super::{
    Site,
    frame::{Frame, moment, page, to, until},
    inside::{Fault, List, Path},
    pollers::{Consumer, Poller, frame_after},
    session::{Fields, Sent, Session},
};
use crate::http::time::Time;
use askama::Template;
use axum::{
    Router,
    extract::{FromRequestParts, Path as Named, State},
    response::Response,
    routing::{get, post},
};
use http::{Method, header, request::Parts, uri::Authority};
use postrider_engine::Timestamp;
use serde::Deserialize;
use std::{convert::Infallible, sync::Arc};

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/pollers/{poller}", get(show))
        .route("/apps/{app}/pollers/{poller}/delete", get(ask_to_delete).post(delete))
        .route("/apps/{app}/pollers/{poller}/consumers/{consumer}/forget", post(forget))
}

#[derive(Template)]
#[template(path = "poller.html")]
struct PollerPage {
    frame: Frame,
    app: String,
    poller: Poller,
    /// Those furthest behind first.
    consumers: Vec<(Consumer, Behind)>,
    here: Here,
    rotation: Rotation,
}

/// What stands in the form for a new token.
pub struct Rotation {
    /// How many seconds the old one still holds.
    overlap: String,
    fault: Option<String>,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { overlap: "300".to_owned(), fault: None }
    }
}

impl Rotation {
    /// With what was chosen, if it can be chosen: a form that marks nothing would offer to end the old one at once.
    pub fn refused(overlap: String, fault: String) -> Self {
        let is_offered = OVERLAPS.iter().any(|(value, _)| *value == overlap);
        let overlap = if is_offered { overlap } else { Self::default().overlap };
        Self { overlap, fault: Some(fault) }
    }
}

const OVERLAPS: [(&str, &str); 4] = [
    ("0", "not at all: it ends at once, with all older ones"),
    ("300", "for 5 minutes"),
    ("3600", "for an hour"),
    ("86400", "for a day"),
];

/// How far a consumer is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Behind {
    CaughtUp,
    Waits {
        next: Next,
        how_long: String,
    },
    /// Nothing is for it among the next messages, of which a poll looks at so many; what is behind them was not looked at.
    Unsure,
    /// Others are further behind, or it could not be found out.
    NotLooked,
}

/// The first message that a consumer has not dealt with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Next {
    id: String,
    event_type: String,
    timestamp: String,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, name)): Named<(String, String)>,
    here: Here,
    query: Fields,
) -> Result<Response, Fault> {
    let frame = frame_after(&session, query.get("done"));
    shown(&site, &session, frame, (app, name), here, Rotation::default()).await
}

/// The page of a poller, with a form for another token as it is filled in.
pub async fn shown(
    site: &Site,
    session: &Session,
    frame: Frame,
    (app, name): (String, String),
    here: Here,
    rotation: Rotation,
) -> Result<Response, Fault> {
    let poller = Poller::find(site, session, &app, &name).await?;
    let consumers = Consumer::all(site, session, &app, &poller.id).await?;
    let consumers = how_far(site, session, &app, &poller.id, consumers).await;
    Ok(page(&PollerPage { frame, app, poller, consumers, here, rotation }))
}

/// A place alone does not tell it: whoever has come to the last message is not behind, however long ago that was. So for each
/// place it is asked what would be fetched next, which moves nobody.
async fn how_far(
    site: &Site,
    session: &Session,
    app: &str,
    poller: &str,
    mut consumers: Vec<Consumer>,
) -> Vec<(Consumer, Behind)> {
    let time = |consumer: &Consumer| consumer.place_at.parse::<Time>().ok();
    consumers.sort_by(|one, other| (time(one), &one.iterator).cmp(&(time(other), &other.iterator)));
    let (mut told, mut looks) = (Vec::<(Consumer, Behind)>::new(), 0);
    for consumer in consumers {
        let behind = match told.last() {
            Some((other, behind)) if other.iterator == consumer.iterator => behind.clone(),
            // Where nothing is left for one, nothing is for those who are further.
            Some((other, Behind::CaughtUp)) if time(other) < time(&consumer) => Behind::CaughtUp,
            _ if looks == LOOKS_MAX => Behind::NotLooked,
            _ => {
                looks += 1;
                let path = Path::api(&["app", app, "poller", poller])
                    .with("limit", Some("1"))
                    .with("iterator", Some(&consumer.iterator));
                let read = site.inside.list::<Next>(session, &path).await;
                read.map_or(Behind::NotLooked, |read| Behind::of(read, site.sessions.now()))
            }
        };
        told.push((consumer, behind));
    }
    told
}

impl Behind {
    fn of(read: List<Next>, now: Timestamp) -> Self {
        match (read.data.into_iter().next(), read.done) {
            (Some(next), _) => Self::Waits { how_long: how_long(&next.timestamp, now), next },
            (None, true) => Self::CaughtUp,
            (None, false) => Self::Unsure,
        }
    }
}

/// How long something has been there.
fn how_long(since: &str, now: Timestamp) -> String {
    let passed = since.parse::<Time>().ok().and_then(|since| until(&Time(now).to_string(), since.0));
    passed.filter(|passed| passed != "0 s").unwrap_or_else(|| "less than a second".to_owned())
}

/// Where the pages were reached: as it is set, or else as the browser did. What could mean something to a shell is not put into
/// a line for one.
pub struct Here(String);

impl Here {
    /// Where a consumer asks that has called itself so.
    fn consumer(&self, app: &str, poller: &str) -> String {
        format!("{}{}", self.0, Path::api(&["app", app, "poller", poller, "consumer", "worker-1"]))
    }

    fn of(public_url: Option<&str>, host: Option<&str>, is_secure: bool) -> Self {
        let is_plain = |host: &&str| {
            !host.is_empty() && host.bytes().all(|it| it.is_ascii_alphanumeric() || b".:-[]".contains(&it))
        };
        let scheme = if is_secure { "https" } else { "http" };
        let reached = || host.filter(is_plain).map(|host| format!("{scheme}://{host}"));
        Self(public_url.map(str::to_owned).or_else(reached).unwrap_or_else(|| "$POSTRIDER_URL".to_owned()))
    }
}

impl FromRequestParts<Arc<Site>> for Here {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Infallible> {
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| parts.uri.authority().map(Authority::as_str));
        Ok(Self::of(site.public_url.as_deref(), host, site.sessions.is_secure()))
    }
}

#[derive(Template)]
#[template(path = "poller_delete.html")]
struct DeletePage {
    frame: Frame,
    app: String,
    poller: Poller,
    /// `None`: it could not be found out.
    consumers: Option<usize>,
}

async fn ask_to_delete(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, name)): Named<(String, String)>,
) -> Result<Response, Fault> {
    let poller = Poller::find(&site, &session, &app, &name).await?;
    session.who().require(|may| may.manage)?;
    let consumers = Consumer::all(&site, &session, &app, &poller.id).await.ok().map(|consumers| consumers.len());
    Ok(page(&DeletePage { frame: Frame::new(&session), app, poller, consumers }))
}

async fn delete(
    State(site): State<Arc<Site>>,
    Named((app, name)): Named<(String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    let caller = (session.token(), session.peer());
    site.inside.call(caller, Method::DELETE, &Path::api(&["app", &app, "poller", &name]), None).await?;
    Ok(to(&Path::page(&["apps", &app, "pollers"]).with("done", Some("deleted"))))
}

async fn forget(
    State(site): State<Arc<Site>>,
    Named((app, name, consumer)): Named<(String, String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    let caller = (session.token(), session.peer());
    let path = Path::api(&["app", &app, "poller", &name, "consumer", &consumer]);
    site.inside.call(caller, Method::DELETE, &path, None).await?;
    Ok(to(&Path::page(&["apps", &app, "pollers", &name]).with("done", Some("forgotten"))))
}

// Templates hand over references to references.
fn is_same(one: &str, other: &str) -> bool {
    one == other
}

/// How many places are asked for on one page. A poller can have a hundred consumers, and each look goes through as many as
/// 2,000 messages.
const LOOKS_MAX: usize = 25;

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-16T09:00:00Z".parse::<Time>().unwrap().0
    }

    #[test]
    fn how_long_something_waits_is_told_in_words() {
        for (since, told) in [
            ("2026-11-13T05:00:00Z", "3 d 4 h"),
            ("2026-11-16T08:55:00Z", "5 min"),
            ("2026-11-16T08:59:59.500Z", "less than a second"),
            ("2026-11-16T09:00:01Z", "less than a second"),
        ] {
            assert_eq!(how_long(since, now()), told, "{since}");
        }
    }

    #[test]
    fn a_line_for_a_shell_leads_where_we_are_reached_and_says_nothing_else_to_it() {
        for (public_url, host, is_secure, told) in [
            (None, Some("127.0.0.1:8071"), false, "http://127.0.0.1:8071"),
            (None, Some("[::1]:8071"), true, "https://[::1]:8071"),
            (Some("https://hooks.example"), Some("10.0.0.1:8071"), false, "https://hooks.example"),
            (None, Some("x$(reboot)"), false, "$POSTRIDER_URL"),
            (None, Some("a\"b"), false, "$POSTRIDER_URL"),
            (None, Some(""), false, "$POSTRIDER_URL"),
            (None, None, false, "$POSTRIDER_URL"),
        ] {
            assert_eq!(Here::of(public_url, host, is_secure).0, told, "{host:?}");
        }
    }

    #[test]
    fn one_is_behind_by_what_comes_next_and_not_by_its_place() {
        let next = || Next {
            id: "msg_1".to_owned(),
            event_type: "order.paid".to_owned(),
            timestamp: "2026-11-16T07:00:00Z".to_owned(),
        };
        let waits = Behind::Waits { next: next(), how_long: "2 h 0 min".to_owned() };
        for (data, done, told) in [
            (vec![], true, Behind::CaughtUp),
            (vec![], false, Behind::Unsure),
            (vec![next()], true, waits.clone()),
            (vec![next()], false, waits),
        ] {
            assert_eq!(Behind::of(List { data, iterator: None, done }, now()), told);
        }
    }
}
