//! Looking back: messages, attempts, and how deliveries fare.
//!
//! What the tables can tell apart is sifted there; what lies in a message's JSON is sifted here, a stretch at a time. What
//! is known by its key is looked up by it (`LATERAL` with a `LIMIT`), one partition at a time, and the least and greatest
//! key are said too, so that the planner leaves the other partitions alone.

use super::{Db, Result, count, one, recover, row, rows, settings::limit, small};
use crate::{
    Attempt, AttemptFilter, AttemptRecord, AttemptsOf, By, Cut, DeliveryState, Message, MessageFilter, OPERATIONAL,
    Order, Page, Search, Searched, StateKind, Stats,
    rows::{
        codes::{class_code, class_of, death_code, death_of, held_of, rule_of, trigger_code, trigger_of},
        extra::{Extra, content},
        paging::{Span, in_list_order},
    },
};
use bytes::Bytes;
use futures_util::future::{try_join3, try_join4};
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
    keys::{first_key_at, time_of_key},
    lanes::Held,
    policy::{Class, DeathReason, Delay},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio_postgres::Row;

/// Rows fetched at once where they are sifted here.
const SIFT_STEP: usize = 500;

pub async fn message(db: &Db, app: AppKey, by: By<MessageKey>) -> Result<Option<Message>> {
    let key = match by {
        By::Key(key) => Some(key.raw()),
        By::Uid(event_id) => {
            let sql = "SELECT message FROM event_id WHERE app = $1 AND event_id = $2";
            row(db, sql, &[&app.raw(), &event_id]).await?.map(|row| row.get(0))
        }
    };
    let Some(key) = key else { return Ok(None) };
    // Not read and then passed over: the longer another's message is, the longer that would take.
    let sql = "SELECT key, app, event_type, owed, extra, payload FROM message WHERE key = $1 AND app = $2";
    row(db, sql, &[&key, &app.raw()]).await?.as_ref().map(message_from).transpose()
}

fn message_from(row: &Row) -> Result<Message> {
    let key: i64 = row.get("key");
    let (content, payload_gone) = content(row.get("event_type"), row.get("extra"), row.get("payload"))?;
    Ok(Message {
        key: MessageKey::new(key),
        app: AppKey::new(row.get("app")),
        accepted_at: time_of_key(key),
        content,
        payload_gone,
        owed: row.get::<_, Vec<i64>>("owed").into_iter().map(EndpointKey::new).collect(),
    })
}

/// Those that are there, in the order given.
pub async fn read_messages(db: &Db, keys: &[MessageKey]) -> Result<Vec<Message>> {
    let Some((keys, first, last)) = bounds(keys.iter().copied()) else { return Ok(Vec::new()) };
    let sql = "
        SELECT found.* FROM unnest($1::bigint[]) WITH ORDINALITY AS given (key, number) CROSS JOIN LATERAL (
            SELECT key, app, event_type, owed, extra, payload FROM message
            WHERE message.key = given.key AND message.key >= $2 AND message.key <= $3 LIMIT 1
        ) AS found
        ORDER BY given.number";
    rows(db, sql, &[&keys, &first, &last]).await?.iter().map(message_from).collect()
}

/// Keys, the least and the greatest of them; `None` if there are none.
pub fn bounds(keys: impl IntoIterator<Item = MessageKey>) -> Option<(Vec<i64>, i64, i64)> {
    let keys: Vec<i64> = keys.into_iter().map(MessageKey::raw).collect();
    let (first, last) = (*keys.iter().min()?, *keys.iter().max()?);
    Some((keys, first, last))
}

pub async fn messages(db: &Db, app: AppKey, filter: &MessageFilter, page: &Page<MessageKey>) -> Result<Vec<Message>> {
    let mut walk = Walk::over((app, None), filter, page);
    let step = if walk.sifts() { SIFT_STEP } else { page.limit };
    let mut found = Vec::new();
    while !walk.ended && found.len() < page.limit {
        found.extend(walk.go_on(db, step).await?);
    }
    found.truncate(page.limit);
    Ok(in_list_order(page, read_messages(db, &found).await?))
}

/// Goes through the messages of an application, or those owed to one of its endpoints, in the page's reading order.
struct Walk<'f> {
    app: AppKey,
    endpoint: Option<EndpointKey>,
    filter: &'f MessageFilter,
    /// What is left.
    span: Span,
    unfinished: Option<Unfinished>,
    ended: bool,
}

/// Where to look for what has not arrived: among all that has, these are few.
struct Unfinished {
    waiting: bool,
    dead: bool,
    /// What is handed over and has no row.
    handed: Vec<i64>,
}

impl Unfinished {
    async fn of_kinds(db: &Db, endpoint: EndpointKey, kinds: &[StateKind]) -> Result<Self> {
        let any = |wanted: [StateKind; 2]| wanted.iter().any(|kind| kinds.contains(kind));
        let handed = match kinds.contains(&StateKind::Pending) {
            true => recover::handed_to(db, endpoint).await?,
            false => Vec::new(),
        };
        Ok(Self {
            waiting: any([StateKind::Pending, StateKind::Sending]),
            dead: any([StateKind::Dead, StateKind::Cancelled]),
            handed: handed.into_iter().map(MessageKey::raw).collect(),
        })
    }
}

impl<'f> Walk<'f> {
    fn over(
        (app, endpoint): (AppKey, Option<EndpointKey>),
        filter: &'f MessageFilter,
        page: &Page<MessageKey>,
    ) -> Self {
        let span = Span::of(page, MessageKey::raw).within(filter.after, filter.before);
        Self { app, endpoint, filter, span, unfinished: None, ended: false }
    }

    /// Whether some of what the database brings is left out here.
    fn sifts(&self) -> bool {
        self.filter.channel.is_some() || self.filter.tag.is_some()
    }

    /// Fetches so many, and tells which of them fit.
    async fn go_on(&mut self, db: &Db, step: usize) -> Result<Vec<MessageKey>> {
        let stretch = match &self.unfinished {
            None => self.next(db, step).await?,
            Some(unfinished) => self.next_unfinished(db, unfinished, step).await?,
        };
        self.ended = stretch.len() < step;
        let mut fitting = Vec::new();
        for row in &stretch {
            let key: i64 = row.get("key");
            match self.span.reading {
                Order::Ascending => self.span.low = key,
                Order::Descending => self.span.high = key,
            }
            if row.get("is_wanted") && (!self.sifts() || wanted(self.filter, row)?) {
                fitting.push(MessageKey::new(key));
            }
        }
        Ok(fitting)
    }

    async fn next(&self, db: &Db, step: usize) -> Result<Vec<Row>> {
        let sql = format!(
            "SELECT key, event_type, extra, true AS is_wanted FROM message
             WHERE app = $1 AND key > $2 AND key < $3 AND (cardinality($4::text[]) = 0 OR event_type = ANY ($4))
                 AND ($5::bigint IS NULL OR $5 = ANY (owed))
             ORDER BY key {} LIMIT $6",
            self.span.direction()
        );
        let (app, endpoint) = (self.app.raw(), self.endpoint.map(EndpointKey::raw));
        let (low, high, types) = (self.span.low, self.span.high, &self.filter.event_types);
        rows(db, &sql, &[&app, &low, &high, types, &endpoint, &limit(step)]).await
    }

    /// From each place as many as are asked for: whichever come first, they are among these.
    async fn next_unfinished(&self, db: &Db, unfinished: &Unfinished, step: usize) -> Result<Vec<Row>> {
        let direction = self.span.direction();
        let sql = format!(
            "SELECT unfinished.key, content.event_type, content.extra, content.key IS NOT NULL AS is_wanted
             FROM (
                 (SELECT message AS key FROM waiting
                  WHERE $8 AND endpoint = $5 AND message > $2 AND message < $3 AND trigger_code = 0
                  ORDER BY message {direction} LIMIT $6)
                 UNION
                 (SELECT message FROM dead WHERE $9 AND endpoint = $5 AND message > $2 AND message < $3 AND open <> 0
                  ORDER BY message {direction} LIMIT $6)
                 UNION
                 SELECT key FROM unnest($7::bigint[]) AS handed (key) WHERE key > $2 AND key < $3
                 ORDER BY key {direction} LIMIT $6
             ) AS unfinished
             LEFT JOIN LATERAL (
                 SELECT key, event_type, extra FROM message
                 WHERE message.key = unfinished.key AND app = $1 AND $5 = ANY (owed)
                     AND (cardinality($4::text[]) = 0 OR event_type = ANY ($4))
                 LIMIT 1
             ) AS content ON true
             ORDER BY unfinished.key {direction}"
        );
        let (app, endpoint) = (self.app.raw(), self.endpoint.map(EndpointKey::raw));
        let (low, high, types) = (self.span.low, self.span.high, &self.filter.event_types);
        let Unfinished { waiting, dead, handed } = unfinished;
        rows(db, &sql, &[&app, &low, &high, types, &endpoint, &limit(step), handed, waiting, dead]).await
    }
}

/// Of a message's row.
fn wanted(filter: &MessageFilter, row: &Row) -> Result<bool> {
    let extra = Extra::read(row.get("extra"))?;
    let has = |list: &[String], wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| list.contains(wanted));
    Ok((filter.event_types.is_empty()
        || filter.event_types.iter().any(|name| name == row.get::<_, &str>("event_type")))
        && has(&extra.channels, &filter.channel)
        && has(&extra.tags, &filter.tag))
}

pub const ATTEMPT_COLUMNS: &str =
    "message, key, endpoint, class, rule, trigger_code, cycle, number, started_at, duration,
    status, url, response, death, next_due, backoff, jitter, retry_after, capped, late, late_why,
    headers";

pub fn attempt_from(row: &Row) -> Result<Attempt> {
    let duration = |column| row.get::<_, Option<i64>>(column).map(|millis| Duration::from_millis(count(millis)));
    let code = |column| row.get::<_, Option<i16>>(column).map(i64::from);
    let response: Option<Vec<u8>> = row.get("response");
    let delay = Delay {
        backoff: duration("backoff").unwrap_or_default(),
        jitter: duration("jitter").unwrap_or_default(),
        retry_after: duration("retry_after"),
        capped: row.get::<_, Option<bool>>("capped").unwrap_or_default(),
    };
    Ok(Attempt {
        key: AttemptKey::new(row.get("key")),
        id: DeliveryId {
            endpoint: EndpointKey::new(row.get("endpoint")),
            message: MessageKey::new(row.get("message")),
            trigger: trigger_of(row.get::<_, i16>("trigger_code").into())?,
        },
        cycle: row.get::<_, i32>("cycle").cast_unsigned(),
        number: row.get::<_, i32>("number").cast_unsigned(),
        expunged: response.is_none(),
        record: AttemptRecord {
            started_at: Timestamp::from_millis(row.get("started_at")),
            duration: duration("duration").unwrap_or_default(),
            url: row.get::<_, &str>("url").into(),
            status: row.get::<_, Option<i16>>("status").map(i16::cast_unsigned),
            response: response.map(Bytes::from).unwrap_or_default(),
            class: class_of(row.get::<_, i16>("class").into())?,
            rule: rule_of(row.get::<_, i16>("rule").into())?,
            held: match (duration("late"), code("late_why")) {
                (Some(late), Some(by)) => Some(Held { by: held_of(by)?, late }),
                (None, _) | (_, None) => None,
            },
            headers: row.get::<_, Option<Vec<u8>>>("headers").map(Bytes::from).unwrap_or_default(),
        },
        next: row.get::<_, Option<i64>>("next_due").map(|due| (Timestamp::from_millis(due), delay)),
        death: code("death").map(death_of).transpose()?,
    })
}

pub async fn attempt(db: &Db, message: MessageKey, attempt: AttemptKey) -> Result<Option<Attempt>> {
    let sql = format!("SELECT {ATTEMPT_COLUMNS} FROM attempt WHERE message = $1 AND key = $2");
    row(db, &sql, &[&message.raw(), &attempt.raw()]).await?.as_ref().map(attempt_from).transpose()
}

pub async fn attempts(
    db: &Db,
    of: AttemptsOf,
    filter: &AttemptFilter,
    page: &Page<AttemptKey>,
) -> Result<Vec<Attempt>> {
    let mut span = Span::of(page, AttemptKey::raw).within(filter.message.after, filter.message.before);
    let asks_message =
        !filter.message.event_types.is_empty() || filter.message.channel.is_some() || filter.message.tag.is_some();
    // An attempt lies with its message, so those of one endpoint are spread over all partitions, each in order.
    let (column, owner) = match of {
        AttemptsOf::Message(message) => ("message", message.raw()),
        AttemptsOf::Endpoint(_, endpoint) => ("endpoint + 0", endpoint.raw()),
    };
    let sql = format!(
        "SELECT {ATTEMPT_COLUMNS} FROM attempt
         WHERE {column} = $1 AND key > $2 AND key < $3 AND ($4::bigint IS NULL OR endpoint = $4)
             AND ($5::boolean IS NULL OR (class = $6) = $5) AND ($7::integer IS NULL OR coalesce(status / 100, 0) = $7)
         ORDER BY key {} LIMIT $8",
        span.direction()
    );
    let endpoint = filter.endpoint.map(EndpointKey::raw);
    let (succeeded, delivered) = (filter.succeeded, small(class_code(Class::Delivered)));
    let status_class = filter.status_class.map(i32::from);
    let step = if asks_message { SIFT_STEP } else { page.limit };
    let mut found = Vec::new();
    let mut ended = false;
    while !ended && found.len() < page.limit {
        let stretch = rows(
            db,
            &sql,
            &[&owner, &span.low, &span.high, &endpoint, &succeeded, &delivered, &status_class, &limit(step)],
        )
        .await?;
        ended = stretch.len() < step;
        let mut stretch = stretch.iter().map(attempt_from).collect::<Result<Vec<_>>>()?;
        if let Some(last) = stretch.last() {
            match span.reading {
                Order::Ascending => span.low = last.key.raw(),
                Order::Descending => span.high = last.key.raw(),
            }
        }
        if asks_message {
            let fitting = fitting(db, &filter.message, stretch.iter().map(|attempt| attempt.id.message)).await?;
            stretch.retain(|attempt| fitting.contains(&attempt.id.message));
        }
        found.extend(stretch);
    }
    found.truncate(page.limit);
    Ok(in_list_order(page, found))
}

/// Which of these messages the filter lets through.
async fn fitting(
    db: &Db,
    filter: &MessageFilter,
    messages: impl Iterator<Item = MessageKey>,
) -> Result<BTreeSet<MessageKey>> {
    let messages: BTreeSet<MessageKey> = messages.collect();
    let Some((keys, first, last)) = bounds(messages) else { return Ok(BTreeSet::new()) };
    let sql = "
        SELECT found.* FROM unnest($1::bigint[]) AS given (key) CROSS JOIN LATERAL (
            SELECT key, event_type, extra FROM message
            WHERE message.key = given.key AND message.key >= $2 AND message.key <= $3 LIMIT 1
        ) AS found";
    let mut fitting = BTreeSet::new();
    for row in rows(db, sql, &[&keys, &first, &last]).await? {
        if wanted(filter, &row)? {
            fitting.insert(MessageKey::new(row.get("key")));
        }
    }
    Ok(fitting)
}

pub async fn deliveries(db: &Db, message: MessageKey) -> Result<Vec<(EndpointKey, DeliveryState)>> {
    let Some(found) = row(db, "SELECT owed FROM message WHERE key = $1", &[&message.raw()]).await? else {
        return Ok(Vec::new());
    };
    let mut owed: Vec<EndpointKey> = found.get::<_, Vec<i64>>(0).into_iter().map(EndpointKey::new).collect();
    owed.sort_unstable();
    let pairs: Vec<_> = owed.iter().map(|endpoint| (message, *endpoint)).collect();
    Ok(owed.into_iter().zip(states(db, &pairs).await?).collect())
}

pub async fn messages_of_endpoint(
    db: &Db,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &MessageFilter,
    kinds: &[StateKind],
    page: &Page<MessageKey>,
) -> Result<Vec<(Message, DeliveryState)>> {
    let mut walk = Walk::over((app, Some(endpoint)), filter, page);
    if !kinds.is_empty() && !kinds.contains(&StateKind::Delivered) {
        walk.unfinished = Some(Unfinished::of_kinds(db, endpoint, kinds).await?);
    }
    let step = if walk.sifts() || !kinds.is_empty() { SIFT_STEP } else { page.limit };
    let mut found = Vec::new();
    while !walk.ended && found.len() < page.limit {
        let pairs: Vec<_> = walk.go_on(db, step).await?.into_iter().map(|message| (message, endpoint)).collect();
        let states = pairs.iter().map(|(message, _)| *message).zip(states(db, &pairs).await?);
        found.extend(states.filter(|(_, state)| kinds.is_empty() || kinds.contains(&state.kind())));
    }
    found.truncate(page.limit);
    let (keys, states): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    Ok(in_list_order(page, read_messages(db, &keys).await?.into_iter().zip(states).collect()))
}

pub async fn search(db: &Db, app: Option<AppKey>, search: &Search) -> Result<Searched> {
    let page = Page { from: search.past.map(Cut::Past), order: Order::Descending, limit: search.limit };
    let mut span = Span::of(&page, MessageKey::raw).within(search.filter.after, search.filter.before);
    let (mut found, mut looked) = (Vec::new(), 0);
    let sql = match app {
        Some(_) => {
            "SELECT key, app, event_type, owed, extra FROM message
             WHERE app = $1 AND key > $2 AND key < $3 ORDER BY key DESC LIMIT $4"
        }
        None => {
            "SELECT key, app, event_type, owed, extra FROM message
             WHERE $1::bigint IS NULL AND key > $2 AND key < $3 ORDER BY key DESC LIMIT $4"
        }
    };
    while looked < search.look_max {
        let step = SIFT_STEP.min(search.look_max - looked);
        let stretch = rows(db, sql, &[&app.map(AppKey::raw), &span.low, &span.high, &limit(step)]).await?;
        looked += stretch.len();
        let mut concerning = Vec::new();
        for row in &stretch {
            let key = MessageKey::new(row.get("key"));
            span.high = key.raw();
            if app.is_none() && row.get::<_, i64>("app") == OPERATIONAL.raw() {
                continue;
            }
            let owed: Vec<EndpointKey> = row.get::<_, Vec<i64>>("owed").into_iter().map(EndpointKey::new).collect();
            if let (Some(concerned), true) = (search.concerned(&owed), wanted(&search.filter, row)?) {
                concerning.push((key, concerned));
            }
        }
        if search.states.is_empty() {
            // All of them are found, so that no more than are wanted need be looked up.
            concerning.truncate(search.limit - found.len());
        }
        let of_one = |(key, concerned): &(MessageKey, Vec<EndpointKey>)| {
            let key = *key;
            concerned.iter().map(move |endpoint| (key, *endpoint)).collect::<Vec<_>>()
        };
        let pairs: Vec<_> = concerning.iter().flat_map(of_one).collect();
        looked += pairs.len().saturating_sub(concerning.len());
        let mut states = states(db, &pairs).await?.into_iter();
        for (key, concerned) in concerning {
            let stand: Vec<_> = concerned.into_iter().zip(states.by_ref()).collect();
            if search.finds(&stand) {
                found.push((key, stand));
            }
        }
        if found.len() >= search.limit {
            found.truncate(search.limit);
            let until = found.last().map(|(key, _)| *key);
            return searched(db, found, until).await;
        }
        if stretch.len() < step {
            return searched(db, found, None).await;
        }
    }
    searched(db, found, Some(MessageKey::new(span.high))).await
}

async fn searched(
    db: &Db,
    found: Vec<(MessageKey, Vec<(EndpointKey, DeliveryState)>)>,
    until: Option<MessageKey>,
) -> Result<Searched> {
    let (keys, states): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    Ok(Searched { found: read_messages(db, &keys).await?.into_iter().zip(states).collect(), until })
}

/// A success once is a success for good; otherwise what waits counts, then what is dead.
async fn states(db: &Db, pairs: &[(MessageKey, EndpointKey)]) -> Result<Vec<DeliveryState>> {
    let (messages, endpoints): (BTreeSet<MessageKey>, BTreeSet<EndpointKey>) = pairs.iter().copied().unzip();
    let Some((keys, first, last)) = bounds(messages) else { return Ok(Vec::new()) };
    let owners: Vec<i64> = endpoints.into_iter().map(EndpointKey::raw).collect();
    let (of_messages, of_endpoints): (Vec<i64>, Vec<i64>) =
        pairs.iter().map(|(message, endpoint)| (message.raw(), endpoint.raw())).unzip();
    let (scheduled, delivered) = (small(trigger_code(Trigger::Scheduled)), small(class_code(Class::Delivered)));
    let (arrived, waiting, dead) = try_join3(
        rows(db, ARRIVED, &[&keys, &owners, &delivered, &first, &last]),
        rows(db, WAITING, &[&of_messages, &of_endpoints, &scheduled]),
        rows(db, DEAD, &[&of_messages, &of_endpoints]),
    )
    .await?;
    let pair = |row: &Row| (MessageKey::new(row.get("message")), EndpointKey::new(row.get("endpoint")));
    let mut known = BTreeMap::new();
    for row in &dead {
        let at = Timestamp::from_millis(row.get("at"));
        known.insert(pair(row), DeliveryState::Dead { at, reason: death_of(row.get::<_, i16>("reason").into())? });
    }
    for row in &waiting {
        let due = Timestamp::from_millis(row.get("due"));
        let state =
            if row.get("tried") { DeliveryState::Sending { due } } else { DeliveryState::Pending { due: Some(due) } };
        known.insert(pair(row), state);
    }
    known.extend(arrived.iter().map(|row| (pair(row), DeliveryState::Delivered)));
    let state = |pair| known.get(pair).copied().unwrap_or(DeliveryState::Pending { due: None });
    Ok(pairs.iter().map(state).collect())
}

/// A message has but a few attempts, an endpoint has many; the sum keeps the planner from the index of the latter, which
/// it takes, or reads as well, as long as it knows nothing of a young partition.
const ARRIVED: &str = "
    SELECT DISTINCT found.message, found.endpoint FROM unnest($1::bigint[]) AS given (message) CROSS JOIN LATERAL (
        SELECT message, endpoint FROM attempt
        WHERE attempt.message = given.message AND attempt.message >= $4 AND attempt.message <= $5 AND class = $3
            AND endpoint = ANY ($2::bigint[])
        OFFSET 0
    ) AS found";

const WAITING: &str = "
    SELECT found.* FROM unnest($1::bigint[], $2::bigint[]) AS given (message, endpoint) CROSS JOIN LATERAL (
        SELECT message, endpoint, due, attempts + cycle > 0 AS tried FROM waiting
        WHERE waiting.endpoint = given.endpoint AND waiting.message = given.message AND trigger_code = $3 LIMIT 1
    ) AS found";

const DEAD: &str = "
    SELECT found.* FROM unnest($1::bigint[], $2::bigint[]) AS given (message, endpoint) CROSS JOIN LATERAL (
        SELECT message, endpoint, at, reason FROM dead
        WHERE dead.endpoint = given.endpoint AND dead.message = given.message AND open <> 0 LIMIT 1
    ) AS found";

pub async fn stats(db: &Db, endpoint: EndpointKey, (since, until): (Timestamp, Timestamp)) -> Result<Stats> {
    let (from, to) = (first_key_at(since), first_key_at(until));
    let tried_from = first_key_at(since.minus(CLOCKS_APART_MAX));
    let owner = endpoint.raw();
    let (scheduled, delivered) = (small(trigger_code(Trigger::Scheduled)), small(class_code(Class::Delivered)));
    let cancelled = small(death_code(DeathReason::Cancelled));
    let (success, waiting, dead, handed) = try_join4(
        one(db, COUNT_ARRIVED, &[&owner, &from, &to, &delivered, &tried_from]),
        one(db, COUNT_WAITING, &[&owner, &from, &to, &scheduled, &delivered]),
        one(db, COUNT_DEAD, &[&owner, &from, &to, &cancelled]),
        recover::handed_to(db, endpoint),
    )
    .await?;
    let number = |row: &Row, column| count(row.get(column));
    let handed = handed.iter().filter(|message| (from..to).contains(&message.raw())).count();
    Ok(Stats {
        success: number(&success, 0),
        pending: number(&waiting, 0) + handed as u64,
        sending: number(&waiting, 1),
        fail: number(&dead, 0),
        canceled: number(&dead, 1),
    })
}

/// An attempt is younger than its message, by the clock of one node; another one's may be behind.
const CLOCKS_APART_MAX: Duration = Duration::from_hours(1);

/// The bounds are written as lists of one, by which partitions are left out like by any other, but which do not look so
/// narrow: otherwise the planner goes through all messages of the time instead of the attempts of the endpoint.
const COUNT_ARRIVED: &str = "
    SELECT count(DISTINCT message) FROM attempt
    WHERE endpoint + 0 = $1 AND key >= $5 AND class = $4
        AND message >= ANY (ARRAY[$2::bigint]) AND message < ANY (ARRAY[$3::bigint])";

/// What arrived and was put on its way again is counted as delivered already.
const COUNT_WAITING: &str = "
    SELECT count(*) FILTER (WHERE attempts + cycle = 0),
        count(*) FILTER (WHERE CASE
            WHEN cycle = 0 THEN attempts > 0
            ELSE (SELECT true FROM attempt
                  WHERE attempt.message = waiting.message AND attempt.message >= $2 AND attempt.message < $3
                      AND attempt.endpoint = $1 AND class = $5
                  LIMIT 1) IS NULL
            END)
    FROM waiting WHERE endpoint = $1 AND message >= $2 AND message < $3 AND trigger_code = $4";

const COUNT_DEAD: &str = "
    SELECT count(*) FILTER (WHERE reason <> $4), count(*) FILTER (WHERE reason = $4)
    FROM dead WHERE endpoint = $1 AND message >= $2 AND message < $3 AND open <> 0";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{
        load::tests::{connect, plans, seem_grown},
        pieces,
    };

    /// Also when PostgreSQL has not counted them yet: the attempts of an endpoint are not gone through for one message.
    #[tokio::test]
    async fn how_a_delivery_stands_is_looked_up_by_its_message() {
        let db = connect().await;
        let key = first_key_at(Timestamp::from_millis(1_800_000_000_000));
        pieces::ensure(&db, key, Duration::from_hours(24)).await.unwrap();
        let some = format!(
            "INSERT INTO attempt (message, key, endpoint, class, rule, trigger_code, cycle, number, started_at, duration, url)
             SELECT {key} + number, {key} + number, 1, 0, 0, 0, 0, 1, 0, 0, '' FROM generate_series(1, 1000) AS number"
        );
        db.batch_execute(&some).await.unwrap();
        seem_grown(&db, "attempt_1").await;
        for (sql, arguments) in [
            (ARRIVED, format!("'{{{key}}}', '{{1}}', 0::smallint, {key}, {key}")),
            (COUNT_WAITING, format!("1, {key}, {key} + 1, 0::smallint, 0::smallint")),
        ] {
            for plan in plans(&db, sql, &arguments).await {
                assert!(plan.contains("attempt_1_pkey"), "{sql}: {plan}");
                assert!(!plan.contains("expr_key_idx") && !plan.contains("Seq Scan on attempt"), "{sql}: {plan}");
            }
        }
    }

    /// What other endpoints were sent meanwhile is not gone through, nor are other times.
    #[tokio::test]
    async fn what_arrived_at_an_endpoint_is_counted_along_its_attempts() {
        let db = connect().await;
        let day = Duration::from_hours(24);
        let [first, second] = [1_800_000_000_000, 1_800_172_800_000].map(|at| first_key_at(Timestamp::from_millis(at)));
        for key in [first, second] {
            pieces::ensure(&db, key, day).await.unwrap();
        }
        seem_grown(&db, "attempt_1").await;
        seem_grown(&db, "attempt_2").await;
        let arguments = format!("1, {first}, {first} + 1, 0::smallint, {first}");
        for plan in plans(&db, COUNT_ARRIVED, &arguments).await {
            assert!(plan.contains("attempt_1_expr_key_idx"), "{plan}");
            assert!(!plan.contains("attempt_1_pkey") && !plan.contains("attempt_2"), "{plan}");
        }
    }
}
