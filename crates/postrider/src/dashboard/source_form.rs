//! Making a source, and changing one; another URL for it, and its end.
//!
//! What a form asks for follows from the type, which is chosen first: so it needs no script, and asks for nothing that the
//! type does not have. A secret that was typed or is set is never in a page.

use super::{
    Site,
    frame::{Frame, page, to},
    inside::{Fault, Path},
    session::{Fields, Sent, Session},
};
use crate::sources::{
    fields::{Kind, Need},
    presets::{self, PRESETS, Preset},
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
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc};

/// Pages name a source by its id, so that one with the uid `new` is in nobody's way.
pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/sources/new", get(show_new).post(make))
        .route("/sources/{source}/edit", get(show).post(change))
        .route("/sources/{source}/rotate", get(ask_to_rotate).post(rotate))
        .route("/sources/{source}/delete", get(ask_to_delete).post(delete))
}

#[derive(Template)]
#[template(path = "source_form.html")]
struct FormPage {
    frame: Frame,
    /// Its id; `None`: it does not exist yet.
    source: Option<String>,
    types: Vec<Type>,
    /// What there is to fill in, once the type is chosen.
    chosen: Option<Chosen>,
    /// What is wrong, and in no field that is shown.
    fault: Option<String>,
}

struct Type {
    name: &'static str,
    is_chosen: bool,
}

struct Chosen {
    kind: &'static str,
    verifies: bool,
    inputs: Vec<Input>,
    more: Vec<Input>,
}

/// One field of the form.
struct Input {
    /// As the API says which field it refuses.
    name: String,
    label: &'static str,
    kind: Kind,
    value: String,
    is_required: bool,
    /// A secret that is set, and stays unless another one is given.
    is_kept: bool,
    /// It may be taken away.
    is_removable: bool,
    /// A secret that was typed and is not in the page: it has to be typed again.
    is_lost: bool,
    flaw: Option<String>,
}

impl Input {
    fn example(&self) -> &'static str {
        match self.kind {
            Kind::Text { example } | Kind::Number { example } => example,
            Kind::Secret if self.is_lost => "enter it again",
            Kind::Secret if self.is_kept => "as it is",
            Kind::Secret | Kind::Choice(_) => "",
        }
    }

    fn choices(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Choice(choices) => choices,
            Kind::Secret | Kind::Text { .. } | Kind::Number { .. } => &[],
        }
    }

    fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    fn is_long(&self) -> bool {
        self.name == PASS_HEADERS
    }

    fn is_number(&self) -> bool {
        matches!(self.kind, Kind::Number { .. })
    }
}

/// What stands in the form, by the name of the field. Secrets are not among it.
#[derive(Default)]
struct Filled {
    fields: BTreeMap<String, String>,
    /// A secret is set, of the type that is being filled in.
    has_secrets: bool,
    /// Those that were typed.
    lost: Vec<String>,
    flaw: Option<(String, String)>,
}

impl Filled {
    fn of(source: &Value, preset: &Preset) -> Self {
        let is_same = source["type"] == preset.name;
        let config = source["config"].as_object().into_iter().flatten().filter(|_| is_same);
        let config = config.map(|(name, value)| (in_config(name), text(value)));
        let own = [NAME, UID, PASS_HEADERS, ID_FROM, TYPE_FROM].map(|name| (name.to_owned(), text(&source[name])));
        let has_secrets = is_same && source["verified"] == true;
        Self { fields: own.into_iter().chain(config).collect(), has_secrets, ..Self::default() }
    }

    fn sent(fields: &Fields, preset: &Preset) -> Self {
        let config = preset.fields.iter().filter(|field| field.kind != Kind::Secret);
        let names = config.map(|field| in_config(field.name)).chain(OWN.map(str::to_owned));
        let given = names.filter_map(|name| Some((name.clone(), fields.get(&name)?.to_owned())));
        let secrets = preset.fields.iter().filter(|field| field.kind == Kind::Secret);
        let lost = secrets.map(|field| in_config(field.name)).filter(|name| fields.get(name).is_some());
        Self { fields: given.collect(), lost: lost.collect(), ..Self::default() }
    }

    fn get(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn chosen(&self, preset: &'static Preset) -> Chosen {
        let plain = |name: &str, label, example, need| self.input(name.to_owned(), label, Kind::Text { example }, need);
        let config =
            preset.fields.iter().map(|field| self.input(in_config(field.name), field.label, field.kind, field.need));
        let first = [
            plain(NAME, "Name", preset.name, Need::Required),
            plain(UID, "Your name for it (uid)", "", Need::Optional),
        ];
        Chosen {
            kind: preset.name,
            verifies: !preset.fields.is_empty(),
            inputs: first.into_iter().chain(config).collect(),
            more: vec![
                plain(
                    PASS_HEADERS,
                    "Headers that go along to the endpoints, besides those of the type",
                    "x-request-id",
                    Need::Optional,
                ),
                plain(ID_FROM, "Where the id of an event stands, to know it again", "header:x-id", Need::Optional),
                plain(TYPE_FROM, "Where the type of an event stands", "body:/event/type", Need::Optional),
            ],
        }
    }

    fn input(&self, name: String, label: &'static str, kind: Kind, need: Need) -> Input {
        let is_kept = kind == Kind::Secret && self.has_secrets;
        let is_lost = self.lost.contains(&name);
        let flaw = self.flaw.as_ref().filter(|(place, _)| *place == name).map(|(_, words)| words.clone());
        Input {
            value: self.get(&name).to_owned(),
            is_required: is_lost || need == Need::Required && !is_kept,
            is_lost,
            is_removable: need == Need::Advised && is_kept,
            name,
            label,
            kind,
            is_kept,
            flaw,
        }
    }
}

/// What the API is to be told.
fn wanted(fields: &Fields, preset: &Preset) -> Map<String, Value> {
    let given = |name: &str| fields.get(name).unwrap_or_default();
    let mut config = Map::new();
    for field in preset.fields {
        let name = in_config(field.name);
        let value = match (given(&name), field.kind) {
            ("", Kind::Secret) if fields.all("remove").any(|removed| removed == name) => Value::Null,
            ("", _) => continue,
            (text, Kind::Number { .. }) => text.parse::<u32>().map_or_else(|_| text.into(), Value::from),
            (text, Kind::Secret | Kind::Text { .. } | Kind::Choice(_)) => text.into(),
        };
        config.insert(field.name.to_owned(), value);
    }
    let names: Vec<&str> = given(PASS_HEADERS).split([',', ' ', '\n', '\r']).filter(|name| !name.is_empty()).collect();
    let or_null = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
    let mut wanted: Map<String, Value> = [
        (NAME, given(NAME).into()),
        (UID, or_null(given(UID))),
        (TYPE, preset.name.into()),
        (PASS_HEADERS, names.into()),
        (ID_FROM, or_null(given(ID_FROM))),
        (TYPE_FROM, or_null(given(TYPE_FROM))),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    if !preset.fields.is_empty() {
        wanted.insert(CONFIG.to_owned(), Value::Object(config));
    }
    wanted
}

fn in_config(name: &str) -> String {
    format!("{CONFIG}.{name}")
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

fn form(
    session: &Session,
    source: Option<String>,
    (kind, filled): (Option<&str>, impl FnOnce(&'static Preset) -> Filled),
    fault: Option<String>,
) -> Response {
    let found = kind.map(presets::find);
    let unknown = matches!(found, Some(Err(_))).then(|| "There is no such type: choose one of these.".to_owned());
    let preset = found.and_then(Result::ok);
    let chosen = preset.map(|preset| filled(preset).chosen(preset));
    let is_chosen = |name: &str| preset.is_some_and(|preset| preset.name == name);
    let types = PRESETS.iter().map(|preset| Type { name: preset.name, is_chosen: is_chosen(preset.name) }).collect();
    page(&FormPage { frame: Frame::new(session), source, types, chosen, fault: fault.or(unknown) })
}

async fn show_new(session: Session, query: Fields) -> Result<Response, Fault> {
    if !session.sees_all() {
        return Err(Fault::unknown());
    }
    session.who().require(|may| may.manage)?;
    Ok(form(&session, None, (query.get(TYPE), |_| Filled::default()), None))
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(id): Named<String>,
    query: Fields,
) -> Result<Response, Fault> {
    let source: Value = site.inside.get(&session, &Path::ingest(&["source", &id])).await?;
    session.who().require(|may| may.manage)?;
    let kind = query.get(TYPE).or_else(|| source[TYPE].as_str());
    Ok(form(&session, Some(id), (kind, |preset| Filled::of(&source, preset)), None))
}

async fn make(State(site): State<Arc<Site>>, Sent { session, fields }: Sent) -> Result<Response, Fault> {
    write(&site, &session, &fields, None).await
}

async fn change(
    State(site): State<Arc<Site>>,
    Named(id): Named<String>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let source: Value = site.inside.get(&session, &Path::ingest(&["source", &id])).await?;
    write(&site, &session, &fields, Some((id, source))).await
}

/// Makes a source, or changes the one that was.
async fn write(
    site: &Site,
    session: &Session,
    fields: &Fields,
    old: Option<(String, Value)>,
) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    struct Written {
        id: String,
    }

    let (id, old) = old.unzip();
    let kind = fields.get(TYPE).unwrap_or_default();
    let Ok(preset) = presets::find(kind) else {
        return Ok(form(session, id, (Some(kind), |_| Filled::default()), None));
    };
    let mut wanted = wanted(fields, preset);
    if let Some(old) = &old {
        // Which the form knows nothing of, and which is to stay.
        wanted.insert("metadata".to_owned(), old["metadata"].clone());
    }
    let (method, path, done) = match &id {
        None => (Method::POST, Path::ingest(&["source"]), "source-made"),
        Some(id) => (Method::PUT, Path::ingest(&["source", id]), "source-changed"),
    };
    let fault = match site.inside.put::<Written>(session, method, &path, Value::Object(wanted)).await {
        Ok(Written { id }) => return Ok(to(&Path::page(&["sources", &id]).with("done", Some(done)))),
        Err(fault) => fault,
    };
    let (place, words) = match (fault.place(), &fault) {
        (Some(told), _) => told,
        (None, Fault::Refused { status: StatusCode::CONFLICT, detail }) if detail.contains(UID) => (UID, &**detail),
        (None, Fault::Refused { status: StatusCode::CONFLICT, detail }) => ("", &**detail),
        (None, _) => return Err(fault),
    };
    // Of a list it is one of the names in it.
    let field = place.split_once('.').filter(|(list, _)| *list == PASS_HEADERS).map_or(place, |(list, _)| list);
    let is_shown = OWN.contains(&field) || preset.fields.iter().any(|known| in_config(known.name) == field);
    let elsewhere = (!is_shown).then(|| format!("{place} {words}.").trim_start().to_owned());
    let flaw = Some((field.to_owned(), words.to_owned()));
    let has_secrets = old.as_ref().is_some_and(|old| Filled::of(old, preset).has_secrets);
    let filled = |preset| Filled { has_secrets, flaw, ..Filled::sent(fields, preset) };
    Ok(form(session, id, (Some(kind), filled), elsewhere))
}

#[derive(Template)]
#[template(path = "source_deed.html")]
struct DeedPage {
    frame: Frame,
    id: String,
    name: String,
    deed: Deed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Rotate,
    Delete,
}

async fn ask(site: &Site, session: &Session, id: String, deed: Deed) -> Result<Response, Fault> {
    let name = match (site.inside.get::<Value>(session, &Path::ingest(&["source", &id])).await, deed) {
        (Ok(source), _) => text(&source[NAME]),
        // It cannot be read, and may go all the same.
        (Err(Fault::Refused { status: StatusCode::INTERNAL_SERVER_ERROR, .. }), Deed::Delete) => String::new(),
        (Err(fault), _) => return Err(fault),
    };
    session.who().require(|may| may.manage)?;
    Ok(page(&DeedPage { frame: Frame::new(session), id, name, deed }))
}

async fn ask_to_rotate(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(id): Named<String>,
) -> Result<Response, Fault> {
    ask(&site, &session, id, Deed::Rotate).await
}

async fn rotate(
    State(site): State<Arc<Site>>,
    Named(id): Named<String>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    site.inside.post(&session, &Path::ingest(&["source", &id, "token", "rotate"]), None).await?;
    Ok(to(&Path::page(&["sources", &id]).with("done", Some("source-rotated"))))
}

async fn ask_to_delete(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(id): Named<String>,
) -> Result<Response, Fault> {
    ask(&site, &session, id, Deed::Delete).await
}

async fn delete(
    State(site): State<Arc<Site>>,
    Named(id): Named<String>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    site.inside.delete(&session, &Path::ingest(&["source", &id])).await?;
    Ok(to(&Path::page(&["sources"]).with("done", Some("source-deleted"))))
}

/// Fields of the API, and of the form.
const NAME: &str = "name";
const UID: &str = "uid";
const TYPE: &str = "type";
const CONFIG: &str = "config";
const PASS_HEADERS: &str = "passHeaders";
const ID_FROM: &str = "idFrom";
const TYPE_FROM: &str = "typeFrom";
const OWN: [&str; 5] = [NAME, UID, PASS_HEADERS, ID_FROM, TYPE_FROM];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn preset(kind: &str) -> &'static Preset {
        presets::find(kind).unwrap()
    }

    #[test]
    fn a_form_says_what_was_filled_in_and_nothing_else() {
        let fields = Fields::of(b"name=GitHub&type=github&passHeaders=x-a%2C+x-b%0D%0Ax-c&config.colour=red&idFrom=");
        let expected = json!({"name": "GitHub", "uid": null, "type": "github", "config": {},
            "passHeaders": ["x-a", "x-b", "x-c"], "idFrom": null, "typeFrom": null});
        assert_eq!(Value::Object(wanted(&fields, preset("github"))), expected);
        let fields = Fields::of(b"config.secret=s&remove=config.secret");
        assert_eq!(wanted(&fields, preset("github"))["config"], json!({"secret": "s"}), "another one is meant");
        let fields = Fields::of(b"remove=config.secret");
        assert_eq!(wanted(&fields, preset("github"))["config"], json!({"secret": null}));
        assert_eq!(wanted(&fields, preset("generic-webhook")).get("config"), None);
        let fields = Fields::of(b"config.timestampGraceSeconds=60");
        assert_eq!(wanted(&fields, preset("tailscale"))["config"], json!({"timestampGraceSeconds": 60}));
        let fields = Fields::of(b"config.timestampGraceSeconds=long");
        assert_eq!(wanted(&fields, preset("tailscale"))["config"], json!({"timestampGraceSeconds": "long"}));
    }

    #[test]
    fn no_secret_comes_back_into_a_form() {
        let fields = Fields::of(b"name=x&config.secret=canary&config.header=x-sig&config.token=canary");
        for kind in ["hmac", "github", "token", "meta"] {
            let filled = Filled::sent(&fields, preset(kind));
            assert!(!filled.fields.values().any(|value| value.contains("canary")), "{kind}");
        }
        assert_eq!(Filled::sent(&fields, preset("hmac")).get("config.header"), "x-sig");
    }

    #[test]
    fn what_is_set_need_not_be_given_again() {
        let source = json!({"type": "github", "verified": true, "config": {}, "name": "x"});
        let secret = |kind: &str| {
            let mut inputs = Filled::of(&source, preset(kind)).chosen(preset(kind)).inputs;
            inputs.remove(2)
        };
        let same = secret("github");
        assert!(same.is_kept && same.is_removable && !same.is_required);
        let other = secret("stripe");
        assert!(!other.is_kept && !other.is_removable && other.is_required, "it is another service's");
    }
}
