//! Making a poller, and changing one.

use super::{
    Site,
    endpoint_form::{list, or_null},
    frame::{Frame, page, to},
    inside::{Fault, Path},
    pollers::Poller,
    session::{Fields, Sent, Session},
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
use serde_json::{Value, json};
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/new-poller", get(show_new).post(make))
        .route("/apps/{app}/pollers/{poller}/edit", get(show).post(change))
}

#[derive(Template)]
#[template(path = "poller_form.html")]
struct FormPage {
    frame: Frame,
    app: String,
    /// Its id; `None`: it does not exist yet.
    poller: Option<String>,
    filled: Filled,
    flaw: Option<Flaw>,
}

/// A field as it is drawn.
struct Drawn<'a> {
    name: &'static str,
    label: &'static str,
    example: &'static str,
    value: &'a str,
    flaw: Option<&'a str>,
}

impl FormPage {
    fn fields(&self) -> [Drawn<'_>; 4] {
        let Filled { uid, description, types, channels } = &self.filled;
        let drawn =
            |field, name, label, example, value| Drawn { name, label, example, value, flaw: self.flaw_of(field) };
        [
            drawn(Field::Uid, "uid", "Your name for it (uid)", "till", uid),
            drawn(Field::Description, "description", "Description", "", description),
            drawn(Field::Types, "types", "Event types, with commas between them; empty: all", "order.paid", types),
            drawn(Field::Channels, "channels", "Channels, with commas between them; empty: all", "", channels),
        ]
    }

    fn flaw_of(&self, field: Field) -> Option<&str> {
        self.flaw.as_ref().filter(|flaw| flaw.field == Some(field)).map(|flaw| flaw.words.as_str())
    }

    /// What is wrong with no field alone.
    fn flaw_of_all(&self) -> Option<&str> {
        self.flaw.as_ref().filter(|flaw| flaw.field.is_none()).map(|flaw| flaw.words.as_str())
    }
}

/// What stands in the form.
#[derive(Default)]
struct Filled {
    uid: String,
    description: String,
    types: String,
    channels: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Uid,
    Description,
    Types,
    Channels,
}

#[derive(Debug, PartialEq, Eq)]
struct Flaw {
    field: Option<Field>,
    words: String,
}

impl Filled {
    fn sent(fields: &Fields) -> Self {
        let field = |name: &str| fields.get(name).unwrap_or_default().to_owned();
        Self {
            uid: field("uid"),
            description: field("description"),
            types: field("types"),
            channels: field("channels"),
        }
    }

    fn of(poller: Poller) -> Self {
        let joined = |names: Option<Vec<String>>| names.unwrap_or_default().join(", ");
        Self {
            uid: poller.uid.unwrap_or_default(),
            description: poller.description,
            types: joined(poller.filter_types),
            channels: joined(poller.channels),
        }
    }

    fn wanted(&self) -> Value {
        json!({
            "uid": or_null(&self.uid),
            "description": self.description,
            "filterTypes": list(&self.types),
            "channels": list(&self.channels),
        })
    }

    /// Which field the API means, and its words for people who have not seen the names it uses.
    fn flaw(&self, status: StatusCode, detail: &str) -> Option<Flaw> {
        match status {
            StatusCode::CONFLICT => Some(Flaw { field: Some(Field::Uid), words: detail.to_owned() }),
            StatusCode::BAD_REQUEST => Some(Flaw { field: None, words: detail.to_owned() }),
            StatusCode::UNPROCESSABLE_ENTITY => {
                let found = detail.split_once(": ").and_then(|(place, words)| {
                    let (name, index) = place.split_once(".[").unwrap_or((place, ""));
                    let (field, names) = match name {
                        "uid" => (Field::Uid, Value::Null),
                        "description" => (Field::Description, Value::Null),
                        "filterTypes" => (Field::Types, list(&self.types)),
                        "channels" => (Field::Channels, list(&self.channels)),
                        _ => return None,
                    };
                    let index = index.strip_suffix(']').and_then(|index| index.parse::<usize>().ok());
                    let named =
                        index.and_then(|index| names.get(index)?.as_str().map(|name| format!("`{name}` {words}")));
                    Some(Flaw { field: Some(field), words: named.unwrap_or_else(|| capitalised(words)) })
                });
                Some(found.unwrap_or_else(|| Flaw { field: None, words: detail.to_owned() }))
            }
            _ => None,
        }
    }
}

/// The API's words for a field begin as if its name stood before them.
pub fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

async fn show_new(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
) -> Result<Response, Fault> {
    let _: Value = site.inside.get(&session, &Path::api(&["app", &app])).await?;
    session.who().require(|may| may.manage)?;
    Ok(page(&FormPage { frame: Frame::new(&session), app, poller: None, filled: Filled::default(), flaw: None }))
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, name)): Named<(String, String)>,
) -> Result<Response, Fault> {
    let poller = Poller::find(&site, &session, &app, &name).await?;
    session.who().require(|may| may.manage)?;
    let (frame, id) = (Frame::new(&session), Some(poller.id.clone()));
    Ok(page(&FormPage { frame, app, poller: id, filled: Filled::of(poller), flaw: None }))
}

async fn make(
    State(site): State<Arc<Site>>,
    Named(app): Named<String>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let filled = Filled::sent(&fields);
    let path = Path::api(&["app", &app, "poller"]);
    let flaw = match write(&site, &session, Method::POST, &path, &filled).await? {
        Ok(id) => return Ok(to(&Path::page(&["apps", &app, "pollers", &id]).with("done", Some("made")))),
        Err(flaw) => Some(flaw),
    };
    Ok(page(&FormPage { frame: Frame::new(&session), app, poller: None, filled, flaw }))
}

async fn change(
    State(site): State<Arc<Site>>,
    Named((app, name)): Named<(String, String)>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let filled = Filled::sent(&fields);
    let path = Path::api(&["app", &app, "poller", &name]);
    let flaw = match write(&site, &session, Method::PUT, &path, &filled).await? {
        Ok(id) => return Ok(to(&Path::page(&["apps", &app, "pollers", &id]).with("done", Some("changed")))),
        Err(flaw) => Some(flaw),
    };
    Ok(page(&FormPage { frame: Frame::new(&session), app, poller: Some(name), filled, flaw }))
}

/// The id of what was written, or why nothing was: that is shown beside what was filled in.
async fn write(
    site: &Site,
    session: &Session,
    method: Method,
    path: &Path,
    filled: &Filled,
) -> Result<Result<String, Flaw>, Fault> {
    #[derive(Deserialize)]
    struct Written {
        id: String,
    }

    match site.inside.put::<Written>(session, method, path, filled.wanted()).await {
        Ok(Written { id }) => Ok(Ok(id)),
        Err(Fault::Refused { status, detail }) => match filled.flaw(status, &detail) {
            Some(flaw) => Ok(Err(flaw)),
            None => Err(Fault::Refused { status, detail }),
        },
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_stands_beside_the_field_that_it_is_wrong_with() {
        let filled = Filled { channels: "eu, a b".to_owned(), ..Filled::default() };
        for (status, detail, field, words) in [
            (422, "uid: must be a name", Some(Field::Uid), "Must be a name"),
            (409, "Another poller has this uid", Some(Field::Uid), "Another poller has this uid"),
            (422, "description: is too long", Some(Field::Description), "Is too long"),
            (
                422,
                "filterTypes: there is no event type `x`; create it first",
                Some(Field::Types),
                "There is no event type `x`; create it first",
            ),
            (422, "filterTypes: at most 100 are allowed", Some(Field::Types), "At most 100 are allowed"),
            (422, "channels.[1]: must be short", Some(Field::Channels), "`a` must be short"),
            (422, "channels.[9]: must be short", Some(Field::Channels), "Must be short"),
            (422, "something: else", None, "something: else"),
            (400, "An application can have 50 pollers", None, "An application can have 50 pollers"),
        ] {
            let flaw = filled.flaw(StatusCode::from_u16(status).unwrap(), detail);
            assert_eq!(flaw, Some(Flaw { field, words: words.to_owned() }), "{detail}");
        }
        assert_eq!(filled.flaw(StatusCode::FORBIDDEN, "no"), None, "that is a page of its own");
    }
}
