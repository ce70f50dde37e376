//! The HTTP API: Svix's wire contract, so that its official clients work unmodified.
//!
//! Handlers translate. They read a request into types that can only hold what is valid, call one verb
//! of the store, and write the answer; whoever needs to know of the change hears of it before the answer
//! goes out.

pub mod alerts;
pub mod api_keys;
pub mod applications;
pub mod attempts;
pub mod audit;
pub mod auth;
pub mod background_tasks;
pub mod dead_letters;
pub mod doors;
pub mod endpoint_headers;
pub mod endpoint_health;
pub mod endpoint_mtls;
pub mod endpoint_oauth;
pub mod endpoint_secrets;
pub mod endpoints;
pub mod error;
pub mod event_types;
pub mod expunge;
pub mod extract;
pub mod fields;
pub mod filter;
pub mod guesses;
pub mod health;
pub mod html;
pub mod idempotency;
pub mod message_batch;
pub mod message_in;
pub mod messages;
pub mod nodes;
pub mod openapi;
pub mod operational_deliveries;
pub mod page;
pub mod payload;
pub mod poll;
pub mod poller_tokens;
pub mod pollers;
pub mod portal;
pub mod public_keys;
pub mod replays;
pub mod retry_schedule;
pub mod rules;
pub mod schedules;
pub mod search;
pub mod send_example;
pub mod server;
pub mod source_ingest;
pub mod source_log;
pub mod sources;
pub mod statistics;
pub mod stats;
pub mod status;
pub mod tail;
pub mod time;
pub mod tls;
pub mod usage;
pub mod verdict;

use crate::{
    alerts::{Alerts, trial::Trial},
    config::{InEffect, SignatureType},
    credentials::Credentials,
    directory::Directory,
    ids::IdCodec,
    ingest::Ingest,
    standing::Standings,
    tasks::Tasks,
    transport::egress::AddressGuard,
    vault::Vault,
};
use auth::records::Records;
use axum::{
    Router,
    extract::{Request, State},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
};
use error::Error;
use guesses::{Guesses, Peer};
use http::{Uri, uri::PathAndQuery};
use postrider_engine::{Timestamp, policy::Layer};
use postrider_store::ApiKeyKey;
use rand::rngs::StdRng;
use source_log::Refusals;
use std::sync::{Arc, Mutex};
use tail::Tails;
use tower::ServiceExt;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};
use utoipa_axum::router::OpenApiRouter;

/// Everything that a handler may need.
pub struct Api {
    pub records: Records,
    pub ids: IdCodec,
    pub vault: Arc<Vault>,
    pub credentials: Arc<Credentials>,
    pub directory: Arc<Directory>,
    pub ingest: Arc<Ingest>,
    pub tasks: Arc<Tasks>,
    pub alerts: Arc<Alerts>,
    pub trial: Trial,
    pub guard: Arc<AddressGuard>,
    pub clock: fn() -> Timestamp,
    pub guesses: Guesses<Peer>,
    pub key_guesses: Guesses<ApiKeyKey>,
    pub tails: Tails,
    pub standings: Standings,
    pub refusals: Refusals,
    pub rng: Mutex<StdRng>,
    pub settings: ApiSettings,
}

#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// Where the outside reaches this server, without a slash at the end.
    pub public_url: Option<String>,
    /// We are called by `https://` ourselves.
    pub within_tls: bool,
    /// The greatest body that is read.
    pub body_max: usize,
    /// Endpoints must have an https URL.
    pub https_only: bool,
    /// What is made for an endpoint that brings no secret.
    pub default_signature_type: SignatureType,
    /// How endpoints are treated where nobody nearer says anything.
    pub rules: Arc<Layer>,
    /// What this node is called, and since when it runs.
    pub node_name: String,
    pub started_at: Timestamp,
    /// Everything that is set, as it may be shown.
    pub in_effect: Vec<InEffect>,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            public_url: None,
            within_tls: false,
            body_max: 1024 * 1024,
            https_only: false,
            default_signature_type: SignatureType::Hmac256,
            rules: Arc::default(),
            node_name: "node".to_owned(),
            started_at: Timestamp::from_millis(0),
            in_effect: Vec::new(),
        }
    }
}

pub fn router(api: Arc<Api>) -> Router {
    let (_, document) = routes().split_for_parts();
    let (managed, _) = managed().split_for_parts();
    let (ingest, _) = ingest().split_for_parts();
    let routes = managed
        .route_layer(from_fn_with_state(Arc::clone(&api), audit::keep))
        .merge(ingest)
        .merge(openapi::routes(document))
        .merge(html::routes())
        .method_not_allowed_fallback(|| async { Error::MethodNotAllowed })
        .fallback(|| async { Error::NotFound })
        .with_state(api);
    // A path with a slash at its end is rare, so that only what no route took is looked at again.
    Router::new()
        .fallback(without_trailing_slash)
        .with_state(routes.clone())
        .merge(routes.reset_fallback())
        .layer(cors())
}

/// The routes of the API, each with its description for the OpenAPI document.
fn routes() -> OpenApiRouter<Arc<Api>> {
    managed().merge(ingest())
}

/// The ways in for messages.
fn ingest() -> OpenApiRouter<Arc<Api>> {
    messages::ingest().merge(message_batch::routes()).merge(source_ingest::routes())
}

/// All the others.
fn managed() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .merge(alerts::routes())
        .merge(api_keys::routes())
        .merge(applications::routes())
        .merge(attempts::routes())
        .merge(audit::routes())
        .merge(background_tasks::routes())
        .merge(dead_letters::routes())
        .merge(endpoint_headers::routes())
        .merge(endpoint_health::routes())
        .merge(endpoint_mtls::routes())
        .merge(endpoint_oauth::routes())
        .merge(endpoint_secrets::routes())
        .merge(endpoints::routes())
        .merge(endpoints::ingest::routes())
        .merge(endpoints::operational::routes())
        .merge(operational_deliveries::routes())
        .merge(event_types::routes())
        .merge(expunge::routes())
        .merge(health::routes())
        .merge(messages::routes())
        .merge(nodes::routes())
        .merge(poll::routes())
        .merge(poller_tokens::routes())
        .merge(pollers::routes())
        .merge(portal::routes())
        .merge(public_keys::routes())
        .merge(replays::routes())
        .merge(retry_schedule::routes())
        .merge(schedules::routes())
        .merge(search::routes())
        .merge(send_example::routes())
        .merge(source_log::routes())
        .merge(sources::routes())
        .merge(stats::routes())
        .merge(statistics::routes())
        .merge(usage::routes())
        .merge(tail::routes())
}

async fn without_trailing_slash(State(routes): State<Router>, mut request: Request) -> Response {
    let Some(uri) = trimmed(request.uri()) else { return Error::NotFound.into_response() };
    *request.uri_mut() = uri;
    match routes.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn trimmed(uri: &Uri) -> Option<Uri> {
    let path = uri.path().strip_suffix('/').filter(|path| !path.is_empty())?;
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

/// Portals of our users call us from pages of theirs, with tokens and never with cookies.
fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::any())
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(std::time::Duration::from_secs(600))
        // All get the same, but for what asks before a request, which nobody keeps for others.
        .vary([])
}
