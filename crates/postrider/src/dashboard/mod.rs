//! Pages for people: what the API tells, shown in a browser.
//!
//! They are a client of the API like any other, only in the same process: a page asks with the token that its session was
//! opened with, and shows the answer. So nobody sees or does more here than he could there, and what is done here is checked,
//! limited and written down in the same way (decision 18).

mod alerts;
mod api_keys;
mod application;
mod applications;
mod attempt;
mod audit;
mod chart;
mod dead_letters;
mod endpoint;
mod endpoint_form;
mod event_types;
mod frame;
mod history;
mod inside;
mod live;
mod message;
mod messages;
mod nodes;
mod overview;
mod poller;
mod poller_form;
mod poller_token;
mod pollers;
mod schedule;
mod session;
mod settings;
mod sign_in;
mod source_form;
mod sources;
mod tasks;
mod who;

use crate::http::html;
use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use frame::{policy_for, script};
use http::{HeaderValue, header};
use inside::Inside;
pub use session::Sessions;
use std::sync::Arc;

/// What the pages need.
pub struct Site {
    inside: Inside,
    sessions: Sessions,
    /// The policy of pages that may be shown in a frame.
    framed: Option<HeaderValue>,
    /// Where the outside reaches us, if it is set.
    public_url: Option<String>,
}

/// The pages, over the routes of the API, to which they are added. `frames`: sites that may show those of one application in a
/// frame. `public_url`: where the outside reaches us, if it is set.
pub fn over(api: Router, sessions: Sessions, frames: &[String], public_url: Option<String>) -> Router {
    let sessions = sessions.in_frames(!frames.is_empty());
    let site = Arc::new(Site { inside: Inside::new(api.clone()), sessions, framed: policy_for(frames), public_url });
    let pages = Router::new()
        .route("/dashboard.css", get(async || html::asset(STYLE, include_str!("assets/dashboard.css"))))
        .route("/icon.svg", get(async || html::asset("image/svg+xml", include_str!("assets/icon.svg"))))
        .route("/dashboard.js", get(async || html::asset(SCRIPT, script::DASHBOARD)))
        .route("/live.js", get(async || html::asset(SCRIPT, script::LIVE)))
        .route("/portal.js", get(async || html::asset(SCRIPT, script::PORTAL)))
        .merge(sign_in::routes())
        .merge(overview::routes())
        .merge(applications::routes())
        .merge(application::routes())
        .merge(endpoint::routes())
        .merge(endpoint_form::routes())
        .merge(messages::routes())
        .merge(message::routes())
        .merge(attempt::routes())
        .merge(dead_letters::routes())
        .merge(live::routes())
        .merge(pollers::routes())
        .merge(poller::routes())
        .merge(poller_form::routes())
        .merge(poller_token::routes())
        .merge(schedule::routes())
        .merge(event_types::routes())
        .merge(sources::routes())
        .merge(source_form::routes())
        .merge(tasks::routes())
        .merge(api_keys::routes())
        .merge(alerts::routes())
        .merge(audit::routes())
        .merge(nodes::routes())
        .merge(settings::routes())
        .layer(middleware::from_fn_with_state(Arc::clone(&site), let_into_frames))
        .with_state(site);
    api.merge(pages)
}

/// Pages of one application, and the one that opens them, may be in a frame where that is set. Those of operators never: a
/// click there could be led by whoever is around it.
async fn let_into_frames(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let Some(policy) = &site.framed else { return next.run(request).await };
    let is_portal = request.uri().path() == "/portal"
        || site.sessions.find(request.headers()).is_some_and(|session| !session.sees_all());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if is_portal && headers.contains_key(header::CONTENT_SECURITY_POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
        headers.remove(header::X_FRAME_OPTIONS);
    }
    response
}

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
