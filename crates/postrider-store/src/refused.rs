//! What came to a source and was not taken: so many of each source, for so long.

use bytes::Bytes;
use postrider_engine::{AppKey, Timestamp};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusedKey(pub i64);

/// A request that was refused, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub key: RefusedKey,
    /// The source's.
    pub app: AppKey,
    pub at: Timestamp,
    /// What was answered.
    pub status: u16,
    pub reason: String,
    pub headers: Vec<(String, String)>,
    /// Its beginning.
    pub body: Bytes,
}

/// The newest that are kept of each source. Whoever knows a source's URL can send what will be refused.
pub const REFUSED_MAX: usize = 1_000;

/// How long they are kept.
pub const REFUSED_MEMORY: Duration = Duration::from_hours(14 * 24);
