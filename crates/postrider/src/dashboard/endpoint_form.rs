//! Adding an endpoint, and changing one: what it is called, what it gets, and by which rules.

use super::{
    Site,
    frame::{Frame, page, to},
    inside::{Fault, Path},
    session::{Fields, Sent, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::{get, post},
};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/new-endpoint", get(show_new).post(add))
        .route("/apps/{app}/endpoints/{endpoint}/edit", get(show).post(change))
        .route("/apps/{app}/endpoints/{endpoint}/headers", post(change_headers))
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
    headers: Headers,
    headers_fault: Option<String>,
}

/// What an endpoint's requests bring along besides.
#[derive(Default, Deserialize)]
struct Headers {
    headers: BTreeMap<String, String>,
    /// Names of those that are not shown.
    sensitive: Vec<String>,
    /// As they were filled in.
    #[serde(skip)]
    text: String,
}

/// What stands in the form, by the name of the field.
#[derive(Default)]
struct Filled(BTreeMap<&'static str, String>);

const FIELDS: [&str; 21] = [
    "url",
    "uid",
    "description",
    "types",
    "channels",
    "rate",
    "in_flight",
    "ordering",
    "connect",
    "first_byte",
    "total",
    "overrides",
    "breaker",
    "failures",
    "cool_down",
    "cool_down_max",
    "while_open",
    "disable",
    "failing_for",
    "streak",
    "headers",
];

/// Rules with several fields: the one that turns it on or off, its name in the API, and its parts there and here.
const BREAKER: [(&str, &str); 4] = [
    ("failures", "failures"),
    ("coolDown", "cool_down"),
    ("coolDownMax", "cool_down_max"),
    ("whileOpen", "while_open"),
];
const DISABLE: [(&str, &str); 2] = [("failingFor", "failing_for"), ("permanentStreak", "streak")];
const TIMEOUTS: [(&str, &str); 3] = [("connect", "connect"), ("firstByte", "first_byte"), ("total", "total")];
/// What says that a part of a rule never acts.
const NEVER: &str = "never";

impl Filled {
    fn sent(fields: &Fields) -> Self {
        let given = FIELDS.into_iter().filter_map(|name| Some((name, fields.get(name)?.to_owned())));
        Self(given.collect())
    }

    fn of(endpoint: &Value) -> Self {
        let mut filled = BTreeMap::from([
            ("url", text(&endpoint["url"])),
            ("uid", text(&endpoint["uid"])),
            ("description", text(&endpoint["description"])),
            ("types", text(&endpoint["eventTypes"])),
            ("channels", text(&endpoint["channels"])),
            ("rate", text(&endpoint["rateLimit"])),
            ("in_flight", text(&endpoint["maxInFlight"])),
            ("ordering", text(&endpoint["ordering"])),
        ]);
        for (name, field) in TIMEOUTS {
            filled.insert(field, text(&endpoint["timeouts"][name]));
        }
        let overrides = endpoint["statusOverrides"].as_object().into_iter().flatten();
        let overrides = overrides.map(|(outcome, meaning)| format!("{outcome}: {}", text(meaning)));
        filled.insert("overrides", overrides.collect::<Vec<_>>().join("\n"));
        for (rule, switch, parts) in
            [("circuitBreaker", "breaker", &BREAKER[..]), ("autoDisable", "disable", &DISABLE[..])]
        {
            let said = &endpoint[rule];
            let switched = match said {
                Value::Null => "",
                Value::Bool(false) => "off",
                _ => "on",
            };
            filled.insert(switch, switched.to_owned());
            for (name, field) in parts {
                filled.insert(field, text(&said[*name]));
            }
        }
        Self(filled)
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether anything besides the first few fields is filled in.
    fn has_rules(&self) -> bool {
        FIELDS[6..20].iter().any(|name| !self.get(name).is_empty())
    }

    /// What the API is to be told. An empty field means that nothing is said here. What a form knows nothing of is left as
    /// it is.
    fn wanted(&self) -> Result<Map<String, Value>, String> {
        let rate = match self.get("rate") {
            "" => Value::Null,
            text => text
                .parse::<u32>()
                .map(Value::from)
                .map_err(|_| "Requests a second must be a number, or empty for no limit".to_owned())?,
        };
        let fields = [
            ("url", self.get("url").into()),
            ("uid", or_null(self.get("uid"))),
            ("description", self.get("description").into()),
            ("eventTypes", list(self.get("types"))),
            ("channels", list(self.get("channels"))),
            ("rateLimit", rate),
            ("maxInFlight", number_or_text(self.get("in_flight"))),
            ("ordering", or_null(self.get("ordering"))),
            ("timeouts", self.parts(&TIMEOUTS).map_or(Value::Null, Value::Object)),
            ("statusOverrides", overrides(self.get("overrides"))?),
            ("circuitBreaker", self.rule("breaker", &BREAKER, "breaker")?),
            ("autoDisable", self.rule("disable", &DISABLE, "rule for disabling")?),
        ];
        Ok(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// A rule that can be turned off, and whose parts may each be left to who is further away.
    fn rule(&self, switch: &str, parts: &[(&str, &str)], called: &str) -> Result<Value, String> {
        match (self.get(switch), self.parts(parts)) {
            ("off", Some(_)) => {
                Err(format!("The {called} is turned off and has numbers besides: clear one of the two"))
            }
            ("off", None) => Ok(Value::Bool(false)),
            ("on", None) => Ok(json!({})),
            (_, Some(parts)) => Ok(Value::Object(parts)),
            (_, None) => Ok(Value::Null),
        }
    }

    fn parts(&self, parts: &[(&str, &str)]) -> Option<Map<String, Value>> {
        let given = parts.iter().filter(|(_, field)| !self.get(field).is_empty());
        let given = given.map(|(name, field)| ((*name).to_owned(), number_or_text(self.get(field))));
        Some(given.collect::<Map<_, _>>()).filter(|given| !given.is_empty())
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        Value::Bool(false) => NEVER.to_owned(),
        Value::Null | Value::Bool(true) | Value::Object(_) => String::new(),
    }
}

pub fn or_null(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { text.into() }
}

fn number_or_text(text: &str) -> Value {
    match (text, text.parse::<u32>()) {
        (NEVER, _) => Value::Bool(false),
        (_, Ok(number)) => number.into(),
        (_, Err(_)) => or_null(text),
    }
}

/// None means all.
pub fn list(text: &str) -> Value {
    let names: Vec<&str> = text.split([',', ' ', '\n', '\r']).map(str::trim).filter(|name| !name.is_empty()).collect();
    if names.is_empty() { Value::Null } else { names.into() }
}

/// `404: retry`, each in a line or behind a comma.
fn overrides(text: &str) -> Result<Value, String> {
    let lines = text.split(['\n', '\r', ',']).map(str::trim).filter(|line| !line.is_empty());
    let mut said = Map::new();
    for line in lines {
        let (outcome, meaning) = line
            .split_once(':')
            .ok_or_else(|| format!("`{line}` must be an answer and what it means, such as 404: retry"))?;
        if said.insert(outcome.trim().to_owned(), meaning.trim().into()).is_some() {
            return Err(format!("What `{}` means is said twice", outcome.trim()));
        }
    }
    Ok(if said.is_empty() { Value::Null } else { Value::Object(said) })
}

/// `Name: value`, each in a line.
fn headers(text: &str) -> Result<BTreeMap<String, String>, String> {
    let (mut said, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| "A header is a name and a value, such as X-Source: postrider".to_owned())?;
        if !seen.insert(name.trim().to_ascii_lowercase()) {
            return Err(format!("The header `{}` is there twice", name.trim()));
        }
        said.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    Ok(said)
}

impl Headers {
    async fn of(site: &Site, session: &Session, app: &str, endpoint: &str) -> Result<Self, Fault> {
        let path = Path::api(&["app", app, "endpoint", endpoint, "headers"]);
        let mut headers: Self = site.inside.get(session, &path).await?;
        let lines = headers.headers.iter().map(|(name, value)| format!("{name}: {value}"));
        headers.text = lines.collect::<Vec<_>>().join("\n");
        Ok(headers)
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
    Ok(page(&FormPage {
        frame,
        app,
        endpoint: None,
        filled: Filled::default(),
        fault: None,
        headers: Headers::default(),
        headers_fault: None,
    }))
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, id)): Named<(String, String)>,
) -> Result<Response, Fault> {
    let endpoint: Value = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id])).await?;
    session.who().require(|may| may.manage)?;
    let headers = Headers::of(&site, &session, &app, &id).await?;
    let (frame, filled) = (Frame::new(&session), Filled::of(&endpoint));
    Ok(page(&FormPage { frame, app, endpoint: Some(id), filled, fault: None, headers, headers_fault: None }))
}

async fn add(
    State(site): State<Arc<Site>>,
    Named(app): Named<String>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let filled = Filled::sent(&fields);
    let wanted = filled.wanted().and_then(|mut wanted| {
        wanted.insert("headers".to_owned(), json!(headers(filled.get("headers"))?));
        Ok(wanted)
    });
    let path = Path::api(&["app", &app, "endpoint"]);
    let fault = match write(&site, &session, Method::POST, &path, wanted).await? {
        Ok(id) => return Ok(to(&Path::page(&["apps", &app, "endpoints", &id]).with("done", Some("added")))),
        Err(fault) => Some(fault),
    };
    let (frame, headers) = (Frame::new(&session), Headers::default());
    Ok(page(&FormPage { frame, app, endpoint: None, filled, fault, headers, headers_fault: None }))
}

async fn change(
    State(site): State<Arc<Site>>,
    Named((app, id)): Named<(String, String)>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let filled = Filled::sent(&fields);
    let path = Path::api(&["app", &app, "endpoint", &id]);
    let fault = match write(&site, &session, Method::PATCH, &path, filled.wanted()).await? {
        Ok(id) => return Ok(to(&Path::page(&["apps", &app, "endpoints", &id]).with("done", Some("changed")))),
        Err(fault) => Some(fault),
    };
    let headers = Headers::of(&site, &session, &app, &id).await?;
    let frame = Frame::new(&session);
    Ok(page(&FormPage { frame, app, endpoint: Some(id), filled, fault, headers, headers_fault: None }))
}

/// The id of what was written, or why nothing was: that is shown beside what was filled in.
async fn write(
    site: &Site,
    session: &Session,
    method: Method,
    path: &Path,
    wanted: Result<Map<String, Value>, String>,
) -> Result<Result<String, String>, Fault> {
    #[derive(Deserialize)]
    struct Written {
        id: String,
    }

    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(fault) => return Ok(Err(fault)),
    };
    match site.inside.put::<Written>(session, method, path, Value::Object(wanted)).await {
        Ok(Written { id }) => Ok(Ok(id)),
        Err(Fault::Refused { status: StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT, detail }) => {
            Ok(Err(detail))
        }
        Err(other) => Err(other),
    }
}

/// A form of its own, because the API changes them by themselves: so each form does all of what it says, or nothing.
async fn change_headers(
    State(site): State<Arc<Site>>,
    Named((app, id)): Named<(String, String)>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let mut shown = Headers::of(&site, &session, &app, &id).await?;
    let given = fields.get("headers").unwrap_or_default();
    let fault = match headers(given) {
        Err(fault) => fault,
        Ok(wanted) => {
            let is_kept = |name: &&String| wanted.keys().any(|kept| kept.eq_ignore_ascii_case(name));
            let removed = shown.headers.keys().filter(|name| !is_kept(name)).map(String::as_str);
            let removed: Vec<&str> = removed.chain(fields.all("remove")).collect();
            let body = json!({"headers": wanted, "deleteHeaders": removed});
            let caller = (session.token(), session.peer());
            let path = Path::api(&["app", &app, "endpoint", &id, "headers"]);
            match site.inside.call(caller, Method::PATCH, &path, Some(body)).await {
                Ok(_) => {
                    return Ok(to(&Path::page(&["apps", &app, "endpoints", &id]).with("done", Some("changed"))));
                }
                Err(Fault::Refused { status: StatusCode::UNPROCESSABLE_ENTITY, detail }) => detail,
                Err(other) => return Err(other),
            }
        }
    };
    given.clone_into(&mut shown.text);
    let endpoint: Value = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id])).await?;
    Ok(page(&FormPage {
        frame: Frame::new(&session),
        app,
        endpoint: Some(id),
        filled: Filled::of(&endpoint),
        fault: None,
        headers: shown,
        headers_fault: Some(fault),
    }))
}

// Templates hand over references to references.
fn is_same(one: &str, other: &str) -> bool {
    one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(given: &[(&'static str, &str)]) -> Filled {
        Filled(given.iter().map(|(name, text)| (*name, (*text).to_owned())).collect())
    }

    #[test]
    fn an_empty_field_says_nothing() {
        let wanted = filled(&[("url", "https://example.com")]).wanted().unwrap();
        for (name, value) in &wanted {
            assert!(["url", "description"].contains(&name.as_str()) || value.is_null(), "{name}: {value}");
        }
        let some = [("types", "order.paid, order.sent\r\nuser.gone"), ("rate", "20"), ("channels", "a b")];
        let wanted = filled(&some).wanted().unwrap();
        assert_eq!(wanted["eventTypes"], json!(["order.paid", "order.sent", "user.gone"]));
        assert_eq!((&wanted["rateLimit"], &wanted["channels"]), (&json!(20), &json!(["a", "b"])));
    }

    #[test]
    fn what_an_endpoint_says_comes_back_out_of_the_form() {
        for said in [
            json!({}),
            json!({"maxInFlight": 3, "ordering": "fifo", "timeouts": {"connect": "2s", "total": "20s"}}),
            json!({"statusOverrides": {"404": "retry", "5xx": "permanent"}}),
            json!({"circuitBreaker": false, "autoDisable": false}),
            json!({"circuitBreaker": {}, "autoDisable": {}}),
            json!({"circuitBreaker": {"failures": 3, "coolDown": "1m", "coolDownMax": "1h", "whileOpen": "dead-letter"}}),
            json!({"autoDisable": {"failingFor": "2d", "permanentStreak": 7}}),
            json!({"autoDisable": {"failingFor": false, "permanentStreak": 7}}),
            json!({"eventTypes": ["a", "b"], "channels": ["c"], "rateLimit": 5, "uid": "shop"}),
        ] {
            let wanted = Filled::of(&said).wanted().unwrap();
            for (name, value) in wanted.iter().filter(|(name, _)| !["url", "description"].contains(&name.as_str())) {
                assert_eq!(value, &said[name.as_str()], "{said} {name}");
            }
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for given in [
            &[("rate", "many")][..],
            &[("overrides", "404 retry")],
            &[("overrides", "404: retry, 404: permanent")],
            &[("breaker", "off"), ("failures", "3")],
            &[("disable", "off"), ("streak", "3")],
        ] {
            assert!(filled(given).wanted().is_err(), "{given:?}");
        }
        assert_eq!(
            headers("X-A: 1\r\n\nX-B: a: b").unwrap(),
            [("X-A", "1"), ("X-B", "a: b")].map(|(a, b)| (a.into(), b.into())).into()
        );
        assert!(headers("X-A").is_err() && headers("X-A: 1\nx-a: 2").is_err());
    }
}
