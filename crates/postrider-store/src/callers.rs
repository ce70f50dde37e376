//! Who may call, who may no more, and who did: as plain records.

use crate::Metadata;
use postrider_engine::{AppKey, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyKey(pub i64);

/// What is known of an API key. Its secret is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub key: ApiKeyKey,
    /// By which its secret is recognised, made by the caller.
    pub hash: [u8; 32],
    pub name: String,
    /// What it may do, in words that the store does not look into.
    pub scopes: Vec<String>,
    /// `None`: all applications.
    pub app: Option<AppKey>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// Ended by someone: at once, or, when another took its place, after the overlap.
    pub revoked_at: Option<Timestamp>,
    /// Not to the moment: it is written down now and then.
    pub used_at: Option<Timestamp>,
}

impl ApiKey {
    pub fn holds(&self, now: Timestamp) -> bool {
        let is_over = |end: Option<Timestamp>| end.is_some_and(|end| end <= now);
        !is_over(self.expires_at) && !is_over(self.revoked_at)
    }

    /// Whether another may take its place: once.
    pub fn can_be_replaced(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.holds(now)
    }
}

/// By which one token is told from another, made by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub [u8; 16]);

/// What a token says of itself that it can be revoked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub id: TokenId,
    /// `None`: it is for all applications.
    pub app: Option<AppKey>,
    pub session: Option<String>,
    pub at: Timestamp,
}

/// Tokens that end before their time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// One. It would have ended by itself at `forget_at`.
    Token { id: TokenId, at: Timestamp, forget_at: Timestamp },
    /// Those of an application that were issued up to a moment: of one session, or all. They end at `at`.
    Issued {
        app: AppKey,
        session: Option<String>,
        until: Timestamp,
        at: Timestamp,
        /// When all of them would have ended by themselves, where that is known.
        forget_at: Option<Timestamp>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditKey(pub i64);

/// One call that changed something, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub key: AuditKey,
    pub at: Timestamp,
    /// The id of an API key, or whom a token is for.
    pub actor: String,
    /// Which token it was, if it has a name.
    pub token: Option<String>,
    pub operation: String,
    /// What it was about: ids and names, by what they stand for.
    pub objects: Metadata,
    /// The network address that it came from, where that is known.
    pub origin: Option<String>,
    /// What was answered.
    pub status: u16,
}

/// Which entries to list. An empty filter lets all through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub operation: Option<String>,
    /// Inclusive.
    pub after: Option<Timestamp>,
    /// Exclusive.
    pub before: Option<Timestamp>,
}
