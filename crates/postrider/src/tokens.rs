//! Placeholder until the tokens are merged.

use postrider_engine::{AppKey, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub struct Tokens;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    Environment,
    Application { app: AppKey, access: Access },
}

/// What the holder of an application's token may do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub capabilities: Vec<Capability>,
    /// `None`: event types are shown whatever flags they have.
    pub feature_flags: Option<Vec<String>>,
}

impl Access {
    pub fn full() -> Self {
        Self { capabilities: Capability::ALL.to_vec(), feature_flags: None }
    }

    pub fn read_only() -> Self {
        Self { capabilities: vec![Capability::ViewBase], feature_flags: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Capability {
    ViewBase,
    ViewEndpointSecret,
    ManageEndpointSecret,
    ManageTransformations,
    CreateAttempts,
    ManageEndpoint,
}

impl Capability {
    pub const ALL: [Self; 6] = [
        Self::ViewBase,
        Self::ViewEndpointSecret,
        Self::ManageEndpointSecret,
        Self::ManageTransformations,
        Self::CreateAttempts,
        Self::ManageEndpoint,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is not valid")]
pub struct TokenError;

#[derive(Debug, thiserror::Error)]
pub enum MintError {
    #[error("this server has no private key, so it can check tokens but not make them")]
    NoPrivateKey,
}

impl Tokens {
    pub fn verify(&self, _token: &str, _now: Timestamp) -> Result<Principal, TokenError> {
        Err(TokenError)
    }

    pub fn mint_application(
        &self,
        _app: AppKey,
        _access: &Access,
        _now: Timestamp,
        _expires_in: Duration,
    ) -> Result<String, MintError> {
        Err(MintError::NoPrivateKey)
    }
}
