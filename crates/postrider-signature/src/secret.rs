//! The secret that signs, which must be able to go everywhere except into a log.
//!
//! There is no `Display`, no serde, and `Debug` is blank: a secret leaves only through
//! [`Secret::reveal`] and [`Secret::as_bytes`], whose calls are easy to find in a review. The errors
//! stay silent too, for a mistyped secret is most of a secret.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, PAD_INDIFFERENT, STANDARD};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::ed25519::{PRIVATE_PREFIX, PUBLIC_PREFIX, PrivateKey};

/// A symmetric secret of 24 to 75 bytes. Compared in constant time, wiped from memory when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<Box<[u8]>>);

impl Secret {
    pub const BYTES_MIN: usize = 24;
    pub const BYTES_MAX: usize = 75;

    /// Reads `whsec_<base64>`. The prefix and the padding may both be left out.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        if [PRIVATE_PREFIX, PUBLIC_PREFIX].iter().any(|prefix| text.starts_with(prefix)) {
            return Err(SecretError::Asymmetric);
        }
        let encoded = text.strip_prefix(PREFIX).unwrap_or(text);

        // As long as the text, so that it never grows and leaves a copy behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(encoded.len()));
        // The cause is dropped on purpose: it quotes a character of the secret.
        PADDED_OR_NOT.decode_vec(encoded, &mut bytes).map_err(|_| SecretError::NotBase64)?;
        Self::from_bytes(&bytes)
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SecretError> {
        if !(Self::BYTES_MIN..=Self::BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretError::WrongLength { bytes: bytes.len() });
        }
        Ok(Self(Zeroizing::new(bytes.into())))
    }

    /// The secret in the clear, as its owner copies it: `whsec_<base64>`, padded.
    pub fn reveal(&self) -> String {
        // As long as it gets, so that it never grows and leaves a copy behind.
        let mut text = String::with_capacity(PREFIX.len() + 4 * Self::BYTES_MAX.div_ceil(3));
        text.push_str(PREFIX);
        STANDARD.encode_string(self.as_bytes(), &mut text);
        text
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Whatever a sender may sign with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SigningSecret {
    /// Known to both ends.
    Shared(Secret),
    Ed25519(PrivateKey),
}

impl SigningSecret {
    /// Reads `whsk_<base64>` as a private key, and all else as [`Secret::parse`] does.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        if text.starts_with(PRIVATE_PREFIX) {
            PrivateKey::parse(text).map(Self::Ed25519)
        } else {
            Secret::parse(text).map(Self::Shared)
        }
    }

    /// All of it in the clear.
    pub fn reveal(&self) -> String {
        match self {
            Self::Shared(secret) => secret.reveal(),
            Self::Ed25519(key) => key.reveal(),
        }
    }

    /// What a receiver verifies with: the secret itself in the clear, or the public half.
    pub fn reveal_to_receiver(&self) -> String {
        match self {
            Self::Shared(secret) => secret.reveal(),
            Self::Ed25519(key) => key.public().to_string(),
        }
    }
}

impl From<Secret> for SigningSecret {
    fn from(secret: Secret) -> Self {
        Self::Shared(secret)
    }
}

impl From<PrivateKey> for SigningSecret {
    fn from(key: PrivateKey) -> Self {
        Self::Ed25519(key)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("this is an asymmetric key (whsk_ or whpk_), where a symmetric secret (whsec_) is needed")]
    Asymmetric,
    #[error("a secret is base64 in the standard alphabet, with or without whsec_ in front")]
    NotBase64,
    #[error("a key that signs begins with whsk_")]
    NotPrivate,
    #[error("a key that verifies is whpk_ and base64 of 32 bytes")]
    NotPublic,
    #[error("a key that signs is whsk_ and base64 of 64 bytes, the seed and the public half that belongs to it")]
    NotAPair,
    #[error("a secret has {} to {} bytes, this one has {bytes}", Secret::BYTES_MIN, Secret::BYTES_MAX)]
    WrongLength { bytes: usize },
}

const PREFIX: &str = "whsec_";
pub(crate) const PADDED_OR_NOT: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, PAD_INDIFFERENT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_and_padding_are_optional() {
        let bytes = [0xfb; 25];
        let padded = STANDARD.encode(bytes);
        let bare = padded.trim_end_matches('=');
        assert_ne!(padded, bare, "25 bytes need padding");

        for text in [&padded, bare, &format!("whsec_{padded}"), &format!("whsec_{bare}")] {
            let secret = Secret::parse(text).unwrap();
            assert_eq!(secret.as_bytes(), bytes, "{text}");
            assert_eq!(secret.reveal(), format!("whsec_{padded}"), "{text}");
        }
    }

    #[test]
    fn what_is_no_symmetric_secret_is_refused_for_its_reason() {
        let good = STANDARD.encode([7; 32]);
        for (text, expected) in [
            (format!("whsk_{good}"), SecretError::Asymmetric),
            (format!("whpk_{good}"), SecretError::Asymmetric),
            (String::new(), SecretError::WrongLength { bytes: 0 }),
            ("whsec_".into(), SecretError::WrongLength { bytes: 0 }),
            (format!("whsec_whsec_{good}"), SecretError::NotBase64),
            (format!("WHSEC_{good}"), SecretError::NotBase64),
            (format!(" {good}"), SecretError::NotBase64),
            (format!("{good}="), SecretError::NotBase64),
            ("-_".repeat(16), SecretError::NotBase64),
            (format!("{}B", "A".repeat(33)), SecretError::NotBase64),
        ] {
            assert_eq!(Secret::parse(&text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn a_secret_has_24_to_75_bytes() {
        for (bytes, fits) in [(0, false), (23, false), (24, true), (64, true), (75, true), (76, false)] {
            let raw = vec![1; bytes];
            let expected = if fits { Ok(bytes) } else { Err(SecretError::WrongLength { bytes }) };
            let length = |secret: Secret| secret.as_bytes().len();
            assert_eq!(Secret::from_bytes(&raw).map(length), expected, "{bytes} bytes");
            assert_eq!(Secret::parse(&STANDARD.encode(&raw)).map(length), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn equal_means_the_same_bytes() {
        let secret = Secret::from_bytes(&[1; 24]).unwrap();
        assert_eq!(secret, secret.clone());
        assert_eq!(secret, Secret::parse(&secret.reveal()).unwrap());
        for other in [&[1; 25][..], &[2; 24]] {
            assert_ne!(secret, Secret::from_bytes(other).unwrap());
        }
    }

    #[test]
    fn neither_debug_nor_an_error_shows_the_secret() {
        let secret = Secret::from_bytes(b"correct horse battery staple").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(***)");

        let mistyped = Secret::parse("whsec_!!!!").unwrap_err();
        assert!(!format!("{mistyped} {mistyped:?}").contains('!'));
        let short = Secret::parse("whsec_c2VjcmV0").unwrap_err();
        assert_eq!(short.to_string(), "a secret has 24 to 75 bytes, this one has 6");
    }
}
