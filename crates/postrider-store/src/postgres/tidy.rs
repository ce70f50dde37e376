//! Forgetting what is past its time, without holding up those who write.
//!
//! A piece of history is dropped as a whole, once everything in it is old enough. What lies outside of it and belongs to
//! its messages is forgotten afterwards, in slices; until then it is in no list, because its message is missing.
//!
//! Where payloads or attempts are to be forgotten before the rest, a cursor moves through the messages behind that time,
//! a slice at a call, and never comes back. What it has to leave behind, because something still waits for it or is too
//! young, is written down in `left_behind` and looked at again, a slice at a call, round and round.

use super::{
    Db, Result,
    accept::WHOLE_LANE,
    callers,
    cancel::ends,
    execute,
    jobs::Turn,
    pieces::{self, Piece},
    recover, refused, rows, settings, tallies,
};
use crate::{IDEMPOTENCY_MEMORY, Retention};
use postrider_engine::{
    AppKey, AttemptKey, MessageKey, Timestamp,
    keys::{first_key_at, time_of_key},
};
use std::collections::BTreeSet;

/// Rows forgotten in one go. They are found by their place in the table, so that no more is read than goes: nobody else
/// writes meanwhile.
const SLICE: i64 = 2_000;

/// Messages looked at in one go, where each takes several looks.
const LOOK: i64 = 500;

/// How far payloads and attempts are forgotten.
const PAYLOADS_THROUGH: &str = "payloads_forgotten_through";
const ATTEMPTS_THROUGH: &str = "attempts_forgotten_through";
/// How far the rounds have come.
const PAYLOADS_ROUND: &str = "payloads_left_behind_round";
const ATTEMPTS_ROUND: &str = "attempts_left_behind_round";
const SEQUENCES_ROUND: &str = "sequences_round";
/// The keys `[first, end)` of the piece that was dropped last, and through which endpoint its dead letters are forgotten.
const DROPPED_PIECE: &str = "dropped_piece";

/// Forgets some of what is past its time, but for whole pieces. True while there is more to do.
pub async fn tidy(turn: &mut Turn, now: Timestamp, retention: Retention) -> Result<bool> {
    let (payloads_before, attempts_before) = (now.minus(retention.payloads), now.minus(retention.attempts));
    let all_before = all_before(now, retention);
    let turn = &*turn;
    let mut more = expire_payloads(turn, now).await?;
    more |= forget_answers(turn, now.minus(retention.idempotency)).await?;
    more |= callers::forget_revocations(turn, now, SLICE).await?;
    more |= tallies::forget(turn, now, SLICE).await?;
    more |= refused::forget(turn, now, SLICE).await?;
    more |= forget_repeats(turn, now.minus(IDEMPOTENCY_MEMORY)).await?;
    more |= retire_dead_letters(turn, now.minus(retention.dead_letters)).await?;
    more |= forget_jobs(turn, attempts_before).await?;
    // Up to there every delivery has a row that tells how it stands.
    let settled_before = recover::oldest_handed(turn.db()).await?.unwrap_or(i64::MAX);
    let payloads = Forgetting { left: Left::Payload, before: payloads_before, settled_before };
    let attempts = Forgetting { left: Left::Attempts, before: attempts_before, settled_before };
    for forgetting in [payloads, attempts] {
        if forgetting.before > all_before {
            more |= forgetting.walk(turn).await?;
        }
        forgetting.look_again(turn).await?;
    }
    if time_of_key(settled_before) >= all_before {
        forget_sequences(turn, all_before).await?;
    }
    more |= forget_what_belonged_to_dropped(turn).await?;
    Ok(more)
}

/// A piece that can go: it ends before everything of its time is to be forgotten, and nothing of it is to be sent any
/// more. What still waits is kept, however old it is, and its history with it.
///
/// To find it takes a look at every lane, and mostly in vain. So a reader looks first, and `discard` looks again.
pub async fn piece_to_discard(db: &Db, now: Timestamp, retention: Retention) -> Result<Option<Piece>> {
    let settled_before = recover::oldest_handed(db).await?.unwrap_or(i64::MAX);
    let before = all_before(now, retention);
    let is_old = |piece: &Piece| time_of_key(piece.end_key) < before && piece.end_key <= settled_before;
    let old: Vec<Piece> = pieces::list(db).await?.into_iter().filter(is_old).collect();
    if old.is_empty() || noted::<3>(db, DROPPED_PIECE).await?.is_some() {
        return Ok(None);
    }
    let awaited = pieces_with_waiting(db, &old).await?;
    Ok(old.into_iter().find(|piece| !awaited.contains(&piece.number)))
}

/// Drops a piece that a reader has found, if nothing has been put on its way again since. True if it went, so that the
/// next one may be looked for.
pub async fn discard(turn: &mut Turn, piece: Piece) -> Result<bool> {
    let db = turn.db();
    let settled_before = recover::oldest_handed(db).await?.unwrap_or(i64::MAX);
    let can_go = piece.end_key <= settled_before
        && pieces::list(db).await?.contains(&piece)
        && noted::<3>(db, DROPPED_PIECE).await?.is_none()
        && pieces_with_waiting(db, &[piece]).await?.is_empty();
    if !can_go || !pieces::discard(db, piece).await? {
        return Ok(false);
    }
    // Nobody's clock is so far behind; if it were, his messages would have nowhere to go.
    execute(db, "UPDATE cluster SET floor = greatest(floor, $1)", &[&(piece.end_key - 1)]).await?;
    note(turn, DROPPED_PIECE, [piece.first_key, piece.end_key, i64::MIN]).await?;
    forget_what_belonged_to_dropped(turn).await?;
    Ok(true)
}

/// Removes a payload for good, and the headers that it came with. False if there is no such message.
pub async fn expunge(turn: &Turn, app: AppKey, message: MessageKey) -> Result<bool> {
    let sql = "UPDATE message SET payload = NULL,
            extra = CASE WHEN extra LIKE '%\"received\"%' THEN (extra::jsonb - 'received')::text ELSE extra END
        WHERE key = $1 AND app = $2";
    Ok(execute(turn.db(), sql, &[&message.raw(), &app.raw()]).await? == 1)
}

/// Removes the kept response for good. False if there is no such attempt.
pub async fn expunge_attempt(turn: &Turn, message: MessageKey, attempt: AttemptKey) -> Result<bool> {
    let sql = "UPDATE attempt SET response = NULL, headers = NULL WHERE message = $1 AND key = $2";
    Ok(execute(turn.db(), sql, &[&message.raw(), &attempt.raw()]).await? == 1)
}

/// A message is put on its way again. If the forgetting has passed it, its new attempts would never be forgotten.
pub async fn expect_attempts(turn: &Turn, message: MessageKey) -> Result<()> {
    expect_attempts_of(turn, &[message.raw()]).await
}

pub async fn expect_attempts_of(turn: &Turn, messages: &[i64]) -> Result<()> {
    let Some([through]) = noted(turn.db(), ATTEMPTS_THROUGH).await? else { return Ok(()) };
    let passed: Vec<i64> = messages.iter().copied().filter(|message| *message <= through).collect();
    Left::Attempts.behind(turn, &passed).await
}

/// A dead letter is nothing without its message, so that whole pieces go by the longest of the three.
fn all_before(now: Timestamp, retention: Retention) -> Timestamp {
    now.minus(retention.payloads.max(retention.attempts).max(retention.dead_letters))
}

/// Forgets the payloads whose senders gave them a time of their own, whether something waits for them or not.
async fn expire_payloads(turn: &Turn, now: Timestamp) -> Result<bool> {
    let expired = rows(
        turn.db(),
        "DELETE FROM payload_expiry WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM payload_expiry WHERE at <= $1 ORDER BY at, message LIMIT $2))
         RETURNING message",
        &[&now.as_millis(), &SLICE],
    )
    .await?;
    let messages: Vec<i64> = expired.iter().map(|row| row.get(0)).collect();
    forget_payloads(turn, &messages).await?;
    Ok(messages.len() as i64 == SLICE)
}

async fn forget_payloads(turn: &Turn, messages: &[i64]) -> Result<()> {
    if !messages.is_empty() {
        let (first, last) = ends(messages);
        let sql = "UPDATE message SET payload = NULL,
            extra = CASE WHEN extra LIKE '%\"received\"%' THEN (extra::jsonb - 'received')::text ELSE extra END
            WHERE key = ANY($1) AND key BETWEEN $2 AND $3 AND payload IS NOT NULL";
        execute(turn.db(), sql, &[&messages, &first, &last]).await?;
    }
    Ok(())
}

async fn forget_answers(turn: &Turn, before: Timestamp) -> Result<bool> {
    let sql = "DELETE FROM answer WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM answer WHERE at < $1 ORDER BY at LIMIT $2))";
    Ok(execute(turn.db(), sql, &[&before.as_millis(), &SLICE]).await? as i64 == SLICE)
}

async fn forget_repeats(turn: &Turn, before: Timestamp) -> Result<bool> {
    let sql = "DELETE FROM idempotency WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM idempotency WHERE message < $1 ORDER BY message LIMIT $2))";
    Ok(execute(turn.db(), sql, &[&first_key_at(before), &SLICE]).await? as i64 == SLICE)
}

async fn retire_dead_letters(turn: &Turn, before: Timestamp) -> Result<bool> {
    let sql = "UPDATE dead SET open = 2 WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM dead WHERE open = 1 AND at < $1 ORDER BY at LIMIT $2))";
    Ok(execute(turn.db(), sql, &[&before.as_millis(), &SLICE]).await? as i64 == SLICE)
}

async fn forget_jobs(turn: &Turn, before: Timestamp) -> Result<bool> {
    let sql = "DELETE FROM job WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM job WHERE key < $1 AND status <> 0 AND updated_at < $2 ORDER BY key LIMIT $3))";
    Ok(execute(turn.db(), sql, &[&first_key_at(before), &before.as_millis(), &SLICE]).await? as i64 == SLICE)
}

/// What can be left behind when a message is passed; the code is its `what`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Payload = 0,
    Attempts = 1,
}

impl Left {
    fn through(self) -> &'static str {
        match self {
            Self::Payload => PAYLOADS_THROUGH,
            Self::Attempts => ATTEMPTS_THROUGH,
        }
    }

    fn round(self) -> &'static str {
        match self {
            Self::Payload => PAYLOADS_ROUND,
            Self::Attempts => ATTEMPTS_ROUND,
        }
    }

    async fn behind(self, turn: &Turn, messages: &[i64]) -> Result<()> {
        if !messages.is_empty() {
            let sql = "INSERT INTO left_behind SELECT $1, message FROM unnest($2::bigint[]) AS passed (message)
                ON CONFLICT DO NOTHING";
            execute(turn.db(), sql, &[&(self as i16), &messages]).await?;
        }
        Ok(())
    }
}

/// Forgetting payloads, or attempts, that are older than the rest may become.
struct Forgetting {
    left: Left,
    before: Timestamp,
    settled_before: i64,
}

impl Forgetting {
    /// Moves the cursor on by a slice of messages.
    async fn walk(&self, turn: &Turn) -> Result<bool> {
        let [reached] = noted(turn.db(), self.left.through()).await?.unwrap_or([-1]);
        let end = first_key_at(self.before).min(self.settled_before);
        let sql = "SELECT key FROM message WHERE key > $1 AND key < $2 ORDER BY key LIMIT $3";
        let found = rows(turn.db(), sql, &[&reached, &end, &LOOK]).await?;
        let passed: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
        let kept: Vec<i64> = self.forget(turn, &passed).await?.into_iter().collect();
        self.left.behind(turn, &kept).await?;
        if let Some(last) = passed.last() {
            note(turn, self.left.through(), [*last]).await?;
        }
        Ok(passed.len() as i64 == LOOK)
    }

    async fn look_again(&self, turn: &Turn) -> Result<()> {
        let [reached] = noted(turn.db(), self.left.round()).await?.unwrap_or([-1]);
        let what = self.left as i16;
        let sql = "SELECT message FROM left_behind WHERE what = $1 AND message > $2 ORDER BY message LIMIT $3";
        let found = rows(turn.db(), sql, &[&what, &reached, &LOOK]).await?;
        let found: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
        let old: Vec<i64> = found.iter().copied().filter(|message| *message < first_key_at(self.before)).collect();
        let kept = self.forget(turn, &old).await?;
        let over: Vec<i64> = old.into_iter().filter(|message| !kept.contains(message)).collect();
        if !over.is_empty() {
            let (first, last) = ends(&over);
            let sql = "DELETE FROM left_behind WHERE what = $1 AND message = ANY($2) AND message BETWEEN $3 AND $4";
            execute(turn.db(), sql, &[&what, &over, &first, &last]).await?;
        }
        let next = found.last().filter(|_| found.len() as i64 == LOOK).copied().unwrap_or(-1);
        if next != reached {
            note(turn, self.left.round(), [next]).await?;
        }
        Ok(())
    }

    /// Forgets the payloads or attempts of messages, and returns those of which something has to be kept for now.
    async fn forget(&self, turn: &Turn, messages: &[i64]) -> Result<BTreeSet<i64>> {
        if messages.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut kept = self.awaited(turn.db(), messages).await?;
        match self.left {
            Left::Payload => {
                let free: Vec<i64> = messages.iter().copied().filter(|message| !kept.contains(message)).collect();
                forget_payloads(turn, &free).await?;
            }
            Left::Attempts => {
                let end = first_key_at(self.before);
                let (first, last) = ends(messages);
                // Class, rule and status stay: how the delivery stands rests on them.
                let sql = "UPDATE attempt SET response = NULL, headers = NULL, url = ''
                    WHERE message = ANY($1) AND message BETWEEN $2 AND $3 AND key < $4
                        AND (response IS NOT NULL OR url <> '')";
                execute(turn.db(), sql, &[&messages, &first, &last, &end]).await?;
                let sql = "SELECT DISTINCT message FROM attempt
                    WHERE message = ANY($1) AND message BETWEEN $2 AND $3 AND key >= $4";
                kept.extend(
                    rows(turn.db(), sql, &[&messages, &first, &last, &end])
                        .await?
                        .iter()
                        .map(|row| row.get::<_, i64>(0)),
                );
            }
        }
        Ok(kept)
    }

    /// Those of which a delivery is still to be sent.
    async fn awaited(&self, db: &Db, messages: &[i64]) -> Result<BTreeSet<i64>> {
        let (first, last) = ends(messages);
        let found = rows(
            db,
            "SELECT key FROM message WHERE key = ANY($1) AND key BETWEEN $2 AND $3
                 AND (key >= $4
                      OR (SELECT true FROM unnest(owed) AS lane (endpoint)
                          CROSS JOIN LATERAL (SELECT 1 FROM waiting WHERE waiting.endpoint = lane.endpoint
                                                  AND waiting.message = message.key LIMIT 1) AS awaited
                          LIMIT 1))",
            &[&messages, &first, &last, &self.settled_before],
        )
        .await?;
        Ok(found.iter().map(|row| row.get(0)).collect())
    }
}

/// Forgets counters that nothing has used for as long as anything is kept. Looks at a slice of them at a call, round and
/// round. A message that still waits keeps its counter, or the next one would get the same number.
async fn forget_sequences(turn: &Turn, before: Timestamp) -> Result<()> {
    let start = [i64::MIN, i64::MIN];
    let reached = noted(turn.db(), SEQUENCES_ROUND).await?.unwrap_or(start);
    let found = rows(
        turn.db(),
        "SELECT endpoint, order_key, used_at FROM sequence WHERE (endpoint, order_key) > ($1, $2)
         ORDER BY endpoint, order_key LIMIT $3",
        &[&reached[0], &reached[1], &LOOK],
    )
    .await?;
    let counter = |row: &tokio_postgres::Row| [row.get::<_, i64>(0), row.get(1)];
    let is_old = |row: &&tokio_postgres::Row| row.get::<_, i64>(2) < before.as_millis();
    let (endpoints, orders): (Vec<i64>, Vec<i64>) =
        found.iter().filter(is_old).map(counter).map(|[endpoint, order]| (endpoint, order)).unzip();
    if !endpoints.is_empty() {
        execute(
            turn.db(),
            "DELETE FROM sequence USING unnest($1::bigint[], $2::bigint[]) AS old (endpoint, order_key)
             WHERE sequence.endpoint = old.endpoint AND sequence.order_key = old.order_key
                 AND CASE WHEN old.order_key = $3
                          THEN (SELECT true FROM waiting WHERE waiting.endpoint = old.endpoint LIMIT 1)
                          ELSE (SELECT true FROM waiting WHERE waiting.endpoint = old.endpoint
                                    AND waiting.order_key = old.order_key LIMIT 1) END IS NULL",
            &[&endpoints, &orders, &WHOLE_LANE],
        )
        .await?;
    }
    let next = found.last().filter(|_| found.len() as i64 == LOOK).map_or(start, counter);
    if next != reached {
        note(turn, SEQUENCES_ROUND, next).await?;
    }
    Ok(())
}

/// Forgets what lies outside of the piece that was dropped last and belongs to its messages. True while there is more.
async fn forget_what_belonged_to_dropped(turn: &Turn) -> Result<bool> {
    let db = turn.db();
    let Some([first_key, end_key, lane]) = noted(db, DROPPED_PIECE).await? else { return Ok(false) };
    let mut more = false;
    for sql in [
        "DELETE FROM event_id WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM event_id WHERE message >= $1 AND message < $2 ORDER BY message LIMIT $3))",
        "DELETE FROM idempotency WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM idempotency WHERE message >= $1 AND message < $2 ORDER BY message LIMIT $3))",
        "DELETE FROM left_behind WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM left_behind WHERE what IN (0, 1) AND message >= $1 AND message < $2 LIMIT $3))",
    ] {
        more |= execute(db, sql, &[&first_key, &end_key, &SLICE]).await? as i64 == SLICE;
    }
    match forget_dead_letters(turn, lane, (first_key, end_key)).await? {
        Some(reached) => note(turn, DROPPED_PIECE, [first_key, end_key, reached]).await?,
        // The dead letters are forgotten, and the others take a few rounds more.
        None if more => note(turn, DROPPED_PIECE, [first_key, end_key, i64::MAX]).await?,
        None => settings::put_note(turn, DROPPED_PIECE, &[]).await?,
    }
    Ok(true)
}

/// Forgets dead letters of messages that are gone, endpoint by endpoint past `from`; there is no index by message alone.
/// Says how far it came; `None`: to the end.
async fn forget_dead_letters(turn: &Turn, from: i64, (first_key, end_key): (i64, i64)) -> Result<Option<i64>> {
    let lanes = lanes_in(turn.db(), "dead", from, LOOK).await?;
    let Some(last) = lanes.last() else { return Ok(None) };
    let forgotten = execute(
        turn.db(),
        "DELETE FROM dead WHERE ctid = ANY (ARRAY(
             SELECT old.ctid FROM unnest($1::bigint[]) AS lane (endpoint)
             CROSS JOIN LATERAL (SELECT ctid FROM dead AS letter WHERE letter.endpoint = lane.endpoint
                                     AND letter.message >= $2 AND letter.message < $3
                                 ORDER BY letter.message LIMIT $4) AS old
             LIMIT $4))",
        &[&lanes, &first_key, &end_key, &SLICE],
    )
    .await?;
    Ok(if forgotten as i64 == SLICE { Some(from) } else { Some(*last).filter(|_| lanes.len() as i64 == LOOK) })
}

/// The endpoints past `from` that have rows in a table with a key that begins with them. Jumps from one to the next along
/// the index, so that the cost does not grow with how many rows each has.
async fn lanes_in(db: &Db, table: &str, from: i64, limit: i64) -> Result<Vec<i64>> {
    let sql = format!(
        "WITH RECURSIVE lane AS (
             (SELECT endpoint FROM {table} WHERE endpoint > $1 ORDER BY endpoint LIMIT 1)
             UNION ALL
             SELECT next.endpoint FROM lane
             CROSS JOIN LATERAL (SELECT endpoint FROM {table} AS further WHERE further.endpoint > lane.endpoint
                                 ORDER BY endpoint LIMIT 1) AS next)
         SELECT endpoint FROM lane LIMIT $2"
    );
    Ok(rows(db, &sql, &[&from, &limit]).await?.iter().map(|row| row.get(0)).collect())
}

/// Those of the pieces, oldest first, in which some lane has something waiting. Jumps from lane to lane and from piece to
/// piece, so that the cost does not grow with how much waits.
async fn pieces_with_waiting(db: &Db, pieces: &[Piece]) -> Result<BTreeSet<i64>> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(BTreeSet::new()) };
    let mut lanes = lanes_in(db, "waiting", i64::MIN, i64::MAX).await?;
    let mut from = vec![first.first_key; lanes.len()];
    let mut found = BTreeSet::new();
    while !lanes.is_empty() {
        let waiting = rows(
            db,
            "SELECT lane.endpoint, next.message FROM unnest($1::bigint[], $2::bigint[]) AS lane (endpoint, reached)
             CROSS JOIN LATERAL (SELECT message FROM waiting WHERE waiting.endpoint = lane.endpoint
                                     AND waiting.message >= lane.reached AND waiting.message < $3
                                 ORDER BY message LIMIT 1) AS next",
            &[&lanes, &from, &last.end_key],
        )
        .await?;
        lanes.clear();
        from.clear();
        for row in &waiting {
            let message: i64 = row.get(1);
            let after = pieces.partition_point(|piece| piece.first_key <= message);
            let holder = after.checked_sub(1).map(|index| pieces[index]).filter(|piece| message < piece.end_key);
            found.extend(holder.map(|piece| piece.number));
            if let Some(next) = pieces.get(after) {
                lanes.push(row.get(0));
                from.push(next.first_key);
            }
        }
    }
    Ok(found)
}

/// Numbers are kept side by side, eight bytes each.
async fn noted<const N: usize>(db: &Db, name: &str) -> Result<Option<[i64; N]>> {
    let Some(value) = settings::note(db, name).await? else { return Ok(None) };
    let (numbers, _) = value.as_chunks::<8>();
    let numbers: Vec<i64> = numbers.iter().map(|number| i64::from_be_bytes(*number)).collect();
    Ok(numbers.try_into().ok())
}

async fn note<const N: usize>(turn: &Turn, name: &str, numbers: [i64; N]) -> Result<()> {
    let value: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    settings::put_note(turn, name, &value).await
}
