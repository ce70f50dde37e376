//! Applications: whoever gets messages.

use super::{
    Api,
    auth::{Environment, InApp},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Patch, Query, given, parse, path_params},
    fields::{Metadata, Rate, Title, Uid, either},
    idempotency::{IdempotencyKey, answer, conclude, json},
    page::{Asked, ListOut},
    rules::{RulesPatch, with_rules},
    time::Time,
};
use crate::{directory::AppEntry, ids::IdCodec, rules::Rules, tokens::Principal};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{AppKind, Application, By, Cut, Expect, OPERATIONAL, Order, Page, PutError};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, put, patch, delete))
}

with_rules! {
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplicationIn {
    #[schema(value_type = String, min_length = 1, example = "My first application")]
    name: Title,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$")]
    uid: Option<Uid<AppKey>>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    /// Requests per second over all endpoints.
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
    /// The older name of `throttleRate`.
    #[schema(value_type = Option<u16>, minimum = 1)]
    rate_limit: Option<Rate>,
}
}

with_rules! {
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplicationPatch {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    name: Option<Title>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    uid: Patch<Uid<AppKey>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    #[serde(default)]
    #[schema(value_type = Option<u16>)]
    throttle_rate: Patch<Rate>,
    #[serde(default)]
    #[schema(value_type = Option<u16>)]
    rate_limit: Patch<Rate>,
}
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationOut {
    #[schema(example = "app_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    uid: Option<String>,
    name: String,
    metadata: BTreeMap<String, String>,
    throttle_rate: Option<u32>,
    rate_limit: Option<u32>,
    /// What holds for its endpoints where they say nothing themselves.
    #[serde(flatten)]
    rules: Rules,
    created_at: Time,
    updated_at: Time,
}

impl ApplicationOut {
    fn of(ids: &IdCodec, application: Application) -> Self {
        Self {
            id: ids.id_of(application.key),
            // That of a source leads to the source.
            uid: application.uid.filter(|_| application.source.is_none()),
            name: application.name,
            metadata: application.metadata,
            throttle_rate: application.rate_limit,
            rate_limit: application.rate_limit,
            rules: Rules::stored(application.rules.as_deref()),
            created_at: Time(application.created_at),
            updated_at: Time(application.updated_at),
        }
    }
}

/// What an application is made of, once both spellings have been brought together.
struct Wanted {
    uid: Option<String>,
    name: String,
    rate_limit: Option<u32>,
    rules: RulesPatch,
    metadata: BTreeMap<String, String>,
}

impl ApplicationIn {
    fn wanted(mut self) -> Result<Wanted, Error> {
        let rules = self.take_rules();
        let rate = either(("throttleRate", self.throttle_rate), ("rateLimit", self.rate_limit))?;
        Ok(Wanted {
            uid: self.uid.map(|uid| uid.0),
            name: self.name.0,
            rate_limit: rate.map(|rate| rate.0),
            rules,
            metadata: self.metadata.unwrap_or_default().0,
        })
    }
}

impl Wanted {
    fn create(self, key: AppKey, now: Timestamp) -> Application {
        Application {
            key,
            version: 1,
            uid: self.uid,
            name: self.name,
            rate_limit: self.rate_limit,
            rules: self.rules.apply(None).to_store(),
            source: None,
            pollers: None,
            metadata: self.metadata,
            created_at: now,
            updated_at: now,
        }
    }

    fn replace(self, old: &Application, now: Timestamp) -> Application {
        let rules = self.rules.clone().apply(old.rules.as_deref()).to_store();
        Application {
            version: old.version + 1,
            rules,
            source: old.source.clone(),
            pollers: old.pollers.clone(),
            created_at: old.created_at,
            ..self.create(old.key, now)
        }
    }
}

impl ApplicationPatch {
    fn apply(mut self, old: &Application, now: Timestamp) -> Result<Application, Error> {
        let rules = self.take_rules().apply(old.rules.as_deref()).to_store();
        let mut new = Application { version: old.version + 1, rules, updated_at: now, ..old.clone() };
        if let Some(Title(name)) = self.name {
            new.name = name;
        }
        if let Some(Metadata(metadata)) = self.metadata {
            new.metadata = metadata;
        }
        self.uid.map(|uid| uid.0).apply(&mut new.uid);
        Patch::either(("throttleRate", self.throttle_rate), ("rateLimit", self.rate_limit))?
            .map(|rate| rate.0)
            .apply(&mut new.rate_limit);
        Ok(new)
    }
}

/// The application under this name, which is created if there is none yet. How messages and portal
/// links bring their application along.
pub async fn find_or_create(
    api: &Api,
    environment: &Environment,
    name: &str,
    application: ApplicationIn,
) -> Result<Arc<AppEntry>, Error> {
    let by = api.ids.by(name).ok_or(Error::NotFound)?;
    if let Some(found) = api.directory.application(&by).await? {
        return Ok(found);
    }
    // An id that is not known cannot be brought into being, a uid can.
    let By::Uid(uid) = &by else { return Err(Error::NotFound) };
    let mut wanted = application.wanted()?;
    if wanted.uid.get_or_insert_with(|| uid.clone()) != uid {
        return Err(Error::invalid(["application", "uid"], "must equal the one in the path"));
    }
    let now = (api.clock)();
    let created = wanted.create(AppKey::new(api.records.mint(now).await?), now);
    check_rules(api, None, &created)?;
    let key = created.key;
    match environment.store().put_application(created, Expect::Absent, None).await {
        Ok(()) => api.directory.changed(key),
        // Someone else was faster; it is there now.
        Err(PutError::Taken) => {}
        Err(other) => return Err(other.into()),
    }
    api.directory.application(&by).await?.ok_or(Error::NotFound)
}

fn check_rules(api: &Api, old: Option<&Application>, new: &Application) -> Result<(), Error> {
    api.check_rules(&[], old.and_then(|old| old.rules.as_deref()), new.rules.as_deref())
}

/// What a source is called, and whether there is one, is said by the source.
fn refuse_source(application: Option<&Application>) -> Result<(), Error> {
    match application {
        Some(Application { source: Some(_), .. }) => {
            Err(Error::Conflict("This application is a source's; change the source instead".into()))
        }
        Some(_) | None => Ok(()),
    }
}

/// List the applications.
#[utoipa::path(get, path = "/api/v1/app", operation_id = "v1.application.list", tag = "Application",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending (the default) or descending"),
    ),
    responses((status = 200, body = ListOut<ApplicationOut>)))]
async fn list(State(api): State<Arc<Api>>, environment: Environment, mut query: Query) -> Result<Response, Error> {
    for filter in [
        "exclude_apps_with_no_endpoints",
        "exclude_apps_with_disabled_endpoints",
        "exclude_apps_with_svix_play_endpoints",
    ] {
        if query.flag(filter)? == Some(true) {
            return Err(Error::invalid_query(filter, "is not supported"));
        }
    }
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Ascending)?;
    query.finish()?;
    let mut rows = environment.store().applications_of(AppKind::Plain, without_operational(asked.page())).await?;
    // At the other end of the list, it is the row too many, or there is none.
    rows.retain(|row| row.key != OPERATIONAL);
    let list = asked.answer(rows, &api.ids, |row| row.key, |row| ApplicationOut::of(&api.ids, row));
    Ok(json(StatusCode::OK, &list))
}

/// The application of the operational endpoints is not shown. It has the smallest key of all.
fn without_operational(page: Page<AppKey>) -> Page<AppKey> {
    match (&page.from, page.order) {
        (None, Order::Ascending) => Page { from: Some(Cut::Past(OPERATIONAL)), ..page },
        (Some(_), _) | (None, Order::Descending) => page,
    }
}

/// Create an application.
#[utoipa::path(post, path = "/api/v1/app", operation_id = "v1.application.create", tag = "Application",
    params(
        ("get_if_exists" = Option<bool>, Query, description = "Answer the application that has this uid already"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = ApplicationIn,
    responses(
        (status = 200, body = ApplicationOut, description = "It existed"),
        (status = 201, body = ApplicationOut, description = "It was created"),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    environment: Environment,
    key: IdempotencyKey,
    mut query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    let get_if_exists = query.flag("get_if_exists")?.unwrap_or(false);
    query.finish()?;
    let wanted = parse::<ApplicationIn>(&body)?.wanted()?;
    let existing = wanted.uid.clone().filter(|_| get_if_exists).map(By::Uid);
    let now = (api.clock)();
    let application = wanted.create(AppKey::new(api.records.mint(now).await?), now);
    check_rules(&api, None, &application)?;
    let app = application.key;
    let prepared = answer(StatusCode::CREATED, &ApplicationOut::of(&api.ids, application.clone()));
    let remember = key.remember(&Principal::Environment, &body, &prepared);
    let written = environment.store().put_application(application, Expect::Absent, remember).await;
    if let (Err(PutError::Taken), Some(by)) = (&written, existing)
        && let Some(found) = environment.store().application(by).await?
    {
        return Ok(json(StatusCode::OK, &ApplicationOut::of(&api.ids, found)));
    }
    api.directory.changed(app);
    conclude(written, prepared)
}

/// Get an application.
#[utoipa::path(get, path = "/api/v1/app/{app_id}", operation_id = "v1.application.get", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")),
    responses((status = 200, body = ApplicationOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &ApplicationOut::of(&api.ids, app.entry.application.clone())))
}

/// Update an application, or create it.
#[utoipa::path(put, path = "/api/v1/app/{app_id}", operation_id = "v1.application.upsert", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")),
    request_body = ApplicationIn,
    responses(
        (status = 200, body = ApplicationOut, description = "It was updated"),
        (status = 201, body = ApplicationOut, description = "It was created"),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    Named { by, environment }: Named,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    for _ in 0..TRIES_MAX {
        let mut wanted = parse::<ApplicationIn>(&body)?.wanted()?;
        if let (By::Uid(uid), None) = (&by, &wanted.uid) {
            wanted.uid = Some(uid.clone());
        }
        let now = (api.clock)();
        let old = environment.store().application(by.clone()).await?;
        refuse_source(old.as_ref())?;
        let (status, new, expect) = match (&old, &by) {
            (Some(old), _) => (StatusCode::OK, wanted.replace(old, now), Expect::Version(old.version)),
            (None, By::Uid(uid)) if wanted.uid.as_ref() == Some(uid) => {
                (StatusCode::CREATED, wanted.create(AppKey::new(api.records.mint(now).await?), now), Expect::Absent)
            }
            (None, By::Uid(_)) => return Err(Error::invalid(["uid"], "must equal the one in the path")),
            (None, By::Key(_)) => return Err(Error::NotFound),
        };
        check_rules(&api, old.as_ref(), &new)?;
        let (app, shown) = (new.key, ApplicationOut::of(&api.ids, new.clone()));
        match environment.store().put_application(new, expect, None).await {
            Err(PutError::Changed) => continue,
            Err(PutError::Taken) if expect == Expect::Absent => continue,
            written => written?,
        }
        api.directory.changed(app);
        return Ok(json(status, &shown));
    }
    Err(PutError::Changed.into())
}

/// Change parts of an application.
#[utoipa::path(patch, path = "/api/v1/app/{app_id}", operation_id = "v1.application.patch", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")),
    request_body = ApplicationPatch,
    responses(
        (status = 200, body = ApplicationOut),
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
    app.require_environment()?;
    query.finish()?;
    for _ in 0..TRIES_MAX {
        let patch: ApplicationPatch = parse(&body)?;
        let old = app.store.application().await?.ok_or(Error::NotFound)?;
        refuse_source(Some(&old))?;
        let new = patch.apply(&old, (api.clock)())?;
        if new.rules != old.rules {
            check_rules(&api, Some(&old), &new)?;
        }
        let shown = ApplicationOut::of(&api.ids, new.clone());
        match app.store.put_application(new, Expect::Version(old.version), None).await {
            Err(PutError::Changed) => continue,
            written => written?,
        }
        api.directory.changed(app.key());
        return Ok(json(StatusCode::OK, &shown));
    }
    Err(PutError::Changed.into())
}

/// Delete an application with its endpoints.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}", operation_id = "v1.application.delete", tag = "Application",
    params(("app_id" = String, Path, description = "Its id or uid")),
    responses(
        (status = 204),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "It is a source's"),
    ))]
async fn delete(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<StatusCode, Error> {
    app.require_environment()?;
    query.finish()?;
    refuse_source(Some(&app.entry.application))?;
    let deleted = app.store.delete_application((api.clock)()).await?;
    api.directory.changed(app.key());
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(Error::NotFound) }
}

/// An application that the path names and that need not exist, for whoever may create it.
struct Named {
    by: By<AppKey>,
    environment: Environment,
}

impl FromRequestParts<Arc<Api>> for Named {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let environment = Environment::from_request_parts(parts, api).await?;
        let params = path_params(parts).await?;
        let (_, id) = params.iter().find(|(name, _)| *name == "app_id").ok_or(Error::NotFound)?;
        let by = api.ids.by(id).ok_or(Error::NotFound)?;
        Ok(Self { by, environment })
    }
}

/// How often a change is begun anew when someone else is faster.
const TRIES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn application() -> Application {
        let wanted = parse::<ApplicationIn>(br#"{"name":"a","uid":"u","metadata":{"k":"v"},"throttleRate":5}"#);
        wanted.unwrap().wanted().unwrap().create(AppKey::new(1), Timestamp::from_millis(0))
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for body in [
            r#"{}"#,
            r#"{"name":""}"#,
            r#"{"name":null}"#,
            r#"{"name":"a","name":"b"}"#,
            r#"{"name":"a","colour":"red"}"#,
            r#"{"name":"a\u0000"}"#,
            r#"{"name":"a","uid":"app_x"}"#,
            r#"{"name":"a","uid":"a/b"}"#,
            r#"{"name":"a","throttleRate":0}"#,
            r#"{"name":"a","throttleRate":1,"rateLimit":2}"#,
            r#"{"name":"a","metadata":{"k":1}}"#,
        ] {
            let read = parse::<ApplicationIn>(body.as_bytes()).and_then(ApplicationIn::wanted);
            assert!(matches!(read, Err(Error::Invalid(_))), "{body}");
        }
    }

    #[test]
    fn a_patch_changes_what_it_names() {
        for (body, expected) in [
            ("{}", Application { ..application() }),
            (r#"{"name":"b"}"#, Application { name: "b".into(), ..application() }),
            (r#"{"uid":null}"#, Application { uid: None, ..application() }),
            (r#"{"rateLimit":null}"#, Application { rate_limit: None, ..application() }),
            (r#"{"throttleRate":9,"rateLimit":9}"#, Application { rate_limit: Some(9), ..application() }),
            (r#"{"metadata":{}}"#, Application { metadata: BTreeMap::new(), ..application() }),
        ] {
            let patched = parse::<ApplicationPatch>(body.as_bytes()).unwrap().apply(&application(), NOW).unwrap();
            assert_eq!(patched, Application { version: 2, updated_at: NOW, ..expected }, "{body}");
        }
        for body in [r#"{"name":null}"#, r#"{"metadata":null}"#, r#"{"throttleRate":1,"rateLimit":null}"#] {
            let patched = parse::<ApplicationPatch>(body.as_bytes()).and_then(|patch| patch.apply(&application(), NOW));
            assert!(matches!(patched, Err(Error::Invalid(_))), "{body}");
        }
    }

    #[test]
    fn both_spellings_of_the_rate_are_written() {
        let shown = serde_json::to_value(ApplicationOut::of(&IdCodec::new([0; 16]), application())).unwrap();
        assert_eq!((&shown["throttleRate"], &shown["rateLimit"]), (&5.into(), &5.into()));
    }
}
