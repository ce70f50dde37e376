//! Recognises a message that was accepted before.
//!
//! Every request of an SDK carries a key, and keys are random: an index kept in place would write a page of its
//! own for each message, which costs more than all the rest of accepting it. So the key is stored in the message's
//! own row, in the same commit; the newest ones are remembered here, and filed into the index later, sorted, a slice
//! with each commit. After a crash, what was not filed yet is read from the messages again.

use super::{
    pieces::{Piece, piece_of},
    writer::{note, noted},
};
use rusqlite::Connection;
use std::collections::HashMap;

pub type Key = [u8; 16];

/// The message that a key belongs to, and what the request for it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub message: i64,
    pub request: [u8; 16],
}

/// So many are remembered before they are filed. The more, the fewer pages each slice of them touches.
const RECENT_MAX: usize = 16_384;

/// So many are filed with one commit.
const SLICE: usize = 256;

const FILED: &str = "repeats_filed_through";

#[derive(Default)]
pub struct Repeats {
    recent: HashMap<Key, Seen>,
    /// Sorted by key, and filed from the front.
    filing: Vec<(Key, Seen)>,
    filed: usize,
}

impl Repeats {
    /// Reads again what was accepted and not filed when the last run ended.
    pub fn recall(connection: &Connection, pieces: &[Piece]) -> rusqlite::Result<Self> {
        let filed = noted(connection, FILED)?.unwrap_or(0);
        let mut recent = HashMap::new();
        for (index, piece) in pieces.iter().enumerate() {
            if pieces.get(index + 1).is_some_and(|next| next.first_key <= filed) {
                continue;
            }
            let sql = "SELECT key, repeat FROM message_{n} WHERE key > ?1 AND repeat IS NOT NULL";
            let mut select = piece.prepare(connection, sql)?;
            let mut rows = select.query([filed])?;
            while let Some(row) = rows.next()? {
                let (key, seen) = unpack(row.get(0)?, row.get(1)?);
                recent.insert(key, seen);
            }
        }
        Ok(Self { recent, ..Self::default() })
    }

    /// Among those that are not in the index for certain.
    pub fn find(&self, key: &Key) -> Option<Seen> {
        let filing = || self.filing.binary_search_by_key(key, |(key, _)| *key).ok().map(|found| self.filing[found].1);
        self.recent.get(key).copied().or_else(filing)
    }

    /// Puts the next slice into the index and tells how many that were.
    pub fn file(&self, connection: &Connection, pieces: &[Piece]) -> rusqlite::Result<usize> {
        let left = &self.filing[self.filed..];
        let slice = &left[..left.len().min(SLICE)];
        for (key, seen) in slice {
            if let Some(piece) = piece_of(pieces, seen.message) {
                let sql = "INSERT OR REPLACE INTO idempotency_{n} VALUES (?1, ?2, ?3)";
                piece.prepare(connection, sql)?.execute((key, seen.message, seen.request))?;
            }
        }
        if !slice.is_empty() && slice.len() == left.len() {
            let through = self.filing.iter().map(|(_, seen)| seen.message).max().unwrap_or(0);
            note(connection, FILED, through)?;
        }
        Ok(slice.len())
    }

    /// What was filed and what came new is committed.
    pub fn committed(&mut self, filed: usize, new: impl IntoIterator<Item = (Key, Seen)>) {
        self.recent.extend(new);
        self.filed += filed;
        if self.filed == self.filing.len() {
            self.filed = 0;
            self.filing.clear();
            if self.recent.len() >= RECENT_MAX {
                self.filing.extend(self.recent.drain());
                self.filing.sort_unstable_by_key(|(key, _)| *key);
            }
        }
    }
}

/// Key and request side by side, as they lie in the message's row.
pub fn pack(key: &Key, request: &[u8; 16]) -> [u8; 32] {
    let mut packed = [0; 32];
    packed[..16].copy_from_slice(key);
    packed[16..].copy_from_slice(request);
    packed
}

fn unpack(message: i64, packed: [u8; 32]) -> (Key, Seen) {
    let (mut key, mut request) = ([0; 16], [0; 16]);
    key.copy_from_slice(&packed[..16]);
    request.copy_from_slice(&packed[16..]);
    (key, Seen { message, request })
}
