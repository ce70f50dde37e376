//! Looking for messages by how they stand. An addition of ours to the contract.
//!
//! The contract's lists look until a page is full, however far back that is; here a bounded number is looked at, and it is
//! said how far that went, so that an answer comes at once also if there is nothing to be found.

use super::{
    Api,
    auth::{Environment, InApp},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::Query,
    filter::{made_at, message_filter},
    idempotency::json,
    messages::MessageOut,
    page::Asked,
    payload::Detail,
    status::MessageStatus,
    time::Time,
};
use crate::ids::IdCodec;
use axum::{
    extract::{Path, State},
    response::Response,
};
use http::StatusCode;
use postrider_engine::{EndpointKey, MessageKey};
use postrider_store::{By, Cut, DeliveryState, Message, Order, Search, Searched};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(search)).routes(routes!(search_all)).routes(routes!(find))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchOut {
    data: Vec<FoundOut>,
    /// Where to go on; null if there is nothing more.
    #[schema(required)]
    iterator: Option<String>,
    /// Everything has been looked at.
    done: bool,
    /// What was accepted before this moment has not been looked at yet; absent if everything has been.
    #[serde(skip_serializing_if = "Option::is_none")]
    searched_to: Option<Time>,
}

/// A message, and how it stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FoundOut {
    #[serde(flatten)]
    message: MessageOut<'static>,
    /// Whose it is.
    app_id: String,
    /// With how many endpoints it stands how: `success`, `pending`, `fail`, `sending`, `canceled`. Only with the one that was
    /// asked for, if one was.
    #[schema(value_type = BTreeMap<String, u64>)]
    statuses: BTreeMap<&'static str, u64>,
}

/// Search the messages of an application, newest first.
///
/// Looks at up to 10,000 messages at a time, fewer if they go to many endpoints, and may find none among them: go on with
/// `iterator` until `done`.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/message-search", operation_id = "v1.message.search", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("endpoint_id" = Option<String>, Query, description = "Owed to this endpoint: its id or uid"),
        ("status" = Option<u8>, Query, maximum = 4, description = "With that endpoint, or with any if none is named"),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
    ),
    responses(
        (status = 200, body = SearchOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn search(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let (asked, detail) = Wanted::take(&api, &mut query)?;
    query.finish()?;
    let endpoint = match &asked.endpoint {
        None => None,
        Some(name) => {
            let by = api.ids.by::<EndpointKey>(name).ok_or(Error::NotFound)?;
            Some(app.store.endpoint(by).await?.ok_or(Error::NotFound)?.key)
        }
    };
    let searched = app.store.search(Search { endpoint, ..asked.search }).await?;
    Ok(json(StatusCode::OK, &SearchOut::of(&api.ids, searched, detail)))
}

/// Search the messages of all applications, newest first.
///
/// As within an application; an endpoint is named by its id here. Needs a token for all applications.
#[utoipa::path(get, path = "/api/v1/message-search", operation_id = "v1.message.search-all", tag = "Message",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("endpoint_id" = Option<String>, Query, description = "Owed to this endpoint: its id"),
        ("status" = Option<u8>, Query, maximum = 4, description = "With that endpoint, or with any if none is named"),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
    ),
    responses(
        (status = 200, body = SearchOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn search_all(
    State(api): State<Arc<Api>>,
    environment: Environment,
    mut query: Query,
) -> Result<Response, Error> {
    let (asked, detail) = Wanted::take(&api, &mut query)?;
    query.finish()?;
    let endpoint = match &asked.endpoint {
        None => None,
        Some(id) => Some(api.ids.key_of::<EndpointKey>(id).ok_or(Error::NotFound)?),
    };
    let mut searched = environment.store().search(None, Search { endpoint, ..asked.search }).await?;
    let mut there = Vec::new();
    for found in searched.found {
        // What is left of a deleted application is nobody's to see, as elsewhere.
        if api.directory.application(&By::Key(found.0.app)).await?.is_some() {
            there.push(found);
        }
    }
    searched.found = there;
    Ok(json(StatusCode::OK, &SearchOut::of(&api.ids, searched, detail)))
}

/// Find a message by its id, in whichever application it is.
#[utoipa::path(get, path = "/api/v1/message/{msg_id}", operation_id = "v1.message.find", tag = "Message",
    params(
        ("msg_id" = String, Path, description = "The message's id"),
        ("with_content" = Option<bool>, Query),
    ),
    responses((status = 200, body = FoundOut), (status = 404, body = HttpErrorOut)))]
async fn find(
    State(api): State<Arc<Api>>,
    environment: Environment,
    Path(id): Path<String>,
    mut query: Query,
) -> Result<Response, Error> {
    let detail = Detail::take(&mut query)?;
    query.finish()?;
    let key = api.ids.key_of::<MessageKey>(&id).ok_or(Error::NotFound)?;
    // The newest one that is not newer than it.
    let past = Some(MessageKey::new(key.raw().saturating_add(1)));
    let search = Search { past, limit: 1, look_max: 1, ..Search::default() };
    let found = environment.store().search(None, search).await?.found;
    let found = found.into_iter().find(|(message, _)| message.key == key).ok_or(Error::NotFound)?;
    api.directory.application(&By::Key(found.0.app)).await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &FoundOut::of(&api.ids, found, detail)))
}

/// What is asked for, but for the endpoint, which is known by another name here and there.
struct Wanted {
    search: Search,
    endpoint: Option<String>,
}

impl Wanted {
    fn take(api: &Api, query: &mut Query) -> Result<(Self, Detail), Error> {
        let asked = Asked::<MessageKey>::take(query, &api.ids, Order::Descending)?;
        let past = match asked.page().from {
            None => None,
            Some(Cut::Past(key)) => Some(key),
            Some(Cut::Before(_)) => {
                return Err(Error::invalid_query("iterator", "leads back, which a search does not"));
            }
        };
        let filter = message_filter(query, past.map(Cut::Past), (api.clock)())?;
        let endpoint = query.text("endpoint_id")?;
        let status: Option<MessageStatus> = query.parsed("status", "a number from 0 to 4")?;
        let detail = Detail::take(query)?;
        let search = Search {
            filter,
            endpoint: None,
            states: status.into_iter().map(MessageStatus::state).collect(),
            past,
            limit: asked.limit(),
            look_max: LOOK_MAX,
        };
        Ok((Self { search, endpoint }, detail))
    }
}

impl SearchOut {
    fn of(ids: &IdCodec, Searched { found, until }: Searched, detail: Detail) -> Self {
        Self {
            data: found.into_iter().map(|found| FoundOut::of(ids, found, detail)).collect(),
            iterator: until.map(|key| ids.id_of(key)),
            done: until.is_none(),
            searched_to: until.map(|key| Time(made_at(key))),
        }
    }
}

impl FoundOut {
    fn of(ids: &IdCodec, (message, states): (Message, Vec<(EndpointKey, DeliveryState)>), detail: Detail) -> Self {
        let mut statuses = BTreeMap::new();
        for (_, state) in states {
            *statuses.entry(MessageStatus::of_delivery(state).text()).or_insert(0) += 1;
        }
        Self { app_id: ids.id_of(message.app), message: MessageOut::of(ids, message, detail), statuses }
    }
}

/// A fraction of a second, of both stores.
const LOOK_MAX: usize = 10_000;
