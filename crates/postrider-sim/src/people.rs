//! Those who look after endpoints, and now and then touch something: through the store's verbs, as the API does.

use crate::{chance::Chance, faults::pass, node::Process, receivers::url_of, settings::Settings, world::World};
use postrider::vault::{ActiveSecret, Private};
use postrider_engine::{EndpointKey, MessageKey, Timestamp, keys::first_key_at, policy::DisableReason};
use postrider_signature::Secret;
use postrider_store::{
    Application, By, DeadFilter, DeadKey, Disabled, Endpoint, Expect, Keep, Metadata, PutError, Store, StoreError,
    Task, TaskKey, TaskKind, TaskStatus,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

pub async fn keep_touching(world: Arc<World>, every: i64) {
    let mut chance = Chance::new(world.config.seed, "people", 0);
    loop {
        pass(chance.between(every / 2, every * 3 / 2)).await;
        if world.is_over() {
            return;
        }
        let Some(process) = world.some_process(&mut chance) else { continue };
        let seed = chance.draw();
        // Whoever waits for an answer does not keep others from asking.
        tokio::spawn(touch(Arc::clone(&world), process, seed));
    }
}

async fn touch(world: Arc<World>, process: Arc<Process>, seed: u64) {
    let mut chance = Chance::new(seed, "person", 0);
    let what = chance.below(100);
    let done = match what {
        0..20 => resend(&world, &process, &mut chance).await,
        20..50 => replay(&world, &process, &mut chance).await,
        50..60 => cancel(&world, &process, &mut chance).await,
        60..72 => pause(&world, &process, &mut chance).await,
        72..80 => heal(&world, &process, &mut chance).await,
        80..85 => {
            change_settings(&world, &mut chance).await;
            Ok(0)
        }
        85..88 => change_rate(&world, &process, &mut chance).await,
        88..90 => replace_endpoint(&world, &process, &mut chance).await,
        _ => start_task(&world, &process, &mut chance).await,
    };
    world.judge().person(what as i64, 0, 0, done.unwrap_or(-1));
}

/// What came of it, as a number for the trace; -1 if it could not be done.
type Done = Result<i64, PutError>;

async fn resend(world: &World, process: &Process, chance: &mut Chance) -> Done {
    let dead = chance.percent(30);
    let Some((message, endpoint, _)) = world.judge().some_delivery(chance.draw(), dead) else { return Ok(0) };
    let (message, endpoint) = (MessageKey::new(message), EndpointKey::new(endpoint));
    process.store.resend(message, endpoint, process.clock.now(), None).await?;
    Ok(1)
}

async fn replay(world: &World, process: &Process, chance: &mut Chance) -> Done {
    let Some((message, endpoint, app)) = world.judge().some_delivery(chance.draw(), true) else { return Ok(0) };
    let key = DeadKey { message: MessageKey::new(message), endpoint: EndpointKey::new(endpoint) };
    let app = world.app(app as usize);
    let at = process.clock.now();
    if chance.percent(30) {
        // Two at once make one cycle.
        let (one, other) =
            tokio::join!(process.store.replay(app, key, at, None), process.store.replay(app, key, at, None));
        return Ok(i64::from(one?) + i64::from(other?));
    }
    Ok(i64::from(process.store.replay(app, key, at, None).await?))
}

async fn cancel(world: &World, process: &Process, chance: &mut Chance) -> Done {
    let Some((message, endpoint, app)) = world.judge().some_delivery(chance.draw(), false) else { return Ok(0) };
    let endpoint = chance.percent(50).then(|| EndpointKey::new(endpoint));
    let app = world.app(app as usize);
    let count = process.store.cancel_message(app, MessageKey::new(message), endpoint, process.clock.now()).await?;
    Ok(count as i64)
}

async fn pause(world: &Arc<World>, process: &Process, chance: &mut Chance) -> Done {
    let Some((key, app)) = world.some_endpoint(chance) else { return Ok(0) };
    let at = process.clock.now();
    let disabled = Some(Disabled { why: DisableReason::Manual, at });
    put(world, process, app, key, |endpoint| endpoint.disabled = disabled).await?;
    let (length, seed, world) = (chance.spread(500, 120_000), chance.draw(), Arc::clone(world));
    tokio::spawn(async move {
        pass(length).await;
        free(&world, app, key, seed).await;
    });
    Ok(1)
}

/// Sets a paused endpoint going again, however often it takes.
pub async fn free(world: &Arc<World>, app: usize, key: EndpointKey, seed: u64) {
    let mut chance = Chance::new(seed, "free", 0);
    for _ in 0..100 {
        if let Some(process) = world.some_process(&mut chance) {
            let done = tokio::time::timeout(
                std::time::Duration::from_secs(10),
                put(world, &process, app, key, |endpoint| endpoint.disabled = None),
            );
            if matches!(done.await, Ok(Ok(_))) {
                return;
            }
        }
        pass(500).await;
    }
}

async fn heal(world: &World, process: &Process, chance: &mut Chance) -> Done {
    let Some((key, _)) = world.some_endpoint(chance) else { return Ok(0) };
    process.store.reset_health(key).await?;
    Ok(1)
}

/// Everything but the order may be changed while messages are on their way.
pub async fn change_settings(world: &Arc<World>, chance: &mut Chance) {
    let Some(process) = world.some_process(chance) else { return };
    let Some((key, app)) = world.some_endpoint(chance) else { return };
    let drawn = Settings::draw(chance, false);
    let Ok(Some(old)) = process.store.endpoint(world.app(app), By::Key(key)).await else { return };
    let Some(before) = world.judge().settings_of(key.raw()) else { return };
    let settings = Arc::new(Settings { ordering: before.ordering, ..drawn });
    world.judge().know_settings(&settings);
    let endpoint =
        Endpoint { version: old.version + 1, rules: Some(settings.json()), rate_limit: settings.rate, ..old.clone() };
    let _ = process.store.put_endpoint(endpoint, Expect::Version(old.version), None).await;
}

async fn change_rate(world: &World, process: &Process, chance: &mut Chance) -> Done {
    let app = world.app(chance.index(world.config.app_rates.len()));
    let Some(old) = process.store.application(By::Key(app)).await? else { return Ok(0) };
    let rate_limit = chance.percent(50).then(|| chance.spread(20, 400) as u32);
    let changed = Application { version: old.version + 1, rate_limit, ..old.clone() };
    process.store.put_application(changed, Expect::Version(old.version), None).await?;
    Ok(1)
}

async fn replace_endpoint(world: &Arc<World>, process: &Process, chance: &mut Chance) -> Done {
    let Some((key, app)) = world.some_endpoint(chance) else { return Ok(0) };
    let Some(like) = world.judge().receiver_of(key.raw()) else { return Ok(0) };
    if !process.store.delete_endpoint(world.app(app), key, process.clock.now()).await? {
        return Ok(0);
    }
    process.tasks.wake();
    // By the plan of the one it follows, so that it is owed the same.
    let plan = world.judge().plan_of(like);
    let receiver = world.receivers().add(plan);
    world.judge().know_receiver(receiver, plan);
    make_endpoint(world, process, app, plan, receiver).await?;
    Ok(1)
}

async fn start_task(world: &World, process: &Process, chance: &mut Chance) -> Done {
    let Some((endpoint, app)) = world.some_endpoint(chance) else { return Ok(0) };
    let now = process.clock.now();
    let (since, until) = (now.as_millis() - chance.spread(1_000, 600_000), now.as_millis());
    let endpoint = endpoint.raw();
    let kind = match chance.below(4) {
        0 => TaskKind::Recover { endpoint, since, until },
        1 => TaskKind::ReplayDead {
            filter: DeadFilter { endpoint: Some(endpoint), but_cancelled: true, ..DeadFilter::default() },
        },
        2 => TaskKind::Cancel { endpoint, before: since },
        _ => TaskKind::Resume { endpoint, keep: chance.pick(&[Keep::None, Keep::NewestPerKey, Keep::Since(since)]) },
    };
    let key = process.store.mint(now).await?;
    let called_back = match kind {
        TaskKind::Cancel { before: since, .. } | TaskKind::Resume { keep: Keep::Since(since), .. } => {
            Some(first_key_at(Timestamp::from_millis(since)))
        }
        TaskKind::Resume { keep: Keep::None, .. } => Some(key),
        TaskKind::Resume { keep: Keep::All | Keep::NewestPerKey, .. }
        | TaskKind::Recover { .. }
        | TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::ReplayDead { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => None,
    };
    // Whether it was begun is not known if the answer is lost.
    if let Some(below) = called_back {
        world.judge().calls_back(endpoint, below);
    }
    let task = Task {
        key: TaskKey(key),
        app: world.app(app),
        kind,
        total: None,
        done: 0,
        changed: 0,
        status: TaskStatus::Running,
        created_at: now,
        updated_at: now,
    };
    process.store.start_task(task, None).await?;
    process.tasks.wake();
    Ok(1)
}

async fn put(world: &World, process: &Process, app: usize, key: EndpointKey, change: impl Fn(&mut Endpoint)) -> Done {
    let Some(old) = process.store.endpoint(world.app(app), By::Key(key)).await? else { return Ok(0) };
    let mut endpoint = Endpoint { version: old.version + 1, ..old.clone() };
    change(&mut endpoint);
    process.store.put_endpoint(endpoint, Expect::Version(old.version), None).await?;
    Ok(1)
}

/// Makes an endpoint by its plan.
pub async fn make_endpoint(
    world: &Arc<World>,
    process: &Process,
    app: usize,
    plan: usize,
    receiver: usize,
) -> Result<EndpointKey, PutError> {
    let (now, plan) = (process.clock.now(), &world.config.endpoints[plan]);
    let key = EndpointKey::new(process.store.mint(now).await?);
    let settings = Arc::new(plan.settings.clone());
    world.judge().know_settings(&settings);
    let secret = Secret::from_bytes(&[3; 32]).expect("32 bytes are a secret").into();
    let private = Private { secrets: vec![ActiveSecret { secret, expires_at: None }], ..Private::default() };
    let endpoint = Endpoint {
        key,
        app: world.app(app),
        version: 1,
        uid: None,
        url: url_of(receiver),
        description: String::new(),
        disabled: None,
        event_types: (!plan.event_types.is_empty())
            .then(|| plan.event_types.iter().map(|number| format!("type.{number}")).collect()),
        channels: plan.channel.map(|channel| vec![format!("channel.{channel}")]),
        metadata: Metadata::new(),
        rate_limit: settings.rate,
        rules: Some(settings.json()),
        sealed: world.vault.seal(key, &private, &mut ChaCha8Rng::seed_from_u64(key.raw().cast_unsigned())),
        created_at: now,
        updated_at: now,
    };
    process.store.put_endpoint(endpoint, Expect::Absent, None).await?;
    Ok(key)
}

pub async fn make_application(world: &World, process: &Process, rate: Option<u32>) -> Result<Application, StoreError> {
    let now: Timestamp = process.clock.now();
    let application = Application {
        key: postrider_engine::AppKey::new(process.store.mint(now).await?),
        version: 1,
        uid: None,
        name: format!("of seed {}", world.config.seed),
        rate_limit: rate,
        rules: None,
        source: None,
        pollers: None,
        metadata: Metadata::new(),
        created_at: now,
        updated_at: now,
    };
    match process.store.put_application(application.clone(), Expect::Absent, None).await {
        Ok(()) => Ok(application),
        Err(PutError::Store(error)) => Err(error),
        Err(other) => Err(StoreError::Database(other.to_string())),
    }
}
