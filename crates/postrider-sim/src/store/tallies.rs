//! What was counted over time.

use super::{batch::Batch, tables::Tables};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{Counted, TalliesOf, Tally, TallyCode, TallyCount, TallyOf};
use std::collections::BTreeMap;

pub fn add(batch: &mut Batch<'_>, tallies: Vec<Tally>) {
    for Tally { span, start, of, what, count } in tallies {
        let place = batch.tables.tallies.entry((span, start, of, what)).or_default();
        match count {
            TallyCount::More(count) => *place += count,
            TallyCount::Found(count) => *place = count,
        }
    }
}

pub fn list(tables: &Tables, wanted: TalliesOf) -> Vec<Counted> {
    let (first, last) = wanted.starts();
    let is_wanted = |start: Timestamp| (first..=last).contains(&start.as_millis());
    let counts = tables.tallies.iter();
    let found =
        counts.filter(|((span, start, of, _), _)| *span == wanted.span && *of == wanted.of && is_wanted(*start));
    found.map(|((_, start, _, what), count)| Counted { start: *start, what: *what, count: *count }).collect()
}

/// `wanted`: of whichever application.
pub fn by_application(tables: &Tables, events: (TallyCode, TallyCode), wanted: TalliesOf) -> Vec<(AppKey, u64)> {
    let (first, last) = wanted.starts();
    let mut totals = BTreeMap::new();
    for ((span, start, of, what), count) in &tables.tallies {
        let is_wanted = *span == wanted.span && (first..=last).contains(&start.as_millis());
        if let (TallyOf::Application(app), true) = (of, is_wanted && (events.0..=events.1).contains(what)) {
            *totals.entry(*app).or_default() += count;
        }
    }
    totals.into_iter().collect()
}

pub fn forget(tables: &mut Tables, now: Timestamp) {
    tables.tallies.retain(|(span, start, _, _), _| *start >= now.minus(span.retention()));
}
