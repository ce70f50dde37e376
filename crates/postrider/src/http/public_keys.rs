//! The public halves of the keys that an endpoint's messages are signed with, for whoever verifies them.
//!
//! The one thing of an endpoint that is told without a token: it is made to be told. Who asks for an endpoint that does not
//! exist, or that signs with a secret, learns as much: that there are no keys.

use super::{Api, error::Error, idempotency::json};
use axum::{
    extract::{Path, State},
    response::Response,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderValue, StatusCode, header};
use postrider_engine::EndpointKey;
use postrider_signature::PublicKey;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get))
}

/// As RFC 7517 says.
#[derive(Serialize, ToSchema)]
pub struct JsonWebKeySet {
    keys: Vec<JsonWebKey>,
}

/// As RFC 8037 says.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct JsonWebKey {
    kty: &'static str,
    crv: &'static str,
    alg: &'static str,
    r#use: &'static str,
    /// RFC 7638's thumbprint.
    kid: String,
    x: String,
}

impl From<PublicKey> for JsonWebKey {
    fn from(key: PublicKey) -> Self {
        let x = BASE64_URL_SAFE_NO_PAD.encode(key.as_bytes());
        let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
        let kid = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
        Self { kty: "OKP", crv: "Ed25519", alg: "EdDSA", r#use: "sig", kid, x }
    }
}

/// Get the public keys of an endpoint.
///
/// The current one first, then old ones that still sign. There are none where it signs with a secret.
#[utoipa::path(get, path = "/.well-known/jwks/{endpoint_id}", operation_id = "v1.endpoint.public-keys", tag = "Endpoint",
    security(()),
    params(("endpoint_id" = String, Path, description = "The endpoint's id")),
    responses((status = 200, body = JsonWebKeySet)))]
async fn get(State(api): State<Arc<Api>>, Path(endpoint): Path<String>) -> Result<Response, Error> {
    let endpoint = match api.ids.key_of::<EndpointKey>(&endpoint) {
        Some(key) => api.directory.endpoint(key).await?,
        None => None,
    };
    let keys = endpoint.iter().flat_map(|endpoint| endpoint.public_keys((api.clock)())).map(JsonWebKey::from).collect();
    let mut answer = json(StatusCode::OK, &JsonWebKeySet { keys });
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8037, appendix A.3.
    #[test]
    fn the_published_example_gets_its_published_thumbprint() {
        let key = PublicKey::parse("whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=").unwrap();
        let shown = JsonWebKey::from(key);
        assert_eq!(shown.x, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        assert_eq!(shown.kid, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }
}
