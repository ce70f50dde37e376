//! Who changed what by the API: written down for every operation that `doors` says so of.
//!
//! Ids and names, never bodies: nothing that is secret, and nothing of what messages say, gets there. An entry is written
//! after the call and before its answer, also if the caller has gone away meanwhile. Who does not get in is not in it, nor
//! what an application's own token or key was refused: the log, of which nothing can be deleted, would be strangers' to fill.

use super::{
    Api,
    auth::{Environment, Notice},
    doors::{Audit, Door},
    error::Error,
    extract::{Query, path_params},
    guesses::Peer,
    idempotency::json,
    page::{Asked, ListOut},
    time::Time,
};
use crate::{
    credentials::{Bearer, Identity},
    ids::IdCodec,
    tokens::{ENVIRONMENT, Principal},
};
use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use postrider_store::{AuditEntry, AuditFilter, AuditKey, Metadata, Order, StoreError};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::Semaphore;
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntryOut {
    #[schema(example = "audit_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    timestamp: Time,
    /// The id of an API key, or whom the token is for: an application's id or the environment's.
    actor: String,
    /// Which token it was, if it has a name (`jti`).
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<String>,
    #[schema(example = "v1.endpoint.patch")]
    operation: String,
    /// What it was about: the ids and names in the path, the application, and the id of what was made.
    objects: BTreeMap<String, String>,
    /// The network address that it came from: of IPv6, the first 64 bits; none for this machine itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    /// What was answered.
    status: u16,
}

impl AuditEntryOut {
    fn of(ids: &IdCodec, entry: AuditEntry) -> Self {
        Self {
            id: ids.id_of(entry.key),
            timestamp: Time(entry.at),
            actor: entry.actor,
            token_id: entry.token,
            operation: entry.operation,
            objects: entry.objects,
            origin: entry.origin,
            status: entry.status,
        }
    }
}

/// List what was changed by the API, newest first.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "v1.audit.list", tag = "Audit",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("actor" = Option<String>, Query, description = "Only what this key, application or environment did"),
        ("operation" = Option<String>, Query, description = "Only this operation, by its id in this document"),
        ("after" = Option<Time>, Query),
        ("before" = Option<Time>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<AuditEntryOut>)))]
async fn list(State(api): State<Arc<Api>>, environment: Environment, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    let filter = AuditFilter {
        actor: query.text("actor")?,
        operation: query.text("operation")?,
        after: query.time("after")?,
        before: query.time("before")?,
    };
    query.finish()?;
    let rows = environment.store().audit(filter, asked.page()).await?;
    let list = asked.answer(rows, &api.ids, |row| row.key, |row| AuditEntryOut::of(&api.ids, row));
    Ok(json(StatusCode::OK, &list))
}

/// Carries a call out, and writes it down if it is of that kind.
pub async fn keep(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let door = Door::of(request.method(), request.extensions()).filter(|door| door.audit == Audit::Yes);
    let Some(door) = door else { return next.run(request).await };
    let (mut parts, body) = request.into_parts();
    let notice = Notice::default();
    parts.extensions.insert(notice.clone());
    let origin = parts.extensions.get::<Peer>().map(|peer| peer.0.to_string());
    let named = path_params(&mut parts).await;
    let request = Request::from_parts(parts, body);
    let Ok(place) = CARRIED_OUT.try_acquire() else {
        return Error::Unavailable { retry_after: RETRY_AFTER }.into_response();
    };
    let carried_out = async move {
        let _place = place;
        let (response, made) = made_by(next.run(request).await).await;
        let Some(bearer) = notice.bearer() else { return response };
        if response.status().is_client_error() && matches!(bearer.principal, Principal::Application { .. }) {
            return response;
        }
        let (actor, token) = who(&api.ids, bearer);
        let mut objects = Metadata::new();
        for (name, value) in named.iter().flat_map(|params| params.iter()) {
            objects.insert(name.to_owned(), shown(value));
        }
        if let Some(app) = notice.app() {
            objects.insert("app".to_owned(), api.ids.id_of(app));
        }
        if let Some(id) = made {
            objects.insert("id".to_owned(), shown(&id));
        }
        let (operation, status) = (door.operation.to_owned(), response.status().as_u16());
        let entry = AuditEntry {
            key: AuditKey(0),
            at: (api.clock)(),
            actor,
            token: token.as_deref().map(shown),
            operation,
            objects,
            origin,
            status,
        };
        if let Err(fault) = add(&api, entry.clone()).await {
            let AuditEntry { actor, operation, objects, status, .. } = entry;
            error!(actor, operation, ?objects, status, error = %fault, "a call could not be written into the audit log");
        }
        response
    };
    // On its own, so that a caller who hangs up leaves no change behind that is not written down.
    tokio::spawn(carried_out).await.unwrap_or_else(|_| Error::Internal.into_response())
}

async fn add(api: &Api, entry: AuditEntry) -> Result<(), StoreError> {
    let key = AuditKey(api.records.mint(entry.at).await?);
    api.records.add_to_audit(AuditEntry { key, ..entry }).await
}

fn who(ids: &IdCodec, bearer: &Bearer) -> (String, Option<String>) {
    match (&bearer.identity, &bearer.principal) {
        (Identity::ApiKey(key), _) => (ids.id_of(*key), None),
        (Identity::Token { name, .. }, Principal::Environment) => (ENVIRONMENT.to_owned(), name.clone()),
        (Identity::Token { name, .. }, Principal::Application { app, .. }) => (ids.id_of(*app), name.clone()),
    }
}

/// The id of what an answer says was made or changed.
async fn made_by(response: Response) -> (Response, Option<String>) {
    #[derive(Deserialize)]
    struct Made {
        id: Option<String>,
    }

    if !response.status().is_success() {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    // Ours are whole from the start, so that this takes no time and cannot fail.
    match to_bytes(body, usize::MAX).await {
        Ok(body) => {
            let made = serde_json::from_slice::<Made>(&body).ok().and_then(|made| made.id);
            (Response::from_parts(parts, Body::from(body)), made)
        }
        Err(_) => (Error::Internal.into_response(), None),
    }
}

/// As much of a name as is needed to know it again, without what no database takes.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(SHOWN_MAX).collect()
}

const SHOWN_MAX: usize = 128;

/// So many at a time. What goes on without its caller is not bounded by the callers' connections.
static CARRIED_OUT: Semaphore = Semaphore::const_new(256);
const RETRY_AFTER: Duration = Duration::from_secs(1);
