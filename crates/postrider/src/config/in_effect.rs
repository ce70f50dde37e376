//! What is set and where that was written, for people who want to see what a server runs with.

use super::{KEYS, Place, Sources, keys::Key};
use figment::{Figment, value::Value};

/// A setting, as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InEffect {
    pub name: &'static str,
    pub value: Showing,
    pub place: Place,
    pub about: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Showing {
    NotSet,
    /// There is one, and it is nobody's to see.
    Hidden,
    Text(String),
}

pub(super) fn in_effect(figment: &Figment, sources: &Sources) -> Vec<InEffect> {
    KEYS.iter()
        .map(|key| InEffect {
            name: key.name,
            value: showing(key, figment.find_value(key.name).ok()),
            place: sources.place(key.name, figment.find_metadata(key.name)),
            about: key.about,
        })
        .collect()
}

fn showing(key: &Key, value: Option<Value>) -> Showing {
    let text = match value {
        None => return Showing::NotSet,
        Some(Value::String(_, text)) => text,
        Some(Value::Array(_, list)) if list.is_empty() => return Showing::NotSet,
        Some(other) => serde_json::to_string(&other).unwrap_or_default(),
    };
    match (key.secret, text.is_empty()) {
        (_, true) => Showing::NotSet,
        (true, false) => Showing::Hidden,
        (false, false) => Showing::Text(text),
    }
}

impl InEffect {
    /// The same with what it came to, where that was not known before.
    pub fn came_to(self, name: &str, value: &str) -> Self {
        if self.name == name { Self { value: Showing::Text(value.to_owned()), ..self } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Settings, *};
    use std::path::Path;

    #[test]
    fn every_setting_is_shown_with_its_place_and_secrets_are_not() {
        let file = "log = \"debug\"\nallow_subnets = [\"10.0.0.0/8\"]\nhttps_only = true\n\
                    [rules.retryPolicy]\nmaxAttempts = 3\n";
        let variables =
            [("POSTRIDER_JWT_SECRET", "a-secret-that-is-long-enough-for-it"), ("POSTRIDER_BODY_MAX", "2MiB")];
        let sources = Sources::default()
            .with_file_text(Path::new("postrider.toml"), file.to_owned())
            .with_variables(variables.map(|(name, value)| (name.into(), value.into())))
            .unwrap()
            .with_flags(vec![("listen", "127.0.0.1:9000".to_owned())]);
        let shown = Settings::load(&sources).unwrap().in_effect;
        assert_eq!(shown.len(), KEYS.len());
        let of = |name: &str| {
            let one = shown.iter().find(|one| one.name == name).unwrap();
            (one.value.clone(), one.place.to_string())
        };
        let text = |text: &str| Showing::Text(text.to_owned());
        for (name, value, place) in [
            ("listen", text("127.0.0.1:9000"), "flag --listen"),
            ("log", text("debug"), "postrider.toml, line 1"),
            ("allow_subnets", text("[\"10.0.0.0/8\"]"), "postrider.toml, line 2"),
            ("https_only", text("true"), "postrider.toml, line 3"),
            ("body_max", text("2MiB"), "variable POSTRIDER_BODY_MAX"),
            ("jwt_secret", Showing::Hidden, "variable POSTRIDER_JWT_SECRET"),
            ("encryption_keys", Showing::NotSet, "its default"),
            ("database_url", Showing::NotSet, "its default"),
            ("landlock", text("true"), "its default"),
        ] {
            assert_eq!(of(name), (value, place.to_owned()), "{name}");
        }
        assert_eq!(of("rules").0, text("{\"retryPolicy\":{\"maxAttempts\":3}}"));
        assert!(!format!("{shown:?}").contains("a-secret"), "no secret is in it");
    }
}
