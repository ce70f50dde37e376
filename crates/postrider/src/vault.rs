//! Seals what must not lie open in the database: signing secrets, custom headers, client certificates and what tokens are
//! had with.
//!
//! Each box has a key of its own, which lies in it under one of the deployment's keys; which one, the box says. So a
//! deployment's key can be changed while it runs: new boxes take the new one, old ones open with the old one until they have
//! been sealed again (`reseal`). The endpoint's key is authenticated along, so that whoever can write to the database still
//! cannot give one endpoint the secrets of another.

use crate::oauth::OauthSettings;
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use postrider_signature::SigningSecret;
use rand::CryptoRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    sync::{PoisonError, RwLock, RwLockReadGuard},
};
use zeroize::{Zeroize, Zeroizing};

pub struct Vault {
    /// The current one first.
    keys: RwLock<Vec<MasterKey>>,
}

#[derive(Clone)]
struct MasterKey {
    id: KeyId,
    cipher: XChaCha20Poly1305,
}

/// By which a key is named where it must not be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId([u8; 4]);

impl KeyId {
    pub fn of(key: &[u8; 32]) -> Self {
        let digest: [u8; 32] = Sha256::new_with_prefix(b"postrider key id").chain_update(key).finalize().into();
        let [a, b, c, d, ..] = digest;
        Self([a, b, c, d])
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What only the sender of an endpoint's messages, and its owner, may see.
#[derive(Clone, Default, PartialEq)]
pub struct Private {
    /// The current secret first, then the old ones that still sign, newest first.
    pub secrets: Vec<ActiveSecret>,
    pub headers: BTreeMap<String, String>,
    pub client_tls: Option<ClientPem>,
    pub oauth: Option<OauthSettings>,
}

/// What of TLS is an endpoint's own, in PEM.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientPem {
    /// A certificate with its key, and those between it and its authority.
    pub identity: Option<Zeroizing<String>>,
    /// Whom the receiver's certificate must come from.
    pub authorities: Option<String>,
}

impl Private {
    /// There is something in it that earlier versions know nothing of.
    fn is_more(&self) -> bool {
        self.client_tls.is_some() || self.oauth.is_some()
    }

    /// The name under which an `authorization` header is set, however it is written.
    pub fn authorization(&self) -> Option<(&String, &String)> {
        self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"))
    }
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
    #[error("the sealed data was made with the key {0}, which is not among the deployment's")]
    UnknownKey(KeyId),
}

impl Vault {
    /// The current key first, then those that may still be found in use. There must be one.
    pub fn new(keys: &[[u8; 32]]) -> Self {
        assert!(!keys.is_empty(), "a vault has a key");
        Self { keys: RwLock::new(master_keys(keys)) }
    }

    /// Other keys from now on. What is sealed with one that is not among them cannot be opened any more.
    pub fn set_keys(&self, keys: &[[u8; 32]]) {
        assert!(!keys.is_empty(), "a vault has a key");
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = master_keys(keys);
    }

    pub fn seal(&self, endpoint: EndpointKey, private: &Private, rng: &mut impl CryptoRng) -> Vec<u8> {
        let form = if private.is_more() { FULLER_ENVELOPE } else { ENVELOPE };
        let plain = Zeroizing::new(serde_json::to_vec(&Inside::from(private)).expect("strings and numbers serialise"));
        self.seal_envelope(form, endpoint.raw(), &plain, rng)
    }

    /// What a source is. It cannot be given to another source, nor to an endpoint.
    pub fn seal_source(&self, app: AppKey, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
        self.seal_envelope(SOURCE_ENVELOPE, app.raw(), plain, rng)
    }

    pub fn open_source(&self, app: AppKey, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        match sealed.split_first() {
            Some((&SOURCE_ENVELOPE, rest)) => self.open_envelope(rest, &associated(SOURCE_ENVELOPE, app.raw())),
            Some(_) | None => Err(VaultError::UnknownForm),
        }
    }

    fn seal_envelope(&self, form: u8, owner: i64, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
        let MasterKey { id, cipher: master } = self.keys()[0].clone();
        let aad = associated(form, owner);
        let mut box_key = Zeroizing::new([0; 32]);
        rng.fill_bytes(box_key.as_mut());
        let wrapped = encrypt(&master, box_key.as_ref(), &aad, rng);
        let sealed = encrypt(&cipher(&box_key), plain, &aad, rng);
        [&[form][..], &id.0, &wrapped, &sealed].concat()
    }

    pub fn open(&self, endpoint: EndpointKey, sealed: &[u8]) -> Result<Private, VaultError> {
        let plain = match sealed.split_first() {
            Some((&form @ (ENVELOPE | FULLER_ENVELOPE), rest)) => {
                self.open_envelope(rest, &associated(form, endpoint.raw()))?
            }
            Some((&PLAIN_BOX, rest)) => {
                let aad = associated(PLAIN_BOX, endpoint.raw());
                let keys = self.keys();
                let opened = keys.iter().find_map(|key| decrypt(&key.cipher, rest, &aad));
                opened.ok_or(VaultError::Refused)?
            }
            Some(_) | None => return Err(VaultError::UnknownForm),
        };
        let inside: Inside = serde_json::from_slice(&plain).map_err(|_| VaultError::UnknownForm)?;
        inside.read().ok_or(VaultError::UnknownForm)
    }

    /// Whether it is sealed with the current key.
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        let is_under = |rest: &[u8]| rest.starts_with(&self.keys()[0].id.0);
        matches!(sealed.split_first(), Some((&(ENVELOPE | FULLER_ENVELOPE | SOURCE_ENVELOPE), rest)) if is_under(rest))
    }

    /// Whether there may be more in it than secrets and headers, which can be told without opening it.
    pub fn may_hold_more(sealed: &[u8]) -> bool {
        sealed.first() == Some(&FULLER_ENVELOPE)
    }

    fn open_envelope(&self, rest: &[u8], aad: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let (id, rest) = rest.split_first_chunk::<4>().ok_or(VaultError::Refused)?;
        let (wrapped, sealed) = rest.split_first_chunk::<WRAPPED_BYTES>().ok_or(VaultError::Refused)?;
        let keys = self.keys();
        let master = keys.iter().find(|key| key.id.0 == *id).ok_or(VaultError::UnknownKey(KeyId(*id)))?;
        let box_key = decrypt(&master.cipher, wrapped, aad).ok_or(VaultError::Refused)?;
        let box_key = <&[u8; 32]>::try_from(box_key.as_slice()).map_err(|_| VaultError::Refused)?;
        decrypt(&cipher(box_key), sealed, aad).ok_or(VaultError::Refused)
    }

    fn keys(&self) -> RwLockReadGuard<'_, Vec<MasterKey>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn master_keys(keys: &[[u8; 32]]) -> Vec<MasterKey> {
    keys.iter().map(|key| MasterKey { id: KeyId::of(key), cipher: cipher(key) }).collect()
}

fn cipher(key: &[u8; 32]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.into())
}

/// A nonce, and what it was encrypted with it.
fn encrypt(cipher: &XChaCha20Poly1305, plain: &[u8], aad: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let mut nonce = [0; NONCE_BYTES];
    rng.fill_bytes(&mut nonce);
    let sealed = cipher
        .encrypt(&XNonce::from(nonce), Payload { msg: plain, aad })
        .expect("a few kilobytes are within the cipher's limit");
    [&nonce[..], &sealed].concat()
}

fn decrypt(cipher: &XChaCha20Poly1305, sealed: &[u8], aad: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
    cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad }).ok().map(Zeroizing::new)
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_tls: Option<Cow<'a, ClientPem>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oauth: Option<Cow<'a, OauthSettings>>,
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
        let (client_tls, oauth) = (private.client_tls.as_ref(), private.oauth.as_ref());
        Self {
            secrets,
            headers: Cow::Borrowed(&private.headers),
            client_tls: client_tls.map(Cow::Borrowed),
            oauth: oauth.map(Cow::Borrowed),
        }
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
        Some(Private {
            secrets,
            headers: self.headers.into_owned(),
            client_tls: self.client_tls.map(Cow::into_owned),
            oauth: self.oauth.map(Cow::into_owned),
        })
    }
}

fn associated(form: u8, owner: i64) -> [u8; 9] {
    let mut data = [form; 9];
    data[1..].copy_from_slice(&owner.to_be_bytes());
    data
}

/// JSON under XChaCha20-Poly1305, with a key of the deployment. Made by earlier versions.
const PLAIN_BOX: u8 = 1;
/// The name of a key of the deployment; under it, the box's own key; under that, JSON.
const ENVELOPE: u8 = 2;
/// The same, with more in it than secrets and headers. Whoever knows nothing of that must not open it and call the endpoint
/// without.
const FULLER_ENVELOPE: u8 = 3;
/// What a source is; the owner is its application.
const SOURCE_ENVELOPE: u8 = 4;
const NONCE_BYTES: usize = 24;
/// A nonce, a key and the tag.
const WRAPPED_BYTES: usize = NONCE_BYTES + 32 + 16;

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
            ..Private::default()
        }
    }

    #[test]
    fn what_earlier_versions_do_not_know_they_cannot_open() {
        let identity = Some(Zeroizing::new("canary".to_owned()));
        let plain = private(&[7; 32], "x");
        let more = Private { client_tls: Some(ClientPem { identity, authorities: None }), ..plain.clone() };
        let (vault, mut rng) = (Vault::new(&[[1; 32]]), ChaCha20Rng::seed_from_u64(1));
        let (less, more_sealed) = (vault.seal(ENDPOINT, &plain, &mut rng), vault.seal(ENDPOINT, &more, &mut rng));
        assert_eq!((less[0], more_sealed[0]), (ENVELOPE, FULLER_ENVELOPE));
        assert!(!Vault::may_hold_more(&less) && Vault::may_hold_more(&more_sealed));
        assert!(vault.is_current(&more_sealed));
        assert!(vault.open(ENDPOINT, &more_sealed).unwrap() == more);
        let disguised = [&[ENVELOPE][..], &more_sealed[1..]].concat();
        assert_eq!(vault.open(ENDPOINT, &disguised), Err(VaultError::Refused));
        assert!(!more_sealed.windows(6).any(|word| word == b"canary"));
    }

    #[test]
    fn what_a_source_is_opens_for_that_source_alone() {
        let (vault, mut rng) = (Vault::new(&[[1; 32]]), ChaCha20Rng::seed_from_u64(1));
        let sealed = vault.seal_source(AppKey::new(77), b"canary", &mut rng);
        assert_eq!(vault.open_source(AppKey::new(77), &sealed).unwrap().as_slice(), b"canary");
        assert!(vault.is_current(&sealed) && !sealed.windows(6).any(|word| word == b"canary"));
        assert_eq!(vault.open_source(AppKey::new(78), &sealed), Err(VaultError::Refused));
        let disguised = [&[ENVELOPE][..], &sealed[1..]].concat();
        assert_eq!(vault.open(ENDPOINT, &disguised), Err(VaultError::Refused));
        assert_eq!(vault.open(ENDPOINT, &sealed), Err(VaultError::UnknownForm));
    }

    #[test]
    fn nothing_of_it_can_be_read_from_outside() {
        let private = private(&[7; 32], "canary");
        let sealed = Vault::new(&[[1; 32]]).seal(ENDPOINT, &private, &mut ChaCha20Rng::seed_from_u64(1));
        assert!(!sealed.windows(6).any(|w| w == b"canary"));
        assert_eq!(format!("{private:?}"), "Private(2 secrets, 1 headers)");
    }

    #[test]
    fn it_opens_only_with_its_key_for_its_endpoint_and_undamaged() {
        let vault = Vault::new(&[[1; 32]]);
        let sealed = vault.seal(ENDPOINT, &private(&[7; 32], "x"), &mut ChaCha20Rng::seed_from_u64(1));
        assert_eq!(Vault::new(&[[2; 32]]).open(ENDPOINT, &sealed), Err(VaultError::UnknownKey(KeyId::of(&[1; 32]))));
        assert_eq!(vault.open(EndpointKey::new(78), &sealed), Err(VaultError::Refused));
        for at in 1..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            let refused = vault.open(ENDPOINT, &damaged).err();
            assert!(matches!(refused, Some(VaultError::Refused | VaultError::UnknownKey(_))), "byte {at}: {refused:?}");
        }
        for short in [0, 1, 10, 25, 30] {
            assert!(vault.open(ENDPOINT, &sealed[..short]).is_err(), "{short} bytes");
        }
        assert_eq!(vault.open(ENDPOINT, &[9, 9, 9]), Err(VaultError::UnknownForm));
    }

    #[test]
    fn what_the_old_key_sealed_opens_as_long_as_it_is_there() {
        let (old, new) = ([1; 32], [2; 32]);
        let (vault, private) = (Vault::new(&[old]), private(&[7; 32], "x"));
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let before = vault.seal(ENDPOINT, &private, &mut rng);
        assert!(vault.is_current(&before));
        vault.set_keys(&[new, old]);
        assert!(!vault.is_current(&before));
        assert!(vault.open(ENDPOINT, &before).unwrap() == private);
        let after = vault.seal(ENDPOINT, &private, &mut rng);
        assert!(vault.is_current(&after));
        vault.set_keys(&[new]);
        assert!(vault.open(ENDPOINT, &after).unwrap() == private);
        assert_eq!(vault.open(ENDPOINT, &before), Err(VaultError::UnknownKey(KeyId::of(&old))));
    }

    #[test]
    fn what_an_earlier_version_sealed_opens() {
        let (vault, private) = (Vault::new(&[[2; 32], [1; 32]]), private(&[7; 32], "x"));
        let plain = serde_json::to_vec(&Inside::from(&private)).unwrap();
        let aad = associated(PLAIN_BOX, ENDPOINT.raw());
        let sealed = encrypt(&cipher(&[1; 32]), &plain, &aad, &mut ChaCha20Rng::seed_from_u64(1));
        let sealed = [&[PLAIN_BOX][..], &sealed].concat();
        assert!(vault.open(ENDPOINT, &sealed).unwrap() == private);
        assert!(!vault.is_current(&sealed), "it is sealed again in the new form");
    }

    proptest! {
        #[test]
        fn what_was_sealed_comes_out_again(secret in prop::collection::vec(any::<u8>(), 24..=75), header: String, seed: u64) {
            let (vault, private) = (Vault::new(&[[1; 32]]), private(&secret, &header));
            let sealed = vault.seal(ENDPOINT, &private, &mut ChaCha20Rng::seed_from_u64(seed));
            prop_assert!(vault.open(ENDPOINT, &sealed).unwrap() == private);
        }
    }
}
