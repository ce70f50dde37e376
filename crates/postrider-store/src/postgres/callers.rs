//! API keys, tokens that were revoked, and the audit log.

use super::{
    Db, Error, Result, execute,
    jobs::Turn,
    one, row, rows,
    settings::{Put, limit},
};
use crate::{
    ApiKey, ApiKeyKey, AuditEntry, AuditFilter, AuditKey, Issued, Page, PutError, Revocation,
    rows::{
        Unreadable, from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use postrider_engine::{AppKey, Timestamp};
use tokio_postgres::Row;

pub async fn put_api_key(turn: &Turn, api_key: &ApiKey) -> Result<Put> {
    let made = execute(
        turn.db(),
        "INSERT INTO api_key (key, hash, name, scopes, app, created_at, expires_at, revoked_at, used_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
        &[
            &api_key.key.0,
            &api_key.hash.as_slice(),
            &api_key.name,
            &to_json(&api_key.scopes),
            &api_key.app.map(AppKey::raw),
            &api_key.created_at.as_millis(),
            &millis(api_key.expires_at),
            &millis(api_key.revoked_at),
            &millis(api_key.used_at),
        ],
    )
    .await?;
    Ok(if made == 1 { Ok(()) } else { Err(PutError::Taken) })
}

pub async fn api_key(db: &Db, key: ApiKeyKey) -> Result<Option<ApiKey>> {
    let found = row(db, "SELECT * FROM api_key WHERE key = $1", &[&key.0]).await?;
    found.as_ref().map(api_key_from).transpose()
}

pub async fn api_keys(db: &Db, page: &Page<ApiKeyKey>) -> Result<Vec<ApiKey>> {
    let span = Span::of(page, |key| key.0);
    let sql = format!("SELECT * FROM api_key WHERE key > $1 AND key < $2 ORDER BY key {} LIMIT $3", span.direction());
    let found = rows(db, &sql, &[&span.low, &span.high, &limit(page.limit)]).await?;
    Ok(in_list_order(page, found.iter().map(api_key_from).collect::<Result<_>>()?))
}

pub async fn revoke_api_key(turn: &Turn, key: ApiKeyKey, at: Timestamp) -> Result<Option<ApiKey>> {
    let sql = "UPDATE api_key SET revoked_at = least(revoked_at, $2) WHERE key = $1";
    execute(turn.db(), sql, &[&key.0, &at.as_millis()]).await?;
    api_key(turn.db(), key).await
}

pub async fn rotate_api_key(turn: &Turn, old: ApiKeyKey, until: Timestamp, new: &ApiKey) -> Result<Put> {
    if !api_key(turn.db(), old).await?.is_some_and(|old| old.can_be_replaced(new.created_at)) {
        return Ok(Err(PutError::Changed));
    }
    if let Err(refusal) = put_api_key(turn, new).await? {
        return Ok(Err(refusal));
    }
    let sql = "UPDATE api_key SET revoked_at = $2 WHERE key = $1";
    execute(turn.db(), sql, &[&old.0, &until.as_millis()]).await?;
    Ok(Ok(()))
}

pub async fn note_uses(turn: &Turn, uses: &[(ApiKeyKey, Timestamp)]) -> Result<()> {
    let (keys, times): (Vec<i64>, Vec<i64>) = uses.iter().map(|(key, at)| (key.0, at.as_millis())).unzip();
    let sql = "UPDATE api_key SET used_at = uses.at
         FROM (SELECT key, max(at) AS at FROM unnest($1::bigint[], $2::bigint[]) AS uses (key, at) GROUP BY key) AS uses
         WHERE api_key.key = uses.key AND (used_at IS NULL OR used_at < uses.at)";
    execute(turn.db(), sql, &[&keys, &times]).await?;
    Ok(())
}

pub async fn revoke_tokens(turn: &Turn, revocations: &[Revocation]) -> Result<()> {
    for revocation in revocations {
        match revocation {
            Revocation::Token { id, at, forget_at } => {
                let sql = "INSERT INTO revoked_token (token, at, forget_at) VALUES ($1, $2, $3)
                     ON CONFLICT (token) DO UPDATE SET at = least(revoked_token.at, excluded.at),
                         forget_at = greatest(revoked_token.forget_at, excluded.forget_at)";
                execute(turn.db(), sql, &[&id.0.as_slice(), &at.as_millis(), &forget_at.as_millis()]).await?;
            }
            Revocation::Issued { app, session, until, at, forget_at } => {
                let (app, session) = (app.raw(), session.as_deref().unwrap_or_default());
                let (until, at) = (until.as_millis(), at.as_millis());
                // What ends no more, and no earlier, than this does.
                let sql = "DELETE FROM revoked_session
                     WHERE app = $1 AND session = $2 AND issued_until <= $3 AND at >= $4";
                execute(turn.db(), sql, &[&app, &session, &until, &at]).await?;
                let sql = "INSERT INTO revoked_session (app, session, issued_until, at, forget_at)
                     VALUES ($1, $2, $3, $4, $5)";
                execute(turn.db(), sql, &[&app, &session, &until, &at, &millis(*forget_at)]).await?;
            }
        }
    }
    Ok(())
}

pub async fn is_revoked(db: &Db, token: &Issued, now: Timestamp) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM revoked_token WHERE token = $1 AND at <= $5)
             OR EXISTS (SELECT 1 FROM revoked_session
                        WHERE app = $2 AND session IN ('', $3) AND issued_until >= $4 AND at <= $5)";
    let session = token.session.as_deref().unwrap_or_default();
    let app = token.app.map(AppKey::raw);
    let (id, issued_at, now) = (token.id.0.as_slice(), token.at.as_millis(), now.as_millis());
    Ok(one(db, sql, &[&id, &app, &session, &issued_at, &now]).await?.get(0))
}

/// Of tokens that have ended by themselves since. True if there may be more of them.
pub async fn forget_revocations(turn: &Turn, now: Timestamp, slice: i64) -> Result<bool> {
    let mut more = false;
    for sql in [
        "DELETE FROM revoked_token WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM revoked_token WHERE forget_at < $1 ORDER BY forget_at LIMIT $2))",
        "DELETE FROM revoked_session WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM revoked_session WHERE forget_at < $1 ORDER BY forget_at LIMIT $2))",
    ] {
        more |= execute(turn.db(), sql, &[&now.as_millis(), &slice]).await? as i64 == slice;
    }
    Ok(more)
}

pub async fn add_to_audit(turn: &Turn, entries: &[AuditEntry]) -> Result<()> {
    let sql = "INSERT INTO audit (key, at, actor, token, operation, objects, origin, status)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    for entry in entries {
        execute(
            turn.db(),
            sql,
            &[
                &entry.key.0,
                &entry.at.as_millis(),
                &entry.actor,
                &entry.token,
                &entry.operation,
                &to_json(&entry.objects),
                &entry.origin,
                &entry.status.cast_signed(),
            ],
        )
        .await?;
    }
    Ok(())
}

pub async fn audit(db: &Db, filter: &AuditFilter, page: &Page<AuditKey>) -> Result<Vec<AuditEntry>> {
    let span = Span::of(page, |key| key.0).within(filter.after, filter.before);
    let sql = format!(
        "SELECT * FROM audit WHERE key > $1 AND key < $2 AND ($3::text IS NULL OR actor = $3)
             AND ($4::text IS NULL OR operation = $4) ORDER BY key {} LIMIT $5",
        span.direction()
    );
    let limit = limit(page.limit);
    let found = rows(db, &sql, &[&span.low, &span.high, &filter.actor, &filter.operation, &limit]).await?;
    Ok(in_list_order(page, found.iter().map(entry_from).collect::<Result<_>>()?))
}

fn api_key_from(row: &Row) -> Result<ApiKey> {
    let time = |column| row.get::<_, Option<i64>>(column).map(Timestamp::from_millis);
    let hash: &[u8] = row.get("hash");
    Ok(ApiKey {
        key: ApiKeyKey(row.get("key")),
        hash: hash.try_into().map_err(|_| Error::from(Unreadable("the hash of an API key".to_owned())))?,
        name: row.get("name"),
        scopes: from_json(row.get("scopes"))?,
        app: row.get::<_, Option<i64>>("app").map(AppKey::new),
        created_at: Timestamp::from_millis(row.get("created_at")),
        expires_at: time("expires_at"),
        revoked_at: time("revoked_at"),
        used_at: time("used_at"),
    })
}

fn entry_from(row: &Row) -> Result<AuditEntry> {
    Ok(AuditEntry {
        key: AuditKey(row.get("key")),
        at: Timestamp::from_millis(row.get("at")),
        actor: row.get("actor"),
        token: row.get("token"),
        operation: row.get("operation"),
        objects: from_json(row.get("objects"))?,
        origin: row.get("origin"),
        status: row.get::<_, i16>("status").cast_unsigned(),
    })
}

fn millis(time: Option<Timestamp>) -> Option<i64> {
    time.map(Timestamp::as_millis)
}

#[cfg(test)]
mod tests {
    use crate::postgres::{DatabaseUrl, PostgresOptions, migrate, visit};
    use postrider_testbed::Cluster;

    #[tokio::test]
    async fn the_database_itself_keeps_the_audit_log_from_being_changed() {
        let url: DatabaseUrl = Cluster::shared().fresh_database().await.parse().expect("an address");
        let options = PostgresOptions::default();
        migrate(&url, &options).await.unwrap();
        let client = visit::connect(&url, &options).await.unwrap();
        client.batch_execute("INSERT INTO audit VALUES (1, 1, 'a', NULL, 'o', '{}', NULL, 200)").await.unwrap();
        for sql in [
            "UPDATE audit SET actor = 'b'",
            "DELETE FROM audit",
            "TRUNCATE audit",
            "INSERT INTO audit VALUES (1, 1, 'b', NULL, 'o', '{}', NULL, 200)
             ON CONFLICT (key) DO UPDATE SET actor = excluded.actor",
        ] {
            let refused = client.batch_execute(sql).await.unwrap_err();
            let told = refused.as_db_error().expect("a refusal").message();
            assert!(told.contains("only ever added to"), "{sql}: {told}");
        }
        let actor: String = client.query_one("SELECT actor FROM audit", &[]).await.unwrap().get(0);
        assert_eq!(actor, "a");
    }
}
