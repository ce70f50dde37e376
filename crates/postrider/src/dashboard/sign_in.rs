//! Signing in with a token, and out again.

use super::{
    Site,
    applications::Application,
    frame::{page, to},
    inside::{Fault, Path},
    session::{Fields, Newcomer, Sent, Session},
    who::Whoami,
};
use crate::http::time::Time;
use askama::Template;
use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::{get, post},
};
use http::{HeaderValue, Method, header};
use serde_json::Value;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/sign-in", get(show).post(sign_in))
        .route("/sign-out", post(sign_out))
        .route("/", get(home))
        .route("/portal", get(portal))
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignInPage {
    fault: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "portal.html")]
struct PortalPage {
    /// Then it is asked first: the link may be someone else's.
    is_signed_in: bool,
}

/// Where a link for a customer leads: it signs in with the key that the link brings.
async fn portal(session: Result<Session, Fault>) -> Response {
    page(&PortalPage { is_signed_in: session.is_ok() })
}

async fn show() -> Response {
    page(&SignInPage { fault: None })
}

/// Where someone belongs who has signed in: with a token for one application, there.
async fn home(State(site): State<Arc<Site>>, session: Session) -> Result<Response, Fault> {
    let who: Value = site.inside.get(&session, &Path::api(&["auth", "whoami"])).await?;
    Ok(to(&match who["appId"].as_str() {
        Some(app) => Path::page(&["apps", app]),
        None => Path::page(&["overview"]),
    }))
}

/// There is no session yet that a form could belong to; browsers say whether it was sent by another page.
async fn sign_in(State(site): State<Arc<Site>>, request: Request) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let fields = Fields::read(&parts, body).await?;
    let Some(token) = fields.get("token") else { return Ok(page(&SignInPage { fault: Some("Paste a token first.") })) };
    let caller = (token, parts.extensions.get().copied());
    match site.inside.call(caller, Method::GET, &Path::api(&["auth", "whoami"]), None).await {
        Ok(answer) => {
            let whoami: Whoami = serde_json::from_slice(&answer).unwrap_or_default();
            let app = match &whoami.app_id {
                Some(id) => site.inside.call(caller, Method::GET, &Path::api(&["app", id]), None).await.ok(),
                None => None,
            };
            let app = app.and_then(|answer| serde_json::from_slice::<Application>(&answer).ok());
            let who = whoami.who(app.as_ref().map(|app| app.name.as_str()));
            let ends_at = whoami.expires_at.as_deref().and_then(|text| text.parse::<Time>().ok()).map(|time| time.0);
            match site.sessions.open(token, Newcomer { app: whoami.app_id, who, ends_at }) {
                Some(cookies) => Ok(with_cookies(to(&Path::page(&[""])), cookies)),
                None => Ok(page(&SignInPage { fault: Some("This token is too long for a browser's cookie.") })),
            }
        }
        Err(Fault::SignedOut) => Ok(page(&SignInPage { fault: Some("This token does not hold here.") })),
        Err(other) => Err(other),
    }
}

async fn sign_out(State(site): State<Arc<Site>>, _: Sent) -> Response {
    with_cookies(to(&Path::page(&["sign-in"])), site.sessions.close())
}

fn with_cookies(mut response: Response, cookies: Vec<HeaderValue>) -> Response {
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}
