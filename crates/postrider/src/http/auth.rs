//! Who is asking, and for whose things.
//!
//! A handler can only get at an application through these types, so that none can forget to ask: it
//! takes `Environment` for what concerns all, `InApp` for what is one application's. To the holder of an
//! application's token all other applications look as if they did not exist.

use super::{Api, error::Error, extract::path_params, guesses::Peer};
use crate::{
    directory::AppEntry,
    tokens::{Access, Capability, Principal},
};
use axum::extract::{FromRequestParts, RawPathParams};
use http::{HeaderMap, header, request::Parts};
use postrider_engine::{AppKey, EndpointKey};
use postrider_store::{Application, By, Endpoint};
use std::sync::Arc;

/// Anyone with a valid token.
#[derive(Clone, Debug)]
pub struct Caller(pub Principal);

/// The holder of a token for everything.
pub struct Environment;

/// Someone who may see the application that the path names, and that application.
pub struct InApp {
    pub entry: Arc<AppEntry>,
    pub principal: Principal,
    params: RawPathParams,
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let (peer, now) = (parts.extensions.get::<Peer>().copied(), (api.clock)());
        let token = bearer(&parts.headers).ok_or(Error::InvalidToken)?;
        if let Some(known) = api.tokens.recognise(token, now) {
            return known.map(Self).map_err(|_| Error::InvalidToken);
        }
        if let Some(Err(retry_after)) = peer.map(|peer| api.guesses.may_try(peer, now)) {
            return Err(Error::TooManyRequests { retry_after });
        }
        api.tokens.verify(token, now).map(Self).map_err(|_| {
            if let Some(peer) = peer {
                api.guesses.was_wrong(peer, now);
            }
            Error::InvalidToken
        })
    }
}

impl FromRequestParts<Arc<Api>> for Environment {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        match Caller::from_request_parts(parts, api).await?.0 {
            Principal::Environment => Ok(Self),
            Principal::Application { .. } => Err(Error::InsufficientAccess),
        }
    }
}

impl FromRequestParts<Arc<Api>> for InApp {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let Caller(principal) = Caller::from_request_parts(parts, api).await?;
        let params = path_params(parts).await?;
        let by = param(&params, "app_id").and_then(|id| api.ids.by::<AppKey>(id)).ok_or(Error::NotFound)?;
        let found = match &principal {
            Principal::Environment => api.directory.application(&by).await?,
            // Only its own is looked up: how long it takes to find another's would tell that there is one.
            Principal::Application { app, .. } => {
                api.directory.application(&By::Key(*app)).await?.filter(|own| is_named(&own.application, &by))
            }
        };
        Ok(Self { entry: found.ok_or(Error::NotFound)?, principal, params })
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
        api.store.endpoint(self.key(), self.endpoint_by(api)?).await?.ok_or(Error::NotFound)
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
            let access = Access { capabilities: held.to_vec(), feature_flags: None };
            assert_eq!(allows(&access, wanted), allowed, "{held:?} {wanted:?}");
        }
    }
}
