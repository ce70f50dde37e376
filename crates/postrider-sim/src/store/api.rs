//! The verbs of the store.

use super::{
    batch::Kind, callers, cancel, database::handed_to, history, jobs::Job, journal, leases, load, memory::Life,
    node::SimStore, pollers, refused, settings, tallies, tasks, tidy,
};
use async_trait::async_trait;
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{Health, Ordering},
};
use postrider_store::*;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Payload bytes that may be queued for the writer at once. Past it, whoever comes is asked to come again.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
const QUEUED_MESSAGES_MAX: usize = 20_000;

#[async_trait]
impl Store for SimStore {
    async fn accept(&self, message: NewMessage) -> Result<Accepted, AcceptError> {
        let bytes = message.content.payload.len();
        {
            let mut memory = self.node.memory();
            if memory.queued_messages >= QUEUED_MESSAGES_MAX || memory.queued_bytes + bytes > QUEUED_BYTES_MAX {
                return Err(StoreError::Busy.into());
            }
            memory.queued_messages += 1;
            memory.queued_bytes += bytes;
        }
        let _place = Place { store: self, bytes };
        self.node.queue(|reply| Job::Accept { message: Box::new(message), reply }).await
    }

    fn committed(&self) -> mpsc::UnboundedReceiver<Vec<Committed>> {
        self.take_committed()
    }

    fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        self.node.own(tenure, shards)
    }

    async fn disown(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        match self.node.kind() {
            Kind::Alone => return Ok(()),
            Kind::Many => {}
        }
        // What is accepted from now on is not handed over, and what is being accepted is written before the turn comes.
        self.node.leave(shards);
        let freed = self.node.turn(move |batch| {
            let is_in_time = batch.tenure() == tenure;
            if is_in_time {
                leases::free(batch, tenure, shards);
            }
            is_in_time
        });
        if freed.await? { Ok(()) } else { Err(StoreError::Deposed) }
    }

    async fn retire(&self) -> Result<(), StoreError> {
        match self.node.kind() {
            Kind::Alone => return Ok(()),
            Kind::Many => {}
        }
        self.node.turn(leases::retire).await?;
        let mut memory = self.node.memory();
        let owned = memory.standing.owned;
        if memory.life == Life::Running {
            memory.queue.push_back(Job::Leave(owned));
        }
        drop(memory);
        self.node.jobs.notify_one();
        Ok(())
    }

    fn tenure(&self) -> Tenure {
        self.node.memory().standing.tenure
    }

    fn may_send(&self, tenure: Tenure) -> bool {
        self.turned();
        if self.node.base.sky(self.node.number, |sky| sky.weather.stalled) {
            // A process that is stopped asks nothing.
            return false;
        }
        match self.node.kind() {
            Kind::Alone => self.node.life() != Life::Killed,
            Kind::Many => self.node.memory().may_send(tenure),
        }
    }

    fn leads(&self) -> bool {
        self.owned().contains(Shard::new(0))
    }

    fn owned(&self) -> Shards {
        match self.node.kind() {
            Kind::Alone => Shards::ALL,
            Kind::Many => self.node.memory().standing.owned,
        }
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        match self.node.kind() {
            Kind::Alone => Ok(None),
            Kind::Many => self.node.read(|_| Some(self.node.base.clock.now())).await,
        }
    }

    async fn spill(
        &self,
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
    ) -> Result<(), StoreError> {
        self.node.queue(|reply| Job::Spill { tenure, deliveries, due, reply }).await
    }

    async fn load(
        &self,
        endpoint: EndpointKey,
        ordering: Ordering,
        now: Timestamp,
        limit: usize,
    ) -> Result<Loaded, StoreError> {
        self.node.take_time_for_loads().await;
        let number = self.node.number;
        let loaded = self
            .node
            .read(|state| {
                let loaded = load::load(&state.tables, endpoint, ordering, now, limit);
                let count = loaded.deliveries.len();
                state.tables.gallery.tell_of(number, &super::witness::Seen::Loaded { endpoint, count });
                loaded
            })
            .await;
        // A row of another node may be among them, behind a message of this one whose commit is not known here yet.
        self.node.told_of_commits().await;
        loaded
    }

    async fn settle(&self, tenure: Tenure, settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError> {
        self.node.queue(|reply| Job::Settle { tenure, settlements, reply }).await
    }

    async fn lanes(&self, shards: Shards) -> Result<Vec<LaneFound>, StoreError> {
        self.node.read(|state| load::lanes(&state.tables, shards)).await
    }

    async fn healths(&self, shards: Shards) -> Result<Vec<(EndpointKey, Health)>, StoreError> {
        self.node
            .read(|state| {
                let healths = state.tables.healths.iter();
                let wanted = healths.filter(|(endpoint, _)| load::is_in(&state.tables, **endpoint, shards));
                wanted.map(|(endpoint, health)| (*endpoint, *health)).collect()
            })
            .await
    }

    async fn health(&self, endpoint: EndpointKey) -> Result<Health, StoreError> {
        self.node.read(|state| state.tables.healths.get(&endpoint).copied().unwrap_or_default()).await
    }

    async fn reset_health(&self, endpoint: EndpointKey) -> Result<(), StoreError> {
        self.node
            .turn(move |batch| {
                batch.tables.healths.remove(&endpoint);
                batch.announce(Committed::Health { endpoint });
            })
            .await
    }

    async fn resend(
        &self,
        message: MessageKey,
        endpoint: EndpointKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.node
            .turn(move |batch| {
                settings::put(batch, remember, at, |batch| settings::resend(batch, message, endpoint, at))
            })
            .await?
    }

    async fn mint(&self, at: Timestamp) -> Result<i64, StoreError> {
        match self.node.kind() {
            Kind::Alone => {}
            Kind::Many => {
                let used = self.node.read(|state| state.cluster.greatest_key()).await?;
                self.node.memory().minter.catch_up(used);
            }
        }
        Ok(self.node.memory().minter.mint(at))
    }

    async fn put_application(
        &self,
        application: Application,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.node
            .turn(move |batch| {
                settings::put(batch, remember, application.updated_at, |batch| {
                    settings::put_application(batch, application, expect)
                })
            })
            .await?
    }

    async fn application(&self, by: By<AppKey>) -> Result<Option<Application>, StoreError> {
        self.node.read(|state| settings::application(&state.tables, by)).await
    }

    async fn generation(&self, app: AppKey) -> Result<Option<i64>, StoreError> {
        match self.node.kind() {
            Kind::Alone => Ok(None),
            Kind::Many => self.node.read(|state| settings::generation(&state.tables, Kind::Many, app)).await,
        }
    }

    async fn applications(&self, page: Page<AppKey>) -> Result<Vec<Application>, StoreError> {
        self.node.read(|state| settings::applications(&state.tables, &page)).await
    }

    async fn applications_of(&self, kind: AppKind, page: Page<AppKey>) -> Result<Vec<Application>, StoreError> {
        self.node.read(|state| settings::applications_of(&state.tables, kind, &page)).await
    }

    async fn delete_application(&self, app: AppKey, at: Timestamp) -> Result<bool, StoreError> {
        self.node.turn(move |batch| settings::delete_application(batch, app, at)).await
    }

    async fn put_endpoint(
        &self,
        endpoint: Endpoint,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.node
            .turn(move |batch| {
                settings::put(batch, remember, endpoint.updated_at, |batch| {
                    settings::put_endpoint(batch, endpoint, expect)
                })
            })
            .await?
    }

    async fn endpoint(&self, app: AppKey, by: By<EndpointKey>) -> Result<Option<Endpoint>, StoreError> {
        self.node.read(|state| settings::endpoint(&state.tables, app, by)).await
    }

    async fn endpoints(&self, app: AppKey, page: Page<EndpointKey>) -> Result<Vec<Endpoint>, StoreError> {
        self.node.read(|state| settings::endpoints(&state.tables, app, &page)).await
    }

    async fn endpoint_of_lane(&self, endpoint: EndpointKey) -> Result<Option<Endpoint>, StoreError> {
        self.node.read(|state| state.tables.living_endpoint(endpoint).map(|row| row.record.clone())).await
    }

    async fn delete_endpoint(&self, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<bool, StoreError> {
        self.node.turn(move |batch| settings::delete_endpoint(batch, app, endpoint, at)).await
    }

    async fn bury(&self, at: Timestamp) -> Result<bool, StoreError> {
        // Mostly there is nothing to bury, and then nobody has to stop writing for it.
        if self.node.read(|state| state.tables.unburied.is_empty()).await? {
            return Ok(false);
        }
        self.node.turn(move |batch| cancel::bury_step(batch, at)).await
    }

    async fn put_event_type(
        &self,
        event_type: EventType,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.node
            .turn(move |batch| {
                settings::put(batch, remember, event_type.updated_at, |batch| {
                    settings::put_event_type(batch, event_type, expect)
                })
            })
            .await?
    }

    async fn event_type(&self, name: &str) -> Result<Option<EventType>, StoreError> {
        self.node.read(|state| state.tables.event_types.get(name).cloned()).await
    }

    async fn event_types(&self, page: Page<String>, archived: Archived) -> Result<Vec<EventType>, StoreError> {
        self.node.read(|state| settings::event_types(&state.tables, &page, archived)).await
    }

    async fn delete_event_type(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.node.turn(move |batch| settings::delete_event_type(batch, &name)).await
    }

    async fn note(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.node.read(|state| state.tables.notes.get(name).cloned()).await
    }

    async fn put_note(&self, name: &str, value: Vec<u8>) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.node.turn(move |batch| drop(batch.tables.notes.insert(name, value))).await
    }

    async fn remember(&self, remember: Remember, at: Timestamp) -> Result<(), PutError> {
        self.node.turn(move |batch| settings::put(batch, Some(remember), at, |_| Ok(()))).await?
    }

    async fn dead_letters(
        &self,
        app: AppKey,
        filter: DeadFilter,
        page: Page<DeadKey>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.node.read(|state| history::dead_letters(&state.tables, app, &filter, &page)).await
    }

    async fn dead_letter(&self, app: AppKey, key: DeadKey) -> Result<Option<DeadLetter>, StoreError> {
        self.node.read(|state| history::dead_letter(&state.tables, app, key)).await
    }

    async fn count_dead_letters(&self, app: AppKey, filter: DeadFilter, limit: u64) -> Result<u64, StoreError> {
        self.node.read(|state| history::count_dead_letters(&state.tables, app, &filter, limit)).await
    }

    async fn replay(
        &self,
        app: AppKey,
        key: DeadKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<bool, PutError> {
        let replayed = self.node.turn(move |batch| {
            // What was not carried out is refused, so that its answer is not kept.
            settings::put(batch, remember, at, |batch| cancel::replay(batch, app, key, at))
        });
        match replayed.await? {
            Ok(()) => Ok(true),
            Err(PutError::Changed) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    async fn cancel_message(
        &self,
        app: AppKey,
        message: MessageKey,
        endpoint: Option<EndpointKey>,
        at: Timestamp,
    ) -> Result<u64, StoreError> {
        self.node.turn(move |batch| cancel::cancel_message(batch, app, message, endpoint, at)).await
    }

    async fn backlog(&self, endpoint: EndpointKey, since: Option<Timestamp>) -> Result<Backlog, StoreError> {
        self.node
            .read(|state| {
                let handed = match self.node.kind() {
                    Kind::Alone => self.node.memory().outstanding.of(endpoint),
                    Kind::Many => handed_to(&state.tables, &state.cluster, endpoint),
                };
                cancel::backlog(&state.tables, endpoint, since, &handed)
            })
            .await
    }

    async fn expire(
        &self,
        endpoint: EndpointKey,
        from: Option<MessageKey>,
        untried_before: Timestamp,
        now: Timestamp,
    ) -> Result<Option<MessageKey>, StoreError> {
        self.node.turn(move |batch| cancel::expire(batch.tables, endpoint, from, untried_before, now)).await
    }

    async fn message(&self, app: AppKey, by: By<MessageKey>) -> Result<Option<Message>, StoreError> {
        self.node.read(|state| history::message(&state.tables, app, by)).await
    }

    async fn messages(
        &self,
        app: AppKey,
        filter: MessageFilter,
        page: Page<MessageKey>,
    ) -> Result<Vec<Message>, StoreError> {
        self.node.read(|state| history::messages(&state.tables, app, &filter, &page)).await
    }

    async fn attempts(
        &self,
        of: AttemptsOf,
        filter: AttemptFilter,
        page: Page<AttemptKey>,
    ) -> Result<Vec<Attempt>, StoreError> {
        self.node.read(|state| history::attempts(&state.tables, of, &filter, &page)).await
    }

    async fn attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<Option<Attempt>, StoreError> {
        self.node.read(|state| history::attempt(&state.tables, message, attempt)).await
    }

    async fn deliveries(&self, message: MessageKey) -> Result<Vec<(EndpointKey, DeliveryState)>, StoreError> {
        self.node.read(|state| history::deliveries(&state.tables, message)).await
    }

    async fn messages_of_endpoint(
        &self,
        app: AppKey,
        endpoint: EndpointKey,
        filter: MessageFilter,
        states: Vec<StateKind>,
        page: Page<MessageKey>,
    ) -> Result<Vec<(Message, DeliveryState)>, StoreError> {
        let lane = (app, endpoint);
        self.node.read(|state| history::messages_of_endpoint(&state.tables, lane, &filter, &states, &page)).await
    }

    async fn search(&self, app: Option<AppKey>, search: Search) -> Result<Searched, StoreError> {
        self.node.read(|state| history::search(&state.tables, app, &search)).await
    }

    async fn stats(&self, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Result<Stats, StoreError> {
        self.node.read(|state| history::stats(&state.tables, endpoint, since, until)).await
    }

    async fn expunge_message(&self, app: AppKey, message: MessageKey) -> Result<bool, StoreError> {
        self.node.turn(move |batch| tidy::expunge(batch.tables, app, message)).await
    }

    async fn expunge_messages(&self, app: AppKey, messages: Vec<MessageKey>) -> Result<Vec<bool>, StoreError> {
        self.node
            .turn(move |batch| messages.into_iter().map(|message| tidy::expunge(batch.tables, app, message)).collect())
            .await
    }

    async fn expunge_attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<bool, StoreError> {
        self.node.turn(move |batch| tidy::expunge_attempt(batch.tables, message, attempt)).await
    }

    async fn put_api_key(&self, api_key: ApiKey) -> Result<(), PutError> {
        self.node.turn(move |batch| callers::put_api_key(batch, api_key)).await?
    }

    async fn api_key(&self, key: ApiKeyKey) -> Result<Option<ApiKey>, StoreError> {
        self.node.read(|state| state.tables.api_keys.get(&key).cloned()).await
    }

    async fn api_keys(&self, page: Page<ApiKeyKey>) -> Result<Vec<ApiKey>, StoreError> {
        self.node.read(|state| callers::api_keys(&state.tables, &page)).await
    }

    async fn revoke_api_key(&self, key: ApiKeyKey, at: Timestamp) -> Result<Option<ApiKey>, StoreError> {
        self.node.turn(move |batch| callers::revoke_api_key(batch, key, at)).await
    }

    async fn rotate_api_key(&self, old: ApiKeyKey, until: Timestamp, new: ApiKey) -> Result<(), PutError> {
        self.node.turn(move |batch| callers::rotate_api_key(batch, old, until, new)).await?
    }

    async fn note_api_key_uses(&self, uses: Vec<(ApiKeyKey, Timestamp)>) -> Result<(), StoreError> {
        self.node.turn(move |batch| callers::note_uses(batch, &uses)).await
    }

    async fn revoke_tokens(&self, revocations: Vec<Revocation>) -> Result<(), StoreError> {
        self.node.turn(move |batch| callers::revoke_tokens(batch, revocations)).await
    }

    async fn is_revoked(&self, token: Issued, now: Timestamp) -> Result<bool, StoreError> {
        self.node.read(|state| callers::is_revoked(&state.tables, &token, now)).await
    }

    async fn horizon(&self, now: Timestamp) -> Result<MessageKey, StoreError> {
        self.node.turn(move |batch| pollers::horizon(batch, now)).await
    }

    async fn read_on(&self, app: AppKey, wanted: ReadOn) -> Result<WasRead, StoreError> {
        self.node.read(|state| pollers::read_on(&state.tables, app, &wanted)).await
    }

    async fn consumer(&self, poller: PollerKey, name: &str) -> Result<Option<Consumer>, StoreError> {
        self.node.read(|state| pollers::consumer(&state.tables, poller, name)).await
    }

    async fn consumers(&self, poller: PollerKey) -> Result<Vec<Consumer>, StoreError> {
        self.node.read(|state| pollers::consumers(&state.tables, poller)).await
    }

    async fn move_consumer(&self, stride: Stride, remember: Option<Remember>) -> Result<Consumer, PutError> {
        self.node.turn(move |batch| pollers::move_consumer(batch, stride, remember)).await?
    }

    async fn forget_consumers(&self, poller: PollerKey, name: Option<&str>) -> Result<bool, StoreError> {
        let name = name.map(str::to_owned);
        self.node.turn(move |batch| pollers::forget_consumers(batch, poller, name.as_deref())).await
    }

    async fn add_to_refused(&self, refused: Vec<Refused>) -> Result<(), StoreError> {
        self.node.turn(move |batch| refused::add(batch, refused)).await
    }

    async fn refused(&self, app: AppKey, page: Page<RefusedKey>) -> Result<Vec<Refused>, StoreError> {
        self.node.read(|state| refused::list(&state.tables, app, &page)).await
    }

    async fn add_to_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.node.turn(move |batch| callers::add_to_audit(batch, entries)).await
    }

    async fn audit(&self, filter: AuditFilter, page: Page<AuditKey>) -> Result<Vec<AuditEntry>, StoreError> {
        self.node.read(|state| callers::audit(&state.tables, &filter, &page)).await
    }

    async fn add_to_tallies(&self, tallies: Vec<Tally>) -> Result<(), StoreError> {
        self.node.turn(move |batch| tallies::add(batch, tallies)).await
    }

    async fn tallies_by_application(
        &self,
        events: (TallyCode, TallyCode),
        span: TallySpan,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<(AppKey, u64)>, StoreError> {
        let wanted = TalliesOf { of: TallyOf::Application(AppKey::new(0)), span, since, until };
        self.node.read(|state| tallies::by_application(&state.tables, events, wanted)).await
    }

    async fn tallies(&self, of: TalliesOf) -> Result<Vec<Counted>, StoreError> {
        self.node.read(|state| tallies::list(&state.tables, of)).await
    }

    async fn enter_alert(&self, app: Option<AppKey>, alert: AlertHappened, at: Timestamp) -> Result<(), StoreError> {
        self.node.turn(move |batch| journal::enter_alert(batch, app, alert, at)).await
    }

    async fn turn_alarm(&self, turn: AlarmTurn) -> Result<bool, StoreError> {
        self.node.turn(move |batch| journal::turn_alarm(batch, turn)).await
    }

    async fn raised_alarms(&self) -> Result<Vec<String>, StoreError> {
        self.node.read(|state| state.tables.alarms.iter().cloned().collect()).await
    }

    async fn untold(&self, limit: usize) -> Result<Vec<JournalEntry>, StoreError> {
        self.node.read(|state| journal::untold(&state.tables, limit)).await
    }

    async fn strike_out(&self, entries: Vec<JournalKey>) -> Result<(), StoreError> {
        self.node.turn(move |batch| journal::strike_out(batch, &entries)).await
    }

    async fn start_task(&self, task: Task, remember: Option<Remember>) -> Result<(), PutError> {
        self.node
            .turn(move |batch| settings::put(batch, remember, task.updated_at, |batch| tasks::start(batch, task)))
            .await?
    }

    async fn advance_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        self.node.turn(move |batch| tasks::advance(batch, task, at)).await
    }

    async fn task(&self, task: TaskKey) -> Result<Option<Task>, StoreError> {
        self.node.read(|state| state.tables.tasks.get(&task).map(|row| row.task.clone())).await
    }

    async fn tasks(&self, filter: TaskFilter, page: Page<TaskKey>) -> Result<Vec<Task>, StoreError> {
        self.node.read(|state| tasks::list(&state.tables, &filter, &page)).await
    }

    async fn cancel_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        self.node.turn(move |batch| tasks::cancel_task(batch, task, at)).await
    }

    async fn unfinished_tasks(&self) -> Result<Vec<TaskKey>, StoreError> {
        self.node.read(|state| tasks::unfinished(&state.tables)).await
    }

    async fn tidy(&self, now: Timestamp, retention: Retention) -> Result<bool, StoreError> {
        self.node.turn(move |batch| tidy::tidy(batch, now, retention)).await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        let (kind, own, now) = (self.node.kind(), self.tenure(), self.node.base.clock.now());
        match kind {
            Kind::Alone => Ok(Vec::new()),
            Kind::Many => self.node.read(|state| leases::nodes(&state.cluster, own, now)).await,
        }
    }

    async fn counts(&self, shards: Shards) -> Result<Counts, StoreError> {
        self.node
            .read(|state| {
                let tables = &state.tables;
                let lanes = tables.lanes.iter().filter(|(endpoint, _)| load::is_in(tables, **endpoint, shards));
                let dead = tables.dead_listed.iter().filter(|(app, _)| shards.has_lanes_of(*app));
                Counts { waiting: lanes.map(|(_, rows)| rows.len() as u64).sum(), dead: dead.count() as u64 }
            })
            .await
    }

    fn is_open(&self) -> bool {
        self.node.life() == Life::Running
    }

    async fn close(&self) {
        let (done, closed) = oneshot::channel();
        {
            let mut memory = self.node.memory();
            match memory.life {
                Life::Running => memory.life = Life::Closing,
                Life::Closing | Life::Closed => return,
                Life::Killed => {}
            }
            memory.queue.push_back(Job::Close(done));
        }
        self.node.jobs.notify_one();
        if closed.await.is_err() && self.node.life() == Life::Killed {
            std::future::pending::<()>().await;
        }
    }
}

/// A place in the queue, given up when whoever waited has his answer or has gone away.
struct Place<'s> {
    store: &'s SimStore,
    bytes: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut memory = self.store.node.memory();
        memory.queued_messages -= 1;
        memory.queued_bytes -= self.bytes;
    }
}
