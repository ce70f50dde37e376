//! What was counted over time.

use super::writer::Batch;
use crate::tallies::{Counted, TalliesOf, Tally, TallyCode, TallyCount, TallySpan};
use postrider_engine::{AppKey, Timestamp};
use rusqlite::Connection;
use std::collections::HashMap;

pub fn add(batch: &Batch<'_>, tallies: &[Tally]) -> rusqlite::Result<()> {
    let mut add = batch.transaction.prepare_cached(
        "INSERT INTO tally (span, start, kind, subject, what, count) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )?;
    let mut set = batch.transaction.prepare_cached(
        "INSERT INTO tally (span, start, kind, subject, what, count) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO UPDATE SET count = excluded.count",
    )?;
    for Tally { span, start, of, what, count } in tallies {
        let (kind, subject) = of.code();
        let (write, count) = match count {
            TallyCount::More(count) => (&mut add, count),
            TallyCount::Found(count) => (&mut set, count),
        };
        write.execute((span.code(), start.as_millis(), kind, subject, what, count))?;
    }
    Ok(())
}

/// Each span is looked up by itself: between two of the same subject lie those of all others.
pub fn list(connection: &Connection, wanted: TalliesOf) -> rusqlite::Result<Vec<Counted>> {
    let (first, last) = wanted.starts();
    let (kind, subject) = wanted.of.code();
    let mut find = connection.prepare_cached(
        "SELECT what, count FROM tally WHERE span = ?1 AND start = ?2 AND kind = ?3 AND subject = ?4 ORDER BY what",
    )?;
    let step = usize::try_from(wanted.span.millis()).unwrap_or(usize::MAX);
    let mut counted = Vec::new();
    for start in (first..=last).step_by(step) {
        let found = find.query_map((wanted.span.code(), start, kind, subject), |row| {
            Ok(Counted { start: Timestamp::from_millis(start), what: row.get(0)?, count: row.get(1)? })
        })?;
        for found in found {
            counted.push(found?);
        }
    }
    Ok(counted)
}

/// `wanted`: of whichever application.
pub fn by_application(
    connection: &Connection,
    (first_event, last_event): (TallyCode, TallyCode),
    wanted: TalliesOf,
) -> rusqlite::Result<Vec<(AppKey, u64)>> {
    let (first, last) = wanted.starts();
    let (kind, _) = wanted.of.code();
    let mut find = connection.prepare_cached(
        "SELECT subject, sum(count) FROM tally
         WHERE span = ?1 AND start = ?2 AND kind = ?3 AND what BETWEEN ?4 AND ?5 GROUP BY subject",
    )?;
    let step = usize::try_from(wanted.span.millis()).unwrap_or(usize::MAX);
    let mut totals = HashMap::new();
    for start in (first..=last).step_by(step) {
        let of_span = (wanted.span.code(), start, kind, first_event, last_event);
        let found = find.query_map(of_span, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, u64>(1)?)))?;
        for found in found {
            let (subject, count) = found?;
            *totals.entry(AppKey::new(subject)).or_default() += count;
        }
    }
    Ok(totals.into_iter().collect())
}

/// True if there may be more.
pub fn forget(batch: &Batch<'_>, now: Timestamp, slice: usize) -> rusqlite::Result<bool> {
    let mut forget = batch.transaction.prepare_cached(
        "DELETE FROM tally WHERE (span, start, kind, subject, what) IN
             (SELECT span, start, kind, subject, what FROM tally WHERE span = ?1 AND start < ?2 LIMIT ?3)",
    )?;
    let mut more = false;
    for span in TallySpan::ALL {
        more |= forget.execute((span.code(), now.minus(span.retention()).as_millis(), slice))? == slice;
    }
    Ok(more)
}
