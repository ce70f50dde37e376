//! Our OpenAPI document, made from the routes themselves, and a page to read it.

use super::Api;
use axum::{
    Router,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use http::{HeaderName, header};
use std::sync::Arc;
use utoipa::openapi::{
    self, OpenApi,
    security::{Http, HttpAuthScheme, SecurityScheme},
};

pub fn routes(document: OpenApi) -> Router<Arc<Api>> {
    let text = Bytes::from(complete(document).to_json().expect("a document of strings serialises"));
    Router::new()
        .route("/openapi.json", get(move || async move { ([(header::CONTENT_TYPE, "application/json")], text) }))
        .route("/docs", get(|| async { page(include_str!("assets/docs.html"), DOCS_POLICY) }))
}

/// A page of our own, which may load nothing that the policy does not name.
pub fn page(html: &'static str, policy: &'static str) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    (headers, html).into_response()
}

fn complete(mut document: OpenApi) -> OpenApi {
    document.info = openapi::InfoBuilder::new()
        .title("Postrider")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Delivers webhooks. Give your token as `Authorization: Bearer <token>`."))
        .build();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    document.components.get_or_insert_default().add_security_scheme("token", bearer);
    document.security = Some(vec![openapi::SecurityRequirement::new("token", Vec::<String>::new())]);
    document
}

const DOCS_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                           connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
