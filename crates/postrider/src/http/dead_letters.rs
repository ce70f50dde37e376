//! Dead letters: what was given up, why, and sending it again. An addition of ours to the contract.

use super::{
    Api,
    attempts::MessageAttemptOut,
    auth::{InApp, records::TriesOf},
    background_tasks::{self, TaskOut},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse},
    fields::{Several, TypeName},
    idempotency::{IdempotencyKey, answer, conclude, json},
    messages::{self, MessageOut},
    page::{Asked, ListKey, ListOut},
    payload::Detail,
    status::MessageStatus,
    time::Time,
    verdict::{death_name, death_words},
};
use crate::{ids::IdCodec, tokens::Capability};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::AttemptKey;
use postrider_store::{
    AttemptFilter, By, Cut, DeadFilter, DeadKey, DeadLetter, DeadReason, Endpoint, Order, Page, PutError, TaskKind,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(count))
        .routes(routes!(replay_all))
        .routes(routes!(get))
        .routes(routes!(replay))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterOut {
    msg_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<String>,
    event_type: String,
    endpoint_id: String,
    /// Null if the endpoint was deleted.
    endpoint_url: Option<String>,
    /// `permanent`, `exhausted`, `expired`, `cancelled`, `breaker` or `endpoint-gone`.
    #[schema(example = "exhausted")]
    reason: &'static str,
    /// The same in words.
    reason_text: &'static str,
    /// When it was given up.
    died_at: Time,
    /// When its message was accepted.
    timestamp: Time,
    /// In all cycles.
    attempts: u32,
    /// Counts how often it was begun anew.
    cycle: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt: Option<MessageAttemptOut>,
}

/// One dead letter with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterDetailOut {
    #[serde(flatten)]
    letter: DeadLetterOut,
    /// How the delivery stands now: it may have been replayed since.
    #[schema(value_type = u8, maximum = 4)]
    status: MessageStatus,
    status_text: &'static str,
    msg: MessageOut<'static>,
    /// Every attempt, newest first, at most a thousand.
    all_attempts: Vec<MessageAttemptOut>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct CountOut {
    count: u64,
    /// There are more; they were not counted to the end.
    capped: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ReplayedOut {
    /// False: it was on its way already, or has arrived since.
    replayed: bool,
}

/// Which dead letters to replay; all of them, if nothing is said.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayDeadIn {
    /// An endpoint's id or uid.
    endpoint_id: Option<String>,
    /// Only those of these messages: ids or eventIds, at most 1000.
    #[schema(value_type = Option<Vec<String>>)]
    msg_ids: Option<Several<TypeName, MESSAGES_MAX>>,
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Option<Several<TypeName, EVENT_TYPES_MAX>>,
    reason: Option<ReasonIn>,
    /// The last answer's status; 0 for none.
    status_code: Option<u16>,
    /// Given up at or after this moment.
    since: Option<Time>,
    /// Given up before this moment.
    until: Option<Time>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonIn {
    Permanent,
    Exhausted,
    Expired,
    Cancelled,
    Breaker,
    EndpointGone,
}

impl ReasonIn {
    fn kept(self) -> DeadReason {
        match self {
            Self::Permanent => DeadReason::Permanent,
            Self::Exhausted => DeadReason::Exhausted,
            Self::Expired => DeadReason::Expired,
            Self::Cancelled => DeadReason::Cancelled,
            Self::Breaker => DeadReason::Breaker,
            Self::EndpointGone => DeadReason::EndpointGone,
        }
    }
}

impl DeadLetterOut {
    fn of(ids: &IdCodec, letter: DeadLetter, endpoint: Option<&Endpoint>) -> Self {
        Self {
            msg_id: ids.id_of(letter.message.key),
            event_id: letter.message.content.event_id,
            event_type: letter.message.content.event_type,
            endpoint_id: ids.id_of(letter.endpoint),
            endpoint_url: endpoint.map(|endpoint| endpoint.url.clone()),
            reason: death_name(letter.reason),
            reason_text: death_words(letter.reason),
            died_at: Time(letter.at),
            timestamp: Time(letter.message.accepted_at),
            attempts: letter.attempts,
            cycle: letter.cycle,
            replayed_at: letter.replayed_at.map(Time),
            last_attempt: letter
                .last_attempt
                .map(|attempt| MessageAttemptOut::of(ids, attempt, Detail::WithContent, None)),
        }
    }
}

/// `msg_...:ep_...`
impl ListKey for DeadKey {
    fn show(&self, ids: &IdCodec) -> String {
        format!("{}:{}", ids.id_of(self.message), ids.id_of(self.endpoint))
    }
    fn read(text: &str, ids: &IdCodec) -> Option<Self> {
        let (message, endpoint) = text.split_once(':')?;
        Some(Self { message: ids.key_of(message)?, endpoint: ids.key_of(endpoint)? })
    }
}

/// The same filters, in a query.
async fn take_filter(api: &Api, app: &InApp, query: &mut Query) -> Result<DeadFilter, Error> {
    let asked = ReplayDeadIn {
        endpoint_id: query.text("endpoint_id")?,
        msg_ids: None,
        event_types: Some(query.list("event_types"))
            .filter(|names| !names.is_empty())
            .map(|names| {
                serde_json::from_value(serde_json::json!(names))
                    .map_err(|fault| Error::invalid_query("event_types", fault.to_string()))
            })
            .transpose()?,
        reason: query
            .text("reason")?
            .map(|text| {
                serde_json::from_value(serde_json::json!(text))
                    .map_err(|fault| Error::invalid_query("reason", fault.to_string()))
            })
            .transpose()?,
        status_code: query.parsed("status_code", "a status, or 0 for no answer")?,
        since: query.time("since")?.map(Time),
        until: query.time("until")?.map(Time),
    };
    if let (Some(since), Some(until)) = (&asked.since, &asked.until)
        && since.0 >= until.0
    {
        return Err(Error::invalid_query("since", "must be before `until`"));
    }
    filter(api, app, asked).await
}

async fn filter(api: &Api, app: &InApp, asked: ReplayDeadIn) -> Result<DeadFilter, Error> {
    let endpoint = match &asked.endpoint_id {
        None => None,
        Some(text) => {
            let found = match api.ids.by(text) {
                // A deleted endpoint has dead letters too, under its id.
                Some(By::Key(key)) => Some(key),
                Some(by @ By::Uid(_)) => app.store.endpoint(by).await?.map(|endpoint| endpoint.key),
                None => None,
            };
            Some(found.ok_or(Error::NotFound)?.raw())
        }
    };
    if asked.status_code.is_some_and(|status| status != 0 && !(100..=999).contains(&status)) {
        return Err(Error::invalid(["statusCode"], "must be a status, or 0 for no answer"));
    }
    if let (Some(since), Some(until)) = (&asked.since, &asked.until)
        && since.0 >= until.0
    {
        return Err(Error::invalid(["since"], "must be before `until`"));
    }
    let mut messages = Vec::new();
    for TypeName(id) in asked.msg_ids.into_iter().flat_map(|list| list.0) {
        let found = match api.ids.by(&id) {
            Some(by) => app.store.message(by).await?,
            None => None,
        };
        let found = found.ok_or_else(|| Error::invalid(["msgIds"], format!("there is no message `{id}`")))?;
        messages.push(found.key.raw());
    }
    Ok(DeadFilter {
        endpoint,
        messages,
        but_cancelled: false,
        event_types: asked.event_types.into_iter().flat_map(|list| list.0).map(|name| name.0).collect(),
        reason: asked.reason.map(ReasonIn::kept),
        status: asked.status_code,
        since: asked.since.map(|time| time.0.as_millis()),
        until: asked.until.map(|time| time.0.as_millis()),
    })
}

/// List the dead letters of an application, newest message first.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/dead-letter", operation_id = "v1.dead-letter.list",
    tag = "Dead Letter",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("endpoint_id" = Option<String>, Query, description = "An endpoint's id or uid"),
        ("event_types" = Option<Vec<String>>, Query),
        ("reason" = Option<String>, Query,
            description = "permanent, exhausted, expired, cancelled, breaker or endpoint-gone"),
        ("status_code" = Option<u16>, Query, description = "The last answer's status; 0 for none"),
        ("since" = Option<Time>, Query, description = "Given up at or after this moment"),
        ("until" = Option<Time>, Query, description = "Given up before this moment"),
    ),
    responses((status = 200, body = ListOut<DeadLetterOut>)))]
async fn list(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    of(&api, &app, query).await
}

/// Those of the application that match.
pub async fn of(api: &Api, app: &InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::<DeadKey>::take(&mut query, &api.ids, Order::Descending)?;
    let filter = take_filter(api, app, &mut query).await?;
    query.finish()?;
    let letters = app.store.dead_letters(filter, asked.page()).await?;
    let mut endpoints = HashMap::new();
    for letter in &letters {
        if let Entry::Vacant(unknown) = endpoints.entry(letter.endpoint) {
            unknown.insert(app.store.endpoint(By::Key(letter.endpoint)).await?);
        }
    }
    let list = asked.answer(letters, &api.ids, key_of, |letter| {
        let endpoint = endpoints.get(&letter.endpoint).and_then(Option::as_ref);
        DeadLetterOut::of(&api.ids, letter, endpoint)
    });
    Ok(json(StatusCode::OK, &list))
}

fn key_of(letter: &DeadLetter) -> DeadKey {
    DeadKey { message: letter.message.key, endpoint: letter.endpoint }
}

/// Count the dead letters that match.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/dead-letter/count", operation_id = "v1.dead-letter.count",
    tag = "Dead Letter",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = Option<String>, Query, description = "An endpoint's id or uid"),
        ("event_types" = Option<Vec<String>>, Query),
        ("reason" = Option<String>, Query),
        ("status_code" = Option<u16>, Query),
        ("since" = Option<Time>, Query),
        ("until" = Option<Time>, Query),
        ("max" = Option<u64>, Query, minimum = 1, maximum = 1_000_000,
            description = "Count no further than this: a million, if absent"),
    ),
    responses((status = 200, body = CountOut), (status = 422, body = HttpValidationError)))]
async fn count(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let filter = take_filter(&api, &app, &mut query).await?;
    let max = query.parsed::<u64>("max", "a whole number")?.unwrap_or(COUNT_MAX);
    query.finish()?;
    if !(1..=COUNT_MAX).contains(&max) {
        return Err(Error::invalid_query("max", format!("must be between 1 and {COUNT_MAX}")));
    }
    let count = app.store.count_dead_letters(filter, max + 1).await?;
    Ok(json(StatusCode::OK, &CountOut { count: count.min(max), capped: count > max }))
}

/// Replay all dead letters that match.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/dead-letter/replay", operation_id = "v1.dead-letter.replay-all",
    tag = "Dead Letter",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = ReplayDeadIn,
    responses(
        (status = 202, body = TaskOut, description = "The work has been taken on"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn replay_all(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::CreateAttempts)?;
    query.finish()?;
    let mut filter = filter(&api, &app, parse(&body)?).await?;
    // What a person called back is sent again only if that is asked for, by its reason or by its message.
    filter.but_cancelled = filter.messages.is_empty();
    // What dies again while it runs is not for this replay.
    filter.until.get_or_insert((api.clock)().as_millis().saturating_add(1));
    let kind = TaskKind::ReplayDead { filter };
    background_tasks::start(&api, &app, kind, (&key, &body)).await
}

/// Get a dead letter with its message, every attempt and the reason.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/dead-letter/{msg_id}/endpoint/{endpoint_id}",
    operation_id = "v1.dead-letter.get", tag = "Dead Letter",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = DeadLetterDetailOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let key = dead_key(&api, &app).await?;
    let letter = app.store.dead_letter(key).await?.ok_or(Error::NotFound)?;
    let endpoint = app.store.endpoint(By::Key(key.endpoint)).await?;
    let mut attempts = Vec::new();
    while attempts.len() < ATTEMPTS_MAX {
        let from = attempts.last().map(|last: &postrider_store::Attempt| Cut::Past(last.key));
        let page: Page<AttemptKey> = Page { from, order: Order::Descending, limit: 250 };
        let filter = AttemptFilter { endpoint: Some(key.endpoint), ..AttemptFilter::default() };
        let found = app.store.attempts(TriesOf::Message(&letter.message), filter, page).await?;
        if found.is_empty() {
            break;
        }
        attempts.extend(found);
    }
    let shown = |attempt| MessageAttemptOut::of(&api.ids, attempt, Detail::WithContent, None);
    let states = app.store.deliveries(&letter.message).await?;
    let state = states.into_iter().find(|(endpoint, _)| *endpoint == key.endpoint).map(|(_, state)| state);
    let status = state.map_or(MessageStatus::Fail, MessageStatus::of_delivery);
    let out = DeadLetterDetailOut {
        status,
        status_text: status.text(),
        msg: MessageOut::of(&api.ids, letter.message.clone(), Detail::WithContent),
        all_attempts: attempts.into_iter().map(shown).collect(),
        letter: DeadLetterOut::of(&api.ids, letter, endpoint.as_ref()),
    };
    Ok(json(StatusCode::OK, &out))
}

/// Replay one dead letter. Replaying it twice sends it once.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/dead-letter/{msg_id}/endpoint/{endpoint_id}/replay",
    operation_id = "v1.dead-letter.replay", tag = "Dead Letter",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = ReplayedOut, description = "It is on its way again"),
        (status = 400, body = HttpErrorOut, description = "The payload is gone"),
        (status = 404, body = HttpErrorOut, description = "There is no such dead letter"),
        (status = 409, body = HttpErrorOut, description = "Its endpoint was deleted"),
    ))]
async fn replay(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    _: NoBody,
) -> Result<Response, Error> {
    app.require(Capability::CreateAttempts)?;
    query.finish()?;
    replay_one(&api, &app, &key).await
}

/// The one that the path names.
pub async fn replay_one(api: &Api, app: &InApp, key: &IdempotencyKey) -> Result<Response, Error> {
    let dead = dead_key(api, app).await?;
    let letter = app.store.dead_letter(dead).await?.ok_or(Error::NotFound)?;
    if letter.message.payload_gone {
        return Ok(messages::payload_gone());
    }
    let prepared = answer(StatusCode::ACCEPTED, &ReplayedOut { replayed: true });
    let remember = key.remember(&app.principal, &[], &prepared);
    match app.store.replay(dead, (api.clock)(), remember).await {
        Ok(true) => conclude(Ok(()), prepared),
        // It is on its way already, or has arrived: twice is as good as once.
        Ok(false) if app.store.endpoint(By::Key(dead.endpoint)).await?.is_some() => {
            Ok(json(StatusCode::ACCEPTED, &ReplayedOut { replayed: false }))
        }
        Ok(false) => {
            let detail = "Its endpoint was deleted; there is nowhere to send it".into();
            Ok(json(StatusCode::CONFLICT, &HttpErrorOut { code: "conflict", detail }))
        }
        Err(PutError::Repeated(before)) => conclude(Err(PutError::Repeated(before)), prepared),
        Err(fault) => Err(fault.into()),
    }
}

async fn dead_key(api: &Api, app: &InApp) -> Result<DeadKey, Error> {
    let message = messages::find(api, app).await?.key;
    let endpoint = match app.endpoint_by(api)? {
        By::Key(key) => key,
        by @ By::Uid(_) => app.store.endpoint(by).await?.ok_or(Error::NotFound)?.key,
    };
    Ok(DeadKey { message, endpoint })
}

const EVENT_TYPES_MAX: usize = 250;
const MESSAGES_MAX: usize = 1_000;
const ATTEMPTS_MAX: usize = 1_000;

/// Counting stops here: more is "a lot" to anyone.
const COUNT_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::{EndpointKey, MessageKey};

    #[test]
    fn a_place_in_the_list_is_read_back_as_it_was_shown() {
        let ids = IdCodec::new([3; 16]);
        let place = DeadKey { message: MessageKey::new(7 << 20), endpoint: EndpointKey::new(9 << 20) };
        let shown = place.show(&ids);
        assert!(shown.starts_with("msg_") && shown.contains(":ep_"), "{shown}");
        assert_eq!(DeadKey::read(&shown, &ids), Some(place));
        let (message, endpoint) = shown.split_once(':').unwrap();
        for wrong in ["", ":", message, &format!("{endpoint}:{message}"), &format!("{message}:"), &format!("{shown}:")]
        {
            assert_eq!(DeadKey::read(wrong, &ids), None, "{wrong}");
        }
    }
}
