//! Endpoints: where an application's messages go, and which of them.

pub mod ingest;
pub mod operational;

use super::{
    Api,
    auth::InApp,
    endpoint_headers, endpoint_health,
    error::{Error, HttpErrorOut, HttpValidationError},
    event_types,
    extract::{JsonBytes, Patch, Query, given, parse},
    fields::{Channel, Description, Metadata, Rate, Several, Strings, TypeName, Uid, either},
    idempotency::{IdempotencyKey, answer, conclude, json},
    page::{Asked, ListOut},
    rules::{RulesPatch, with_rules},
    time::Time,
};
use crate::{
    config::SignatureType,
    ids::IdCodec,
    rules::Rules,
    tokens::Capability,
    transport::url::{EndpointUrl, UrlCredentials, UrlRules},
    vault::{ActiveSecret, Private, Vault},
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::{EndpointKey, Timestamp, policy::DisableReason};
use postrider_signature::{PrivateKey, Secret, SigningSecret};
use postrider_store::{By, Disabled, Endpoint, Expect, Order, PutError};
use rand::CryptoRng;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{collections::BTreeMap, sync::Arc};
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, put, patch, delete))
}

with_rules! {
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointIn {
    #[schema(example = "https://example.com/webhooks")]
    url: String,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$")]
    uid: Option<Uid<EndpointKey>>,
    disabled: Option<bool>,
    /// Which event types it gets: all, if absent or empty.
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Option<EventTypes>,
    /// The older name of `eventTypes`.
    #[schema(value_type = Option<Vec<String>>)]
    filter_types: Option<EventTypes>,
    #[schema(value_type = Option<Vec<String>>, max_items = 10)]
    channels: Option<Channels>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    /// Requests per second.
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
    /// The older name of `throttleRate`.
    #[schema(value_type = Option<u16>, minimum = 1)]
    rate_limit: Option<Rate>,
    /// Made at random if absent.
    #[schema(value_type = Option<String>, example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    secret: Option<SecretIn>,
    /// Sent along with each message.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    headers: Option<Strings>,
    /// A thing of the past; accepted, and always 1.
    #[schema(deprecated)]
    version: Option<u16>,
}
}

with_rules! {
/// Without secret and headers, which have operations of their own.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointUpsertIn {
    #[schema(example = "https://example.com/webhooks")]
    url: String,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[schema(value_type = Option<String>)]
    uid: Option<Uid<EndpointKey>>,
    disabled: Option<bool>,
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Option<EventTypes>,
    #[schema(value_type = Option<Vec<String>>)]
    filter_types: Option<EventTypes>,
    #[schema(value_type = Option<Vec<String>>, max_items = 10)]
    channels: Option<Channels>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
    #[schema(value_type = Option<u16>, minimum = 1)]
    rate_limit: Option<Rate>,
    #[schema(deprecated)]
    version: Option<u16>,
}
}

with_rules! {
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointPatch {
    #[serde(default, deserialize_with = "given")]
    url: Option<String>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    uid: Patch<Uid<EndpointKey>>,
    #[serde(default, deserialize_with = "given")]
    disabled: Option<bool>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Patch<EventTypes>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    filter_types: Patch<EventTypes>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    channels: Patch<Channels>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    #[serde(default)]
    #[schema(value_type = Option<u16>)]
    throttle_rate: Patch<Rate>,
    #[serde(default)]
    #[schema(value_type = Option<u16>)]
    rate_limit: Patch<Rate>,
    #[serde(default, deserialize_with = "given")]
    #[schema(deprecated)]
    version: Option<u16>,
}
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointOut {
    #[schema(example = "ep_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    uid: Option<String>,
    url: String,
    description: String,
    disabled: bool,
    event_types: Option<Vec<String>>,
    filter_types: Option<Vec<String>>,
    channels: Option<Vec<String>>,
    metadata: BTreeMap<String, String>,
    throttle_rate: Option<u32>,
    rate_limit: Option<u32>,
    version: u16,
    #[serde(flatten)]
    rules: Rules,
    created_at: Time,
    updated_at: Time,
}

type EventTypes = Several<TypeName, EVENT_TYPES_MAX>;
type Channels = Several<Channel, CHANNELS_MAX>;

impl EndpointOut {
    fn of(ids: &IdCodec, endpoint: Endpoint) -> Self {
        Self {
            id: ids.id_of(endpoint.key),
            uid: endpoint.uid,
            url: endpoint.url,
            description: endpoint.description,
            disabled: endpoint.disabled.is_some(),
            event_types: endpoint.event_types.clone(),
            filter_types: endpoint.event_types,
            channels: endpoint.channels,
            metadata: endpoint.metadata,
            throttle_rate: endpoint.rate_limit,
            rate_limit: endpoint.rate_limit,
            version: VERSION,
            rules: Rules::stored(endpoint.rules.as_deref()),
            created_at: Time(endpoint.created_at),
            updated_at: Time(endpoint.updated_at),
        }
    }
}

/// A signing secret that a caller brings along. Nothing of it goes into an error.
#[derive(Clone)]
pub struct SecretIn(pub SigningSecret);

impl<'de> Deserialize<'de> for SecretIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        SigningSecret::parse(&text).map(Self).map_err(|_| {
            de::Error::custom(format_args!(
                "must be `whsec_` and base64 of {} to {} bytes, or `whsk_` and base64 of a pair of Ed25519 keys",
                Secret::BYTES_MIN,
                Secret::BYTES_MAX
            ))
        })
    }
}

impl std::fmt::Debug for SecretIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretIn(hidden)")
    }
}

/// What an endpoint is made of, once both spellings have been brought together.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    url: String,
    /// What the URL held besides.
    credentials: Option<UrlCredentials>,
    uid: Option<String>,
    description: String,
    disabled: bool,
    event_types: Option<Vec<String>>,
    channels: Option<Vec<String>>,
    metadata: BTreeMap<String, String>,
    rate_limit: Option<u32>,
    rules: RulesPatch,
}

impl EndpointUpsertIn {
    fn wanted(mut self, rules: &UrlRules<'_>) -> Result<Wanted, Error> {
        check_version(self.version)?;
        let own_rules = self.take_rules();
        let event_types = either(("eventTypes", self.event_types), ("filterTypes", self.filter_types))?;
        let rate = either(("throttleRate", self.throttle_rate), ("rateLimit", self.rate_limit))?;
        let (url, credentials) = read_url(&self.url, rules)?;
        Ok(Wanted {
            url,
            credentials,
            uid: self.uid.map(|uid| uid.0),
            description: self.description.map(|text| text.0).unwrap_or_default(),
            disabled: self.disabled.unwrap_or(false),
            event_types: event_types.and_then(names),
            channels: self.channels.and_then(channel_names),
            metadata: self.metadata.unwrap_or_default().0,
            rate_limit: rate.map(|rate| rate.0),
            rules: own_rules,
        })
    }
}

impl EndpointIn {
    /// What the endpoint is, and what of it is to be sealed.
    fn wanted(
        mut self,
        rules: &UrlRules<'_>,
        kind: SignatureType,
        rng: &mut impl CryptoRng,
    ) -> Result<(Wanted, Private), Error> {
        let own_rules = self.take_rules();
        let headers = endpoint_headers::check(self.headers.unwrap_or_default().0)?;
        let secret = self.secret.map_or_else(|| new_secret(kind, rng), |secret| secret.0);
        let rest = EndpointUpsertIn {
            url: self.url,
            description: self.description,
            uid: self.uid,
            disabled: self.disabled,
            event_types: self.event_types,
            filter_types: self.filter_types,
            channels: self.channels,
            metadata: self.metadata,
            throttle_rate: self.throttle_rate,
            rate_limit: self.rate_limit,
            version: self.version,
            ..EndpointUpsertIn::default()
        };
        let wanted = Wanted { rules: own_rules, ..rest.wanted(rules)? };
        let secrets = vec![ActiveSecret { secret, expires_at: None }];
        let mut private = Private { secrets, headers, ..Private::default() };
        // Both in one request: which of them is meant cannot be known, not even if the other is of the same kind.
        if wanted.credentials.is_some() && private.authorization().is_some() {
            return Err(two_credentials());
        }
        wanted.take_credentials(&mut private)?;
        Ok((wanted, private))
    }
}

impl Wanted {
    fn take_credentials(&self, private: &mut Private) -> Result<(), Error> {
        self.credentials.as_ref().map_or(Ok(()), |credentials| put_credentials(private, credentials))
    }

    fn create(self, app: &InApp, key: EndpointKey, sealed: Vec<u8>, now: Timestamp) -> Endpoint {
        Endpoint {
            key,
            app: app.key(),
            version: 1,
            uid: self.uid,
            url: self.url,
            description: self.description,
            disabled: self.disabled.then_some(Disabled { why: DisableReason::Manual, at: now }),
            event_types: self.event_types,
            channels: self.channels,
            metadata: self.metadata,
            rate_limit: self.rate_limit,
            rules: self.rules.apply(None).to_store(),
            sealed,
            created_at: now,
            updated_at: now,
        }
    }

    fn replace(self, app: &InApp, old: &Endpoint, now: Timestamp) -> Endpoint {
        let rules = self.rules.clone().apply(old.rules.as_deref()).to_store();
        let disabled = self.disabled.then(|| old.disabled.unwrap_or(Disabled { why: DisableReason::Manual, at: now }));
        Endpoint {
            version: old.version + 1,
            rules,
            disabled,
            created_at: old.created_at,
            ..self.create(app, old.key, old.sealed.clone(), now)
        }
    }
}

impl EndpointPatch {
    /// What the endpoint is then, and what the URL held besides.
    fn apply(
        mut self,
        old: &Endpoint,
        rules: &UrlRules<'_>,
        now: Timestamp,
    ) -> Result<(Endpoint, Option<UrlCredentials>), Error> {
        check_version(self.version)?;
        let new_rules = self.take_rules().apply(old.rules.as_deref());
        let mut new =
            Endpoint { version: old.version + 1, rules: new_rules.to_store(), updated_at: now, ..old.clone() };
        let mut credentials = None;
        if let Some(url) = self.url {
            (new.url, credentials) = read_url(&url, rules)?;
        }
        if let Some(Description(description)) = self.description {
            new.description = description;
        }
        if let Some(disabled) = self.disabled {
            new.disabled = disabled.then(|| old.disabled.unwrap_or(Disabled { why: DisableReason::Manual, at: now }));
        }
        if let Some(Metadata(metadata)) = self.metadata {
            new.metadata = metadata;
        }
        self.uid.map(|uid| uid.0).apply(&mut new.uid);
        match Patch::either(("eventTypes", self.event_types), ("filterTypes", self.filter_types))? {
            Patch::Keep => {}
            Patch::Clear => new.event_types = None,
            Patch::Set(list) => new.event_types = names(list),
        }
        match self.channels {
            Patch::Keep => {}
            Patch::Clear => new.channels = None,
            Patch::Set(list) => new.channels = channel_names(list),
        }
        Patch::either(("throttleRate", self.throttle_rate), ("rateLimit", self.rate_limit))?
            .map(|rate| rate.0)
            .apply(&mut new.rate_limit);
        Ok((new, credentials))
    }
}

impl Api {
    pub(super) fn url_rules(&self) -> UrlRules<'_> {
        UrlRules { https_only: self.settings.https_only, guard: &self.guard }
    }

    /// What is sealed in an endpoint.
    pub(super) fn open(&self, endpoint: &Endpoint) -> Result<Private, Error> {
        self.vault.open(endpoint.key, &endpoint.sealed).map_err(|fault| {
            error!(endpoint.id = self.ids.id_of(endpoint.key), error = %fault, "an endpoint's secrets cannot be read");
            Error::Internal
        })
    }

    /// Brings what is sealed in an endpoint in line with its new URL.
    fn fit_to_url(&self, new: &mut Endpoint, credentials: Option<&UrlCredentials>) -> Result<(), Error> {
        if credentials.is_none() && !Vault::may_hold_more(&new.sealed) {
            return Ok(());
        }
        let mut private = self.open(new)?;
        if private.client_tls.is_some() && !new.url.starts_with("https://") {
            return Err(Error::invalid(
                ["url"],
                "must be https: the endpoint has a client certificate or an authority",
            ));
        }
        if let Some(credentials) = credentials {
            put_credentials(&mut private, credentials)?;
            new.sealed = self.seal(new.key, &private);
        }
        Ok(())
    }

    pub(super) fn seal(&self, endpoint: EndpointKey, private: &Private) -> Vec<u8> {
        self.vault.seal(endpoint, private, &mut *self.rng())
    }

    pub(super) fn rng(&self) -> std::sync::MutexGuard<'_, rand::rngs::StdRng> {
        self.rng.lock().expect("no one panics while drawing numbers")
    }
}

/// Changes an endpoint's sealed part, and tells what it is then.
pub(super) async fn reseal(
    api: &Api,
    app: &InApp,
    change: impl Fn(Private) -> Result<Private, Error>,
    remember: Option<postrider_store::Remember>,
) -> Result<(), PutOutcome> {
    for _ in 0..TRIES_MAX {
        let old = app.endpoint(api).await.map_err(PutOutcome::Failed)?;
        let private = change(api.open(&old).map_err(PutOutcome::Failed)?).map_err(PutOutcome::Failed)?;
        let new = Endpoint {
            version: old.version + 1,
            updated_at: (api.clock)(),
            sealed: api.seal(old.key, &private),
            ..old.clone()
        };
        match app.store.put_endpoint(new, Expect::Version(old.version), remember.clone()).await {
            Err(PutError::Changed) => continue,
            Err(PutError::Repeated(_)) => return Err(PutOutcome::Repeated),
            written => written.map_err(|fault| PutOutcome::Failed(fault.into()))?,
        }
        api.directory.changed(app.key());
        return Ok(());
    }
    Err(PutOutcome::Failed(PutError::Changed.into()))
}

pub(super) enum PutOutcome {
    /// The same request was carried out before.
    Repeated,
    Failed(Error),
}

/// Longer than the contract's 24 bytes: as long as the hash it keys.
pub(super) fn new_secret(kind: SignatureType, rng: &mut impl CryptoRng) -> SigningSecret {
    let mut bytes = zeroize::Zeroizing::new([0; 32]);
    rng.fill_bytes(bytes.as_mut());
    match kind {
        SignatureType::Hmac256 => {
            Secret::from_bytes(bytes.as_ref()).expect("32 bytes are within a secret's limits").into()
        }
        SignatureType::Ed25519 => PrivateKey::from_seed(&bytes).into(),
    }
}

fn read_url(text: &str, rules: &UrlRules<'_>) -> Result<(String, Option<UrlCredentials>), Error> {
    if text.contains('\0') {
        return Err(Error::invalid(["url"], "must not hold NUL characters"));
    }
    match EndpointUrl::parse_with_credentials(text, rules) {
        Ok((url, credentials)) => Ok((url.as_str().to_owned(), credentials)),
        Err(fault) => Err(Error::invalid(["url"], fault.to_string())),
    }
}

/// Credentials of a URL are kept as a header, and take the place of others of that kind: so a URL can be set again, with the
/// same or a new password.
fn put_credentials(private: &mut Private, credentials: &UrlCredentials) -> Result<(), Error> {
    if private.oauth.is_some() {
        return Err(Error::invalid(["url"], "the URL holds a password, and the endpoint is called with OAuth tokens"));
    }
    match private.authorization().map(|(name, value)| (name.clone(), value.starts_with("Basic "))) {
        None => private.headers.insert("authorization".to_owned(), credentials.header().to_owned()),
        Some((name, true)) => private.headers.insert(name, credentials.header().to_owned()),
        Some((_, false)) => return Err(two_credentials()),
    };
    endpoint_headers::check(std::mem::take(&mut private.headers)).map(|headers| private.headers = headers)
}

fn two_credentials() -> Error {
    Error::invalid(["url"], "the URL holds a user name or password, and the endpoint has an Authorization header too")
}

/// An empty list means all, as does none.
fn names(list: EventTypes) -> Option<Vec<String>> {
    (!list.0.is_empty()).then(|| list.0.into_iter().map(|name| name.0).collect())
}

fn channel_names(list: Channels) -> Option<Vec<String>> {
    (!list.0.is_empty()).then(|| list.0.into_iter().map(|name| name.0).collect())
}

fn check_rules(api: &Api, app: &InApp, old: Option<&Endpoint>, new: &Endpoint) -> Result<(), Error> {
    api.check_rules(&[&app.entry.layer], old.and_then(|old| old.rules.as_deref()), new.rules.as_deref())
}

fn check_version(version: Option<u16>) -> Result<(), Error> {
    match version {
        None | Some(VERSION) => Ok(()),
        Some(_) => Err(Error::invalid(["version"], "only version 1 exists")),
    }
}

/// List the endpoints of an application.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint", operation_id = "v1.endpoint.list", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<EndpointOut>)))]
async fn list(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    query.finish()?;
    let rows = app.store.endpoints(asked.page()).await?;
    let list = asked.answer(rows, &api.ids, |row| row.key, |row| EndpointOut::of(&api.ids, row));
    Ok(json(StatusCode::OK, &list))
}

/// Create an endpoint.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint", operation_id = "v1.endpoint.create", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = EndpointIn,
    responses(
        (status = 201, body = EndpointOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let (wanted, private) =
        parse::<EndpointIn>(&body)?.wanted(&api.url_rules(), api.settings.default_signature_type, &mut *api.rng())?;
    event_types::check_exist(&api, &app.principal, ("eventTypes", wanted.event_types.as_deref())).await?;
    make(&api, &app, (wanted, private), (&key, &body), EndpointOut::of).await
}

/// Makes what is wanted; `show` is what its maker is answered.
async fn make<T: Serialize>(
    api: &Api,
    app: &InApp,
    (wanted, private): (Wanted, Private),
    (key, body): (&IdempotencyKey, &[u8]),
    show: impl Fn(&IdCodec, Endpoint) -> T,
) -> Result<Response, Error> {
    let now = (api.clock)();
    let minted = EndpointKey::new(api.records.mint(now).await?);
    let endpoint = wanted.create(app, minted, api.seal(minted, &private), now);
    check_rules(api, app, None, &endpoint)?;
    let prepared = answer(StatusCode::CREATED, &show(&api.ids, endpoint.clone()));
    let remember = key.remember(&app.principal, body, &prepared);
    let written = app.store.put_endpoint(endpoint, Expect::Absent, remember).await;
    api.directory.changed(app.key());
    conclude(written, prepared)
}

/// Get an endpoint.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.get",
    tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = EndpointOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &EndpointOut::of(&api.ids, app.endpoint(&api).await?)))
}

/// Update an endpoint, or create it.
#[utoipa::path(put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.upsert",
    tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointUpsertIn,
    responses(
        (status = 200, body = EndpointOut, description = "It was updated"),
        (status = 201, body = EndpointOut, description = "It was created"),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let wanted = parse::<EndpointUpsertIn>(&body)?.wanted(&api.url_rules())?;
    event_types::check_exist(&api, &app.principal, ("eventTypes", wanted.event_types.as_deref())).await?;
    replace(&api, &app, wanted, EndpointOut::of).await
}

/// Puts what is wanted in the place of the endpoint that the path names, or makes it; `show` is what is answered.
async fn replace<T: Serialize>(
    api: &Api,
    app: &InApp,
    mut wanted: Wanted,
    show: impl Fn(&IdCodec, Endpoint) -> T,
) -> Result<Response, Error> {
    let by = app.endpoint_by(api)?;
    if let (By::Uid(uid), None) = (&by, &wanted.uid) {
        wanted.uid = Some(uid.clone());
    }
    for _ in 0..TRIES_MAX {
        let wanted = wanted.clone();
        let now = (api.clock)();
        let old = app.store.endpoint(by.clone()).await?;
        let (status, new, expect) = match (&old, &by) {
            (Some(old), _) => {
                let credentials = wanted.credentials.clone();
                let mut new = wanted.replace(app, old, now);
                api.fit_to_url(&mut new, credentials.as_ref())?;
                (StatusCode::OK, new, Expect::Version(old.version))
            }
            (None, By::Uid(uid)) if wanted.uid.as_ref() == Some(uid) => {
                let minted = EndpointKey::new(api.records.mint(now).await?);
                let secret = ActiveSecret {
                    secret: new_secret(api.settings.default_signature_type, &mut *api.rng()),
                    expires_at: None,
                };
                let mut private = Private { secrets: vec![secret], ..Private::default() };
                wanted.take_credentials(&mut private)?;
                let sealed = api.seal(minted, &private);
                (StatusCode::CREATED, wanted.create(app, minted, sealed, now), Expect::Absent)
            }
            (None, By::Uid(_)) => return Err(Error::invalid(["uid"], "must equal the one in the path")),
            (None, By::Key(_)) => return Err(Error::NotFound),
        };
        check_rules(api, app, old.as_ref(), &new)?;
        if let Some(old) = old.as_ref().filter(|old| old.disabled.is_some()) {
            endpoint_health::end_resume(api, app, old).await?;
        }
        let shown = show(&api.ids, new.clone());
        match app.store.put_endpoint(new, expect, None).await {
            Err(PutError::Changed) => continue,
            Err(PutError::Taken) if expect == Expect::Absent => continue,
            written => written?,
        }
        api.directory.changed(app.key());
        return Ok(json(status, &shown));
    }
    Err(PutError::Changed.into())
}

/// Change parts of an endpoint.
#[utoipa::path(patch, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.patch",
    tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointPatch,
    responses(
        (status = 200, body = EndpointOut),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn patch(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    for _ in 0..TRIES_MAX {
        let patch: EndpointPatch = parse(&body)?;
        let old = app.endpoint(&api).await?;
        if old.disabled.is_some() && patch.disabled.is_some() {
            endpoint_health::end_resume(&api, &app, &old).await?;
        }
        let (mut new, credentials) = patch.apply(&old, &api.url_rules(), (api.clock)())?;
        if new.url != old.url || credentials.is_some() {
            api.fit_to_url(&mut new, credentials.as_ref())?;
        }
        if new.event_types != old.event_types {
            event_types::check_exist(&api, &app.principal, ("eventTypes", new.event_types.as_deref())).await?;
        }
        if new.rules != old.rules {
            check_rules(&api, &app, Some(&old), &new)?;
        }
        let shown = EndpointOut::of(&api.ids, new.clone());
        match app.store.put_endpoint(new, Expect::Version(old.version), None).await {
            Err(PutError::Changed) => continue,
            written => written?,
        }
        api.directory.changed(app.key());
        return Ok(json(StatusCode::OK, &shown));
    }
    Err(PutError::Changed.into())
}

/// Delete an endpoint.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}", operation_id = "v1.endpoint.delete",
    tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let deleted = app.store.delete_endpoint(endpoint.key, (api.clock)()).await?;
    api.directory.changed(app.key());
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(Error::NotFound) }
}

const VERSION: u16 = 1;
const CHANNELS_MAX: usize = 10;
/// Each is looked up, so that there is a limit to them.
const EVENT_TYPES_MAX: usize = 500;
/// How often a change is begun anew when someone else is faster.
const TRIES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::egress::AddressGuard;
    use postrider_engine::AppKey;
    use rand::SeedableRng;
    use rand_chacha::ChaCha20Rng;

    const NOW: Timestamp = Timestamp::from_millis(1_000);
    const PAUSED: Option<Disabled> = Some(Disabled { why: DisableReason::Manual, at: NOW });

    fn read(body: &str) -> Result<(Wanted, Private), Error> {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: false, guard: &guard };
        parse::<EndpointIn>(body.as_bytes())?.wanted(&rules, SignatureType::Hmac256, &mut ChaCha20Rng::seed_from_u64(1))
    }

    fn patched(body: &str) -> Result<Endpoint, Error> {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: true, guard: &guard };
        parse::<EndpointPatch>(body.as_bytes())?.apply(&endpoint(), &rules, NOW).map(|(new, _)| new)
    }

    fn endpoint() -> Endpoint {
        Endpoint {
            key: EndpointKey::new(2),
            app: AppKey::new(1),
            version: 7,
            uid: Some("u".into()),
            url: "https://example.com/".into(),
            description: String::new(),
            disabled: None,
            event_types: Some(vec!["a".into()]),
            channels: Some(vec!["c".into()]),
            metadata: BTreeMap::new(),
            rate_limit: Some(3),
            rules: None,
            sealed: vec![1],
            created_at: Timestamp::from_millis(0),
            updated_at: Timestamp::from_millis(0),
        }
    }

    #[test]
    fn a_url_is_enough() {
        let (wanted, private) = read(r#"{"url":"https://example.com/hook"}"#).unwrap();
        assert_eq!(wanted.url, "https://example.com/hook");
        assert_eq!((wanted.event_types, wanted.channels, wanted.disabled), (None, None, false));
        let SigningSecret::Shared(secret) = &private.secrets[0].secret else { panic!("a secret is the default") };
        assert_eq!(secret.as_bytes().len(), 32);
    }

    #[test]
    fn old_and_new_names_are_the_same_field() {
        for body in [
            r#"{"url":"https://example.com","eventTypes":["a"],"throttleRate":5}"#,
            r#"{"url":"https://example.com","filterTypes":["a"],"rateLimit":5,"version":1}"#,
            r#"{"url":"https://example.com","eventTypes":["a"],"filterTypes":["a"],"throttleRate":5,"rateLimit":5}"#,
        ] {
            let (wanted, _) = read(body).unwrap();
            assert_eq!((wanted.event_types, wanted.rate_limit), (Some(vec!["a".into()]), Some(5)), "{body}");
        }
        let (all, _) = read(r#"{"url":"https://example.com","eventTypes":[],"channels":[]}"#).unwrap();
        assert_eq!((all.event_types, all.channels), (None, None), "an empty list means all");
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for rest in [
            r#""eventTypes":["a"],"filterTypes":["b"]"#,
            r#""throttleRate":1,"rateLimit":2"#,
            r#""version":2"#,
            r#""channels":["1","2","3","4","5","6","7","8","9","10","11"]"#,
            r#""channels":["a b"]"#,
            r#""eventTypes":["a/b"]"#,
            r#""uid":"ep_x""#,
            r#""secret":"short""#,
            r#""secret":"whsk_C2FVsBQIhrscChlQIMV+b5sSYspob7oD""#,
            r#""headers":{"host":"x"}"#,
            r#""headers":{"x-a":"1","x-a":"2"}"#,
            r#""metadata":{"a":"\u0000"}"#,
            r#""colour":"red""#,
            r#""url":"https://example.com""#,
        ] {
            let body = format!(r#"{{"url":"https://example.com",{rest}}}"#);
            assert!(matches!(read(&body), Err(Error::Invalid(_))), "{rest}");
        }
        for url in [
            "",
            "example.com",
            "ftp://example.com",
            "https://127.0.0.1",
            "https://a:b@127.0.0.1",
            "https://x\\u0000.com",
        ] {
            let refused = read(&format!(r#"{{"url":"{url}"}}"#));
            assert!(matches!(refused, Err(Error::Invalid(flaws)) if flaws[0].loc == ["body", "url"]), "{url}");
        }
    }

    #[test]
    fn a_password_in_a_url_becomes_a_header() {
        let (wanted, private) = read(r#"{"url":"https://me:canary@example.com/hook"}"#).unwrap();
        assert_eq!(wanted.url, "https://example.com/hook");
        assert_eq!(private.headers["authorization"], "Basic bWU6Y2FuYXJ5");
        assert!(!format!("{wanted:?}").contains("canary"));
        for header in ["Authorization", "authorization"] {
            for value in ["Bearer x", "Basic bWU6"] {
                let body = format!(r#"{{"url":"https://me:canary@example.com","headers":{{"{header}":"{value}"}}}}"#);
                let Err(Error::Invalid(flaws)) = read(&body) else { panic!("{body}") };
                assert!(flaws[0].loc == ["body", "url"] && !flaws[0].msg.contains("canary"), "{flaws:?}");
            }
        }
    }

    #[test]
    fn a_password_takes_the_place_of_one_and_of_nothing_else() {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: false, guard: &guard };
        let (_, credentials) = read_url("https://me:new@example.com/", &rules).unwrap();
        let credentials = credentials.unwrap();
        for (name, value, accepted) in
            [("Authorization", "Basic bWU6b2xk", true), ("authorization", "Bearer x", false), ("x-other", "1", true)]
        {
            let headers = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let mut private = Private { headers, ..Private::default() };
            let put = put_credentials(&mut private, &credentials);
            assert_eq!(put.is_ok(), accepted, "{name}: {value}");
            let found = private.authorization().map(|(_, value)| value.as_str());
            assert_eq!(found == Some("Basic bWU6bmV3"), accepted, "{name}: {value}");
        }
    }

    #[test]
    fn an_error_says_nothing_of_the_secret() {
        let refused = read(r#"{"url":"https://example.com","secret":"canary"}"#);
        assert!(!format!("{refused:?}").contains("canary"));
    }

    #[test]
    fn a_patch_changes_what_it_names() {
        for (body, expected) in [
            ("{}", endpoint()),
            (r#"{"uid":null,"disabled":true}"#, Endpoint { uid: None, disabled: PAUSED, ..endpoint() }),
            (r#"{"eventTypes":null}"#, Endpoint { event_types: None, ..endpoint() }),
            (r#"{"filterTypes":[]}"#, Endpoint { event_types: None, ..endpoint() }),
            (r#"{"eventTypes":["b"]}"#, Endpoint { event_types: Some(vec!["b".into()]), ..endpoint() }),
            (r#"{"channels":null,"rateLimit":null}"#, Endpoint { channels: None, rate_limit: None, ..endpoint() }),
            (r#"{"url":"https://example.org"}"#, Endpoint { url: "https://example.org/".into(), ..endpoint() }),
        ] {
            let expected = Endpoint { version: 8, updated_at: NOW, ..expected };
            assert_eq!(patched(body), Ok(expected), "{body}");
        }
        for body in [r#"{"url":null}"#, r#"{"url":"http://example.org"}"#, r#"{"disabled":null}"#, r#"{"secret":"x"}"#]
        {
            assert!(matches!(patched(body), Err(Error::Invalid(_))), "{body}");
        }
    }

    #[test]
    fn both_spellings_are_written() {
        let shown = serde_json::to_value(EndpointOut::of(&IdCodec::new([0; 16]), endpoint())).unwrap();
        assert_eq!(shown["eventTypes"], shown["filterTypes"]);
        assert_eq!(shown["throttleRate"], 3);
        assert_eq!(shown["rateLimit"], 3);
        assert_eq!(shown["version"], 1);
        assert!(shown.get("sealed").is_none());
    }
}
