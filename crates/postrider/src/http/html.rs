//! What goes with every page of ours: headers that keep it from loading, running or being shown anything foreign, and the
//! place where browsers say that they had to refuse something.

use super::Api;
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    response::{IntoResponse, Response},
    routing::post,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use tracing::warn;

/// By which a browser knows that a script is the one that was meant.
pub fn integrity(script: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(script)))
}

/// Pages run these scripts and no others, load nothing but our own files, and turn no text into markup. `forms`: where those
/// of a page may be sent. The last word is who may show it in a frame.
pub fn policy(scripts: &[&str], forms: &str) -> String {
    let hashes: Vec<String> = scripts.iter().map(|script| format!("'{}'", integrity(script))).collect();
    format!(
        "default-src 'none'; script-src {}; style-src 'self'; img-src 'self'; connect-src 'self'; form-action {forms}; \
         base-uri 'none'; trusted-types 'none'; require-trusted-types-for 'script'; report-uri {REPORTS}; \
         frame-ancestors 'none'",
        hashes.join(" ")
    )
}

/// `referrer`: what other pages are told of where someone comes from.
pub fn page(status: StatusCode, policy: &HeaderValue, referrer: &'static str, html: impl Into<String>) -> Response {
    let mut response = (status, html.into()).into_response();
    let fixed: [(HeaderName, &str); 9] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, referrer),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
        (HeaderName::from_static("origin-agent-cluster"), "?1"),
        (HeaderName::from_static("permissions-policy"), PERMISSIONS),
    ];
    let headers = response.headers_mut();
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    response
}

/// A file that pages load. It changes with the program and not before; asking each time is cheap, and never wrong.
pub fn asset(media: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
        (RESOURCE_POLICY, "same-origin"),
    ];
    (headers, text).into_response()
}

pub fn routes() -> Router<Arc<Api>> {
    Router::new().route(REPORTS, post(report).layer(DefaultBodyLimit::max(REPORT_MAX)))
}

/// Browsers send these without being signed in, and so can everybody: they are counted, and one in a while is written down.
async fn report(State(api): State<Arc<Api>>, body: Bytes) -> StatusCode {
    let Ok(ReportIn { report }) = serde_json::from_slice(&body) else { return StatusCode::BAD_REQUEST };
    metrics::counter!("postrider_page_violations_total").increment(1);
    let now = (api.clock)().as_millis();
    let before = WRITTEN_AT.load(Ordering::Relaxed);
    let is_due = !(before..before.saturating_add(WRITE_EVERY)).contains(&now);
    if is_due && WRITTEN_AT.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let [page, refused, by] =
            [&report.document_uri, &report.blocked_uri, &report.effective_directive].map(|text| short(text));
        warn!(?page, ?refused, ?by, "a browser refused something on a page of ours, as it was told to");
    }
    StatusCode::NO_CONTENT
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

#[derive(Deserialize)]
struct ReportIn {
    #[serde(rename = "csp-report")]
    report: Report,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[derive(Default)]
struct Report {
    document_uri: String,
    blocked_uri: String,
    effective_directive: String,
}

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

const PERMISSIONS: &str = "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), \
                           microphone=(), midi=(), payment=(), publickey-credentials-get=(), usb=()";
const REPORTS: &str = "/csp-report";
const REPORT_MAX: usize = 16 * 1_024;
const TEXT_MAX: usize = 200;

/// When a report was last written to the log, in milliseconds. Of the process, as the log is.
static WRITTEN_AT: AtomicI64 = AtomicI64::new(i64::MIN);
const WRITE_EVERY: i64 = 10_000;
