//! Recognises a message that was accepted before.
//!
//! Every request of an SDK carries a key, and keys are random: an index kept in place would write a page of its
//! own for each message, which costs more than all the rest of accepting it. So the key is stored in the message's
//! own row, in the same commit; the newest ones are remembered here, and filed into the index later, sorted, a slice
//! with each commit. After a crash, what was not filed yet is read from the messages again. A filter for each piece keeps
//! most lookups from touching the index at all.

use super::{
    SqliteOptions,
    filter::Filter,
    pieces::{Piece, first_key_at, piece_of},
    writer::{note, noted},
};
use crate::IDEMPOTENCY_MEMORY;
use postrider_engine::Timestamp;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};

pub type Key = [u8; 16];

/// The message that a key belongs to, and what the request for it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub message: i64,
    pub request: [u8; 16],
}

/// So many are filed with one commit, or twice as many as it brings, if that is more.
const SLICE: usize = 256;

/// Filters are kept for so many pieces, a megabyte each. In older ones, keys are looked up.
const FILTERS_MAX: usize = 32;

/// Filters made at start, by reading that many pieces' indexes.
const FILTERS_AT_START: usize = 4;

const FILED: &str = "repeats_filed_through";

pub struct Repeats {
    /// So many are remembered before they are filed. The more, the fewer pages each slice of them touches.
    recent_max: usize,
    recent: HashMap<Key, Seen>,
    /// Sorted by key, and filed from the front.
    filing: Vec<(Key, Seen)>,
    filed: usize,
    /// By the number of the piece.
    filters: BTreeMap<i64, Filter>,
    /// Pieces up to this one have keys in their index and may have no filter.
    unfiltered_through: i64,
    filter_keys: usize,
}

impl Repeats {
    /// Reads again what was accepted and not filed when the last run ended.
    pub fn recall(
        connection: &Connection,
        pieces: &[Piece],
        now: Timestamp,
        options: SqliteOptions,
    ) -> rusqlite::Result<Self> {
        let mut repeats = Self {
            recent_max: options.repeats_recent_max,
            recent: HashMap::new(),
            filing: Vec::new(),
            filed: 0,
            filters: BTreeMap::new(),
            unfiltered_through: pieces.last().map_or(0, |newest| newest.number),
            filter_keys: usize::try_from(options.piece_messages_max).unwrap_or(usize::MAX),
        };
        let forgotten = first_key_at(now.minus(IDEMPOTENCY_MEMORY));
        let from = noted(connection, FILED)?.unwrap_or(0).max(forgotten);
        for (index, piece) in pieces.iter().enumerate() {
            if pieces.get(index + 1).is_some_and(|next| next.first_key <= from) {
                continue;
            }
            let sql = "SELECT key, repeat FROM message_{n} WHERE key > ?1 AND repeat IS NOT NULL";
            let mut select = piece.prepare(connection, sql)?;
            let mut rows = select.query([from])?;
            while let Some(row) = rows.next()? {
                let (key, seen) = unpack(row.get(0)?, row.get(1)?);
                repeats.recent.insert(key, seen);
            }
        }
        for piece in pieces.iter().rev().take(FILTERS_AT_START) {
            let filter = repeats.read_filter(connection, *piece)?;
            repeats.filters.insert(piece.number, filter);
        }
        Ok(repeats)
    }

    fn read_filter(&self, connection: &Connection, piece: Piece) -> rusqlite::Result<Filter> {
        let mut filter = Filter::with_room_for(self.filter_keys);
        let mut select = piece.prepare(connection, "SELECT key FROM idempotency_{n}")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            filter.insert(&row.get(0)?);
        }
        Ok(filter)
    }

    /// False if the key is certainly not in the piece's index.
    pub fn may_be_filed(&self, piece: Piece, key: &Key) -> bool {
        match self.filters.get(&piece.number) {
            Some(filter) => filter.may_hold(key),
            None => piece.number <= self.unfiltered_through,
        }
    }

    /// Among those that are not in the index for certain.
    pub fn find(&self, key: &Key) -> Option<Seen> {
        let filing = || self.filing.binary_search_by_key(key, |(key, _)| *key).ok().map(|found| self.filing[found].1);
        self.recent.get(key).copied().or_else(filing)
    }

    /// Puts the next slice into the index and tells how many that were. `new`: how many this commit brings.
    pub fn file(&self, connection: &Connection, pieces: &[Piece], new: usize) -> rusqlite::Result<usize> {
        let left = &self.filing[self.filed..];
        let slice = &left[..left.len().min(SLICE.max(2 * new))];
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
    pub fn committed(&mut self, pieces: &[Piece], filed: usize, new: impl IntoIterator<Item = (Key, Seen)>) {
        self.recent.extend(new);
        for (key, seen) in &self.filing[self.filed..self.filed + filed] {
            let Some(piece) = piece_of(pieces, seen.message) else { continue };
            if piece.number > self.unfiltered_through || self.filters.contains_key(&piece.number) {
                let filter = self.filters.entry(piece.number);
                filter.or_insert_with(|| Filter::with_room_for(self.filter_keys)).insert(key);
            }
        }
        while self.filters.len() > FILTERS_MAX
            && let Some((oldest, _)) = self.filters.pop_first()
        {
            self.unfiltered_through = self.unfiltered_through.max(oldest);
        }
        self.filed += filed;
        if self.filed == self.filing.len() {
            self.filed = 0;
            self.filing.clear();
            if self.recent.len() >= self.recent_max {
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
