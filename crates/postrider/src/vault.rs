//! Seals what must not lie open in the database: signing secrets and custom headers.
//!
//! The endpoint's key is authenticated along, so that whoever can write to the database still cannot
//! give one endpoint the secrets of another. The first byte tells which form and key were used, so that
//! a later version can change either and still open what it finds.

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use postrider_engine::{EndpointKey, Timestamp};
use postrider_signature::SigningSecret;
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, fmt};
use zeroize::{Zeroize, Zeroizing};

pub struct Vault {
    cipher: XChaCha20Poly1305,
}

/// What only the sender of an endpoint's messages, and its owner, may see.
#[derive(Clone, PartialEq)]
pub struct Private {
    /// The current secret first, then the old ones that still sign, newest first.
    pub secrets: Vec<ActiveSecret>,
    pub headers: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq)]
pub struct ActiveSecret {
    pub secret: SigningSecret,
    /// `None`: the current one.
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    #[error("the sealed data has a form that this version does not know")]
    UnknownForm,
    #[error("the sealed data was made with another key, for another endpoint, or is damaged")]
    Refused,
}

impl Vault {
    pub fn new(key: &[u8; 32]) -> Self {
        Self { cipher: XChaCha20Poly1305::new(key.into()) }
    }

    pub fn seal(&self, endpoint: EndpointKey, private: &Private, rng: &mut impl CryptoRng) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        rng.fill_bytes(&mut nonce);
        let plain = Zeroizing::new(serde_json::to_vec(&Inside::from(private)).expect("strings and numbers serialise"));
        let sealed = self
            .cipher
            .encrypt(&XNonce::from(nonce), Payload { msg: &plain, aad: &associated(endpoint) })
            .expect("a few kilobytes are within the cipher's limit");
        [&[FORM][..], &nonce, &sealed].concat()
    }

    pub fn open(&self, endpoint: EndpointKey, sealed: &[u8]) -> Result<Private, VaultError> {
        let (&form, rest) = sealed.split_first().ok_or(VaultError::UnknownForm)?;
        if form != FORM {
            return Err(VaultError::UnknownForm);
        }
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(VaultError::Refused)?;
        let plain = self
            .cipher
            .decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &associated(endpoint) })
            .map_err(|_| VaultError::Refused)?;
        let plain = Zeroizing::new(plain);
        let inside: Inside = serde_json::from_slice(&plain).map_err(|_| VaultError::UnknownForm)?;
        inside.read().ok_or(VaultError::UnknownForm)
    }
}

/// Shows how much there is and nothing of what it is.
impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Private({} secrets, {} headers)", self.secrets.len(), self.headers.len())
    }
}

impl fmt::Debug for ActiveSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActiveSecret(expires_at: {:?})", self.expires_at)
    }
}

#[derive(Serialize, Deserialize)]
struct Inside<'a> {
    secrets: Vec<SecretInside>,
    headers: Cow<'a, BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize)]
struct SecretInside {
    secret: String,
    /// Milliseconds since 1970.
    expires_at: Option<i64>,
}

impl Drop for SecretInside {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl<'a> From<&'a Private> for Inside<'a> {
    fn from(private: &'a Private) -> Self {
        let secrets = private
            .secrets
            .iter()
            .map(|active| SecretInside {
                secret: active.secret.reveal(),
                expires_at: active.expires_at.map(Timestamp::as_millis),
            })
            .collect();
        Self { secrets, headers: Cow::Borrowed(&private.headers) }
    }
}

impl Inside<'_> {
    fn read(self) -> Option<Private> {
        let secrets = self
            .secrets
            .into_iter()
            .map(|inside| {
                let secret = SigningSecret::parse(&inside.secret).ok()?;
                Some(ActiveSecret { secret, expires_at: inside.expires_at.map(Timestamp::from_millis) })
            })
            .collect::<Option<_>>()?;
        Some(Private { secrets, headers: self.headers.into_owned() })
    }
}

fn associated(endpoint: EndpointKey) -> [u8; 9] {
    let mut data = [FORM; 9];
    data[1..].copy_from_slice(&endpoint.raw().to_be_bytes());
    data
}

/// JSON under XChaCha20-Poly1305, with the deployment's only key.
const FORM: u8 = 1;
const NONCE_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha20Rng;

    const ENDPOINT: EndpointKey = EndpointKey::new(77);

    fn private(secret: &[u8], header: &str) -> Private {
        let secret = SigningSecret::from(postrider_signature::Secret::from_bytes(secret).unwrap());
        Private {
            secrets: vec![
                ActiveSecret { secret: secret.clone(), expires_at: None },
                ActiveSecret { secret, expires_at: Some(Timestamp::from_millis(5)) },
            ],
            headers: BTreeMap::from([("authorization".into(), header.into())]),
        }
    }

    #[test]
    fn nothing_of_it_can_be_read_from_outside() {
        let private = private(&[7; 32], "canary");
        let sealed = Vault::new(&[1; 32]).seal(ENDPOINT, &private, &mut ChaCha20Rng::seed_from_u64(1));
        assert!(!sealed.windows(6).any(|w| w == b"canary"));
        assert_eq!(format!("{private:?}"), "Private(2 secrets, 1 headers)");
    }

    #[test]
    fn it_opens_only_with_its_key_for_its_endpoint_and_undamaged() {
        let vault = Vault::new(&[1; 32]);
        let sealed = vault.seal(ENDPOINT, &private(&[7; 32], "x"), &mut ChaCha20Rng::seed_from_u64(1));
        assert_eq!(Vault::new(&[2; 32]).open(ENDPOINT, &sealed), Err(VaultError::Refused));
        assert_eq!(vault.open(EndpointKey::new(78), &sealed), Err(VaultError::Refused));
        for at in 1..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(vault.open(ENDPOINT, &damaged), Err(VaultError::Refused), "byte {at}");
        }
        for short in [0, 1, 10, 25, 30] {
            assert!(vault.open(ENDPOINT, &sealed[..short]).is_err(), "{short} bytes");
        }
        assert_eq!(vault.open(ENDPOINT, &[9, 9, 9]), Err(VaultError::UnknownForm));
    }

    proptest! {
        #[test]
        fn what_was_sealed_comes_out_again(secret in prop::collection::vec(any::<u8>(), 24..=75), header: String, seed: u64) {
            let (vault, private) = (Vault::new(&[1; 32]), private(&secret, &header));
            let sealed = vault.seal(ENDPOINT, &private, &mut ChaCha20Rng::seed_from_u64(seed));
            prop_assert!(vault.open(ENDPOINT, &sealed).unwrap() == private);
        }
    }
}
