//! The way in for other services' webhooks: a URL with a token that nobody can guess, and nothing else to show.
//!
//! A request is verified over its bytes as they came, made a message of the source's application, and answered once that is
//! durable. One that comes again under the same id is answered like the first and makes no second message. Whoever does not
//! know a URL learns nothing here: what is no source's answers like what never was.

use super::{
    Api,
    error::{Error, HttpErrorOut},
    extract::{path_params, read},
    messages::{refuse_own, turn_away},
    portal::base_url,
    source_log::Refusal,
};
use crate::{
    directory::AppEntry,
    ingest::{NewEvent, gate::Pass},
    sources::{self, Source, challenge::Answer, reading::is_taken},
};
use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Body as _;
use postrider_engine::Timestamp;
use postrider_store::{AcceptError, Accepted, By, StoreError};
use std::{sync::Arc, time::Duration};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(receive, ask))
}

/// Take a webhook of another service.
///
/// Answered when it is stored. The token in the path is all that it takes; what the source verifies with comes on top.
#[utoipa::path(post, path = "/ingest/in/{token}", operation_id = "v1.ingest.receive", tag = "Ingest",
    security(()),
    params(("token" = String, Path, description = "The token in the source's URL")),
    responses(
        (status = 200, description = "Stored, or stored before; or the answer to what the service asked"),
        (status = 401, body = HttpErrorOut, description = "It could not be verified; the source's log says why"),
        (status = 404, body = HttpErrorOut, description = "There is no such source"),
    ))]
async fn receive(State(api): State<Arc<Api>>, request: Request) -> Response {
    let told = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = told.unwrap_or(api.settings.body_max).min(api.settings.body_max);
    let pass = match api.ingest.gate().enter(bytes).await {
        Ok(pass) => pass,
        Err(full) => {
            count("busy");
            return turn_away(request, Error::Unavailable { retry_after: full.retry_after }).await;
        }
    };
    let (mut parts, body) = request.into_parts();
    let found = match token_in(&mut parts).await {
        Ok(token) => find(&api, &token).await.map(|app| (app, token)),
        Err(why) => Err(why),
    };
    let (app, token) = match found {
        Ok(found) => found,
        Err(why) => {
            drop(pass);
            count(if why == Error::NotFound { "unknown" } else { "failed" });
            return turn_away(Request::from_parts(parts, body), why).await;
        }
    };
    if let Err(retry_after) = api.ingest.rates().take(Some(app.application.key), &token, (api.clock)()) {
        drop(pass);
        count("limited");
        return turn_away(Request::from_parts(parts, body), Error::TooManyRequests { retry_after }).await;
    }
    take(&api, app, &token, Request::from_parts(parts, body), pass).await
}

/// Answer what some services ask before they send anything.
#[utoipa::path(get, path = "/ingest/in/{token}", operation_id = "v1.ingest.answer", tag = "Ingest",
    security(()),
    params(("token" = String, Path, description = "The token in the source's URL")),
    responses(
        (status = 200, description = "What the service wants to hear"),
        (status = 404, body = HttpErrorOut, description = "There is no such source, or it was asked nothing that it answers"),
    ))]
async fn ask(State(api): State<Arc<Api>>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let found = match token_in(&mut parts).await {
        Ok(token) => find(&api, &token).await,
        Err(why) => Err(why),
    };
    let app = match found {
        Ok(app) => app,
        Err(why) => return why.into_response(),
    };
    let query = parts.uri.query().unwrap_or_default();
    let query: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let asked =
        usable(&app).and_then(|source| source.challenge.answer_get(&parts.headers, &query).ok_or(Error::NotFound));
    match asked {
        Ok(answer) => {
            count("asked");
            answered(answer)
        }
        Err(why) => why.into_response(),
    }
}

async fn token_in(parts: &mut Parts) -> Result<String, Error> {
    let params = path_params(parts).await?;
    params.iter().find(|(name, _)| *name == "token").map(|(_, token)| token.to_owned()).ok_or(Error::NotFound)
}

/// The source whose token it is.
async fn find(api: &Api, token: &str) -> Result<Arc<AppEntry>, Error> {
    let app = sources::app_of_token(&api.ids, token).ok_or(Error::NotFound)?;
    let entry = api.directory.application(&By::Key(app)).await?.ok_or(Error::NotFound)?;
    let is_its = match &entry.source {
        Some(Ok(source)) => source.has_token(token, (api.clock)()),
        // Our own fault: the token cannot be compared.
        Some(Err(_)) => true,
        None => false,
    };
    if is_its { Ok(entry) } else { Err(Error::NotFound) }
}

fn usable(app: &AppEntry) -> Result<&Source, Error> {
    match &app.source {
        Some(Ok(source)) => Ok(source),
        Some(Err(_)) => Err(Error::Unavailable { retry_after: UNUSABLE_PAUSE }),
        None => Err(Error::NotFound),
    }
}

async fn take(api: &Api, mut app: Arc<AppEntry>, token: &str, request: Request, pass: Pass) -> Response {
    let (parts, body) = request.into_parts();
    let body = match check_head(&parts.headers, api) {
        Ok(()) => read(body, api.settings.body_max).await,
        Err(why) => Err(why),
    };
    let url = base_url(&api.settings, &parts.headers, &parts.uri);
    let url = url.zip(parts.uri.path_and_query()).map(|(base, path)| format!("{base}{path}"));
    // Anew if someone changed the source meanwhile: what it says now is what counts.
    for _ in 0..TRIES_MAX {
        let source = match usable(&app) {
            Ok(source) => source,
            Err(why) => {
                count("failed");
                return why.into_response();
            }
        };
        let now = (api.clock)();
        let refuse = |why: Error, reason: String, body: Bytes| {
            count("refused");
            let received = source.received(&parts.headers);
            let headers = received.passed_on.into_iter().chain(received.kept).collect();
            let (app, status) = (app.application.key, why.status());
            api.refusals.note(Refusal { app, at: now, status, reason, headers, body });
            why.into_response()
        };
        let body = match &body {
            Ok(body) => body,
            Err(why) => return refuse(why.clone(), why.reason(), Bytes::new()),
        };
        let verified = match source.verify(&parts.headers, body, url.as_deref(), unix(now)) {
            Ok(verified) => verified,
            Err(refusal) => {
                let mut reason = said(&refusal, &parts.headers);
                // Nobody would read it otherwise.
                if api.refusals.has_room(app.application.key) {
                    for cause in source.explain(&parts.headers, body, url.as_deref(), unix(now)) {
                        reason = format!("{reason}. It would match if not for this: {cause}");
                    }
                }
                return refuse(Error::Unverified, reason, body.clone());
            }
        };
        if let Some(answer) = source.challenge.answer(body) {
            count("asked");
            return answered(answer);
        }
        let event = NewEvent {
            content: source.content(&parts.headers, verified.and_then(|verified| verified.id), body.clone()),
            payload_expires_at: None,
            idempotency: None,
            only: None,
            // A stranger's trace is not ours to go on with, nor his to say what we sample.
            trace: None,
        };
        match api.ingest.accept_if_current(&app, event).await {
            Ok(Accepted::Now(_)) => {
                count("accepted");
                return taken(source);
            }
            // It is stored and scheduled: a sender that did not hear so must not send it once more.
            Ok(Accepted::Before(_)) | Err(AcceptError::EventIdTaken) => {
                count("repeated");
                return taken(source);
            }
            Err(AcceptError::Outdated) => match find(api, token).await {
                Ok(found) => app = found,
                Err(why) => {
                    count(if why == Error::NotFound { "unknown" } else { "failed" });
                    return why.into_response();
                }
            },
            Err(AcceptError::Store(StoreError::Busy)) => {
                drop(pass);
                count("busy");
                let retry_after = api.ingest.gate().turn_away().await.retry_after;
                return Error::Unavailable { retry_after }.into_response();
            }
            Err(AcceptError::Store(fault)) => {
                count("failed");
                return Error::from(fault).into_response();
            }
            Err(AcceptError::KeyReused) => break,
        }
    }
    count("failed");
    Error::Unavailable { retry_after: Duration::from_secs(1) }.into_response()
}

/// What is wrong, for the log.
fn said(refusal: &postrider_signature::Refusal, headers: &HeaderMap) -> String {
    match refusal {
        postrider_signature::Refusal::MissingHeader { name } if headers.contains_key(name) => {
            format!("the header {name} came more than once, or is no text")
        }
        other => other.to_string(),
    }
}

fn check_head(headers: &HeaderMap, api: &Api) -> Result<(), Error> {
    refuse_own(headers, api)?;
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Error::UnsupportedMedia("Compressed bodies are not accepted"));
    }
    match headers.get(header::CONTENT_TYPE) {
        Some(media) if !is_taken(media.as_bytes()) => {
            Err(Error::UnsupportedMedia("The body must be JSON, a form, text or XML"))
        }
        Some(_) | None => Ok(()),
    }
}

fn taken(source: &Source) -> Response {
    let mut response = StatusCode::OK.into_response();
    if let Some((name, value)) = source.challenge.echo() {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

fn answered(answer: Answer) -> Response {
    let (media, body) = match answer {
        Answer::Text(text) => ("text/plain; charset=utf-8", text),
        Answer::Json(json) => ("application/json", json.to_string()),
        Answer::Header(name, value) => return ([(name, value)], StatusCode::OK).into_response(),
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    // What it is given back is the caller's own text, which no browser is to take for a page of ours.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn unix(now: Timestamp) -> i64 {
    now.as_millis().div_euclid(1_000)
}

fn count(outcome: &'static str) {
    metrics::counter!("postrider_source_requests_total", "outcome" => outcome).increment(1);
}

/// How often a request is looked at anew, because its source has changed meanwhile.
const TRIES_MAX: usize = 3;
/// Someone has to look after it first.
const UNUSABLE_PAUSE: Duration = Duration::from_secs(60);
