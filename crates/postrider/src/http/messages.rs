//! Messages: handed in, looked up, and emptied on request.
//!
//! Handing in is the hot path: one parse, one call of ingest, one short answer. Nothing else is asked of the
//! store there.

use super::{
    Api, applications,
    auth::{Caller, Environment, InApp, bearer, records::Tenant},
    error::{Error, HttpErrorOut},
    extract::{JsonBytes, Query, discard, parse, path_params},
    filter::{made_at, message_filter},
    idempotency::{IdempotencyKey, json, json_of_length},
    message_in::{Draft, MessageIn},
    page::{Asked, ListOut},
    payload::{Detail, Shown},
    time::Time,
};
use crate::{
    credentials::scopes::Scope,
    directory::AppEntry,
    dispatch::LOOP_HEADER,
    ids::IdCodec,
    ingest::{NewEvent, content::DELIVER_AHEAD_MAX, gate::Pass},
    telemetry::traces::context_of,
    tokens::Principal,
};
use axum::{
    extract::{FromRequest, FromRequestParts, Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Body;
use postrider_engine::{AppKey, MessageKey, Timestamp};
use postrider_store::{AcceptError, Accepted, By, Content, Message, Order, Received, StoreError, TraceContext, step};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(expunge)).routes(routes!(cancel))
}

/// Apart from the others, because it is called a thousand times as often as all of them and goes by less on its way.
pub fn ingest() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(create))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageOut<'a> {
    #[schema(example = "msg_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    event_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    channels: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_at: Option<Time>,
    /// As it was handed in; `{}` if no content was asked for; `{"expired": true}` if it is gone.
    #[schema(value_type = Object)]
    payload: Shown<'a>,
    /// The headers that it came with, if another service sent it to a source; without credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    received_headers: Option<BTreeMap<String, String>>,
    timestamp: Time,
}

impl<'a> MessageOut<'a> {
    pub fn of(ids: &IdCodec, message: Message, detail: Detail) -> Self {
        let shown = Shown::of(&message, detail);
        Self::new(ids, message.key, message.accepted_at, message.content, shown)
    }

    pub(super) fn new(ids: &IdCodec, key: MessageKey, at: Timestamp, content: Content, payload: Shown<'a>) -> Self {
        let Content { event_type, event_id, channels, tags, ordering_key, deliver_at, received, .. } = content;
        // They go with the payload.
        let is_shown = !matches!(payload, Shown::Withheld | Shown::Gone);
        Self {
            id: ids.id_of(key),
            event_type,
            event_id,
            channels,
            tags,
            ordering_key,
            deliver_at: deliver_at.map(Time),
            payload,
            received_headers: received.filter(|_| is_shown).map(received_headers),
            timestamp: Time(at),
        }
    }
}

/// Those of one name together, as HTTP has it.
fn received_headers(received: Received) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in received.passed_on.into_iter().chain(received.kept) {
        match headers.entry(name) {
            Entry::Vacant(vacant) => drop(vacant.insert(value)),
            Entry::Occupied(mut known) => *known.get_mut() = format!("{}, {value}", known.get()),
        }
    }
    headers
}

/// Create a message.
///
/// It is stored, with everything it owes, before the answer goes out.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg", operation_id = "v1.message.create", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("with_content" = Option<bool>, Query, description = "Whether the answer shows the payload; true if not given"),
        ("idempotency-key" = Option<String>, Header, description = "A repetition with the same key creates nothing"),
        ("traceparent" = Option<String>, Header, description = "Where in a trace the producer is (W3C); receivers go on from there"),
    ),
    request_body = MessageIn,
    responses((status = 202, body = MessageOut, description = "Stored, and on its way")))]
async fn create(State(api): State<Arc<Api>>, handed_in: HandedIn) -> Result<Response, Error> {
    let HandedIn { pass, target, key, trace, mut query, body } = handed_in;
    let detail = Detail::take(&mut query)?;
    query.finish()?;
    let draft = Draft::parse(&body)?;
    let now = (api.clock)();
    let (app, store) = match target {
        Target::Known { app, .. } if app.source.is_some() => {
            return Err(of_a_source());
        }
        Target::Known { app, store } => (app, store),
        Target::Unknown { name, caller, environment } => {
            let application = draft.application.ok_or(Error::NotFound)?;
            caller.require(Scope::Manage)?;
            let app = applications::find_or_create(&api, &environment, &name, application).await?;
            let store = environment.tenant(&api, &app);
            (app, store)
        }
    };
    let shown = match (detail, draft.json) {
        (Detail::WithoutContent, _) => Shown::Withheld,
        (Detail::WithContent, Some(json)) => Shown::Json(json),
        (Detail::WithContent, None) => Shown::Text(draft.content.payload.clone()),
    };
    check_delivery_time(draft.content.deliver_at, now)?;
    let event = NewEvent {
        content: draft.content,
        payload_expires_at: draft.keep_payload.map(|keep| now.plus(keep)),
        idempotency: key.of(&Principal::Environment, &body),
        only: None,
        trace,
    };
    let message = accept(&api, (&app, &store), event, detail, shown, Some(pass)).await?;
    // It shows what was handed in, and little else.
    Ok(json_of_length(StatusCode::ACCEPTED, &message, body.len() + 256))
}

/// Else anybody who may hand in messages could pass for the service, or take an id that is still to come.
pub(super) fn of_a_source() -> Error {
    Error::Conflict("This application is a source's, which takes messages by its URL alone".into())
}

/// The answer to whoever wants something sent that is no longer there.
pub fn payload_gone() -> Response {
    let detail = "The payload of this message has expired or was removed".into();
    json(StatusCode::BAD_REQUEST, &HttpErrorOut { code: "missing_payload", detail })
}

pub(super) fn check_delivery_time(deliver_at: Option<Timestamp>, now: Timestamp) -> Result<(), Error> {
    match deliver_at {
        // A little late is now: the repetition of a request whose answer got lost must get the first one's answer.
        Some(at) if at < now.minus(DELIVER_AHEAD_MAX) => Err(Error::invalid(["deliverAt"], "is long past")),
        Some(at) if at > now.plus(DELIVER_AHEAD_MAX) => {
            Err(Error::invalid(["deliverAt"], "must be at most 24 hours ahead"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Hands a message to ingest, and tells what was accepted: now, or by the same request before. `pass` is that of a message
/// that came in through the gate.
pub async fn accept<'a>(
    api: &Api,
    (app, store): (&AppEntry, &Tenant),
    event: NewEvent,
    detail: Detail,
    shown: Shown<'a>,
    pass: Option<Pass>,
) -> Result<MessageOut<'a>, Error> {
    let content = event.content.clone();
    step!("request.read");
    let accepted = api.ingest.accept(app, event).await;
    step!("answer.ready");
    match accepted {
        Ok(Accepted::Now(key)) => Ok(MessageOut::new(&api.ids, key, made_at(key), content, shown)),
        Ok(Accepted::Before(key)) => {
            let message = store.message(By::Key(key)).await?.ok_or(Error::NotFound)?;
            Ok(MessageOut::of(&api.ids, message, detail))
        }
        Err(AcceptError::Store(StoreError::Busy)) => {
            drop(pass);
            Err(Error::Unavailable { retry_after: api.ingest.gate().turn_away().await.retry_after })
        }
        Err(refusal) => Err(refusal.into()),
    }
}

/// A message for which there was room. That is asked first of all, so that it costs little to say that there is none.
struct HandedIn {
    pass: Pass,
    target: Target,
    key: IdempotencyKey,
    trace: Option<TraceContext>,
    query: Query,
    body: Bytes,
}

impl FromRequest<Arc<Api>> for HandedIn {
    type Rejection = Response;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Response> {
        let told = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = told.unwrap_or(api.settings.body_max).min(api.settings.body_max);
        match api.ingest.gate().enter(bytes).await {
            Ok(pass) => Self::read(request, pass, api).await,
            Err(full) => Err(turn_away(request, Error::Unavailable { retry_after: full.retry_after }).await),
        }
    }
}

impl HandedIn {
    async fn read(request: Request, pass: Pass, api: &Arc<Api>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let target = Target::from_request_parts(&mut parts, api).await.map_err(Error::into_response)?;
        let token = bearer(&parts.headers).unwrap_or_default();
        if let Err(retry_after) = api.ingest.rates().take(target.key(), token, (api.clock)()) {
            drop(pass);
            return Err(turn_away(Request::from_parts(parts, body), Error::TooManyRequests { retry_after }).await);
        }
        Self::read_rest(Request::from_parts(parts, body), pass, target, api).await.map_err(Error::into_response)
    }

    async fn read_rest(request: Request, pass: Pass, target: Target, api: &Arc<Api>) -> Result<Self, Error> {
        let (mut parts, body) = request.into_parts();
        refuse_own(&parts.headers, api)?;
        let key = IdempotencyKey::from_request_parts(&mut parts, api).await?;
        let trace = context_of(&parts.headers);
        let Ok(query) = Query::from_request_parts(&mut parts, api).await;
        let JsonBytes(body) = JsonBytes::from_request(Request::from_parts(parts, body), api).await?;
        Ok(Self { pass, target, key, trace, query, body })
    }
}

/// What we delivered and what comes back as a message would be delivered again, and come back again. A 4xx, so that whoever
/// sent it, and it may be us, does not try it once more.
pub(super) fn refuse_own(headers: &HeaderMap, api: &Api) -> Result<(), Error> {
    let mut seen = headers.get_all(LOOP_HEADER).iter().peekable();
    if seen.peek().is_none() {
        return Ok(());
    }
    let ours = api.ids.deployment();
    if seen.any(|value| value.as_bytes() == ours.as_bytes()) {
        return Err(Error::invalid_header(
            LOOP_HEADER.as_str(),
            "this is a delivery of this deployment that came back to it; accepting it would go in a circle",
        ));
    }
    Ok(())
}

/// A connection can be used again only when what was sent on it has been taken off. For a small body that is cheaper than
/// another connection.
pub(super) async fn turn_away(request: Request, why: Error) -> Response {
    let is_small = request.body().size_hint().exact().is_some_and(|bytes| bytes <= DISCARDED_MAX);
    // Whoever asks first would send it only because we read.
    let asks_first = request.headers().contains_key(header::EXPECT);
    let is_taken_off = is_small && !asks_first && discard(request.into_body()).await;
    let mut response = why.into_response();
    if !is_taken_off {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

const DISCARDED_MAX: u64 = 64 * 1024;

/// The application that a message is for. It may come into being along with the message.
pub(super) enum Target {
    Known { app: Arc<AppEntry>, store: Tenant },
    Unknown { name: String, caller: Caller, environment: Environment },
}

impl Target {
    pub(super) fn key(&self) -> Option<AppKey> {
        match self {
            Self::Known { app, .. } => Some(app.application.key),
            Self::Unknown { .. } => None,
        }
    }
}

impl FromRequestParts<Arc<Api>> for Target {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        match InApp::from_request_parts(parts, api).await {
            Ok(InApp { entry: app, store, .. }) => Ok(Self::Known { app, store }),
            Err(Error::NotFound) => {
                let caller = Caller::from_request_parts(parts, api).await?;
                let environment = caller.environment(api).map_err(|_| Error::NotFound)?;
                let params = path_params(parts).await?;
                let name = params.iter().find(|(key, _)| *key == "app_id").map(|(_, name)| name.to_owned());
                Ok(Self::Unknown { name: name.ok_or(Error::NotFound)?, caller, environment })
            }
            Err(other) => Err(other),
        }
    }
}

/// List the messages of an application, newest first.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg", operation_id = "v1.message.list", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
    ),
    responses((status = 200, body = ListOut<MessageOut>)))]
async fn list(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take(&mut query, &api.ids, Order::Descending)?;
    let page = asked.page();
    let filter = message_filter(&mut query, page.from.clone(), (api.clock)())?;
    let detail = Detail::take(&mut query)?;
    query.finish()?;
    let messages = app.store.messages(filter, page).await?;
    let list = asked.answer(messages, &api.ids, |row| row.key, |row| MessageOut::of(&api.ids, row, detail));
    Ok(json(StatusCode::OK, &list))
}

/// Get a message by its id or its eventId.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}", operation_id = "v1.message.get", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("with_content" = Option<bool>, Query),
    ),
    responses((status = 200, body = MessageOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let detail = Detail::take(&mut query)?;
    query.finish()?;
    let message = find(&api, &app).await?;
    Ok(json(StatusCode::OK, &MessageOut::of(&api.ids, message, detail)))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelIn {
    /// An endpoint's id or uid; all endpoints, if absent.
    endpoint_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct CancelOut {
    /// How many deliveries were called back.
    canceled: u64,
}

/// Call back what has not been delivered of a message yet, at one endpoint or at all.
///
/// What is called back becomes a dead letter and can be replayed. What is on the wire at this moment may still arrive.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg/{msg_id}/cancel", operation_id = "v1.message.cancel",
    tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
    ),
    request_body = CancelIn,
    responses((status = 200, body = CancelOut), (status = 404, body = HttpErrorOut)))]
async fn cancel(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require_environment()?;
    query.finish()?;
    let asked: CancelIn = if body.is_empty() { CancelIn::default() } else { parse(&body)? };
    let message = find(&api, &app).await?;
    let endpoint = match &asked.endpoint_id {
        None => None,
        Some(text) => {
            let by = api.ids.by(text).ok_or(Error::NotFound)?;
            Some(app.store.endpoint(by).await?.ok_or(Error::NotFound)?.key)
        }
    };
    let canceled = app.store.cancel_message(message.key, endpoint, (api.clock)()).await?;
    Ok(json(StatusCode::OK, &CancelOut { canceled }))
}

/// Remove the payload of a message for good.
///
/// Deliveries of it that have not happened yet can then not happen any more.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/msg/{msg_id}/content",
    operation_id = "v1.message.expunge-content", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
    ),
    responses((status = 204)))]
async fn expunge(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<StatusCode, Error> {
    query.finish()?;
    app.require_environment()?;
    let message = find(&api, &app).await?;
    match app.store.expunge_message(message.key).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Error::NotFound),
    }
}

/// The message that the path names.
pub async fn find(api: &Api, app: &InApp) -> Result<Message, Error> {
    let by = api.ids.by(app.param("msg_id")?).ok_or(Error::NotFound)?;
    app.store.message(by).await?.ok_or(Error::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::json as value;
    use std::time::Duration;

    fn ids() -> IdCodec {
        IdCodec::new([3; 16])
    }

    fn message(content_type: Option<&str>, payload: &'static str) -> Message {
        Message {
            key: MessageKey::new(2),
            app: AppKey::new(9),
            accepted_at: Timestamp::from_millis(1_767_225_600_000),
            content: Content {
                event_type: "invoice.paid".into(),
                event_id: None,
                channels: Vec::new(),
                tags: Vec::new(),
                content_type: content_type.map(str::to_owned),
                ordering_key: None,
                deliver_at: None,
                received: None,
                payload: Bytes::from(payload),
            },
            payload_gone: false,
            owed: Vec::new(),
        }
    }

    #[test]
    fn a_message_is_what_the_official_client_expects() {
        let gone = Message { payload_gone: true, ..message(None, "") };
        for (message, detail, payload) in [
            (message(None, r#"{"a":1}"#), Detail::WithContent, value!({"a": 1})),
            (message(None, r#"{"a":1}"#), Detail::WithoutContent, value!({})),
            (message(Some("text/plain"), "a=1"), Detail::WithContent, value!({"rawPayload": "a=1"})),
            (gone, Detail::WithContent, value!({"expired": true})),
        ] {
            let text = serde_json::to_string(&MessageOut::of(&ids(), message, detail)).expect("can be written");
            let read: svix::models::MessageOut = serde_json::from_str(&text).expect("the client can read it");
            assert_eq!(read.payload, payload);
            assert_eq!(read.event_type, "invoice.paid");
            assert_eq!(read.timestamp.timestamp_millis(), 1_767_225_600_000);
            assert_eq!((read.event_id, read.channels, read.tags), (None, None, None));
        }
    }

    #[test]
    fn a_delivery_can_be_put_off_by_a_day_at_most() {
        let now = Timestamp::from_millis(1_767_225_600_000);
        let (hour, day) = (Duration::from_hours(1), DELIVER_AHEAD_MAX);
        for (at, fine) in [
            (now.plus(hour), true),
            (now.plus(day), true),
            (now.plus(day + Duration::from_millis(1)), false),
            (now, true),
            (now.minus(hour), true),
            (now.minus(day + hour), false),
        ] {
            assert_eq!(check_delivery_time(Some(at), now).is_ok(), fine, "{at:?}");
        }
        assert_eq!(check_delivery_time(None, now), Ok(()));
    }

    #[test]
    fn an_answer_repeats_the_payload_byte_for_byte() {
        let payload = r#"{ "n" : 1e400, "a":1,"a":2 , "m":123456789012345678901234567890}"#;
        let body = Bytes::from(format!(r#"{{"eventType":"a","payload":{payload}}}"#));
        let draft = Draft::parse(&body).expect("a message");
        let shown = Shown::Json(draft.json.expect("it is JSON"));
        let fresh = MessageOut::new(&ids(), MessageKey::new(2), Timestamp::from_millis(0), draft.content, shown);
        let stored = MessageOut::of(&ids(), message(None, payload), Detail::WithContent);
        for shown in [fresh, stored] {
            let text = serde_json::to_string(&shown).expect("can be written");
            assert!(text.contains(&format!(r#""payload":{payload},"#)), "{text}");
        }
    }
}
