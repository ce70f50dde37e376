//! Adding an endpoint, and changing one.

use super::{
    Site,
    endpoint::Endpoint,
    frame::{Frame, page, to},
    inside::{Fault, Path},
    session::{Fields, Sent, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::get,
};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/new-endpoint", get(show_new).post(add))
        .route("/apps/{app}/endpoints/{endpoint}/edit", get(show).post(change))
}

#[derive(Template)]
#[template(path = "endpoint_form.html")]
struct FormPage {
    frame: Frame,
    app: String,
    /// `None`: it does not exist yet.
    endpoint: Option<String>,
    filled: Filled,
    fault: Option<String>,
}

/// What stands in the form.
#[derive(Default)]
struct Filled {
    url: String,
    description: String,
    event_types: String,
    rate: String,
}

impl Filled {
    fn of(endpoint: &Endpoint) -> Self {
        Self {
            url: endpoint.url.clone(),
            description: endpoint.description.clone(),
            event_types: endpoint.event_types.as_deref().unwrap_or_default().join(", "),
            rate: endpoint.rate_limit.map(|rate| rate.to_string()).unwrap_or_default(),
        }
    }

    fn sent(fields: &Fields) -> Self {
        let field = |name: &str| fields.get(name).unwrap_or_default().to_owned();
        Self { url: field("url"), description: field("description"), event_types: field("types"), rate: field("rate") }
    }

    /// What the API is to be told. An empty field means that there is no such limit.
    fn wanted(&self) -> Result<Value, String> {
        let types: Vec<&str> =
            self.event_types.split([',', ' ', '\n', '\r']).map(str::trim).filter(|name| !name.is_empty()).collect();
        let rate: Option<u32> = match self.rate.parse() {
            Ok(rate) => Some(rate),
            Err(_) if self.rate.is_empty() => None,
            Err(_) => return Err("Requests a second must be a number, or empty for no limit".to_owned()),
        };
        let types = (!types.is_empty()).then_some(types);
        Ok(json!({"url": self.url, "description": self.description, "eventTypes": types, "rateLimit": rate}))
    }
}

async fn show_new(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
) -> Result<Response, Fault> {
    let _: Value = site.inside.get(&session, &Path::api(&["app", &app])).await?;
    session.who().require(|may| may.manage)?;
    let frame = Frame::new(&session);
    Ok(page(&FormPage { frame, app, endpoint: None, filled: Filled::default(), fault: None }))
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, id)): Named<(String, String)>,
) -> Result<Response, Fault> {
    let endpoint: Endpoint = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id])).await?;
    session.who().require(|may| may.manage)?;
    let (frame, filled) = (Frame::new(&session), Filled::of(&endpoint));
    Ok(page(&FormPage { frame, app, endpoint: Some(endpoint.id), filled, fault: None }))
}

async fn add(State(site): State<Arc<Site>>, Named(app): Named<String>, sent: Sent) -> Result<Response, Fault> {
    let path = Path::api(&["app", &app, "endpoint"]);
    write(&site, sent, (app, None), Method::POST, &path, "added").await
}

async fn change(
    State(site): State<Arc<Site>>,
    Named((app, id)): Named<(String, String)>,
    sent: Sent,
) -> Result<Response, Fault> {
    let path = Path::api(&["app", &app, "endpoint", &id]);
    write(&site, sent, (app, Some(id)), Method::PATCH, &path, "changed").await
}

/// What the API does not take is shown again as it was filled in, with the reason.
async fn write(
    site: &Site,
    Sent { session, fields }: Sent,
    (app, endpoint): (String, Option<String>),
    method: Method,
    path: &Path,
    done: &str,
) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    struct Written {
        id: String,
    }

    let filled = Filled::sent(&fields);
    let fault = match filled.wanted() {
        Err(fault) => fault,
        Ok(wanted) => match site.inside.put::<Written>(&session, method, path, wanted).await {
            Ok(Written { id }) => {
                return Ok(to(&Path::page(&["apps", &app, "endpoints", &id]).with("done", Some(done))));
            }
            Err(Fault::Refused { status: StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT, detail }) => detail,
            Err(other) => return Err(other),
        },
    };
    Ok(page(&FormPage { frame: Frame::new(&session), app, endpoint, filled, fault: Some(fault) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_field_is_no_limit() {
        let filled = |types: &str, rate: &str| Filled {
            url: "https://example.com".to_owned(),
            description: String::new(),
            event_types: types.to_owned(),
            rate: rate.to_owned(),
        };
        let wanted = filled("", "").wanted().unwrap();
        assert!(wanted["eventTypes"].is_null() && wanted["rateLimit"].is_null());
        let wanted = filled("order.paid, order.sent\r\nuser.gone", "20").wanted().unwrap();
        assert_eq!(wanted["eventTypes"], json!(["order.paid", "order.sent", "user.gone"]));
        assert_eq!(wanted["rateLimit"], 20);
        assert!(filled("", "many").wanted().is_err());
    }
}
