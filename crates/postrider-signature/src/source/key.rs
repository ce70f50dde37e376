//! A secret of another service, ready to hash with.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Hash;
use crate::SecretError;

/// Shown nowhere, wiped from memory when dropped.
#[derive(Clone)]
pub struct SourceKey {
    bytes: Zeroizing<Box<[u8]>>,
    hash: Keyed,
}

#[derive(Clone)]
enum Keyed {
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Sha512(Hmac<Sha512>),
}

impl SourceKey {
    /// The secret's very text, as most services mean it.
    pub fn text(text: &str) -> Self {
        Self::new(Zeroizing::new(text.as_bytes().into()), Hash::Sha256)
    }

    /// What its text stands for.
    pub fn base64(text: &str) -> Result<Self, SecretError> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
        // The cause is dropped on purpose: it quotes a character of the secret.
        STANDARD.decode_vec(text, &mut bytes).map_err(|_| SecretError::NotBase64)?;
        Ok(Self::new(Zeroizing::new(bytes.as_slice().into()), Hash::Sha256))
    }

    fn new(bytes: Zeroizing<Box<[u8]>>, hash: Hash) -> Self {
        let hash = match hash {
            Hash::Sha1 => Keyed::Sha1(Hmac::new_from_slice(&bytes).expect("HMAC takes a key of any length")),
            Hash::Sha256 => Keyed::Sha256(Hmac::new_from_slice(&bytes).expect("HMAC takes a key of any length")),
            Hash::Sha512 => Keyed::Sha512(Hmac::new_from_slice(&bytes).expect("HMAC takes a key of any length")),
        };
        Self { bytes, hash }
    }

    pub(super) fn for_hash(self, hash: Hash) -> Self {
        Self::new(self.bytes, hash)
    }

    pub(super) fn tag(&self, parts: &[&[u8]]) -> Vec<u8> {
        fn hashed(mut mac: impl Mac, parts: &[&[u8]]) -> Vec<u8> {
            parts.iter().for_each(|part| mac.update(part));
            mac.finalize().into_bytes().to_vec()
        }
        match &self.hash {
            Keyed::Sha1(mac) => hashed(mac.clone(), parts),
            Keyed::Sha256(mac) => hashed(mac.clone(), parts),
            Keyed::Sha512(mac) => hashed(mac.clone(), parts),
        }
    }

    /// Without what a clipboard put around it; `None` if there is nothing.
    pub(super) fn trimmed(&self) -> Option<Self> {
        let trimmed = self.bytes.trim_ascii();
        (trimmed.len() < self.bytes.len()).then(|| self.with(trimmed))
    }

    /// What it stands for, with or without the usual prefix; `None` if it is no base64.
    pub(super) fn decoded(&self) -> Option<Self> {
        let encoded = self.bytes.strip_prefix(PREFIX).unwrap_or(&self.bytes);
        let mut bytes = Zeroizing::new(Vec::with_capacity(encoded.len()));
        STANDARD.decode_vec(encoded, &mut bytes).ok()?;
        Some(self.with(&bytes))
    }

    /// As it is written with the usual prefix.
    pub(super) fn encoded(&self) -> Option<Self> {
        let mut text = Zeroizing::new(Vec::with_capacity(PREFIX.len() + self.bytes.len().div_ceil(3) * 4));
        text.extend_from_slice(PREFIX);
        text.extend_from_slice(Zeroizing::new(STANDARD.encode(&self.bytes)).as_bytes());
        Some(self.with(&text))
    }

    fn with(&self, bytes: &[u8]) -> Self {
        let hash = match self.hash {
            Keyed::Sha1(_) => Hash::Sha1,
            Keyed::Sha256(_) => Hash::Sha256,
            Keyed::Sha512(_) => Hash::Sha512,
        };
        Self::new(Zeroizing::new(bytes.into()), hash)
    }

    /// Whether it is this very text.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        // Hashed first, so that not even the length shows.
        self.tag(&[given]).ct_eq(&self.tag(&[&self.bytes])).into()
    }
}

const PREFIX: &[u8] = b"whsec_";

impl fmt::Debug for SourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceKey(***)")
    }
}
