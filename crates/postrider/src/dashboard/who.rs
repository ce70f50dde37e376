//! Who has signed in, and what he may do: as the API said it when the session was opened.
//!
//! Pages leave out what would be refused. It is the API that refuses it.

use super::inside::Fault;
use http::StatusCode;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// As whom, in words.
    pub name: String,
    pub may: May,
}

/// What the buttons do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct May {
    /// Add, change, pause and delete endpoints.
    pub manage: bool,
    /// See signing secrets.
    pub see_secrets: bool,
    /// Put others in the place of secrets. Sessions of before have not said.
    #[serde(default)]
    pub rotate_secrets: bool,
    /// Send again, send an example, end tasks.
    pub replay: bool,
    /// Call messages back.
    pub call_back: bool,
    /// API keys, the audit log, alerts, nodes and settings.
    pub administer: bool,
}

impl May {
    pub fn is_read_only(self) -> bool {
        let Self { manage, see_secrets, rotate_secrets, replay, call_back, administer } = self;
        !(manage || see_secrets || rotate_secrets || replay || call_back || administer)
    }
}

impl Who {
    /// For a page that only asks whether to do something.
    pub fn require(&self, allowed: impl Fn(May) -> bool) -> Result<(), Fault> {
        match allowed(self.may) {
            true => Ok(()),
            false => {
                let detail = "The token that you signed in with does not allow it.".to_owned();
                Err(Fault::Refused { status: StatusCode::FORBIDDEN, detail })
            }
        }
    }
}

/// What the API says of a token or key.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Whoami {
    pub app_id: Option<String>,
    pub expires_at: Option<String>,
    name: Option<String>,
    api_key_id: Option<String>,
    scopes: Option<Vec<String>>,
    capabilities: Option<Vec<String>>,
}

impl Whoami {
    /// `app`: the application's name, where it is for one.
    pub fn who(&self, app: Option<&str>) -> Who {
        let what = match (&self.app_id, &self.api_key_id) {
            (Some(_), None) => app.unwrap_or("one application").to_owned(),
            (Some(_), Some(_)) => format!("API key {} for {}", self.called(), app.unwrap_or("one application")),
            (None, Some(_)) => format!("API key {}", self.called()),
            (None, None) => "operator".to_owned(),
        };
        Who { name: what.chars().take(NAME_MAX).collect(), may: self.may() }
    }

    fn called(&self) -> &str {
        self.name.as_deref().or(self.api_key_id.as_deref()).unwrap_or_default()
    }

    fn may(&self) -> May {
        // A token has no scopes: it is good for everything, or for what its capabilities say.
        let scope = |wanted: &str| match &self.scopes {
            None => true,
            Some(scopes) => scopes.iter().any(|scope| scope == wanted || scope == "admin"),
        };
        let is_operator = self.app_id.is_none();
        // A key for one application has no capabilities: its scopes say it.
        let capability = |wanted: &[&str]| match &self.capabilities {
            None => true,
            Some(held) => held.iter().any(|held| wanted.contains(&held.as_str())),
        };
        May {
            manage: scope("manage") && capability(&["ManageEndpoint"]),
            see_secrets: scope("manage")
                && capability(&["ViewEndpointSecret", "ManageEndpointSecret", "ManageEndpoint"]),
            rotate_secrets: scope("manage") && capability(&["ManageEndpointSecret", "ManageEndpoint"]),
            replay: scope("replay") && capability(&["CreateAttempts"]),
            call_back: is_operator && scope("manage"),
            administer: is_operator && scope("admin"),
        }
    }
}

/// It has to go into a cookie with the rest.
const NAME_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_one_may_do_follows_from_what_the_api_says() {
        let may = |whoami: Value| {
            let may = serde_json::from_value::<Whoami>(whoami).unwrap().may();
            let words = [
                (may.manage, "manage"),
                (may.see_secrets, "secrets"),
                (may.rotate_secrets, "rotate"),
                (may.replay, "replay"),
                (may.call_back, "call back"),
                (may.administer, "administer"),
            ];
            words.into_iter().filter_map(|(may, word)| may.then_some(word)).collect::<Vec<_>>().join(" ")
        };
        for (whoami, expected) in [
            (json!({}), "manage secrets rotate replay call back administer"),
            (json!({"apiKeyId": "key_1", "scopes": ["read"]}), ""),
            (json!({"apiKeyId": "key_1", "scopes": ["read", "replay"]}), "replay"),
            (json!({"apiKeyId": "key_1", "scopes": ["manage"]}), "manage secrets rotate call back"),
            (json!({"apiKeyId": "key_1", "scopes": ["admin"]}), "manage secrets rotate replay call back administer"),
            (
                json!({"apiKeyId": "key_1", "scopes": ["manage", "replay"], "appId": "a"}),
                "manage secrets rotate replay",
            ),
            (json!({"appId": "a", "capabilities": ["ViewBase"]}), ""),
            (json!({"appId": "a", "capabilities": ["ViewBase", "ViewEndpointSecret"]}), "secrets"),
            (json!({"appId": "a", "capabilities": ["ManageEndpointSecret"]}), "secrets rotate"),
            (
                json!({"appId": "a", "capabilities": ["ManageEndpoint", "CreateAttempts"]}),
                "manage secrets rotate replay",
            ),
        ] {
            assert_eq!(may(whoami.clone()), expected, "{whoami}");
        }
    }

    #[test]
    fn one_is_called_what_one_came_as() {
        let name = |whoami: Value, app| serde_json::from_value::<Whoami>(whoami).unwrap().who(app).name;
        for (whoami, app, expected) in [
            (json!({}), None, "operator"),
            (json!({"apiKeyId": "key_1", "name": "shop"}), None, "API key shop"),
            (json!({"apiKeyId": "key_1", "name": "shop", "appId": "a"}), Some("Acme"), "API key shop for Acme"),
            (json!({"appId": "a"}), Some("Acme"), "Acme"),
        ] {
            assert_eq!(name(whoami, app), expected);
        }
        assert_eq!(name(json!({"apiKeyId": "key_1", "name": "x".repeat(500)}), None).len(), NAME_MAX);
    }
}
