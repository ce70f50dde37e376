//! Bringing what waits in a lane back into memory, as much as there is room for.

use super::pieces::{Piece, piece_of, time_of_key};
use crate::{
    LaneFound, Letter, Loaded, Waiting,
    rows::{
        codes::{Place, trigger_code, trigger_of},
        extra::Extra,
    },
};
use bytes::Bytes;
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    policy::{Ordering, Progress},
};
use rusqlite::{Connection, Row};
use std::{sync::Arc, time::Duration};

/// One load brings at most this much payload, whatever the number of messages.
const LOAD_BYTES_MAX: usize = 8 * 1024 * 1024;

pub fn load(
    connection: &Connection,
    pieces: &[Piece],
    endpoint: EndpointKey,
    ordering: Ordering,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Loaded> {
    // One snapshot for all that follows, so that a row and its message fit together.
    let snapshot = connection.unchecked_transaction()?;
    let lane = Lane { connection: &snapshot, endpoint, now: now.as_millis(), limit };
    let (mut chosen, next_due) = match ordering {
        Ordering::None => lane.without_order()?,
        Ordering::Keyed => lane.keyed()?,
        Ordering::Fifo => lane.fifo()?,
    };
    let mut more = chosen.len() > limit;
    chosen.truncate(limit);
    let mut loaded = Vec::with_capacity(chosen.len());
    let mut bytes = 0;
    for turn in chosen {
        if bytes > LOAD_BYTES_MAX {
            more = true;
            break;
        }
        let letter = letter(&snapshot, pieces, turn.row.id.message.raw())?;
        bytes += letter.payload.as_ref().map_or(0, Bytes::len);
        loaded.push((turn, Arc::new(letter)));
    }
    let followers = loaded.iter().filter(|(turn, _)| turn.follows).count();
    // Nobody's turn comes before that of an earlier one of its run, so that this leaves runs in their order.
    loaded.sort_by_key(|(turn, _)| turn.at);
    Ok(Loaded {
        deliveries: loaded.into_iter().map(|(turn, letter)| turn.row.with(letter)).collect(),
        more,
        next_due: next_due.map(Timestamp::from_millis),
        blocked: lane.is_blocked(ordering, followers)?,
    })
}

/// One look into a lane.
///
/// First come those who wait for nobody, in the order in which they fell due; those who follow them only where room is
/// left. A long run, of which but one can be on its way at a time, would otherwise keep all others out. Every look reads
/// about as many rows as it brings, whatever waits besides.
struct Lane<'c> {
    connection: &'c Connection,
    endpoint: EndpointKey,
    now: i64,
    limit: usize,
}

/// One more than the limit if there are more, and when the next one falls due.
type Found = (Vec<Turn>, Option<i64>);

struct Turn {
    row: WaitingRow,
    /// When it and all before it in its run had fallen due.
    at: i64,
    /// It is not the first of its run.
    follows: bool,
}

/// Who goes one after the other.
#[derive(Clone, Copy)]
enum Run {
    Key(OrderKey),
    Lane,
}

impl Lane<'_> {
    fn without_order(&self) -> rusqlite::Result<Found> {
        let places = [Place::Front, Place::Behind, Place::Beside];
        Ok((self.in_turn(self.due_in(&places)?), self.next_due_in(&places)?))
    }

    fn keyed(&self) -> rusqlite::Result<Found> {
        let places = [Place::Front, Place::Beside];
        let chosen = self.in_turn(self.due_in(&places)?);
        let runs = chosen.iter().enumerate().filter_map(|(index, turn)| Some((Run::Key(turn.row.order?), index)));
        let runs = runs.collect();
        Ok((self.followed(chosen, runs)?, self.next_due_in(&places)?))
    }

    fn fifo(&self) -> rusqlite::Result<Found> {
        let (due, held): (Vec<_>, Vec<_>) =
            self.after(Run::Lane, i64::MIN, 1)?.into_iter().partition(|row| row.due <= self.now);
        let held_until = held.first().map(|row| row.due);
        let mut rows = self.due_in(&[Place::Beside])?;
        rows.extend(due);
        let chosen = self.in_turn(rows);
        let first = chosen.iter().position(|turn| turn.row.id.trigger == Trigger::Scheduled);
        let runs = first.map(|index| (Run::Lane, index)).into_iter().collect();
        let next_due = self.next_due_in(&[Place::Beside])?.into_iter().chain(held_until).min();
        Ok((self.followed(chosen, runs)?, next_due))
    }

    /// In the order in which they fell due; those of one moment by their messages.
    fn in_turn(&self, mut rows: Vec<WaitingRow>) -> Vec<Turn> {
        rows.sort_by_key(|row| (row.due, row.id.message));
        let turns = rows.into_iter().map(|row| Turn { at: row.due, row, follows: false });
        turns.take(self.limit.saturating_add(1)).collect()
    }

    /// Adds to each run its share of the room that is left, as far as it is due, until there is neither run nor room.
    fn followed(&self, mut chosen: Vec<Turn>, mut runs: Vec<(Run, usize)>) -> rusqlite::Result<Vec<Turn>> {
        let full = self.limit.saturating_add(1);
        while !runs.is_empty() && chosen.len() < full {
            let share = ((full - chosen.len()) / runs.len()).max(1);
            let mut going_on = Vec::new();
            for (run, last) in runs {
                let (before, mut at, had) = (chosen[last].row.id.message, chosen[last].at, chosen.len());
                let due = self.after(run, before.raw(), share)?.into_iter().take_while(|row| row.due <= self.now);
                chosen.extend(due.map(|row| {
                    at = row.due.max(at);
                    Turn { at, row, follows: true }
                }));
                if chosen.len() == had + share {
                    going_on.push((run, chosen.len() - 1));
                }
                if chosen.len() == full {
                    break;
                }
            }
            runs = going_on;
        }
        Ok(chosen)
    }

    fn due_in(&self, places: &[Place]) -> rusqlite::Result<Vec<WaitingRow>> {
        let mut rows = Vec::new();
        for place in places {
            let mut due = self.connection.prepare_cached(DUE_IN_PLACE)?;
            let limit = self.limit.saturating_add(1);
            let found = due.query_map((self.endpoint.raw(), place.code(), self.now, limit), WaitingRow::read)?;
            for row in found {
                rows.push(row?);
            }
        }
        Ok(rows)
    }

    fn next_due_in(&self, places: &[Place]) -> rusqlite::Result<Option<i64>> {
        let mut earliest: Option<i64> = None;
        for place in places {
            let found: Option<i64> = self
                .connection
                .prepare_cached(NEXT_DUE_IN_PLACE)?
                .query_row((self.endpoint.raw(), place.code(), self.now), |row| row.get(0))?;
            earliest = earliest.into_iter().chain(found).min();
        }
        Ok(earliest)
    }

    /// The next ones of a run, due or not.
    fn after(&self, run: Run, message: i64, count: usize) -> rusqlite::Result<Vec<WaitingRow>> {
        let (sql, with) = match run {
            Run::Key(order) => (NEXT_OF_KEY, order.raw()),
            Run::Lane => (NEXT_OF_LANE, trigger_code(Trigger::Scheduled)),
        };
        let mut next = self.connection.prepare_cached(sql)?;
        next.query_map((self.endpoint.raw(), message, with, count), WaitingRow::read)?.collect()
    }

    /// Whether more wait for an earlier one of their run than the followers that were loaded.
    fn is_blocked(&self, ordering: Ordering, followers: usize) -> rusqlite::Result<bool> {
        let (sql, with, least) = match ordering {
            Ordering::None => return Ok(false),
            Ordering::Keyed => (COUNT_IN_PLACE, Place::Behind.code(), followers + 1),
            // The first of them waits for nobody.
            Ordering::Fifo => (COUNT_OF_LANE, trigger_code(Trigger::Scheduled), followers + 2),
        };
        let mut count = self.connection.prepare_cached(sql)?;
        let found: usize = count.query_row((self.endpoint.raw(), with, least), |row| row.get(0))?;
        Ok(found >= least)
    }
}

/// Each column by its number: to look it up by its name takes longer than to read it.
macro_rules! waiting_rows {
    ($rest:literal) => {
        concat!(
            "SELECT endpoint, message, trigger_code, due, cycle, attempts, give_up_at, last_delay, ambiguous,
                 ambiguous_since, queued_at, order_key FROM waiting ",
            $rest
        )
    };
}

const DUE_IN_PLACE: &str =
    waiting_rows!("WHERE endpoint = ?1 AND place = ?2 AND due <= ?3 ORDER BY due, message LIMIT ?4");

const NEXT_DUE_IN_PLACE: &str = "SELECT min(due) FROM waiting WHERE endpoint = ?1 AND place = ?2 AND due > ?3";

const COUNT_IN_PLACE: &str = "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE endpoint = ?1 AND place = ?2 LIMIT ?3)";

const COUNT_OF_LANE: &str =
    "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE endpoint = ?1 AND trigger_code = ?2 LIMIT ?3)";

/// The planner would take the primary key, and go through all that other keys have in between.
const NEXT_OF_KEY: &str = waiting_rows!(
    "INDEXED BY waiting_order WHERE endpoint = ?1 AND message > ?2 AND order_key = ?3 ORDER BY message LIMIT ?4"
);

/// Resends among them are stepped over; there are few.
const NEXT_OF_LANE: &str =
    waiting_rows!("WHERE endpoint = ?1 AND message > ?2 AND trigger_code = ?3 ORDER BY message LIMIT ?4");

struct WaitingRow {
    id: DeliveryId,
    due: i64,
    cycle: u32,
    progress: Progress,
    queued_at: Timestamp,
    order: Option<OrderKey>,
}

impl WaitingRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let message: i64 = row.get(1)?;
        Ok(Self {
            id: DeliveryId {
                endpoint: EndpointKey::new(row.get(0)?),
                message: MessageKey::new(message),
                trigger: trigger_of(row.get(2)?)?,
            },
            due: row.get(3)?,
            cycle: row.get(4)?,
            progress: progress_from(row)?,
            queued_at: moment(row, 10)?.unwrap_or_else(|| time_of_key(message)),
            order: row.get::<_, Option<i64>>(11)?.map(OrderKey::new),
        })
    }

    fn with(self, letter: Arc<Letter>) -> Waiting {
        let Self { id, due, cycle, progress, queued_at, order } = self;
        Waiting { id, cycle, progress, due: Timestamp::from_millis(due), queued_at, order, letter }
    }
}

fn progress_from(row: &Row<'_>) -> rusqlite::Result<Progress> {
    Ok(Progress {
        attempts: row.get(5)?,
        give_up_at: moment(row, 6)?,
        last_delay: row.get::<_, Option<u64>>(7)?.map(Duration::from_millis),
        ambiguous: row.get::<_, Option<u32>>(8)?.unwrap_or(0),
        ambiguous_since: moment(row, 9)?,
    })
}

fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis))
}

fn letter(connection: &Connection, pieces: &[Piece], message: i64) -> rusqlite::Result<Letter> {
    let found = match piece_of(pieces, message) {
        Some(piece) => super::optional(
            piece
                .prepare(connection, "SELECT app, event_type, extra, payload FROM message_{n} WHERE key = ?1")?
                .query_row([message], |row| letter_from(row, message)),
        )?,
        None => None,
    };
    // A message whose piece has been dropped is a letter without a payload: its delivery has outlived its time.
    Ok(found.unwrap_or_else(|| Letter {
        message: MessageKey::new(message),
        app: AppKey::new(0),
        event_type: String::new(),
        content_type: None,
        payload: None,
        accepted_at: time_of_key(message),
        order: None,
        sequences: Vec::new(),
        trace: None,
        headers: Vec::new(),
    }))
}

fn letter_from(row: &Row<'_>, message: i64) -> rusqlite::Result<Letter> {
    let extra = Extra::read(row.get_ref(2)?.as_str_or_null()?)?;
    Ok(Letter {
        message: MessageKey::new(message),
        app: AppKey::new(row.get(0)?),
        event_type: row.get(1)?,
        order: extra.order(),
        content_type: extra.content_type,
        payload: row.get::<_, Option<Vec<u8>>>(3)?.map(Bytes::from),
        accepted_at: time_of_key(message),
        sequences: extra.sequences.into_iter().map(|(endpoint, number)| (EndpointKey::new(endpoint), number)).collect(),
        trace: extra.trace,
        headers: Extra::passed_on(extra.received),
    })
}

/// Jumps from lane to lane along the index, so that the cost is the number of lanes and not of what waits in them. Whether
/// an order binds what waits is not looked at: a lane may be due before anything of it may be loaded.
pub fn lanes(connection: &Connection) -> rusqlite::Result<Vec<LaneFound>> {
    let mut next_lane = connection.prepare_cached(
        "SELECT endpoint FROM waiting INDEXED BY waiting_due WHERE endpoint > ?1 ORDER BY endpoint LIMIT 1",
    )?;
    let mut first_due = connection.prepare_cached("SELECT min(due) FROM waiting WHERE endpoint = ?1 AND place = ?2")?;
    let mut lanes = Vec::new();
    let mut reached = i64::MIN;
    while let Some(endpoint) = super::optional(next_lane.query_row([reached], |row| row.get(0)))? {
        let mut due: Vec<i64> = Vec::new();
        for place in [Place::Front, Place::Behind, Place::Beside] {
            due.extend(first_due.query_row((endpoint, place.code()), |row| row.get::<_, Option<i64>>(0))?);
        }
        let next_due = due.into_iter().min().map(Timestamp::from_millis);
        lanes.extend(next_due.map(|next_due| LaneFound { endpoint: EndpointKey::new(endpoint), next_due }));
        reached = endpoint;
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{schema, settle::FOREMOST_OF_KEY};

    /// Whatever SQLite thinks of it: each step of a load is one way down an index, and nothing is sorted.
    #[test]
    fn a_load_reads_no_more_than_it_brings() {
        let mut connection = super::super::open_in_memory();
        schema::migrate(&mut connection).unwrap();
        for (sql, way) in [
            (DUE_IN_PLACE, "INDEX waiting_due (endpoint=? AND place=? AND due<?)"),
            (NEXT_DUE_IN_PLACE, "COVERING INDEX waiting_due (endpoint=? AND place=? AND due>?)"),
            (COUNT_IN_PLACE, "COVERING INDEX waiting_due (endpoint=? AND place=?)"),
            (COUNT_OF_LANE, "COVERING INDEX waiting_due (endpoint=?)"),
            (NEXT_OF_KEY, "INDEX waiting_order (endpoint=? AND order_key=? AND message>?)"),
            (NEXT_OF_LANE, "PRIMARY KEY (endpoint=? AND message>?)"),
            (FOREMOST_OF_KEY, "INDEX waiting_order (endpoint=? AND order_key=?)"),
        ] {
            let expected = format!("SEARCH waiting USING {way}");
            let plan: Vec<String> = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap()
                .query_map(rusqlite::params_from_iter([1].repeat(sql.matches('?').count())), |row| row.get("detail"))
                .unwrap()
                .collect::<rusqlite::Result<_>>()
                .unwrap();
            assert!(plan.contains(&expected), "{sql}: {plan:?}");
            assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{sql}: {plan:?}");
        }
    }
}
