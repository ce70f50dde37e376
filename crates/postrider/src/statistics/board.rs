//! What was counted in one minute.

use super::events::{Event, OF_ALL, OF_SUBJECT};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use postrider_store::{Counts, Tally, TallyCode, TallyCount, TallyOf, TallySpan};
use rustc_hash::FxHashMap;

/// Subjects whose rows are written each time.
const FEW: usize = 200;

pub struct Board {
    minute: Timestamp,
    of_all: [u32; OF_ALL],
    of_subjects: FxHashMap<TallyOf, [u32; OF_SUBJECT]>,
    /// What stood at the last look, if that is not written yet.
    standing: Option<Counts>,
}

impl Default for Board {
    fn default() -> Self {
        Self::at(Timestamp::default())
    }
}

impl Board {
    pub fn at(at: Timestamp) -> Self {
        let minute = TallySpan::Minute.start_of(at);
        Self { minute, of_all: [0; OF_ALL], of_subjects: FxHashMap::default(), standing: None }
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
        self.standing = Some(counts);
    }

    /// Empties it. Without `whole`, what belongs to single subjects stays, to be written once a minute.
    pub fn take(&mut self, whole: bool) -> Vec<Tally> {
        let minute = self.minute;
        let mut rows = Vec::new();
        let standing = self.standing.take();
        for span in TallySpan::ALL {
            rows.extend(tallies(span, minute, TallyOf::All, &self.of_all));
            // Those of several looks must not add up: the last one stands for its minute, and for its hour.
            let Some(Counts { waiting, dead }) = standing else { continue };
            let found = [(Event::Waiting, waiting), (Event::Dead, dead)];
            rows.extend(
                found.map(|(event, count)| tally(span, minute, TallyOf::All, event.number(), TallyCount::Found(count))),
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
    counted.map(move |(number, count)| tally(span, at, of, number, TallyCount::More(u64::from(*count))))
}

fn tally(span: TallySpan, at: Timestamp, of: TallyOf, number: usize, count: TallyCount) -> Tally {
    Tally { span, start: span.start_of(at), of, what: TallyCode::try_from(number).unwrap_or(TallyCode::MAX), count }
}
