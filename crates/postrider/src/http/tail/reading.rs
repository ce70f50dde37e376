//! Reads what was recorded past a cursor for several endpoints, in the order of recording and without a gap.
//!
//! The store lists the attempts of one endpoint. To ask one endpoint after the other would not do by itself: what is recorded
//! for the first one while the last one is asked would be passed over by a cursor that the last one has moved on. But attempts
//! of one application become visible in the order of their keys, one node recording them at a time. So whatever is older than
//! an attempt that has been seen is there, and is found by whoever asks *after* that: the newest attempt is looked for first,
//! and then everything up to it.

use super::super::auth::records::{Tenant, TriesOf};
use crate::directory::EndpointEntry;
use postrider_engine::{AttemptKey, keys::time_of_key};
use postrider_store::{Attempt, AttemptFilter, Cut, MessageFilter, Order, Page, StoreError};
use std::sync::Arc;

/// Some attempts past a cursor.
#[derive(Debug, PartialEq)]
pub struct Reading {
    /// In order.
    pub found: Vec<Attempt>,
    /// There are no others up to this one.
    pub bound: AttemptKey,
    /// There may be more right now.
    pub more: bool,
    /// There were others, which are not among them.
    pub skipped: bool,
}

pub async fn past(store: &Tenant, lanes: &[&Arc<EndpointEntry>], cursor: AttemptKey) -> Result<Reading, StoreError> {
    let newest = match lanes {
        [] => None,
        // What one list shows has no gap.
        [_] => Some(LAST),
        several => newest(store, several, cursor).await?,
    };
    let Some(newest) = newest else { return Ok(Reading::nothing(cursor)) };
    let mut merged = Merged { found: Vec::new(), bound: newest, cut: false };
    for lane in lanes {
        let page = Page { from: Some(Cut::Past(cursor)), order: Order::Ascending, limit: ROWS_MAX };
        merged.add(store.attempts(TriesOf::Entry(lane), since(cursor), page).await?);
    }
    Ok(merged.reading(cursor))
}

/// The newest, for whoever watches: however much happens, a look costs no more than for so many.
pub async fn latest(
    store: &Tenant,
    lanes: &[&Arc<EndpointEntry>],
    cursor: AttemptKey,
    many: usize,
) -> Result<Reading, StoreError> {
    let Some(newest) = newest(store, lanes, cursor).await? else { return Ok(Reading::nothing(cursor)) };
    let mut found = Vec::new();
    for lane in lanes {
        let page = Page { from: None, order: Order::Descending, limit: many + 1 };
        found.extend(store.attempts(TriesOf::Entry(lane), since(cursor), page).await?);
    }
    Ok(newest_of(found, cursor, newest, many))
}

fn newest_of(mut found: Vec<Attempt>, cursor: AttemptKey, newest: AttemptKey, many: usize) -> Reading {
    found.retain(|attempt| attempt.key > cursor && attempt.key <= newest);
    found.sort_by_key(|attempt| attempt.key);
    let skipped = found.len().saturating_sub(many);
    found.drain(..skipped);
    Reading { found, bound: newest, more: false, skipped: skipped > 0 }
}

impl Reading {
    fn nothing(cursor: AttemptKey) -> Self {
        Self { found: Vec::new(), bound: cursor, more: false, skipped: false }
    }
}

/// `None`: nothing is past the cursor.
async fn newest(
    store: &Tenant,
    lanes: &[&Arc<EndpointEntry>],
    cursor: AttemptKey,
) -> Result<Option<AttemptKey>, StoreError> {
    let mut newest = None;
    for lane in lanes {
        let page = Page { from: None, order: Order::Descending, limit: 1 };
        let found = store.attempts(TriesOf::Entry(lane), since(cursor), page).await?;
        newest = newest.max(found.first().map(|attempt| attempt.key));
    }
    Ok(newest.filter(|newest| *newest > cursor))
}

/// Spares the store what is much older.
fn since(cursor: AttemptKey) -> AttemptFilter {
    let message = MessageFilter { after: Some(time_of_key(cursor.raw())), ..MessageFilter::default() };
    AttemptFilter { message, ..AttemptFilter::default() }
}

/// The first `ROWS_MAX` of several lists, each of which was cut off at `ROWS_MAX`.
struct Merged {
    found: Vec<Attempt>,
    bound: AttemptKey,
    cut: bool,
}

impl Merged {
    fn add(&mut self, lane: Vec<Attempt>) {
        if let Some(last) = lane.last().filter(|_| lane.len() >= ROWS_MAX) {
            self.lower(last.key);
        }
        self.found.extend(lane);
        self.found.retain(|attempt| attempt.key <= self.bound);
        if self.found.len() > ROWS_MAX {
            self.found.sort_by_key(|attempt| attempt.key);
            self.found.truncate(ROWS_MAX);
            let last = self.found.last().expect("it is full").key;
            self.lower(last);
        }
    }

    fn lower(&mut self, bound: AttemptKey) {
        if bound < self.bound {
            (self.bound, self.cut) = (bound, true);
        }
    }

    fn reading(mut self, cursor: AttemptKey) -> Reading {
        self.found.sort_by_key(|attempt| attempt.key);
        let last = self.found.last().map_or(cursor, |attempt| attempt.key);
        let bound = if self.bound == LAST { last } else { self.bound };
        Reading { found: self.found, bound, more: self.cut, skipped: false }
    }
}

const LAST: AttemptKey = AttemptKey::new(i64::MAX);
/// What one look holds in memory, of the endpoints together; twice as many for a moment.
const ROWS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use postrider_engine::{
        DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
        policy::{Class, Rule},
    };
    use postrider_store::AttemptRecord;
    use proptest::prelude::*;
    use std::time::Duration;

    fn attempt(key: i64) -> Attempt {
        Attempt {
            key: AttemptKey::new(key),
            id: DeliveryId { endpoint: EndpointKey::new(1), message: MessageKey::new(2), trigger: Trigger::Scheduled },
            cycle: 0,
            number: 1,
            record: AttemptRecord {
                started_at: Timestamp::from_millis(1),
                duration: Duration::from_millis(1),
                url: "https://example.com/".into(),
                status: Some(200),
                response: Bytes::new(),
                class: Class::Delivered,
                rule: Rule::Success,
                held: None,
                headers: Default::default(),
            },
            expunged: false,
            next: None,
            death: None,
        }
    }

    proptest! {
        /// However the attempts are spread over the endpoints, look after look tells all of them once and in order.
        #[test]
        fn nothing_is_left_out_and_nothing_told_twice(lane_of in prop::collection::vec(0..4_usize, 0..700)) {
            let lanes: Vec<Vec<i64>> = (0..4)
                .map(|lane| (1..).zip(&lane_of).filter(|(_, of)| **of == lane).map(|(key, _)| key).collect())
                .collect();
            let newest = AttemptKey::new(i64::try_from(lane_of.len()).unwrap());
            let (mut cursor, mut told) = (AttemptKey::new(0), Vec::new());
            loop {
                let mut merged = Merged { found: Vec::new(), bound: newest, cut: false };
                for lane in &lanes {
                    let past = lane.iter().filter(|key| **key > cursor.raw()).take(ROWS_MAX);
                    merged.add(past.map(|key| attempt(*key)).collect());
                }
                let reading = merged.reading(cursor);
                prop_assert!(reading.found.len() <= ROWS_MAX);
                prop_assert!(reading.bound > cursor || !reading.more);
                told.extend(reading.found.iter().map(|attempt| attempt.key.raw()));
                cursor = cursor.max(reading.bound);
                if !reading.more {
                    break;
                }
            }
            prop_assert_eq!(told, (1..=newest.raw()).collect::<Vec<_>>());
            prop_assert_eq!(cursor, newest);
        }
    }

    #[test]
    fn whoever_watches_gets_the_newest_and_is_told_that_there_were_others() {
        let keys = |reading: &Reading| reading.found.iter().map(|attempt| attempt.key.raw()).collect::<Vec<_>>();
        let look = |of: &[i64], many| {
            let found = of.iter().map(|key| attempt(*key)).collect();
            newest_of(found, AttemptKey::new(10), AttemptKey::new(20), many)
        };
        // The first one was seen before, and the last was recorded while others were asked.
        let all = look(&[20, 15, 9, 12, 21], 3);
        assert_eq!((keys(&all), all.bound.raw(), all.skipped), (vec![12, 15, 20], 20, false));
        let some = look(&[20, 15, 12], 2);
        assert_eq!((keys(&some), some.bound.raw(), some.skipped), (vec![15, 20], 20, true));
    }

    #[test]
    fn one_endpoint_alone_needs_no_bound() {
        let mut merged = Merged { found: Vec::new(), bound: LAST, cut: false };
        merged.add(vec![attempt(3), attempt(5)]);
        let reading = merged.reading(AttemptKey::new(2));
        assert_eq!((reading.bound, reading.more, reading.found.len()), (AttemptKey::new(5), false, 2));
        let none = Merged { found: Vec::new(), bound: LAST, cut: false }.reading(AttemptKey::new(2));
        assert_eq!((none.bound, none.more), (AttemptKey::new(2), false));
    }
}
