//! Writing down what became of a delivery, and what waits.

use super::{cancel::is_delivered, health, journal, listing::AttemptEntry, writer::Batch};
use crate::{
    AttemptRecord, Cancelled, Committed, EndpointChange, EndpointHappened, Settlement,
    rows::{
        codes::{Place, class_code, death_code, disable_code, held_code, rule_code, trigger_code},
        millis,
    },
    step,
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, OrderKey, Timestamp, Trigger,
    policy::{DeathReason, DisableReason, Next},
};
use rusqlite::{Connection, params_from_iter};

pub fn settle(batch: &mut Batch<'_>, settlements: &[Settlement]) -> rusqlite::Result<()> {
    for settlement in settlements {
        settle_one(batch, settlement)?;
        step!("store.settled");
    }
    journal::enter_outcomes(&batch.transaction, settlements)
}

fn settle_one(batch: &mut Batch<'_>, settlement: &Settlement) -> rusqlite::Result<()> {
    let id = settlement.id;
    if let Some(attempt) = &settlement.attempt {
        record_attempt(batch, settlement, attempt)?;
    }
    // A try takes its time. What ended the delivery meanwhile (a resend that arrived, a person, the end of its endpoint
    // or of its message) also took away its row; a failure that comes in afterwards must not bring it back, nor may it
    // touch a new cycle that was begun since.
    let connection = &batch.transaction;
    match settlement.next {
        Next::Delivered => {
            let ended_before = match settlement.handed {
                true => batch.was_ended(id.message.raw(), id.endpoint),
                false => !remove_waiting(connection, id)?,
            };
            if ended_before {
                // It may have been put on its way again since; there is no need for that now.
                remove_waiting(connection, id)?;
                revive(connection, id)?;
            }
            match id.trigger {
                Trigger::Manual => end_schedule(batch, id)?,
                Trigger::Scheduled => {}
            }
        }
        Next::Retry { due, .. } | Next::Postponed { due } => wait(batch, settlement, due)?,
        Next::Dead(reason) => {
            let ends_now = match settlement.handed {
                true => is_owed(batch, id)?,
                // What arrived once and was put on its way again stays delivered.
                false => {
                    remove(connection, id, Some(settlement.cycle))? && !is_delivered(connection, batch.pieces(), id)?
                }
            };
            if ends_now {
                bury(connection, id, reason, settlement.at, settlement.cycle)?;
                step!("dead.written");
            }
        }
        Next::Nothing => {
            remove_waiting(connection, id)?;
        }
    }
    if settlement.handed {
        batch.land(id.message.raw(), id.endpoint);
    }
    if let Some(health) = settlement.health {
        health::put(&batch.transaction, id.endpoint, health)?;
        step!("store.health");
    }
    if let Some(why) = settlement.disable {
        disable(batch, settlement, why)?;
    }
    Ok(())
}

/// A resend that arrived ends the delivery's own schedule too: it is there now. Its lane may have the delivery in memory,
/// or hold others back until it ends.
fn end_schedule(batch: &mut Batch<'_>, resend: DeliveryId) -> rusqlite::Result<()> {
    let DeliveryId { endpoint, message, .. } = resend;
    let waited = remove_waiting(&batch.transaction, DeliveryId { trigger: Trigger::Scheduled, ..resend })?;
    revive(&batch.transaction, resend)?;
    let was_handed = batch.is_handed(message, endpoint);
    if was_handed {
        batch.end_handed(message, endpoint);
    }
    if waited || was_handed {
        batch.announce(Committed::Cancelled { endpoint, which: Cancelled::One(message) });
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
    let class = class_code(attempt.class);
    batch.insert_attempt.on(piece)?.execute(rusqlite::params![
        id.message.raw(),
        key,
        id.endpoint.raw(),
        class,
        rule_code(attempt.rule),
        trigger_code(id.trigger),
        settlement.cycle,
        settlement.progress.attempts,
        attempt.started_at.as_millis(),
        millis(attempt.duration),
        attempt.status,
        attempt.url,
        attempt.response.as_ref(),
        death,
        next_due,
        delay.map(|delay| millis(delay.backoff)),
        delay.map(|delay| millis(delay.jitter)),
        delay.and_then(|delay| delay.retry_after).map(millis),
        delay.map(|delay| delay.capped),
        attempt.held.map(|held| millis(held.late)),
        attempt.held.map(|held| held_code(held.by)),
        Some(attempt.headers.as_ref()).filter(|headers| !headers.is_empty()),
    ])?;
    batch.list_attempt(piece, AttemptEntry { endpoint: id.endpoint.raw(), key, message: id.message.raw(), class })
}

pub const INSERT_ATTEMPT: &str = "
    INSERT INTO attempt_{n} VALUES
    (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)";

/// Whether a delivery that was handed over still has to arrive. Its message may have been forgotten meanwhile, a resend
/// may have brought it there, or a person may have ended it.
fn is_owed(batch: &Batch<'_>, id: DeliveryId) -> rusqlite::Result<bool> {
    if batch.was_ended(id.message.raw(), id.endpoint) {
        return Ok(false);
    }
    let Some(piece) = batch.piece_of(id.message.raw()) else { return Ok(false) };
    piece
        .prepare(
            &batch.transaction,
            "SELECT NOT EXISTS (SELECT 1 FROM attempt_{n} WHERE message = ?1 AND endpoint = ?2 AND class = 0)",
        )?
        .query_row((id.message.raw(), id.endpoint.raw()), |row| row.get(0))
}

fn wait(batch: &Batch<'_>, settlement: &Settlement, due: Timestamp) -> rusqlite::Result<()> {
    let id = settlement.id;
    if settlement.handed && !is_owed(batch, id)? {
        return Ok(());
    }
    let (order, progress) = (binding(id, settlement.order), settlement.progress);
    let values: [Option<i64>; 12] = [
        Some(id.endpoint.raw()),
        Some(id.message.raw()),
        Some(trigger_code(id.trigger)),
        Some(due.as_millis()),
        Some(settlement.cycle.into()),
        Some(progress.attempts.into()),
        progress.give_up_at.map(Timestamp::as_millis),
        progress.last_delay.map(millis),
        (progress.ambiguous > 0).then_some(progress.ambiguous.into()),
        progress.ambiguous_since.map(Timestamp::as_millis),
        order.map(OrderKey::raw),
        Some(place_at_first(id, order).code()),
    ];
    let (sql, used) = if settlement.handed { (WAIT_FIRST, &values[..]) } else { (WAIT_AGAIN, &values[..10]) };
    batch.transaction.prepare_cached(sql)?.execute(params_from_iter(used))?;
    line_up(&batch.transaction, id.endpoint, order.filter(|_| settlement.handed))
}

const WAIT_FIRST: &str = "
    INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, give_up_at, last_delay, ambiguous,
        ambiguous_since, order_key, place)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
    ON CONFLICT DO UPDATE SET due = ?4, cycle = ?5, attempts = ?6, give_up_at = ?7, last_delay = ?8, ambiguous = ?9,
        ambiguous_since = ?10";

const WAIT_AGAIN: &str = "
    UPDATE waiting SET due = ?4, attempts = ?6, give_up_at = ?7, last_delay = ?8, ambiguous = ?9, ambiguous_since = ?10
    WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3 AND cycle = ?5";

/// Gives deliveries that were handed over a row, so that memory can let go of them.
pub fn spill(
    batch: &mut Batch<'_>,
    deliveries: &[(DeliveryId, Option<OrderKey>)],
    due: Timestamp,
) -> rusqlite::Result<()> {
    for (id, order) in deliveries {
        if is_owed(batch, *id)? {
            start_waiting(&batch.transaction, *id, *order, due, Cycle::First)?;
        }
        batch.land(id.message.raw(), id.endpoint);
    }
    Ok(())
}

/// Which cycle of a delivery begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    First,
    /// Its time to wait untried counts from then.
    Again {
        number: u32,
        queued_at: Timestamp,
    },
}

/// A delivery begins to wait in the store, unless it does already.
pub fn start_waiting(
    connection: &Connection,
    id: DeliveryId,
    order: Option<OrderKey>,
    due: Timestamp,
    cycle: Cycle,
) -> rusqlite::Result<()> {
    let (number, queued_at) = match cycle {
        Cycle::First => (0, None),
        Cycle::Again { number, queued_at } => (number, Some(queued_at.as_millis())),
    };
    let order = binding(id, order);
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO waiting
                 (endpoint, message, trigger_code, due, cycle, attempts, queued_at, order_key, place)
             VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8)",
        )?
        .execute((
            id.endpoint.raw(),
            id.message.raw(),
            trigger_code(id.trigger),
            due.as_millis(),
            number,
            queued_at,
            order.map(OrderKey::raw),
            place_at_first(id, order).code(),
        ))?;
    line_up(connection, id.endpoint, order)
}

/// A delivery waits no longer. False if it did not.
pub fn remove_waiting(connection: &Connection, id: DeliveryId) -> rusqlite::Result<bool> {
    remove(connection, id, None)
}

/// With a cycle: only if it is that one which waits.
fn remove(connection: &Connection, id: DeliveryId, cycle: Option<u32>) -> rusqlite::Result<bool> {
    let row = (id.endpoint.raw(), id.message.raw(), trigger_code(id.trigger), cycle);
    // Most have no order. To ask the deletion of all of them for its row would take it half as long again.
    let unordered = connection
        .prepare_cached(
            "DELETE FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3
                 AND cycle = coalesce(?4, cycle) AND order_key IS NULL",
        )?
        .execute(row)?;
    if unordered == 1 {
        return Ok(true);
    }
    let order: Option<i64> = super::optional(
        connection
            .prepare_cached(
                "DELETE FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3
                     AND cycle = coalesce(?4, cycle) RETURNING order_key",
            )?
            .query_row(row, |row| row.get(0)),
    )?;
    line_up(connection, id.endpoint, order.map(OrderKey::new))?;
    Ok(order.is_some())
}

/// No order binds a resend.
fn binding(id: DeliveryId, order: Option<OrderKey>) -> Option<OrderKey> {
    order.filter(|_| id.trigger == Trigger::Scheduled)
}

/// Where a new row stands until its key is lined up.
fn place_at_first(id: DeliveryId, order: Option<OrderKey>) -> Place {
    match (id.trigger, order) {
        (Trigger::Manual, _) => Place::Beside,
        (Trigger::Scheduled, None) => Place::Front,
        (Trigger::Scheduled, Some(_)) => Place::Behind,
    }
}

/// Puts the first row of an ordering key to the front and the second behind it. After a row has come or gone no other
/// can be in the wrong place: a new one comes before the one in front or after it, and the next one follows one that went.
fn line_up(connection: &Connection, endpoint: EndpointKey, order: Option<OrderKey>) -> rusqlite::Result<()> {
    let Some(order) = order else { return Ok(()) };
    let foremost: Vec<(i64, i64)> = connection
        .prepare_cached(FOREMOST_OF_KEY)?
        .query_map((endpoint.raw(), order.raw()), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for ((message, found), place) in foremost.into_iter().zip([Place::Front, Place::Behind].map(Place::code)) {
        if found != place {
            connection
                .prepare_cached(
                    "UPDATE waiting SET place = ?4 WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3",
                )?
                .execute((endpoint.raw(), message, trigger_code(Trigger::Scheduled), place))?;
        }
    }
    Ok(())
}

pub const FOREMOST_OF_KEY: &str = "SELECT message, place FROM waiting INDEXED BY waiting_order
    WHERE endpoint = ?1 AND order_key = ?2 ORDER BY message LIMIT 2";

/// Puts a delivery that was given up, or that has arrived, on its way again: as a new cycle, due at once.
pub fn requeue(
    connection: &Connection,
    id: DeliveryId,
    order: Option<OrderKey>,
    cycle: u32,
    at: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE dead SET open = 0, replayed_at = ?3 WHERE endpoint = ?1 AND message = ?2")?
        .execute((id.endpoint.raw(), id.message.raw(), at.as_millis()))?;
    start_waiting(connection, id, order, at, Cycle::Again { number: cycle, queued_at: at })
}

/// A delivery is given up. What waited of it has been removed by the caller.
pub fn bury(
    connection: &Connection,
    id: DeliveryId,
    reason: DeathReason,
    at: Timestamp,
    cycle: u32,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
             VALUES (?1, ?2, ?3, ?4, ?5, coalesce((SELECT app FROM endpoint WHERE key = ?1), 0), 1)
             ON CONFLICT (endpoint, message) DO UPDATE SET reason = ?3, at = ?4, cycle = ?5, open = 1",
        )?
        .execute((id.endpoint.raw(), id.message.raw(), death_code(reason), at.as_millis(), cycle))?;
    Ok(())
}

/// A dead letter that arrived after all is one no longer.
fn revive(connection: &Connection, id: DeliveryId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE dead SET open = 0 WHERE endpoint = ?1 AND message = ?2")?
        .execute((id.endpoint.raw(), id.message.raw()))?;
    Ok(())
}

fn disable(batch: &mut Batch<'_>, settlement: &Settlement, why: DisableReason) -> rusqlite::Result<()> {
    let (endpoint, at) = (settlement.id.endpoint, settlement.at);
    let disabled: Option<(i64, i64, Option<String>)> = super::optional(
        batch
            .transaction
            .prepare_cached(
                "UPDATE endpoint SET disabled_why = ?2, disabled_at = ?3, version = version + 1, updated_at = ?3
                 WHERE key = ?1 AND disabled_why IS NULL AND deleted_at IS NULL RETURNING app, version, uid",
            )?
            .query_row((endpoint.raw(), disable_code(why), at.as_millis()), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            }),
    )?;
    if let Some((app, version, uid)) = disabled {
        let app = AppKey::new(app);
        batch.announce(Committed::Settings { app });
        if journal::is_heard(&batch.transaction, app)? {
            let failing_since = settlement.health.and_then(|health| health.failing_since).map(Timestamp::as_millis);
            let change = EndpointChange::Disabled { failing_since };
            let what = EndpointHappened::new(endpoint, uid, version, change);
            journal::enter_endpoint(&batch.transaction, app, [what], at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{settle, *};
    use crate::{
        Counts, DeliveryState, Shards, SqliteStore, Stats, Store,
        conformance::fixtures::{self, *},
    };
    use postrider_engine::MessageKey;
    use tempfile::TempDir;

    struct Scene {
        store: SqliteStore,
        folder: TempDir,
        id: DeliveryId,
    }

    impl Scene {
        /// One message, handed over.
        async fn set() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(folder.path(), START).unwrap();
            let app = add_application(&store, None).await.key;
            let endpoint = add_endpoint(&store, app, None).await.key;
            let message = accept(&store, crate::NewMessage { owed: vec![endpoint], ..message(app, START) }).await;
            Self { store, folder, id: scheduled(endpoint, message) }
        }

        async fn write(&self, job: impl FnOnce(&mut Batch<'_>) -> rusqlite::Result<()> + Send + 'static) {
            self.store.writer.run(job).await.unwrap();
        }

        /// As a person does it whose wish comes while the first try is on the wire.
        async fn cancel(&self) {
            let id = self.id;
            self.write(move |batch| {
                assert!(batch.is_handed(id.message, id.endpoint));
                assert_eq!(batch.handed_to(id.endpoint), [id.message]);
                bury(&batch.transaction, id, DeathReason::Cancelled, at(5), 0)?;
                batch.end_handed(id.message, id.endpoint);
                assert!(!batch.is_handed(id.message, id.endpoint));
                assert_eq!(batch.handed_to(id.endpoint), Vec::<MessageKey>::new());
                Ok(())
            })
            .await;
        }

        async fn settle(&self, settlement: Settlement) {
            fixtures::settle(&self.store, vec![settlement]).await;
        }

        async fn state(&self) -> DeliveryState {
            state(&self.store, self.id).await
        }

        async fn stats(&self) -> Stats {
            stats(&self.store, self.id.endpoint).await
        }

        async fn counts(&self) -> (u64, u64) {
            let Counts { waiting, dead } = self.store.counts(Shards::ALL).await.unwrap();
            (waiting, dead)
        }

        async fn reopen(self) -> Self {
            let Self { store, folder, id } = self;
            store.close().await;
            drop(store);
            Self { store: SqliteStore::open(folder.path(), at(DAY)).unwrap(), folder, id }
        }
    }

    const CANCELLED: DeliveryState = DeliveryState::Dead { at: at_five(), reason: DeathReason::Cancelled };

    const fn at_five() -> Timestamp {
        Timestamp::from_millis(START.as_millis() + 5)
    }

    #[tokio::test]
    async fn what_was_cancelled_on_the_wire_does_not_come_back_by_failing() {
        let failures: [fn(DeliveryId) -> Settlement; 3] = [
            |id| failed(id, at(9), at(99)),
            |id| refused(id, at(9)),
            |id| Settlement { attempt: None, next: Next::Postponed { due: at(99) }, ..refused(id, at(9)) },
        ];
        for failure in failures {
            let scene = Scene::set().await;
            scene.cancel().await;
            assert_eq!(scene.stats().await, Stats { canceled: 1, ..Stats::default() });
            scene.settle(failure(scene.id)).await;
            assert_eq!((scene.state().await, scene.counts().await), (CANCELLED, (0, 1)));
            let scene = scene.reopen().await;
            assert_eq!((scene.state().await, scene.counts().await), (CANCELLED, (0, 1)), "nor by a restart");
        }
    }

    #[tokio::test]
    async fn what_was_cancelled_before_it_could_be_spilled_stays_cancelled() {
        let scene = Scene::set().await;
        scene.cancel().await;
        scene.store.spill(scene.store.tenure(), vec![(scene.id, None)], at(6)).await.unwrap();
        assert_eq!((scene.state().await, scene.counts().await), (CANCELLED, (0, 1)));
    }

    #[tokio::test]
    async fn what_was_cancelled_on_the_wire_and_arrived_is_no_dead_letter() {
        for in_one_commit in [false, true] {
            let scene = Scene::set().await;
            let id = scene.id;
            if in_one_commit {
                scene
                    .write(move |batch| {
                        bury(&batch.transaction, id, DeathReason::Cancelled, at(5), 0)?;
                        batch.end_handed(id.message, id.endpoint);
                        settle(batch, &[delivered(id, at(9))])
                    })
                    .await;
            } else {
                scene.cancel().await;
                scene.settle(delivered(id, at(9))).await;
            }
            assert_eq!((scene.state().await, scene.counts().await), (DeliveryState::Delivered, (0, 0)));
            assert_eq!(scene.stats().await, Stats { success: 1, ..Stats::default() });
        }
    }

    #[tokio::test]
    async fn a_replayed_delivery_is_a_new_cycle_that_the_old_one_cannot_touch() {
        let scene = Scene::set().await;
        let id = scene.id;
        scene.settle(refused(id, at(1))).await;
        let replay = move |batch: &mut Batch<'_>| requeue(&batch.transaction, id, None, 1, at(10));
        scene.write(replay).await;
        scene.write(replay).await;
        assert_eq!((scene.state().await, scene.counts().await), (DeliveryState::Sending { due: at(10) }, (1, 0)));
        assert_eq!(scene.stats().await, Stats { sending: 1, ..Stats::default() });

        scene.settle(stored(failed(id, at(11), at(999)))).await;
        scene.settle(stored(refused(id, at(11)))).await;
        assert_eq!(scene.state().await, DeliveryState::Sending { due: at(10) }, "a late outcome of the cycle before");
        let scene = scene.reopen().await;
        let loaded = load_in(&scene.store, id.endpoint, Default::default(), at(10)).await;
        assert_eq!((loaded.deliveries[0].cycle, loaded.deliveries[0].queued_at), (1, at(10)));

        scene.settle(Settlement { cycle: 1, ..stored(refused(id, at(12))) }).await;
        let dead = DeliveryState::Dead { at: at(12), reason: DeathReason::Permanent };
        assert_eq!((scene.state().await, scene.counts().await), (dead, (0, 1)));
        scene
            .write(move |batch| {
                let found: (i64, i64) =
                    batch
                        .transaction
                        .query_row("SELECT cycle, replayed_at FROM dead", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
                assert_eq!(found, (1, at(10).as_millis()), "that it was replayed stays known");
                requeue(&batch.transaction, id, None, 2, at(20))
            })
            .await;
        scene.settle(Settlement { cycle: 2, ..stored(delivered(id, at(21))) }).await;
        assert_eq!((scene.state().await, scene.counts().await), (DeliveryState::Delivered, (0, 0)));
        let scene = scene.reopen().await;
        assert_eq!((scene.state().await, scene.counts().await), (DeliveryState::Delivered, (0, 0)));
    }

    #[tokio::test]
    async fn a_dead_letter_past_its_retention_is_dead_all_the_same() {
        let scene = Scene::set().await;
        scene.settle(refused(scene.id, at(1))).await;
        scene.write(|batch| batch.transaction.execute("UPDATE dead SET open = 2", []).map(drop)).await;
        let scene = scene.reopen().await;
        let dead = DeliveryState::Dead { at: at(1), reason: DeathReason::Permanent };
        assert_eq!((scene.state().await, scene.counts().await), (dead, (0, 0)));
        assert_eq!(scene.stats().await, Stats { fail: 1, ..Stats::default() });
    }
}
