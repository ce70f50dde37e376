//! Our OpenAPI document, made from the routes themselves, and a page to read it.

use super::{Api, html};
use axum::{Router, routing::get};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use std::sync::{Arc, LazyLock};
use utoipa::openapi::{
    self, ContentBuilder, OpenApi, PathItem, Ref, RefOr, ResponseBuilder, Schema,
    path::Operation,
    security::{Http, HttpAuthScheme, SecurityScheme},
};

pub fn routes(document: OpenApi) -> Router<Arc<Api>> {
    let text = Bytes::from(complete(document).to_json().expect("a document of strings serialises"));
    Router::new()
        .route("/openapi.json", get(move || async move { ([(header::CONTENT_TYPE, "application/json")], text) }))
        .route("/docs", get(|| async { html::page(StatusCode::OK, &POLICY, "no-referrer", PAGE.as_str()) }))
        .route("/docs.js", get(|| async { html::asset("text/javascript; charset=utf-8", SCRIPT) }))
        .route("/page.css", get(|| async { html::asset("text/css; charset=utf-8", include_str!("assets/page.css")) }))
}

pub fn complete(mut document: OpenApi) -> OpenApi {
    document.info = openapi::InfoBuilder::new()
        .title("Postrider")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Delivers webhooks. Give your token as `Authorization: Bearer <token>`."))
        .build();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    document.components.get_or_insert_default().add_security_scheme("token", bearer);
    document.security = Some(vec![openapi::SecurityRequirement::new("token", Vec::<String>::new())]);
    for operation in document.paths.paths.values_mut().flat_map(operations_of) {
        name_refusals(operation);
    }
    open_up(&mut document, "Rules");
    document
}

fn operations_of(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, options, head, patch, trace, .. } = path;
    [get, put, post, delete, options, head, patch, trace].into_iter().flatten()
}

/// What any operation may answer, where it does not say more about it itself.
fn name_refusals(operation: &mut Operation) {
    for (status, description, schema) in REFUSALS {
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| {
            let body = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
            RefOr::T(ResponseBuilder::new().description(description).content("application/json", body).build())
        });
    }
}

/// Others are made of it and more, which a schema that allows no more would forbid.
fn open_up(document: &mut OpenApi, name: &str) {
    let schemas = document.components.get_or_insert_default();
    if let Some(RefOr::T(Schema::Object(object))) = schemas.schemas.get_mut(name) {
        object.additional_properties = None;
    }
}

const REFUSALS: [(&str, &str, &str); 12] = [
    ("400", "A value that cannot be used", "HttpErrorOut"),
    ("401", "No token, or one that does not hold", "HttpErrorOut"),
    ("403", "The token is not for this", "HttpErrorOut"),
    ("404", "There is no such thing, or it is another's", "HttpErrorOut"),
    ("408", "The body came too slowly", "HttpErrorOut"),
    ("409", "It is there already, or has changed meanwhile", "HttpErrorOut"),
    ("413", "The body is too large", "HttpErrorOut"),
    ("415", "The body is not plain JSON", "HttpErrorOut"),
    ("422", "Fields that are wrong, each with its place", "HttpValidationError"),
    ("429", "Too much; `Retry-After` says when to come again", "HttpErrorOut"),
    ("500", "A fault of the server's", "HttpErrorOut"),
    ("503", "Not now; `Retry-After` says when to come again", "HttpErrorOut"),
];

static POLICY: LazyLock<HeaderValue> =
    LazyLock::new(|| HeaderValue::try_from(html::policy(&[SCRIPT], "'none'")).expect("hashes and words"));

/// With the hash of what it runs.
static PAGE: LazyLock<String> =
    LazyLock::new(|| include_str!("assets/docs.html").replace("{integrity}", &html::integrity(SCRIPT)));

const SCRIPT: &str = include_str!("assets/docs.js");
