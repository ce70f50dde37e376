//! Pollers: by which those who cannot be sent to fetch an application's messages. They lie with the application (decision 24).

use crate::tokens::ENVIRONMENT_TOKEN_LIFE;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use postrider_engine::{MessageKey, Timestamp};
use postrider_store::{By, PollerKey, Sieve};
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// As it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poller {
    key: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    pub description: String,
    /// `None`: every event type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_types: Option<Vec<String>>,
    /// `None`: messages on any channel and on none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<String>>,
    /// Whoever does not say where to begin begins behind this message.
    start: i64,
    token: Token,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    old_tokens: Vec<OldToken>,
    created_at: i64,
    updated_at: i64,
}

/// The token itself is not kept: it is made of this whenever it is asked for, and is the same each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub name: String,
    pub issued_at: i64,
    pub expires_at: i64,
}

impl Token {
    /// `life`: about ten years, if it is not said.
    pub fn new(rng: &mut impl CryptoRng, now: Timestamp, life: Option<Duration>) -> Self {
        let mut name = [0; 16];
        rng.fill_bytes(&mut name);
        Self {
            name: BASE64_URL_SAFE_NO_PAD.encode(name),
            issued_at: now.as_millis(),
            expires_at: now.plus(life.unwrap_or(ENVIRONMENT_TOKEN_LIFE)).as_millis(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OldToken {
    name: String,
    until: i64,
}

/// What can be chosen of a poller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub uid: Option<String>,
    pub description: String,
    pub event_types: Option<Vec<String>>,
    pub channels: Option<Vec<String>>,
}

/// Why a change cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    TooMany,
    TooLong,
    UidTaken,
    TooManyOldTokens,
}

impl Poller {
    pub fn new(key: PollerKey, choice: Choice, start: MessageKey, token: Token, now: Timestamp) -> Self {
        let Choice { uid, description, event_types, channels } = choice;
        Self {
            key: key.0,
            uid,
            description,
            event_types,
            channels,
            start: start.raw(),
            token,
            old_tokens: Vec::new(),
            created_at: now.as_millis(),
            updated_at: now.as_millis(),
        }
    }

    pub fn key(&self) -> PollerKey {
        PollerKey(self.key)
    }

    pub fn start(&self) -> MessageKey {
        MessageKey::new(self.start)
    }

    pub fn token(&self) -> &Token {
        &self.token
    }

    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_millis(self.created_at)
    }

    pub fn updated_at(&self) -> Timestamp {
        Timestamp::from_millis(self.updated_at)
    }

    pub fn change(&mut self, choice: Choice, now: Timestamp) {
        let Choice { uid, description, event_types, channels } = choice;
        (self.uid, self.description) = (uid, description);
        (self.event_types, self.channels) = (event_types, channels);
        self.updated_at = now.as_millis();
    }

    /// Whether a token of this name is one of its own. When a token ends by itself it says so.
    pub fn knows_token(&self, name: &str, now: Timestamp) -> bool {
        let is_old = |old: &OldToken| old.name == name && now.as_millis() < old.until;
        self.token.name == name || self.old_tokens.iter().any(is_old)
    }

    /// Puts a new token in the place of the one that it has, which holds for a while yet. Without a while, all older ones end.
    pub fn rotate_token(&mut self, new: Token, grace: Duration, now: Timestamp) -> Result<(), Flaw> {
        self.old_tokens.retain(|old| now.as_millis() < old.until);
        let old = std::mem::replace(&mut self.token, new);
        match grace.is_zero() {
            true => self.old_tokens.clear(),
            false => self.old_tokens.push(OldToken { name: old.name, until: now.plus(grace).as_millis() }),
        }
        if self.old_tokens.len() > OLD_TOKENS_MAX { Err(Flaw::TooManyOldTokens) } else { Ok(()) }
    }

    /// What it lets through, of what was asked for besides.
    pub fn sieve(&self, event_type: Option<String>, channel: Option<String>) -> Sieve {
        let event_types = match (&self.event_types, event_type) {
            (None, None) => None,
            (None, Some(asked)) => Some(vec![asked]),
            (Some(own), None) => Some(own.clone()),
            (Some(own), Some(asked)) => Some(own.iter().filter(|name| **name == asked).cloned().collect()),
        };
        Sieve { event_types, any_channel: self.channels.clone(), channel }
    }
}

/// What an application's row says of them.
pub fn stored(text: Option<&str>) -> Result<Vec<Poller>, serde_json::Error> {
    text.map_or_else(|| Ok(Vec::new()), serde_json::from_str)
}

/// What to write into that row.
pub fn to_store(pollers: &[Poller]) -> Option<String> {
    let text = || serde_json::to_string(pollers).expect("strings and numbers make JSON");
    (!pollers.is_empty()).then(text)
}

pub fn find<'a>(pollers: &'a [Poller], by: &By<PollerKey>) -> Option<&'a Poller> {
    pollers.iter().find(|poller| match by {
        By::Key(key) => poller.key() == *key,
        By::Uid(uid) => poller.uid.as_ref() == Some(uid),
    })
}

pub fn find_mut<'a>(pollers: &'a mut [Poller], by: &By<PollerKey>) -> Option<&'a mut Poller> {
    let key = find(pollers, by)?.key();
    pollers.iter_mut().find(|poller| poller.key() == key)
}

/// Whether these can stand beside one another.
pub fn check(pollers: &[Poller]) -> Result<(), Flaw> {
    if pollers.len() > POLLERS_MAX {
        return Err(Flaw::TooMany);
    }
    if to_store(pollers).is_some_and(|text| text.len() > BYTES_MAX) {
        return Err(Flaw::TooLong);
    }
    let taken = |poller: &Poller| {
        let others = pollers.iter().filter(|other| other.key != poller.key);
        poller.uid.is_some() && others.into_iter().any(|other| other.uid == poller.uid)
    };
    if pollers.iter().any(taken) { Err(Flaw::UidTaken) } else { Ok(()) }
}

/// How many an application can have: all of them are read with it.
pub const POLLERS_MAX: usize = 50;
/// How long they may be together as they are stored, for the same reason.
const BYTES_MAX: usize = 64 * 1024;
const OLD_TOKENS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const GRACE: Duration = Duration::from_secs(60);

    fn token(name: &str) -> Token {
        Token { name: name.to_owned(), issued_at: 1, expires_at: 2 }
    }

    fn poller(key: i64, uid: Option<&str>) -> Poller {
        let choice = Choice { uid: uid.map(str::to_owned), ..Choice::default() };
        Poller::new(PollerKey(key), choice, MessageKey::new(7), token("first"), NOW)
    }

    #[test]
    fn an_old_token_holds_for_its_grace_and_not_longer() {
        let mut poller = poller(1, None);
        assert!(poller.knows_token("first", NOW) && !poller.knows_token("second", NOW));
        poller.rotate_token(token("second"), GRACE, NOW).unwrap();
        assert!(poller.knows_token("first", NOW) && poller.knows_token("second", NOW));
        assert!(!poller.knows_token("first", NOW.plus(GRACE)));
        poller.rotate_token(token("third"), Duration::ZERO, NOW.plus(GRACE)).unwrap();
        assert_eq!(poller.old_tokens, [], "what has ended is forgotten, and without grace nothing is kept");
        assert!(!poller.knows_token("second", NOW.plus(GRACE)));
        poller.rotate_token(token("fourth"), GRACE, NOW).unwrap();
        poller.rotate_token(token("fifth"), Duration::ZERO, NOW).unwrap();
        assert!(!poller.knows_token("third", NOW), "all older ones end, not only the last");
        for number in 0..10 {
            poller.rotate_token(token(&format!("t{number}")), GRACE, NOW).unwrap();
        }
        assert_eq!(poller.rotate_token(token("one more"), GRACE, NOW), Err(Flaw::TooManyOldTokens));
    }

    #[test]
    fn a_change_keeps_what_cannot_be_chosen() {
        let mut poller = poller(1, Some("a"));
        poller.rotate_token(token("second"), GRACE, NOW).unwrap();
        let before = poller.clone();
        let channels = Some(vec!["c".to_owned()]);
        poller.change(
            Choice { description: "d".into(), channels: channels.clone(), ..Choice::default() },
            NOW.plus(GRACE),
        );
        let updated_at = NOW.plus(GRACE).as_millis();
        assert_eq!(poller, Poller { uid: None, description: "d".into(), channels, updated_at, ..before });
    }

    #[test]
    fn what_is_stored_comes_back() {
        let pollers = vec![poller(1, Some("a")), poller(2, None)];
        assert_eq!(stored(to_store(&pollers).as_deref()).unwrap(), pollers);
        assert_eq!((to_store(&[]), stored(None).unwrap()), (None, vec![]));
        assert!(stored(Some("[{}]")).is_err());
        assert_eq!(find(&pollers, &By::Uid("a".into())), Some(&pollers[0]));
        assert_eq!(find(&pollers, &By::Key(PollerKey(2))), Some(&pollers[1]));
        assert_eq!(find(&pollers, &By::Uid("b".into())), None);
    }

    #[test]
    fn uids_are_unique_and_there_are_so_many() {
        assert_eq!(check(&[poller(1, Some("a")), poller(2, None), poller(3, None)]), Ok(()));
        assert_eq!(check(&[poller(1, Some("a")), poller(2, Some("a"))]), Err(Flaw::UidTaken));
        let many: Vec<Poller> = (0..51).map(|key| poller(key, None)).collect();
        assert_eq!((check(&many[..50]), check(&many)), (Ok(()), Err(Flaw::TooMany)));
        let long = Poller { description: "d".repeat(60_000), ..poller(1, None) };
        assert_eq!(check(std::slice::from_ref(&long)), Ok(()));
        assert_eq!(
            check(&[Poller { key: 2, description: "d".repeat(6_000), ..long.clone() }, long]),
            Err(Flaw::TooLong)
        );
    }

    #[test]
    fn what_is_asked_for_narrows_what_the_poller_lets_through() {
        let own = Some(vec!["a".to_owned(), "b".to_owned()]);
        let poller = Poller { event_types: own.clone(), ..poller(1, None) };
        assert_eq!(poller.sieve(None, None).event_types, own);
        assert_eq!(poller.sieve(Some("b".into()), None).event_types, Some(vec!["b".to_owned()]));
        assert_eq!(poller.sieve(Some("c".into()), None).event_types, Some(vec![]));
        let all = Poller { event_types: None, ..poller };
        assert_eq!(all.sieve(Some("c".into()), None).event_types, Some(vec!["c".to_owned()]));
    }
}
