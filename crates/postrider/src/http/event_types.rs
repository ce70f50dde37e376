//! Event types: what messages can be about, for all applications alike.

use super::{
    Api,
    auth::{Caller, Environment},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Patch, Query, given, parse, path_params},
    fields::{Description, Several, TypeName},
    idempotency::{IdempotencyKey, answer, conclude, json},
    page::{Asked, ListOut, Name},
    rules::RulesPatch,
    time::Time,
};
use crate::{
    ids::is_name,
    rules::{RetryPolicy, Rules, StatusOverrides, TimeoutsIn},
    tokens::Principal,
};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use postrider_engine::Timestamp;
use postrider_store::{Archived, Cut, EventType, Expect, Order, PutError};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;
use std::{convert::Infallible, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, put, patch, delete))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventTypeIn {
    #[schema(value_type = String, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$", example = "user.signup")]
    name: TypeName,
    #[schema(value_type = String)]
    description: Description,
    archived: Option<bool>,
    deprecated: Option<bool>,
    /// By version, from "1" on.
    #[schema(value_type = Option<Object>)]
    schemas: Option<Schemas>,
    #[schema(value_type = Option<String>)]
    group_name: Option<TypeName>,
    #[schema(value_type = Option<Vec<String>>)]
    feature_flags: Option<Flags>,
    /// The older, single form of `featureFlags`.
    #[schema(value_type = Option<String>, deprecated)]
    feature_flag: Option<TypeName>,
    /// When messages of this type are tried again, whatever their endpoint says.
    #[serde(default)]
    #[schema(value_type = Option<crate::rules::RetryPolicyForm>)]
    retry_policy: Patch<RetryPolicy>,
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    status_overrides: Patch<StatusOverrides>,
    #[serde(default)]
    #[schema(value_type = Option<TimeoutsIn>)]
    timeouts: Patch<TimeoutsIn>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventTypeUpsertIn {
    #[schema(value_type = String)]
    description: Description,
    archived: Option<bool>,
    deprecated: Option<bool>,
    #[schema(value_type = Option<Object>)]
    schemas: Option<Schemas>,
    #[schema(value_type = Option<String>)]
    group_name: Option<TypeName>,
    #[schema(value_type = Option<Vec<String>>)]
    feature_flags: Option<Flags>,
    #[schema(value_type = Option<String>, deprecated)]
    feature_flag: Option<TypeName>,
    /// Kept if absent, taken away with null; as are the next two.
    #[serde(default)]
    #[schema(value_type = Option<crate::rules::RetryPolicyForm>)]
    retry_policy: Patch<RetryPolicy>,
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    status_overrides: Patch<StatusOverrides>,
    #[serde(default)]
    #[schema(value_type = Option<TimeoutsIn>)]
    timeouts: Patch<TimeoutsIn>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventTypePatch {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[serde(default, deserialize_with = "given")]
    archived: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    deprecated: Option<bool>,
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    schemas: Patch<Schemas>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    group_name: Patch<TypeName>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    feature_flags: Patch<Flags>,
    #[serde(default)]
    #[schema(value_type = Option<String>, deprecated)]
    feature_flag: Patch<TypeName>,
    #[serde(default)]
    #[schema(value_type = Option<crate::rules::RetryPolicyForm>)]
    retry_policy: Patch<RetryPolicy>,
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    status_overrides: Patch<StatusOverrides>,
    #[serde(default)]
    #[schema(value_type = Option<TimeoutsIn>)]
    timeouts: Patch<TimeoutsIn>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventTypeOut {
    name: String,
    description: String,
    archived: bool,
    deprecated: bool,
    #[schema(value_type = Option<Object>)]
    schemas: Option<Box<RawValue>>,
    group_name: Option<String>,
    feature_flags: Option<Vec<String>>,
    #[schema(deprecated)]
    feature_flag: Option<String>,
    /// How its messages are delivered, where that is not as their endpoint says.
    #[serde(flatten)]
    rules: Rules,
    created_at: Time,
    updated_at: Time,
}

type Flags = Several<TypeName, FLAGS_MAX>;

/// A JSON object, kept as it was written.
#[derive(Clone, Debug)]
pub struct Schemas(String);

impl<'de> Deserialize<'de> for Schemas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if !raw.get().starts_with('{') {
            return Err(de::Error::custom("must be an object"));
        }
        Ok(Self(raw.get().to_owned()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    With,
    Without,
}

impl EventTypeOut {
    fn of(event_type: EventType, content: Content) -> Self {
        let schemas = event_type.schemas.filter(|_| content == Content::With);
        Self {
            name: event_type.name,
            description: event_type.description,
            archived: event_type.archived,
            deprecated: event_type.deprecated,
            schemas: schemas.and_then(|text| RawValue::from_string(text).ok()),
            group_name: event_type.group_name,
            feature_flag: event_type.feature_flags.as_ref().and_then(|flags| flags.first().cloned()),
            feature_flags: event_type.feature_flags,
            rules: Rules::stored(event_type.rules.as_deref()),
            created_at: Time(event_type.created_at),
            updated_at: Time(event_type.updated_at),
        }
    }
}

impl EventTypeIn {
    fn create(self, now: Timestamp) -> Result<EventType, Error> {
        let rest = EventTypeUpsertIn {
            description: self.description,
            archived: self.archived,
            deprecated: self.deprecated,
            schemas: self.schemas,
            group_name: self.group_name,
            feature_flags: self.feature_flags,
            feature_flag: self.feature_flag,
            retry_policy: self.retry_policy,
            status_overrides: self.status_overrides,
            timeouts: self.timeouts,
        };
        rest.create(self.name.0, now)
    }
}

impl EventTypeUpsertIn {
    fn create(self, name: String, now: Timestamp) -> Result<EventType, Error> {
        Ok(EventType {
            name,
            version: 1,
            description: self.description.0,
            archived: self.archived.unwrap_or(false),
            deprecated: self.deprecated.unwrap_or(false),
            feature_flags: flags(self.feature_flags, self.feature_flag)?,
            group_name: self.group_name.map(|name| name.0),
            schemas: self.schemas.map(|schemas| schemas.0),
            rules: own_rules(self.retry_policy, self.status_overrides, self.timeouts).apply(None).to_store(),
            created_at: now,
            updated_at: now,
        })
    }
}

impl EventTypePatch {
    fn apply(self, old: &EventType, now: Timestamp) -> Result<EventType, Error> {
        let mut new = next(old, old.clone(), now);
        let rules = own_rules(self.retry_policy, self.status_overrides, self.timeouts);
        new.rules = rules.apply(old.rules.as_deref()).to_store();
        if let Some(Description(description)) = self.description {
            new.description = description;
        }
        if let Some(archived) = self.archived {
            new.archived = archived;
        }
        if let Some(deprecated) = self.deprecated {
            new.deprecated = deprecated;
        }
        self.schemas.map(|schemas| schemas.0).apply(&mut new.schemas);
        self.group_name.map(|name| name.0).apply(&mut new.group_name);
        let single = self.feature_flag.map(|flag| Several(vec![flag]));
        match Patch::either(("featureFlags", self.feature_flags), ("featureFlag", single))? {
            Patch::Keep => {}
            Patch::Clear => new.feature_flags = None,
            Patch::Set(list) => new.feature_flags = flags(Some(list), None)?,
        }
        Ok(new)
    }
}

/// `new` as the version after `old`.
pub fn next(old: &EventType, new: EventType, now: Timestamp) -> EventType {
    EventType { version: old.version + 1, created_at: old.created_at, updated_at: now, ..new }
}

/// What an event type can say: all that concerns one delivery, and nothing that concerns an endpoint as a whole.
pub fn own_rules(
    retry_policy: Patch<RetryPolicy>,
    status_overrides: Patch<StatusOverrides>,
    timeouts: Patch<TimeoutsIn>,
) -> RulesPatch {
    RulesPatch { retry_policy, status_overrides, timeouts, ..RulesPatch::default() }
}

pub fn check_rules(api: &Api, old: Option<&EventType>, new: &EventType) -> Result<(), Error> {
    api.check_rules(&[], old.and_then(|old| old.rules.as_deref()), new.rules.as_deref())
}

fn flags(list: Option<Flags>, single: Option<TypeName>) -> Result<Option<Vec<String>>, Error> {
    let single = single.map(|flag| Several(vec![flag]));
    let list = super::fields::either(("featureFlags", list), ("featureFlag", single))?;
    Ok(list.filter(|list| !list.0.is_empty()).map(|list| list.0.into_iter().map(|flag| flag.0).collect()))
}

/// Event types behind a flag are shown only to those who have it.
fn is_shown(event_type: &EventType, principal: &Principal) -> bool {
    match (principal, &event_type.feature_flags) {
        (Principal::Environment, _) | (_, None) => true,
        (Principal::Application { access, .. }, Some(flags)) => match &access.feature_flags {
            None => true,
            Some(held) => flags.iter().any(|flag| held.contains(flag)),
        },
    }
}

/// Refuses names of event types that do not exist, as far as the caller can see.
pub async fn check_exist(
    api: &Api,
    principal: &Principal,
    (field, names): (&str, Option<&[String]>),
) -> Result<(), Error> {
    for name in names.unwrap_or_default() {
        let found = api.records.event_type(name).await?;
        if !found.is_some_and(|found| is_shown(&found, principal)) {
            return Err(Error::invalid([field], format!("there is no event type `{name}`; create it first")));
        }
    }
    Ok(())
}

/// The event type of this name, if the caller may see it.
pub async fn find(api: &Api, principal: &Principal, name: &str) -> Result<Option<EventType>, Error> {
    Ok(api.records.event_type(name).await?.filter(|found| is_shown(found, principal)))
}

/// List the event types.
#[utoipa::path(get, path = "/api/v1/event-type", operation_id = "v1.event-type.list", tag = "Event Type",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending (the default) or descending"),
        ("include_archived" = Option<bool>, Query),
        ("with_content" = Option<bool>, Query, description = "Show schemas too"),
    ),
    responses((status = 200, body = ListOut<EventTypeOut>)))]
async fn list(State(api): State<Arc<Api>>, caller: Caller, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::<Name>::take_ordered(&mut query, &api.ids, Order::Ascending)?;
    let archived = match query.flag("include_archived")? {
        Some(true) => Archived::Show,
        Some(false) | None => Archived::Hide,
    };
    let content = match query.flag("with_content")? {
        Some(true) => Content::With,
        Some(false) | None => Content::Without,
    };
    query.finish()?;
    let mut page = asked.page_of_names();
    let wanted = page.limit;
    let mut shown = Vec::new();
    // Rows that the caller may not see are passed over, and the page is filled from those behind them.
    loop {
        let rows = api.records.event_types(page.clone(), archived).await?;
        let more = rows.len() == page.limit;
        let backward = matches!(page.from, Some(Cut::Before(_)));
        page.from = match backward {
            true => rows.first().map(|row| Cut::Before(row.name.clone())),
            false => rows.last().map(|row| Cut::Past(row.name.clone())),
        };
        let visible: Vec<EventType> = rows.into_iter().filter(|row| is_shown(row, caller.principal())).collect();
        let at = if backward { 0 } else { shown.len() };
        shown.splice(at..at, visible);
        if !more || shown.len() >= wanted {
            break;
        }
    }
    match page.from {
        Some(Cut::Before(_)) => drop(shown.drain(..shown.len().saturating_sub(wanted))),
        Some(Cut::Past(_)) | None => shown.truncate(wanted),
    }
    let list = asked.answer(shown, &api.ids, |row| Name(row.name.clone()), |row| EventTypeOut::of(row, content));
    Ok(json(StatusCode::OK, &list))
}

/// Create an event type. One that was archived comes back to life.
#[utoipa::path(post, path = "/api/v1/event-type", operation_id = "v1.event-type.create", tag = "Event Type",
    params(("idempotency-key" = Option<String>, Header)),
    request_body = EventTypeIn,
    responses(
        (status = 201, body = EventTypeOut),
        (status = 409, body = HttpErrorOut, description = "It exists"),
        (status = 422, body = HttpValidationError),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    environment: Environment,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let now = (api.clock)();
    let new = parse::<EventTypeIn>(&body)?.create(now)?;
    let (new, expect) = match environment.store().event_type(&new.name).await? {
        Some(old) if old.archived => (next(&old, new, now), Expect::Version(old.version)),
        Some(_) | None => (new, Expect::Absent),
    };
    check_rules(&api, None, &new)?;
    let prepared = answer(StatusCode::CREATED, &EventTypeOut::of(new.clone(), Content::With));
    let remember = key.remember(&Principal::Environment, &body, &prepared);
    match environment.store().put_event_type(new, expect, remember).await {
        Err(PutError::Taken | PutError::Changed) => Err(Error::EventTypeExists),
        written => conclude(written, prepared),
    }
}

/// Get an event type.
#[utoipa::path(get, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.get",
    tag = "Event Type",
    params(("event_type_name" = String, Path)),
    responses((status = 200, body = EventTypeOut), (status = 404, body = HttpErrorOut)))]
async fn get(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathName(name): PathName,
    query: Query,
) -> Result<Response, Error> {
    query.finish()?;
    let found = find(&api, caller.principal(), &name.ok_or(Error::NotFound)?).await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &EventTypeOut::of(found, Content::With)))
}

/// Update an event type, or create it.
#[utoipa::path(put, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.upsert",
    tag = "Event Type",
    params(("event_type_name" = String, Path)),
    request_body = EventTypeUpsertIn,
    responses(
        (status = 200, body = EventTypeOut, description = "It was updated"),
        (status = 201, body = EventTypeOut, description = "It was created"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    environment: Environment,
    PathName(name): PathName,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let name =
        name.ok_or_else(|| Error::Invalid(vec![super::error::Flaw::new("path", ["event_type_name"], NAME_RULE)]))?;
    for _ in 0..TRIES_MAX {
        let now = (api.clock)();
        let body: EventTypeUpsertIn = parse(&body)?;
        let rules = own_rules(body.retry_policy.clone(), body.status_overrides.clone(), body.timeouts.clone());
        let wanted = body.create(name.clone(), now)?;
        let (status, new, expect) = match environment.store().event_type(&name).await? {
            Some(old) => {
                let rules = rules.apply(old.rules.as_deref()).to_store();
                (StatusCode::OK, EventType { rules, ..next(&old, wanted, now) }, Expect::Version(old.version))
            }
            None => (StatusCode::CREATED, wanted, Expect::Absent),
        };
        check_rules(&api, None, &new)?;
        match environment.store().put_event_type(new.clone(), expect, None).await {
            Err(PutError::Changed | PutError::Taken) => continue,
            written => written?,
        }
        return Ok(json(status, &EventTypeOut::of(new, Content::With)));
    }
    Err(PutError::Changed.into())
}

/// Change parts of an event type.
#[utoipa::path(patch, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.patch",
    tag = "Event Type",
    params(("event_type_name" = String, Path)),
    request_body = EventTypePatch,
    responses(
        (status = 200, body = EventTypeOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn patch(
    State(api): State<Arc<Api>>,
    environment: Environment,
    PathName(name): PathName,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let name = name.ok_or(Error::NotFound)?;
    let new = change(&api, &environment, &name, |old, now| parse::<EventTypePatch>(&body)?.apply(old, now)).await?;
    Ok(json(StatusCode::OK, &EventTypeOut::of(new, Content::With)))
}

/// Archive an event type, or remove it for good.
#[utoipa::path(delete, path = "/api/v1/event-type/{event_type_name}", operation_id = "v1.event-type.delete",
    tag = "Event Type",
    params(
        ("event_type_name" = String, Path),
        ("expunge" = Option<bool>, Query, description = "Remove it for good"),
    ),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete(
    State(api): State<Arc<Api>>,
    environment: Environment,
    PathName(name): PathName,
    mut query: Query,
) -> Result<StatusCode, Error> {
    let expunge = query.flag("expunge")?.unwrap_or(false);
    query.finish()?;
    let name = name.ok_or(Error::NotFound)?;
    if !expunge {
        change(&api, &environment, &name, |old, now| Ok(next(old, EventType { archived: true, ..old.clone() }, now)))
            .await?;
    } else if !environment.store().delete_event_type(&name).await? {
        return Err(Error::NotFound);
    }
    Ok(StatusCode::NO_CONTENT)
}

pub async fn change(
    api: &Api,
    environment: &Environment,
    name: &str,
    change: impl Fn(&EventType, Timestamp) -> Result<EventType, Error>,
) -> Result<EventType, Error> {
    for _ in 0..TRIES_MAX {
        let old = environment.store().event_type(name).await?.ok_or(Error::NotFound)?;
        let new = change(&old, (api.clock)())?;
        check_rules(api, Some(&old), &new)?;
        match environment.store().put_event_type(new.clone(), Expect::Version(old.version), None).await {
            Err(PutError::Changed) => continue,
            written => written?,
        }
        return Ok(new);
    }
    Err(PutError::Changed.into())
}

/// The name in the path, if it can be one.
pub struct PathName(pub Option<String>);

impl FromRequestParts<Arc<Api>> for PathName {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Infallible> {
        let Ok(params) = path_params(parts).await else { return Ok(Self(None)) };
        let name = params.iter().find(|(key, _)| *key == "event_type_name").map(|(_, name)| name.to_owned());
        Ok(Self(name.filter(|name| is_name(name))))
    }
}

const NAME_RULE: &str = "must be 1 to 256 letters, digits, `-`, `_` or `.`";
const FLAGS_MAX: usize = 25;
/// How often a change is begun anew when someone else is faster.
const TRIES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Access;
    use postrider_engine::AppKey;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn read(body: &str) -> Result<EventType, Error> {
        parse::<EventTypeIn>(body.as_bytes())?.create(NOW)
    }

    #[test]
    fn schemas_are_an_object_kept_as_it_was_written() {
        let schemas = r#"{"1": {"type":"object",  "n":1e400}}"#;
        let event_type = read(&format!(r#"{{"name":"a","description":"","schemas":{schemas}}}"#)).unwrap();
        assert_eq!(event_type.schemas.as_deref(), Some(schemas));
        assert!(serde_json::to_string(&EventTypeOut::of(event_type.clone(), Content::With)).unwrap().contains(schemas));
        assert!(!serde_json::to_string(&EventTypeOut::of(event_type, Content::Without)).unwrap().contains("1e400"));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for rest in [
            r#""schemas":[]"#,
            r#""schemas":"x""#,
            r#""groupName":"a b""#,
            r#""featureFlags":["a/b"]"#,
            r#""featureFlags":["a"],"featureFlag":"b""#,
            r#""colour":1"#,
        ] {
            let body = format!(r#"{{"name":"a","description":"",{rest}}}"#);
            assert!(matches!(read(&body), Err(Error::Invalid(_))), "{rest}");
        }
        assert!(read(r#"{"name":"a"}"#).is_err(), "the contract wants a description");
    }

    #[test]
    fn a_patch_changes_what_it_names() {
        let old = read(r#"{"name":"a","description":"d","schemas":{},"groupName":"g","featureFlags":["f"]}"#).unwrap();
        for (body, expected) in [
            ("{}", old.clone()),
            (r#"{"schemas":null}"#, EventType { schemas: None, ..old.clone() }),
            (r#"{"groupName":null}"#, EventType { group_name: None, ..old.clone() }),
            (r#"{"featureFlags":null}"#, EventType { feature_flags: None, ..old.clone() }),
            (r#"{"archived":true,"deprecated":true}"#, EventType { archived: true, deprecated: true, ..old.clone() }),
        ] {
            let patched = parse::<EventTypePatch>(body.as_bytes()).unwrap().apply(&old, NOW).unwrap();
            assert_eq!(patched, EventType { version: 2, ..expected }, "{body}");
        }
        assert!(parse::<EventTypePatch>(br#"{"name":"b"}"#).is_err());
    }

    #[test]
    fn a_type_behind_a_flag_is_shown_to_those_who_have_it() {
        let app = |flags: Option<&[&str]>| Principal::Application {
            app: AppKey::new(1),
            access: Access {
                feature_flags: flags.map(|flags| flags.iter().map(|flag| flag.to_string()).collect()),
                ..Access::full()
            },
        };
        let (open, flagged) = (
            read(r#"{"name":"a","description":""}"#).unwrap(),
            read(r#"{"name":"a","description":"","featureFlags":["beta"]}"#).unwrap(),
        );
        for (principal, sees_flagged) in [
            (Principal::Environment, true),
            (app(None), true),
            (app(Some(&[])), false),
            (app(Some(&["other"])), false),
            (app(Some(&["beta"])), true),
        ] {
            assert!(is_shown(&open, &principal));
            assert_eq!(is_shown(&flagged, &principal), sees_flagged, "{principal:?}");
        }
    }
}
