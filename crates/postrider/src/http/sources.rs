//! Sources: URLs for other services to send their webhooks to, and what is known of those services.
//!
//! A source is an application that is not among the others (decision 23). What it is lies sealed in that application's row;
//! its secrets are never shown again, and its URL only to those who may change it.

use super::{
    Api,
    auth::{Caller, Environment, InSource, source_by},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Patch, Query, given, parse, path_params},
    fields::{Metadata, Several},
    idempotency::{IdempotencyKey, answer, json},
    page::{Asked, ListOut},
    portal::Here,
    time::Time,
};
use crate::{
    credentials::scopes::Scope,
    ids::{Kind, SourceKey},
    ingest::content::is_text,
    sources::{
        self, PASS_HEADERS_MAX, Settings, Source, fields,
        presets::{self, Flaw},
        reading::Place,
    },
    tokens::Principal,
};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{AppKind, Application, By, Cut, Expect, Order, Page, PutError};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc};
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, put, patch, delete))
        .routes(routes!(rotate_token))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngestSourceIn {
    #[schema(value_type = String, min_length = 2, max_length = 256, example = "GitHub")]
    name: SourceName,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 60, pattern = "^[a-zA-Z0-9_-]+$")]
    uid: Option<SourceUid>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    /// The service that sends, or how someone else signs: the guide has the list.
    #[serde(rename = "type")]
    #[schema(example = "generic-webhook")]
    kind: String,
    /// What is to be known of the service: most want its signing `secret`.
    #[schema(value_type = Option<Object>)]
    config: Option<Value>,
    /// Headers that go along to the endpoints, beside those that the type has.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 20)]
    pass_headers: Patch<Several<String, PASS_HEADERS_MAX>>,
    /// Where an event's id stands: `header:x-id`, or `body:/data/id`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    id_from: Patch<Place>,
    /// Where an event's type stands.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    type_from: Patch<Place>,
}

/// The rest is changed by PUT, whole.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngestSourcePatch {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, min_length = 2, max_length = 256)]
    name: Option<SourceName>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    uid: Patch<SourceUid>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, max_items = 20)]
    pass_headers: Patch<Several<String, PASS_HEADERS_MAX>>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    id_from: Patch<Place>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    type_from: Patch<Place>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngestSourceOut {
    #[schema(example = "src_1srOrx2ZWZBpBUvZwXKQmo")]
    id: String,
    uid: Option<String>,
    name: String,
    metadata: BTreeMap<String, String>,
    #[serde(rename = "type")]
    kind: String,
    /// Without what is secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    config: Option<Value>,
    /// Requests are verified. Otherwise whoever knows the URL is believed.
    verified: bool,
    /// Where the service is to send to. Null for those who may not change the source: whoever knows it can send.
    ingest_url: Option<String>,
    /// The application that its messages, attempts and dead letters are of.
    app_id: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pass_headers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    id_from: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    type_from: Option<Place>,
    created_at: Time,
    updated_at: Time,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngestSourceListOut {
    data: Vec<IngestSourceOut>,
    /// Where the next page begins; null if this one is empty.
    #[schema(required)]
    iterator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_iterator: Option<String>,
    /// There is nothing more in this direction.
    done: bool,
    /// Those of this page that are there and cannot be read. What is sent to them is answered with 503.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableSourceOut>,
}

/// What is known of a source whose settings cannot be read: not its type, for one, without which it is no source of the
/// contract's.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnreadableSourceOut {
    id: String,
    uid: Option<String>,
    name: String,
    metadata: BTreeMap<String, String>,
    app_id: String,
    created_at: Time,
    updated_at: Time,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotateTokenOut {
    ingest_url: String,
}

/// What a source is called by people.
#[derive(Clone, Debug)]
pub struct SourceName(String);

impl<'de> Deserialize<'de> for SourceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.chars().count() >= 2 && !text.trim().is_empty() && is_text(&text, 256) {
            true => Ok(Self(text)),
            false => Err(de::Error::custom("must be 2 to 256 characters, not all blank, without NUL")),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SourceUid(String);

impl SourceUid {
    fn parse(text: String) -> Result<Self, &'static str> {
        let fits = (1..=60).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !text.starts_with(Kind::Source.prefix());
        match fits {
            true => Ok(Self(text)),
            false => Err("must be 1 to 60 letters, digits, `-` or `_`, and not begin with `src_`"),
        }
    }
}

impl<'de> Deserialize<'de> for SourceUid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl From<Flaw> for Error {
    fn from(Flaw { field, part, msg }: Flaw) -> Self {
        match part {
            Some(part) => Self::invalid([field, &part], msg),
            None => Self::invalid([field], msg),
        }
    }
}

impl IngestSourceIn {
    /// What is to be sealed, beside what it was.
    fn settings(&mut self, old: Option<&Settings>, token: impl FnOnce() -> String) -> Result<Settings, Error> {
        let mut settings = match old {
            Some(old) => old.clone(),
            None => Settings {
                kind: String::new(),
                config: None,
                token: token(),
                old_token: None,
                pass_headers: Vec::new(),
                id_from: None,
                type_from: None,
            },
        };
        let kind = std::mem::take(&mut self.kind);
        let config = self.config.take();
        settings.config = match settings.kind == kind {
            true => with_secrets_of(&kind, config, settings.config.as_ref()),
            false => config,
        };
        settings.kind = kind;
        let reading = (take(&mut self.pass_headers), take(&mut self.id_from), take(&mut self.type_from));
        checked(read_by(settings, reading))
    }
}

/// What a body says that a source is, beside what it was. `token`: of its URL, if it was not.
pub fn settings(body: &[u8], old: Option<&Settings>, token: &str) -> Result<Settings, Error> {
    parse::<IngestSourceIn>(body)?.settings(old, || token.to_owned())
}

/// Secrets are never shown, so that whoever puts back what he was shown means to keep them. `null` takes one away, where a
/// source may be without.
fn with_secrets_of(kind: &str, config: Option<Value>, old: Option<&Value>) -> Option<Value> {
    let secrets = presets::find(kind).map_or(fields::NONE, |preset| preset.fields).iter();
    let secrets = secrets.filter(|field| field.kind == fields::Kind::Secret);
    let kept: Vec<_> = secrets
        .filter_map(|field| Some((field.name, old?.get(field.name)?)))
        .filter(|(_, secret)| !secret.is_null())
        .collect();
    if kept.is_empty() {
        return config;
    }
    let mut config = config.unwrap_or_else(|| Value::Object(Map::new()));
    if let Value::Object(given) = &mut config {
        for (name, secret) in kept {
            given.entry(name).or_insert_with(|| secret.clone());
        }
    }
    Some(config)
}

type ReadingPatch = (Patch<Several<String, PASS_HEADERS_MAX>>, Patch<Place>, Patch<Place>);

fn read_by(mut settings: Settings, (pass_headers, id_from, type_from): ReadingPatch) -> Settings {
    match pass_headers {
        Patch::Keep => {}
        Patch::Clear => settings.pass_headers.clear(),
        Patch::Set(Several(names)) => settings.pass_headers = names,
    }
    id_from.apply(&mut settings.id_from);
    type_from.apply(&mut settings.type_from);
    settings
}

/// Only what can be used is stored.
fn checked(settings: Settings) -> Result<Settings, Error> {
    Ok(Source::of(settings)?.settings)
}

fn take<T>(patch: &mut Patch<T>) -> Patch<T> {
    std::mem::take(patch)
}

/// What a source is answered as, and to whom.
struct Shown<'a> {
    api: &'a Api,
    /// Where we are reached, for those who may see where to send to.
    base: Option<String>,
}

impl<'a> Shown<'a> {
    fn to(api: &'a Api, caller: &Caller, here: &Here) -> Self {
        let may_see = caller.require(Scope::Manage).is_ok();
        Self { api, base: here.0.clone().filter(|_| may_see) }
    }

    fn source(&self, application: Application) -> Result<IngestSourceOut, Error> {
        let opened = self.api.open_source(&application)?;
        let verified = opened.verifies();
        let Source { settings, shown, .. } = opened;
        Ok(IngestSourceOut {
            id: self.api.ids.id_of(SourceKey(application.key)),
            uid: application.uid.map(|uid| sources::source_uid(&uid).to_owned()),
            name: application.name,
            metadata: application.metadata,
            ingest_url: self.url(&settings),
            kind: settings.kind,
            config: shown,
            verified,
            app_id: self.api.ids.id_of(application.key),
            pass_headers: settings.pass_headers,
            id_from: settings.id_from,
            type_from: settings.type_from,
            created_at: Time(application.created_at),
            updated_at: Time(application.updated_at),
        })
    }

    /// The others are shown all the same.
    fn in_list(&self, application: Application) -> Result<IngestSourceOut, Box<UnreadableSourceOut>> {
        let unreadable = UnreadableSourceOut {
            id: self.api.ids.id_of(SourceKey(application.key)),
            uid: application.uid.as_deref().map(|uid| sources::source_uid(uid).to_owned()),
            name: application.name.clone(),
            metadata: application.metadata.clone(),
            app_id: self.api.ids.id_of(application.key),
            created_at: Time(application.created_at),
            updated_at: Time(application.updated_at),
        };
        self.source(application).map_err(|_| Box::new(unreadable))
    }

    fn url(&self, settings: &Settings) -> Option<String> {
        Some(format!("{}{PATH}{}", self.base.as_ref()?, settings.token))
    }
}

impl Api {
    fn open_source(&self, application: &Application) -> Result<Source, Error> {
        let sealed = application.source.as_deref().unwrap_or_default();
        let opened = self.vault.open_source(application.key, sealed).map_err(|fault| fault.to_string());
        opened.and_then(|plain| Source::read(&plain)).map_err(|fault| {
            error!(source.id = self.ids.id_of(SourceKey(application.key)), error = fault, "a source cannot be read");
            Error::Internal
        })
    }

    fn seal_source(&self, app: AppKey, settings: &Settings) -> Option<Vec<u8>> {
        let plain = zeroize::Zeroizing::new(settings.to_bytes());
        Some(self.vault.seal_source(app, &plain, &mut *self.rng()))
    }

    fn new_source_token(&self, app: AppKey) -> String {
        sources::new_token(&self.ids, app, &mut *self.rng())
    }
}

fn application(key: AppKey, wanted: IngestSourceIn, sealed: Option<Vec<u8>>, now: Timestamp) -> Application {
    Application {
        key,
        version: 1,
        uid: wanted.uid.map(|SourceUid(uid)| sources::app_uid(&uid)),
        name: wanted.name.0,
        rate_limit: None,
        rules: None,
        source: sealed,
        pollers: None,
        metadata: wanted.metadata.unwrap_or_default().0,
        created_at: now,
        updated_at: now,
    }
}

/// List the sources.
#[utoipa::path(get, path = "/ingest/api/v1/source", operation_id = "v1.ingest.source.list", tag = "Ingest Source",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending (the default) or descending"),
    ),
    responses((status = 200, body = IngestSourceListOut)))]
async fn list(State(api): State<Arc<Api>>, caller: Caller, here: Here, mut query: Query) -> Result<Response, Error> {
    let environment = caller.environment(&api)?;
    let asked = Asked::<SourceKey>::take_ordered(&mut query, &api.ids, Order::Ascending)?;
    query.finish()?;
    let Page { from, order, limit } = asked.page();
    let from = from.map(|cut| match cut {
        Cut::Past(SourceKey(app)) => Cut::Past(app),
        Cut::Before(SourceKey(app)) => Cut::Before(app),
    });
    let rows = environment.store().applications_of(AppKind::Source, Page { from, order, limit }).await?;
    let shown = Shown::to(&api, &caller, &here);
    let list = asked.answer(rows, &api.ids, |row| SourceKey(row.key), |row| shown.in_list(row));
    let (mut data, mut unreadable) = (Vec::new(), Vec::new());
    for source in list.data {
        match source {
            Ok(source) => data.push(source),
            Err(source) => unreadable.push(*source),
        }
    }
    let ListOut { iterator, prev_iterator, done, .. } = list;
    Ok(json(StatusCode::OK, &IngestSourceListOut { data, iterator, prev_iterator, done, unreadable }))
}

/// Create a source.
#[utoipa::path(post, path = "/ingest/api/v1/source", operation_id = "v1.ingest.source.create", tag = "Ingest Source",
    params(("idempotency-key" = Option<String>, Header)),
    request_body = IngestSourceIn,
    responses(
        (status = 201, body = IngestSourceOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError, description = "Also for a type that is not supported"),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    caller: Caller,
    here: Here,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    let environment = caller.environment(&api)?;
    query.finish()?;
    let mut wanted: IngestSourceIn = parse(&body)?;
    let now = (api.clock)();
    let app = AppKey::new(api.records.mint(now).await?);
    let settings = wanted.settings(None, || api.new_source_token(app))?;
    let made = application(app, wanted, api.seal_source(app, &settings), now);
    // Its URL is a credential, which a kept answer would lay open: only which source it was is kept.
    let prepared = answer(StatusCode::CREATED, &Made { id: api.ids.id_of(SourceKey(app)) });
    let remember = key.remember(&Principal::Environment, &body, &prepared);
    let shown = Shown::to(&api, &caller, &here);
    match environment.store().put_application(made.clone(), Expect::Absent, remember).await {
        Err(PutError::Repeated(before)) => {
            let found = made_before(&api, &environment, &before.body).await?;
            Ok(json(StatusCode::CREATED, &shown.source(found)?))
        }
        written => {
            api.directory.changed(app);
            written?;
            Ok(json(StatusCode::CREATED, &shown.source(made)?))
        }
    }
}

/// What is kept of an answer.
#[derive(Serialize, Deserialize)]
struct Made {
    id: String,
}

async fn made_before(api: &Api, environment: &Environment, body: &[u8]) -> Result<Application, Error> {
    let Made { id } = serde_json::from_slice(body).map_err(|_| Error::Internal)?;
    let SourceKey(app) = api.ids.key_of(&id).ok_or(Error::NotFound)?;
    environment.store().application(By::Key(app)).await?.ok_or(Error::NotFound)
}

/// Get a source.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}", operation_id = "v1.ingest.source.get",
    tag = "Ingest Source",
    params(("source_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = IngestSourceOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, source: InSource, here: Here, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let found = source.app.store.application().await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &Shown::to(&api, &source.caller, &here).source(found)?))
}

/// Update a source, or create it.
///
/// Its URL stays.
#[utoipa::path(put, path = "/ingest/api/v1/source/{source_id}", operation_id = "v1.ingest.source.upsert",
    tag = "Ingest Source",
    params(("source_id" = String, Path, description = "Its id or uid")),
    request_body = IngestSourceIn,
    responses(
        (status = 200, body = IngestSourceOut, description = "It was updated"),
        (status = 201, body = IngestSourceOut, description = "It was created"),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    Named { name, by, caller, environment }: Named,
    here: Here,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let shown = Shown::to(&api, &caller, &here);
    for _ in 0..TRIES_MAX {
        let mut wanted: IngestSourceIn = parse(&body)?;
        if let (By::Uid(_), None) = (&by, &wanted.uid) {
            wanted.uid = Some(SourceUid::parse(name.clone()).map_err(|why| Error::invalid(["uid"], why))?);
        }
        let is_named = wanted.uid.as_ref().is_some_and(|SourceUid(uid)| *uid == name);
        let now = (api.clock)();
        let old = environment.store().application(by.clone()).await?;
        let (status, new, expect) = match (old, &by) {
            (Some(old), _) => {
                // One that cannot be read is made anew, with another URL.
                let before = api.open_source(&old).ok().map(|source| source.settings);
                let settings = wanted.settings(before.as_ref(), || api.new_source_token(old.key))?;
                let new = Application {
                    version: old.version + 1,
                    rate_limit: old.rate_limit,
                    rules: old.rules,
                    pollers: old.pollers,
                    created_at: old.created_at,
                    ..application(old.key, wanted, api.seal_source(old.key, &settings), now)
                };
                (StatusCode::OK, new, Expect::Version(old.version))
            }
            (None, By::Uid(_)) if is_named => {
                let app = AppKey::new(api.records.mint(now).await?);
                let settings = wanted.settings(None, || api.new_source_token(app))?;
                (StatusCode::CREATED, application(app, wanted, api.seal_source(app, &settings), now), Expect::Absent)
            }
            (None, By::Uid(_)) => return Err(Error::invalid(["uid"], "must equal the one in the path")),
            (None, By::Key(_)) => return Err(Error::NotFound),
        };
        match environment.store().put_application(new.clone(), expect, None).await {
            Err(PutError::Changed) => continue,
            Err(PutError::Taken) if expect == Expect::Absent => continue,
            written => written?,
        }
        api.directory.changed(new.key);
        return Ok(json(status, &shown.source(new)?));
    }
    Err(PutError::Changed.into())
}

/// Change parts of a source.
#[utoipa::path(patch, path = "/ingest/api/v1/source/{source_id}", operation_id = "v1.ingest.source.patch",
    tag = "Ingest Source",
    params(("source_id" = String, Path, description = "Its id or uid")),
    request_body = IngestSourcePatch,
    responses(
        (status = 200, body = IngestSourceOut),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn patch(
    State(api): State<Arc<Api>>,
    source: InSource,
    here: Here,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let changed = change(
        &api,
        &source,
        None,
        |settings| {
            let IngestSourcePatch { pass_headers, id_from, type_from, .. } = parse(&body)?;
            checked(read_by(settings, (pass_headers, id_from, type_from)))
        },
        |application| {
            let IngestSourcePatch { name, uid, metadata, .. } = parse(&body)?;
            if let Some(SourceName(name)) = name {
                application.name = name;
            }
            uid.map(|SourceUid(uid)| sources::app_uid(&uid)).apply(&mut application.uid);
            if let Some(Metadata(metadata)) = metadata {
                application.metadata = metadata;
            }
            Ok(())
        },
    );
    let Changed::Now(new) = changed.await? else { return Err(Error::Internal) };
    Ok(json(StatusCode::OK, &Shown::to(&api, &source.caller, &here).source(new)?))
}

enum Changed {
    Now(Application),
    /// By the same request.
    Before,
}

/// Reads a source, changes it and puts it back, as often as someone else was faster.
async fn change(
    api: &Api,
    source: &InSource,
    remember: Option<postrider_store::Remember>,
    settings: impl Fn(Settings) -> Result<Settings, Error>,
    application: impl Fn(&mut Application) -> Result<(), Error>,
) -> Result<Changed, Error> {
    for _ in 0..TRIES_MAX {
        let old = source.app.store.application().await?.ok_or(Error::NotFound)?;
        let sealed = api.seal_source(old.key, &settings(api.open_source(&old)?.settings)?);
        let mut new =
            Application { version: old.version + 1, source: sealed, updated_at: (api.clock)(), ..old.clone() };
        application(&mut new)?;
        let store = source.environment.store();
        match store.put_application(new.clone(), Expect::Version(old.version), remember.clone()).await {
            Err(PutError::Changed) => continue,
            Err(PutError::Repeated(_)) => return Ok(Changed::Before),
            written => written?,
        }
        api.directory.changed(new.key);
        return Ok(Changed::Now(new));
    }
    Err(PutError::Changed.into())
}

/// Delete a source with its endpoints.
#[utoipa::path(delete, path = "/ingest/api/v1/source/{source_id}", operation_id = "v1.ingest.source.delete",
    tag = "Ingest Source",
    params(("source_id" = String, Path, description = "Its id or uid")),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<StatusCode, Error> {
    query.finish()?;
    let deleted = source.app.store.delete_application((api.clock)()).await?;
    api.directory.changed(source.app.key());
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(Error::NotFound) }
}

/// Give a source another URL.
///
/// The one that it had is good for another 24 hours.
#[utoipa::path(post, path = "/ingest/api/v1/source/{source_id}/token/rotate",
    operation_id = "v1.ingest.source.rotate-token", tag = "Ingest Source",
    params(
        ("source_id" = String, Path, description = "Its id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    responses((status = 200, body = RotateTokenOut), (status = 404, body = HttpErrorOut)))]
async fn rotate_token(
    State(api): State<Arc<Api>>,
    source: InSource,
    here: Here,
    key: IdempotencyKey,
    query: Query,
    _: NoBody,
) -> Result<Response, Error> {
    query.finish()?;
    let prepared = answer(StatusCode::OK, &());
    let remember = key.remember(&Principal::Environment, &[], &prepared);
    let shown = Shown::to(&api, &source.caller, &here);
    if shown.base.is_none() {
        return Err(Error::Internal);
    }
    let (token, now) = (api.new_source_token(source.app.key()), (api.clock)());
    let renew = |settings: Settings| Ok(settings.with_new_token(token.clone(), now));
    let new = match change(&api, &source, remember, renew, |_| Ok(())).await? {
        Changed::Now(new) => new,
        Changed::Before => source.app.store.application().await?.ok_or(Error::NotFound)?,
    };
    let url = shown.url(&api.open_source(&new)?.settings).ok_or(Error::Internal)?;
    Ok(json(StatusCode::OK, &RotateTokenOut { ingest_url: url }))
}

/// A source that the path names and that need not exist, for whoever may create it.
struct Named {
    name: String,
    by: By<AppKey>,
    caller: Caller,
    environment: Environment,
}

impl FromRequestParts<Arc<Api>> for Named {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let environment = caller.environment(api)?;
        let params = path_params(parts).await?;
        let (_, name) = params.iter().find(|(key, _)| *key == "source_id").ok_or(Error::NotFound)?;
        let by = source_by(api, name).ok_or(Error::NotFound)?;
        // What is no source is not found by its application's key.
        if let By::Key(_) = by
            && api.directory.application(&by).await?.is_none_or(|entry| entry.source.is_none())
        {
            return Err(Error::NotFound);
        }
        Ok(Self { name: name.to_owned(), by, caller, environment })
    }
}

/// Before the token.
pub const PATH: &str = "/ingest/in/";
/// How often a change is begun anew when someone else is faster.
const TRIES_MAX: usize = 5;
