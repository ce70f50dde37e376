//! Keys of two halves: one signs and stays with the sender, the other one verifies and may be published.
//!
//! The private half is shown by [`PrivateKey::reveal`] alone, as a [`crate::Secret`] is.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::SecretError;
use crate::secret::PADDED_OR_NOT;

/// The half that signs. Wiped from memory when the last copy is dropped.
#[derive(Clone)]
pub struct PrivateKey(Arc<SigningKey>);

/// The half that verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PrivateKey {
    /// Reads `whsk_<base64>` of 64 bytes, the seed and the public half, or of the seed alone. The padding may be left out.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PRIVATE_PREFIX).ok_or(SecretError::NotPrivate)?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(encoded.len()));
        // The cause is dropped on purpose: it quotes a character of the key.
        PADDED_OR_NOT.decode_vec(encoded, &mut bytes).map_err(|_| SecretError::NotBase64)?;
        if let Ok(seed) = <&[u8; 32]>::try_from(bytes.as_slice()) {
            return Ok(Self::from_seed(seed));
        }
        let pair = <&[u8; 64]>::try_from(bytes.as_slice()).map_err(|_| SecretError::NotAPair)?;
        let key = SigningKey::from_keypair_bytes(pair).map_err(|_| SecretError::NotAPair)?;
        Ok(Self(Arc::new(key)))
    }

    /// Of 32 random bytes.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Arc::new(SigningKey::from_bytes(seed)))
    }

    /// Both halves in the clear: `whsk_<base64>`.
    pub fn reveal(&self) -> String {
        let pair = Zeroizing::new(self.0.to_keypair_bytes());
        // As long as it gets, so that it never grows and leaves a copy behind.
        let mut text = String::with_capacity(PRIVATE_PREFIX.len() + 88);
        text.push_str(PRIVATE_PREFIX);
        STANDARD.encode_string(pair.as_slice(), &mut text);
        text
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 64] {
        self.0.sign(text).to_bytes()
    }
}

impl PublicKey {
    /// Reads `whpk_<base64>` of 32 bytes.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PUBLIC_PREFIX).ok_or(SecretError::NotPublic)?;
        let bytes = PADDED_OR_NOT.decode(encoded).map_err(|_| SecretError::NotBase64)?;
        let bytes = <&[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| SecretError::NotPublic)?;
        VerifyingKey::from_bytes(bytes).map(Self).map_err(|_| SecretError::NotPublic)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    pub(crate) fn has_signed(&self, text: &[u8], signature: &[u8]) -> bool {
        // Strictly: or there would be two signatures of one text, and keys that sign any.
        Signature::from_slice(signature).is_ok_and(|signature| self.0.verify_strict(text, &signature).is_ok())
    }
}

/// `whpk_<base64>`, as it is given to receivers.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC_PREFIX}{}", STANDARD.encode(self.as_bytes()))
    }
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.public() == other.public()
    }
}

impl Eq for PrivateKey {}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(***)")
    }
}

pub(crate) const PRIVATE_PREFIX: &str = "whsk_";
pub(crate) const PUBLIC_PREFIX: &str = "whpk_";

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, 7.1, test 2.
    const SEED: [u8; 32] = [
        0x4c, 0xcd, 0x08, 0x9b, 0x28, 0xff, 0x96, 0xda, 0x9d, 0xb6, 0xc3, 0x46, 0xec, 0x11, 0x4e, 0x0f, 0x5b, 0x8a,
        0x31, 0x9f, 0x35, 0xab, 0xa6, 0x24, 0xda, 0x8c, 0xf6, 0xed, 0x4f, 0xb8, 0xa6, 0xfb,
    ];

    #[test]
    fn the_published_example_gets_its_published_signature() {
        let key = PrivateKey::from_seed(&SEED);
        assert_eq!(key.public().to_string(), "whpk_PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=");
        let signature = key.sign(&[0x72]);
        let hex: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        );
        assert!(key.public().has_signed(&[0x72], &signature));
        assert!(!key.public().has_signed(&[0x73], &signature));
    }

    #[test]
    fn both_halves_can_be_written_and_read() {
        let key = PrivateKey::from_seed(&SEED);
        let text = key.reveal();
        assert_eq!(text.len(), PRIVATE_PREFIX.len() + 88);
        let seed_alone = format!("whsk_{}", STANDARD.encode(SEED));
        for text in [text.as_str(), text.trim_end_matches('='), &seed_alone] {
            assert_eq!(PrivateKey::parse(text).as_ref(), Ok(&key), "{text}");
        }
        assert_eq!(PublicKey::parse(&key.public().to_string()), Ok(key.public()));
    }

    #[test]
    fn what_is_no_key_is_refused_for_its_reason() {
        let other = PrivateKey::from_seed(&[1; 32]).public();
        let mismatched = format!("whsk_{}", STANDARD.encode([&SEED[..], other.as_bytes()].concat()));
        for (text, expected) in [
            (mismatched, SecretError::NotAPair),
            (format!("whsk_{}", STANDARD.encode([1; 33])), SecretError::NotAPair),
            ("whsk_".to_owned(), SecretError::NotAPair),
            ("whsk_!".to_owned(), SecretError::NotBase64),
            (other.to_string(), SecretError::NotPrivate),
        ] {
            assert_eq!(PrivateKey::parse(&text), Err(expected), "{text}");
        }
        for text in ["whpk_AAAA".to_owned(), format!("whpk_{}", STANDARD.encode([2; 32])), "whsec_AAAA".to_owned()] {
            assert_eq!(PublicKey::parse(&text), Err(SecretError::NotPublic), "{text}");
        }
    }

    #[test]
    fn debug_does_not_show_the_private_half() {
        assert_eq!(format!("{:?}", PrivateKey::from_seed(&SEED)), "PrivateKey(***)");
    }
}
