//! Who brings a token or an API key, and whether it still holds.
//!
//! Whether one was revoked stands in the store, and every call brings one. So what was found out is trusted for a few
//! seconds: a revocation holds everywhere within five, and at once where it was made, and who sends a thousand messages a
//! second costs a look every other second. If the store cannot be asked for longer than that, nobody gets in.

pub mod key_text;
pub mod scopes;

use crate::{
    config::Hidden,
    tokens::{Access, Capability, Principal, Read, Tokens},
};
use key_text::{KeyTexts, looks_like_a_key};
use postrider_engine::Timestamp;
use postrider_store::{ApiKey, ApiKeyKey, Issued, Store, StoreError};
use scopes::{Scope, Scopes};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;
use tracing::debug;

pub struct Credentials {
    tokens: Arc<Tokens>,
    texts: KeyTexts,
    store: Arc<dyn Store>,
    seen: Seen,
    /// Raised whenever something is revoked here: what was found out before is then asked again.
    generation: AtomicU64,
    begun: Instant,
    /// Of keys that are not remembered any more.
    uses: Mutex<HashMap<ApiKeyKey, Timestamp>>,
}

/// Who makes a call, and what he may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    pub principal: Principal,
    pub scopes: Scopes,
    pub identity: Identity,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    Token {
        issued: Issued,
        /// What it calls itself.
        name: Option<String>,
        ends_at: Timestamp,
    },
    ApiKey(ApiKeyKey),
}

#[derive(Debug)]
pub enum Refusal {
    Invalid,
    /// It names a key that there is, and is not that key.
    WrongSecret(ApiKeyKey),
    /// It is not known whether it holds.
    Unknown(StoreError),
}

/// What to do if it cannot be found out whether a credential was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubt {
    Refuse,
    /// For what must be seen just then.
    Trust,
}

impl Credentials {
    pub fn new(tokens: Arc<Tokens>, texts: KeyTexts, store: Arc<dyn Store>) -> Self {
        Self {
            tokens,
            texts,
            store,
            seen: Seen::new(),
            generation: AtomicU64::new(0),
            begun: Instant::now(),
            uses: Mutex::default(),
        }
    }

    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The text of a new API key, which is shown once, and the hash that is stored in its place.
    pub fn make_key(&self, key: ApiKeyKey) -> Result<(Hidden, [u8; 32]), rand::rngs::SysError> {
        self.texts.make(key)
    }

    /// One that was found to be good lately.
    pub fn recognise(&self, text: &str) -> Option<Arc<Known>> {
        self.seen.find(text)
    }

    /// Whether one that was good lately still is.
    pub async fn confirm(&self, known: &Known, now: Timestamp, in_doubt: InDoubt) -> Result<Arc<Bearer>, Refusal> {
        if !known.holds(now) {
            return Err(Refusal::Invalid);
        }
        let came = self.moment();
        let is_trusted = known.is_younger(TRUSTED_FOR, came);
        if !known.is_younger(FRESH_FOR, came) {
            let turn = match in_doubt {
                // What must be seen just then stands in no queue.
                InDoubt::Trust => Turn::NoNeed,
                // One asks anew, ahead of time, and the others need not wait for it.
                InDoubt::Refuse if is_trusted => known.asking.try_lock().map_or(Turn::Another, Turn::Mine),
                // It is too late for that, and they do, so that they do not all ask at once.
                InDoubt::Refuse => Turn::Mine(known.asking.lock().await),
            };
            let moment = self.moment();
            if !matches!(turn, Turn::Another) && !known.is_younger(FRESH_FOR, moment) {
                match self.ask_in_turn(known, came, now).await {
                    Ok(true) => known.confirmed(moment),
                    Ok(false) => {
                        self.forget(known);
                        return Err(Refusal::Invalid);
                    }
                    Err(_) if is_trusted || in_doubt == InDoubt::Trust => {}
                    Err(fault) => return Err(Refusal::Unknown(fault)),
                }
            }
        }
        known.used_at.fetch_max(now.as_millis(), Relaxed);
        Ok(Arc::clone(&known.bearer))
    }

    /// Looks at one that is not known.
    pub async fn verify(&self, text: &str, now: Timestamp, in_doubt: InDoubt) -> Result<Arc<Bearer>, Refusal> {
        let moment = self.moment();
        let known = if looks_like_a_key(text) {
            self.verify_key(text, now).await?
        } else {
            let read = self.tokens.verify(text, now).map_err(|_| Refusal::Invalid)?;
            let known = Known::token(self.seen.tag(text), read);
            match self.ask(&known, now).await {
                Ok(true) => known,
                Ok(false) => return Err(Refusal::Invalid),
                Err(_) if in_doubt == InDoubt::Trust => return Ok(known.bearer),
                Err(fault) => return Err(Refusal::Unknown(fault)),
            }
        };
        known.confirmed(moment);
        known.used_at.store(now.as_millis(), Relaxed);
        let bearer = Arc::clone(&known.bearer);
        if let Some(leaving) = self.seen.keep(Arc::new(known)) {
            self.keep_use_of(&leaving);
        }
        Ok(bearer)
    }

    /// Something was revoked: nothing that was found out before holds any more on this node.
    pub fn forget_all(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    /// Writes down, once a minute, when keys were used last.
    pub async fn keep(&self) {
        loop {
            tokio::time::sleep(NOTE_USES_EVERY).await;
            self.note_uses().await;
        }
    }

    pub async fn note_uses(&self) {
        for known in self.seen.all() {
            self.keep_use_of(&known);
        }
        let uses = std::mem::take(&mut *self.uses.lock().unwrap_or_else(PoisonError::into_inner));
        if uses.is_empty() {
            return;
        }
        if let Err(error) = self.store.note_api_key_uses(uses.into_iter().collect()).await {
            debug!(%error, "when API keys were used last could not be written down");
        }
    }

    async fn verify_key(&self, text: &str, now: Timestamp) -> Result<Known, Refusal> {
        let presented = self.texts.read(text).ok_or(Refusal::Invalid)?;
        let stored = self.store.api_key(presented.key).await.map_err(Refusal::Unknown)?.ok_or(Refusal::Invalid)?;
        if !presented.is(&stored) {
            return Err(Refusal::WrongSecret(presented.key));
        }
        if !stored.holds(now) {
            return Err(Refusal::Invalid);
        }
        Ok(Known::api_key(self.seen.tag(text), &stored))
    }

    /// For one who may have waited while another asked. If that came to nothing, so has this: each would wait as long again for a
    /// store that does not answer, one after the other.
    async fn ask_in_turn(&self, known: &Known, came: Moment, now: Timestamp) -> Result<bool, StoreError> {
        if known.failed_at.load(Relaxed).checked_sub(1).is_some_and(|failed_at| failed_at > came.at) {
            return Err(StoreError::Unreachable("whether the token holds could not be looked up".to_owned()));
        }
        let answer = self.ask(known, now).await;
        if answer.is_err() {
            known.failed_at.store(self.moment().at + 1, Relaxed);
        }
        answer
    }

    async fn ask(&self, known: &Known, now: Timestamp) -> Result<bool, StoreError> {
        match &known.bearer.identity {
            Identity::Token { issued, .. } => Ok(!self.store.is_revoked(issued.clone(), now).await?),
            Identity::ApiKey(key) => {
                let Some(stored) = self.store.api_key(*key).await? else { return Ok(false) };
                known.until.store(end_of(&stored), Relaxed);
                Ok(stored.holds(now))
            }
        }
    }

    fn forget(&self, known: &Known) {
        self.keep_use_of(known);
        self.seen.drop_one(known.tag);
    }

    fn keep_use_of(&self, known: &Known) {
        let Identity::ApiKey(key) = known.bearer.identity else { return };
        let used_at = known.used_at.load(Relaxed);
        if known.noted_at.swap(used_at, Relaxed) != used_at {
            let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
            let latest = uses.entry(key).or_insert(Timestamp::from_millis(used_at));
            *latest = (*latest).max(Timestamp::from_millis(used_at));
        }
    }

    fn moment(&self) -> Moment {
        let generation = self.generation.load(Relaxed);
        Moment { generation, at: millis(self.begun.elapsed()) }
    }
}

/// Who asks the store about a credential.
enum Turn<'a> {
    Mine(#[expect(dead_code, reason = "it is held until the answer is here")] tokio::sync::MutexGuard<'a, ()>),
    Another,
    NoNeed,
}

/// When something was asked, and after which revocation.
#[derive(Clone, Copy)]
struct Moment {
    generation: u64,
    /// In milliseconds since the start.
    at: u64,
}

/// A credential that was found to be good, and when.
pub struct Known {
    tag: Tag,
    bearer: Arc<Bearer>,
    from: i64,
    until: AtomicI64,
    asked_at: AtomicU64,
    generation: AtomicU64,
    /// Held by whoever asks the store about it.
    asking: tokio::sync::Mutex<()>,
    /// When that last came to nothing, and one more; 0: never.
    failed_at: AtomicU64,
    used_at: AtomicI64,
    noted_at: AtomicI64,
}

impl Known {
    fn token(tag: Tag, read: Read) -> Self {
        let Read { principal, issued, name, from, until } = read;
        let scopes = match principal {
            Principal::Environment => Scopes::EVERYTHING,
            Principal::Application { access: Access { poller: Some(_), .. }, .. } => Scopes::NOTHING,
            Principal::Application { .. } => Scopes::PORTAL,
        };
        let identity = Identity::Token { issued, name, ends_at: until };
        Self::new(tag, Bearer { principal, scopes, identity }, from.as_millis(), until.as_millis())
    }

    fn api_key(tag: Tag, stored: &ApiKey) -> Self {
        let scopes = Scopes::stored(&stored.scopes);
        let principal = match stored.app {
            None => Principal::Environment,
            Some(app) => Principal::Application { app, access: access_of(scopes) },
        };
        let identity = Identity::ApiKey(stored.key);
        Self::new(tag, Bearer { principal, scopes, identity }, i64::MIN, end_of(stored))
    }

    fn new(tag: Tag, bearer: Bearer, from: i64, until: i64) -> Self {
        Self {
            tag,
            bearer: Arc::new(bearer),
            from,
            until: AtomicI64::new(until),
            asked_at: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            asking: tokio::sync::Mutex::default(),
            failed_at: AtomicU64::new(0),
            used_at: AtomicI64::new(i64::MIN),
            noted_at: AtomicI64::new(i64::MIN),
        }
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.from <= now.as_millis() && now.as_millis() < self.until.load(Relaxed)
    }

    /// As of when it was asked, not of when the answer came. The generation last: whoever finds it finds the other, too, or
    /// an older one.
    fn confirmed(&self, asked: Moment) {
        self.asked_at.store(asked.at, Relaxed);
        self.generation.store(asked.generation, Relaxed);
    }

    /// Whether it was found to be good within this time, and nothing was revoked since.
    fn is_younger(&self, age: Duration, now: Moment) -> bool {
        self.generation.load(Relaxed) == now.generation
            && now.at.saturating_sub(self.asked_at.load(Relaxed)) < millis(age)
    }
}

/// What a key for one application may do there, in the words of portal tokens.
fn access_of(scopes: Scopes) -> Access {
    let mut capabilities = vec![Capability::ViewBase];
    if scopes.allow(Scope::Manage) {
        capabilities.extend([
            Capability::ViewEndpointSecret,
            Capability::ManageEndpointSecret,
            Capability::ManageTransformations,
            Capability::ManageEndpoint,
        ]);
    }
    if scopes.allow(Scope::Replay) {
        capabilities.push(Capability::CreateAttempts);
    }
    Access { capabilities, feature_flags: None, poller: None }
}

fn end_of(stored: &ApiKey) -> i64 {
    let ends = [stored.expires_at, stored.revoked_at];
    ends.into_iter().flatten().min().map_or(i64::MAX, Timestamp::as_millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The credentials seen of late, because every call brings one and most bring the same.
///
/// One for each slot, and a newcomer takes its slot over: so it is bounded without keeping books. What is compared is a keyed
/// hash of the text. Nobody who does not know the key can find another text with the same 128 bits, nor learn anything from
/// how long it takes to compare two numbers.
struct Seen {
    hasher: SipHasher24,
    slots: Box<[RwLock<Option<Arc<Known>>>]>,
}

/// Stands for a credential's text.
type Tag = u128;

impl Seen {
    fn new() -> Self {
        let secret: Vec<u8> = (0..2).flat_map(|_| RandomState::new().hash_one(()).to_ne_bytes()).collect();
        let secret: &[u8; 16] = secret.as_slice().try_into().expect("twice eight bytes");
        let slots = (0..SEEN_MAX).map(|_| RwLock::default()).collect();
        Self { hasher: SipHasher24::new_with_key(secret), slots }
    }

    fn tag(&self, text: &str) -> Tag {
        let mut hasher = self.hasher;
        hasher.write(text.as_bytes());
        hasher.finish128().as_u128()
    }

    fn find(&self, text: &str) -> Option<Arc<Known>> {
        let tag = self.tag(text);
        let slot = self.slot(tag).read().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().filter(|known| known.tag == tag).cloned()
    }

    /// Returns the one that was there before.
    fn keep(&self, known: Arc<Known>) -> Option<Arc<Known>> {
        let mut slot = self.slot(known.tag).write().unwrap_or_else(PoisonError::into_inner);
        slot.replace(known)
    }

    fn drop_one(&self, tag: Tag) {
        let mut slot = self.slot(tag).write().unwrap_or_else(PoisonError::into_inner);
        slot.take_if(|known| known.tag == tag);
    }

    fn all(&self) -> impl Iterator<Item = Arc<Known>> {
        self.slots.iter().filter_map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn slot(&self, tag: Tag) -> &RwLock<Option<Arc<Known>>> {
        &self.slots[usize::try_from(tag % u128::from(SEEN_MAX)).expect("below SEEN_MAX")]
    }
}

/// So that a revocation holds everywhere within five seconds, the look at it included.
const TRUSTED_FOR: Duration = Duration::from_secs(4);
const FRESH_FOR: Duration = Duration::from_secs(2);
const NOTE_USES_EVERY: Duration = Duration::from_secs(60);
const SEEN_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{TokenAlgorithm, TokenKey, TokenSettings},
        ids::IdCodec,
        keyring::Keyring,
    };
    use postrider_store::SqliteStore;
    use tokio::time::advance;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const KEY: ApiKeyKey = ApiKeyKey(7);

    struct Gate {
        credentials: Credentials,
        key: Hidden,
        token: String,
        _folder: tempfile::TempDir,
    }

    impl Gate {
        async fn set() -> Self {
            let folder = tempfile::tempdir().expect("a folder for the test");
            let keyring = Keyring::open_or_create(folder.path()).expect("made");
            let ids = IdCodec::new(*keyring.ids());
            let settings = TokenSettings { algorithm: TokenAlgorithm::HS256, key: TokenKey::Keyring };
            let tokens = Arc::new(Tokens::new(&settings, &keyring, ids.clone()).expect("made"));
            let store = Arc::new(SqliteStore::open(folder.path(), NOW).expect("a store"));
            let credentials = Credentials::new(tokens, KeyTexts::new(ids, keyring.tokens()), store);
            let (key, hash) = credentials.make_key(KEY).expect("made");
            let (name, scopes) = (String::new(), vec!["read".to_owned()]);
            let made = ApiKey {
                key: KEY,
                hash,
                name,
                scopes,
                app: None,
                created_at: NOW,
                expires_at: Some(NOW.plus(Duration::from_secs(60))),
                revoked_at: None,
                used_at: None,
            };
            credentials.store.put_api_key(made).await.expect("written");
            let token = credentials.tokens.mint_environment(NOW, Duration::from_secs(60)).expect("minted");
            Self { credentials, key, token, _folder: folder }
        }

        /// As a call does.
        async fn lets_in(&self, text: &str, now: Timestamp, in_doubt: InDoubt) -> Result<Scopes, Refusal> {
            let bearer = match self.credentials.recognise(text) {
                Some(known) => self.credentials.confirm(&known, now, in_doubt).await,
                None => self.credentials.verify(text, now, in_doubt).await,
            };
            bearer.map(|bearer| bearer.scopes)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_store_what_was_good_lately_is_good_for_seconds_and_no_longer() {
        let gate = Gate::set().await;
        for text in [gate.key.reveal(), &gate.token] {
            assert!(gate.lets_in(text, NOW, InDoubt::Refuse).await.is_ok());
        }
        gate.credentials.store.close().await;
        for (step, is_let_in) in [(0, true), (1_900, true), (2_000, true), (150, false)] {
            advance(Duration::from_millis(step)).await;
            for text in [gate.key.reveal(), &gate.token] {
                let found = gate.lets_in(text, NOW, InDoubt::Refuse).await;
                assert!(if is_let_in { found.is_ok() } else { matches!(found, Err(Refusal::Unknown(_))) }, "{step}");
                assert!(gate.lets_in(text, NOW, InDoubt::Trust).await.is_ok());
            }
        }
        let (unseen, _) = gate.credentials.make_key(KEY).expect("made");
        let found = gate.lets_in(unseen.reveal(), NOW, InDoubt::Trust).await;
        assert!(matches!(found, Err(Refusal::Unknown(_))), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_in_use_is_asked_about_before_its_time_is_over() {
        let gate = Gate::set().await;
        for step in [0, 1_000, 1_500, 1_000, 1_500] {
            advance(Duration::from_millis(step)).await;
            assert!(gate.lets_in(&gate.token, NOW, InDoubt::Refuse).await.is_ok());
        }
        // The last time that it was asked about is no older than this.
        gate.credentials.store.close().await;
        advance(TRUSTED_FOR - Duration::from_millis(10)).await;
        assert!(gate.lets_in(&gate.token, NOW, InDoubt::Refuse).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_asks_and_goes_away_leaves_it_to_the_next() {
        let gate = Gate::set().await;
        assert!(gate.lets_in(gate.key.reveal(), NOW, InDoubt::Refuse).await.is_ok());
        let mut is_gone = false;
        while !is_gone {
            advance(FRESH_FOR).await;
            // Sometimes the store has the answer at once.
            is_gone = tokio::select! {
                biased;
                _ = gate.lets_in(gate.key.reveal(), NOW, InDoubt::Refuse) => false,
                () = std::future::ready(()) => true,
            };
        }
        advance(TRUSTED_FOR - FRESH_FOR - Duration::from_millis(10)).await;
        gate.credentials.store.revoke_api_key(KEY, NOW).await.expect("written");
        let found = gate.lets_in(gate.key.reveal(), NOW, InDoubt::Refuse).await;
        assert!(matches!(found, Err(Refusal::Invalid)), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_for_an_answer_that_did_not_come_does_not_wait_again() {
        let gate = Gate::set().await;
        assert!(gate.lets_in(&gate.token, NOW, InDoubt::Refuse).await.is_ok());
        advance(TRUSTED_FOR).await;
        let known = gate.credentials.recognise(&gate.token).expect("known");
        let asking = known.asking.lock().await;
        let waiting = gate.lets_in(&gate.token, NOW, InDoubt::Refuse);
        let fails = async {
            advance(Duration::from_secs(20)).await;
            known.failed_at.store(gate.credentials.moment().at + 1, Relaxed);
            drop(asking);
        };
        let (found, ()) = tokio::join!(waiting, fails);
        assert!(matches!(found, Err(Refusal::Unknown(_))), "{found:?}");
        assert!(gate.lets_in(&gate.token, NOW, InDoubt::Refuse).await.is_ok(), "the next one asks");
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_node_revokes_ends_within_five_seconds() {
        let gate = Gate::set().await;
        for text in [gate.key.reveal(), &gate.token] {
            assert!(gate.lets_in(text, NOW, InDoubt::Refuse).await.is_ok());
        }
        gate.credentials.store.revoke_api_key(KEY, NOW).await.expect("written");
        let Identity::Token { issued, ends_at, .. } =
            gate.credentials.recognise(&gate.token).expect("known").bearer.identity.clone()
        else {
            panic!("a token is a token");
        };
        let revocation = postrider_store::Revocation::Token { id: issued.id, at: NOW, forget_at: ends_at };
        gate.credentials.store.revoke_tokens(vec![revocation]).await.expect("written");
        advance(Duration::from_secs(5)).await;
        for text in [gate.key.reveal(), &gate.token] {
            for _ in 0..2 {
                let found = gate.lets_in(text, NOW, InDoubt::Trust).await;
                assert!(matches!(found, Err(Refusal::Invalid)), "{found:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_credential_that_is_remembered_ends_at_its_time() {
        let gate = Gate::set().await;
        assert_eq!(gate.lets_in(gate.key.reveal(), NOW, InDoubt::Refuse).await.ok(), Some(Scopes::of([Scope::Read])));
        assert_eq!(gate.lets_in(&gate.token, NOW, InDoubt::Refuse).await.ok(), Some(Scopes::EVERYTHING));
        for (seconds, key, token) in [(59, true, true), (60, false, true), (119, false, true), (120, false, false)] {
            let now = NOW.plus(Duration::from_secs(seconds));
            assert_eq!(gate.lets_in(gate.key.reveal(), now, InDoubt::Refuse).await.is_ok(), key, "{seconds}");
            assert_eq!(gate.lets_in(&gate.token, now, InDoubt::Refuse).await.is_ok(), token, "{seconds}");
        }
    }

    #[tokio::test]
    async fn more_tokens_than_are_remembered_are_still_let_in() {
        let gate = Gate::set().await;
        for life in 0..3 * SEEN_MAX {
            let token = gate.credentials.tokens.mint_environment(NOW, Duration::from_secs(life)).expect("minted");
            assert!(gate.lets_in(&token, NOW, InDoubt::Refuse).await.is_ok());
        }
    }
}
