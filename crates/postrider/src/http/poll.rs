//! Fetching messages: by a place that the caller keeps (`poll`), or by one that is kept here under a consumer's name.
//!
//! Whoever hands back the iterator of an answer says that he has dealt with what was in it. So a consumer who dies in between
//! gets the same messages again: at least once, in the order in which they are stored.

use super::{
    Api,
    auth::{Caller, InApp},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse},
    fields::{Channel, TypeName},
    filter::valid,
    idempotency::{IdempotencyKey, json},
    messages::MessageOut,
    page::limit_of,
    payload::Detail,
    pollers::named,
    time::Time,
};
use crate::{
    ids::{IdCodec, Kind, Place, is_name},
    pollers::Poller,
    tokens::{Capability, Principal},
};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use bytes::Bytes;
use http::{StatusCode, request::Parts};
use postrider_engine::{
    MessageKey, Timestamp,
    keys::{first_key_at, time_of_key},
};
use postrider_store::{Answer, Consumer, PutError, ReadOn, Sieve, Stride, WasRead, Way};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(poll))
        .routes(routes!(list_consumers))
        .routes(routes!(consumer_poll, delete_consumer))
        .routes(routes!(seek))
        .routes(routes!(commit))
}

#[derive(Serialize, ToSchema)]
pub struct PollingEndpointOut {
    /// In the order in which they are stored.
    #[schema(value_type = Vec<MessageOut>)]
    data: Vec<MessageOut<'static>>,
    /// Where to go on from. It also leads past what the poller does not let through.
    iterator: String,
    /// There is nothing more at the moment.
    done: bool,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollingEndpointConsumerSeekIn {
    /// Messages of this time and later come next.
    after: Time,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollerCommitIn {
    /// Of an answer whose messages have been dealt with.
    iterator: String,
}

/// Where a consumer is.
#[derive(Serialize, ToSchema)]
pub struct PollingEndpointConsumerSeekOut {
    iterator: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollerConsumerOut {
    consumer_id: String,
    /// Everything up to here has been dealt with.
    iterator: String,
    /// The time of the message, or the moment, that it has come to.
    place_at: Time,
    moved_at: Time,
}

#[derive(Serialize, ToSchema)]
pub struct PollerConsumersOut {
    data: Vec<PollerConsumerOut>,
}

/// The poller that the path names, for someone who may read by it.
struct InPoller {
    app: InApp,
    poller: Poller,
    /// And not by one that opens more.
    by_own_token: bool,
}

impl FromRequestParts<Arc<Api>> for InPoller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let app = InApp::from_request_parts(parts, api).await?;
        let poller = named(api, &app, "sink_id")?;
        let own = match caller.principal() {
            Principal::Environment => None,
            Principal::Application { access, .. } => access.poller,
        };
        if own.is_some_and(|own| own != poller.key()) {
            return Err(Error::NotFound);
        }
        let by_own_token = own.is_some();
        if by_own_token && !caller.token_name().is_some_and(|name| poller.knows_token(name, (api.clock)())) {
            return Err(Error::InvalidToken);
        }
        Ok(Self { app, poller, by_own_token })
    }
}

/// The same, for someone who may say how far a consumer has come.
struct InConsumer {
    at: InPoller,
    name: String,
}

impl FromRequestParts<Arc<Api>> for InConsumer {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let at = InPoller::from_request_parts(parts, api).await?;
        if !at.by_own_token {
            at.app.require(Capability::ManageEndpoint)?;
        }
        let name = at.app.param("consumer_id")?.to_owned();
        match is_name(&name) {
            true => Ok(Self { at, name }),
            false => Err(Error::invalid_path("consumer_id", "must be 1 to 256 letters, digits, `-`, `_` or `.`")),
        }
    }
}

impl InPoller {
    async fn read(&self, api: &Api, past: MessageKey, limit: usize, sieve: Sieve) -> Result<WasRead, Error> {
        let until = self.app.store.horizon((api.clock)()).await?;
        let wanted = ReadOn { past, until, sieve, limit, look_max: LOOK_MAX, bytes_max: BYTES_MAX };
        Ok(self.app.store.read_on(wanted).await?)
    }
}

impl InConsumer {
    fn stride(&self, to: MessageKey, how: Way, at: Timestamp) -> Stride {
        let (app, poller, consumer) = (self.at.app.key(), self.at.poller.key(), self.name.clone());
        Stride { app, poller, consumer, to, how, at }
    }

    async fn commit(&self, api: &Api, dealt_with: Cursor) -> Result<Cursor, Error> {
        let Cursor { place, seeks } = dealt_with;
        let stride = self.stride(place, Way::Forward { seeks }, (api.clock)());
        Ok(self.at.app.store.move_consumer(stride, None).await?.into())
    }
}

/// Where to go on from, as callers keep it and bring it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    place: MessageKey,
    /// Of a consumer: how often he had been set to another place.
    seeks: Option<i64>,
}

impl From<Consumer> for Cursor {
    fn from(Consumer { place, seeks, .. }: Consumer) -> Self {
        Self { place, seeks: Some(seeks) }
    }
}

impl Cursor {
    fn show(self, ids: &IdCodec) -> String {
        let place = ids.id_of(Place(self.place));
        match self.seeks {
            None => place,
            Some(seeks) => format!("{place}_{seeks}"),
        }
    }

    fn read(text: &str, ids: &IdCodec) -> Option<Self> {
        let (id, seeks) = match text.strip_prefix(Kind::Place.prefix())?.split_once('_') {
            None => (text, None),
            Some((digits, seeks)) => {
                let seeks: i64 = seeks.parse().ok().filter(|seeks| (0..=SEEKS_MAX).contains(seeks))?;
                (&text[..Kind::Place.prefix().len() + digits.len()], Some(seeks))
            }
        };
        ids.key_of(id).map(|Place(place)| Self { place, seeks })
    }

    fn take(query: &mut Query, ids: &IdCodec) -> Result<Option<Self>, Error> {
        let Some(text) = query.text("iterator")? else { return Ok(None) };
        let read = Self::read(&text, ids);
        read.map(Some).ok_or_else(|| Error::invalid_query("iterator", NO_ITERATOR))
    }
}

fn shown(api: &Api, read: WasRead, seeks: Option<i64>) -> Response {
    let WasRead { messages, to, more } = read;
    let show = |message| MessageOut::of(&api.ids, message, Detail::WithContent);
    let iterator = Cursor { place: to, seeks }.show(&api.ids);
    json(StatusCode::OK, &PollingEndpointOut { data: messages.into_iter().map(show).collect(), iterator, done: !more })
}

/// Whoever began there would pass over what comes until then.
fn has_come(moment: Timestamp, now: Timestamp) -> bool {
    moment <= now.plus(AHEAD_MAX)
}

/// Behind the last message before a moment.
fn before(moment: Timestamp) -> MessageKey {
    MessageKey::new((first_key_at(moment) - 1).max(0))
}

/// Read the messages of an application, by a place that the caller keeps.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/poller/{sink_id}", operation_id = "v1.message.poller.poll",
    tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query, description = "Of the answer before. Without it, from when the poller was made"),
        ("event_type" = Option<String>, Query, description = "Only of this type, if the poller lets it through"),
        ("channel" = Option<String>, Query, description = "Only on this channel"),
        ("after" = Option<String>, Query, description = "Without an iterator: from this time on"),
    ),
    responses(
        (status = 200, body = PollingEndpointOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn poll(State(api): State<Arc<Api>>, at: InPoller, mut query: Query) -> Result<Response, Error> {
    let limit = limit_of(&mut query)?;
    let iterator = Cursor::take(&mut query, &api.ids)?;
    let event_type = query.text("event_type")?.map(|text| valid::<TypeName>("event_type", &text)).transpose()?;
    let channel = query.text("channel")?.map(|text| valid::<Channel>("channel", &text)).transpose()?;
    let after = query.time("after")?;
    query.finish()?;
    let past = match (iterator, after) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid_query("after", "the iterator says where to go on from already"));
        }
        (Some(iterator), None) => iterator.place,
        (None, Some(after)) if has_come(after, (api.clock)()) => before(after),
        (None, Some(_)) => return Err(Error::invalid_query("after", STILL_TO_COME)),
        (None, None) => at.poller.start(),
    };
    let sieve = at.poller.sieve(event_type.map(|name| name.0), channel.map(|name| name.0));
    Ok(shown(&api, at.read(&api, past, limit, sieve).await?, None))
}

/// List the consumers of a poller, and where they are.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/poller/{sink_id}/consumer",
    operation_id = "v1.message.poller.list-consumers", tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
    ),
    responses((status = 200, body = PollerConsumersOut), (status = 404, body = HttpErrorOut)))]
async fn list_consumers(State(api): State<Arc<Api>>, at: InPoller, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let found = at.app.store.consumers(at.poller.key()).await?;
    let data = found.into_iter().map(|consumer| PollerConsumerOut {
        consumer_id: consumer.name.clone(),
        place_at: Time(time_of_key(consumer.place.raw())),
        moved_at: Time(consumer.moved_at),
        iterator: Cursor::from(consumer).show(&api.ids),
    });
    Ok(json(StatusCode::OK, &PollerConsumersOut { data: data.collect() }))
}

/// Read the messages of an application, by a place that is kept here.
///
/// With the iterator of the answer before, what was in it is dealt with, and the next messages come; without one, those that
/// are not dealt with come again.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}",
    operation_id = "v1.message.poller.consumer-poll", tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
        ("consumer_id" = String, Path, description = "A name of the caller's choice"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query, description = "Of the answer before"),
    ),
    responses(
        (status = 200, body = PollingEndpointOut),
        (status = 400, body = HttpErrorOut, description = "The poller has 100 consumers already"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn consumer_poll(State(api): State<Arc<Api>>, consumer: InConsumer, mut query: Query) -> Result<Response, Error> {
    let limit = limit_of(&mut query)?;
    let iterator = Cursor::take(&mut query, &api.ids)?;
    query.finish()?;
    let InConsumer { at, name } = &consumer;
    let from = match iterator {
        Some(dealt_with) => consumer.commit(&api, dealt_with).await?,
        None => match at.app.store.consumer(at.poller.key(), name).await? {
            Some(known) => known.into(),
            None => Cursor { place: at.poller.start(), seeks: Some(0) },
        },
    };
    let read = at.read(&api, from.place, limit, at.poller.sieve(None, None)).await?;
    Ok(shown(&api, read, from.seeks))
}

/// Forget a consumer's place. If it comes again, it begins as a new one.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}",
    operation_id = "v1.message.poller.delete-consumer", tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
        ("consumer_id" = String, Path, description = "Its name"),
    ),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete_consumer(consumer: InConsumer, query: Query) -> Result<StatusCode, Error> {
    query.finish()?;
    let InConsumer { at, name } = &consumer;
    let was_there = at.app.store.forget_consumers(at.poller.key(), Some(name)).await?;
    if was_there { Ok(StatusCode::NO_CONTENT) } else { Err(Error::NotFound) }
}

/// Set a consumer to a moment, before or after where it is.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}/seek",
    operation_id = "v1.message.poller.consumer-seek", tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
        ("consumer_id" = String, Path, description = "A name of the caller's choice"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = PollingEndpointConsumerSeekIn,
    responses(
        (status = 200, body = PollingEndpointConsumerSeekOut),
        (status = 400, body = HttpErrorOut, description = "The poller has 100 consumers already"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn seek(
    State(api): State<Arc<Api>>,
    consumer: InConsumer,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let PollingEndpointConsumerSeekIn { after: Time(after) } = parse(&body)?;
    let now = (api.clock)();
    if !has_come(after, now) {
        return Err(Error::invalid(["after"], STILL_TO_COME));
    }
    let store = &consumer.at.app.store;
    // A repetition that comes late must not set back who has gone on since: it is told where he is.
    let remember = key.remember(&consumer.at.app.principal, &body, &Answer { status: 200, body: Bytes::new() });
    let moved = match store.move_consumer(consumer.stride(before(after), Way::Anywhere, now), remember).await {
        Err(PutError::Repeated(_)) => {
            store.consumer(consumer.at.poller.key(), &consumer.name).await?.ok_or(Error::NotFound)?
        }
        moved => moved?,
    };
    Ok(json(StatusCode::OK, &PollingEndpointConsumerSeekOut { iterator: Cursor::from(moved).show(&api.ids) }))
}

/// Say that everything up to an answer's iterator is dealt with, without asking for more.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/poller/{sink_id}/consumer/{consumer_id}/commit",
    operation_id = "v1.message.poller.consumer-commit", tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
        ("consumer_id" = String, Path, description = "A name of the caller's choice"),
    ),
    request_body = PollerCommitIn,
    responses(
        (status = 200, body = PollingEndpointConsumerSeekOut, description = "Where the consumer is now"),
        (status = 400, body = HttpErrorOut, description = "The poller has 100 consumers already"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn commit(
    State(api): State<Arc<Api>>,
    consumer: InConsumer,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let PollerCommitIn { iterator } = parse(&body)?;
    let dealt_with = Cursor::read(&iterator, &api.ids).ok_or_else(|| Error::invalid(["iterator"], NO_ITERATOR))?;
    let iterator = consumer.commit(&api, dealt_with).await?.show(&api.ids);
    Ok(json(StatusCode::OK, &PollingEndpointConsumerSeekOut { iterator }))
}

const NO_ITERATOR: &str = "is none that an answer of a poller had";
const STILL_TO_COME: &str = "is still to come: what comes until then would be passed over";
/// More than anyone will have done.
const SEEKS_MAX: i64 = i64::MAX / 2;
/// How many messages are looked at for one answer, however few of them fit.
const LOOK_MAX: usize = 2_000;
/// How long the payloads of one answer may be together, if there is more than one.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// How much clocks may differ.
const AHEAD_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iterator_is_shown_and_read_and_nothing_else_is_one() {
        let ids = IdCodec::new([1; 16]);
        for seeks in [None, Some(0), Some(17)] {
            let iterator = Cursor { place: MessageKey::new(77), seeks };
            assert_eq!(Cursor::read(&iterator.show(&ids), &ids), Some(iterator));
        }
        let good = Cursor { place: MessageKey::new(77), seeks: None }.show(&ids);
        for bad in ["", "iter_", "iter__1", "x", &format!("{good}_"), &format!("{good}_-1"), &format!("{good}_1_2")] {
            assert_eq!(Cursor::read(bad, &ids), None, "{bad}");
        }
        let message = ids.id_of(MessageKey::new(77));
        assert_eq!(Cursor::read(&message, &ids), None);
        assert_eq!(Cursor::read(&message.replace("msg_", "iter_"), &ids), None);
    }
}
