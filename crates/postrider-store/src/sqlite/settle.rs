//! Writing down what became of a delivery, and what waits.

use super::{
    codes::{class_code, death_code, rule_code, trigger_code},
    writer::Batch,
};
use crate::{AttemptRecord, Committed, Settlement};
use postrider_engine::{
    AppKey, DeliveryId, Timestamp, Trigger,
    policy::{DeathReason, Next},
};
use rusqlite::Connection;

pub fn settle(batch: &mut Batch<'_>, settlements: &[Settlement]) -> rusqlite::Result<()> {
    for settlement in settlements {
        settle_one(batch, settlement)?;
    }
    Ok(())
}

fn settle_one(batch: &mut Batch<'_>, settlement: &Settlement) -> rusqlite::Result<()> {
    let id = settlement.id;
    if let Some(attempt) = &settlement.attempt {
        record_attempt(batch, settlement, attempt)?;
    }
    // A try takes its time. What ended the delivery meanwhile (a resend that arrived, the end of its endpoint or of
    // its message) also took away its row; a failure that comes in afterwards must not bring it back.
    let connection = &batch.transaction;
    match settlement.next {
        Next::Delivered => {
            if !settlement.handed && !stop_waiting(connection, id)? {
                revive(connection, id)?;
            }
            // A resend that arrived ends the delivery's own schedule too: it is there now.
            if id.trigger == Trigger::Manual {
                stop_waiting(connection, DeliveryId { trigger: Trigger::Scheduled, ..id })?;
                revive(connection, id)?;
            }
        }
        Next::Retry { due, .. } | Next::Postponed { due } => wait(batch, settlement, due)?,
        Next::Dead(reason) => {
            let ends_now = if settlement.handed { is_owed(batch, id)? } else { stop_waiting(connection, id)? };
            if ends_now {
                bury(connection, id, reason, settlement.at, settlement.cycle)?;
            }
        }
        Next::Nothing => {
            stop_waiting(connection, id)?;
        }
    }
    if settlement.handed {
        batch.land(id.message.raw(), id.endpoint);
    }
    if settlement.disable_endpoint {
        disable(batch, settlement)?;
    }
    Ok(())
}

fn record_attempt(batch: &mut Batch<'_>, settlement: &Settlement, attempt: &AttemptRecord) -> rusqlite::Result<()> {
    let id = settlement.id;
    // The message's piece may have been dropped while it was on its way; then its history is gone with it.
    let Some(piece) = batch.piece_of(id.message.raw()) else { return Ok(()) };
    let (next_due, delay) = match settlement.next {
        Next::Retry { due, delay } => (Some(due.as_millis()), Some(delay)),
        Next::Delivered | Next::Dead(_) | Next::Nothing | Next::Postponed { .. } => (None, None),
    };
    let death = match settlement.next {
        Next::Dead(reason) => Some(death_code(reason)),
        Next::Delivered | Next::Retry { .. } | Next::Nothing | Next::Postponed { .. } => None,
    };
    let key = batch.mint_attempt(settlement.at);
    let mut insert = piece.prepare(
        &batch.transaction,
        "INSERT INTO attempt_{n} VALUES
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    )?;
    insert.execute(rusqlite::params![
        id.message.raw(),
        key,
        id.endpoint.raw(),
        class_code(attempt.class),
        rule_code(attempt.rule),
        trigger_code(id.trigger),
        settlement.cycle,
        settlement.progress.attempts,
        attempt.started_at.as_millis(),
        super::millis(attempt.duration),
        attempt.status,
        attempt.url,
        attempt.response.as_ref(),
        death,
        next_due,
        delay.map(|delay| super::millis(delay.backoff)),
        delay.map(|delay| super::millis(delay.jitter)),
        delay.and_then(|delay| delay.retry_after).map(super::millis),
        delay.map(|delay| delay.capped),
    ])?;
    Ok(())
}

/// Whether a delivery that was handed over still has to arrive. Its message may have been forgotten meanwhile, or a
/// resend may have brought it there.
fn is_owed(batch: &Batch<'_>, id: DeliveryId) -> rusqlite::Result<bool> {
    let Some(piece) = batch.piece_of(id.message.raw()) else { return Ok(false) };
    piece
        .prepare(
            &batch.transaction,
            // The plus keeps SQLite from looking through all that the endpoint ever got.
            "SELECT NOT EXISTS (SELECT 1 FROM attempt_{n} WHERE message = ?1 AND +endpoint = ?2 AND class = 0)",
        )?
        .query_row((id.message.raw(), id.endpoint.raw()), |row| row.get(0))
}

fn wait(batch: &Batch<'_>, settlement: &Settlement, due: Timestamp) -> rusqlite::Result<()> {
    let id = settlement.id;
    let sql = if settlement.handed {
        "INSERT OR REPLACE INTO waiting VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
    } else {
        "UPDATE waiting SET due = ?4, cycle = ?5, attempts = ?6, first_attempt_at = ?7
         WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3"
    };
    if settlement.handed && !is_owed(batch, id)? {
        return Ok(());
    }
    batch.transaction.prepare_cached(sql)?.execute((
        id.endpoint.raw(),
        id.message.raw(),
        trigger_code(id.trigger),
        due.as_millis(),
        settlement.cycle,
        settlement.progress.attempts,
        settlement.progress.first_attempt_at.map(Timestamp::as_millis),
    ))?;
    Ok(())
}

/// Gives deliveries that were handed over a row, so that memory can let go of them.
pub fn spill(batch: &mut Batch<'_>, deliveries: &[DeliveryId], due: Timestamp) -> rusqlite::Result<()> {
    for id in deliveries {
        if is_owed(batch, *id)? {
            start_waiting(&batch.transaction, *id, due, 0)?;
        }
        batch.land(id.message.raw(), id.endpoint);
    }
    Ok(())
}

pub fn start_waiting(connection: &Connection, id: DeliveryId, due: Timestamp, cycle: u32) -> rusqlite::Result<()> {
    connection.prepare_cached("INSERT OR IGNORE INTO waiting VALUES (?1, ?2, ?3, ?4, ?5, 0, NULL)")?.execute((
        id.endpoint.raw(),
        id.message.raw(),
        trigger_code(id.trigger),
        due.as_millis(),
        cycle,
    ))?;
    Ok(())
}

/// False if it was not waiting.
fn stop_waiting(connection: &Connection, id: DeliveryId) -> rusqlite::Result<bool> {
    let deleted = connection
        .prepare_cached("DELETE FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3")?
        .execute((id.endpoint.raw(), id.message.raw(), trigger_code(id.trigger)))?;
    Ok(deleted == 1)
}

pub fn bury(
    connection: &Connection,
    id: DeliveryId,
    reason: DeathReason,
    at: Timestamp,
    cycle: u32,
) -> rusqlite::Result<()> {
    connection.prepare_cached("INSERT OR REPLACE INTO dead VALUES (?1, ?2, ?3, ?4, ?5)")?.execute((
        id.endpoint.raw(),
        id.message.raw(),
        death_code(reason),
        at.as_millis(),
        cycle,
    ))?;
    Ok(())
}

/// Takes a delivery out of the dead letters.
pub fn revive(connection: &Connection, id: DeliveryId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM dead WHERE endpoint = ?1 AND message = ?2")?
        .execute((id.endpoint.raw(), id.message.raw()))?;
    Ok(())
}

fn disable(batch: &mut Batch<'_>, settlement: &Settlement) -> rusqlite::Result<()> {
    let app: Option<i64> = super::optional(
        batch
            .transaction
            .prepare_cached(
                "UPDATE endpoint SET disabled = 1, version = version + 1, updated_at = ?2
                 WHERE key = ?1 AND disabled = 0 AND deleted_at IS NULL RETURNING app",
            )?
            .query_row((settlement.id.endpoint.raw(), settlement.at.as_millis()), |row| row.get(0)),
    )?;
    if let Some(app) = app {
        batch.announce(Committed::Settings { app: AppKey::new(app) });
    }
    Ok(())
}
