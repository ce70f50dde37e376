//! API keys, tokens that were revoked, and the audit log.

use super::{settings::Put, writer::Batch};
use crate::{
    ApiKey, ApiKeyKey, AuditEntry, AuditFilter, AuditKey, Issued, Page, PutError, Revocation,
    rows::{
        from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use postrider_engine::{AppKey, Timestamp};
use rusqlite::{Connection, Row, named_params};

pub fn put_api_key(batch: &Batch<'_>, api_key: &ApiKey) -> rusqlite::Result<Put> {
    let made = batch
        .transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO api_key
                 (key, hash, name, scopes, app, created_at, expires_at, revoked_at, used_at)
             VALUES (:key, :hash, :name, :scopes, :app, :created_at, :expires_at, :revoked_at, :used_at)",
        )?
        .execute(named_params! {
            ":key": api_key.key.0,
            ":hash": api_key.hash,
            ":name": api_key.name,
            ":scopes": to_json(&api_key.scopes),
            ":app": api_key.app.map(AppKey::raw),
            ":created_at": api_key.created_at.as_millis(),
            ":expires_at": millis(api_key.expires_at),
            ":revoked_at": millis(api_key.revoked_at),
            ":used_at": millis(api_key.used_at),
        })?;
    Ok(if made == 1 { Ok(()) } else { Err(PutError::Taken) })
}

pub fn api_key(connection: &Connection, key: ApiKeyKey) -> rusqlite::Result<Option<ApiKey>> {
    super::optional(connection.prepare_cached("SELECT * FROM api_key WHERE key = ?1")?.query_row([key.0], api_key_from))
}

pub fn api_keys(connection: &Connection, page: &Page<ApiKeyKey>) -> rusqlite::Result<Vec<ApiKey>> {
    let span = Span::of(page, |key| key.0);
    let sql = format!("SELECT * FROM api_key WHERE key > ?1 AND key < ?2 ORDER BY key {} LIMIT ?3", span.direction());
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((span.low, span.high, page.limit), api_key_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

pub fn revoke_api_key(batch: &Batch<'_>, key: ApiKeyKey, at: Timestamp) -> rusqlite::Result<Option<ApiKey>> {
    batch
        .transaction
        .prepare_cached("UPDATE api_key SET revoked_at = min(coalesce(revoked_at, ?2), ?2) WHERE key = ?1")?
        .execute((key.0, at.as_millis()))?;
    api_key(&batch.transaction, key)
}

pub fn rotate_api_key(batch: &Batch<'_>, old: ApiKeyKey, until: Timestamp, new: &ApiKey) -> rusqlite::Result<Put> {
    if !api_key(&batch.transaction, old)?.is_some_and(|old| old.can_be_replaced(new.created_at)) {
        return Ok(Err(PutError::Changed));
    }
    if let Err(refusal) = put_api_key(batch, new)? {
        return Ok(Err(refusal));
    }
    batch
        .transaction
        .prepare_cached("UPDATE api_key SET revoked_at = ?2 WHERE key = ?1")?
        .execute((old.0, until.as_millis()))?;
    Ok(Ok(()))
}

pub fn note_uses(batch: &Batch<'_>, uses: &[(ApiKeyKey, Timestamp)]) -> rusqlite::Result<()> {
    let mut note = batch
        .transaction
        .prepare_cached("UPDATE api_key SET used_at = ?2 WHERE key = ?1 AND coalesce(used_at, ?2 - 1) < ?2")?;
    for (key, at) in uses {
        note.execute((key.0, at.as_millis()))?;
    }
    Ok(())
}

pub fn revoke_tokens(batch: &Batch<'_>, revocations: &[Revocation]) -> rusqlite::Result<()> {
    for revocation in revocations {
        match revocation {
            Revocation::Token { id, at, forget_at } => {
                batch
                    .transaction
                    .prepare_cached(
                        "INSERT INTO revoked_token VALUES (?1, ?2, ?3) ON CONFLICT (token) DO UPDATE
                             SET at = min(at, excluded.at), forget_at = max(forget_at, excluded.forget_at)",
                    )?
                    .execute((id.0, at.as_millis(), forget_at.as_millis()))?;
            }
            Revocation::Issued { app, session, until, at, forget_at } => {
                let session = session.as_deref().unwrap_or_default();
                let row = (app.raw(), session, until.as_millis(), at.as_millis());
                // What ends no more, and no earlier, than this does.
                batch
                    .transaction
                    .prepare_cached(
                        "DELETE FROM revoked_session
                         WHERE app = ?1 AND session = ?2 AND issued_until <= ?3 AND at >= ?4",
                    )?
                    .execute(row)?;
                batch
                    .transaction
                    .prepare_cached("INSERT INTO revoked_session VALUES (?1, ?2, ?3, ?4, ?5)")?
                    .execute((row.0, row.1, row.2, row.3, millis(*forget_at)))?;
            }
        }
    }
    Ok(())
}

pub fn is_revoked(connection: &Connection, token: &Issued, now: Timestamp) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM revoked_token WHERE token = ?1 AND at <= ?5)
                 OR EXISTS (SELECT 1 FROM revoked_session
                            WHERE app = ?2 AND session IN ('', ?3) AND issued_until >= ?4 AND at <= ?5)",
        )?
        .query_row(
            (
                token.id.0,
                token.app.map(AppKey::raw),
                token.session.as_deref().unwrap_or_default(),
                token.at.as_millis(),
                now.as_millis(),
            ),
            |row| row.get(0),
        )
}

/// Of tokens that have ended by themselves since. True if there may be more of them.
pub fn forget_revocations(batch: &Batch<'_>, now: Timestamp, limit: usize) -> rusqlite::Result<bool> {
    let tokens = batch
        .transaction
        .prepare_cached(
            "DELETE FROM revoked_token WHERE token IN (SELECT token FROM revoked_token WHERE forget_at < ?1 LIMIT ?2)",
        )?
        .execute((now.as_millis(), limit))?;
    let sessions = batch
        .transaction
        .prepare_cached(
            "DELETE FROM revoked_session WHERE (app, session, issued_until, at) IN
                 (SELECT app, session, issued_until, at FROM revoked_session WHERE forget_at < ?1 LIMIT ?2)",
        )?
        .execute((now.as_millis(), limit))?;
    Ok(tokens == limit || sessions == limit)
}

pub fn add_to_audit(batch: &Batch<'_>, entries: &[AuditEntry]) -> rusqlite::Result<()> {
    let mut add = batch.transaction.prepare_cached("INSERT INTO audit VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    for entry in entries {
        add.execute((
            entry.key.0,
            entry.at.as_millis(),
            &entry.actor,
            &entry.token,
            &entry.operation,
            to_json(&entry.objects),
            &entry.origin,
            entry.status,
        ))?;
    }
    Ok(())
}

pub fn audit(
    connection: &Connection,
    filter: &AuditFilter,
    page: &Page<AuditKey>,
) -> rusqlite::Result<Vec<AuditEntry>> {
    let span = Span::of(page, |key| key.0).within(filter.after, filter.before);
    let sql = format!(
        "SELECT * FROM audit WHERE key > ?1 AND key < ?2 AND (?3 IS NULL OR actor = ?3)
             AND (?4 IS NULL OR operation = ?4) ORDER BY key {} LIMIT ?5",
        span.direction()
    );
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((span.low, span.high, &filter.actor, &filter.operation, page.limit), entry_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

fn api_key_from(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    let time = |column| -> rusqlite::Result<_> { Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis)) };
    Ok(ApiKey {
        key: ApiKeyKey(row.get("key")?),
        hash: row.get("hash")?,
        name: row.get("name")?,
        scopes: from_json(row.get_ref("scopes")?.as_str()?)?,
        app: row.get::<_, Option<i64>>("app")?.map(AppKey::new),
        created_at: Timestamp::from_millis(row.get("created_at")?),
        expires_at: time("expires_at")?,
        revoked_at: time("revoked_at")?,
        used_at: time("used_at")?,
    })
}

fn entry_from(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    Ok(AuditEntry {
        key: AuditKey(row.get("key")?),
        at: Timestamp::from_millis(row.get("at")?),
        actor: row.get("actor")?,
        token: row.get("token")?,
        operation: row.get("operation")?,
        objects: from_json(row.get_ref("objects")?.as_str()?)?,
        origin: row.get("origin")?,
        status: row.get("status")?,
    })
}

fn millis(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_millis)
}

#[cfg(test)]
mod tests {
    use super::super::{open_in_memory, schema};

    #[test]
    fn the_database_itself_keeps_the_audit_log_from_being_changed() {
        let mut connection = open_in_memory();
        schema::migrate(&mut connection).unwrap();
        let row = "INTO audit VALUES (1, 1, 'a', NULL, 'o', '{}', NULL, 200)";
        connection.execute(&format!("INSERT {row}"), []).unwrap();
        for sql in [
            "UPDATE audit SET actor = 'b'",
            "DELETE FROM audit",
            "INSERT OR REPLACE INTO audit VALUES (1, 1, 'b', NULL, 'o', '{}', NULL, 200)",
        ] {
            let refused = connection.execute(sql, []).unwrap_err().to_string();
            assert!(refused.contains("only ever added to"), "{sql}: {refused}");
        }
        let actor: String = connection.query_row("SELECT actor FROM audit", [], |row| row.get(0)).unwrap();
        assert_eq!(actor, "a");
    }
}
