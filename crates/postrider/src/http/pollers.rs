//! Pollers: made, listed, changed and deleted. The contract reads by them (`poll`) and leaves open how they come to be.

use super::{
    Api,
    auth::InApp,
    error::{Error, HttpErrorOut, HttpValidationError},
    event_types,
    extract::{JsonBytes, Query, parse},
    fields::{Channel, Description, Several, TypeName, Uid},
    idempotency::{IdempotencyKey, answer, json, response},
    page::{Asked, ListOut},
    time::Time,
};
use crate::{
    directory::AppEntry,
    ids::IdCodec,
    pollers::{self, Choice, Flaw, Poller, Token},
    tokens::Capability,
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_store::{Answer, Application, By, Cut, Expect, Order, Page, PollerKey, PutError, Remember};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(put, delete))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PollerIn {
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = "^[a-zA-Z0-9\\-_.]+$")]
    uid: Option<Uid<PollerKey>>,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    /// Only messages of these types. All, if absent or empty.
    #[schema(value_type = Option<Vec<String>>)]
    filter_types: Option<Several<TypeName, EVENT_TYPES_MAX>>,
    /// Only messages on one of these. All, if absent or empty.
    #[schema(value_type = Option<Vec<String>>, max_items = 10)]
    channels: Option<Several<Channel, CHANNELS_MAX>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollerOut {
    #[schema(example = "poll_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    description: String,
    filter_types: Option<Vec<String>>,
    channels: Option<Vec<String>>,
    created_at: Time,
    updated_at: Time,
}

impl PollerOut {
    fn of(ids: &IdCodec, poller: &Poller) -> Self {
        Self {
            id: ids.id_of(poller.key()),
            uid: poller.uid.clone(),
            description: poller.description.clone(),
            filter_types: poller.event_types.clone(),
            channels: poller.channels.clone(),
            created_at: Time(poller.created_at()),
            updated_at: Time(poller.updated_at()),
        }
    }
}

impl PollerIn {
    fn choice(self) -> Choice {
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        Choice {
            uid: self.uid.map(|uid| uid.0),
            description: self.description.map(|text| text.0).unwrap_or_default(),
            event_types: self.filter_types.and_then(|list| some(list.0.into_iter().map(|name| name.0).collect())),
            channels: self.channels.and_then(|list| some(list.0.into_iter().map(|name| name.0).collect())),
        }
    }
}

impl From<Flaw> for Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::TooLong => Self::LimitReached("The pollers of an application can be 64 KiB together"),
            Flaw::TooMany => Self::LimitReached("An application can have 50 pollers"),
            Flaw::UidTaken => Self::Conflict("Another poller of this application has this uid".into()),
            Flaw::TooManyOldTokens => {
                Self::LimitReached("Ten old tokens still hold; wait until one has ended, or end this one at once")
            }
        }
    }
}

/// The pollers of an application as it was read just now.
pub(super) fn of(application: &Application) -> Result<Vec<Poller>, Error> {
    pollers::stored(application.pollers.as_deref()).map_err(|fault| unreadable(application, &fault))
}

/// The same as this node knows them.
fn known(entry: &AppEntry) -> Result<&[Poller], Error> {
    entry.pollers.as_deref().map_err(|fault| unreadable(&entry.application, fault))
}

fn unreadable(application: &Application, fault: &serde_json::Error) -> Error {
    error!(app.key = application.key.raw(), error = %fault, "the pollers of an application cannot be read");
    Error::Internal
}

/// What the path names it by.
pub(super) fn by(api: &Api, app: &InApp, param: &str) -> Result<By<PollerKey>, Error> {
    api.ids.by(app.param(param)?).ok_or(Error::NotFound)
}

/// The poller that the path names, as this node knows it.
pub(super) fn named(api: &Api, app: &InApp, param: &str) -> Result<Poller, Error> {
    pollers::find(known(&app.entry)?, &by(api, app, param)?).cloned().ok_or(Error::NotFound)
}

/// Changes the pollers of an application; begins anew when someone else is faster.
pub(super) async fn change<T>(
    api: &Api,
    app: &InApp,
    remember: Option<Remember>,
    change: impl Fn(&mut Vec<Poller>) -> Result<T, Error>,
) -> Result<T, Undone> {
    for _ in 0..TRIES_MAX {
        let old = app.store.application().await.map_err(Error::from)?.ok_or(Error::NotFound)?;
        let mut pollers = of(&old)?;
        let made = change(&mut pollers).and_then(|made| Ok(pollers::check(&pollers).map(|()| made)?));
        let new = Application { version: old.version + 1, pollers: pollers::to_store(&pollers), ..old.clone() };
        // What cannot be done may have been done before, by the same request: only the store knows. It finds that out first,
        // and then that nothing is to be written.
        let expect = Expect::Version(if made.is_ok() { old.version } else { NEVER });
        let written = app.store.put_application(new, expect, remember.clone()).await;
        api.directory.changed(app.key());
        match (written, made) {
            (Ok(()), made) => return Ok(made?),
            (Err(PutError::Changed), Ok(_)) => {}
            (Err(PutError::Changed), Err(flaw)) => return Err(Undone::Failed(flaw)),
            (Err(PutError::Repeated(before)), _) => return Err(Undone::Repeated(before)),
            (Err(other), _) => return Err(Undone::Failed(other.into())),
        }
    }
    Err(Undone::Failed(PutError::Changed.into()))
}

/// Why nothing was changed.
pub(super) enum Undone {
    /// It was before; this was answered.
    Repeated(Answer),
    Failed(Error),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Undone> for Error {
    fn from(undone: Undone) -> Self {
        match undone {
            Undone::Repeated(before) => PutError::Repeated(before).into(),
            Undone::Failed(error) => error,
        }
    }
}

/// List the pollers of an application.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/poller", operation_id = "v1.message.poller.list", tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
    ),
    responses((status = 200, body = ListOut<PollerOut>), (status = 404, body = HttpErrorOut)))]
async fn list(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::<PollerKey>::take(&mut query, &api.ids, Order::Ascending)?;
    query.finish()?;
    let page = on_page(known(&app.entry)?.to_vec(), &asked.page());
    let shown = asked.answer(page, &api.ids, Poller::key, |poller| PollerOut::of(&api.ids, &poller));
    Ok(json(StatusCode::OK, &shown))
}

/// They are few, and in the order in which they were made.
fn on_page(mut pollers: Vec<Poller>, page: &Page<PollerKey>) -> Vec<Poller> {
    match page.from {
        None => {}
        Some(Cut::Past(key)) => pollers.retain(|poller| poller.key() > key),
        Some(Cut::Before(key)) => {
            pollers.retain(|poller| poller.key() < key);
            pollers.drain(..pollers.len().saturating_sub(page.limit));
        }
    }
    pollers.truncate(page.limit);
    pollers
}

/// Create a poller.
///
/// It begins with the messages that come after it, and on several nodes with those of the second before. Older ones, as long as they are kept, are read by asking for
/// them: `after` of a poll, or `seek` of a consumer.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/poller", operation_id = "v1.message.poller.create",
    tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = PollerIn,
    responses(
        (status = 201, body = PollerOut),
        (status = 400, body = HttpErrorOut, description = "The application has 50 already"),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let choice = parse::<PollerIn>(&body)?.choice();
    event_types::check_exist(&api, &app.principal, ("filterTypes", choice.event_types.as_deref())).await?;
    let now = (api.clock)();
    let minted = PollerKey(api.records.mint(now).await?);
    let token = Token::new(&mut *api.rng(), now, None);
    let made = Poller::new(minted, choice, app.store.horizon(now).await?, token, now);
    let prepared = answer(StatusCode::CREATED, &PollerOut::of(&api.ids, &made));
    let remember = key.remember(&app.principal, &body, &prepared);
    let make = |pollers: &mut Vec<Poller>| {
        pollers.push(made.clone());
        Ok(())
    };
    match change(&api, &app, remember, make).await {
        Ok(()) => Ok(response(prepared)),
        Err(Undone::Repeated(before)) => Ok(response(before)),
        Err(Undone::Failed(error)) => Err(error),
    }
}

/// Change a poller.
///
/// What is not given is as if it were given empty. Its place in the messages, its token and its consumers stay.
#[utoipa::path(put, path = "/api/v1/app/{app_id}/poller/{sink_id}", operation_id = "v1.message.poller.update",
    tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
    ),
    request_body = PollerIn,
    responses(
        (status = 200, body = PollerOut),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let by = by(&api, &app, "sink_id")?;
    let choice = parse::<PollerIn>(&body)?.choice();
    event_types::check_exist(&api, &app.principal, ("filterTypes", choice.event_types.as_deref())).await?;
    let now = (api.clock)();
    let changed = change(&api, &app, None, |all| {
        let poller = pollers::find_mut(all, &by).ok_or(Error::NotFound)?;
        poller.change(choice.clone(), now);
        Ok(PollerOut::of(&api.ids, poller))
    });
    Ok(json(StatusCode::OK, &changed.await?))
}

/// Delete a poller, with its token and its consumers' places. The messages stay.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/poller/{sink_id}", operation_id = "v1.message.poller.delete",
    tag = "Message Poller",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("sink_id" = String, Path, description = "The poller's id or uid"),
    ),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let by = by(&api, &app, "sink_id")?;
    let gone = change(&api, &app, None, |all| {
        let key = pollers::find(all, &by).ok_or(Error::NotFound)?.key();
        all.retain(|poller| poller.key() != key);
        Ok(key)
    });
    app.store.forget_consumers(gone.await?, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// No record has this version.
const NEVER: i64 = -1;
const CHANNELS_MAX: usize = 10;
/// Each is looked up, so that there is a limit to them.
const EVENT_TYPES_MAX: usize = 100;
/// How often a change is begun anew when someone else is faster.
const TRIES_MAX: usize = 5;
