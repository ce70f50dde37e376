//! What was counted in one minute.

use super::events::{Event, OF_ALL, OF_SUBJECT};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use postrider_store::{Counts, Tally, TallyCode, TallyOf, TallySpan};
use std::collections::HashMap;

/// Subjects whose rows are written each time.
const FEW: usize = 200;

pub struct Board {
    minute: Timestamp,
    of_all: [u32; OF_ALL],
    of_subjects: HashMap<TallyOf, [u32; OF_SUBJECT]>,
    has_stood: bool,
}

impl Default for Board {
    fn default() -> Self {
        Self::at(Timestamp::default())
    }
}

impl Board {
    pub fn at(at: Timestamp) -> Self {
        let minute = TallySpan::Minute.start_of(at);
        Self { minute, of_all: [0; OF_ALL], of_subjects: HashMap::new(), has_stood: false }
    }

    /// It is for an earlier minute, or the clock was set back by more than one.
    pub fn is_over(&self, at: Timestamp) -> bool {
        let minute = TallySpan::Minute.start_of(at);
        minute > self.minute || minute.plus(TallySpan::Minute.length()) < self.minute
    }

    /// Also what belongs to single subjects: it is complete, or there is little of it.
    pub fn is_worth_writing(&self, now: Timestamp) -> bool {
        self.is_over(now) || self.of_subjects.len() <= FEW
    }

    pub fn count(&mut self, events: &[Event], whose: Option<(AppKey, EndpointKey)>) {
        for event in events {
            self.of_all[event.number()] += 1;
        }
        let Some((app, endpoint)) = whose else { return };
        for of in [TallyOf::Application(app), TallyOf::Endpoint(endpoint)] {
            let counts = self.of_subjects.entry(of).or_insert([0; OF_SUBJECT]);
            for event in events {
                counts[event.number()] += 1;
            }
        }
    }

    pub fn stand(&mut self, counts: Counts) {
        if std::mem::replace(&mut self.has_stood, true) {
            return;
        }
        for (event, count) in [(Event::Waiting, counts.waiting), (Event::Dead, counts.dead)] {
            self.of_all[event.number()] = u32::try_from(count).unwrap_or(u32::MAX);
        }
    }

    /// Empties it. Without `whole`, what belongs to single subjects stays, to be written once a minute.
    pub fn take(&mut self, whole: bool) -> Vec<Tally> {
        let minute = self.minute;
        let mut rows = Vec::new();
        for span in TallySpan::ALL {
            // What stands at the beginning of an hour stands for all of it: those of sixty minutes must not add up.
            let is_first = span.start_of(minute) == minute;
            let is_kept = |event: Event| is_first || !matches!(event, Event::Waiting | Event::Dead);
            rows.extend(
                tallies(span, minute, TallyOf::All, &self.of_all)
                    .filter(|row| Event::of(row.what).is_some_and(is_kept)),
            );
        }
        self.of_all = [0; OF_ALL];
        if whole {
            for (of, counts) in self.of_subjects.drain() {
                rows.extend(tallies(TallySpan::Hour, minute, of, &counts));
            }
        }
        rows
    }
}

fn tallies(span: TallySpan, at: Timestamp, of: TallyOf, counts: &[u32]) -> impl Iterator<Item = Tally> {
    let counted = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    counted.map(move |(number, count)| Tally {
        span,
        start: span.start_of(at),
        of,
        what: TallyCode::try_from(number).unwrap_or(TallyCode::MAX),
        count: u64::from(*count),
    })
}
