//! Takes events over from the databases of producers, exactly one message for each row.
//!
//! A row is marked before it is offered to the store and deleted after the store has it; between the two anything may
//! die. Whoever finds it again offers it again, and the store recognises it: for a day by its idempotency key, after that
//! by its event id, for as long as messages are kept. Past that time nobody can know any more, and the row is set aside
//! for a person.
//!
//! Rows of one ordering key are offered one after the other, and a row is gone only once it is stored. A walk goes through
//! the rows of one moment, in which whoever sees a row sees all those of its key that were committed before. So whoever
//! offers a row has seen all those before it stored, even if two nodes believe at once that they are the one to relay.

mod row;

use crate::{
    clock,
    config::OutboxSettings,
    directory::{AppEntry, Directory},
    ids::IdCodec,
    ingest::{Ingest, NewEvent},
};
use metrics::{Counter, Gauge};
use postrider_engine::AppKey;
use postrider_store::{
    AcceptError, By, Content, Idempotency, Retention, Store, StoreError,
    outbox::{Found, Identity, Outbox, OutboxError, Refusal, Row, Standing},
};
use rand::{Rng, RngExt, rngs::StdRng};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

/// Takes over from one outbox.
pub struct Relay {
    settings: OutboxSettings,
    ca_pem: Option<Vec<u8>>,
    desk: Arc<Desk>,
    meters: Meters,
    rng: StdRng,
}

/// Where rows are offered.
pub struct Desk {
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub ingest: Arc<Ingest>,
    pub ids: IdCodec,
    /// Bytes of a payload.
    pub body_max: usize,
    pub retention: Retention,
}

impl Relay {
    pub fn new(settings: OutboxSettings, ca_pem: Option<Vec<u8>>, desk: Arc<Desk>, rng: StdRng) -> Self {
        let meters = Meters::new(&settings.name);
        Self { settings, ca_pem, desk, meters, rng }
    }

    /// Runs until it is told to stop, whatever becomes of the producer's database meanwhile.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut failures = 0;
        let mut told = None;
        while !*stopped.borrow() {
            let began = Instant::now();
            let ended = self.session(&mut stopped, &mut told).await;
            self.meters.relaying.set(0.0);
            let Err(error) = ended else { return };
            self.meters.up.set(0.0);
            let error = error.to_string();
            if told.as_ref() != Some(&error) {
                tracing::warn!(outbox = self.settings.name, error, "the outbox cannot be read; it is tried again");
            }
            told = Some(error);
            failures = if began.elapsed() > STEADY { 0 } else { failures + 1 };
            let pause = pause(failures, RECONNECT_MAX, &mut self.rng);
            tokio::select! {
                () = sleep(pause) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }
    }

    /// One connection, from its beginning to its end. `Ok`: it was told to stop.
    async fn session(
        &mut self,
        stopped: &mut watch::Receiver<bool>,
        told: &mut Option<String>,
    ) -> Result<(), OutboxError> {
        let OutboxSettings { name, url, schema, ca_file: _ } = &self.settings;
        let outbox = Outbox::connect(url, self.ca_pem.as_deref(), schema.clone(), "outbox relay").await?;
        let identity = outbox.identity().await?;
        outbox.listen().await?;
        self.meters.up.set(1.0);
        if told.take().is_some() {
            tracing::info!(outbox = name, "the outbox can be read again");
        }
        if !outbox.lead(&identity).await? {
            // Whoever relays tells how it stands.
            self.meters.show(Standing::default());
            while !outbox.lead(&identity).await? {
                tokio::select! {
                    () = sleep(LEAD_EVERY) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
                }
            }
        }
        tracing::info!(outbox = name, "relaying from the outbox");
        self.meters.relaying.set(1.0);
        let mut counted: Option<Counted> = None;
        let mut troubles = 0;
        while !*stopped.borrow() {
            if counted.as_ref().is_none_or(Counted::is_old) {
                let began = Instant::now();
                self.meters.show(outbox.standing().await?);
                counted = Some(Counted { at: Instant::now(), took: began.elapsed() });
            }
            let wait = match self.drain(&outbox, &identity, stopped).await? {
                Drained::Empty => {
                    troubles = 0;
                    POLL_EVERY
                }
                Drained::Walked => {
                    troubles = 0;
                    continue;
                }
                Drained::Held(reason) => {
                    troubles += 1;
                    if troubles == 1 {
                        tracing::warn!(outbox = name, reason, "rows of the outbox wait, because they cannot be stored");
                    }
                    let wait = pause(troubles, STORE_MAX, &mut self.rng);
                    tokio::select! {
                        () = sleep(wait) => {}
                        _ = stopped.wait_for(|stopped| *stopped) => {}
                    }
                    continue;
                }
            };
            tokio::select! {
                () = outbox.rung() => {}
                () = sleep(wait) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        }
        Ok(())
    }

    /// Goes once through the rows that wait at this moment, from the oldest on.
    ///
    /// Of one moment, or a row that is committed meanwhile could be passed over and the next of its key taken. And many rows
    /// for one look at the beginning, where what was deleted lies in the way until it is vacuumed.
    async fn drain(
        &self,
        outbox: &Outbox,
        identity: &Identity,
        stopped: &watch::Receiver<bool>,
    ) -> Result<Drained, OutboxError> {
        let known_for = self.desk.known_for();
        let began = Instant::now();
        let walk = outbox.waiting(WALK_ROWS_MAX).await?;
        if walk.is_empty() {
            return Ok(Drained::Empty);
        }
        let mut ahead = &walk[..];
        // Not much longer than a row that was committed late may wait for its turn.
        while !ahead.is_empty() && !*stopped.borrow() && began.elapsed() < POLL_EVERY {
            let portion = &ahead[..ahead.len().min(PORTION_ROWS_MAX)];
            let found = outbox.read(portion, PORTION_BYTES_MAX, known_for).await?;
            let last = found.last().map(|row| row.as_ref().map_or_else(|(id, _)| *id, |row| row.id));
            let done = last.map_or(portion.len(), |last| portion.partition_point(|id| *id <= last));
            ahead = &ahead[done..];
            if let Some(reason) = self.relay(outbox, identity, found).await? {
                return Ok(Drained::Held(reason));
            }
        }
        Ok(Drained::Walked)
    }

    /// Offers rows to the store, and deletes those that it has taken. `Some`: not all could be decided, and why.
    async fn relay(
        &self,
        outbox: &Outbox,
        identity: &Identity,
        found: Vec<Found>,
    ) -> Result<Option<String>, OutboxError> {
        let (mut offers, mut refusals) = (Vec::new(), Vec::new());
        for row in found {
            match self.desk.prepare(identity, row).await {
                Ok(Ok(offer)) => offers.push(offer),
                Ok(Err(refusal)) => refusals.push(refusal),
                // Nothing has been offered yet, so nothing is lost by beginning again.
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        let new: Vec<(i64, String)> = offers
            .iter()
            .filter(|offer| !offer.was_taken)
            .map(|offer| (offer.id, self.desk.ids.id_of(offer.app.application.key)))
            .collect();
        if !new.is_empty() {
            let taken: BTreeSet<i64> = outbox.take(&new, self.desk.known_for()).await?.into_iter().collect();
            for offer in &mut offers {
                offer.is_gone = !offer.was_taken && !taken.contains(&offer.id);
            }
        }
        let mut chains = JoinSet::new();
        for chain in row::chains(offers, |offer| offer.order.clone()) {
            chains.spawn(Arc::clone(&self.desk).offer_in_order(chain));
        }
        let (mut stored, mut held) = (Vec::new(), None);
        while let Some(chain) = chains.join_next().await {
            let Ok(ends) = chain else {
                held = Some("the work on a row was ended".to_owned());
                continue;
            };
            for (id, end) in ends {
                match end {
                    End::Stored => stored.push(id),
                    End::Refused(refusal) => refusals.push(refusal),
                    End::Held(reason) => held = Some(reason),
                }
            }
        }
        if !refusals.is_empty() {
            for Refusal { id, error, .. } in &refusals {
                tracing::warn!(outbox = self.settings.name, row = id, error, "a row of the outbox cannot be sent");
            }
            outbox.refuse(&refusals).await?;
        }
        if !stored.is_empty() {
            outbox.remove(&stored).await?;
            self.meters.taken.increment(stored.len() as u64);
        }
        Ok(held)
    }
}

/// How a walk through the rows ended.
enum Drained {
    /// There were none.
    Empty,
    /// It is time to begin from the oldest row again.
    Walked,
    Held(String),
}

/// A row that may become a message.
struct Offer {
    id: i64,
    app: Arc<AppEntry>,
    content: Content,
    idempotency: Idempotency,
    /// The application as the producer calls it, and the ordering key.
    order: Option<(String, String)>,
    /// Offered before, so that the store may have it.
    was_taken: bool,
    /// Its event id is one that only this row can have.
    is_named_by_us: bool,
    /// Somebody else has taken or deleted it since it was read.
    is_gone: bool,
}

/// What became of an offer.
enum End {
    Stored,
    Refused(Refusal),
    Held(String),
}

impl Desk {
    fn known_for(&self) -> Duration {
        let Retention { payloads, attempts, dead_letters, idempotency: _ } = self.retention;
        row::known_for(payloads.max(attempts).max(dead_letters))
    }

    async fn prepare(&self, identity: &Identity, found: Found) -> Result<Result<Offer, Refusal>, StoreError> {
        let row = match found {
            Ok(row) => row,
            Err((id, error)) => return Ok(Err(Refusal { id, error, is_certain: false })),
        };
        let was_taken = row.taken.is_some();
        let refusal = |error| Ok(Err(Refusal { id: row.id, error, is_certain: !was_taken }));
        // What was offered for an application is offered for the same one again, also if its name is another's now.
        let name = row.taken.as_ref().map_or(&row.app, |taken| &taken.app);
        if row.taken.as_ref().is_some_and(|taken| taken.is_forgotten) {
            let error =
                "it was taken so long ago that it is not known any more whether it was sent; retry or discard it";
            return refusal(error.to_owned());
        }
        let app = match self.ids.by::<AppKey>(name) {
            Some(by) => self.directory.application(&by).await?,
            None => None,
        };
        let Some(app) = app else { return refusal(format!("there is no application `{name}`")) };
        match row::content(identity, &row, self.body_max, clock::now()) {
            Err(flaw) => refusal(flaw),
            Ok(content) => Ok(Ok(offer(identity, row, app, content))),
        }
    }

    /// Offers rows one after the other, until one cannot be decided.
    async fn offer_in_order(self: Arc<Self>, chain: Vec<Offer>) -> Vec<(i64, End)> {
        let mut ends = Vec::with_capacity(chain.len());
        for offer in chain {
            let id = offer.id;
            let end = self.offer(offer).await.unwrap_or_else(|error| End::Held(error.to_string()));
            let is_held = matches!(end, End::Held(_));
            ends.push((id, end));
            if is_held {
                break;
            }
        }
        ends
    }

    async fn offer(&self, offer: Offer) -> Result<End, StoreError> {
        if offer.is_gone {
            return Ok(End::Held("another node takes rows as well".to_owned()));
        }
        let refused = |error: &str| {
            Ok(End::Refused(Refusal { id: offer.id, error: error.to_owned(), is_certain: !offer.was_taken }))
        };
        let event = NewEvent {
            content: offer.content.clone(),
            payload_expires_at: None,
            idempotency: Some(offer.idempotency),
            only: None,
        };
        match self.ingest.accept(&offer.app, event).await {
            Ok(_) => Ok(End::Stored),
            // Looked up anew with the next portion, where it shows if the application is gone.
            Err(AcceptError::Outdated) => Ok(End::Held("the settings of its application have changed".to_owned())),
            Err(AcceptError::KeyReused) => refused(SET_BACK),
            // A row that was never offered before cannot be the owner of a name that it chose itself.
            Err(AcceptError::EventIdTaken) if !offer.was_taken && !offer.is_named_by_us => refused(EVENT_ID_TAKEN),
            Err(AcceptError::EventIdTaken) => {
                let by = By::Uid(offer.content.event_id.clone().unwrap_or_default());
                match self.store.message(offer.app.application.key, by).await? {
                    Some(message) if row::is_same(&offer.content, &message) => Ok(End::Stored),
                    Some(_) if offer.is_named_by_us => refused(SET_BACK),
                    Some(_) => refused(EVENT_ID_TAKEN),
                    // Forgotten since; the name is free again.
                    None => Ok(End::Held("a message with its event id was being forgotten".to_owned())),
                }
            }
            Err(AcceptError::Store(error)) => Err(error),
        }
    }
}

fn offer(identity: &Identity, row: Row, app: Arc<AppEntry>, content: Content) -> Offer {
    Offer {
        id: row.id,
        idempotency: row::idempotency(identity, row.id, &content),
        app,
        content,
        order: row.ordering_key.map(|key| (row.app, key)),
        was_taken: row.taken.is_some(),
        is_named_by_us: row.event_id.is_none(),
        is_gone: false,
    }
}

/// A count of the rows reads them all, so it is not made too often where there are many.
struct Counted {
    at: Instant,
    took: Duration,
}

impl Counted {
    fn is_old(&self) -> bool {
        self.at.elapsed() > COUNT_EVERY.max(self.took * 20)
    }
}

struct Meters {
    up: Gauge,
    relaying: Gauge,
    lag: Gauge,
    rows: Gauge,
    failed: Gauge,
    taken: Counter,
}

impl Meters {
    fn new(outbox: &str) -> Self {
        let gauge = |name: &'static str| metrics::gauge!(name, "outbox" => outbox.to_owned());
        Self {
            up: gauge("postrider_outbox_up"),
            relaying: gauge("postrider_outbox_relaying"),
            lag: gauge("postrider_outbox_lag_seconds"),
            rows: gauge("postrider_outbox_rows"),
            failed: gauge("postrider_outbox_failed"),
            taken: metrics::counter!("postrider_outbox_taken_total", "outbox" => outbox.to_owned()),
        }
    }

    fn show(&self, standing: Standing) {
        let Standing { waiting, oldest, failed } = standing;
        self.rows.set(waiting as f64);
        self.failed.set(failed as f64);
        self.lag.set(oldest.unwrap_or_default().as_secs_f64());
    }
}

/// Doubles with each failure up to a limit; the upper half of it is drawn, so that nodes do not come all at once.
fn pause(failures: u32, longest: Duration, rng: &mut impl Rng) -> Duration {
    let full = PAUSE_MIN.saturating_mul(1 << failures.min(16)).min(longest);
    let half = u64::try_from((full / 2).as_millis()).unwrap_or(u64::MAX);
    full / 2 + Duration::from_millis(rng.random_range(0..=half))
}

const SET_BACK: &str =
    "its number was used before for another event; was the producer's database set back to an earlier state?";
const EVENT_ID_TAKEN: &str = "the application has another message with this event_id";

/// So many are gone through before it begins again with the oldest.
const WALK_ROWS_MAX: i64 = 10_000;

/// So much is read at once, and deleted at once.
const PORTION_ROWS_MAX: usize = 500;
const PORTION_BYTES_MAX: i64 = 8 << 20;

/// How often rows are looked for that no notification told of.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// How often a node that does not relay asks whether it should.
const LEAD_EVERY: Duration = Duration::from_secs(2);

const COUNT_EVERY: Duration = Duration::from_secs(5);

const PAUSE_MIN: Duration = Duration::from_millis(50);
/// While the producer's database cannot be reached, and while our own store takes nothing.
const RECONNECT_MAX: Duration = Duration::from_secs(15);
const STORE_MAX: Duration = Duration::from_secs(5);
/// A connection that held so long was a good one.
const STEADY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_pause_grows_to_its_limit_and_is_never_shorter_than_half_of_it() {
        let mut rng = StdRng::seed_from_u64(1);
        let longest = Duration::from_secs(5);
        for failures in 0..100 {
            let full = PAUSE_MIN.saturating_mul(1 << failures.min(16)).min(longest);
            let drawn = pause(failures, longest, &mut rng);
            assert!(full / 2 <= drawn && drawn <= full, "{failures}: {drawn:?} of {full:?}");
        }
    }
}
