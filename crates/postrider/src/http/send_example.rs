//! Sends one endpoint an example, so that its owner can see that it works.

use super::{
    Api,
    auth::InApp,
    error::{Error, HttpErrorOut, HttpValidationError},
    event_types,
    extract::{JsonBytes, Query, parse},
    fields::TypeName,
    idempotency::{IdempotencyKey, json},
    messages::{self, MessageOut},
    payload::{Detail, Shown},
};
use crate::{ingest::NewEvent, telemetry::traces::context_of, tokens::Capability};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use postrider_store::Content;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{collections::BTreeMap, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(send))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventExampleIn {
    /// `svix.ping` is always there.
    #[schema(value_type = String)]
    event_type: TypeName,
    /// Which of the schema's examples to send; the first if absent.
    example_index: Option<usize>,
}

/// Send an example message to one endpoint.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/send-example",
    operation_id = "v1.endpoint.send-example", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
        ("traceparent" = Option<String>, Header, description = "Where in a trace the caller is (W3C); the receiver goes on from there"),
    ),
    request_body = EventExampleIn,
    responses(
        (status = 202, body = MessageOut, description = "Stored, and on its way"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn send(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::CreateAttempts)?;
    query.finish()?;
    let EventExampleIn { event_type: TypeName(name), example_index } = parse(&body)?;
    let endpoint = app.endpoint(&api).await?;
    let payload = match event_types::find(&api, &app.principal, &name).await? {
        Some(found) => example(found.schemas.as_deref(), example_index.unwrap_or(0)),
        None if name == PING => PING_PAYLOAD.to_owned(),
        None => return Err(Error::invalid(["eventType"], format!("there is no event type `{name}`"))),
    };
    let event = NewEvent {
        content: Content {
            event_type: name,
            event_id: None,
            channels: Vec::new(),
            tags: Vec::new(),
            content_type: None,
            ordering_key: None,
            deliver_at: None,
            received: None,
            payload: Bytes::from(payload),
        },
        payload_expires_at: None,
        idempotency: key.of(&app.principal, &body),
        only: Some(endpoint.key),
        trace: context_of(&headers),
    };
    let shown = Shown::Stored(event.content.payload.clone());
    let message = messages::accept(&api, (&app.entry, &app.store), event, Detail::WithContent, shown, None).await?;
    Ok(json(StatusCode::ACCEPTED, &message))
}

/// An example out of the newest schema that has one, as its author wrote it.
fn example(schemas: Option<&str>, index: usize) -> String {
    #[derive(Deserialize)]
    struct Schema<'a> {
        #[serde(borrow, default)]
        examples: Vec<&'a RawValue>,
        #[serde(borrow)]
        example: Option<&'a RawValue>,
    }

    let by_version: BTreeMap<String, &RawValue> =
        schemas.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut versions: Vec<(u64, &RawValue)> =
        by_version.into_iter().filter_map(|(version, schema)| Some((version.parse().ok()?, schema))).collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let found = versions.into_iter().find_map(|(_, schema)| {
        let schema: Schema = serde_json::from_str(schema.get()).ok()?;
        let chosen = schema.examples.get(index).or(schema.examples.first()).copied();
        chosen.or(schema.example).filter(|example| example.get().starts_with('{'))
    });
    found.map_or_else(|| PLAIN_PAYLOAD.to_owned(), |example| example.get().to_owned())
}

const PING: &str = "svix.ping";
const PING_PAYLOAD: &str = r#"{"success":true}"#;
const PLAIN_PAYLOAD: &str = r#"{"example":true}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_comes_from_the_newest_schema_that_has_one() {
        for (schemas, index, expected) in [
            (None, 0, PLAIN_PAYLOAD),
            (Some("{}"), 0, PLAIN_PAYLOAD),
            (Some(r#"{"1":{"type":"object"}}"#), 0, PLAIN_PAYLOAD),
            (Some(r#"{"1":{"examples":[{"a": 1},{"a":2}]}}"#), 0, r#"{"a": 1}"#),
            (Some(r#"{"1":{"examples":[{"a":1},{"a":2}]}}"#), 1, r#"{"a":2}"#),
            (Some(r#"{"1":{"examples":[{"a":1}]}}"#), 9, r#"{"a":1}"#),
            (Some(r#"{"1":{"example":{"a":1e400}}}"#), 0, r#"{"a":1e400}"#),
            (Some(r#"{"2":{"example":{"v":2}},"10":{"example":{"v":10}}}"#), 0, r#"{"v":10}"#),
            (Some(r#"{"1":{"example":"not an object"}}"#), 0, PLAIN_PAYLOAD),
        ] {
            assert_eq!(example(schemas, index), expected, "{schemas:?} {index}");
        }
    }
}
