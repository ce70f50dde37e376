//! The test button: one alert through every channel, and what came of each.

use super::{
    Api,
    auth::Environment,
    error::Error,
    extract::{NoBody, Query},
    idempotency::json,
};
use crate::alerts::trial::{Came, Mailed};
use axum::{extract::State, response::Response};
use http::StatusCode;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(test))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AlertTestOut {
    /// `written`.
    log: &'static str,
    mail: MailTestOut,
    /// One for each operational endpoint.
    webhooks: Vec<WebhookTestOut>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MailTestOut {
    /// `off` (no mail server is set), `sent` or `failed`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTestOut {
    endpoint_id: String,
    /// `delivered`, `failed` (it is tried again as usual), `waiting` (not tried within five seconds) or `disabled`.
    status: &'static str,
    /// Of an attempt that was answered and failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status_code: Option<u16>,
}

/// Send a test alert through every channel.
///
/// It takes up to five seconds, if a mail server or an endpoint does not answer.
#[utoipa::path(post, path = "/api/v1/alert/test", operation_id = "v1.alert.test", tag = "Alert",
    responses((status = 200, body = AlertTestOut)))]
async fn test(State(api): State<Arc<Api>>, _: Environment, query: Query, _: NoBody) -> Result<Response, Error> {
    query.finish()?;
    let outcome = api.trial.run((api.clock)()).await?;
    let mail = match outcome.mail {
        Mailed::Off => MailTestOut { status: "off", detail: None },
        Mailed::Sent => MailTestOut { status: "sent", detail: None },
        Mailed::Failed(why) => MailTestOut { status: "failed", detail: Some(why) },
    };
    let webhooks = outcome.webhooks.into_iter().map(|(endpoint, came)| {
        let (status, response_status_code) = match came {
            Came::Delivered => ("delivered", None),
            Came::Failed(status) => ("failed", status),
            Came::Waiting => ("waiting", None),
            Came::Disabled => ("disabled", None),
        };
        WebhookTestOut { endpoint_id: api.ids.id_of(endpoint), status, response_status_code }
    });
    Ok(json(StatusCode::OK, &AlertTestOut { log: "written", mail, webhooks: webhooks.collect() }))
}
