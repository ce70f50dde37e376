//! Which producers' databases events are taken over from.

use super::{Hidden, Refusal, read_database_url};
use crate::ids::is_name;
use postrider_store::{outbox::SchemaName, postgres::DatabaseUrl};
use serde::{Deserialize, Deserializer, de};
use std::{fmt, path::PathBuf};

#[derive(Clone, Debug)]
pub struct OutboxSettings {
    /// By which metrics and logs call it.
    pub name: String,
    pub url: DatabaseUrl,
    pub schema: SchemaName,
    /// Certificates in PEM that the database's own may be signed by, besides the usual ones.
    pub ca_file: Option<PathBuf>,
}

/// An array in the file, JSON text in a variable, addresses in flags.
pub struct OutboxesSetting(Vec<OutboxSetting>);

/// Nothing in here is quoted in an error: an address may hold a password.
#[derive(Deserialize)]
#[serde(untagged)]
enum OutboxSetting {
    Url(Hidden),
    Table(OutboxTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutboxTable {
    url: Hidden,
    name: Option<String>,
    schema: Option<String>,
    ca_file: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for OutboxesSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = OutboxesSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OutboxesSetting, E> {
                serde_json::from_str(text).map(OutboxesSetting).map_err(E::custom)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, items: A) -> Result<OutboxesSetting, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(items)).map(OutboxesSetting)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl OutboxesSetting {
    pub fn check(self) -> Result<Vec<OutboxSettings>, Refusal> {
        let refuse = |reason| ("outboxes", reason);
        let mut checked: Vec<OutboxSettings> = Vec::new();
        for setting in self.0 {
            let outbox = setting.check().map_err(refuse)?;
            if checked.iter().any(|other| other.name == outbox.name) {
                return Err(refuse(format!("two are called `{}`; give each a `name`", outbox.name)));
            }
            checked.push(outbox);
        }
        Ok(checked)
    }
}

impl OutboxSetting {
    fn check(self) -> Result<OutboxSettings, String> {
        let OutboxTable { url, name, schema, ca_file } = match self {
            Self::Url(url) => OutboxTable { url, name: None, schema: None, ca_file: None },
            Self::Table(table) => table,
        };
        let url = read_database_url(url.reveal())?;
        let schema = match schema {
            None => SchemaName::default(),
            Some(name) => name.parse().map_err(|error| format!("`schema`: {error}"))?,
        };
        let name = name.unwrap_or_else(|| url.database().unwrap_or("outbox").to_owned());
        if !is_name(&name) {
            return Err("`name` must be 1 to 256 letters, digits, `-`, `_` or `.`".to_owned());
        }
        Ok(OutboxSettings { name, url, schema, ca_file })
    }
}

pub const EXPECTED: &str =
    "must be a list of addresses, or of tables with `url` and, if wanted, `name`, `schema` and `ca_file`";
