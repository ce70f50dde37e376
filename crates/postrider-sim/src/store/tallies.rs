//! What was counted over time.

use super::{batch::Batch, tables::Tables};
use postrider_engine::Timestamp;
use postrider_store::{Counted, TalliesOf, Tally};

pub fn add(batch: &mut Batch<'_>, tallies: Vec<Tally>) {
    for Tally { span, start, of, what, count } in tallies {
        *batch.tables.tallies.entry((span, start, of, what)).or_default() += count;
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

pub fn forget(tables: &mut Tables, now: Timestamp) {
    tables.tallies.retain(|(span, start, _, _), _| *start >= now.minus(span.retention()));
}
