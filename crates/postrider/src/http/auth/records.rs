//! What is stored, as handlers get at it: by showing for whom.
//!
//! No handler holds the store itself. What belongs to one application is reached through its [`Tenant`], which adds whose
//! it is to every question; everything at once through the `Environment`. Only the module around this one makes them, out
//! of a token that it has looked at: a call without that does not compile.

use crate::directory::EndpointEntry;
use postrider_engine::{AppKey, AttemptKey, EndpointKey, MessageKey, Timestamp, policy::Health};
use postrider_store::*;
use std::sync::Arc;

/// The store. By itself it only does what concerns no application.
pub struct Records(Arc<dyn Store>);

impl Records {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    pub(super) fn everything(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0)
    }

    pub(super) fn tenant(&self, app: AppKey) -> Tenant {
        Tenant { store: Arc::clone(&self.0), app }
    }

    /// The tasks of one application, or of all.
    pub(super) fn tasks(&self, of: Option<AppKey>) -> Tasks {
        Tasks { store: Arc::clone(&self.0), of }
    }

    pub async fn mint(&self, at: Timestamp) -> Result<i64, StoreError> {
        self.0.mint(at).await
    }

    pub async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        self.0.time().await
    }

    pub async fn event_type(&self, name: &str) -> Result<Option<EventType>, StoreError> {
        self.0.event_type(name).await
    }

    pub async fn event_types(&self, page: Page<String>, archived: Archived) -> Result<Vec<EventType>, StoreError> {
        self.0.event_types(page, archived).await
    }

    /// Whose answer it is, is part of what is remembered.
    pub async fn remember(&self, remember: Remember, at: Timestamp) -> Result<(), PutError> {
        self.0.remember(remember, at).await
    }

    pub async fn revoke_tokens(&self, revocations: Vec<Revocation>) -> Result<(), StoreError> {
        self.0.revoke_tokens(revocations).await
    }

    pub async fn api_key(&self, key: ApiKeyKey) -> Result<Option<ApiKey>, StoreError> {
        self.0.api_key(key).await
    }

    /// Whose they are is part of them.
    pub async fn add_to_refused(&self, refused: Vec<Refused>) -> Result<(), StoreError> {
        self.0.add_to_refused(refused).await
    }

    pub async fn add_to_audit(&self, entry: AuditEntry) -> Result<(), StoreError> {
        self.0.add_to_audit(vec![entry]).await
    }
}

/// What is stored of one application.
///
/// Where the store itself asks for an endpoint or a message and not for whose it is, the record is wanted here, and one of
/// another application is refused.
#[derive(Clone)]
pub struct Tenant {
    store: Arc<dyn Store>,
    app: AppKey,
}

/// What attempts were made of.
#[derive(Clone, Copy)]
pub enum TriesOf<'a> {
    Message(&'a Message),
    Endpoint(&'a Endpoint),
    Entry(&'a EndpointEntry),
}

impl Tenant {
    fn check(&self, app: AppKey) -> Result<(), StoreError> {
        if app == self.app { Ok(()) } else { Err(StoreError::Database(STRANGER.into())) }
    }

    pub async fn application(&self) -> Result<Option<Application>, StoreError> {
        self.store.application(By::Key(self.app)).await
    }

    pub async fn put_application(
        &self,
        application: Application,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.check(application.key)?;
        self.store.put_application(application, expect, remember).await
    }

    pub async fn delete_application(&self, at: Timestamp) -> Result<bool, StoreError> {
        self.store.delete_application(self.app, at).await
    }

    pub async fn endpoint(&self, by: By<EndpointKey>) -> Result<Option<Endpoint>, StoreError> {
        self.store.endpoint(self.app, by).await
    }

    pub async fn endpoints(&self, page: Page<EndpointKey>) -> Result<Vec<Endpoint>, StoreError> {
        self.store.endpoints(self.app, page).await
    }

    pub async fn put_endpoint(
        &self,
        endpoint: Endpoint,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.check(endpoint.app)?;
        self.store.put_endpoint(endpoint, expect, remember).await
    }

    pub async fn delete_endpoint(&self, endpoint: EndpointKey, at: Timestamp) -> Result<bool, StoreError> {
        self.store.delete_endpoint(self.app, endpoint, at).await
    }

    pub async fn health(&self, endpoint: &Endpoint) -> Result<Health, StoreError> {
        self.check(endpoint.app)?;
        self.store.health(endpoint.key).await
    }

    pub async fn reset_health(&self, endpoint: &Endpoint) -> Result<(), StoreError> {
        self.check(endpoint.app)?;
        self.store.reset_health(endpoint.key).await
    }

    pub async fn backlog(&self, endpoint: &Endpoint, since: Option<Timestamp>) -> Result<Backlog, StoreError> {
        self.check(endpoint.app)?;
        self.store.backlog(endpoint.key, since).await
    }

    pub async fn stats(&self, endpoint: &Endpoint, since: Timestamp, until: Timestamp) -> Result<Stats, StoreError> {
        self.check(endpoint.app)?;
        self.store.stats(endpoint.key, since, until).await
    }

    pub async fn tallies(
        &self,
        span: TallySpan,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<Counted>, StoreError> {
        self.store.tallies(TalliesOf { of: TallyOf::Application(self.app), span, since, until }).await
    }

    pub async fn endpoint_tallies(
        &self,
        endpoint: &Endpoint,
        span: TallySpan,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<Counted>, StoreError> {
        self.check(endpoint.app)?;
        self.store.tallies(TalliesOf { of: TallyOf::Endpoint(endpoint.key), span, since, until }).await
    }

    pub async fn message(&self, by: By<MessageKey>) -> Result<Option<Message>, StoreError> {
        self.store.message(self.app, by).await
    }

    pub async fn messages(&self, filter: MessageFilter, page: Page<MessageKey>) -> Result<Vec<Message>, StoreError> {
        self.store.messages(self.app, filter, page).await
    }

    pub async fn messages_of_endpoint(
        &self,
        endpoint: &Endpoint,
        filter: MessageFilter,
        states: Vec<StateKind>,
        page: Page<MessageKey>,
    ) -> Result<Vec<(Message, DeliveryState)>, StoreError> {
        self.check(endpoint.app)?;
        self.store.messages_of_endpoint(self.app, endpoint.key, filter, states, page).await
    }

    pub async fn search(&self, search: Search) -> Result<Searched, StoreError> {
        self.store.search(Some(self.app), search).await
    }

    pub async fn horizon(&self, now: Timestamp) -> Result<MessageKey, StoreError> {
        self.store.horizon(now).await
    }

    pub async fn read_on(&self, wanted: ReadOn) -> Result<WasRead, StoreError> {
        self.store.read_on(self.app, wanted).await
    }

    /// Of a poller that was found with this application.
    pub async fn consumer(&self, poller: PollerKey, name: &str) -> Result<Option<Consumer>, StoreError> {
        self.store.consumer(poller, name).await
    }

    pub async fn consumers(&self, poller: PollerKey) -> Result<Vec<Consumer>, StoreError> {
        self.store.consumers(poller).await
    }

    pub async fn move_consumer(&self, stride: Stride, remember: Option<Remember>) -> Result<Consumer, PutError> {
        self.check(stride.app)?;
        self.store.move_consumer(stride, remember).await
    }

    pub async fn forget_consumers(&self, poller: PollerKey, name: Option<&str>) -> Result<bool, StoreError> {
        self.store.forget_consumers(poller, name).await
    }

    pub async fn deliveries(&self, message: &Message) -> Result<Vec<(EndpointKey, DeliveryState)>, StoreError> {
        self.check(message.app)?;
        self.store.deliveries(message.key).await
    }

    pub async fn resend(
        &self,
        message: &Message,
        endpoint: &Endpoint,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.check(message.app)?;
        self.check(endpoint.app)?;
        self.store.resend(message.key, endpoint.key, at, remember).await
    }

    pub async fn cancel_message(
        &self,
        message: MessageKey,
        endpoint: Option<EndpointKey>,
        at: Timestamp,
    ) -> Result<u64, StoreError> {
        self.store.cancel_message(self.app, message, endpoint, at).await
    }

    pub async fn expunge_message(&self, message: MessageKey) -> Result<bool, StoreError> {
        self.store.expunge_message(self.app, message).await
    }

    pub async fn expunge_messages(&self, messages: Vec<MessageKey>) -> Result<Vec<bool>, StoreError> {
        self.store.expunge_messages(self.app, messages).await
    }

    pub async fn attempts(
        &self,
        of: TriesOf<'_>,
        filter: AttemptFilter,
        page: Page<AttemptKey>,
    ) -> Result<Vec<Attempt>, StoreError> {
        let (app, of) = match of {
            TriesOf::Message(message) => (message.app, AttemptsOf::Message(message.key)),
            TriesOf::Endpoint(endpoint) => (endpoint.app, AttemptsOf::Endpoint(self.app, endpoint.key)),
            TriesOf::Entry(endpoint) => (endpoint.lane.app, AttemptsOf::Endpoint(self.app, endpoint.key)),
        };
        self.check(app)?;
        self.store.attempts(of, filter, page).await
    }

    pub async fn attempt(&self, message: &Message, attempt: AttemptKey) -> Result<Option<Attempt>, StoreError> {
        self.check(message.app)?;
        self.store.attempt(message.key, attempt).await
    }

    pub async fn expunge_attempt(&self, message: &Message, attempt: AttemptKey) -> Result<bool, StoreError> {
        self.check(message.app)?;
        self.store.expunge_attempt(message.key, attempt).await
    }

    pub async fn dead_letters(&self, filter: DeadFilter, page: Page<DeadKey>) -> Result<Vec<DeadLetter>, StoreError> {
        self.store.dead_letters(self.app, filter, page).await
    }

    pub async fn dead_letter(&self, key: DeadKey) -> Result<Option<DeadLetter>, StoreError> {
        self.store.dead_letter(self.app, key).await
    }

    pub async fn count_dead_letters(&self, filter: DeadFilter, limit: u64) -> Result<u64, StoreError> {
        self.store.count_dead_letters(self.app, filter, limit).await
    }

    pub async fn replay(&self, key: DeadKey, at: Timestamp, remember: Option<Remember>) -> Result<bool, PutError> {
        self.store.replay(self.app, key, at, remember).await
    }

    pub async fn start_task(&self, task: Task, remember: Option<Remember>) -> Result<(), PutError> {
        self.check(task.app)?;
        self.store.start_task(task, remember).await
    }

    pub async fn advance_task(&self, task: &Task, at: Timestamp) -> Result<Option<Task>, StoreError> {
        self.check(task.app)?;
        self.store.advance_task(task.key, at).await
    }

    pub async fn refused(&self, page: Page<RefusedKey>) -> Result<Vec<Refused>, StoreError> {
        self.store.refused(self.app, page).await
    }

    pub fn tasks(&self) -> Tasks {
        Tasks { store: Arc::clone(&self.store), of: Some(self.app) }
    }
}

/// The background tasks of one application, or of all.
pub struct Tasks {
    store: Arc<dyn Store>,
    of: Option<AppKey>,
}

impl Tasks {
    pub async fn find(&self, key: TaskKey) -> Result<Option<Task>, StoreError> {
        let found = self.store.task(key).await?;
        Ok(found.filter(|task| self.of.is_none_or(|app| app == task.app)))
    }

    pub async fn list(
        &self,
        status: Option<TaskStatus>,
        kinds: Vec<&'static str>,
        page: Page<TaskKey>,
    ) -> Result<Vec<Task>, StoreError> {
        self.store.tasks(TaskFilter { app: self.of, status, kinds }, page).await
    }

    pub async fn cancel(&self, key: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        match self.find(key).await? {
            Some(task) => self.store.cancel_task(task.key, at).await,
            None => Ok(None),
        }
    }
}

const STRANGER: &str = "a record of another application was handed in";
