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
        .route("/docs", get(|| async { page(include_str!("assets/docs.html")) }))
        .route("/docs.js", get(|| async { script(include_str!("assets/docs.js")) }))
}

/// A page of our own, which can load nothing but our own files and call no one but us.
pub fn page(html: &'static str) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    (headers, html).into_response()
}

pub fn script(text: &'static str) -> Response {
    asset("text/javascript; charset=utf-8", text)
}

pub fn style(text: &'static str) -> Response {
    asset("text/css; charset=utf-8", text)
}

fn asset(media: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, media), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], text).into_response()
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
    document
}

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
