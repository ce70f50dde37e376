//! Accepting messages, many in one statement: a row each, with the payload and the list of endpoints it is owed to.
//!
//! Where this node serves the application, a delivery gets a row of its own only when its first attempt has an outcome, or
//! when it must wait; see `recover` for how it is found again after a crash. Otherwise it gets one at once, and its owner
//! is told.
//!
//! Whoever counts messages of one ordering key holds the counter until his commit, so that the order of the numbers, of the
//! keys and of the commits is one and the same, whichever node each of them is accepted by.

use super::{
    Db, Error, Result, execute,
    news::{self, Event, To},
    one, rows,
    settle::{Cycle, Start, start_many},
};
use crate::{
    AcceptError, Accepted, Committed, IDEMPOTENCY_MEMORY, Letter, NewMessage,
    rows::{extra::Extra, to_json},
    shards::{Shard, Shards},
    step,
};
use postrider_engine::{
    DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    keys::{first_key_at, time_of_key},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// Stands for an ordering key in the counter of a FIFO endpoint.
pub const WHOLE_LANE: i64 = 0;

/// Who accepts.
pub struct Here<'n> {
    pub node: i64,
    pub owned: &'n Shards,
}

#[derive(Default)]
pub struct Received {
    /// One for each message, in their order.
    pub answers: Vec<Result<Accepted, AcceptError>>,
    pub events: Vec<Event>,
    /// Messages, and the endpoints to which they are handed over.
    pub handed: Vec<(i64, Vec<EndpointKey>)>,
}

/// A message on its way in.
struct Incoming<'m> {
    message: &'m NewMessage,
    key: i64,
    order: Option<OrderKey>,
    answer: Option<Result<Accepted, AcceptError>>,
    sequences: Vec<(EndpointKey, u64)>,
    /// Endpoints at which something of its run waits that another node put there.
    behind: HashSet<EndpointKey>,
}

impl Incoming<'_> {
    fn is_new(&self) -> bool {
        self.answer.is_none()
    }

    /// Until when it is not to be sent.
    fn put_off(&self) -> Option<Timestamp> {
        self.message.content.deliver_at.filter(|due| *due > self.message.at)
    }

    /// What counts it at an endpoint: all FIFO deliveries of an endpoint are counted together, the others by their key.
    fn counter(&self, endpoint: EndpointKey) -> Option<(i64, i64)> {
        let whole_lane = self.message.fifo.contains(&endpoint).then_some(WHOLE_LANE);
        Some((endpoint.raw(), whole_lane.or(self.order.map(OrderKey::raw))?))
    }
}

/// Which of these can be written in one batch with those before them: what is recognised by the same name must come after.
pub fn fits_together(batch: &mut Names, message: &NewMessage) -> bool {
    let key = message.idempotency.map(|idempotency| idempotency.key);
    let event_id = message.content.event_id.as_ref().map(|event_id| (message.app.raw(), event_id.clone()));
    let is_known = key.is_some_and(|key| batch.keys.contains(&key))
        || event_id.as_ref().is_some_and(|event_id| batch.event_ids.contains(event_id));
    if !is_known {
        batch.keys.extend(key);
        batch.event_ids.extend(event_id);
    }
    !is_known
}

/// By what the messages of a batch are recognised.
#[derive(Default)]
pub struct Names {
    keys: HashSet<[u8; 16]>,
    event_ids: HashSet<(i64, String)>,
}

/// `keys`: one for each message, growing.
pub async fn accept(db: &Db, here: &Here<'_>, keys: &[i64], messages: &[&NewMessage]) -> Result<Received> {
    let mut batch: Vec<Incoming<'_>> = keys
        .iter()
        .zip(messages)
        .map(|(key, message)| Incoming {
            message,
            key: *key,
            order: message.content.ordering_key.as_deref().map(OrderKey::of),
            answer: None,
            sequences: Vec::new(),
            behind: HashSet::new(),
        })
        .collect();
    recognise(db, &mut batch).await?;
    take_event_ids(db, &mut batch).await?;
    count(db, here, &mut batch).await?;
    insert(db, &batch).await?;
    if !batch.is_empty() {
        step!("store.accepted");
    }
    expire_later(db, &batch).await?;
    let served = news::pass_on(db, &passed_on(here, &batch)).await?;
    let mut received = Received::default();
    let mut starts = Vec::new();
    for incoming in batch {
        received.take(here, &served, incoming, &mut starts);
    }
    start_many(db, &starts).await?;
    received.coalesce(here);
    Ok(received)
}

impl Received {
    fn take(&mut self, here: &Here<'_>, served: &HashSet<i64>, mut incoming: Incoming<'_>, starts: &mut Vec<Start>) {
        if let Some(answer) = incoming.answer.take() {
            self.answers.push(answer);
            return;
        }
        let is_passed_on =
            |endpoint: &EndpointKey| served.contains(&incoming.key) && incoming.counter(*endpoint).is_none();
        let kept: Vec<EndpointKey> = incoming.message.owed.iter().copied().filter(|one| !is_passed_on(one)).collect();
        let later = incoming.put_off();
        let Incoming { message, key, order, sequences, behind, .. } = incoming;
        self.answers.push(Ok(Accepted::Now(MessageKey::new(key))));
        let shard = Shard::of(message.app);
        let waits =
            |endpoint: &EndpointKey| later.is_some() || !here.owned.contains(shard) || behind.contains(endpoint);
        let (waiting, handed): (Vec<EndpointKey>, Vec<EndpointKey>) = kept.into_iter().partition(waits);
        for endpoint in waiting {
            let id = DeliveryId { endpoint, message: MessageKey::new(key), trigger: Trigger::Scheduled };
            let (due, cycle) = match later {
                // How long it may wait untried counts from when it was wanted, not from when it was handed in.
                Some(due) => (due, Cycle::Again { number: 0, queued_at: due }),
                // The key is for order: it may be ahead of the time.
                None => (message.at, Cycle::First),
            };
            starts.push(Start { id, order, due, cycle });
            self.events.push(Event { to: To::Owner(shard), what: Committed::Waiting { endpoint, due } });
        }
        if !handed.is_empty() {
            let letter = Arc::new(Letter {
                message: MessageKey::new(key),
                app: message.app,
                event_type: message.content.event_type.clone(),
                content_type: message.content.content_type.clone(),
                payload: Some(message.content.payload.clone()),
                accepted_at: time_of_key(key),
                order,
                sequences,
                trace: message.trace.clone(),
                headers: Extra::passed_on(message.content.received.clone()),
            });
            self.handed.push((key, handed.clone()));
            self.events.push(Event { to: To::Here, what: Committed::Message { letter, owed: handed } });
        }
    }

    /// Another node need not be told of a lane more than once; the earliest time is what it must know.
    fn coalesce(&mut self, here: &Here<'_>) {
        let mut told: HashMap<EndpointKey, Timestamp> = HashMap::new();
        let elsewhere = |event: &Event| match (&event.to, &event.what) {
            (To::Owner(shard), Committed::Waiting { endpoint, due }) if !here.owned.contains(*shard) => {
                Some((*endpoint, *due))
            }
            _ => None,
        };
        for (endpoint, due) in self.events.iter().filter_map(elsewhere) {
            told.entry(endpoint).and_modify(|earliest| *earliest = due.min(*earliest)).or_insert(due);
        }
        self.events.retain_mut(|event| match elsewhere(event) {
            Some((endpoint, _)) => match told.remove(&endpoint) {
                Some(due) => {
                    event.what = Committed::Waiting { endpoint, due };
                    true
                }
                None => false,
            },
            None => true,
        });
    }
}

/// Messages that another node may serve and that have deliveries which are bound by no order. What is bound gets a row: by
/// its rows whoever accepts the next of a run knows what that must not overtake.
fn passed_on(here: &Here<'_>, batch: &[Incoming<'_>]) -> Vec<(Shard, i64)> {
    let is_passed_on = |incoming: &&Incoming<'_>| {
        incoming.is_new()
            && !here.owned.has_lanes_of(incoming.message.app)
            && incoming.put_off().is_none()
            && incoming.message.owed.iter().any(|endpoint| incoming.counter(*endpoint).is_none())
    };
    let passed_on = batch.iter().filter(is_passed_on);
    passed_on.map(|incoming| (Shard::of(incoming.message.app), incoming.key)).collect()
}

/// Recognises repeated requests. Keys are written in order, so that two nodes do not wait for one another crosswise.
async fn recognise(db: &Db, batch: &mut [Incoming<'_>]) -> Result<()> {
    let mut named: Vec<(&[u8], i64, &[u8])> = batch
        .iter()
        .filter_map(|incoming| {
            let idempotency = incoming.message.idempotency.as_ref()?;
            Some((&idempotency.key[..], incoming.key, &idempotency.request[..]))
        })
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    named.sort_unstable();
    let earliest = batch.iter().map(|incoming| incoming.message.at).min().unwrap_or_default();
    let remembered_from = first_key_at(earliest.minus(IDEMPOTENCY_MEMORY));
    let fresh: HashSet<i64> = rows(
        db,
        "INSERT INTO idempotency (key, message, request)
         SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[])
         ON CONFLICT (key) DO UPDATE SET message = excluded.message, request = excluded.request
             WHERE idempotency.message < $4
         RETURNING message",
        &[
            &named.iter().map(|(key, ..)| *key).collect::<Vec<_>>(),
            &named.iter().map(|(_, message, _)| *message).collect::<Vec<_>>(),
            &named.iter().map(|(.., request)| *request).collect::<Vec<_>>(),
            &remembered_from,
        ],
    )
    .await?
    .iter()
    .map(|row| row.get(0))
    .collect();
    if fresh.len() == named.len() {
        return Ok(());
    }
    let known: Vec<&[u8]> =
        named.iter().filter(|(_, message, _)| !fresh.contains(message)).map(|(key, ..)| *key).collect();
    let found = rows(db, "SELECT key, message, request FROM idempotency WHERE key = ANY($1)", &[&known]).await?;
    let seen: HashMap<&[u8], (i64, &[u8])> =
        found.iter().map(|row| (row.get(0), (row.get::<_, i64>(1), row.get::<_, &[u8]>(2)))).collect();
    for incoming in batch.iter_mut().filter(|incoming| !fresh.contains(&incoming.key)) {
        let Some(idempotency) = &incoming.message.idempotency else { continue };
        let Some((message, request)) = seen.get(&idempotency.key[..]) else { continue };
        incoming.answer = Some(if idempotency.chosen && *request != idempotency.request {
            Err(AcceptError::KeyReused)
        } else {
            Ok(Accepted::Before(MessageKey::new(*message)))
        });
    }
    Ok(())
}

async fn take_event_ids(db: &Db, batch: &mut [Incoming<'_>]) -> Result<()> {
    let mut named: Vec<(i64, &str, i64)> = batch
        .iter()
        .filter(|incoming| incoming.is_new())
        .filter_map(|incoming| {
            Some((incoming.message.app.raw(), incoming.message.content.event_id.as_deref()?, incoming.key))
        })
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    named.sort_unstable();
    let taken: HashSet<i64> = rows(
        db,
        "INSERT INTO event_id (app, event_id, message) SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[])
         ON CONFLICT DO NOTHING RETURNING message",
        &[
            &named.iter().map(|(app, ..)| *app).collect::<Vec<_>>(),
            &named.iter().map(|(_, event_id, _)| *event_id).collect::<Vec<_>>(),
            &named.iter().map(|(.., message)| *message).collect::<Vec<_>>(),
        ],
    )
    .await?
    .iter()
    .map(|row| row.get(0))
    .collect();
    let refused: Vec<i64> = named.iter().map(|(.., key)| *key).filter(|key| !taken.contains(key)).collect();
    if refused.is_empty() {
        return Ok(());
    }
    for incoming in batch.iter_mut().filter(|incoming| refused.contains(&incoming.key)) {
        incoming.answer = Some(Err(AcceptError::EventIdTaken));
    }
    // What was refused is not remembered.
    execute(db, "DELETE FROM idempotency WHERE message = ANY($1)", &[&refused]).await?;
    Ok(())
}

/// Which number each message has at each endpoint that counts it.
async fn count(db: &Db, here: &Here<'_>, batch: &mut [Incoming<'_>]) -> Result<()> {
    let mut wanted: BTreeMap<(i64, i64), Vec<i64>> = BTreeMap::new();
    let mut served: HashSet<(i64, i64)> = HashSet::new();
    let mut used_at = 0;
    for incoming in batch.iter().filter(|incoming| incoming.is_new()) {
        let is_served = here.owned.has_lanes_of(incoming.message.app);
        for counter in incoming.message.owed.iter().filter_map(|endpoint| incoming.counter(*endpoint)) {
            wanted.entry(counter).or_default().push(incoming.key);
            if is_served {
                served.insert(counter);
            }
            used_at = used_at.max(incoming.message.at.as_millis());
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let found = rows(
        db,
        "INSERT INTO sequence (endpoint, order_key, last, last_key, last_node, used_at)
         SELECT endpoint, order_key, count, 0, $5, $4
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS new (endpoint, order_key, count)
         ON CONFLICT (endpoint, order_key) DO UPDATE SET last = sequence.last + excluded.last, used_at = excluded.used_at
         RETURNING endpoint, order_key, last, last_key, last_node",
        &[
            &wanted.keys().map(|(endpoint, _)| *endpoint).collect::<Vec<_>>(),
            &wanted.keys().map(|(_, order)| *order).collect::<Vec<_>>(),
            &wanted.values().map(|keys| keys.len() as i64).collect::<Vec<_>>(),
            &used_at,
            &here.node,
        ],
    )
    .await?;
    let mut next: HashMap<(i64, i64), i64> = HashMap::new();
    let mut foreign = Vec::new();
    for row in &found {
        let counter: (i64, i64) = (row.get(0), row.get(1));
        let keys = &wanted[&counter];
        let (last, last_key, last_node): (i64, i64, i64) = (row.get(2), row.get(3), row.get(4));
        if keys[0] <= last_key {
            return Err(Error::KeyTooSmall { used: last_key });
        }
        if last_node != here.node {
            foreign.push(counter);
        }
        next.insert(counter, last - keys.len() as i64 + 1);
    }
    let behind = where_others_wait(db, &foreign).await?;
    for incoming in batch.iter_mut().filter(|incoming| incoming.is_new()) {
        for endpoint in &incoming.message.owed {
            let Some(counter) = incoming.counter(*endpoint) else { continue };
            let Some(number) = next.get_mut(&counter) else { continue };
            incoming.sequences.push((*endpoint, super::count(*number)));
            *number += 1;
            if behind.contains(&counter) {
                incoming.behind.insert(*endpoint);
            }
        }
    }
    execute(
        db,
        "UPDATE sequence SET last_key = new.last_key, last_node = new.last_node
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
             AS new (endpoint, order_key, last_key, last_node)
         WHERE sequence.endpoint = new.endpoint AND sequence.order_key = new.order_key",
        &[
            &wanted.keys().map(|(endpoint, _)| *endpoint).collect::<Vec<_>>(),
            &wanted.keys().map(|(_, order)| *order).collect::<Vec<_>>(),
            &wanted.values().map(|keys| keys[keys.len() - 1]).collect::<Vec<_>>(),
            // What it accepts for lanes that it does not serve yet it hears of when it does, and not at once: like another's.
            &wanted.keys().map(|counter| if served.contains(counter) { here.node } else { NOBODY }).collect::<Vec<_>>(),
        ],
    )
    .await?;
    Ok(())
}

/// No node has this number.
const NOBODY: i64 = 0;

/// Whose rows a batch may add to or take from, and what counts those.
pub fn runs_of<'b>(
    messages: &[&NewMessage],
    others: impl Iterator<Item = (EndpointKey, Option<OrderKey>)> + 'b,
) -> BTreeSet<(i64, i64)> {
    let mut runs = BTreeSet::new();
    for message in messages {
        let order = message.content.ordering_key.as_deref().map(OrderKey::of);
        for endpoint in &message.owed {
            let whole_lane = message.fifo.contains(endpoint).then_some(WHOLE_LANE);
            runs.extend(whole_lane.or(order.map(OrderKey::raw)).map(|order| (endpoint.raw(), order)));
        }
    }
    for (endpoint, order) in others {
        let Some(order) = order else { continue };
        // By which of them it was counted depends on what the endpoint was then.
        runs.extend([(endpoint.raw(), order.raw()), (endpoint.raw(), WHOLE_LANE)]);
    }
    runs
}

/// Keeps other nodes from these runs until the end of the transaction, and returns the greatest key among them. Whoever
/// puts a row into its place must see all rows of its run: two who did so side by side would each miss the other's.
pub async fn hold_runs(db: &Db, runs: &BTreeSet<(i64, i64)>) -> Result<i64> {
    let held = one(
        db,
        "SELECT coalesce(max(last_key), 0) FROM (
             SELECT last_key FROM sequence JOIN unnest($1::bigint[], $2::bigint[]) AS run (endpoint, order_key)
                 USING (endpoint, order_key)
             ORDER BY endpoint, order_key FOR NO KEY UPDATE OF sequence) AS held",
        &[
            &runs.iter().map(|(endpoint, _)| *endpoint).collect::<Vec<_>>(),
            &runs.iter().map(|(_, order)| *order).collect::<Vec<_>>(),
        ],
    )
    .await?;
    Ok(held.get(0))
}

/// The runs that another node added to last, and in which something still waits: this node may not have heard of it yet,
/// and what comes now must not overtake it.
async fn where_others_wait(db: &Db, counters: &[(i64, i64)]) -> Result<BTreeSet<(i64, i64)>> {
    if counters.is_empty() {
        return Ok(BTreeSet::new());
    }
    let found = rows(
        db,
        "SELECT endpoint, order_key FROM unnest($1::bigint[], $2::bigint[]) AS run (endpoint, order_key)
         WHERE CASE WHEN order_key = $3
             THEN EXISTS (SELECT 1 FROM waiting WHERE waiting.endpoint = run.endpoint)
             ELSE EXISTS (SELECT 1 FROM waiting
                          WHERE waiting.endpoint = run.endpoint AND waiting.order_key = run.order_key) END",
        &[
            &counters.iter().map(|(endpoint, _)| *endpoint).collect::<Vec<_>>(),
            &counters.iter().map(|(_, order)| *order).collect::<Vec<_>>(),
            &WHOLE_LANE,
        ],
    )
    .await?;
    Ok(found.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// The owed endpoints of all messages are one array, of which each message has a slice. A message that was worked out from
/// outdated settings has no application here, which the table refuses.
async fn insert(db: &Db, batch: &[Incoming<'_>]) -> Result<()> {
    let new: Vec<&Incoming<'_>> = batch.iter().filter(|incoming| incoming.is_new()).collect();
    if new.is_empty() {
        return Ok(());
    }
    let mut owed: Vec<i64> = Vec::new();
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for incoming in &new {
        first.push(owed.len() as i32 + 1);
        owed.extend(incoming.message.owed.iter().map(|endpoint| endpoint.raw()));
        last.push(owed.len() as i32);
    }
    execute(
        db,
        "INSERT INTO message (key, app, event_type, owed, extra, payload)
         SELECT new.key, CASE WHEN new.generation IS NULL OR application.key IS NOT NULL THEN new.app END, new.event_type,
             ($7::bigint[])[new.first : new.last], new.extra, new.payload
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bytea[], $8::integer[],
             $9::integer[]) AS new (key, app, generation, event_type, extra, payload, first, last)
         LEFT JOIN application ON application.key = new.app AND application.generation = new.generation
             AND application.deleted_at IS NULL",
        &[
            &new.iter().map(|incoming| incoming.key).collect::<Vec<_>>(),
            &new.iter().map(|incoming| incoming.message.app.raw()).collect::<Vec<_>>(),
            &new.iter().map(|incoming| incoming.message.generation).collect::<Vec<_>>(),
            &new.iter().map(|incoming| incoming.message.content.event_type.as_str()).collect::<Vec<_>>(),
            &new.iter().map(|incoming| extra(incoming)).collect::<Vec<_>>(),
            &new.iter().map(|incoming| incoming.message.content.payload.as_ref()).collect::<Vec<_>>(),
            &owed,
            &first,
            &last,
        ],
    )
    .await?;
    Ok(())
}

fn extra(incoming: &Incoming<'_>) -> Option<String> {
    let content = &incoming.message.content;
    let extra = Extra {
        event_id: content.event_id.clone(),
        channels: content.channels.clone(),
        tags: content.tags.clone(),
        content_type: content.content_type.clone(),
        ordering_key: content.ordering_key.clone(),
        deliver_at: content.deliver_at.map(Timestamp::as_millis),
        sequences: incoming.sequences.iter().map(|(endpoint, number)| (endpoint.raw(), *number)).collect(),
        trace: incoming.message.trace.clone(),
        received: content.received.clone(),
    };
    (extra != Extra::default()).then(|| to_json(&extra))
}

async fn expire_later(db: &Db, batch: &[Incoming<'_>]) -> Result<()> {
    let expiring: (Vec<i64>, Vec<i64>) = batch
        .iter()
        .filter(|incoming| incoming.is_new())
        .filter_map(|incoming| Some((incoming.message.payload_expires_at?.as_millis(), incoming.key)))
        .unzip();
    if !expiring.0.is_empty() {
        execute(
            db,
            "INSERT INTO payload_expiry (at, message) SELECT * FROM unnest($1::bigint[], $2::bigint[])",
            &[&expiring.0, &expiring.1],
        )
        .await?;
    }
    Ok(())
}

/// Which of these were worked out from outdated settings.
pub async fn outdated(db: &Db, messages: &[&NewMessage]) -> Result<Vec<bool>> {
    let apps: Vec<i64> = messages.iter().map(|message| message.app.raw()).collect();
    let found =
        rows(db, "SELECT key, generation FROM application WHERE key = ANY($1) AND deleted_at IS NULL", &[&apps])
            .await?;
    let current: HashMap<i64, i64> = found.iter().map(|row| (row.get(0), row.get(1))).collect();
    let is_outdated = |message: &&NewMessage| {
        message.generation.is_some_and(|read_at| current.get(&message.app.raw()) != Some(&read_at))
    };
    Ok(messages.iter().map(is_outdated).collect())
}
