//! What a seed draws: not only what happens, but to what.
//!
//! Each seed has a deployment, endpoints, a load and troubles of its own, and lacks some kinds of trouble altogether: two
//! faults that always come together hide one another.

use crate::{
    chance::Chance,
    faults::{FaultKind, Mask},
    settings::Settings,
    temper::Temper,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Faults until the end; nothing wrong may ever happen.
    Safety,
    /// At a drawn moment all is mended, and then everything must come to its end.
    Liveness,
}

/// What is to be less than the seed draws. Printed by the shrinker, and read by the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub nodes_max: Option<usize>,
    pub apps_max: Option<usize>,
    pub endpoints_max: Option<usize>,
    /// Kinds of faults that do not happen.
    pub without: Mask,
    /// No person touches anything.
    pub no_people: bool,
    /// All receivers are well.
    pub well: bool,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub mode: Mode,
    pub deliveries: u64,
    pub sharing: Sharing,
    pub nodes: usize,
    /// Requests per second of each application.
    pub app_rates: Vec<Option<u32>>,
    pub endpoints: Vec<EndpointPlan>,
    pub load: Load,
    /// With the mean time between two of them.
    pub faults: Vec<(FaultKind, i64)>,
    /// Mean time between two doings of a person; `None`: nobody does anything.
    pub people: Option<i64>,
    /// Milliseconds that a read and a commit take, at least and at most.
    pub read: (i64, i64),
    pub write: (i64, i64),
    /// How far nodes' clocks may be apart when they start.
    pub skew: i64,
    /// Time for what was accepted to come to its end before the world stops, in safety mode.
    pub tail: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Alone,
    Many { lease: i64, beat: i64 },
}

#[derive(Clone, Debug)]
pub struct EndpointPlan {
    pub app: usize,
    pub settings: Settings,
    /// Which of the event types it wants; all, if there are none.
    pub event_types: Vec<usize>,
    /// Which channel it listens to.
    pub channel: Option<usize>,
    pub tempers: Vec<(i64, Temper)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Over which time the messages come.
    pub horizon: i64,
    pub burst_max: u64,
    pub keys: u64,
    /// Per cent of messages: with an ordering key, an idempotency key, an event id, a time before which they wait.
    pub keyed: u64,
    pub idempotent: u64,
    pub event_ids: u64,
    pub delayed: u64,
    pub on_channel: u64,
    /// Per cent of offers that are made a second time at once.
    pub doubled: u64,
}

pub const EVENT_TYPES: usize = 4;
pub const CHANNELS: usize = 3;

impl Config {
    pub fn draw(seed: u64, deliveries: u64, mode: Mode, overrides: &Overrides) -> Self {
        let mut chance = Chance::new(seed, "deployment", 0);
        let many = chance.percent(65);
        let nodes = if many { chance.between(1, 4) as usize } else { 1 };
        let sharing = if many {
            let lease = chance.spread(3_000, 15_000);
            Sharing::Many { lease, beat: (lease / chance.between(4, 8)).max(300) }
        } else {
            Sharing::Alone
        };
        let apps = chance.between(1, 4) as usize;
        let fast = chance.percent(50);
        let skew = if chance.percent(50) { 0 } else { chance.spread(1, 2_000) };
        let long = !many && chance.percent(30);
        let count = chance.spread(1, 14) as usize;
        let mut load_chance = Chance::new(seed, "load plan", 0);
        let load = Load {
            horizon: load_chance.spread(20_000, if long { 3_600_000 } else { 600_000 }),
            burst_max: load_chance.pick(&[1, 1, 3, 20, 200]),
            keys: load_chance.pick(&[1, 2, 10, 1_000]),
            keyed: load_chance.pick(&[0, 30, 90]),
            idempotent: load_chance.pick(&[10, 50]),
            event_ids: load_chance.pick(&[0, 0, 20]),
            delayed: load_chance.pick(&[0, 0, 2, 10]),
            on_channel: load_chance.pick(&[0, 40]),
            doubled: load_chance.pick(&[0, 5, 20]),
        };
        let endpoints = (0..count.min(overrides.endpoints_max.unwrap_or(usize::MAX)).max(1))
            .map(|number| EndpointPlan::draw(seed, number as u64, apps, &load, overrides, long))
            .collect();
        let mut fault_chance = Chance::new(seed, "fault plan", 0);
        let quiet = fault_chance.percent(20);
        let busy = fault_chance.pick(&[15, 40, 70]);
        let faults = FaultKind::ALL
            .into_iter()
            .filter_map(|kind| {
                let on = fault_chance.percent(busy);
                let rate = fault_chance.spread(2, 30);
                let every = (load.horizon / rate).max(1_500);
                let fits = match sharing {
                    Sharing::Alone => !kind.needs_many(),
                    Sharing::Many { .. } => !kind.needs_alone(),
                };
                (on && fits && !(quiet && kind.is_ours()) && !overrides.without.has(kind)).then_some((kind, every))
            })
            .collect();
        let mut person = Chance::new(seed, "people plan", 0);
        let people = person.percent(75).then(|| (load.horizon / person.spread(5, 200)).max(20));
        Self {
            seed,
            mode,
            deliveries,
            sharing,
            nodes: nodes.min(overrides.nodes_max.unwrap_or(usize::MAX)).max(1),
            app_rates: (0..apps)
                .map(|_| chance.percent(25).then(|| chance.spread(5, 400) as u32))
                .take(overrides.apps_max.unwrap_or(usize::MAX).max(1))
                .collect(),
            endpoints,
            load,
            faults,
            people: people.filter(|_| !overrides.no_people),
            read: if fast { (0, 0) } else { (0, chance.spread(1, 30)) },
            write: if fast { (0, 1) } else { (1, chance.spread(2, 60)) },
            skew,
            tail: load.horizon / 2 + 60_000,
        }
    }
}

impl EndpointPlan {
    fn draw(seed: u64, number: u64, apps: usize, load: &Load, overrides: &Overrides, long: bool) -> Self {
        let mut chance = Chance::new(seed, "endpoint", number);
        let settings = Settings::draw(&mut chance, long);
        let tempers = Temper::draw_all(&mut chance, load.horizon);
        Self {
            app: chance.index(apps.min(overrides.apps_max.unwrap_or(usize::MAX)).max(1)),
            event_types: if chance.percent(40) { vec![0, 1 + chance.index(EVENT_TYPES - 1)] } else { Vec::new() },
            channel: (load.on_channel > 0 && chance.percent(20)).then(|| chance.index(CHANNELS)),
            tempers: if overrides.well { vec![(0, Temper::Healthy)] } else { tempers },
            settings,
        }
    }
}
