//! When each attempt would run, drawn while a policy is being edited; and setting it for an endpoint.

use super::{
    Site,
    chart::{self, WIDTH},
    frame::{Frame, page, to},
    inside::{Fault, Path},
    session::{Fields, Sent, Session},
};
use crate::{
    config::show_duration,
    rules::preview::{PlannedOut, PreviewOut},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::get,
};
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/schedule", get(show))
        .route("/apps/{app}/endpoints/{endpoint}/schedule", get(show_of_endpoint).post(set))
}

#[derive(Deserialize)]
struct Preset {
    name: String,
    about: String,
}

/// What stands in the form. All of it may be left empty: then it is as the layers below say.
#[derive(Default)]
struct Filled {
    preset: String,
    shape: String,
    delays: String,
    factor: String,
    cap: String,
    jitter: String,
    attempts: String,
    time: String,
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    frame: Frame,
    presets: Vec<Preset>,
    filled: Filled,
    /// What cannot be drawn, and why.
    fault: Option<String>,
    rows: Vec<Row>,
    ends: String,
    budget: String,
    warnings: Vec<String>,
    /// Whose it is, if it is anybody's.
    of: Option<(String, String)>,
}

/// An attempt, from its earliest to its latest moment.
struct Row {
    attempt: u32,
    x: f64,
    width: f64,
    when: String,
    certain: bool,
}

const SHAPES: [&str; 3] = ["exponential", "fixed", "table"];
const JITTERS: [&str; 6] = ["none", "full", "equal", "decorrelated", "proportional 10", "additive 10"];

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let filled = Filled::sent(&query);
    let drawn = preview(&site, &session, &Path::api(&["schedule"]), &filled, &Value::Null).await;
    shown(&site, &session, filled, drawn, None, query.get("done")).await
}

async fn show_of_endpoint(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, endpoint)): Named<(String, String)>,
    query: Fields,
) -> Result<Response, Fault> {
    let path = ["app", app.as_str(), "endpoint", endpoint.as_str()];
    let stored: Value = site.inside.get(&session, &Path::api(&path)).await?;
    let (filled, drawn) = match query.get("edited") {
        Some(_) => {
            let filled = Filled::sent(&query);
            let over = Path::api(&["app", &app, "schedule"]);
            let drawn = preview(&site, &session, &over, &filled, &stored["retryPolicy"]).await;
            (filled, drawn)
        }
        None => {
            let own = Path::api(&[&path[..], &["schedule"]].concat());
            (Filled::of(&stored["retryPolicy"]), site.inside.get(&session, &own).await)
        }
    };
    shown(&site, &session, filled, drawn, Some((app, endpoint)), query.get("done")).await
}

/// Sets what the form says, and nothing else of the endpoint.
async fn set(
    State(site): State<Arc<Site>>,
    Named((app, endpoint)): Named<(String, String)>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let filled = Filled::sent(&fields);
    let path = Path::api(&["app", &app, "endpoint", &endpoint]);
    let stored: Value = site.inside.get(&session, &path).await?;
    let policy = filled.policy_over(&stored["retryPolicy"]);
    let policy = if policy.is_empty() { Value::Null } else { Value::Object(policy) };
    match site.inside.put::<Value>(&session, Method::PATCH, &path, json!({ "retryPolicy": policy })).await {
        Ok(_) => {
            let page = Path::page(&["apps", &app, "endpoints", &endpoint, "schedule"]);
            Ok(to(&page.with("done", Some("changed"))))
        }
        Err(refused @ Fault::Refused { .. }) => {
            shown(&site, &session, filled, Err(refused), Some((app, endpoint)), None).await
        }
        Err(other) => Err(other),
    }
}

/// `over`: drawn over what the server says, or over what an application says besides.
async fn preview(
    site: &Site,
    session: &Session,
    over: &Path,
    filled: &Filled,
    stored: &Value,
) -> Result<PreviewOut, Fault> {
    let body = json!({ "retryPolicy": filled.policy_over(stored) });
    site.inside.put(session, Method::POST, over, body).await
}

async fn shown(
    site: &Site,
    session: &Session,
    filled: Filled,
    drawn: Result<PreviewOut, Fault>,
    of: Option<(String, String)>,
    done: Option<&str>,
) -> Result<Response, Fault> {
    let presets = site.inside.get(session, &Path::api(&["preset"])).await?;
    let mut shown = SchedulePage {
        frame: Frame::after(session, done),
        presets,
        filled,
        fault: None,
        rows: Vec::new(),
        ends: String::new(),
        budget: String::new(),
        warnings: Vec::new(),
        of,
    };
    match drawn {
        Ok(preview) => {
            shown.rows = rows(&preview.attempts);
            shown.ends = preview.ends;
            shown.budget =
                format!("At most {} attempts within {}", preview.max_attempts, show_duration(preview.give_up_after.0));
            shown.warnings = preview.warnings;
        }
        Err(Fault::Refused { detail, .. }) => shown.fault = Some(detail),
        Err(other) => return Err(other),
    }
    Ok(page(&shown))
}

/// On a scale on which both seconds and days are seen.
fn rows(attempts: &[PlannedOut]) -> Vec<Row> {
    let last = attempts.last().map_or(1.0, |last| last.latest.0.as_secs_f64().max(1.0)).ln_1p();
    let place = |time: Duration| time.as_secs_f64().ln_1p() / last * (WIDTH - 4.0);
    let rounded = |value: f64| (value * 10.0).round() / 10.0;
    let row = |planned: &PlannedOut| {
        let (from, to) = (place(planned.earliest.0), place(planned.latest.0));
        let when = |time: Duration| chart::duration(time.as_secs_f64() * 1_000.0);
        Row {
            attempt: planned.attempt,
            x: rounded(from),
            width: rounded((to - from).max(4.0)),
            when: if planned.earliest == planned.latest {
                format!("after {}", when(planned.nominal.0))
            } else {
                format!("after {} to {}", when(planned.earliest.0), when(planned.latest.0))
            },
            certain: planned.certain,
        }
    };
    attempts.iter().map(row).collect()
}

impl Filled {
    fn sent(fields: &Fields) -> Self {
        let field = |name: &str| fields.get(name).unwrap_or_default().trim().to_owned();
        Self {
            preset: field("preset"),
            shape: field("shape"),
            delays: field("delays"),
            factor: field("factor"),
            cap: field("cap"),
            jitter: field("jitter"),
            attempts: field("attempts"),
            time: field("time"),
        }
    }

    /// What an endpoint says itself.
    fn of(policy: &Value) -> Self {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            _ => String::new(),
        };
        let schedule = &policy["schedule"];
        let delays = ["base", "interval", "delays"].into_iter().map(|name| text(&schedule[name]));
        Self {
            preset: text(&policy["preset"]),
            shape: text(&schedule["type"]),
            delays: delays.collect(),
            factor: text(&schedule["factor"]),
            cap: text(&schedule["cap"]),
            jitter: match &policy["jitter"] {
                Value::Object(jitter) => format!("{} {}", text(&jitter["type"]), text(&jitter["percent"])),
                other => text(other),
            },
            attempts: text(&policy["maxAttempts"]),
            time: text(&policy["giveUpAfter"]),
        }
    }

    /// What the form says, with what an endpoint says besides, of which the form knows nothing.
    fn policy_over(&self, stored: &Value) -> Map<String, Value> {
        let mut policy = self.policy();
        for name in ["ambiguous", "holdFor", "retryAfter", "followRedirects"] {
            if let Some(kept) = stored.get(name).filter(|kept| !kept.is_null()) {
                policy.insert(name.to_owned(), kept.clone());
            }
        }
        let then = &stored["schedule"]["then"];
        if let (Some(Value::Object(schedule)), "table", false) =
            (policy.get_mut("schedule"), self.shape.as_str(), then.is_null())
        {
            schedule.insert("then".to_owned(), then.clone());
        }
        policy
    }

    /// As the API takes it, which says what is wrong with it.
    fn policy(&self) -> Map<String, Value> {
        let mut policy = Map::new();
        let mut schedule = Map::new();
        let number = |text: &str| text.parse::<serde_json::Number>().map_or_else(|_| text.into(), Value::Number);
        if !self.shape.is_empty() {
            schedule.insert("type".to_owned(), self.shape.clone().into());
            let delays = match self.shape.as_str() {
                "table" => self.delays.split(',').map(str::trim).filter(|delay| !delay.is_empty()).collect(),
                _ => Value::from(self.delays.clone()),
            };
            let name = match self.shape.as_str() {
                "exponential" => "base",
                "fixed" => "interval",
                _ => "delays",
            };
            schedule.insert(name.to_owned(), delays);
            if !self.factor.is_empty() {
                schedule.insert("factor".to_owned(), number(&self.factor));
            }
            if !self.cap.is_empty() {
                schedule.insert("cap".to_owned(), self.cap.clone().into());
            }
            policy.insert("schedule".to_owned(), Value::Object(schedule));
        }
        if let Some((kind, percent)) = self.jitter.split_once(' ') {
            policy.insert("jitter".to_owned(), json!({ "type": kind, "percent": number(percent.trim()) }));
        } else if !self.jitter.is_empty() {
            policy.insert("jitter".to_owned(), self.jitter.clone().into());
        }
        for (name, text) in [("preset", &self.preset), ("giveUpAfter", &self.time)] {
            if !text.is_empty() {
                policy.insert(name.to_owned(), text.clone().into());
            }
        }
        if !self.attempts.is_empty() {
            policy.insert("maxAttempts".to_owned(), number(&self.attempts));
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_endpoint_says_comes_back_out_of_the_form() {
        for policy in [
            json!({}),
            json!({"preset": "default", "maxAttempts": 3}),
            json!({"schedule": {"type": "exponential", "base": "5s", "factor": 2.5, "cap": "1h"}, "jitter": "full"}),
            json!({"schedule": {"type": "table", "delays": ["1s", "5m"]}, "giveUpAfter": "2d"}),
            json!({"schedule": {"type": "fixed", "interval": "10m"}, "jitter": {"type": "additive", "percent": 20}}),
            json!({"schedule": {"type": "table", "delays": ["1s"], "then": "stop"}, "holdFor": "1d", "followRedirects": 2}),
        ] {
            assert_eq!(Value::Object(Filled::of(&policy).policy_over(&policy)), policy);
        }
    }
}
