//! Attempts: what was tried, with what result and why; and trying once more.

use super::{
    Api,
    auth::{InApp, records::TriesOf},
    error::Error,
    extract::Query,
    filter::message_filter,
    idempotency::{IdempotencyKey, answer, conclude, json},
    messages::{self, MessageOut},
    page::{Asked, ListOut},
    payload::Detail,
    status::{MessageStatus, StatusClass, next_attempt},
    time::Time,
    verdict::VerdictOut,
};
use crate::{ids::IdCodec, kept_headers::KeptHeaders, tokens::Capability};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::{AttemptKey, EndpointKey, MessageKey, Timestamp, Trigger};
use postrider_store::{Attempt, AttemptFilter, By, Cut, DeliveryState, Endpoint, Message, Order, Page};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list_by_endpoint))
        .routes(routes!(list_by_message))
        .routes(routes!(list_attempted_messages))
        .routes(routes!(list_attempted_destinations))
        .routes(routes!(get))
        .routes(routes!(headers))
        .routes(routes!(expunge))
        .routes(routes!(resend))
}

/// List the attempts to one endpoint, newest first.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}",
    operation_id = "v1.message-attempt.list-by-endpoint", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("status" = Option<u8>, Query, maximum = 4),
        ("status_code_class" = Option<u16>, Query, description = "0 (no answer), 100, 200, 300, 400 or 500"),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
        ("with_msg" = Option<bool>, Query, description = "Whether to show the message too, without its payload"),
        ("expanded_statuses" = Option<bool>, Query),
    ),
    responses((status = 200, body = ListOut<MessageAttemptOut>)))]
async fn list_by_endpoint(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    to_endpoint(&api, &app, query).await
}

/// Those to the endpoint that the path names.
pub async fn to_endpoint(api: &Api, app: &InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take(&mut query, &api.ids, Order::Descending)?;
    let filter = attempt_filter(&mut query, asked.page().from, (api.clock)())?;
    let detail = Detail::take(&mut query)?;
    let with_msg = query.flag("with_msg")?.unwrap_or(false);
    query.finish()?;
    let endpoint = app.endpoint(api).await?;
    let attempts = attempts(app, TriesOf::Endpoint(&endpoint), filter, asked.page()).await?;
    let messages = if with_msg { messages_of(app, &attempts).await? } else { HashMap::new() };
    let list = asked.answer(
        attempts,
        &api.ids,
        |row| row.key,
        |row| {
            let message = messages.get(&row.id.message).cloned();
            MessageAttemptOut::of(&api.ids, row, detail, message)
        },
    );
    Ok(json(StatusCode::OK, &list))
}

/// List the attempts for one message, newest first.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/attempt/msg/{msg_id}",
    operation_id = "v1.message-attempt.list-by-msg", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("status" = Option<u8>, Query, maximum = 4),
        ("status_code_class" = Option<u16>, Query, description = "0 (no answer), 100, 200, 300, 400 or 500"),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("endpoint_id" = Option<String>, Query, description = "An endpoint's id or uid"),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
        ("expanded_statuses" = Option<bool>, Query),
    ),
    responses((status = 200, body = ListOut<MessageAttemptOut>)))]
async fn list_by_message(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take(&mut query, &api.ids, Order::Descending)?;
    let mut filter = attempt_filter(&mut query, asked.page().from, (api.clock)())?;
    let detail = Detail::take(&mut query)?;
    let endpoint = query.text("endpoint_id")?;
    query.finish()?;
    let message = messages::find(&api, &app).await?;
    if let Some(text) = endpoint {
        let found = match api.ids.by(&text) {
            Some(by) => app.store.endpoint(by).await?,
            None => None,
        };
        let key = found.ok_or(Error::NotFound)?.key;
        filter = filter.map(|filter| AttemptFilter { endpoint: Some(key), ..filter });
    }
    let attempts = attempts(&app, TriesOf::Message(&message), filter, asked.page()).await?;
    let list =
        asked.answer(attempts, &api.ids, |row| row.key, |row| MessageAttemptOut::of(&api.ids, row, detail, None));
    Ok(json(StatusCode::OK, &list))
}

/// List the messages owed to one endpoint, newest first, and how each one fares there.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/msg",
    operation_id = "v1.message-attempt.list-attempted-messages", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("status" = Option<u8>, Query, maximum = 4),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
        ("expanded_statuses" = Option<bool>, Query),
    ),
    responses((status = 200, body = ListOut<EndpointMessageOut>)))]
async fn list_attempted_messages(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take(&mut query, &api.ids, Order::Descending)?;
    let page = asked.page();
    let filter = message_filter(&mut query, page.from.clone(), (api.clock)())?;
    let status = take_status(&mut query)?;
    let detail = Detail::take(&mut query)?;
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let states = status.into_iter().map(MessageStatus::state).collect();
    let messages = app.store.messages_of_endpoint(&endpoint, filter, states, page).await?;
    let list = asked.answer(
        messages,
        &api.ids,
        |(message, _)| message.key,
        |(message, state)| EndpointMessageOut {
            message: MessageOut::of(&api.ids, message, detail),
            progress: ProgressOut::of(state),
        },
    );
    Ok(json(StatusCode::OK, &list))
}

/// List the endpoints that a message is owed to, and how it fares with each.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}/endpoint",
    operation_id = "v1.message-attempt.list-attempted-destinations", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
    ),
    responses((status = 200, body = ListOut<MessageEndpointOut>)))]
async fn list_attempted_destinations(
    State(api): State<Arc<Api>>,
    app: InApp,
    mut query: Query,
) -> Result<Response, Error> {
    let asked = Asked::<EndpointKey>::take(&mut query, &api.ids, Order::Ascending)?;
    query.finish()?;
    let message = messages::find(&api, &app).await?;
    let page = asked.page();
    let mut rows = Vec::new();
    for (key, state) in beyond_cut(app.store.deliveries(&message).await?, &page) {
        if rows.len() == page.limit {
            break;
        }
        // An endpoint that was deleted meanwhile has nothing to show.
        if let Some(endpoint) = app.store.endpoint(By::Key(key)).await? {
            rows.push((endpoint, state));
        }
    }
    if matches!(page.from, Some(Cut::Before(_))) {
        rows.reverse();
    }
    let show = |(endpoint, state)| MessageEndpointOut::of(&api.ids, endpoint, state);
    let list = asked.answer(rows, &api.ids, |(endpoint, _)| endpoint.key, show);
    Ok(json(StatusCode::OK, &list))
}

/// What lies beyond the cut of an ascending list, nearest first.
fn beyond_cut<T>(mut all: Vec<(EndpointKey, T)>, page: &Page<EndpointKey>) -> Vec<(EndpointKey, T)> {
    match page.from {
        None => {}
        Some(Cut::Past(cut)) => all.retain(|(key, _)| *key > cut),
        Some(Cut::Before(cut)) => {
            all.retain(|(key, _)| *key < cut);
            all.reverse();
        }
    }
    all
}

/// Get an attempt.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}",
    operation_id = "v1.message-attempt.get", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("attempt_id" = String, Path, description = "The attempt's id"),
        ("expanded_statuses" = Option<bool>, Query),
    ),
    responses((status = 200, body = MessageAttemptOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    take_expanded_statuses(&mut query)?;
    query.finish()?;
    let message = messages::find(&api, &app).await?;
    let attempt = app.store.attempt(&message, attempt_key(&api, &app)?).await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &MessageAttemptOut::of(&api.ids, attempt, Detail::WithContent, None)))
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct MessageAttemptHeadersOut {
    sent_headers: BTreeMap<String, String>,
    /// The names of those that were sent and whose values are not kept.
    sensitive: Vec<String>,
    /// Name and value, as they came; null if there was no answer. A value that is not kept is `***`.
    #[schema(required = false)]
    response_headers: Option<Vec<(String, String)>>,
}

impl From<KeptHeaders> for MessageAttemptHeadersOut {
    fn from(KeptHeaders { sent, hidden, answered }: KeptHeaders) -> Self {
        Self { sent_headers: sent.into_iter().collect(), sensitive: hidden, response_headers: answered }
    }
}

/// Get the headers of an attempt, of its request and its answer.
///
/// They are kept of failed attempts, unless `attempt_headers` is set otherwise. Where none are kept all is empty.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/headers",
    operation_id = "v1.message-attempt.get-headers", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("attempt_id" = String, Path, description = "The attempt's id"),
    ),
    responses((status = 200, body = MessageAttemptHeadersOut)))]
async fn headers(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let message = messages::find(&api, &app).await?;
    let attempt = app.store.attempt(&message, attempt_key(&api, &app)?).await?.ok_or(Error::NotFound)?;
    let kept = KeptHeaders::read(&attempt.record.headers).unwrap_or_default();
    Ok(json(StatusCode::OK, &MessageAttemptHeadersOut::from(kept)))
}

/// Remove what the receiver answered to an attempt, for good.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content",
    operation_id = "v1.message-attempt.expunge-content", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("attempt_id" = String, Path, description = "The attempt's id"),
    ),
    responses((status = 204)))]
async fn expunge(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<StatusCode, Error> {
    query.finish()?;
    app.require_environment()?;
    let message = messages::find(&api, &app).await?;
    match app.store.expunge_attempt(&message, attempt_key(&api, &app)?).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Error::NotFound),
    }
}

/// Send a message to an endpoint once more.
///
/// It may be any message and any endpoint of the application. One attempt is made; the delivery's own
/// schedule, if it has one, goes on as it was. While the endpoint is disabled the attempt waits.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend",
    operation_id = "v1.message-attempt.resend", tag = "Message Attempt",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("msg_id" = String, Path, description = "The message's id or eventId"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header, description = "A repetition with the same key sends nothing"),
    ),
    responses((status = 202, body = EmptyResponse), (status = 400, description = "The payload is gone")))]
async fn resend(State(api): State<Arc<Api>>, app: InApp, key: IdempotencyKey, query: Query) -> Result<Response, Error> {
    query.finish()?;
    app.require(Capability::CreateAttempts)?;
    let message = messages::find(&api, &app).await?;
    let endpoint = app.endpoint(&api).await?;
    if message.payload_gone {
        return Ok(messages::payload_gone());
    }
    let prepared = answer(StatusCode::ACCEPTED, &EmptyResponse {});
    let remember = key.remember(&app.principal, &[], &prepared);
    conclude(app.store.resend(&message, &endpoint, (api.clock)(), remember).await, prepared)
}

#[derive(Debug, Serialize, ToSchema)]
pub struct EmptyResponse {}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageAttemptOut {
    #[schema(example = "atmpt_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    msg_id: String,
    endpoint_id: String,
    #[schema(value_type = String)]
    url: Arc<str>,
    /// What the receiver answered, or the error in words; `{}` if no content was asked for; `EXPUNGED` if
    /// it was removed on request.
    response: String,
    /// 0 if no answer came.
    response_status_code: u16,
    response_duration_ms: u64,
    /// 0: success, 2: fail.
    #[schema(value_type = u8)]
    status: MessageStatus,
    status_text: &'static str,
    /// 0: by schedule, 1: by hand.
    trigger_type: u8,
    timestamp: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    msg: Option<MessageOut<'static>>,
    /// Why it was judged as it was, and what follows.
    verdict: VerdictOut,
}

impl MessageAttemptOut {
    pub fn of(ids: &IdCodec, attempt: Attempt, detail: Detail, message: Option<Message>) -> Self {
        let status = MessageStatus::of_attempt(attempt.record.class);
        Self {
            id: ids.id_of(attempt.key),
            msg_id: ids.id_of(attempt.id.message),
            endpoint_id: ids.id_of(attempt.id.endpoint),
            response: response(&attempt, detail),
            response_status_code: attempt.record.status.unwrap_or(0),
            response_duration_ms: u64::try_from(attempt.record.duration.as_millis()).unwrap_or(u64::MAX),
            status,
            status_text: status.text(),
            trigger_type: match attempt.id.trigger {
                Trigger::Scheduled => 0,
                Trigger::Manual => 1,
            },
            timestamp: Time(attempt.record.started_at),
            msg: message.map(|message| MessageOut::of(ids, message, Detail::WithoutContent)),
            verdict: VerdictOut::of(&attempt),
            url: attempt.record.url,
        }
    }
}

fn response(attempt: &Attempt, detail: Detail) -> String {
    match (detail, attempt.expunged) {
        (Detail::WithoutContent, _) => "{}".to_owned(),
        (Detail::WithContent, true) => "EXPUNGED".to_owned(),
        // A receiver may answer anything; what is not text is shown as far as it is.
        (Detail::WithContent, false) => String::from_utf8_lossy(&attempt.record.response).into_owned(),
    }
}

/// A message, and how it fares with the endpoint that was asked about.
#[derive(Debug, Serialize, ToSchema)]
pub struct EndpointMessageOut {
    #[serde(flatten)]
    message: MessageOut<'static>,
    #[serde(flatten)]
    progress: ProgressOut,
}

/// An endpoint, and how the message that was asked about fares with it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageEndpointOut {
    #[schema(example = "ep_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    url: String,
    description: String,
    disabled: bool,
    event_types: Option<Vec<String>>,
    /// The older name of `eventTypes`.
    filter_types: Option<Vec<String>>,
    channels: Option<Vec<String>>,
    throttle_rate: Option<u32>,
    /// The older name of `throttleRate`.
    rate_limit: Option<u32>,
    /// Of no use any more; always 1.
    version: u32,
    created_at: Time,
    updated_at: Time,
    #[serde(flatten)]
    progress: ProgressOut,
}

impl MessageEndpointOut {
    fn of(ids: &IdCodec, endpoint: Endpoint, state: DeliveryState) -> Self {
        Self {
            id: ids.id_of(endpoint.key),
            uid: endpoint.uid,
            url: endpoint.url,
            description: endpoint.description,
            disabled: endpoint.disabled.is_some(),
            filter_types: endpoint.event_types.clone(),
            event_types: endpoint.event_types,
            channels: endpoint.channels,
            throttle_rate: endpoint.rate_limit,
            rate_limit: endpoint.rate_limit,
            version: 1,
            created_at: Time(endpoint.created_at),
            updated_at: Time(endpoint.updated_at),
            progress: ProgressOut::of(state),
        }
    }
}

/// How a delivery stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressOut {
    /// 0: success, 1: pending, 2: fail, 3: sending.
    #[schema(value_type = u8)]
    status: MessageStatus,
    status_text: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt: Option<Time>,
}

impl ProgressOut {
    fn of(state: DeliveryState) -> Self {
        let status = MessageStatus::of_delivery(state);
        Self { status, status_text: status.text(), next_attempt: next_attempt(state).map(Time) }
    }
}

/// Reads which attempts are asked for. `None` if no attempt can be like that.
fn attempt_filter(
    query: &mut Query,
    from: Option<Cut<AttemptKey>>,
    now: Timestamp,
) -> Result<Option<AttemptFilter>, Error> {
    let message = message_filter(query, from, now)?;
    let status_class = query.parsed::<StatusClass>("status_code_class", "0, 100, 200, 300, 400 or 500")?;
    let succeeded = match take_status(query)? {
        None => None,
        Some(MessageStatus::Success) => Some(true),
        Some(MessageStatus::Fail) => Some(false),
        // An attempt is recorded when it is over.
        Some(MessageStatus::Pending | MessageStatus::Sending | MessageStatus::Canceled) => return Ok(None),
    };
    Ok(Some(AttemptFilter {
        message,
        endpoint: None,
        succeeded,
        status_class: status_class.map(StatusClass::hundreds),
    }))
}

fn take_status(query: &mut Query) -> Result<Option<MessageStatus>, Error> {
    take_expanded_statuses(query)?;
    query.parsed("status", "a number from 0 to 4")
}

/// Whether "canceled" may be answered. Nothing is canceled yet, so that both answers are the same.
fn take_expanded_statuses(query: &mut Query) -> Result<(), Error> {
    query.flag("expanded_statuses").map(|_| ())
}

async fn attempts(
    app: &InApp,
    of: TriesOf<'_>,
    filter: Option<AttemptFilter>,
    page: Page<AttemptKey>,
) -> Result<Vec<Attempt>, Error> {
    match filter {
        Some(filter) => Ok(app.store.attempts(of, filter, page).await?),
        None => Ok(Vec::new()),
    }
}

/// The messages that these attempts are of. Several attempts are often of one.
async fn messages_of(app: &InApp, attempts: &[Attempt]) -> Result<HashMap<MessageKey, Message>, Error> {
    let mut messages = HashMap::new();
    for attempt in attempts {
        if let Entry::Vacant(place) = messages.entry(attempt.id.message)
            && let Some(message) = app.store.message(By::Key(attempt.id.message)).await?
        {
            place.insert(message);
        }
    }
    Ok(messages)
}

fn attempt_key(api: &Api, app: &InApp) -> Result<AttemptKey, Error> {
    api.ids.key_of(app.param("attempt_id")?).ok_or(Error::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use postrider_engine::{
        DeliveryId,
        policy::{Class, DeathReason, DisableReason, Rule},
    };
    use postrider_store::{AttemptRecord, Content, Disabled};
    use serde_json::json as value;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn ids() -> IdCodec {
        IdCodec::new([3; 16])
    }

    fn attempt() -> Attempt {
        Attempt {
            key: AttemptKey::new(3),
            id: DeliveryId { endpoint: EndpointKey::new(1), message: MessageKey::new(2), trigger: Trigger::Manual },
            cycle: 0,
            number: 1,
            record: AttemptRecord {
                started_at: NOW,
                duration: Duration::from_millis(70),
                url: "https://example.com/hook".into(),
                status: Some(500),
                response: Bytes::from_static(b"caf\xc3\xa9 \xff\x00"),
                class: Class::Transient,
                rule: Rule::ServerError,
                held: None,
                headers: Default::default(),
            },
            expunged: false,
            next: None,
            death: None,
        }
    }

    fn message() -> Message {
        Message {
            key: MessageKey::new(2),
            app: postrider_engine::AppKey::new(9),
            accepted_at: NOW,
            content: Content {
                event_type: "invoice.paid".into(),
                event_id: Some("e-1".into()),
                channels: vec!["c".into()],
                tags: vec!["t".into()],
                content_type: None,
                ordering_key: None,
                deliver_at: None,
                received: None,
                payload: Bytes::from(r#"{"secret":1}"#),
            },
            payload_gone: false,
            owed: vec![EndpointKey::new(1)],
        }
    }

    fn endpoint() -> Endpoint {
        Endpoint {
            key: EndpointKey::new(1),
            app: postrider_engine::AppKey::new(9),
            version: 4,
            uid: None,
            url: "https://example.com/hook".into(),
            description: "billing".into(),
            disabled: Some(Disabled { why: DisableReason::Manual, at: NOW }),
            event_types: Some(vec!["invoice.paid".into()]),
            channels: None,
            metadata: Default::default(),
            rate_limit: Some(10),
            rules: None,
            sealed: Vec::new(),
            created_at: NOW,
            updated_at: NOW,
        }
    }

    /// What the official client makes of it.
    fn as_client<T: serde::de::DeserializeOwned>(shown: &impl Serialize) -> T {
        serde_json::from_value(serde_json::to_value(shown).expect("can be written")).expect("the client can read it")
    }

    #[test]
    fn an_attempt_is_what_the_official_client_expects() {
        let shown = MessageAttemptOut::of(&ids(), attempt(), Detail::WithContent, Some(message()));
        let read: svix::models::MessageAttemptOut = as_client(&shown);
        assert_eq!(read.status, svix::models::MessageStatus::Fail);
        assert_eq!(read.status_text, svix::models::MessageStatusText::Fail);
        assert_eq!(read.trigger_type, svix::models::MessageAttemptTriggerType::Manual);
        assert_eq!((read.response_status_code, read.response_duration_ms), (500, 70));
        assert_eq!(read.response, "caf\u{e9} \u{fffd}\0", "what is not text is shown as far as it is");
        let message = read.msg.expect("was asked for");
        assert_eq!(message.id, read.msg_id);
        assert_eq!(message.payload, value!({}), "never with its payload");
    }

    #[test]
    fn a_response_is_shown_withheld_or_expunged() {
        let expunged = || Attempt { expunged: true, ..attempt() };
        for (attempt, detail, expected) in [
            (expunged(), Detail::WithContent, "EXPUNGED"),
            (expunged(), Detail::WithoutContent, "{}"),
            (attempt(), Detail::WithoutContent, "{}"),
        ] {
            assert_eq!(response(&attempt, detail), expected);
        }
        let record = AttemptRecord { status: None, ..attempt().record };
        let unanswered = MessageAttemptOut::of(&ids(), Attempt { record, ..attempt() }, Detail::WithContent, None);
        assert_eq!(unanswered.response_status_code, 0);
    }

    #[test]
    fn a_destination_and_an_attempted_message_are_what_the_official_client_expects() {
        let due = NOW.plus(Duration::from_secs(5));
        for (state, status, next) in [
            (DeliveryState::Delivered, svix::models::MessageStatus::Success, None),
            (DeliveryState::Pending { due: None }, svix::models::MessageStatus::Pending, None),
            (DeliveryState::Sending { due }, svix::models::MessageStatus::Sending, Some(due.as_millis())),
            (DeliveryState::Dead { at: NOW, reason: DeathReason::Expired }, svix::models::MessageStatus::Fail, None),
        ] {
            let read: svix::models::MessageEndpointOut = as_client(&MessageEndpointOut::of(&ids(), endpoint(), state));
            assert_eq!((read.status, read.disabled, read.throttle_rate), (status, Some(true), Some(10)));
            assert_eq!(read.next_attempt.map(|time| time.timestamp_millis()), next);

            let shown = EndpointMessageOut {
                message: MessageOut::of(&ids(), message(), Detail::WithContent),
                progress: ProgressOut::of(state),
            };
            let read: svix::models::EndpointMessageOut = as_client(&shown);
            assert_eq!((read.status, read.event_id.as_deref()), (status, Some("e-1")));
            assert_eq!(read.payload, value!({"secret": 1}));
            assert_eq!(read.next_attempt.map(|time| time.timestamp_millis()), next);
        }
    }

    #[test]
    fn an_attempt_filter_is_read_and_the_impossible_matches_nothing() {
        let read = |query: &str| attempt_filter(&mut Query::read(Some(query)), None, NOW);
        for (query, succeeded, status_class) in [
            ("", None, None),
            ("status=0", Some(true), None),
            ("status=2&status_code_class=500&expanded_statuses=true", Some(false), Some(5)),
            ("status_code_class=0", None, Some(0)),
        ] {
            let filter = read(query).expect(query).expect("attempts can be like that");
            assert_eq!((filter.succeeded, filter.status_class), (succeeded, status_class), "{query}");
        }
        for query in ["status=1", "status=3", "status=4"] {
            assert_eq!(read(query), Ok(None), "{query}");
        }
        for query in
            ["status=5", "status=success", "status_code_class=5", "status_code_class=600", "expanded_statuses=2"]
        {
            assert_eq!(read(query).expect_err(query).status(), 400, "{query}");
        }
    }

    #[test]
    fn destinations_are_paged_in_both_directions() {
        let all = || (1..=5).map(|key| (EndpointKey::new(key), ())).collect();
        for (from, expected) in [
            (None, vec![1, 2, 3, 4, 5]),
            (Some(Cut::Past(EndpointKey::new(3))), vec![4, 5]),
            (Some(Cut::Past(EndpointKey::new(5))), vec![]),
            (Some(Cut::Before(EndpointKey::new(3))), vec![2, 1]),
        ] {
            let page = Page { from: from.clone(), order: Order::Ascending, limit: 3 };
            let keys: Vec<i64> = beyond_cut(all(), &page).into_iter().map(|(key, ())| key.raw()).collect();
            assert_eq!(keys, expected, "{from:?}");
        }
    }
}
