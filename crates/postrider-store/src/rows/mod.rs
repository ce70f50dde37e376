//! How records lie in rows, as far as that is the same in every store.

pub mod codes;
pub mod extra;
pub mod minter;
pub mod paging;

use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// A row that this version did not write, or that was damaged.
#[derive(Debug, thiserror::Error)]
#[error("a row cannot be read: {0}")]
pub struct Unreadable(pub String);

pub fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("lists and maps of strings become JSON")
}

pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, Unreadable> {
    serde_json::from_str(text).map_err(|error| Unreadable(error.to_string()))
}

pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
