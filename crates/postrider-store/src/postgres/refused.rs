//! What sources did not take.

use super::{Db, Result, execute, jobs::Turn, rows, settings::limit};
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
use std::collections::BTreeSet;
use tokio_postgres::Row;

pub async fn add(turn: &Turn, refused: &[Refused]) -> Result<()> {
    let sql = "INSERT INTO refused (key, app, at, status, reason, headers, body)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
    for one in refused {
        let (headers, status) = (to_json(&one.headers), one.status.cast_signed());
        execute(
            turn.db(),
            sql,
            &[&one.key.0, &one.app.raw(), &one.at.as_millis(), &status, &one.reason, &headers, &one.body.as_ref()],
        )
        .await?;
    }
    let cut = "DELETE FROM refused WHERE app = $1
         AND key <= (SELECT key FROM refused WHERE app = $1 ORDER BY key DESC LIMIT 1 OFFSET $2)";
    for app in refused.iter().map(|one| one.app.raw()).collect::<BTreeSet<_>>() {
        execute(turn.db(), cut, &[&app, &limit(REFUSED_MAX)]).await?;
    }
    Ok(())
}

pub async fn list(db: &Db, app: AppKey, page: &Page<RefusedKey>) -> Result<Vec<Refused>> {
    let span = Span::of(page, |key| key.0);
    let sql = format!(
        "SELECT * FROM refused WHERE app = $1 AND key > $2 AND key < $3 ORDER BY key {} LIMIT $4",
        span.direction()
    );
    let found = rows(db, &sql, &[&app.raw(), &span.low, &span.high, &limit(page.limit)]).await?;
    Ok(in_list_order(page, found.iter().map(refused_from).collect::<Result<_>>()?))
}

/// True if there may be more of them.
pub async fn forget(turn: &Turn, now: Timestamp, slice: i64) -> Result<bool> {
    let sql = "DELETE FROM refused WHERE key IN (SELECT key FROM refused WHERE key < $1 ORDER BY key LIMIT $2)";
    let before = first_key_at(now.minus(REFUSED_MEMORY));
    Ok(execute(turn.db(), sql, &[&before, &slice]).await? as i64 == slice)
}

fn refused_from(row: &Row) -> Result<Refused> {
    Ok(Refused {
        key: RefusedKey(row.get("key")),
        app: AppKey::new(row.get("app")),
        at: Timestamp::from_millis(row.get("at")),
        status: row.get::<_, i16>("status").cast_unsigned(),
        reason: row.get("reason"),
        headers: from_json(row.get("headers"))?,
        body: Bytes::from(row.get::<_, Vec<u8>>("body")),
    })
}
