//! An application's attempts as they are recorded, in the form that browsers follow (server-sent events).
//!
//! They are read from the store, about once a second, and not told by the process that made them: with several nodes that
//! may be another one. The cursor is the id of an attempt, so that whoever comes back with the last one he saw goes on
//! behind it, on whichever node. Looking is kept cheap: few at a time, and the longer a look takes, the rarer it is.

mod places;
mod reading;

use super::{
    Api,
    attempts::MessageAttemptOut,
    auth::{self, InApp, records::Tenant},
    error::Error,
    extract::Query,
    payload::Detail,
    server::Stays,
    status::MessageStatus,
};
use crate::config::Hidden;
use axum::{
    extract::State,
    response::{IntoResponse, Response, Sse, sse::Event},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use places::{Place, Places};
use postrider_engine::{AppKey, AttemptKey, EndpointKey, MessageKey, keys::first_key_at};
use postrider_store::{Attempt, By, Message, StoreError};
use reading::Reading;
use std::{
    collections::{HashMap, hash_map::Entry},
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tracing::debug;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(tail))
}

/// What all tails of a server share.
pub struct Tails {
    places: Places,
    looking: Semaphore,
    stopped: watch::Receiver<bool>,
}

impl Tails {
    /// They end when `stopped` becomes true.
    pub fn new(stopped: watch::Receiver<bool>) -> Self {
        Self { places: Places::default(), looking: Semaphore::new(LOOKING_MAX), stopped }
    }
}

/// For a server that is never told to stop.
impl Default for Tails {
    fn default() -> Self {
        Self::new(watch::channel(false).1)
    }
}

/// Follow the attempts of an application as they are recorded.
///
/// Server-sent events. Each attempt is an event `attempt`, in the order of recording: its `data` is the attempt as the lists
/// have it, with `msg`, and its `id` the attempt's id. Whoever comes back with that as `Last-Event-ID` is sent what he missed.
/// With `latest` only the newest are sent, and an event `skipped` stands for the others.
/// The first thing sent is an `id` without an event; a comment comes at least every 15 seconds, with the `id` to come back with; the stream
/// ends when the server stops or the token does not hold any more.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/tail",
    operation_id = "v1.message-attempt.tail", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("last-event-id" = Option<String>, Header, description = "The id of the last attempt that was seen"),
        ("iterator" = Option<String>, Query, description = "The same, for the first call; now, if neither is given"),
        ("endpoint_id" = Option<String>, Query, description = "Only attempts to this endpoint, by id or uid"),
        ("event_types" = Option<Vec<String>>, Query),
        ("status" = Option<u8>, Query, description = "0: success, 2: fail"),
        ("with_content" = Option<bool>, Query, description = "Whether to show what receivers answered; true if not given"),
        ("latest" = Option<u64>, Query, minimum = 1, maximum = 100,
            description = "Send no more than so many at a time, about once a second, and pass over the rest; all, if absent"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream"),
        (status = 503, description = "As many are open as may be; `Retry-After` says when to come again"),
    ))]
async fn tail(
    State(api): State<Arc<Api>>,
    app: InApp,
    headers: HeaderMap,
    mut query: Query,
) -> Result<Response, Error> {
    let seen = last_seen(&api, &headers, &mut query)?;
    let wanted = Wanted {
        endpoint: None,
        event_types: query.list("event_types"),
        status: take_status(&mut query)?,
        detail: Detail::take(&mut query)?,
    };
    let endpoint = query.text("endpoint_id")?;
    let latest = query.parsed::<usize>("latest", "a whole number")?;
    query.finish()?;
    if latest.is_some_and(|many| !(1..=LATEST_MAX).contains(&many)) {
        return Err(Error::invalid_query("latest", format!("must be between 1 and {LATEST_MAX}")));
    }
    let wanted = match endpoint {
        None => wanted,
        Some(text) => {
            let by = api.ids.by(&text).ok_or(Error::NotFound)?;
            let found = app.store.endpoint(by).await?.ok_or(Error::NotFound)?;
            Wanted { endpoint: Some(found.key), ..wanted }
        }
    };
    let place = api.tails.places.take(app.key()).ok_or(Error::Crowded(CROWDED))?;
    let cursor = seen.unwrap_or_else(|| AttemptKey::new(first_key_at((api.clock)().minus(LOOK_BACK)) - 1));
    let token = auth::bearer(&headers).map(|token| Hidden::new(token.to_owned()));
    let (out, events) = mpsc::channel(EVENTS_MAX);
    let stays = Stays::default();
    let (key, store, stays_open) = (app.key(), app.store, stays.clone());
    let tail = Tail { app: key, store, token, wanted, latest, cursor, out, stays: stays_open, place, api };
    tokio::spawn(tail.run());

    let events = futures_util::stream::unfold(events, async |mut events| {
        let event: Event = events.recv().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    let mut response = Sse::new(events).into_response();
    // Proxies of a common kind would otherwise collect the events.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response.extensions_mut().insert(stays);
    Ok(response)
}

fn last_seen(api: &Api, headers: &HeaderMap, query: &mut Query) -> Result<Option<AttemptKey>, Error> {
    let iterator = query.text("iterator")?;
    let read = |text: &str| api.ids.key_of::<AttemptKey>(text);
    // The header is what a client comes back with; the query is then still that of its first call.
    match headers.get("last-event-id").filter(|value| !value.is_empty()) {
        Some(value) => {
            let key = value.to_str().ok().and_then(read);
            key.map(Some).ok_or_else(|| Error::invalid_header("last-event-id", "is not the id of an attempt"))
        }
        None => iterator
            .map(|text| read(&text).ok_or_else(|| Error::invalid_query("iterator", "is not the id of an attempt")))
            .transpose(),
    }
}

fn take_status(query: &mut Query) -> Result<Option<MessageStatus>, Error> {
    match query.parsed("status", "0 or 2")? {
        None => Ok(None),
        Some(status @ (MessageStatus::Success | MessageStatus::Fail)) => Ok(Some(status)),
        Some(MessageStatus::Pending | MessageStatus::Sending | MessageStatus::Canceled) => Err(Error::invalid_query(
            "status",
            "must be 0 (success) or 2 (fail): an attempt is recorded when it is over",
        )),
    }
}

/// Which attempts are asked for, and how much of them.
struct Wanted {
    endpoint: Option<EndpointKey>,
    event_types: Vec<String>,
    status: Option<MessageStatus>,
    detail: Detail,
}

impl Wanted {
    fn by_itself(&self, attempt: &Attempt) -> bool {
        self.endpoint.is_none_or(|endpoint| endpoint == attempt.id.endpoint)
            && self.status.is_none_or(|status| status == MessageStatus::of_attempt(attempt.record.class))
    }

    fn by_message(&self, message: Option<&Message>) -> bool {
        let of_type = |message: &Message| self.event_types.contains(&message.content.event_type);
        self.event_types.is_empty() || message.is_some_and(of_type)
    }
}

struct Tail {
    api: Arc<Api>,
    app: AppKey,
    store: Tenant,
    token: Option<Hidden>,
    wanted: Wanted,
    /// Of many only so many at a time.
    latest: Option<usize>,
    /// Everything up to this one was sent.
    cursor: AttemptKey,
    out: mpsc::Sender<Event>,
    stays: Stays,
    place: Place,
}

/// A tail is at its end: nobody reads it, its application or its token is gone, or the store is closed.
struct Over;

impl Tail {
    async fn run(mut self) {
        let (api, out) = (Arc::clone(&self.api), self.out.clone());
        let token = self.token.take();
        let mut stopped = api.tails.stopped.clone();
        let told = AtomicI64::new(self.cursor.raw());
        tokio::select! {
            Over = self.follow(&told) => {}
            Over = keep_open(&api, token.as_ref(), &told, &out) => {}
            () = until(&mut stopped) => {}
            () = out.closed() => {}
        }
        // The connection may be judged by how long it rests from here on.
        drop(self.stays);
        drop(self.place);
    }

    /// `told`: how far it has come.
    async fn follow(&mut self, told: &AtomicI64) -> Over {
        let here = Event::default().id(self.api.ids.id_of(self.cursor)).retry(COME_BACK_AFTER);
        if let Err(over) = send(&self.out, here).await {
            return over;
        }
        loop {
            let begun = Instant::now();
            let looked = self.look().await;
            let took = begun.elapsed();
            let pause = match looked {
                Ok(Reading { found, bound, more, skipped }) => match self.tell(found, bound, skipped).await {
                    Err(over) => return over,
                    Ok(()) if more => took,
                    Ok(()) => (took * LOOKING_SHARE).clamp(LOOK_EVERY, LOOK_EVERY_MAX),
                },
                Err(Fault::Gone | Fault::Store(StoreError::Closed)) => return Over,
                Err(Fault::Store(error)) => {
                    debug!(%error, "a tail could not look for attempts; it tries again");
                    TROUBLE_PAUSE
                }
            };
            told.store(self.cursor.raw(), Relaxed);
            sleep(pause).await;
        }
    }

    /// What was recorded past the cursor.
    async fn look(&self) -> Result<Reading, Fault> {
        let _turn = self.api.tails.looking.acquire().await.map_err(|_| Fault::Store(StoreError::Closed))?;
        let app = self.api.directory.application(&By::Key(self.app)).await?.ok_or(Fault::Gone)?;
        let lanes: Vec<_> = app
            .endpoints
            .iter()
            .filter(|endpoint| self.wanted.endpoint.is_none_or(|wanted| wanted == endpoint.key))
            .collect();
        Ok(match self.latest {
            None => reading::past(&self.store, &lanes, self.cursor).await?,
            Some(many) => reading::latest(&self.store, &lanes, self.cursor, many).await?,
        })
    }

    async fn tell(&mut self, found: Vec<Attempt>, bound: AttemptKey, skipped: bool) -> Result<(), Over> {
        if skipped {
            send(&self.out, Event::default().event("skipped").data("{}")).await?;
        }
        let mut messages = HashMap::new();
        for attempt in found.into_iter().filter(|attempt| self.wanted.by_itself(attempt)) {
            let message = match self.message(&mut messages, attempt.id.message).await {
                Ok(message) => message,
                Err(StoreError::Closed) => return Err(Over),
                // It is looked for again, from the last one that was told.
                Err(error) => {
                    debug!(%error, "a tail could not read a message; it tries again");
                    return Ok(());
                }
            };
            let key = attempt.key;
            if self.wanted.by_message(message.as_ref()) {
                let shown = MessageAttemptOut::of(&self.api.ids, attempt, self.wanted.detail, message);
                let event = Event::default().event("attempt").id(self.api.ids.id_of(key));
                let data = serde_json::to_string(&shown).expect("strings and numbers serialise");
                send(&self.out, event.data(data)).await?;
            }
            self.cursor = key;
        }
        self.cursor = self.cursor.max(bound);
        Ok(())
    }

    /// Without its payload, which is not shown and may be large.
    async fn message(
        &self,
        known: &mut HashMap<MessageKey, Option<Message>>,
        key: MessageKey,
    ) -> Result<Option<Message>, StoreError> {
        Ok(match known.entry(key) {
            Entry::Occupied(found) => found.get().clone(),
            Entry::Vacant(place) => {
                let mut message = self.store.message(By::Key(key)).await?;
                if let Some(message) = &mut message {
                    message.content.payload = Bytes::new();
                }
                place.insert(message).clone()
            }
        })
    }
}

enum Fault {
    /// There is no such application any more.
    Gone,
    Store(StoreError),
}

impl From<StoreError> for Fault {
    fn from(fault: StoreError) -> Self {
        Self::Store(fault)
    }
}

/// Says something now and then, so that nobody on the way takes the connection for dead, and looks whether the token still
/// holds. It says how far it has come, so that who wants little and comes back does not make us look through all of it again.
async fn keep_open(api: &Api, token: Option<&Hidden>, told: &AtomicI64, out: &mpsc::Sender<Event>) -> Over {
    loop {
        sleep(COMMENT_EVERY).await;
        if let Some(token) = token
            && !auth::still_holds(api, token.reveal()).await
        {
            return Over;
        }
        let here = api.ids.id_of(AttemptKey::new(told.load(Relaxed)));
        if let Err(over) = send(out, Event::default().comment("").id(here)).await {
            return over;
        }
    }
}

async fn send(out: &mpsc::Sender<Event>, event: Event) -> Result<(), Over> {
    match timeout(READ_TIME_MAX, out.send(event)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Over),
    }
}

/// Never, if nobody is left who could say so.
async fn until(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}

const CROWDED: &str = "As many tails are open as may be, for this application or in all; try again later";
/// A tail begins with what was recorded just before it was asked for: clocks of nodes differ a little.
const LOOK_BACK: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(10);
/// A tail that has caught up looks for a tenth of the time at most.
const LOOKING_SHARE: u32 = 9;
/// Tails that look into the store at the same time.
const LOOKING_MAX: usize = 2;
/// More than anybody could read within the second that they are for.
const LATEST_MAX: usize = 100;
const TROUBLE_PAUSE: Duration = Duration::from_secs(2);
const COMMENT_EVERY: Duration = Duration::from_secs(15);
const COME_BACK_AFTER: Duration = Duration::from_secs(2);
/// A reader who takes nothing for so long is let go.
const READ_TIME_MAX: Duration = Duration::from_secs(30);
/// Events that wait for their reader.
const EVENTS_MAX: usize = 16;
