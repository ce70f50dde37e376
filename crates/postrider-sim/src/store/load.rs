//! Bringing what waits in a lane back into memory, as much as there is room for: the same choice that the real stores make.

use super::tables::{LaneRows, Place, Tables, WaitRow};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger, keys::time_of_key, policy::Ordering,
};
use postrider_store::{LaneFound, Letter, Loaded, Shards, Waiting};
use std::{ops::Bound, sync::Arc};

/// One load brings at most this much payload, whatever the number of messages.
const LOAD_BYTES_MAX: usize = 8 * 1024 * 1024;

pub fn load(tables: &Tables, endpoint: EndpointKey, ordering: Ordering, now: Timestamp, limit: usize) -> Loaded {
    let Some(rows) = tables.lanes.get(&endpoint) else {
        return Loaded { deliveries: Vec::new(), more: false, next_due: None, blocked: false };
    };
    let lane = Lane { rows, now, limit };
    let (mut chosen, next_due) = match ordering {
        Ordering::None => lane.without_order(),
        Ordering::Keyed => lane.keyed(),
        Ordering::Fifo => lane.fifo(),
    };
    let mut more = chosen.len() > limit;
    chosen.truncate(limit);
    let mut bytes = 0;
    let mut loaded: Vec<(Turn<'_>, Arc<Letter>)> = Vec::with_capacity(chosen.len());
    for turn in chosen {
        if bytes > LOAD_BYTES_MAX {
            more = true;
            break;
        }
        let letter = letter(tables, turn.message);
        bytes += letter.payload.as_ref().map_or(0, bytes::Bytes::len);
        loaded.push((turn, letter));
    }
    let followers = loaded.iter().filter(|(turn, _)| turn.follows).count();
    // Nobody's turn comes before that of an earlier one of its run, so that this leaves runs in their order.
    loaded.sort_by_key(|(turn, _)| turn.at);
    let delivery = |(turn, letter): (Turn<'_>, Arc<Letter>)| Waiting {
        id: DeliveryId { endpoint, message: turn.message, trigger: turn.trigger },
        cycle: turn.row.cycle,
        progress: turn.row.progress,
        due: turn.row.due,
        queued_at: turn.row.queued_at(turn.message),
        order: turn.row.order,
        letter,
    };
    Loaded {
        deliveries: loaded.into_iter().map(delivery).collect(),
        more,
        next_due,
        blocked: lane.is_blocked(ordering, followers),
    }
}

/// One look into a lane. First come those who wait for nobody, in the order in which they fell due; those who follow them
/// only where room is left.
struct Lane<'t> {
    rows: &'t LaneRows,
    now: Timestamp,
    limit: usize,
}

struct Turn<'t> {
    message: MessageKey,
    trigger: Trigger,
    row: &'t WaitRow,
    /// When it and all before it in its run had fallen due.
    at: Timestamp,
    /// It is not the first of its run.
    follows: bool,
}

/// Who goes one after the other.
#[derive(Clone, Copy)]
enum Run {
    Key(OrderKey),
    Lane,
}

/// One more than the limit if there are more, and when the next one falls due.
type Found<'t> = (Vec<Turn<'t>>, Option<Timestamp>);

impl<'t> Lane<'t> {
    fn without_order(&self) -> Found<'t> {
        let places = [Place::Front, Place::Behind, Place::Beside];
        (self.in_turn(self.due_in(&places)), self.next_due_in(&places))
    }

    fn keyed(&self) -> Found<'t> {
        let places = [Place::Front, Place::Beside];
        let chosen = self.in_turn(self.due_in(&places));
        let runs = chosen.iter().enumerate().filter_map(|(index, turn)| Some((Run::Key(turn.row.order?), index)));
        let runs = runs.collect();
        (self.followed(chosen, runs), self.next_due_in(&places))
    }

    fn fifo(&self) -> Found<'t> {
        let first = self.after(Run::Lane, None, 1).into_iter().next();
        let mut rows = self.due_in(&[Place::Beside]);
        let mut held_until = None;
        match first {
            Some((message, row)) if row.due <= self.now => rows.push((message, Trigger::Scheduled, row)),
            Some((_, row)) => held_until = Some(row.due),
            None => {}
        }
        let chosen = self.in_turn(rows);
        let first = chosen.iter().position(|turn| turn.trigger == Trigger::Scheduled);
        let runs = first.map(|index| (Run::Lane, index)).into_iter().collect();
        let next_due = self.next_due_in(&[Place::Beside]).into_iter().chain(held_until).min();
        (self.followed(chosen, runs), next_due)
    }

    /// In the order in which they fell due; those of one moment by their messages.
    fn in_turn(&self, mut rows: Vec<(MessageKey, Trigger, &'t WaitRow)>) -> Vec<Turn<'t>> {
        rows.sort_by_key(|(message, _, row)| (row.due, *message));
        let turn = |(message, trigger, row): (MessageKey, Trigger, &'t WaitRow)| Turn {
            message,
            trigger,
            row,
            at: row.due,
            follows: false,
        };
        rows.into_iter().map(turn).take(self.limit.saturating_add(1)).collect()
    }

    /// Adds to each run its share of the room that is left, as far as it is due, until there is neither run nor room.
    fn followed(&self, mut chosen: Vec<Turn<'t>>, mut runs: Vec<(Run, usize)>) -> Vec<Turn<'t>> {
        let full = self.limit.saturating_add(1);
        while !runs.is_empty() && chosen.len() < full {
            let share = ((full - chosen.len()) / runs.len()).max(1);
            let mut going_on = Vec::new();
            for (run, last) in runs {
                let (before, mut at, had) = (chosen[last].message, chosen[last].at, chosen.len());
                let next = self.after(run, Some(before), share);
                for (message, row) in next.into_iter().take_while(|(_, row)| row.due <= self.now) {
                    at = row.due.max(at);
                    chosen.push(Turn { message, trigger: Trigger::Scheduled, row, at, follows: true });
                }
                if chosen.len() == had + share {
                    going_on.push((run, chosen.len() - 1));
                }
                if chosen.len() == full {
                    break;
                }
            }
            runs = going_on;
        }
        chosen
    }

    fn due_in(&self, places: &[Place]) -> Vec<(MessageKey, Trigger, &'t WaitRow)> {
        let mut rows = Vec::new();
        for place in places {
            let trigger = match place {
                Place::Front | Place::Behind => Trigger::Scheduled,
                Place::Beside => Trigger::Manual,
            };
            let due = self.rows.of_place(*place).iter().take_while(|(due, _)| *due <= self.now);
            rows.extend(due.take(self.limit.saturating_add(1)).map(|(_, message)| {
                (*message, trigger, self.rows.get(*message, trigger).expect("what is queued has a row"))
            }));
        }
        rows
    }

    fn next_due_in(&self, places: &[Place]) -> Option<Timestamp> {
        let past = (Bound::Excluded((self.now, MessageKey::new(i64::MAX))), Bound::Unbounded);
        let next = places.iter().filter_map(|place| self.rows.of_place(*place).range(past).next());
        next.map(|(due, _)| *due).min()
    }

    /// The next ones of a run, due or not.
    fn after(&self, run: Run, message: Option<MessageKey>, count: usize) -> Vec<(MessageKey, &'t WaitRow)> {
        match run {
            Run::Lane => self.rows.scheduled_past(message).take(count).collect(),
            Run::Key(order) => {
                let past = (message.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
                let run = self.rows.run(order).into_iter().flat_map(|run| run.range(past));
                run.take(count)
                    .map(|next| (*next, self.rows.get(*next, Trigger::Scheduled).expect("what is in a run has a row")))
                    .collect()
            }
        }
    }

    /// Whether more wait for an earlier one of their run than the followers that were loaded.
    fn is_blocked(&self, ordering: Ordering, followers: usize) -> bool {
        match ordering {
            Ordering::None => false,
            Ordering::Keyed => self.rows.of_place(Place::Behind).len() > followers,
            // The first of them waits for nobody.
            Ordering::Fifo => self.rows.scheduled_past(None).nth(followers + 1).is_some(),
        }
    }
}

/// A message that has been forgotten is a letter without a payload: its delivery has outlived its time.
fn letter(tables: &Tables, message: MessageKey) -> Arc<Letter> {
    match tables.messages.get(&message) {
        Some(row) => Arc::clone(&row.letter),
        None => Arc::new(Letter {
            message,
            app: AppKey::new(0),
            event_type: String::new(),
            content_type: None,
            payload: None,
            accepted_at: time_of_key(message.raw()),
            order: None,
            sequences: Vec::new(),
            trace: None,
            headers: Vec::new(),
        }),
    }
}

pub fn lanes(tables: &Tables, shards: Shards) -> Vec<LaneFound> {
    let is_wanted = |endpoint: &EndpointKey| is_in(tables, *endpoint, shards);
    let lanes = tables.lanes.iter().filter(|(endpoint, _)| is_wanted(endpoint));
    lanes
        .filter_map(|(endpoint, rows)| Some(LaneFound { endpoint: *endpoint, next_due: rows.earliest_due()? }))
        .collect()
}

/// All shards have all endpoints, also one that nobody knows.
pub fn is_in(tables: &Tables, endpoint: EndpointKey, shards: Shards) -> bool {
    shards == Shards::ALL || tables.endpoints.get(&endpoint).is_some_and(|row| shards.has_lanes_of(row.record.app))
}
