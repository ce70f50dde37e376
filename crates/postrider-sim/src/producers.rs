//! Those who hand messages in: they offer, are answered or not, and offer again.

use crate::{
    chance::Chance,
    checker::No,
    config::{CHANNELS, EVENT_TYPES},
    faults::pass,
    node::Process,
    world::World,
};
use bytes::Bytes;
use postrider::ingest::NewEvent;
use postrider_engine::Timestamp;
use postrider_store::{AcceptError, Accepted, By, Content, Idempotency, StoreError};
use std::{sync::Arc, time::Duration};

/// Offers messages until enough deliveries are owed, or it takes too long.
pub async fn produce(world: Arc<World>) {
    let config = &world.config;
    let mut chance = Chance::new(config.seed, "load", 0);
    let load = config.load;
    let served: Vec<usize> = (0..config.app_rates.len())
        .filter(|app| config.endpoints.iter().any(|endpoint| endpoint.app == *app))
        .collect();
    let fan_out = (config.endpoints.len() as f64 / served.len().max(1) as f64 * 0.7).max(1.0);
    let burst_mean = (1 + load.burst_max) as f64 / 2.0;
    let gap = (load.horizon as f64 * burst_mean * fan_out / config.deliveries as f64).clamp(0.0, 600_000.0);
    let mut carry = 0.0;
    let mut number = 0;
    while world.judge().counts.deliveries + world.under_way() < config.deliveries
        && world.now() < load.horizon * 4
        && number < config.deliveries * 3 + 100
        && !world.is_over()
    {
        let burst = chance.between(1, load.burst_max as i64) as u64 + world.take_load();
        for _ in 0..burst {
            let app = if chance.percent(97) { chance.pick(&served) } else { chance.index(config.app_rates.len()) };
            let offer = Offer::draw(&mut chance, &world, number, app);
            number += 1;
            if offer.key.is_some() && chance.percent(load.doubled) {
                tokio::spawn(bring(Arc::clone(&world), offer.clone(), chance.draw()));
            }
            // The same key for something else: a mistake that must be refused.
            if offer.key.is_some() && chance.percent(2) {
                let other = Offer { number, event_id: None, ..offer.clone() };
                number += 1;
                tokio::spawn(bring(Arc::clone(&world), other, chance.draw()));
            }
            tokio::spawn(bring(Arc::clone(&world), offer, chance.draw()));
        }
        carry += gap * (chance.between(0, 2_000) as f64 / 1_000.0);
        let whole = carry as i64;
        carry -= whole as f64;
        if whole > 0 {
            pass(whole).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

#[derive(Clone)]
pub struct Offer {
    pub number: u64,
    pub app: usize,
    pub key: Option<u64>,
    event_id: Option<u64>,
    ordering_key: Option<u64>,
    event_type: usize,
    channel: Option<usize>,
    deliver_at: Option<i64>,
}

impl Offer {
    fn draw(chance: &mut Chance, world: &World, number: u64, app: usize) -> Self {
        let load = world.config.load;
        Self {
            number,
            app,
            key: chance.percent(load.idempotent).then_some(number),
            // Now and then one that was used before.
            event_id: chance.percent(load.event_ids).then(|| number - if chance.percent(10) { number % 7 } else { 0 }),
            ordering_key: chance.percent(load.keyed).then(|| chance.below(load.keys)),
            event_type: if chance.percent(60) { 0 } else { chance.index(EVENT_TYPES) },
            channel: chance.percent(load.on_channel).then(|| chance.index(CHANNELS)),
            deliver_at: chance
                .percent(load.delayed)
                .then(|| crate::checker::EPOCH + world.now() + chance.spread(500, 60_000)),
        }
    }

    fn event(&self) -> NewEvent {
        NewEvent {
            content: Content {
                event_type: format!("type.{}", self.event_type),
                event_id: self.event_id.map(|id| format!("event-{id}")),
                channels: self.channel.map(|channel| format!("channel.{channel}")).into_iter().collect(),
                tags: Vec::new(),
                content_type: None,
                ordering_key: self.ordering_key.map(|key| format!("key-{key}")),
                deliver_at: self.deliver_at.map(Timestamp::from_millis),
                received: None,
                payload: body(self.number),
            },
            payload_expires_at: None,
            idempotency: self.key.map(|key| Idempotency { key: wide(key), request: wide(self.number), chosen: true }),
            only: None,
            trace: None,
        }
    }
}

fn wide(number: u64) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The payload of a number: the same each time it is made.
pub fn body(number: u64) -> Bytes {
    let length = 8 + (number % 57) as usize;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend((8..length).map(|place| (number as usize * 31 + place) as u8));
    Bytes::from(bytes)
}

/// Offers a message until it is answered, if it has a key; else once.
async fn bring(world: Arc<World>, offer: Offer, seed: u64) {
    let mut chance = Chance::new(seed, "producer", offer.number);
    let event_id = offer.event_id.map(|id| id << 8 | offer.app as u64);
    let key = offer.key.map(|key| key << 8 | offer.app as u64);
    world.coming(1);
    let tries = if offer.key.is_some() { 8 } else { 1 };
    for _ in 0..tries {
        let Some(process) = world.some_process(&mut chance) else {
            pass(chance.spread(100, 3_000)).await;
            continue;
        };
        world.judge().offered(offer.number, offer.app, key, event_id);
        let patience = Duration::from_millis(chance.spread(500, 20_000).cast_unsigned());
        let answer = tokio::time::timeout(patience, hand_in(&world, &process, &offer)).await;
        let no = match answer {
            Err(_) => No::Unknown,
            Ok(Ok(None)) => No::NotNow,
            Ok(Ok(Some(accepted))) => {
                let (message, again) = match accepted {
                    Accepted::Now(message) => (message, false),
                    Accepted::Before(message) => (message, true),
                };
                world.judge().accepted(offer.number, message.raw(), again);
                break;
            }
            Ok(Err(AcceptError::EventIdTaken)) => No::EventIdTaken,
            Ok(Err(AcceptError::KeyReused)) => No::KeyReused,
            Ok(Err(AcceptError::Outdated | AcceptError::Store(_))) => No::NotNow,
        };
        world.judge().declined(offer.number, no);
        if matches!(no, No::EventIdTaken | No::KeyReused) {
            break;
        }
        pass(chance.spread(50, 3_000)).await;
    }
    world.coming(-1);
}

async fn hand_in(world: &World, process: &Process, offer: &Offer) -> Result<Option<Accepted>, AcceptError> {
    let by = By::Key(world.app(offer.app));
    let found = process.directory.application(&by).await.map_err(|error: StoreError| AcceptError::Store(error))?;
    let Some(app) = found else { return Ok(None) };
    process.ingest.accept(&app, offer.event()).await.map(Some)
}
