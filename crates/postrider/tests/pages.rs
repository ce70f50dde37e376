//! Pages run our own scripts and nothing else, and browsers can say when they had to refuse something.

mod support;

use axum::body::Body;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{Method, Request};
use serde_json::json;
use sha2::{Digest, Sha256};
use support::{api::Client, eventually, house::House, server::Server};

#[tokio::test]
async fn every_page_says_what_it_may_do_and_names_its_scripts_by_hash() {
    let server = Server::start();
    let mut client = Client::new(server.address(), server.token());
    for (path, scripts) in [("/sign-in", &[][..]), ("/portal", &["/portal.js"]), ("/docs", &["/docs.js"])] {
        let (parts, body) = client.send_whole(Method::GET, path, &[], "").await.expect("an answer");
        assert_eq!(parts.status, 200, "{path}");
        let policy = parts.headers["content-security-policy"].to_str().expect("text");
        for part in [
            "default-src 'none'; ",
            "trusted-types 'none'; ",
            "require-trusted-types-for 'script'; ",
            "base-uri 'none'; ",
            "report-uri /csp-report; ",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {part} is not in {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        for name in parts.headers.keys().filter(|name| *name != "vary") {
            assert_eq!(parts.headers.get_all(name).iter().count(), 1, "{path}: {name}");
        }
        for (name, value) in [
            ("content-type", "text/html; charset=utf-8"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("origin-agent-cluster", "?1"),
        ] {
            assert_eq!(parts.headers[name], value, "{path}: {name}");
        }
        assert!(parts.headers["permissions-policy"].to_str().expect("text").contains("camera=()"), "{path}");
        assert!(parts.headers.contains_key("referrer-policy"), "{path}");
        let page = String::from_utf8_lossy(&body).into_owned();
        for script in scripts {
            let (_, text) = client.send_whole(Method::GET, script, &[], "").await.expect("an answer");
            let hash = format!("sha256-{}", STANDARD.encode(Sha256::digest(&text)));
            assert!(policy.contains(&format!("'{hash}'")), "{path}: {script} is not in {policy}");
            assert!(page.contains(&format!(r#"<script src="{script}" integrity="{hash}" defer>"#)), "{page}");
        }
        assert_eq!(page.matches("<script").count(), scripts.len(), "{path}");
    }
}

#[tokio::test]
async fn what_browsers_refuse_is_counted_and_written_down_now_and_then() {
    let server = Server::start();
    let mut client = Client::new(server.address(), server.token());
    let seen = "http://127.0.0.1/apps/x\n forged line";
    let body =
        json!({"csp-report": {"document-uri": seen, "blocked-uri": "inline", "effective-directive": "script-src"}});
    for _ in 0..3 {
        let answer = client.send(Method::POST, "/csp-report", &[], &body.to_string()).await.expect("an answer");
        assert_eq!(answer.0, 204);
    }
    let metrics = client.metrics().await;
    assert!(metrics.contains("postrider_page_violations_total 3"), "{metrics}");
    let is_told = async || server.log().contains("a browser refused something").then_some(());
    eventually("a line", is_told).await;
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("a browser refused something")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(
        lines[0].contains("inline") && lines[0].contains("script-src") && lines[0].contains("forged line"),
        "{log}"
    );
}

#[tokio::test]
async fn a_report_that_is_none_is_refused() {
    let house = House::new();
    let ask = async |body: String| {
        let request = Request::post("/csp-report").body(Body::from(body)).unwrap();
        house.ask(request).await.status.as_u16()
    };
    assert_eq!(ask("{}".to_owned()).await, 400);
    assert_eq!(ask("no JSON".to_owned()).await, 400);
    assert_eq!(ask(json!({"csp-report": {"blocked-uri": "x".repeat(20_000)}}).to_string()).await, 413);
}
