//! Signs `<id>.<timestamp>.<body>` with every key that is active.
//!
//! This runs for each attempt, so a key does its share of the hashing once, when it is made, and the
//! signed text is fed to the hash piece by piece: the body is never copied. The string that goes into
//! the header is the only allocation.

use std::fmt::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{PrivateKey, PublicKey, Secret, SigningSecret};

/// Signs an attempt for the signature header: `v1,<base64>` for each secret and `v1a,<base64>` for each private key, in the
/// order of `keys`.
///
/// `id` should hold no full stop, as Standard Webhooks asks: with one, the end of the id can be passed
/// off as the timestamp.
pub fn sign<'k>(keys: impl IntoIterator<Item = &'k SigningKey>, id: &str, timestamp: i64, body: &[u8]) -> String {
    // Hardly ever is there more than one.
    let mut header = String::with_capacity(SIGNATURE_LEN);
    for key in keys {
        if !header.is_empty() {
            header.push(' ');
        }
        match key {
            SigningKey::Shared(key) => {
                header.push_str(VERSION);
                header.push(',');
                STANDARD.encode_string(key.tag(id, timestamp, body), &mut header);
            }
            SigningKey::Ed25519(key) => {
                header.push_str(VERSION_ED25519);
                header.push(',');
                STANDARD.encode_string(key.sign(&signed_text(id, timestamp, body)), &mut header);
            }
        }
    }
    header
}

/// A secret made ready to sign: make it once, keep it, clone it freely.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "the large one is by far the more common")]
pub enum SigningKey {
    Shared(SharedKey),
    Ed25519(PrivateKey),
}

impl SigningKey {
    pub fn new(secret: &Secret) -> Self {
        Self::Shared(SharedKey::new(secret))
    }

    /// Its public half; `None`: it is a secret, which has none.
    pub fn public(&self) -> Option<PublicKey> {
        match self {
            Self::Shared(_) => None,
            Self::Ed25519(key) => Some(key.public()),
        }
    }

    /// Whether both ends have it.
    pub fn is_shared(&self) -> bool {
        self.shared().is_some()
    }

    /// `None`: it has two halves, and what is hashed with a secret cannot be made with it.
    pub(crate) fn shared(&self) -> Option<&SharedKey> {
        match self {
            Self::Shared(key) => Some(key),
            Self::Ed25519(_) => None,
        }
    }
}

impl From<&SigningSecret> for SigningKey {
    fn from(secret: &SigningSecret) -> Self {
        match secret {
            SigningSecret::Shared(secret) => Self::new(secret),
            SigningSecret::Ed25519(key) => Self::Ed25519(key.clone()),
        }
    }
}

/// One copy of the body, which the algorithm reads twice.
pub(crate) fn signed_text(id: &str, timestamp: impl fmt::Display, body: &[u8]) -> Vec<u8> {
    [format!("{id}.{timestamp}.").as_bytes(), body].concat()
}

/// What two ends share, ready to hash with.
#[derive(Clone)]
pub struct SharedKey {
    /// Keyed by the secret's bytes, as Standard Webhooks asks.
    bytes: Hmac<Sha256>,
    /// Keyed by the secret's text, as the forms in [`crate::pairs`] ask.
    text: Hmac<Sha256>,
}

impl SharedKey {
    pub(crate) fn new(secret: &Secret) -> Self {
        let keyed = |key: &[u8]| Hmac::new_from_slice(key).expect("HMAC takes a key of any length");
        let text = Zeroizing::new(secret.reveal());
        Self { bytes: keyed(secret.as_bytes()), text: keyed(text.as_bytes()) }
    }

    pub(crate) fn tag(&self, id: &str, timestamp: impl fmt::Display, body: &[u8]) -> Tag {
        let mut mac = self.bytes.clone();
        mac.update(id.as_bytes());
        write!(Signing(&mut mac), ".{timestamp}.").expect("hashing does not fail");
        mac.update(body);
        mac.finalize().into_bytes().into()
    }

    pub(crate) fn text_tag(&self, timestamp: impl fmt::Display, body: &[u8]) -> Tag {
        let mut mac = self.text.clone();
        write!(Signing(&mut mac), "{timestamp}.").expect("hashing does not fail");
        mac.update(body);
        mac.finalize().into_bytes().into()
    }

    /// Of the body alone.
    pub(crate) fn body_tag(&self, body: &[u8]) -> Tag {
        let mut mac = self.text.clone();
        mac.update(body);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(***)")
    }
}

/// Formats straight into the hash, which saves a string for the timestamp.
struct Signing<'a>(&'a mut Hmac<Sha256>);

impl Write for Signing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

pub(crate) type Tag = [u8; 32];
pub(crate) const VERSION: &str = "v1";
pub(crate) const VERSION_ED25519: &str = "v1a";
/// `v1,`, 32 bytes in base64, and the space before the next one. The other kind is longer, and rare.
const SIGNATURE_LEN: usize = 3 + 44 + 1;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
    const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;

    fn key(secret: &str) -> SigningKey {
        SigningKey::new(&Secret::parse(secret).unwrap())
    }

    #[test]
    fn the_published_example_gets_its_published_signature() {
        let keys = [key("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")];
        assert_eq!(sign(&keys, ID, 1649367553, BODY), "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
    }

    #[test]
    fn every_key_signs_in_the_order_given() {
        let current = key("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD");
        let old = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let alone = |key: &SigningKey| sign(std::slice::from_ref(key), ID, 1, BODY);

        let both = sign(&[current.clone(), old.clone()], ID, 1, BODY);
        assert_eq!(both, format!("{} {}", alone(&current), alone(&old)));
        assert_eq!(sign(&[], ID, 1, BODY), "");
    }

    #[test]
    fn a_key_signs_the_same_text_alike_every_time() {
        let keys = [key("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")];
        assert_eq!(sign(&keys, ID, -1, BODY), sign(&keys, ID, -1, BODY));
    }

    #[test]
    fn a_key_longer_than_a_hash_block_signs_too() {
        let keys = [SigningKey::new(&Secret::from_bytes(&[9; 75]).unwrap())];
        assert_eq!(sign(&keys, "", i64::MIN, b"").len() + 1, SIGNATURE_LEN);
    }

    #[test]
    fn debug_does_not_show_the_key() {
        assert_eq!(format!("{:?}", key("C2FVsBQIhrscChlQIMV+b5sSYspob7oD")), "Shared(SharedKey(***))");
    }
}
