//! API keys, tokens that were revoked, and the audit log.

use super::{
    batch::Batch,
    settings::{Put, on_page},
    tables::{RevokedRow, Tables},
};
use postrider_engine::Timestamp;
use postrider_store::{
    ApiKey, ApiKeyKey, AuditEntry, AuditFilter, AuditKey, Issued, Page, PutError, Revocation, TokenId,
};

pub fn put_api_key(batch: &mut Batch<'_>, api_key: ApiKey) -> Put {
    if batch.tables.api_keys.contains_key(&api_key.key) {
        return Err(PutError::Taken);
    }
    batch.tables.api_keys.insert(api_key.key, api_key);
    Ok(())
}

pub fn api_keys(tables: &Tables, page: &Page<ApiKeyKey>) -> Vec<ApiKey> {
    on_page(&tables.api_keys, page, |_| true).into_iter().map(|(_, found)| found.clone()).collect()
}

pub fn revoke_api_key(batch: &mut Batch<'_>, key: ApiKeyKey, at: Timestamp) -> Option<ApiKey> {
    let found = batch.tables.api_keys.get_mut(&key)?;
    found.revoked_at = Some(found.revoked_at.map_or(at, |end| end.min(at)));
    Some(found.clone())
}

pub fn rotate_api_key(batch: &mut Batch<'_>, old: ApiKeyKey, until: Timestamp, new: ApiKey) -> Put {
    if !batch.tables.api_keys.get(&old).is_some_and(|old| old.can_be_replaced(new.created_at)) {
        return Err(PutError::Changed);
    }
    put_api_key(batch, new)?;
    if let Some(old) = batch.tables.api_keys.get_mut(&old) {
        old.revoked_at = Some(until);
    }
    Ok(())
}

pub fn note_uses(batch: &mut Batch<'_>, uses: &[(ApiKeyKey, Timestamp)]) {
    for (key, at) in uses {
        if let Some(found) = batch.tables.api_keys.get_mut(key) {
            found.used_at = found.used_at.max(Some(*at));
        }
    }
}

pub fn revoke_tokens(batch: &mut Batch<'_>, revocations: Vec<Revocation>) {
    for revocation in revocations {
        match revocation {
            Revocation::Token { id, at, forget_at } => {
                let row = batch.tables.revoked_tokens.entry(id).or_insert((at, forget_at));
                *row = (row.0.min(at), row.1.max(forget_at));
            }
            Revocation::Issued { app, session, until, at, forget_at } => {
                let rows = batch.tables.revoked_sessions.entry((app, session)).or_default();
                rows.retain(|row| row.until > until || row.at < at);
                rows.push(RevokedRow { until, at, forget_at });
            }
        }
    }
}

pub fn is_revoked(tables: &Tables, token: &Issued, now: Timestamp) -> bool {
    let by_id = tables.revoked_tokens.get(&token.id).is_some_and(|(at, _)| *at <= now);
    let ends = |row: &RevokedRow| row.until >= token.at && row.at <= now;
    let by_issue = token.app.is_some_and(|app| {
        let of = |session: &Option<String>| tables.revoked_sessions.get(&(app, session.clone()));
        [&None, &token.session].into_iter().filter_map(of).flatten().any(ends)
    });
    by_id || by_issue
}

/// Of tokens that have ended by themselves since. True if there may be more of them.
pub fn forget_revocations(tables: &mut Tables, now: Timestamp, slice: usize) -> bool {
    let old = tables.revoked_tokens.iter().filter(|(_, (_, forget_at))| *forget_at < now).take(slice);
    let old: Vec<TokenId> = old.map(|(id, _)| *id).collect();
    for id in &old {
        tables.revoked_tokens.remove(id);
    }
    tables.revoked_sessions.retain(|_, rows| {
        rows.retain(|row| row.forget_at.is_none_or(|forget_at| forget_at >= now));
        !rows.is_empty()
    });
    old.len() == slice
}

pub fn add_to_audit(batch: &mut Batch<'_>, entries: Vec<AuditEntry>) {
    for entry in entries {
        batch.tables.audit.entry(entry.key).or_insert(entry);
    }
}

pub fn audit(tables: &Tables, filter: &AuditFilter, page: &Page<AuditKey>) -> Vec<AuditEntry> {
    let is_same = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
    let is_shown = |(_, entry): &(&AuditKey, &AuditEntry)| {
        is_same(&filter.actor, &entry.actor)
            && is_same(&filter.operation, &entry.operation)
            && filter.after.is_none_or(|after| entry.at >= after)
            && filter.before.is_none_or(|before| entry.at < before)
    };
    on_page(&tables.audit, page, is_shown).into_iter().map(|(_, entry)| entry.clone()).collect()
}
