//! Messages handed in many at a time, each answered by itself.
//!
//! One call costs less than many: one head, one token looked at, one answer, and commits that are shared. What protects the
//! way in for one message protects this one: each message is within the same bounds, counts against the same rates, and is
//! let in with few others at a time (`ingest/gate.rs`).
//!
//! The messages are accepted in their order. Once one of them has to be put off, so are all behind it: whoever hands those in
//! again has kept their order.

use super::{
    Api, applications,
    auth::bearer,
    error::{Error, ErrorOut, PartError},
    extract::{Query, json_bytes, parse_around},
    filter::made_at,
    idempotency::{LENGTH_MAX, PartKeys, json},
    message_in::{Draft, MessageIn},
    messages::{MessageOut, Target, check_delivery_time, of_a_source, refuse_own, turn_away},
    payload::{Detail, Shown},
};
use crate::{
    credentials::scopes::Scope,
    directory::AppEntry,
    ingest::{NewEvent, gate::BatchPass},
    telemetry::traces::context_of,
    tokens::Principal,
};
use axum::{
    extract::{FromRequest, FromRequestParts, Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::StatusCode;
use hyper::body::Body;
use postrider_store::{AcceptError, Accepted, By, StoreError, TraceContext, step};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IgnoredAny, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashSet, fmt, sync::Arc, time::Duration};
use tokio::time::Instant;
use utoipa::{
    ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, SchemaType, Type},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(create))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageBatchIn<'a> {
    /// Accepted in this order.
    #[serde(borrow)]
    #[schema(value_type = Vec<MessageBatchItemIn>, min_items = 1, max_items = 1_000)]
    messages: Items<'a>,
}

/// Messages that have not been looked into yet: what is wrong with one is told of that one.
struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Vec<&'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while list.len() < MESSAGES_MAX {
                    let Some(item) = items.next_element()? else {
                        return if list.is_empty() { Err(de::Error::custom("must be at least one")) } else { Ok(list) };
                    };
                    list.push(item);
                }
                match items.next_element::<IgnoredAny>()? {
                    None => Ok(list),
                    Some(_) => Err(de::Error::custom(format_args!("at most {MESSAGES_MAX} are allowed"))),
                }
            }
        }

        deserializer.deserialize_seq(List).map(Self)
    }
}

/// A message as it is handed in by itself, and its idempotency key.
pub struct MessageBatchItemIn;

impl utoipa::PartialSchema for MessageBatchItemIn {
    fn schema() -> RefOr<Schema> {
        let mut schema = <MessageIn as utoipa::PartialSchema>::schema();
        if let RefOr::T(Schema::Object(message)) = &mut schema {
            let key = ObjectBuilder::new()
                .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
                .description(Some(
                    "A repetition with the same key creates nothing. Instead of the one of the whole batch.",
                ))
                .min_length(Some(1))
                .max_length(Some(LENGTH_MAX))
                .pattern(Some("^[!-~]+$"));
            message.properties.insert("idempotencyKey".to_owned(), key.into());
        }
        schema
    }
}

impl ToSchema for MessageBatchItemIn {
    fn name() -> Cow<'static, str> {
        "MessageBatchItemIn".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        MessageIn::schemas(schemas);
    }
}

#[derive(Serialize, ToSchema)]
pub struct MessageBatchOut<'a> {
    /// One for each message, in their order.
    data: Vec<MessageBatchItemOut<'a>>,
}

/// What the message would have been answered by itself.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MessageBatchItemOut<'a> {
    /// 202 if it is stored, and on its way.
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<MessageOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorOut>,
    /// After how many seconds to hand it in again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

impl<'a> MessageBatchItemOut<'a> {
    fn of(answer: Result<MessageOut<'a>, Error>) -> Self {
        match answer {
            Ok(message) => Self { status: StatusCode::ACCEPTED.as_u16(), message: Some(message), ..Self::default() },
            Err(error) => {
                let PartError { status, error, retry_after } = error.into_part();
                Self { status, message: None, error: Some(error), retry_after }
            }
        }
    }
}

/// Create many messages.
///
/// Each is stored, with everything it owes, before the answer goes out, or answered with what is wrong with it. They are
/// accepted in their order; once one is put off (429 or 503), all behind it are.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg-batch", operation_id = "v1.message.create-batch", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("with_content" = Option<bool>, Query, description = "Whether the answer shows the payloads; true if not given"),
        ("idempotency-key" = Option<String>, Header,
            description = "For messages without a key of their own: this and their place in the list are theirs"),
        ("traceparent" = Option<String>, Header, description = "Where in a trace the producer is (W3C); receivers go on from there"),
    ),
    request_body = MessageBatchIn,
    responses((status = 200, body = MessageBatchOut, description = "Each is answered by itself")))]
async fn create(State(api): State<Arc<Api>>, handed_in: HandedIn) -> Result<Response, Error> {
    let HandedIn { pass, target, token, keys, trace, mut query, body } = handed_in;
    let detail = Detail::take(&mut query)?;
    query.finish()?;
    if matches!(&target, Target::Known { app, .. } if app.source.is_some()) {
        return Err(of_a_source());
    }
    let MessageBatchIn { messages: Items(items) } = parse_around(&body)?;
    let items: Vec<Bytes> = items.into_iter().map(|item| body.slice_ref(item.get().as_bytes())).collect();
    let mut batch = Batch {
        api: &api,
        target,
        token: &token,
        keys,
        trace,
        detail,
        items: &items,
        next: 0,
        carried: None,
        answers: items.iter().map(|_| None).collect(),
        put_off: None,
    };
    batch.take(&pass).await;
    let Batch { target, answers, put_off, .. } = batch;
    if let Target::Unknown { .. } = target
        && answers.iter().all(|answer| matches!(answer, Some(Err(Error::NotFound))))
    {
        return Err(Error::NotFound);
    }
    // Nothing was stored, nor refused for good.
    if let Some(put_off) = &put_off
        && answers.iter().all(Option::is_none)
    {
        return Err(put_off.clone());
    }
    let rest = || put_off.clone().unwrap_or(Error::Internal);
    let data = answers.into_iter().map(|answer| MessageBatchItemOut::of(answer.unwrap_or_else(|| Err(rest()))));
    Ok(json(StatusCode::OK, &MessageBatchOut { data: data.collect() }))
}

/// A batch on its way in.
struct Batch<'b> {
    api: &'b Api,
    target: Target,
    token: &'b str,
    keys: PartKeys,
    trace: Option<TraceContext>,
    detail: Detail,
    items: &'b [Bytes],
    /// The first that was not looked at.
    next: usize,
    /// The one before it, if it could not be among the last group.
    carried: Option<Planned<'b>>,
    /// Of each that is through with.
    answers: Vec<Option<Result<MessageOut<'b>, Error>>>,
    /// Why no more are tried.
    put_off: Option<Error>,
}

/// A message that may be accepted.
struct Planned<'b> {
    place: usize,
    event: NewEvent,
    shown: Shown<'b>,
}

impl<'b> Batch<'b> {
    /// Group by group, until all are through or one has to be put off.
    async fn take(&mut self, pass: &BatchPass) {
        let end = Instant::now() + TIME_MAX;
        while self.put_off.is_none() && (self.next < self.items.len() || self.carried.is_some()) {
            if Instant::now() >= end {
                self.put_off = Some(Error::Unavailable { retry_after: SHORTLY });
                return;
            }
            if let Err(fault) = self.look_again().await {
                self.put_off = Some(fault);
                return;
            }
            let room = pass.group(self.group_max());
            let group = self.plan(room.messages()).await;
            let is_full = self.accept(group, end).await;
            drop(room);
            if is_full {
                let retry_after = self.api.ingest.gate().turn_away().await.retry_after;
                self.put_off = Some(Error::Unavailable { retry_after });
            }
        }
    }

    /// Whom a message is owed to is decided when it is accepted, and much may have changed since the first one was.
    async fn look_again(&mut self) -> Result<(), Error> {
        if let Target::Known { app, .. } = &mut self.target {
            let newer = self.api.directory.application(&By::Key(app.application.key)).await?;
            *app = newer.ok_or(Error::NotFound)?;
        }
        Ok(())
    }

    fn group_max(&self) -> usize {
        match &self.target {
            Target::Known { app, .. } if app.endpoints.len() > FEW => GROUP_OF_MANY_MAX,
            Target::Known { .. } | Target::Unknown { .. } => GROUP_MAX,
        }
    }

    /// The next ones that may be accepted, up to so many; what is wrong with others on the way is told.
    async fn plan(&mut self, messages_max: usize) -> Vec<Planned<'b>> {
        let mut names = Names::default();
        let mut group = Vec::new();
        while group.len() < messages_max {
            let planned = match self.carried.take() {
                Some(carried) => carried,
                None => match self.plan_next().await {
                    Some(planned) => planned,
                    None => break,
                },
            };
            // What is recognised by the name of another has to come after it.
            if !names.add(&planned.event) {
                self.carried = Some(planned);
                break;
            }
            group.push(planned);
        }
        group
    }

    async fn plan_next(&mut self) -> Option<Planned<'b>> {
        while self.put_off.is_none() && self.next < self.items.len() {
            let place = self.next;
            // The first one's was taken before anything was read.
            if place > 0
                && let Err(retry_after) =
                    self.api.ingest.rates().take(self.target.key(), self.token, (self.api.clock)())
            {
                self.put_off = Some(Error::TooManyRequests { retry_after });
                return None;
            }
            self.next += 1;
            match self.read(place).await {
                Ok(planned) => return Some(planned),
                Err(why) if is_fault(&why) => self.put_off = Some(why),
                Err(why) => self.answers[place] = Some(Err(why)),
            }
        }
        None
    }

    async fn read(&mut self, place: usize) -> Result<Planned<'b>, Error> {
        let item = &self.items[place];
        let bytes_max = self.api.settings.body_max;
        if item.len() > bytes_max {
            return Err(Error::TooLarge { bytes_max });
        }
        let (draft, own_key) = Draft::parse_item(item)?;
        let Draft { mut content, keep_payload, application, json } = draft;
        if let Target::Unknown { name, caller, environment } = &self.target {
            let application = application.ok_or(Error::NotFound)?;
            caller.require(Scope::Manage)?;
            let app = applications::find_or_create(self.api, environment, name, application).await?;
            let store = environment.tenant(self.api, &app);
            self.target = Target::Known { app, store };
        }
        let now = (self.api.clock)();
        check_delivery_time(content.deliver_at, now)?;
        if json.is_some() {
            // A slice of the batch would keep all of it in memory for as long as this one message waits.
            content.payload = Bytes::copy_from_slice(&content.payload);
        }
        let shown = match (self.detail, json) {
            (Detail::WithoutContent, _) => Shown::Withheld,
            (Detail::WithContent, Some(json)) => Shown::Json(json),
            (Detail::WithContent, None) => Shown::Text(content.payload.clone()),
        };
        let event = NewEvent {
            content,
            payload_expires_at: keep_payload.map(|keep| now.plus(keep)),
            idempotency: self.keys.of(&Principal::Environment, own_key.as_ref(), place, item),
            only: None,
            trace: self.trace.clone(),
        };
        Ok(Planned { place, event, shown })
    }

    /// Accepts a group, and answers whom it is through with. True if there is no room for more.
    async fn accept(&mut self, mut group: Vec<Planned<'b>>, end: Instant) -> bool {
        step!("request.read");
        let mut tries = TRIES_MAX;
        while !group.is_empty()
            && let Target::Known { app, .. } = &self.target
        {
            let app = Arc::clone(app);
            if app.source.is_some() {
                group.drain(..).for_each(|planned| self.answers[planned.place] = Some(Err(of_a_source())));
                break;
            }
            let before = group.len();
            match self.accept_once(&app, &mut group).await {
                Left::Nothing => {}
                // Those before them have left room meanwhile.
                Left::Full if group.len() < before && Instant::now() < end => {}
                Left::Full => return true,
                Left::Broken(fault) => {
                    self.put_off.get_or_insert(fault);
                    break;
                }
                Left::Outdated => {
                    tries -= 1;
                    let looked = match tries {
                        0 => Err(Error::Unavailable { retry_after: SHORTLY }),
                        _ => self.look_again().await,
                    };
                    if let Err(fault) = looked {
                        self.put_off.get_or_insert(fault);
                        break;
                    }
                }
            }
        }
        step!("answer.ready");
        false
    }

    /// Those that were not tried stay in the group.
    async fn accept_once(&mut self, app: &AppEntry, group: &mut Vec<Planned<'b>>) -> Left {
        let events = group.iter().map(|planned| planned.event.clone()).collect();
        let mut answers = self.api.ingest.accept_in_order(app, events).await;
        let done = answers.iter().rposition(|answer| not_tried(answer).is_none()).map_or(0, |last| last + 1);
        let mut left = answers.drain(done..).find_map(|answer| not_tried(&answer)).unwrap_or(Left::Nothing);
        for (planned, answer) in group.drain(..done).zip(answers) {
            let place = planned.place;
            let answer = self.told(planned, answer).await;
            if answer.as_ref().is_err_and(is_fault) {
                left = Left::Broken(Error::Unavailable { retry_after: SHORTLY });
            }
            self.answers[place] = Some(answer);
        }
        left
    }

    async fn told(&self, planned: Planned<'b>, answer: Result<Accepted, AcceptError>) -> Result<MessageOut<'b>, Error> {
        let Planned { event, shown, .. } = planned;
        let ids = &self.api.ids;
        match answer? {
            Accepted::Now(key) => Ok(MessageOut::new(ids, key, made_at(key), event.content, shown)),
            Accepted::Before(key) => {
                let Target::Known { store, .. } = &self.target else { return Err(Error::NotFound) };
                let message = store.message(By::Key(key)).await?.ok_or(Error::NotFound)?;
                Ok(MessageOut::of(ids, message, self.detail))
            }
        }
    }
}

/// Why the last ones of a group were not tried.
enum Left {
    Nothing,
    Full,
    Outdated,
    /// What befell one of those before them.
    Broken(Error),
}

fn not_tried(answer: &Result<Accepted, AcceptError>) -> Option<Left> {
    match answer {
        Err(AcceptError::Store(StoreError::Busy)) => Some(Left::Full),
        Err(AcceptError::Outdated) => Some(Left::Outdated),
        Ok(_) | Err(AcceptError::EventIdTaken | AcceptError::KeyReused | AcceptError::Store(_)) => None,
    }
}

/// Not for anything that is wrong with the message.
fn is_fault(why: &Error) -> bool {
    why.status().is_server_error()
}

/// By what the messages of a group are recognised later.
#[derive(Default)]
struct Names {
    keys: HashSet<[u8; 16]>,
    event_ids: HashSet<String>,
}

impl Names {
    /// False if one of the group has the same name.
    fn add(&mut self, event: &NewEvent) -> bool {
        let key = event.idempotency.map(|idempotency| idempotency.key);
        let event_id = event.content.event_id.as_ref();
        let is_known = key.is_some_and(|key| self.keys.contains(&key))
            || event_id.is_some_and(|event_id| self.event_ids.contains(event_id));
        if !is_known {
            self.keys.extend(key);
            self.event_ids.extend(event_id.cloned());
        }
        !is_known
    }
}

/// A batch for which there was room.
struct HandedIn {
    pass: BatchPass,
    target: Target,
    token: String,
    keys: PartKeys,
    trace: Option<TraceContext>,
    query: Query,
    body: Bytes,
}

impl FromRequest<Arc<Api>> for HandedIn {
    type Rejection = Response;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Response> {
        let told = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = told.unwrap_or(usize::MAX).min(bytes_max(api));
        match api.ingest.gate().enter_batch(bytes).await {
            Ok(pass) => Self::read(request, pass, api).await,
            Err(full) => Err(turn_away(request, Error::Unavailable { retry_after: full.retry_after }).await),
        }
    }
}

impl HandedIn {
    async fn read(request: Request, pass: BatchPass, api: &Arc<Api>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let target = Target::from_request_parts(&mut parts, api).await.map_err(Error::into_response)?;
        let token = bearer(&parts.headers).unwrap_or_default().to_owned();
        // Where there is no room for one, nothing is read of many.
        if let Err(retry_after) = api.ingest.rates().take(target.key(), &token, (api.clock)()) {
            drop(pass);
            return Err(turn_away(Request::from_parts(parts, body), Error::TooManyRequests { retry_after }).await);
        }
        Self::read_rest(Request::from_parts(parts, body), pass, target, token, api).await.map_err(Error::into_response)
    }

    async fn read_rest(
        request: Request,
        pass: BatchPass,
        target: Target,
        token: String,
        api: &Arc<Api>,
    ) -> Result<Self, Error> {
        let (mut parts, body) = request.into_parts();
        refuse_own(&parts.headers, api)?;
        let keys = PartKeys::from_request_parts(&mut parts, api).await?;
        let trace = context_of(&parts.headers);
        let Ok(query) = Query::from_request_parts(&mut parts, api).await;
        let body = json_bytes(Request::from_parts(parts, body), bytes_max(api)).await?;
        Ok(Self { pass, target, token, keys, trace, query, body })
    }
}

/// Of the whole body. Whoever lets single messages be greater means it here as well.
fn bytes_max(api: &Api) -> usize {
    api.settings.body_max.max(BYTES_MAX)
}

pub const MESSAGES_MAX: usize = 1_000;
pub const BYTES_MAX: usize = 8 * 1024 * 1024;

/// So many of a batch are on their way to a commit at once: about as many as make the best of it, if two batches come at a
/// time.
const GROUP_MAX: usize = 64;
/// Where a message may be owed to more than so many, the store lets fewer in at once.
const FEW: usize = 10;
const GROUP_OF_MANY_MAX: usize = 16;

/// After which no more groups are begun: with the time that a body has, and the last group, it stays below the time that a
/// request has.
const TIME_MAX: Duration = Duration::from_secs(15);
const SHORTLY: Duration = Duration::from_secs(1);
/// How often whom a group is owed to is worked out, because settings change meanwhile.
const TRIES_MAX: usize = 3;
