//! The text of an API key: `prk_`, the digits of its id, `_`, 43 random digits, and six that check the rest.
//!
//! The id leads to the record and proves that this deployment made it, so that a made-up one costs no look into the store.
//! The check tells a slip of the pen, and lets a scanner of secrets know a real key from a likeness. What is stored is a
//! keyed hash: a copy of the database does not even let a guess be tried.

use crate::{
    config::Hidden,
    ids::{IdCodec, Kind},
};
use hmac::{Hmac, KeyInit, Mac};
use postrider_store::{ApiKey, ApiKeyKey};
use rand::{TryRng, rngs::SysRng};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

pub struct KeyTexts {
    ids: IdCodec,
    hashing: Zeroizing<[u8; 32]>,
}

/// A text that can be a key of this deployment, and what its secret is known by.
pub struct Presented {
    pub key: ApiKeyKey,
    hash: [u8; 32],
}

impl Presented {
    pub fn is(&self, stored: &ApiKey) -> bool {
        self.key == stored.key && bool::from(self.hash.ct_eq(&stored.hash))
    }
}

impl KeyTexts {
    /// `secret`: of the deployment. What is hashed with it is hashed with nothing else.
    pub fn new(ids: IdCodec, secret: &[u8; 32]) -> Self {
        let hashing = Zeroizing::new(hmac(secret, b"postrider api keys"));
        Self { ids, hashing }
    }

    /// A new one, and the hash to be stored.
    pub fn make(&self, key: ApiKeyKey) -> Result<(Hidden, [u8; 32]), rand::rngs::SysError> {
        let id = self.ids.encode(Kind::ApiKey, key.0);
        let digits = id.strip_prefix(Kind::ApiKey.prefix()).expect("an id begins with its prefix");
        let mut text = format!("{PREFIX}{digits}_{}", random_digits()?.as_str());
        let check = check_of(&text);
        let hash = hmac(&self.hashing, text.as_bytes());
        text.push_str(&check);
        Ok((Hidden::new(text), hash))
    }

    /// `None` for whatever cannot be one of ours, mistyped ones among them.
    pub fn read(&self, text: &str) -> Option<Presented> {
        if text.len() != LENGTH || !text.is_ascii() {
            return None;
        }
        let (body, check) = text.split_at(LENGTH - CHECK_DIGITS);
        let (digits, secret) = body.strip_prefix(PREFIX)?.split_at_checked(ID_DIGITS)?;
        if !secret.starts_with('_') || check_of(body) != check {
            return None;
        }
        let key = self.ids.decode(Kind::ApiKey, &format!("{}{digits}", Kind::ApiKey.prefix()))?;
        Some(Presented { key: ApiKeyKey(key), hash: hmac(&self.hashing, body.as_bytes()) })
    }
}

/// Whether it was meant to be a key at all.
pub fn looks_like_a_key(text: &str) -> bool {
    text.starts_with(PREFIX)
}

fn hmac(key: &[u8; 32], text: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is fine");
    mac.update(text);
    mac.finalize().into_bytes().into()
}

fn random_digits() -> Result<Zeroizing<String>, rand::rngs::SysError> {
    let mut digits = Zeroizing::new(String::with_capacity(SECRET_DIGITS));
    while digits.len() < SECRET_DIGITS {
        let mut bytes = Zeroizing::new([0; 64]);
        SysRng.try_fill_bytes(bytes.as_mut())?;
        let missing = SECRET_DIGITS - digits.len();
        // 248 is the greatest multiple of 62 that a byte holds: what lies above would favour some digits.
        let fair = bytes.iter().filter(|byte| **byte < 248).take(missing);
        digits.extend(fair.map(|byte| char::from(ALPHABET[usize::from(byte % 62)])));
    }
    Ok(digits)
}

/// Anybody can compute it: it is no secret, and guards against no one.
fn check_of(text: &str) -> String {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(text));
    let mut rest = u32::from_be_bytes([a, b, c, d]);
    let digits = (0..CHECK_DIGITS).map(|_| {
        let digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
        char::from(digit)
    });
    digits.collect()
}

const PREFIX: &str = "prk_";
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ID_DIGITS: usize = 27;
/// 62^43 is just above 2^256.
const SECRET_DIGITS: usize = 43;
/// 62^6 is above 2^32.
const CHECK_DIGITS: usize = 6;
const LENGTH: usize = PREFIX.len() + ID_DIGITS + 1 + SECRET_DIGITS + CHECK_DIGITS;

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::Timestamp;
    use std::collections::HashSet;

    fn texts() -> KeyTexts {
        KeyTexts::new(IdCodec::new([7; 16]), &[9; 32])
    }

    fn stored(key: ApiKeyKey, hash: [u8; 32]) -> ApiKey {
        let created_at = Timestamp::from_millis(0);
        let (name, scopes) = (String::new(), Vec::new());
        ApiKey { key, hash, name, scopes, app: None, created_at, expires_at: None, revoked_at: None, used_at: None }
    }

    #[test]
    fn a_key_is_recognised_by_the_deployment_that_made_it() {
        let (text, hash) = texts().make(ApiKeyKey(42)).unwrap();
        let presented = texts().read(text.reveal()).unwrap();
        assert_eq!((presented.key, text.reveal().len()), (ApiKeyKey(42), 81));
        assert!(presented.is(&stored(ApiKeyKey(42), hash)));
        assert!(!presented.is(&stored(ApiKeyKey(43), hash)), "another's hash");
        assert!(KeyTexts::new(IdCodec::new([8; 16]), &[9; 32]).read(text.reveal()).is_none(), "the id is not theirs");
        let other = KeyTexts::new(IdCodec::new([7; 16]), &[8; 32]).read(text.reveal()).unwrap();
        assert!(!other.is(&stored(ApiKeyKey(42), hash)), "the hash is keyed");
        assert!(!text.reveal().contains(&String::from_utf8_lossy(&hash).into_owned()));
    }

    #[test]
    fn no_slip_of_the_pen_gets_as_far_as_the_store() {
        let (text, _) = texts().make(ApiKeyKey(42)).unwrap();
        let text = text.reveal();
        for place in 0..text.len() {
            for letter in [b'0', b'A', b'z', b'_', b' '] {
                let mut letters = text.as_bytes().to_vec();
                letters[place] = letter;
                let altered = String::from_utf8(letters).unwrap();
                assert_eq!(texts().read(&altered).is_some(), altered == text, "{place}");
            }
            assert!(texts().read(&text[..place]).is_none(), "cut at {place}");
        }
        let swapped = format!("{}{}{}", &text[..40], &text[41..42], &text[40..41]) + &text[42..];
        assert!(texts().read(&swapped).is_none() || swapped == text);
        for other in ["", "prk_", &format!("{text} "), &"ä".repeat(LENGTH), &"p".repeat(1 << 20)] {
            assert!(texts().read(other).is_none());
        }
    }

    #[test]
    fn no_two_keys_are_alike_and_every_digit_is_used() {
        let made: HashSet<String> =
            (0..200).map(|_| texts().make(ApiKeyKey(1)).unwrap().0.reveal()[32..75].to_owned()).collect();
        assert_eq!(made.len(), 200);
        let digits: HashSet<char> = made.iter().flat_map(|text| text.chars()).collect();
        assert_eq!(digits.len(), 62);
    }
}
