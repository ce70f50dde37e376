//! What sources did not take.

use super::writer::Batch;
use crate::{
    Page, REFUSED_MAX, REFUSED_MEMORY, Refused, RefusedKey,
    rows::{
        from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use bytes::Bytes;
use postrider_engine::{AppKey, Timestamp, keys::first_key_at};
use rusqlite::{Connection, Row};
use std::collections::BTreeSet;

pub fn add(batch: &Batch<'_>, refused: &[Refused]) -> rusqlite::Result<()> {
    let mut add = batch.transaction.prepare_cached("INSERT INTO refused VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
    for one in refused {
        let Refused { key, app, at, status, reason, headers, body } = one;
        add.execute((key.0, app.raw(), at.as_millis(), status, reason, to_json(headers), body.as_ref()))?;
    }
    let mut cut = batch.transaction.prepare_cached(
        "DELETE FROM refused WHERE app = ?1
             AND key <= (SELECT key FROM refused WHERE app = ?1 ORDER BY key DESC LIMIT 1 OFFSET ?2)",
    )?;
    for app in refused.iter().map(|one| one.app.raw()).collect::<BTreeSet<_>>() {
        cut.execute((app, REFUSED_MAX))?;
    }
    Ok(())
}

pub fn list(connection: &Connection, app: AppKey, page: &Page<RefusedKey>) -> rusqlite::Result<Vec<Refused>> {
    let span = Span::of(page, |key| key.0);
    let sql = format!(
        "SELECT * FROM refused WHERE app = ?1 AND key > ?2 AND key < ?3 ORDER BY key {} LIMIT ?4",
        span.direction()
    );
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((app.raw(), span.low, span.high, page.limit), refused_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

/// True if there may be more of them.
pub fn forget(batch: &Batch<'_>, now: Timestamp, slice: usize) -> rusqlite::Result<bool> {
    let forgotten = batch
        .transaction
        .prepare_cached("DELETE FROM refused WHERE key IN (SELECT key FROM refused WHERE key < ?1 LIMIT ?2)")?
        .execute((first_key_at(now.minus(REFUSED_MEMORY)), slice))?;
    Ok(forgotten == slice)
}

fn refused_from(row: &Row<'_>) -> rusqlite::Result<Refused> {
    Ok(Refused {
        key: RefusedKey(row.get("key")?),
        app: AppKey::new(row.get("app")?),
        at: Timestamp::from_millis(row.get("at")?),
        status: row.get("status")?,
        reason: row.get("reason")?,
        headers: from_json(row.get_ref("headers")?.as_str()?)?,
        body: Bytes::from(row.get::<_, Vec<u8>>("body")?),
    })
}
