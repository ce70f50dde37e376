//! Who is asking, and for whose things.
//!
//! A handler can only get at an application through these types, so that none can forget to ask: it
//! takes `Environment` for what concerns all, `InApp` for what is one application's. To the holder of an
//! application's token all other applications look as if they did not exist.

pub mod records;

use super::{
    Api,
    doors::{Door, Need},
    error::Error,
    extract::path_params,
    guesses::Peer,
};
use crate::{
    credentials::{Bearer, Identity, InDoubt, Refusal, scopes::Scope},
    directory::AppEntry,
    ids::SourceKey,
    sources,
    tokens::{Access, Capability, Principal},
};
use axum::extract::{FromRequestParts, RawPathParams};
use http::{HeaderMap, header, request::Parts};
use postrider_engine::{AppKey, EndpointKey};
use postrider_store::{Application, By, Endpoint, Expect, Metadata, OPERATIONAL, PutError, Store};
use records::{Tasks, Tenant};
use std::sync::{Arc, OnceLock};

/// Someone who may do what the operation is.
#[derive(Clone, Debug)]
pub struct Caller(pub Arc<Bearer>);

/// Where it is noted who called, and about whose things, for whoever writes it down.
#[derive(Clone, Default)]
pub struct Notice(Arc<Noticed>);

#[derive(Default)]
struct Noticed {
    bearer: OnceLock<Arc<Bearer>>,
    app: OnceLock<AppKey>,
}

impl Notice {
    pub fn bearer(&self) -> Option<&Bearer> {
        self.0.bearer.get().map(|bearer| &**bearer)
    }

    pub fn app(&self) -> Option<AppKey> {
        self.0.app.get().copied()
    }
}

/// The holder of a token for all applications.
pub struct Environment {
    store: Arc<dyn Store>,
}

/// Someone who may see the application that the path names, and that application.
pub struct InApp {
    pub entry: Arc<AppEntry>,
    pub store: Tenant,
    pub principal: Principal,
    params: RawPathParams,
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        // One that nobody has thought about is shut.
        let door = Door::of(&parts.method, &parts.extensions).ok_or(Error::InsufficientAccess)?;
        let bearer = who_calls(parts, api, door.in_doubt()).await?;
        if let Some(Notice(noticed)) = parts.extensions.get() {
            let _ = noticed.bearer.set(Arc::clone(&bearer));
        }
        match door.need {
            Need::Nothing => Ok(Self(bearer)),
            Need::Anyone if !is_a_pollers(&bearer) => Ok(Self(bearer)),
            Need::Scope(scope) if bearer.scopes.allow(scope) => Ok(Self(bearer)),
            Need::Poller(scope) if bearer.scopes.allow(scope) || is_a_pollers(&bearer) => Ok(Self(bearer)),
            Need::Anyone | Need::Scope(_) | Need::Poller(_) => Err(Error::InsufficientAccess),
        }
    }
}

impl Caller {
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// The same one, for whom everything is open.
    pub fn environment(&self, api: &Api) -> Result<Environment, Error> {
        match self.principal() {
            Principal::Environment => Ok(Environment { store: api.records.everything() }),
            Principal::Application { .. } => Err(Error::InsufficientAccess),
        }
    }

    /// The background tasks that it may see.
    pub fn tasks(&self, api: &Api) -> Tasks {
        api.records.tasks(match self.principal() {
            Principal::Environment => None,
            Principal::Application { app, .. } => Some(*app),
        })
    }

    /// What the token calls itself that was brought, if it is one and has a name.
    pub fn token_name(&self) -> Option<&str> {
        match &self.0.identity {
            Identity::Token { name, .. } => name.as_deref(),
            Identity::ApiKey(_) => None,
        }
    }

    pub fn require(&self, scope: Scope) -> Result<(), Error> {
        if self.0.scopes.allow(scope) { Ok(()) } else { Err(Error::InsufficientAccess) }
    }
}

fn is_a_pollers(bearer: &Bearer) -> bool {
    match &bearer.principal {
        Principal::Environment => false,
        Principal::Application { access, .. } => access.poller.is_some(),
    }
}

async fn who_calls(parts: &Parts, api: &Api, in_doubt: InDoubt) -> Result<Arc<Bearer>, Error> {
    let (peer, now) = (parts.extensions.get::<Peer>().copied(), (api.clock)());
    let text = bearer(&parts.headers).ok_or(Error::InvalidToken)?;
    // What was good lately is not a guess.
    if let Some(known) = api.credentials.recognise(text) {
        return api.credentials.confirm(&known, now, in_doubt).await.map_err(|refusal| match refusal {
            Refusal::Invalid | Refusal::WrongSecret(_) => Error::InvalidToken,
            Refusal::Unknown(fault) => fault.into(),
        });
    }
    if let Some(Err(retry_after)) = peer.map(|peer| api.guesses.may_try(peer, now)) {
        return Err(Error::TooManyRequests { retry_after });
    }
    let refusal = match api.credentials.verify(text, now, in_doubt).await {
        Ok(bearer) => return Ok(bearer),
        Err(refusal) => refusal,
    };
    if let (Some(peer), Refusal::Invalid | Refusal::WrongSecret(_)) = (peer, &refusal) {
        api.guesses.was_wrong(peer, now);
    }
    match refusal {
        Refusal::Invalid => Err(Error::InvalidToken),
        // From however many addresses. The right one is let in all the same.
        Refusal::WrongSecret(key) => match api.key_guesses.may_try(key, now) {
            Ok(()) => {
                api.key_guesses.was_wrong(key, now);
                Err(Error::InvalidToken)
            }
            Err(retry_after) => Err(Error::TooManyRequests { retry_after }),
        },
        Refusal::Unknown(fault) => Err(fault.into()),
    }
}

/// Whether a token that someone came in with still holds, for what goes on for long. In doubt it does: it is asked again.
pub async fn still_holds(api: &Api, token: &str) -> bool {
    let now = (api.clock)();
    let asked = match api.credentials.recognise(token) {
        Some(known) => api.credentials.confirm(&known, now, InDoubt::Refuse).await,
        None => api.credentials.verify(token, now, InDoubt::Refuse).await,
    };
    match asked {
        Ok(_) | Err(Refusal::Unknown(_)) => true,
        Err(Refusal::Invalid | Refusal::WrongSecret(_)) => false,
    }
}

impl FromRequestParts<Arc<Api>> for Environment {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        Caller::from_request_parts(parts, api).await?.environment(api)
    }
}

impl FromRequestParts<Arc<Api>> for InApp {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let principal = Caller::from_request_parts(parts, api).await?.principal().clone();
        let params = path_params(parts).await?;
        let by = param(&params, "app_id").and_then(|id| api.ids.by::<AppKey>(id)).ok_or(Error::NotFound)?;
        let found = match &principal {
            Principal::Environment => api.directory.application(&by).await?,
            // Only its own is looked up: how long it takes to find another's would tell that there is one.
            Principal::Application { app, .. } => {
                api.directory.application(&By::Key(*app)).await?.filter(|own| is_named(&own.application, &by))
            }
        };
        let entry = found.ok_or(Error::NotFound)?;
        if let Some(Notice(noticed)) = parts.extensions.get() {
            let _ = noticed.app.set(entry.application.key);
        }
        let store = api.records.tenant(entry.application.key);
        Ok(Self { entry, store, principal, params })
    }
}

/// The application of the operational endpoints, which only the holder of a token for all applications sees.
pub struct InOperation(pub InApp);

impl FromRequestParts<Arc<Api>> for InOperation {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let environment = Environment::from_request_parts(parts, api).await?;
        let params = path_params(parts).await?;
        let entry = operational(api, &environment).await?;
        let store = api.records.tenant(OPERATIONAL);
        Ok(Self(InApp { entry, store, principal: Principal::Environment, params }))
    }
}

/// The application of the source that the path names, which only the holder of a token for all applications sees by this name.
pub struct InSource {
    pub app: InApp,
    pub environment: Environment,
    pub caller: Caller,
}

impl FromRequestParts<Arc<Api>> for InSource {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let environment = caller.environment(api)?;
        let params = path_params(parts).await?;
        let by = param(&params, "source_id").and_then(|id| source_by(api, id)).ok_or(Error::NotFound)?;
        let entry = api.directory.application(&by).await?.filter(|entry| entry.source.is_some());
        let entry = entry.ok_or(Error::NotFound)?;
        if let Some(Notice(noticed)) = parts.extensions.get() {
            let _ = noticed.app.set(entry.application.key);
        }
        let store = api.records.tenant(entry.application.key);
        let app = InApp { entry, store, principal: Principal::Environment, params };
        Ok(Self { app, environment, caller })
    }
}

/// What names a source, as its application is known.
pub fn source_by(api: &Api, id: &str) -> Option<By<AppKey>> {
    Some(match api.ids.by::<SourceKey>(id)? {
        By::Key(SourceKey(app)) => By::Key(app),
        By::Uid(uid) => By::Uid(sources::app_uid(&uid)),
    })
}

/// It is made when it is first asked for.
async fn operational(api: &Api, environment: &Environment) -> Result<Arc<AppEntry>, Error> {
    let by = By::Key(OPERATIONAL);
    if let Some(found) = api.directory.application(&by).await? {
        return Ok(found);
    }
    let now = (api.clock)();
    let application = Application {
        key: OPERATIONAL,
        version: 1,
        uid: None,
        name: "Operational webhooks".to_owned(),
        rate_limit: None,
        rules: None,
        source: None,
        pollers: None,
        metadata: Metadata::new(),
        created_at: now,
        updated_at: now,
    };
    match environment.store().put_application(application, Expect::Absent, None).await {
        // Someone else was faster; it is there now.
        Ok(()) | Err(PutError::Taken) => api.directory.changed(OPERATIONAL),
        Err(other) => return Err(other.into()),
    }
    api.directory.application(&by).await?.ok_or(Error::Internal)
}

impl Environment {
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub fn tenant(&self, api: &Api, app: &AppEntry) -> Tenant {
        api.records.tenant(app.application.key)
    }
}

impl InApp {
    pub fn key(&self) -> AppKey {
        self.entry.application.key
    }

    /// Refuses the holder of a portal token that was made without this capability.
    pub fn require(&self, capability: Capability) -> Result<(), Error> {
        require(&self.principal, capability)
    }

    /// For what only the owner of the whole deployment does to an application.
    pub fn require_environment(&self) -> Result<(), Error> {
        match self.principal {
            Principal::Environment => Ok(()),
            Principal::Application { .. } => Err(Error::InsufficientAccess),
        }
    }

    /// What the path has in place of `{name}`. Not found if it has nothing.
    pub fn param(&self, name: &str) -> Result<&str, Error> {
        param(&self.params, name).ok_or(Error::NotFound)
    }

    pub fn endpoint_by(&self, api: &Api) -> Result<By<EndpointKey>, Error> {
        api.ids.by(self.param("endpoint_id")?).ok_or(Error::NotFound)
    }

    /// The endpoint that the path names.
    pub async fn endpoint(&self, api: &Api) -> Result<Endpoint, Error> {
        self.store.endpoint(self.endpoint_by(api)?).await?.ok_or(Error::NotFound)
    }
}

fn is_named(application: &Application, by: &By<AppKey>) -> bool {
    match by {
        By::Key(key) => application.key == *key,
        By::Uid(uid) => application.uid.as_ref() == Some(uid),
    }
}

pub fn require(principal: &Principal, capability: Capability) -> Result<(), Error> {
    match principal {
        Principal::Environment => Ok(()),
        Principal::Application { access, .. } if allows(access, capability) => Ok(()),
        Principal::Application { .. } => Err(Error::InsufficientAccess),
    }
}

/// `ManageEndpoint` includes the secrets, and rotating one includes seeing it.
fn allows(access: &Access, wanted: Capability) -> bool {
    let has = |capability| access.capabilities.contains(&capability);
    match wanted {
        Capability::ViewBase => true,
        Capability::ViewEndpointSecret => {
            has(Capability::ViewEndpointSecret)
                || has(Capability::ManageEndpointSecret)
                || has(Capability::ManageEndpoint)
        }
        Capability::ManageEndpointSecret => has(Capability::ManageEndpointSecret) || has(Capability::ManageEndpoint),
        Capability::ManageTransformations | Capability::CreateAttempts | Capability::ManageEndpoint => has(wanted),
    }
}

/// The token that a request brings.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn param<'a>(params: &'a RawPathParams, name: &str) -> Option<&'a str> {
    params.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_once_and_as_bearer() {
        for (values, expected) in [
            (&["Bearer abc"][..], Some("abc")),
            (&["bearer abc"], Some("abc")),
            (&["BEARER  abc "], Some("abc")),
            (&["Basic abc"], None),
            (&["abc"], None),
            (&["Bearer"], None),
            (&[], None),
            (&["Bearer abc", "Bearer def"], None),
        ] {
            let headers = values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect();
            assert_eq!(bearer(&headers), expected, "{values:?}");
        }
    }

    #[test]
    fn a_greater_capability_includes_the_smaller() {
        use Capability::*;
        for (held, wanted, allowed) in [
            (&[ViewBase][..], ViewBase, true),
            (&[ViewBase], ViewEndpointSecret, false),
            (&[ViewBase], ManageEndpoint, false),
            (&[ViewBase], CreateAttempts, false),
            (&[ViewEndpointSecret], ViewEndpointSecret, true),
            (&[ViewEndpointSecret], ManageEndpointSecret, false),
            (&[ManageEndpointSecret], ViewEndpointSecret, true),
            (&[ManageEndpoint], ManageEndpointSecret, true),
            (&[ManageEndpoint], CreateAttempts, false),
        ] {
            let access = Access { capabilities: held.to_vec(), feature_flags: None, poller: None };
            assert_eq!(allows(&access, wanted), allowed, "{held:?} {wanted:?}");
        }
    }
}
