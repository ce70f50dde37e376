//! What a caller may do, in five words.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Send messages.
    Ingest,
    /// See everything but secrets.
    Read,
    /// Change applications, endpoints and event types, and see secrets.
    Manage,
    /// Send again what was sent before.
    Replay,
    /// Everything, API keys and the audit log too.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Ingest, Self::Read, Self::Manage, Self::Replay, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Read => "read",
            Self::Manage => "manage",
            Self::Replay => "replay",
            Self::Admin => "admin",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Ingest => 1,
            Self::Read => 2,
            Self::Manage => 4,
            Self::Replay => 8,
            Self::Admin => 16,
        }
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or(UnknownScope)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be ingest, read, manage, replay or admin")]
pub struct UnknownScope;

/// A set of them. None includes another, but for `Admin`, which includes all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Of a token for everything.
    pub const EVERYTHING: Self = Self(31);
    /// Of a token that opens one door of its own.
    pub const NOTHING: Self = Self(0);
    /// Of a token for one application: what its capabilities leave of it is for each operation to say.
    pub const PORTAL: Self = Self(2 | 4 | 8);

    pub fn of(scopes: impl IntoIterator<Item = Scope>) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | scope.bit()))
    }

    /// What was written down. A word of a later version allows nothing here.
    pub fn stored(names: &[String]) -> Self {
        Self::of(names.iter().filter_map(|name| name.parse().ok()))
    }

    pub fn allow(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// Those that are named, one by one.
    pub fn list(self) -> Vec<Scope> {
        Scope::ALL.into_iter().filter(|scope| self.0 & scope.bit() != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_allows_itself_and_admin_allows_all() {
        for held in Scope::ALL {
            for wanted in Scope::ALL {
                let allowed = held == wanted || held == Scope::Admin;
                assert_eq!(Scopes::of([held]).allow(wanted), allowed, "{held:?} {wanted:?}");
            }
            assert_eq!(held.name().parse(), Ok(held));
            assert_eq!(serde_json::to_value(held).unwrap(), held.name());
        }
        assert_eq!(Scopes::of(Scope::ALL), Scopes::EVERYTHING);
        assert_eq!(Scopes::of([Scope::Read, Scope::Manage, Scope::Replay]), Scopes::PORTAL);
        assert_eq!(Scopes::stored(&["read".to_owned(), "fly".to_owned()]), Scopes::of([Scope::Read]));
        assert_eq!(Scopes::stored(&[]).list(), []);
    }
}
