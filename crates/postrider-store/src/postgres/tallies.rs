//! What was counted over time.

use super::{Db, Result, execute, jobs::Turn, rows};
use crate::{
    rows::Unreadable,
    tallies::{Counted, TalliesOf, Tally, TallyCode, TallyCount, TallySpan},
};
use postrider_engine::{AppKey, Timestamp};
use std::collections::BTreeMap;
use tokio_postgres::types::ToSql;

/// Several nodes add to the same rows; in the order of their keys, so that none waits for one that waits for it.
pub async fn add(turn: &Turn, tallies: &[Tally]) -> Result<()> {
    let (mut more, mut found) = (Columns::default(), BTreeMap::new());
    for Tally { span, start, of, what, count } in tallies {
        let (kind, subject) = of.code();
        let key = [span.code().into(), start.as_millis(), kind.into(), subject, (*what).into()];
        match count {
            TallyCount::More(count) => more.push(key, *count),
            TallyCount::Found(count) => drop(found.insert(key, *count)),
        }
    }
    more.write(turn, ADD).await?;
    // Of the same twice the later one counts.
    let mut latest = Columns::default();
    found.into_iter().for_each(|(key, count)| latest.push(key, count));
    latest.write(turn, REPLACE).await
}

const ADD: &str = "INSERT INTO tally (span, start, kind, subject, what, count)
     SELECT span, start, kind, subject, what, sum(count)
     FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
          AS added (span, start, kind, subject, what, count)
     GROUP BY span, start, kind, subject, what ORDER BY span, start, kind, subject, what
     ON CONFLICT (span, start, kind, subject, what) DO UPDATE SET count = tally.count + excluded.count";

const REPLACE: &str = "INSERT INTO tally (span, start, kind, subject, what, count)
     SELECT span, start, kind, subject, what, count
     FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
          AS added (span, start, kind, subject, what, count)
     ORDER BY span, start, kind, subject, what
     ON CONFLICT (span, start, kind, subject, what) DO UPDATE SET count = excluded.count";

/// Rows to be written, column by column: what makes the key, and the count.
#[derive(Default)]
struct Columns([Vec<i64>; 6]);

impl Columns {
    fn push(&mut self, key: [i64; 5], count: u64) {
        let values = key.into_iter().chain([i64::try_from(count).unwrap_or(i64::MAX)]);
        self.0.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }

    async fn write(&self, turn: &Turn, sql: &str) -> Result<()> {
        let [spans, starts, kinds, subjects, whats, counts] = &self.0;
        if counts.is_empty() {
            return Ok(());
        }
        execute(turn.db(), sql, &[spans, starts, kinds, subjects, whats, counts]).await?;
        Ok(())
    }
}

/// Each span is looked up by itself: between two of the same subject lie those of all others.
pub async fn list(db: &Db, wanted: TalliesOf) -> Result<Vec<Counted>> {
    let (first, last) = wanted.starts();
    let (kind, subject) = wanted.of.code();
    let sql =
        "SELECT tally.start, what, count FROM generate_series($1::bigint, $2::bigint, $3::bigint) AS wanted (start)
         JOIN tally ON span = $4 AND tally.start = wanted.start AND kind = $5 AND subject = $6
         ORDER BY tally.start, what";
    let found = rows(db, sql, &[&first, &last, &wanted.span.millis(), &wanted.span.code(), &kind, &subject]).await?;
    let each = found.iter().map(|row| {
        let count = counted(row.try_get(2)?)?;
        Ok(Counted { start: Timestamp::from_millis(row.try_get(0)?), what: row.try_get(1)?, count })
    });
    each.collect()
}

/// `wanted`: of whichever application.
pub async fn by_application(
    db: &Db,
    (first_event, last_event): (TallyCode, TallyCode),
    wanted: TalliesOf,
) -> Result<Vec<(AppKey, u64)>> {
    let (first, last) = wanted.starts();
    let (kind, _) = wanted.of.code();
    let sql =
        "SELECT subject, sum(count)::bigint FROM generate_series($1::bigint, $2::bigint, $3::bigint) AS wanted (start)
         JOIN tally ON span = $4 AND tally.start = wanted.start AND kind = $5 AND what BETWEEN $6 AND $7
         GROUP BY subject";
    let of_spans: [&(dyn ToSql + Sync); 7] =
        [&first, &last, &wanted.span.millis(), &wanted.span.code(), &kind, &first_event, &last_event];
    let found = rows(db, sql, &of_spans).await?;
    found.iter().map(|row| Ok((AppKey::new(row.try_get(0)?), counted(row.try_get(1)?)?))).collect()
}

fn counted(count: i64) -> std::result::Result<u64, Unreadable> {
    count.try_into().map_err(|_| Unreadable(format!("a count of {count}")))
}

/// True if there may be more.
pub async fn forget(turn: &Turn, now: Timestamp, slice: i64) -> Result<bool> {
    let sql =
        "DELETE FROM tally WHERE ctid = ANY(ARRAY(SELECT ctid FROM tally WHERE span = $1 AND start < $2 LIMIT $3))";
    let mut more = false;
    for span in TallySpan::ALL {
        let before = now.minus(span.retention()).as_millis();
        more |= execute(turn.db(), sql, &[&span.code(), &before, &slice]).await? == u64::try_from(slice).unwrap_or(0);
    }
    Ok(more)
}
