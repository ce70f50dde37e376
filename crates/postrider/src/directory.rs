//! Who subscribes to what, kept in memory: ingest asks it for each message, dispatch for each attempt.
//!
//! An application's entry is read from the store when it is first needed and forgotten when anything about the
//! application changes. A read that began before a change must not bring the old state back, so an entry is kept
//! only if nothing has changed since its read began.

use crate::{
    oauth::Oauth,
    pollers::{self, Poller},
    rules::headers::{is_forbidden, is_sensitive},
    sources::{Source, Unusable},
    transport::{AddressGuard, ClientTls, EndpointUrl, UrlError, UrlRules},
    vault::{ClientPem, Private, Vault},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use postrider_engine::{
    AppKey, EndpointKey, Timestamp,
    lanes::LaneSettings,
    policy::{Layer, Rules},
};
use postrider_signature::{PublicKey, SigningKey};
use postrider_store::{Application, Archived, By, Content, Cut, Endpoint, Order, Page, Store, StoreError};
use rustc_hash::FxHashMap;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

/// Entries kept before all are let go and read anew as they are needed.
const APPS_MAX: usize = 20_000;

/// Requests per second to an endpoint that says nothing about it: more than most receivers can take, and finite.
const RATE_DEFAULT: u32 = 50_000;

pub struct Directory {
    store: Arc<dyn Store>,
    vault: Arc<Vault>,
    guard: Arc<AddressGuard>,
    /// What the server says.
    rules: Arc<Layer>,
    known: RwLock<Known>,
    event_types: RwLock<Option<Arc<EventLayers>>>,
}

/// The event types that say something about how their messages are delivered.
type EventLayers = HashMap<String, Layer>;

pub struct AppEntry {
    /// What the store counted before the rest was read, where others can change it without our knowing at once.
    pub generation: Option<i64>,
    pub application: Application,
    /// The source that it is, or that it should be one and cannot be read.
    pub source: Option<Result<Source, Unusable>>,
    /// By which its messages are fetched, or that they cannot be read.
    pub pollers: Result<Vec<Poller>, serde_json::Error>,
    /// What it says about how its endpoints are treated.
    pub layer: Layer,
    pub endpoints: Vec<Arc<EndpointEntry>>,
}

/// An endpoint, prepared for matching and sending.
pub struct EndpointEntry {
    pub key: EndpointKey,
    pub lane: LaneSettings,
    /// How it is treated, as long as the event type says nothing else.
    pub rules: Rules,
    /// What it says itself.
    pub layer: Layer,
    event_types: Option<HashSet<String>>,
    channels: Option<HashSet<String>>,
    /// The URL as it was stored, for the log.
    pub shown_url: Arc<str>,
    /// Judged anew at every load, because what may be called can change with the settings.
    pub target: Result<EndpointUrl, UrlError>,
    pub headers: HeaderMap,
    /// What of TLS is its own.
    pub client_tls: Option<ClientTls>,
    /// Where its access tokens come from, if it wants any.
    pub oauth: Option<Oauth>,
    /// Its secrets could be opened, and all of them can be used. If not, the fault is ours, and it is not called.
    pub is_whole: bool,
    signing: Vec<(SigningKey, Option<Timestamp>)>,
}

#[derive(Default)]
struct Known {
    // Nobody chooses keys.
    apps: FxHashMap<AppKey, Arc<AppEntry>>,
    uids: HashMap<String, AppKey>,
    endpoints: FxHashMap<EndpointKey, Arc<EndpointEntry>>,
    /// Counts changes.
    generation: u64,
    /// The latest changes and whom they concerned, the newest last. `None`: event types.
    changes: VecDeque<(u64, Option<AppKey>)>,
}

impl Known {
    fn note(&mut self, app: Option<AppKey>) {
        self.generation += 1;
        self.changes.push_back((self.generation, app));
        if self.changes.len() > CHANGES_MAX {
            self.changes.pop_front();
        }
    }

    /// Whether something changed for them since then; also if that is no longer known.
    fn changed_since(&self, generation: u64, app: Option<AppKey>) -> bool {
        let known_from = self.changes.front().map_or(self.generation, |(first, _)| first - 1);
        generation < known_from || self.changes.iter().any(|(at, of)| *at > generation && *of == app)
    }
}

/// Changes that are remembered, so that a read under way is kept although another application changed meanwhile.
const CHANGES_MAX: usize = 256;

impl Directory {
    pub fn new(store: Arc<dyn Store>, vault: Arc<Vault>, guard: Arc<AddressGuard>, rules: Arc<Layer>) -> Self {
        Self { store, vault, guard, rules, known: RwLock::default(), event_types: RwLock::default() }
    }

    /// How a message of this type is delivered to an endpoint.
    pub async fn rules(&self, endpoint: &Arc<EndpointEntry>, event_type: &str) -> Result<RulesOf, StoreError> {
        let layers = self.event_layers().await?;
        let Some(layer) = layers.get(event_type) else { return Ok(RulesOf::Endpoint(Arc::clone(endpoint))) };
        let app = self.application(&By::Key(endpoint.lane.app)).await?;
        let further = app.as_ref().map(|app| &app.layer);
        let rules = Rules::resolve(std::iter::once(&*self.rules).chain(further).chain([&endpoint.layer, layer]));
        Ok(RulesOf::EventType(Box::new(rules)))
    }

    /// The longest that anything may wait untried for this endpoint, of whatever type it is.
    pub async fn hold_max(&self, endpoint: &EndpointEntry) -> Result<Duration, StoreError> {
        let layers = self.event_layers().await?;
        let longest = layers.values().filter_map(|layer| layer.hold_max).max();
        Ok(longest.into_iter().chain([endpoint.rules.policy.hold_max]).max().unwrap_or_default())
    }

    async fn event_layers(&self) -> Result<Arc<EventLayers>, StoreError> {
        if let Some(known) = &*self.event_types.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(known));
        }
        Box::pin(self.read_event_layers()).await
    }

    async fn read_event_layers(&self) -> Result<Arc<EventLayers>, StoreError> {
        let generation = self.known.read().unwrap_or_else(PoisonError::into_inner).generation;
        let (mut layers, mut last) = (EventLayers::new(), None);
        loop {
            let page = Page { from: last.map(Cut::Past), order: Order::Ascending, limit: 1_000 };
            let found = self.store.event_types(page, Archived::Show).await?;
            last = found.last().map(|event_type| event_type.name.clone());
            for event_type in found {
                if event_type.rules.is_some() {
                    layers.insert(event_type.name, crate::rules::Rules::stored(event_type.rules.as_deref()).layer());
                }
            }
            if last.is_none() {
                break;
            }
        }
        let layers = Arc::new(layers);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if !known.changed_since(generation, None) {
            *self.event_types.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&layers));
        }
        Ok(layers)
    }

    /// An event type was committed.
    pub fn event_types_changed(&self) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).note(None);
        *self.event_types.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub async fn application(&self, by: &By<AppKey>) -> Result<Option<Arc<AppEntry>>, StoreError> {
        let generation = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let key = match by {
                By::Key(key) => Some(key),
                By::Uid(uid) => known.uids.get(uid),
            };
            if let Some(entry) = key.and_then(|key| known.apps.get(key)) {
                return Ok(Some(Arc::clone(entry)));
            }
            known.generation
        };
        // What hardly ever happens lies in a box of its own: it is large, and all that know the answer would carry it along.
        let Some(entry) = Box::pin(self.look_up(by)).await?.map(Arc::new) else { return Ok(None) };
        self.keep(&entry, generation);
        Ok(Some(entry))
    }

    async fn look_up(&self, by: &By<AppKey>) -> Result<Option<AppEntry>, StoreError> {
        let app = match by {
            By::Key(key) => *key,
            By::Uid(_) => {
                let Some(application) = self.store.application(by.clone()).await? else { return Ok(None) };
                application.key
            }
        };
        // What was read before the count does not belong to it.
        let generation = self.store.generation(app).await?;
        let Some(application) = self.store.application(By::Key(app)).await? else { return Ok(None) };
        Ok(Some(self.read(application, generation).await?))
    }

    /// The store says that this entry is not how things stand any more.
    pub fn outdated(&self, entry: &AppEntry) {
        let app = entry.application.key;
        let kept = self.known.read().unwrap_or_else(PoisonError::into_inner).apps.get(&app).cloned();
        if kept.is_some_and(|kept| kept.generation == entry.generation) {
            self.changed(app);
        }
    }

    /// The endpoint of a lane. `None`: it was deleted.
    pub async fn endpoint(&self, endpoint: EndpointKey) -> Result<Option<Arc<EndpointEntry>>, StoreError> {
        if let Some(entry) = self.endpoint_at_hand(endpoint) {
            return Ok(Some(entry));
        }
        Box::pin(async {
            let Some(found) = self.store.endpoint_of_lane(endpoint).await? else { return Ok(None) };
            let app = self.application(&By::Key(found.app)).await?;
            Ok(app.and_then(|app| app.endpoints.iter().find(|entry| entry.key == endpoint).cloned()))
        })
        .await
    }

    /// The same, if it need not be read first.
    pub fn endpoint_at_hand(&self, endpoint: EndpointKey) -> Option<Arc<EndpointEntry>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).endpoints.get(&endpoint).cloned()
    }

    /// Something about this application or its endpoints was committed.
    pub fn changed(&self, app: AppKey) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.note(Some(app));
        if let Some(entry) = known.apps.remove(&app) {
            if let Some(uid) = &entry.application.uid {
                known.uids.remove(uid);
            }
            for endpoint in &entry.endpoints {
                known.endpoints.remove(&endpoint.key);
            }
        }
    }

    /// Changes may have been missed. What is being read at the moment is not kept either.
    pub fn forget_all(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        *known = Known { generation: known.generation + 1, ..Known::default() };
        drop(known);
        *self.event_types.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn read(&self, application: Application, generation: Option<i64>) -> Result<AppEntry, StoreError> {
        let layer = crate::rules::Rules::stored(application.rules.as_deref()).layer();
        let mut endpoints: Vec<Arc<EndpointEntry>> = Vec::new();
        loop {
            let from = endpoints.last().map(|last| Cut::Past(last.key));
            let page = Page { from, order: Order::Ascending, limit: 1_000 };
            let found = self.store.endpoints(application.key, page).await?;
            if found.is_empty() {
                let source = self.source(&application);
                let pollers = pollers::stored(application.pollers.as_deref());
                return Ok(AppEntry { generation, application, source, pollers, layer, endpoints });
            }
            endpoints.extend(found.into_iter().map(|endpoint| Arc::new(self.prepare(&application, &layer, endpoint))));
        }
    }

    fn source(&self, application: &Application) -> Option<Result<Source, Unusable>> {
        let sealed = application.source.as_ref()?;
        let opened = self.vault.open_source(application.key, sealed).map_err(|error| error.to_string());
        let read = opened.and_then(|plain| Source::read(&plain));
        Some(read.map_err(|error| {
            tracing::error!(application = application.key.raw(), error, "a source cannot be used; it takes nothing");
            Unusable
        }))
    }

    fn prepare(&self, application: &Application, further: &Layer, endpoint: Endpoint) -> EndpointEntry {
        let layer = crate::rules::Rules::stored(endpoint.rules.as_deref()).layer();
        let rules = Rules::resolve([&*self.rules, further, &layer]);
        // Whether plain http is welcome is decided when an endpoint is made, not each time it is called.
        let url_rules = UrlRules { https_only: false, guard: &self.guard };
        let opened = self.vault.open(endpoint.key, &endpoint.sealed).map_err(|error| error.to_string());
        let read = opened.and_then(|private| Credentials::read(private, &url_rules));
        let is_whole = read.is_ok();
        let Credentials { signing, headers, client_tls, oauth } = read.unwrap_or_else(|error| {
            tracing::error!(
                endpoint = endpoint.key.raw(),
                error,
                "an endpoint's secrets cannot be used; it is not called"
            );
            Credentials::default()
        });
        EndpointEntry {
            key: endpoint.key,
            lane: LaneSettings {
                app: application.key,
                app_rate: application.rate_limit,
                in_flight_max: rules.in_flight_max.0,
                rate: Some(endpoint.rate_limit.unwrap_or(RATE_DEFAULT)),
                parked: endpoint.disabled.is_some(),
                ordering: rules.ordering,
                breaker: rules.breaker,
                disable: rules.disable,
                gone: false,
                unknown: false,
            },
            rules,
            layer,
            event_types: endpoint.event_types.map(HashSet::from_iter),
            channels: endpoint.channels.map(HashSet::from_iter),
            target: EndpointUrl::parse(&endpoint.url, &url_rules),
            shown_url: endpoint.url.into(),
            headers,
            client_tls,
            oauth,
            is_whole,
            signing,
        }
    }

    fn keep(&self, entry: &Arc<AppEntry>, generation: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.changed_since(generation, Some(entry.application.key)) {
            return;
        }
        if known.apps.len() >= APPS_MAX {
            let (generation, changes) = (known.generation, std::mem::take(&mut known.changes));
            *known = Known { generation, changes, ..Known::default() };
        }
        if let Some(uid) = &entry.application.uid {
            known.uids.insert(uid.clone(), entry.application.key);
        }
        for endpoint in &entry.endpoints {
            known.endpoints.insert(endpoint.key, Arc::clone(endpoint));
        }
        known.apps.insert(entry.application.key, Arc::clone(entry));
    }
}

/// What is sealed in an endpoint, ready to be used.
#[derive(Default)]
struct Credentials {
    signing: Vec<(SigningKey, Option<Timestamp>)>,
    headers: HeaderMap,
    client_tls: Option<ClientTls>,
    oauth: Option<Oauth>,
}

impl Credentials {
    fn read(private: Private, url_rules: &UrlRules<'_>) -> Result<Self, String> {
        let signing = private.secrets.iter().map(|active| (SigningKey::from(&active.secret), active.expires_at));
        // They were judged when they were set, perhaps by a version that knew of fewer.
        let allowed = private.headers.iter().filter(|(name, _)| !is_forbidden(&name.to_ascii_lowercase()));
        let headers = allowed.filter_map(|(name, value)| {
            let mut header = HeaderValue::try_from(value).ok()?;
            header.set_sensitive(is_sensitive(name));
            Some((HeaderName::try_from(name).ok()?, header))
        });
        let load = |pem: &ClientPem| {
            let identity = pem.identity.as_ref().map(|text| text.as_str());
            ClientTls::load(identity, pem.authorities.as_deref()).map_err(|(part, flaw)| format!("{part:?}: {flaw}"))
        };
        let oauth = private.oauth.map(|settings| {
            let url = EndpointUrl::parse(&settings.token_url, url_rules);
            Oauth::new(settings, url)
        });
        Ok(Self {
            signing: signing.collect(),
            headers: headers.collect(),
            client_tls: private.client_tls.as_ref().map(load).transpose()?,
            oauth,
        })
    }
}

/// The rules that a delivery goes by, and whose they are.
pub enum RulesOf {
    Endpoint(Arc<EndpointEntry>),
    EventType(Box<Rules>),
}

impl std::ops::Deref for RulesOf {
    type Target = Rules;

    fn deref(&self) -> &Rules {
        match self {
            Self::Endpoint(endpoint) => &endpoint.rules,
            Self::EventType(rules) => rules,
        }
    }
}

impl EndpointEntry {
    /// An endpoint with channels gets only messages on one of them.
    pub fn wants(&self, content: &Content) -> bool {
        let type_fits = self.event_types.as_ref().is_none_or(|wanted| wanted.contains(&content.event_type));
        let channel_fits =
            self.channels.as_ref().is_none_or(|wanted| content.channels.iter().any(|channel| wanted.contains(channel)));
        type_fits && channel_fits
    }

    /// The keys that sign now: the current one first, then old ones still in their time of grace.
    pub fn signing_keys(&self, now: Timestamp) -> impl Iterator<Item = &SigningKey> {
        self.signing.iter().filter(move |(_, expires_at)| expires_at.is_none_or(|at| now < at)).map(|(key, _)| key)
    }

    /// Of those that have one.
    pub fn public_keys(&self, now: Timestamp) -> Vec<PublicKey> {
        self.signing_keys(now).filter_map(SigningKey::public).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_kept_unless_its_own_application_changed_meanwhile() {
        let (mine, other) = (AppKey::new(1), AppKey::new(2));
        let mut known = Known::default();
        let begun = known.generation;
        assert!(!known.changed_since(begun, Some(mine)));
        known.note(Some(other));
        known.note(None);
        assert!(!known.changed_since(begun, Some(mine)), "others may change as they like");
        assert!(known.changed_since(begun, Some(other)) && known.changed_since(begun, None));
        known.note(Some(mine));
        assert!(known.changed_since(begun, Some(mine)));
        assert!(!known.changed_since(known.generation, Some(mine)), "a read that began after it");
    }

    #[test]
    fn what_cannot_be_loaded_is_not_left_out() {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: false, guard: &guard };
        let private = |identity: &str| {
            let identity = Some(zeroize::Zeroizing::new(identity.to_owned()));
            Private { client_tls: Some(ClientPem { identity, authorities: None }), ..Private::default() }
        };
        let refused = Credentials::read(private("canary"), &rules).err().expect("an endpoint without its certificate");
        assert!(refused.contains("not PEM") && !refused.contains("canary"), "{refused}");
        assert!(Credentials::read(Private::default(), &rules).is_ok());
    }

    #[test]
    fn a_read_that_took_longer_than_changes_are_remembered_is_not_trusted() {
        let mut known = Known::default();
        for number in 0..CHANGES_MAX as i64 {
            known.note(Some(AppKey::new(number + 10)));
        }
        assert!(!known.changed_since(0, Some(AppKey::new(1))), "all of them are still known");
        known.note(Some(AppKey::new(2)));
        assert!(known.changed_since(0, Some(AppKey::new(1))));
    }
}
