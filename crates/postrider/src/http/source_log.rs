//! What came to a source and was refused, with the reason: for whoever sets a source up and sees nothing arrive.
//!
//! Whoever knows a source's URL can send what will be refused, as fast as he likes. So it is written behind the answer, a
//! bounded number at a time, and what comes faster than that is counted and forgotten; the store keeps the newest.

use super::{
    Api,
    auth::{InSource, records::Records},
    error::{Error, HttpErrorOut},
    extract::Query,
    idempotency::json,
    page::{Asked, ListOut},
    time::Time,
};
use crate::ids::{IdCodec, SourceKey};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{Order, Refused, RefusedKey, Store};
use serde::Serialize;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tracing::warn;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Those that are to be written.
pub struct Refusals(Arc<Waiting>);

struct Waiting {
    records: Records,
    queue: Mutex<Queue>,
    dropped: metrics::Counter,
}

#[derive(Default)]
struct Queue {
    refused: Vec<Refusal>,
    is_being_written: bool,
}

/// A request that was refused.
pub struct Refusal {
    pub app: AppKey,
    pub at: Timestamp,
    pub status: StatusCode,
    pub reason: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

impl Refusals {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let dropped = metrics::counter!("postrider_source_log_dropped_total");
        dropped.increment(0);
        Self(Arc::new(Waiting { records: Records::new(store), queue: Mutex::default(), dropped }))
    }

    /// Whether one more of this source would be written.
    pub fn has_room(&self, app: AppKey) -> bool {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).has_room(app)
    }

    /// Returns at once.
    pub fn note(&self, mut refusal: Refusal) {
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.has_room(refusal.app) {
            self.0.dropped.increment(1);
            return;
        }
        let mut room = HEADERS_MAX;
        refusal.headers.retain(|(name, value)| {
            let left = room.checked_sub(name.len() + value.len());
            room = left.unwrap_or(room);
            left.is_some()
        });
        refusal.body = Bytes::copy_from_slice(&refusal.body[..refusal.body.len().min(BODY_MAX)]);
        queue.refused.push(refusal);
        if !queue.is_being_written {
            queue.is_being_written = true;
            tokio::spawn(Arc::clone(&self.0).write());
        }
    }
}

impl Queue {
    /// One that is flooded leaves room for the others.
    fn has_room(&self, app: AppKey) -> bool {
        let own = self.refused.iter().filter(|refusal| refusal.app == app).count();
        self.refused.len() < QUEUE_MAX && own < QUEUE_MAX_OF_ONE
    }
}

impl Waiting {
    async fn write(self: Arc<Self>) {
        loop {
            let refused = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                if queue.refused.is_empty() {
                    queue.is_being_written = false;
                    return;
                }
                std::mem::take(&mut queue.refused)
            };
            let count = refused.len() as u64;
            if let Err(fault) = self.write_these(refused).await {
                warn!(error = %fault, count, "refused requests could not be noted");
                self.dropped.increment(count);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn write_these(&self, refused: Vec<Refusal>) -> Result<(), postrider_store::StoreError> {
        let mut entries = Vec::with_capacity(refused.len());
        for Refusal { app, at, status, reason, headers, body } in refused {
            let key = RefusedKey(self.records.mint(at).await?);
            entries.push(Refused { key, app, at, status: status.as_u16(), reason, headers, body });
        }
        self.records.add_to_refused(entries).await
    }
}

#[derive(Serialize, ToSchema)]
pub struct IngestLogOut {
    #[schema(example = "log1srOrx2ZWZBpBUvZwXKQmo")]
    id: String,
    source_id: String,
    /// What was answered.
    status_code: u16,
    /// Why.
    error_text: String,
    /// Without credentials.
    headers: BTreeMap<String, String>,
    /// The beginning of it, at most 8 KiB.
    payload: String,
    created_at: Time,
    updated_at: Time,
}

impl IngestLogOut {
    fn of(ids: &IdCodec, refused: Refused) -> Self {
        Self {
            id: ids.id_of(refused.key),
            source_id: ids.id_of(SourceKey(refused.app)),
            status_code: refused.status,
            error_text: refused.reason,
            headers: joined(refused.headers),
            payload: String::from_utf8_lossy(&refused.body).into_owned(),
            created_at: Time(refused.at),
            updated_at: Time(refused.at),
        }
    }
}

/// One that came several times is shown with all that it said.
fn joined(headers: Vec<(String, String)>) -> BTreeMap<String, String> {
    let mut shown = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        match shown.entry(name) {
            Entry::Vacant(new) => drop(new.insert(value)),
            Entry::Occupied(mut before) => {
                before.get_mut().push_str(", ");
                before.get_mut().push_str(&value);
            }
        }
    }
    shown
}

/// List what a source has refused, newest first.
///
/// The newest thousand are kept, for two weeks.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}/log", operation_id = "v1.ingest.log.list",
    tag = "Ingest Log",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<IngestLogOut>), (status = 404, body = HttpErrorOut)))]
async fn list(State(api): State<Arc<Api>>, source: InSource, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    query.finish()?;
    let rows = source.app.store.refused(asked.page()).await?;
    let list = asked.answer(rows, &api.ids, |row| row.key, |row| IngestLogOut::of(&api.ids, row));
    Ok(json(StatusCode::OK, &list))
}

/// So many are written at a time,
const QUEUE_MAX: usize = 64;
/// so many of one source,
const QUEUE_MAX_OF_ONE: usize = 16;
/// and then none for so long.
const PAUSE: Duration = Duration::from_secs(1);
/// What is kept of the headers,
const HEADERS_MAX: usize = 8 * 1024;
/// and of a body.
const BODY_MAX: usize = 8 * 1024;
