//! Pages for people: what the API tells, shown in a browser.
//!
//! They are a client of the API like any other, only in the same process: a page asks with the token that its session was
//! opened with, and shows the answer. So nobody sees or does more here than he could there, and what is done here is checked,
//! limited and written down in the same way (decision 18).

mod api_keys;
mod application;
mod applications;
mod audit;
mod chart;
mod dead_letters;
mod endpoint;
mod endpoint_form;
mod event_types;
mod frame;
mod inside;
mod live;
mod message;
mod messages;
mod overview;
mod schedule;
mod session;
mod sign_in;
mod tasks;

use axum::{Router, response::Response, routing::get};
use frame::{icon, script, style};
use inside::Inside;
pub use session::Sessions;
use std::sync::Arc;

/// What the pages need.
pub struct Site {
    inside: Inside,
    sessions: Sessions,
}

/// The pages, over the routes of the API, to which they are added.
pub fn over(api: Router, sessions: Sessions) -> Router {
    let site = Arc::new(Site { inside: Inside::new(api.clone()), sessions });
    let pages = Router::new()
        .route("/dashboard.css", get(async || -> Response { style(include_str!("assets/dashboard.css")) }))
        .route("/icon.svg", get(async || -> Response { icon(include_str!("assets/icon.svg")) }))
        .route("/dashboard.js", get(async || -> Response { script(include_str!("assets/dashboard.js")) }))
        .route("/live.js", get(async || -> Response { script(include_str!("assets/live.js")) }))
        .route("/portal.js", get(async || -> Response { script(include_str!("assets/portal.js")) }))
        .merge(sign_in::routes())
        .merge(overview::routes())
        .merge(applications::routes())
        .merge(application::routes())
        .merge(endpoint::routes())
        .merge(endpoint_form::routes())
        .merge(messages::routes())
        .merge(message::routes())
        .merge(dead_letters::routes())
        .merge(live::routes())
        .merge(schedule::routes())
        .merge(event_types::routes())
        .merge(tasks::routes())
        .merge(api_keys::routes())
        .merge(audit::routes())
        .with_state(site);
    api.merge(pages)
}
