//! What producers were told: I1, I26, I27.

use super::Judge;
use crate::{
    quick::QuickMap,
    sometimes::Sometimes,
    trace::{Kind, NOBODY},
};
use postrider_store::NewMessage;

#[derive(Default)]
pub struct Requests {
    /// Idempotency keys, with the number of the message that was stored under each, and when.
    keys: QuickMap<u64, (u64, i64)>,
    event_ids: QuickMap<u64, u64>,
    offers: QuickMap<u64, Offer>,
    /// Whose acceptance was answered, with the key that the answer named.
    answered: Vec<(u64, i64)>,
}

#[derive(Clone, Copy, Default)]
struct Offer {
    key: Option<u64>,
    event_id: Option<u64>,
}

/// How an offer was turned down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum No {
    /// 409: the key was used before with another request.
    KeyReused,
    /// 409: the event id is taken.
    EventIdTaken,
    /// 503 or 507: nothing was stored, or it is not known.
    NotNow,
    /// The connection broke: nobody knows.
    Unknown,
}

impl Judge {
    pub fn offered(&mut self, number: u64, app: usize, key: Option<u64>, event_id: Option<u64>) {
        self.note(NOBODY, Kind::Offered, [0, 0, app as i64, number as i64]);
        self.ingest.offers.insert(number, Offer { key, event_id });
    }

    /// I26: one key, one message. I27: one event id, one message.
    pub(super) fn ingest_committed(&mut self, message: i64, number: u64, new: &NewMessage) {
        let Some(offer) = self.ingest.offers.get(&number).copied() else {
            self.object("I5", message, 0, || format!("a message was stored that nobody offered (number {number})"));
            return;
        };
        if self.by_number.contains_key(&number) {
            self.object("I26", message, 0, || format!("offer {number} was stored a second time"));
        }
        let now = self.now;
        if let Some(key) = offer.key {
            if new.idempotency.is_none() {
                self.object("I26", message, 0, || "its idempotency key was not stored".to_owned());
            }
            if let Some((before, at)) = self.ingest.keys.insert(key, (number, now))
                && now - at < DAY
            {
                self.object("I26", message, 0, || format!("stored under the key of offer {before}"));
            }
        }
        if let Some(event_id) = offer.event_id
            && let Some(before) = self.ingest.event_ids.insert(event_id, number)
        {
            self.object("I27", message, 0, || format!("stored with the event id of offer {before}"));
        }
    }

    /// I1, I8, I26: a 2xx names the message that is stored, and the same one each time.
    pub fn accepted(&mut self, number: u64, message: i64, again: bool) {
        self.note(NOBODY, Kind::AcceptedTo, [message, 0, i64::from(again), number as i64]);
        if again {
            self.met.met(Sometimes::RepeatRecognised);
        }
        let stored = self.by_number.get(&number).map(|place| self.messages[*place as usize].key);
        match stored {
            Some(stored) if stored == message => self.ingest.answered.push((number, message)),
            Some(stored) => {
                self.object("I26", message, 0, || format!("answered with {message}, and it is stored as {stored}"));
            }
            None => self.object("I1", message, 0, || format!("offer {number} was answered 2xx and is not stored")),
        }
    }

    pub fn declined(&mut self, number: u64, no: No) {
        self.note(NOBODY, Kind::Declined, [0, 0, no as i64, number as i64]);
        let offer = self.ingest.offers.get(&number).copied().unwrap_or_default();
        match no {
            No::KeyReused => {
                self.met.met(Sometimes::KeyReused);
                let other = offer.key.and_then(|key| self.ingest.keys.get(&key)).is_some_and(|(of, _)| *of != number);
                if !other {
                    self.object("I26", 0, 0, || format!("offer {number} was refused for a key that nobody else used"));
                }
            }
            No::EventIdTaken => {
                self.met.met(Sometimes::EventIdTaken);
                let taken = offer.event_id.is_some_and(|id| self.ingest.event_ids.contains_key(&id));
                if !taken {
                    self.object("I27", 0, 0, || {
                        format!("offer {number} was refused for an event id that is not stored")
                    });
                }
            }
            No::NotNow => self.met.met(Sometimes::TurnedAway),
            No::Unknown => {
                if self.by_number.contains_key(&number) {
                    self.met.met(Sometimes::CommittedUnanswered);
                }
            }
        }
    }

    /// Every message that was answered 2xx, by its key.
    pub(super) fn promised(&self) -> &[(u64, i64)] {
        &self.ingest.answered
    }
}

const DAY: i64 = 86_400_000;
