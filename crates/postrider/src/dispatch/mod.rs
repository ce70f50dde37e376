//! Drives the engine: tells it what happened, and carries out what it says.
//!
//! One task owns the engine's state and never waits for the network or the disk; requests, loads and commits
//! run beside it and report back. The way of one delivery is in `delivery.rs`.

mod delivery;
mod notices;

use crate::{
    clock,
    directory::{AppEntry, Directory},
    ids::IdCodec,
    tasks::Tasks,
    transport::Transport,
};
use delivery::{Cargo, Carrier, Settled};
use notices::Notices;
pub use notices::reason_name;
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, Timestamp, Trigger,
    lanes::{Cancel, Command, Dispatcher, LaneSettings, Limits, Parcel, Rest},
    policy::{DisableRules, Health, Next, Ordering, Progress},
};
use postrider_store::{By, Cancelled, Committed, Loaded, Settlement, Shards, Store, StoreError, Waiting};
use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// How long to wait before asking a store again that could not answer.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Reports taken before it is asked again what to do.
const EVENTS_PER_TURN: usize = 1_024;

/// What a delivery keeps in memory besides its payload.
const PARCEL_BYTES: usize = 512;

/// What the tasks beside the dispatcher report.
enum Event {
    Answered(Box<Settled>),
    Settled(Arc<Vec<Settlement>>),
    Loaded(EndpointKey, Loaded),
    LoadFailed(EndpointKey),
    Spilled(Vec<DeliveryId>),
    LaneFound {
        endpoint: EndpointKey,
        settings: LaneSettings,
        due: Timestamp,
    },
    Healed {
        endpoint: EndpointKey,
        settings: LaneSettings,
    },
    AppRead(AppKey, Option<Arc<AppEntry>>),
    /// An endpoint of this application was disabled.
    Disabled(AppKey),
    EndpointGone(EndpointKey),
}

pub struct Dispatch {
    engine: Dispatcher<Cargo>,
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    carrier: Arc<Carrier>,
    tasks: Arc<Tasks>,
    events: mpsc::UnboundedSender<Event>,
    inbox: mpsc::UnboundedReceiver<Event>,
    /// Settled by the engine, waiting for the commit before theirs to end.
    unsettled: Vec<Settlement>,
    committing: bool,
    /// Lanes that had something waiting when the last run ended and have not been opened since.
    unopened: HashMap<EndpointKey, Timestamp>,
    /// Applications whose settings are being read.
    reading: HashMap<AppKey, Reading>,
    notices: Notices,
    in_flight: metrics::Gauge,
}

impl Dispatch {
    pub fn new(
        store: Arc<dyn Store>,
        directory: Arc<Directory>,
        transport: Transport,
        ids: IdCodec,
        tasks: Arc<Tasks>,
    ) -> Self {
        let (events, inbox) = mpsc::unbounded_channel();
        Self {
            engine: Dispatcher::new(Limits::default()),
            notices: Notices::new(ids.clone()),
            carrier: Arc::new(Carrier::new(Arc::clone(&directory), transport, ids)),
            store,
            directory,
            tasks,
            events,
            inbox,
            unsettled: Vec::new(),
            committing: false,
            unopened: HashMap::new(),
            reading: HashMap::new(),
            in_flight: metrics::gauge!("postrider_requests_in_flight"),
        }
    }

    /// Runs until told to stop and what is on the network has been settled.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut committed = self.store.committed();
        tokio::select! {
            () = self.take_over() => {}
            _ = stop.changed() => return,
        }
        let mut stopping = false;
        loop {
            let now = clock::now();
            if !stopping {
                while let Some(command) = self.engine.next(now) {
                    self.carry_out(command, now);
                }
            }
            self.commit();
            self.in_flight.set(self.engine.in_flight() as f64);
            if stopping && self.engine.in_flight() == 0 && !self.committing {
                return;
            }
            let nap = self.engine.sleep_until().filter(|_| !stopping).map(|at| Instant::now() + at.since(clock::now()));
            let nap = pin!(async {
                match nap {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            });
            tokio::select! {
                Some(event) = self.inbox.recv() => self.take(event),
                Some(news) = committed.recv(), if !stopping => self.hear(news),
                Ok(()) = stop.changed(), if !stopping => stopping = *stop.borrow(),
                () = nap => {}
            }
            // What else has come meanwhile is taken along, from both sides, so that neither waits for the other.
            for _ in 0..EVENTS_PER_TURN {
                let Ok(event) = self.inbox.try_recv() else { break };
                self.take(event);
            }
            while !stopping && let Ok(news) = committed.try_recv() {
                self.hear(news);
            }
        }
    }

    fn carry_out(&mut self, command: Command<Cargo>, now: Timestamp) {
        match command {
            Command::Send(parcel) => {
                let carrier = Arc::clone(&self.carrier);
                let promise = Promise::new(self.events.clone(), &parcel, now);
                tokio::spawn(async move { promise.keep(carrier.deliver(parcel).await) });
            }
            Command::Bury(parcel) => match parcel.id.trigger {
                Trigger::Scheduled => {
                    let _ = self.events.send(Event::Answered(Box::new(self.carrier.end_by_breaker(parcel))));
                }
                // Whoever asked for it wants to see it tried.
                Trigger::Manual => self.carry_out(Command::Send(parcel), now),
            },
            Command::Load { endpoint, ordering, limit } => {
                let (store, events) = (Arc::clone(&self.store), self.events.clone());
                tokio::spawn(async move {
                    let event = match store.load(endpoint, ordering, now, limit).await {
                        Ok(loaded) => Event::Loaded(endpoint, loaded),
                        Err(_) => Event::LoadFailed(endpoint),
                    };
                    let _ = events.send(event);
                });
            }
            Command::Spill(deliveries) => {
                let (store, events) = (Arc::clone(&self.store), self.events.clone());
                tokio::spawn(async move {
                    insist(|| store.spill(store.tenure(), deliveries.clone(), now)).await;
                    let _ = events.send(Event::Spilled(deliveries.into_iter().map(|(id, _)| id).collect()));
                });
            }
        }
    }

    /// One commit at a time: what is settled meanwhile goes with the next one.
    fn commit(&mut self) {
        if self.committing || self.unsettled.is_empty() {
            return;
        }
        self.committing = true;
        let batch = Arc::new(std::mem::take(&mut self.unsettled));
        let (store, events) = (Arc::clone(&self.store), self.events.clone());
        tokio::spawn(async move {
            insist(|| store.settle(store.tenure(), Arc::clone(&batch))).await;
            let _ = events.send(Event::Settled(batch));
        });
    }

    fn take(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Answered(settled) => {
                let Settled { mut settlement, verdict } = *settled;
                if let Some(step) = self.engine.answered(settlement.id, verdict.as_ref(), now) {
                    settlement.health = Some(step.health);
                    settlement.disable = self.notices.of(settlement.id.endpoint, &step, now);
                }
                self.unsettled.push(settlement);
            }
            Event::Settled(batch) => {
                self.committing = false;
                for settlement in batch.iter() {
                    self.engine.settled(settlement.id, due(settlement.next), now);
                    // The lane has shut itself already; what holds from now on is what was written.
                    if settlement.disable.is_some() {
                        self.reread_endpoint(settlement.id.endpoint);
                    }
                }
            }
            Event::Loaded(endpoint, loaded) => {
                let parcels = loaded.deliveries.into_iter().map(|waiting| stored_parcel(waiting, now)).collect();
                let rest = Rest { more: loaded.more, next_due: loaded.next_due, blocked: loaded.blocked };
                self.engine.loaded(endpoint, parcels, rest, now);
            }
            Event::LoadFailed(endpoint) => self.engine.load_failed(endpoint, now, STORE_PAUSE),
            Event::Spilled(deliveries) => self.engine.spilled(&deliveries, now),
            Event::LaneFound { endpoint, settings, due } => {
                self.unopened.remove(&endpoint);
                self.engine.expect(endpoint, self.newest(endpoint, settings), due, now);
            }
            Event::Healed { endpoint, settings } => {
                self.engine.set_health(endpoint, self.newest(endpoint, settings), Health::default(), now);
            }
            Event::AppRead(app, entry) => match self.reading.remove(&app) {
                Some(Reading::Outdated) => self.read(app),
                Some(Reading::Current) | None => self.adopt(app, entry, now),
            },
            Event::Disabled(app) => self.reread(app),
            Event::EndpointGone(endpoint) => {
                self.engine.set_lane(endpoint, gone_lane(AppKey::new(0), None), now);
            }
        }
    }

    /// What was just committed: new messages go straight to their lanes.
    fn hear(&mut self, news: Vec<Committed>) {
        let now = clock::now();
        for committed in news {
            match committed {
                Committed::Message { letter, owed } => {
                    let weight = PARCEL_BYTES + letter.payload.as_ref().map_or(0, bytes::Bytes::len);
                    for endpoint in owed {
                        let settings = self.settings_of(endpoint, letter.app);
                        if let Some(due) = self.unopened.remove(&endpoint) {
                            self.engine.expect(endpoint, settings, due, now);
                        }
                        let parcel = Parcel {
                            id: DeliveryId { endpoint, message: letter.message, trigger: Trigger::Scheduled },
                            cycle: 0,
                            progress: Progress::default(),
                            queued_at: letter.accepted_at,
                            due: letter.accepted_at,
                            order: letter.order,
                            held: None,
                            handed: true,
                            since: now,
                            weight,
                            cargo: Arc::clone(&letter),
                        };
                        self.engine.hand_over(parcel, settings, now);
                    }
                }
                Committed::Waiting { endpoint, due } => match self.directory.endpoint_at_hand(endpoint) {
                    // At once, because what is committed next may belong behind it.
                    Some(entry) => self.engine.expect(endpoint, entry.lane, due, now),
                    None => self.find_lane(endpoint, due),
                },
                Committed::Settings { app } => self.reread(app),
                Committed::EventTypes => self.directory.event_types_changed(),
                Committed::Work => self.tasks.wake(),
                Committed::Offered { .. } | Committed::Wanted { .. } | Committed::Deposed => {}
                // Whoever set it back means now; what is read later may be what an outcome under way wrote since.
                Committed::Health { endpoint } => match self.directory.endpoint_at_hand(endpoint) {
                    Some(entry) => self.engine.set_health(endpoint, entry.lane, Health::default(), now),
                    None => self.find_healed(endpoint),
                },
                Committed::Cancelled { endpoint, which } => {
                    let which = match which {
                        Cancelled::One(message) => Cancel::One(message),
                        Cancelled::Before(message) => Cancel::Before(message),
                    };
                    self.engine.cancel(endpoint, which, now);
                }
            }
        }
    }

    /// A lane whose settings are not at hand starts parked, and is freed when they have been read.
    fn settings_of(&mut self, endpoint: EndpointKey, app: AppKey) -> LaneSettings {
        match self.directory.endpoint_at_hand(endpoint) {
            Some(entry) => entry.lane,
            None => {
                if !self.reading.contains_key(&app) {
                    self.read(app);
                }
                LaneSettings { parked: true, gone: false, unknown: true, ..gone_lane(app, None) }
            }
        }
    }

    /// What is known by now, for settings that were read some time ago.
    fn newest(&self, endpoint: EndpointKey, read: LaneSettings) -> LaneSettings {
        self.directory.endpoint_at_hand(endpoint).map_or(read, |entry| entry.lane)
    }

    /// Settings of this application changed. Of changes that come close together the last one counts: what a read
    /// brings that began before it is thrown away.
    fn reread(&mut self, app: AppKey) {
        self.directory.changed(app);
        match self.reading.get_mut(&app) {
            Some(reading) => *reading = Reading::Outdated,
            None => self.read(app),
        }
    }

    fn read(&mut self, app: AppKey) {
        self.reading.insert(app, Reading::Current);
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            let by = By::Key(app);
            let entry = insist(|| directory.application(&by)).await;
            let _ = events.send(Event::AppRead(app, entry));
        });
    }

    fn reread_endpoint(&self, endpoint: EndpointKey) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            let event = match insist(|| directory.endpoint(endpoint)).await {
                Some(entry) => Event::Disabled(entry.lane.app),
                None => Event::EndpointGone(endpoint),
            };
            let _ = events.send(event);
        });
    }

    /// Gives every lane of an application its settings. Lanes whose endpoint is gone are freed, so that what they
    /// hold comes to its end.
    fn adopt(&mut self, app: AppKey, entry: Option<Arc<AppEntry>>, now: Timestamp) {
        let mut left: HashSet<EndpointKey> = self.engine.lanes_of(app).into_iter().collect();
        for endpoint in entry.iter().flat_map(|entry| &entry.endpoints) {
            left.remove(&endpoint.key);
            self.engine.set_lane(endpoint.key, endpoint.lane, now);
        }
        // They still share the application's rate.
        let gone = gone_lane(app, entry.as_ref().and_then(|entry| entry.application.rate_limit));
        for endpoint in left {
            self.engine.set_health(endpoint, gone, Health::default(), now);
            self.engine.set_lane(endpoint, gone, now);
        }
        self.tasks.wake();
    }

    /// Before anything is sent the breakers must be as they were, and it must be known which lanes have something waiting:
    /// what is new belongs behind it.
    async fn take_over(&mut self) {
        for (endpoint, health) in insist(|| self.store.healths(Shards::ALL)).await {
            if let Some(entry) = insist(|| self.directory.endpoint(endpoint)).await {
                self.engine.set_health(endpoint, entry.lane, health, clock::now());
            }
        }
        let found = insist(|| self.store.lanes(Shards::ALL)).await;
        self.unopened = found.iter().map(|lane| (lane.endpoint, lane.next_due)).collect();
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            for lane in found {
                announce_lane(&directory, &events, lane.endpoint, lane.next_due).await;
            }
        });
    }

    fn find_healed(&self, endpoint: EndpointKey) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            if let Some(entry) = insist(|| directory.endpoint(endpoint)).await {
                let _ = events.send(Event::Healed { endpoint, settings: entry.lane });
            }
        });
    }

    fn find_lane(&self, endpoint: EndpointKey, due: Timestamp) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move { announce_lane(&directory, &events, endpoint, due).await });
    }
}

/// Whether what is being read will still be right when it comes.
enum Reading {
    Current,
    Outdated,
}

/// That something will be heard of every parcel that is sent out, even if its task dies on the way.
struct Promise {
    events: mpsc::UnboundedSender<Event>,
    settled: Option<Box<Settled>>,
}

impl Promise {
    fn new(events: mpsc::UnboundedSender<Event>, parcel: &Parcel<Cargo>, now: Timestamp) -> Self {
        Self { events, settled: Some(Box::new(Settled::untouched(parcel, now))) }
    }

    fn keep(mut self, settled: Settled) {
        if let Some(slot) = &mut self.settled {
            **slot = settled;
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(settled) = self.settled.take() {
            let _ = self.events.send(Event::Answered(settled));
        }
    }
}

async fn announce_lane(
    directory: &Directory,
    events: &mpsc::UnboundedSender<Event>,
    endpoint: EndpointKey,
    due: Timestamp,
) {
    let settings = match insist(|| directory.endpoint(endpoint)).await {
        Some(entry) => entry.lane,
        None => gone_lane(AppKey::new(0), None),
    };
    let _ = events.send(Event::LaneFound { endpoint, settings, due });
}

/// The lane of an endpoint that was deleted: whatever is in it is sent on its way to the dead letters.
fn gone_lane(app: AppKey, app_rate: Option<u32>) -> LaneSettings {
    LaneSettings {
        app,
        app_rate,
        in_flight_max: 100,
        rate: None,
        parked: false,
        ordering: Ordering::None,
        breaker: None,
        disable: DisableRules { failing_for: None, permanent_streak: None },
        gone: true,
        unknown: false,
    }
}

fn stored_parcel(waiting: Waiting, now: Timestamp) -> Parcel<Cargo> {
    Parcel {
        id: waiting.id,
        cycle: waiting.cycle,
        progress: waiting.progress,
        queued_at: waiting.queued_at,
        due: waiting.due,
        order: waiting.order,
        held: None,
        handed: false,
        since: now,
        weight: PARCEL_BYTES + waiting.letter.payload.as_ref().map_or(0, bytes::Bytes::len),
        cargo: waiting.letter,
    }
}

fn due(next: Next) -> Option<Timestamp> {
    match next {
        Next::Retry { due, .. } | Next::Postponed { due } => Some(due),
        Next::Delivered | Next::Dead(_) | Next::Nothing => None,
    }
}

/// The store's trouble is not the delivery's: what has happened is kept in memory until it can be written.
async fn insist<T, F>(mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            // The store closes last, when nobody needs the answer any more.
            Err(StoreError::Closed) => std::future::pending().await,
            Err(error) => {
                tracing::warn!(%error, "the store could not answer; asking again");
                tokio::time::sleep(STORE_PAUSE).await;
            }
        }
    }
}
