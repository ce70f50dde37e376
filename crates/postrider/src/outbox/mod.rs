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

mod desk;
pub(crate) mod row;

pub use desk::Desk;

use crate::config::OutboxSettings;
use desk::{End, Offer, Past, Prepared};
use metrics::{Counter, Gauge};
use postrider_store::outbox::{Found, Identity, Outbox, OutboxError, Refusal, Standing};
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
                Ok(Prepared::Offer(offer)) => offers.push(*offer),
                Ok(Prepared::Refused(refusal)) => refusals.push(refusal),
                // Nothing has been offered yet, so nothing is lost by beginning again.
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        let lost = self.take(outbox, &offers).await?;
        let (mut stored, mut held) = (Vec::new(), None);
        let mut chains = JoinSet::new();
        for mut chain in row::chains(offers, Offer::links) {
            if let Some(at) = chain.iter().position(|offer| lost.contains(&offer.id)) {
                // Whoever took it offers it, and what comes after it has to wait for that.
                chain.truncate(at);
                held = Some("another node takes rows as well".to_owned());
            }
            chains.spawn(Arc::clone(&self.desk).offer_in_order(chain));
        }
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

    /// Writes down which rows are about to be offered for the first time. Tells which of them somebody else has taken or
    /// deleted since they were read.
    async fn take(&self, outbox: &Outbox, offers: &[Offer]) -> Result<BTreeSet<i64>, OutboxError> {
        let new = offers.iter().filter(|offer| offer.past == Past::New);
        let new: Vec<(i64, String)> = new.map(|offer| (offer.id, self.desk.ids.id_of(offer.app()))).collect();
        let mut lost: BTreeSet<i64> = new.iter().map(|(id, _)| *id).collect();
        if !new.is_empty() {
            for taken in outbox.take(&new, self.desk.known_for()).await? {
                lost.remove(&taken);
            }
        }
        Ok(lost)
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
