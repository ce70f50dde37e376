//! Random work, done by a store and by the model side by side. Every answer is compared, and in the end every list.
//!
//! A step names things by small numbers ("the third application there is"), so that a sequence still makes sense
//! after steps have been taken out of it: that is what lets a failure shrink to a handful of steps.

use super::{
    Grain, Harness, fixtures,
    fixtures::{START, all_waiting, bury_all, finish_task, manual, tidy_up, whole},
    model::{Due, Model, Reception, Wait, on_page},
};
use crate::*;
use bytes::Bytes;
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    policy::{Breaker, DeathReason, Delay, DisableReason, Health, Next, Ordering, Progress},
};
use proptest::{prelude::*, test_runner::TestRunner};
use std::{collections::BTreeSet, fmt::Debug, sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Runs as many sequences as `PROPTEST_CASES` says, or as many as take a few seconds.
pub fn agree_with_the_model<H: Harness>() {
    let usual = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { H::SEQUENCES };
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4_000, ..usual };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    let sequence = (any::<bool>(), prop::collection::vec(step(), 1..80));
    let outcome = TestRunner::new(config).run(&sequence, |(fine, steps)| {
        let grain = if fine { Grain::Fine } else { Grain::Usual };
        runtime.block_on(run::<H>(grain, steps));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

async fn run<H: Harness>(grain: Grain, steps: Vec<Step>) {
    let mut play = Play::<H>::begin(grain).await;
    for step in steps {
        play = play.take(step).await;
    }
    play.compare_all().await;
}

#[derive(Clone, Debug)]
enum Step {
    Pass {
        time: Duration,
    },
    Accept(Offer),
    Settle(Vec<(u8, Fate, Option<u8>)>),
    Spill {
        share: u8,
    },
    Load {
        endpoint: u8,
        ordering: Ordering,
        limit: usize,
    },
    ResetHealth(u8),
    /// With `taken_up`, the dispatcher looks into the lane at once, as it does when it hears of it.
    Resend {
        delivery: u8,
        key: Option<Key>,
        taken_up: bool,
    },
    Cancel {
        delivery: u8,
        everywhere: bool,
    },
    Replay {
        letter: u8,
        key: Option<Key>,
    },
    PutApplication {
        which: Which,
        uid: Option<u8>,
        key: Option<Key>,
    },
    DeleteApplication(u8),
    PutEndpoint {
        app: u8,
        which: Which,
        uid: Option<u8>,
        key: Option<Key>,
    },
    DeleteEndpoint(u8),
    Bury,
    PutEventType {
        name: u8,
        fresh: bool,
        stale: bool,
        archived: bool,
    },
    DeleteEventType(u8),
    PutNote(u8, u8),
    Remember(Key),
    ExpungeMessage(u8),
    ExpungeAttempt(u8),
    StartTask {
        endpoint: u8,
        since: u8,
        until: u8,
        key: Option<Key>,
    },
    FinishTasks,
    Tidy {
        history: Duration,
    },
    ListMessages {
        app: u8,
        filter: Filter,
        paging: Paging,
    },
    ListOwed {
        endpoint: u8,
        filter: Filter,
        states: u8,
        paging: Paging,
    },
    ListAttempts {
        of: u8,
        by_message: bool,
        filter: Filter,
        outcome: u8,
        paging: Paging,
    },
    ListSettings {
        app: u8,
        paging: Paging,
    },
    Reopen,
    Crash,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    app: u8,
    owed: u8,
    key: Option<Key>,
    event_id: Option<u8>,
    look: u8,
    expires_in: Option<Duration>,
    ordering_key: Option<u8>,
    fifo: u8,
    deliver_in: Option<Duration>,
}

/// An idempotency key, out of so few that repetitions are common.
type Key = (u8, u8, bool);

#[derive(Clone, Copy, Debug)]
enum Which {
    New,
    Known(u8),
    /// As it was before someone else changed it.
    Stale(u8),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Fails { again_in: Duration },
    Dies,
    Postponed { by: Duration },
    IsGone,
}

#[derive(Clone, Copy, Debug)]
struct Filter {
    event_type: Option<u8>,
    channel: Option<u8>,
    after: Option<u8>,
    before: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Paging {
    cut: Option<(u8, bool)>,
    ascending: bool,
    limit: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let small = || 0..4u8;
    let maybe = |range: std::ops::Range<u8>| prop::option::weighted(0.3, range);
    let key = || (0..3u8, 0..2u8, any::<bool>());
    let maybe_key = move || prop::option::weighted(0.2, key());
    let span = || prop_oneof![0..5u64, 0..5_000u64, 0..200_000_000u64].prop_map(Duration::from_millis);
    let which = move || prop_oneof![2 => Just(Which::New), 2 => small().prop_map(Which::Known), 1 => small().prop_map(Which::Stale)];
    let fate = move || {
        prop_oneof![
            3 => Just(Fate::Arrives),
            3 => span().prop_map(|again_in| Fate::Fails { again_in }),
            2 => Just(Fate::Dies),
            1 => span().prop_map(|by| Fate::Postponed { by }),
            1 => Just(Fate::IsGone),
        ]
    };
    let filter =
        move || {
            (maybe(0..3), maybe(0..3), maybe(0..8), maybe(0..8))
                .prop_map(|(event_type, channel, after, before)| Filter { event_type, channel, after, before })
        };
    let paging = || {
        (prop::option::of((any::<u8>(), any::<bool>())), any::<bool>(), 0..6usize)
            .prop_map(|(cut, ascending, limit)| Paging { cut, ascending, limit })
    };
    let what = (small(), any::<u8>(), maybe_key(), maybe(0..3), any::<u8>(), prop::option::weighted(0.2, span()));
    let when = (prop::option::weighted(0.6, 0..2u8), any::<u8>(), prop::option::weighted(0.2, span()));
    let accept =
        (what, when).prop_map(|((app, owed, key, event_id, look, expires_in), (ordering_key, fifo, deliver_in))| {
            Step::Accept(Offer { app, owed, key, event_id, look, expires_in, ordering_key, fifo, deliver_in })
        });
    let ordering = || prop_oneof![Just(Ordering::None), Just(Ordering::Keyed), Just(Ordering::Fifo)];
    let deliveries = prop_oneof![
        12 => accept,
        10 => prop::collection::vec((any::<u8>(), fate(), maybe(0..4)), 1..4).prop_map(Step::Settle),
        3 => any::<u8>().prop_map(|share| Step::Spill { share }),
        8 => (small(), ordering(), 0..5usize)
            .prop_map(|(endpoint, ordering, limit)| Step::Load { endpoint, ordering, limit }),
        1 => small().prop_map(Step::ResetHealth),
        5 => (any::<u8>(), maybe_key(), any::<bool>())
            .prop_map(|(delivery, key, taken_up)| Step::Resend { delivery, key, taken_up }),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(delivery, everywhere)| Step::Cancel { delivery, everywhere }),
        3 => (any::<u8>(), maybe_key()).prop_map(|(letter, key)| Step::Replay { letter, key }),
        6 => span().prop_map(|time| Step::Pass { time }),
    ];
    let settings = prop_oneof![
        2 => (which(), maybe(0..3), maybe_key()).prop_map(|(which, uid, key)| Step::PutApplication { which, uid, key }),
        1 => small().prop_map(Step::DeleteApplication),
        3 => (small(), which(), maybe(0..3), maybe_key())
            .prop_map(|(app, which, uid, key)| Step::PutEndpoint { app, which, uid, key }),
        2 => small().prop_map(Step::DeleteEndpoint),
        2 => Just(Step::Bury),
        2 => (0..3u8, any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(name, fresh, stale, archived)| Step::PutEventType { name, fresh, stale, archived }),
        1 => (0..3u8).prop_map(Step::DeleteEventType),
        1 => (0..3u8, any::<u8>()).prop_map(|(name, value)| Step::PutNote(name, value)),
        1 => key().prop_map(Step::Remember),
    ];
    let looking_back = prop_oneof![
        1 => any::<u8>().prop_map(Step::ExpungeMessage),
        1 => any::<u8>().prop_map(Step::ExpungeAttempt),
        2 => (small(), filter(), paging()).prop_map(|(app, filter, paging)| Step::ListMessages { app, filter, paging }),
        2 => (small(), filter(), 0..32u8, paging())
            .prop_map(|(endpoint, filter, states, paging)| Step::ListOwed { endpoint, filter, states, paging }),
        2 => (any::<u8>(), any::<bool>(), filter(), 0..8u8, paging()).prop_map(|(of, by_message, filter, outcome, paging)| {
            Step::ListAttempts { of, by_message, filter, outcome, paging }
        }),
        1 => (small(), paging()).prop_map(|(app, paging)| Step::ListSettings { app, paging }),
    ];
    let background = prop_oneof![
        2 => (small(), 0..8u8, 0..8u8, maybe_key())
            .prop_map(|(endpoint, since, until, key)| Step::StartTask { endpoint, since, until, key }),
        2 => Just(Step::FinishTasks),
        2 => span().prop_map(|history| Step::Tidy { history }),
        2 => Just(Step::Reopen),
        2 => Just(Step::Crash),
    ];
    prop_oneof![10 => deliveries, 3 => settings, 2 => looking_back, 2 => background]
}

/// A store and the model of it, and what a dispatcher would hold in its hands.
struct Play<H> {
    harness: H,
    model: Model,
    committed: mpsc::UnboundedReceiver<Vec<Committed>>,
    now: Timestamp,
    /// Every application and endpoint there ever was, and the last record of each that a caller has read.
    apps: Vec<Application>,
    endpoints: Vec<Endpoint>,
    messages: Vec<MessageKey>,
    in_hand: Vec<InHand>,
    tasks: Vec<TaskKey>,
}

#[derive(Clone, Copy, Debug)]
struct InHand {
    id: DeliveryId,
    handed: bool,
    cycle: u32,
    progress: Progress,
    order: Option<OrderKey>,
}

impl<H: Harness> Play<H> {
    async fn begin(grain: Grain) -> Self {
        let harness = H::fresh(grain).await;
        let committed = harness.store().committed();
        let mut play = Self {
            harness,
            model: Model::default(),
            committed,
            now: START,
            apps: Vec::new(),
            endpoints: Vec::new(),
            messages: Vec::new(),
            in_hand: Vec::new(),
            tasks: Vec::new(),
        };
        play.put_application(Which::New, None, None).await;
        for _ in 0..2 {
            play.put_endpoint(0, Which::New, None, None).await;
        }
        play
    }

    fn store(&self) -> &dyn Store {
        self.harness.store()
    }

    async fn take(mut self, step: Step) -> Self {
        match step {
            Step::Pass { time } => {
                self.now = self.now.plus(time);
                // No try takes so long that a store would have to remember for ever what was cancelled meanwhile.
                let model = &self.model;
                self.in_hand.retain(|held| !held.handed || model.is_handed(held.id));
            }
            Step::Accept(offer) => self.accept(offer).await,
            Step::Settle(fates) => self.settle(fates).await,
            Step::Spill { share } => self.spill(share).await,
            Step::Load { endpoint, ordering, limit } => {
                if let Some(endpoint) = pick(&self.endpoints, endpoint).map(|endpoint| endpoint.key) {
                    self.load(endpoint, ordering, limit).await;
                }
            }
            Step::ResetHealth(endpoint) => {
                if let Some(endpoint) = pick(&self.endpoints, endpoint).map(|endpoint| endpoint.key) {
                    self.store().reset_health(endpoint).await.unwrap();
                    self.model.reset_health(endpoint);
                }
            }
            Step::Cancel { delivery, everywhere } => self.cancel(delivery, everywhere).await,
            Step::Replay { letter, key } => self.replay(letter, key).await,
            Step::Resend { delivery, key, taken_up } => self.resend(delivery, key, taken_up).await,
            Step::PutApplication { which, uid, key } => self.put_application(which, uid, key).await,
            Step::DeleteApplication(app) => self.delete_application(app).await,
            Step::PutEndpoint { app, which, uid, key } => self.put_endpoint(app, which, uid, key).await,
            Step::DeleteEndpoint(endpoint) => self.delete_endpoint(endpoint).await,
            Step::Bury => {
                bury_all(self.store(), self.now).await;
                self.model.bury(self.now);
            }
            Step::PutEventType { name, fresh, stale, archived } => {
                self.put_event_type(name, fresh, stale, archived).await;
            }
            Step::DeleteEventType(name) => {
                let name = format!("type.{name}");
                let deleted = self.store().delete_event_type(&name).await.unwrap();
                assert_eq!(deleted, self.model.delete_event_type(&name));
            }
            Step::PutNote(name, value) => {
                self.store().put_note(&format!("note {name}"), vec![value]).await.unwrap();
                self.model.put_note(&format!("note {name}"), vec![value]);
            }
            Step::Remember(key) => {
                let remember = remembered(Some(key)).expect("there is a key");
                let answer = self.store().remember(remember.clone(), self.now).await;
                same(&answer, &self.model.remember(remember, self.now));
            }
            Step::ExpungeMessage(message) => self.expunge_message(message).await,
            Step::ExpungeAttempt(attempt) => self.expunge_attempt(attempt).await,
            Step::StartTask { endpoint, since, until, key } => self.start_task(endpoint, since, until, key).await,
            Step::FinishTasks => self.finish_tasks().await,
            Step::Tidy { history } => self.tidy(history).await,
            Step::ListMessages { app, filter, paging } => self.list_messages(app, filter, paging).await,
            Step::ListOwed { endpoint, filter, states, paging } => {
                self.list_owed(endpoint, filter, states, paging).await;
            }
            Step::ListAttempts { of, by_message, filter, outcome, paging } => {
                self.list_attempts(of, by_message, filter, outcome, paging).await;
            }
            Step::ListSettings { app, paging } => self.list_settings(app, paging).await,
            Step::Reopen => {
                self.harness = self.harness.reopen(self.now).await;
                self.start_anew();
            }
            Step::Crash => {
                self.harness = self.harness.crash(self.now).await;
                self.start_anew();
            }
        }
        self
    }

    fn start_anew(&mut self) {
        self.model.reopen(self.now);
        self.in_hand.clear();
        self.committed = self.harness.store().committed();
    }

    // The way of a message.

    async fn accept(&mut self, offer: Offer) {
        let Offer { app, owed, key, event_id, look, expires_in, ordering_key, fifo, deliver_in } = offer;
        let Some(app) = self.live_app(app) else { return };
        let endpoints = self.model.endpoints_of(app);
        let chosen = |bits: u8| {
            let chosen = endpoints.iter().enumerate().filter(move |(bit, _)| bits >> (bit % 8) & 1 == 1);
            chosen.map(|(_, endpoint)| endpoint.key).collect()
        };
        let content = Content {
            event_type: format!("type.{}", look % 3),
            event_id: event_id.map(|id| format!("event {id}")),
            channels: (0..2).filter(|bit| look & (4 << bit) != 0).map(|bit| format!("channel {bit}")).collect(),
            tags: (0..2).filter(|bit| look & (16 << bit) != 0).map(|bit| format!("tag {bit}")).collect(),
            content_type: (look & 64 != 0).then(|| "text/plain".to_owned()),
            ordering_key: ordering_key.map(|key| format!("key {key}")),
            deliver_at: deliver_in.map(|span| self.now.plus(span)),
            received: None,
            payload: Bytes::from(vec![look; usize::from(look)]),
        };
        let message = NewMessage {
            app,
            at: self.now,
            generation: None,
            content,
            payload_expires_at: expires_in.map(|span| self.now.plus(span)),
            owed: chosen(owed),
            fifo: chosen(fifo),
            idempotency: key.map(idempotency),
            trace: None,
        };
        self.hear();
        let answer = self.store().accept(message.clone()).await;
        match (self.model.receive(&message), answer) {
            (Reception::New, Ok(Accepted::Now(key))) => {
                let newest = self.messages.iter().max();
                assert!(newest < Some(&key), "keys grow: {key:?} after {newest:?}");
                self.messages.push(key);
                let owed = message.owed.clone();
                let later = message.content.deliver_at.filter(|due| *due > self.now);
                self.model.accept(key, message);
                match later {
                    None => self.hear_of_message(key, owed),
                    Some(due) => self.hear_of_waiting(owed, due),
                }
            }
            (Reception::Before(known), Ok(Accepted::Before(found))) => assert_eq!(found, known),
            (Reception::Refused(expected), Err(refusal)) => same(&refusal, &expected),
            (expected, answer) => panic!("expected {expected:?}, got {answer:?}"),
        }
        assert!(self.committed.try_recv().is_err(), "nothing else is announced");
    }

    /// Passes over announcements that are of no interest here.
    fn hear(&mut self) {
        while let Ok(news) = self.committed.try_recv() {
            let message = news.iter().find(|committed| matches!(committed, Committed::Message { .. }));
            assert!(message.is_none(), "no message was accepted: {message:?}");
        }
    }

    fn hear_of_message(&mut self, key: MessageKey, expected: Vec<EndpointKey>) {
        if expected.is_empty() {
            return;
        }
        let news = self.committed.try_recv().expect("a message is announced");
        let known = self.model.letter(key).expect("it was accepted");
        let mut announced = Vec::new();
        for committed in news {
            match committed {
                Committed::Message { letter, owed } => {
                    assert_eq!(*letter, known);
                    let order = letter.order;
                    self.in_hand.extend(owed.iter().map(|endpoint| {
                        let id = fixtures::scheduled(*endpoint, key);
                        InHand { id, handed: true, cycle: 0, progress: Progress::default(), order }
                    }));
                    announced.extend(owed);
                }
                // It must come after what another node put there, of which this one may not have heard.
                Committed::Waiting { endpoint, due } => {
                    self.model.spill(&[fixtures::scheduled(endpoint, key)], due);
                    announced.push(endpoint);
                }
                other => panic!("{other:?}"),
            }
        }
        announced.sort_unstable();
        let mut expected = expected;
        expected.sort_unstable();
        assert_eq!(announced, expected);
    }

    fn hear_of_waiting(&mut self, expected: Vec<EndpointKey>, expected_due: Timestamp) {
        let news: Vec<_> = std::iter::from_fn(|| self.committed.try_recv().ok()).flatten().collect();
        let lanes = news.iter().map(|committed| match committed {
            Committed::Waiting { endpoint, due } if *due == expected_due => *endpoint,
            other => panic!("{other:?}"),
        });
        assert_eq!(lanes.collect::<Vec<_>>(), expected);
    }

    async fn settle(&mut self, fates: Vec<(u8, Fate, Option<u8>)>) {
        let mut settlements = Vec::new();
        for (which, fate, health) in fates {
            if self.in_hand.is_empty() {
                break;
            }
            let held = self.in_hand.remove(usize::from(which) % self.in_hand.len());
            let health = health.map(|health| self.health(health));
            settlements.push(Settlement { health, ..self.settlement(held, fate) });
        }
        self.store()
            .settle(self.store().tenure(), Arc::new(settlements.clone()))
            .await
            .expect("settlements are written");
        for settlement in &settlements {
            self.model.settle(settlement);
        }
        let tried = settlements.iter().filter(|settlement| settlement.attempt.is_some());
        let messages: BTreeSet<_> = tried.map(|settlement| settlement.id.message).collect();
        self.learn_keys(messages).await;
    }

    fn health(&self, number: u8) -> Health {
        let breaker = match number {
            0 => return Health::default(),
            1 => Breaker::Closed { failures: 3 },
            2.. => Breaker::Open { until: self.now, trips: number.into() },
        };
        Health { breaker, failing_since: Some(self.now), permanent_streak: 7, warned: number == 3 }
    }

    fn settlement(&self, held: InHand, fate: Fate) -> Settlement {
        let now = self.now;
        let InHand { id, handed, cycle, progress, order } = held;
        let delay = Delay { backoff: Duration::from_secs(3), jitter: Duration::ZERO, retry_after: None, capped: false };
        let (status, next) = match (fate, id.trigger) {
            (Fate::Arrives, _) => (Some(200), Next::Delivered),
            (Fate::Postponed { by }, _) => (None, Next::Postponed { due: now.plus(by) }),
            (Fate::Fails { .. } | Fate::Dies | Fate::IsGone, Trigger::Manual) => (Some(503), Next::Nothing),
            (Fate::Fails { again_in }, Trigger::Scheduled) => (None, Next::Retry { due: now.plus(again_in), delay }),
            (Fate::Dies, Trigger::Scheduled) => (Some(400), Next::Dead(DeathReason::Exhausted)),
            (Fate::IsGone, Trigger::Scheduled) => (Some(410), Next::Dead(DeathReason::Permanent)),
        };
        let postponed = matches!(fate, Fate::Postponed { .. });
        let once_more = Progress {
            attempts: progress.attempts + 1,
            give_up_at: progress.give_up_at.or(Some(fixtures::give_up_at(now))),
            last_delay: Some(delay.backoff),
            ambiguous: progress.ambiguous + 1,
            ambiguous_since: progress.ambiguous_since.or(Some(now)),
        };
        Settlement {
            id,
            handed,
            cycle,
            progress: if postponed { progress } else { once_more },
            at: now,
            attempt: (!postponed).then(|| fixtures::record(now, status)),
            next,
            order,
            health: None,
            disable: matches!((fate, id.trigger), (Fate::IsGone, Trigger::Scheduled)).then_some(DisableReason::Gone),
        }
    }

    /// The model learns which keys the new attempts got, in the order in which they were made.
    async fn learn_keys(&mut self, messages: BTreeSet<MessageKey>) {
        let mut keys = Vec::new();
        for message in messages {
            let known = self.model.attempts(AttemptsOf::Message(message), &AttemptFilter::default(), &whole());
            for attempt in fixtures::attempts_of(self.store(), message).await {
                if !known.iter().any(|known| known.key == attempt.key) {
                    keys.push((attempt.key, message));
                }
            }
        }
        keys.sort_unstable();
        for (key, message) in keys {
            self.model.learn_key(message, key);
        }
    }

    async fn spill(&mut self, share: u8) {
        let handed = self.in_hand.iter().filter(|held| held.handed).take(usize::from(share % 8));
        let (spilled, orders): (Vec<_>, Vec<_>) = handed.map(|held| (held.id, held.order)).unzip();
        let with_orders = spilled.iter().copied().zip(orders).collect();
        self.store().spill(self.store().tenure(), with_orders, self.now).await.unwrap();
        self.model.spill(&spilled, self.now);
        self.in_hand.retain(|held| !spilled.contains(&held.id));
    }

    async fn load(&mut self, endpoint: EndpointKey, ordering: Ordering, limit: usize) {
        for waiting in self.compare_load(endpoint, ordering, self.now, limit).await {
            if !self.in_hand.iter().any(|held| held.id == waiting.id) {
                let Waiting { id, cycle, progress, order, .. } = waiting;
                self.in_hand.push(InHand { id, handed: false, cycle, progress, order });
            }
        }
    }

    /// Which of several that are due at the same time come first is left to the store, and with which runs it fills up
    /// what room is left.
    async fn compare_load(
        &self,
        endpoint: EndpointKey,
        ordering: Ordering,
        now: Timestamp,
        limit: usize,
    ) -> Vec<Waiting> {
        let loaded = self.store().load(endpoint, ordering, now, limit).await.unwrap();
        let Due { fronts, followers, next_due, behind } = self.model.due(endpoint, ordering, now);
        let all = fronts.len() + followers.len();
        assert_eq!((loaded.more, loaded.next_due), (all > limit, next_due), "{ordering:?}");
        assert_eq!(loaded.deliveries.len(), all.min(limit), "{ordering:?}");

        let (mut seen, mut turns, mut front_dues) = (BTreeSet::new(), Vec::new(), Vec::new());
        for found in &loaded.deliveries {
            let front = fronts.iter().find(|(id, _)| *id == found.id).map(|(_, wait)| (wait, wait.due));
            front_dues.extend(front.map(|(wait, _)| wait.due));
            let follower = followers.iter().find(|(id, ..)| *id == found.id).map(|(_, wait, before, turn)| {
                assert!(seen.contains(before), "{before:?} comes before {:?}", found.id);
                (wait, *turn)
            });
            let (wait, turn) = front.or(follower).expect("it is due, and so is all before it");
            turns.push(turn);
            let Waiting { due, cycle, progress, queued_at, order, .. } = *found;
            assert_eq!(Wait { due, cycle, progress, queued_at, order }, *wait);
            assert_eq!(Some(found.letter.as_ref()), self.model.letter(found.id.message).as_ref());
            assert!(seen.insert(found.id), "each once");
        }
        assert!(turns.is_sorted(), "in the order in which they fell due: {turns:?}");
        let earliest: Vec<_> = fronts.iter().map(|(_, wait)| wait.due).take(limit).collect();
        assert_eq!(front_dues, earliest, "nobody is kept out by those who have to wait for another");
        assert_eq!(loaded.blocked, behind > loaded.deliveries.len() - front_dues.len(), "{ordering:?}");
        loaded.deliveries
    }

    async fn resend(&mut self, delivery: u8, key: Option<Key>, taken_up: bool) {
        let owed: Vec<_> = self
            .model
            .every_message()
            .flat_map(|message| message.owed.iter().map(|endpoint| manual(*endpoint, message.key)))
            .filter(|id| self.model.endpoint(id.endpoint).is_some())
            .collect();
        let Some(id) = pick(&owed, delivery).copied() else { return };
        let remember = remembered(key);
        let answer = self.store().resend(id.message, id.endpoint, self.now, remember.clone()).await;
        same(&answer, &self.model.resend(id, self.now, remember));
        if taken_up {
            self.load(id.endpoint, Ordering::Keyed, 100).await;
        }
    }

    async fn cancel(&mut self, delivery: u8, everywhere: bool) {
        let owed: Vec<_> = self
            .model
            .every_message()
            .flat_map(|message| message.owed.iter().map(|endpoint| (message.app, message.key, *endpoint)))
            .collect();
        let Some((app, message, endpoint)) = pick(&owed, delivery).copied() else { return };
        let endpoint = (!everywhere).then_some(endpoint);
        // What is in hand stays there: a try that is on the wire cannot be called back.
        let cancelled = self.store().cancel_message(app, message, endpoint, self.now).await.unwrap();
        assert_eq!(cancelled, self.model.cancel(message, endpoint, self.now));
    }

    async fn replay(&mut self, letter: u8, key: Option<Key>) {
        let letters: Vec<_> = self
            .apps
            .iter()
            .flat_map(|app| self.model.dead_letters(app.key).into_iter().map(|(letter, ..)| (app.key, letter)))
            .collect();
        let Some((app, letter)) = pick(&letters, letter).copied() else { return };
        let remember = remembered(key);
        let answer = self.store().replay(app, letter, self.now, remember.clone()).await;
        same(&answer, &self.model.replay(letter, self.now, remember));
    }

    // Settings.

    async fn put_application(&mut self, which: Which, uid: Option<u8>, key: Option<Key>) {
        let (known, expect) = choose(&self.apps, which, |application| application.version);
        let minted = self.store().mint(self.now).await.unwrap();
        let application = Application {
            key: known.map_or_else(|| AppKey::new(minted), |known| known.key),
            uid: uid.map(|uid| format!("app {uid}")),
            name: format!("put at {:?}", self.now),
            updated_at: self.now,
            ..fixtures::application(AppKey::new(0), None)
        };
        let remember = remembered(key);
        let answer = self.store().put_application(application.clone(), expect, remember.clone()).await;
        same(&answer, &self.model.put_application(application.clone(), expect, remember));
        if answer.is_ok() {
            let key = application.key;
            let read = self.store().application(By::Key(key)).await.unwrap().expect("it was put");
            self.apps.retain(|known| known.key != key);
            self.apps.push(read);
        }
    }

    async fn delete_application(&mut self, app: u8) {
        let Some(app) = pick(&self.apps, app).map(|app| app.key) else { return };
        let deleted = self.store().delete_application(app, self.now).await.unwrap();
        assert_eq!(deleted, self.model.delete_application(app));
    }

    async fn put_endpoint(&mut self, app: u8, which: Which, uid: Option<u8>, key: Option<Key>) {
        let (known, expect) = choose(&self.endpoints, which, |endpoint| endpoint.version);
        let Some(app) = known.map(|known| known.app).or(pick(&self.apps, app).map(|app| app.key)) else { return };
        let minted = self.store().mint(self.now).await.unwrap();
        let endpoint = Endpoint {
            uid: uid.map(|uid| format!("endpoint {uid}")),
            description: format!("put at {:?}", self.now),
            updated_at: self.now,
            ..fixtures::endpoint(known.map_or_else(|| EndpointKey::new(minted), |known| known.key), app, None)
        };
        let remember = remembered(key);
        let answer = self.store().put_endpoint(endpoint.clone(), expect, remember.clone()).await;
        same(&answer, &self.model.put_endpoint(endpoint.clone(), expect, remember));
        if answer.is_ok() {
            let read = self.store().endpoint_of_lane(endpoint.key).await.unwrap().expect("it was put");
            self.endpoints.retain(|known| known.key != endpoint.key);
            self.endpoints.push(read);
        }
    }

    async fn delete_endpoint(&mut self, endpoint: u8) {
        let Some(endpoint) = pick(&self.endpoints, endpoint) else { return };
        let (app, key) = (endpoint.app, endpoint.key);
        let deleted = self.store().delete_endpoint(app, key, self.now).await.unwrap();
        assert_eq!(deleted, self.model.delete_endpoint(key));
    }

    async fn put_event_type(&mut self, name: u8, fresh: bool, stale: bool, archived: bool) {
        let name = format!("type.{name}");
        let found = self.store().event_type(&name).await.unwrap().map_or(1, |found| found.version);
        let expect = if fresh { Expect::Absent } else { Expect::Version(found - i64::from(stale)) };
        let put = EventType { archived, updated_at: self.now, ..fixtures::event_type(&name) };
        let answer = self.store().put_event_type(put.clone(), expect, None).await;
        same(&answer, &self.model.put_event_type(put, expect, None));
    }

    // Looking back.

    async fn expunge_message(&mut self, message: u8) {
        let Some(message) = pick(&self.messages, message).copied() else { return };
        let app = self.model.message(message).map_or(AppKey::new(1), |message| message.app);
        let expunged = self.store().expunge_message(app, message).await.unwrap();
        assert_eq!(expunged, self.model.expunge_message(message));
    }

    async fn expunge_attempt(&mut self, attempt: u8) {
        let Some(message) = pick(&self.messages, attempt).copied() else { return };
        let attempts = self.model.attempts(AttemptsOf::Message(message), &AttemptFilter::default(), &whole());
        let Some(attempt) = pick(&attempts, attempt).map(|attempt| attempt.key) else { return };
        let expunged = self.store().expunge_attempt(message, attempt).await.unwrap();
        assert_eq!(expunged, self.model.expunge_attempt(message, attempt));
    }

    async fn list_messages(&self, app: u8, filter: Filter, paging: Paging) {
        let Some(app) = pick(&self.apps, app).map(|app| app.key) else { return };
        let (filter, page) = (self.filter(filter), paging.page(&self.messages));
        let found = self.store().messages(app, filter.clone(), page.clone()).await.unwrap();
        assert_eq!(found, self.model.messages(app, &filter, &page), "{filter:?} {page:?}");
    }

    async fn list_owed(&self, endpoint: u8, filter: Filter, states: u8, paging: Paging) {
        let Some((app, key)) = pick(&self.endpoints, endpoint).map(|endpoint| (endpoint.app, endpoint.key)) else {
            return;
        };
        let kinds =
            [StateKind::Pending, StateKind::Sending, StateKind::Delivered, StateKind::Dead, StateKind::Cancelled];
        let states: Vec<_> =
            kinds.into_iter().enumerate().filter(|(bit, _)| states >> bit & 1 == 1).map(|(_, kind)| kind).collect();
        let (filter, page) = (self.filter(filter), paging.page(&self.messages));
        let list = self.store().messages_of_endpoint(app, key, filter.clone(), states.clone(), page.clone());
        let expected = self.model.messages_of_endpoint(app, key, &filter, &states, &page);
        assert_eq!(list.await.unwrap(), expected, "{states:?} {filter:?} {page:?}");
    }

    async fn list_attempts(&self, of: u8, by_message: bool, filter: Filter, outcome: u8, paging: Paging) {
        let of = if by_message {
            pick(&self.messages, of).map(|message| AttemptsOf::Message(*message))
        } else {
            pick(&self.endpoints, of).map(|endpoint| AttemptsOf::Endpoint(endpoint.app, endpoint.key))
        };
        let Some(of) = of else { return };
        let everything = self.model.attempts(of, &AttemptFilter::default(), &whole());
        let keys: Vec<_> = everything.iter().map(|attempt| attempt.key).collect();
        let filter = AttemptFilter {
            message: self.filter(filter),
            endpoint: (by_message && outcome & 1 == 1).then(|| self.endpoints[0].key),
            succeeded: (outcome & 2 != 0).then_some(outcome & 1 == 1),
            status_class: (outcome & 4 != 0).then_some(if outcome & 1 == 1 { 4 } else { 0 }),
        };
        let page = paging.page(&keys);
        let found = self.store().attempts(of, filter.clone(), page.clone()).await.unwrap();
        assert_eq!(found, self.model.attempts(of, &filter, &page), "{of:?} {filter:?} {page:?}");
    }

    async fn list_settings(&self, app: u8, paging: Paging) {
        let apps: Vec<_> = self.apps.iter().map(|app| app.key).collect();
        let page = paging.page(&apps);
        let found = self.store().applications(page.clone()).await.unwrap();
        assert_eq!(found, on_page(self.model.applications(), |app| app.key, &page), "{page:?}");

        let endpoints: Vec<_> = self.endpoints.iter().map(|endpoint| endpoint.key).collect();
        let page = paging.page(&endpoints);
        let Some(app) = pick(&apps, app).copied() else { return };
        let found = self.store().endpoints(app, page.clone()).await.unwrap();
        assert_eq!(found, on_page(self.model.endpoints_of(app), |endpoint| endpoint.key, &page), "{page:?}");

        let names = ["type.0", "type.1", "type.2"].map(str::to_owned);
        let page = paging.page(&names);
        let found = self.store().event_types(page.clone(), Archived::Hide).await.unwrap();
        let expected = on_page(self.model.event_types(Archived::Hide), |found| found.name.clone(), &page);
        assert_eq!(found, expected, "{page:?}");
    }

    fn filter(&self, filter: Filter) -> MessageFilter {
        MessageFilter {
            event_types: filter.event_type.map(|event_type| format!("type.{event_type}")).into_iter().collect(),
            channel: filter.channel.map(|channel| format!("channel {channel}")),
            tag: None,
            after: filter.after.map(|eighths| self.moment(eighths)),
            before: filter.before.map(|eighths| self.moment(eighths)),
        }
    }

    /// A moment between the beginning and a little after now.
    fn moment(&self, eighths: u8) -> Timestamp {
        START.plus(self.now.since(START) * u32::from(eighths) / 7 + Duration::from_millis(u64::from(eighths % 2)))
    }

    // Work in the background.

    async fn start_task(&mut self, endpoint: u8, since: u8, until: u8, key: Option<Key>) {
        let found = pick(&self.endpoints, endpoint).map(|endpoint| (endpoint.app, endpoint.key));
        let Some((app, endpoint)) = found else { return };
        let task = Task {
            key: TaskKey(self.store().mint(self.now).await.unwrap()),
            app,
            kind: TaskKind::Recover {
                endpoint: endpoint.raw(),
                since: self.moment(since).as_millis(),
                until: self.moment(until).as_millis(),
            },
            total: None,
            done: 0,
            changed: 0,
            status: TaskStatus::Running,
            created_at: self.now,
            updated_at: self.now,
        };
        let remember = remembered(key);
        self.tasks.push(task.key);
        let answer = self.store().start_task(task.clone(), remember.clone()).await;
        same(&answer, &self.model.start_task(task, remember));
    }

    async fn finish_tasks(&mut self) {
        let unfinished = self.store().unfinished_tasks().await.unwrap();
        assert_eq!(unfinished, self.model.unfinished_tasks());
        for key in unfinished {
            let done = finish_task(self.store(), key, self.now).await;
            let expected = self.model.finish_task(key, self.now).expect("it was started");
            assert_eq!((done.status, done.changed), (expected.status, expected.changed));
        }
    }

    /// How much of what is old enough is forgotten is up to the store; that it goes with all that belongs to it, and not
    /// while something of it is still to be delivered, is not.
    async fn tidy(&mut self, history: Duration) {
        let retention =
            Retention { payloads: history, attempts: history, dead_letters: history, idempotency: history / 2 };
        tidy_up(self.store(), self.now, retention).await;
        self.model.tidy(self.now, retention);
        let mut left = BTreeSet::new();
        for app in &self.apps {
            left.extend(fixtures::all_messages(self.store(), app.key).await);
        }
        let oldest = self.now.minus(history);
        let mut gone = BTreeSet::new();
        for message in self.model.every_message() {
            if !left.contains(&message.key) {
                assert!(message.accepted_at < oldest, "{:?} went before its time", message.key);
                gone.insert(message.key);
            }
        }
        let owed = self.model.undelivered();
        assert!(gone.is_disjoint(&owed), "{gone:?} went, {owed:?} was still owed");
        self.model.forget(&gone);
        for task in &self.tasks {
            if self.store().task(*task).await.unwrap().is_none() {
                let ended = self.model.task(*task).is_none_or(|task| task.status != TaskStatus::Running);
                assert!(ended, "{task:?} went before it had ended");
                self.model.forget_task(*task);
            }
        }
        self.in_hand.retain(|held| !gone.contains(&held.id.message));
    }

    // In the end.

    async fn compare_all(&self) {
        let store = self.store();
        let forever = Timestamp::from_millis(i64::MAX);
        let all = MessageFilter::default();
        assert_eq!(store.applications(whole()).await.unwrap(), self.model.applications());
        for archived in [Archived::Hide, Archived::Show] {
            assert_eq!(store.event_types(whole(), archived).await.unwrap(), self.model.event_types(archived));
        }
        for name in (0..3).map(|name| format!("note {name}")) {
            assert_eq!(store.note(&name).await.unwrap(), self.model.note(&name));
        }
        for app in &self.apps {
            let key = app.key;
            assert_eq!(store.endpoints(key, whole()).await.unwrap(), self.model.endpoints_of(key));
            let letters = store.dead_letters(key, DeadFilter::default(), whole()).await.unwrap();
            let letters: Vec<_> = letters
                .iter()
                .map(|letter| {
                    let key = DeadKey { message: letter.message.key, endpoint: letter.endpoint };
                    (key, letter.reason, letter.cycle)
                })
                .collect();
            assert_eq!(letters, self.model.dead_letters(key));
            let messages = store.messages(key, all.clone(), whole()).await.unwrap();
            assert_eq!(messages, self.model.messages(key, &all, &whole()));
            for event_id in (0..3).map(|id| format!("event {id}")) {
                let found = store.message(key, By::Uid(event_id.clone())).await.unwrap();
                assert_eq!(found.as_ref(), self.model.message_by_event_id(key, &event_id), "{event_id}");
            }
        }
        for message in &self.messages {
            assert_eq!(store.deliveries(*message).await.unwrap(), self.model.deliveries(*message));
            let of = AttemptsOf::Message(*message);
            let expected = self.model.attempts(of, &AttemptFilter::default(), &whole());
            assert_eq!(fixtures::attempts_of(store, *message).await, expected);
        }
        for endpoint in &self.endpoints {
            let (app, key) = (endpoint.app, endpoint.key);
            assert_eq!(store.endpoint_of_lane(key).await.unwrap(), self.model.endpoint(key));
            let owed = store.messages_of_endpoint(app, key, all.clone(), vec![], whole()).await.unwrap();
            assert_eq!(owed, self.model.messages_of_endpoint(app, key, &all, &[], &whole()));
            for ordering in [Ordering::None, Ordering::Keyed, Ordering::Fifo] {
                self.compare_load(key, ordering, forever, 1_000).await;
            }
            let (middle, end) = (self.moment(4), self.moment(7).plus(Duration::from_secs(1)));
            assert_eq!(store.stats(key, START, middle).await.unwrap(), self.model.stats(key, START, middle));
            let stats = store.stats(key, START, end).await.unwrap();
            assert_eq!(stats, self.model.stats(key, START, end));
            // Nothing is lost and nothing is in two places.
            let counted = stats.success + stats.pending + stats.sending + stats.fail + stats.canceled;
            assert_eq!(counted, owed.len() as u64);
            let on_its_way = owed.iter().filter(|(_, state)| *state == DeliveryState::Pending { due: None }).count();
            let handed = self.in_hand.iter().filter(|held| held.handed && held.id.endpoint == key).count();
            assert!(on_its_way <= handed, "{on_its_way} on their way, {handed} in hand");
        }
        let mut lanes = store.lanes(Shards::ALL).await.unwrap();
        lanes.sort_by_key(|lane| lane.endpoint);
        assert_eq!(lanes, self.model.lanes());
        assert_eq!(store.counts(Shards::ALL).await.unwrap(), self.model.counts());
        assert_eq!(all_waiting(store).await.len() as u64, self.model.counts().waiting);
        assert_eq!(store.unfinished_tasks().await.unwrap(), self.model.unfinished_tasks());
        for task in &self.tasks {
            let (found, expected) = (store.task(*task).await.unwrap(), self.model.task(*task));
            assert_eq!(found.map(|task| task.status), expected.map(|task| task.status));
        }
        assert_eq!(store.healths(Shards::ALL).await.unwrap(), self.model.healths());
    }

    fn live_app(&self, number: u8) -> Option<AppKey> {
        pick(&self.model.applications(), number).map(|app| app.key)
    }
}

impl Paging {
    fn page<K: Clone>(self, keys: &[K]) -> Page<K> {
        let from = self.cut.and_then(|(number, past)| {
            let key = pick(keys, number)?.clone();
            Some(if past { Cut::Past(key) } else { Cut::Before(key) })
        });
        let order = if self.ascending { Order::Ascending } else { Order::Descending };
        Page { from, order, limit: self.limit }
    }
}

/// The record that a put is about, and what the caller expects to find.
fn choose<T>(known: &[T], which: Which, version: impl Fn(&T) -> Version) -> (Option<&T>, Expect) {
    let (number, stale) = match which {
        Which::New => return (None, Expect::Absent),
        Which::Known(number) => (number, 0),
        Which::Stale(number) => (number, 1),
    };
    match pick(known, number) {
        Some(record) => (Some(record), Expect::Version(version(record) - stale)),
        None => (None, Expect::Absent),
    }
}

/// Numbers go round, so that every number names something as long as there is anything.
fn pick<T>(items: &[T], number: u8) -> Option<&T> {
    items.get(usize::from(number) % items.len().max(1))
}

fn idempotency((key, request, chosen): Key) -> Idempotency {
    Idempotency { key: [key; 16], request: [request; 16], chosen }
}

fn remembered(key: Option<Key>) -> Option<Remember> {
    let key = key?;
    let answer = Answer { status: 200 + u16::from(key.0), body: Bytes::from(vec![key.0, key.1]) };
    Some(Remember { idempotency: idempotency(key), answer })
}

/// Answers that cannot be compared themselves are compared in words.
fn same<T: Debug>(answer: &T, expected: &T) {
    assert_eq!(format!("{answer:?}"), format!("{expected:?}"));
}
