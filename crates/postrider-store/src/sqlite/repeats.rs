//! Recognises a message that was accepted before.
//!
//! Every request of an SDK carries a key, and keys are random: an index kept in place would write a page of its
//! own for each message, which costs more than all the rest of accepting it. So the key is stored in the message's
//! own row, in the same commit; the newest ones are remembered here, and filed later, sorted, a slice with each commit: as
//! a *run* of its own behind the others, so that no page is written twice. After a crash, what was not filed yet is read
//! from the messages again. A filter for each piece keeps most lookups from touching the runs at all; the others look
//! into one after the other, the newest first.

use super::{
    SqliteOptions,
    filter::Filter,
    pieces::{OnPieces, Piece, first_key_at, piece_of, time_of_key},
    writer::{note, noted},
};
use crate::IDEMPOTENCY_MEMORY;
use postrider_engine::Timestamp;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap, VecDeque};

pub type Key = [u8; 16];

/// The message that a key belongs to, and what the request for it said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub message: i64,
    pub request: [u8; 16],
}

/// Filters are kept for so many pieces, a megabyte each, as long as their keys are remembered. In older ones, keys are
/// looked up.
const FILTERS_MAX: usize = 128;

/// Filters made at start, by reading all keys of that many pieces. Those of older pieces were saved.
const FILTERS_MADE_AT_START: usize = 2;

const FILED: &str = "repeats_filed_through";

pub struct Repeats {
    /// So many are remembered before they are filed. The more, the fewer pages each slice of them touches.
    recent_max: usize,
    slice: usize,
    /// The newest message.
    newest: i64,
    recent: HashMap<Key, Seen>,
    /// Sorted by key, and filed from the front.
    filing: Vec<(Key, Seen)>,
    filed: usize,
    /// Their run is called by the greatest of their messages, so that it is newer than all before it.
    run: i64,
    /// All keys of messages up to this one are filed.
    through: i64,
    /// By the number of the piece.
    filters: BTreeMap<i64, Filter>,
    /// Pieces up to this one have keys in their index and may have no filter.
    unfiltered_through: i64,
    filter_keys: usize,
    /// Pieces that nothing more is filed into. The filter of the first of them is saved with the next commit.
    unsaved: VecDeque<i64>,
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
            slice: options.filed_at_once,
            newest: first_key_at(now),
            recent: HashMap::new(),
            filing: Vec::new(),
            filed: 0,
            run: 0,
            through: 0,
            filters: BTreeMap::new(),
            unfiltered_through: pieces.last().map_or(0, |newest| newest.number),
            filter_keys: usize::try_from(options.piece_messages_max).unwrap_or(usize::MAX),
            unsaved: VecDeque::new(),
        };
        let forgotten = first_key_at(now.minus(IDEMPOTENCY_MEMORY));
        repeats.through = noted(connection, FILED)?.unwrap_or(0);
        let from = repeats.through.max(forgotten);
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
        let remembered = pieces.partition_point(|piece| piece.first_key <= forgotten).saturating_sub(1);
        let mut to_make = FILTERS_MADE_AT_START;
        for piece in pieces[remembered..].iter().rev().take(FILTERS_MAX) {
            let filter = match saved_filter(connection, *piece)? {
                Some(saved) => saved,
                None if to_make > 0 => {
                    to_make -= 1;
                    if is_closed(pieces, *piece, repeats.through) {
                        repeats.unsaved.push_front(piece.number);
                    }
                    repeats.read_filter(connection, *piece)?
                }
                None => continue,
            };
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
        let slice = &left[..left.len().min(self.slice.max(2 * new))];
        let mut insert = OnPieces::new(connection, "INSERT OR REPLACE INTO idempotency_{n} VALUES (?1, ?2, ?3, ?4)");
        for (key, seen) in slice {
            if let Some(piece) = piece_of(pieces, seen.message) {
                insert.on(piece)?.execute((self.run, key, seen.message, seen.request))?;
            }
        }
        if let Some((number, filter)) =
            self.unsaved.front().and_then(|number| Some((number, self.filters.get(number)?)))
        {
            connection
                .prepare_cached("UPDATE piece SET repeats = ?2 WHERE number = ?1")?
                .execute((number, filter.to_bytes()))?;
        }
        if !slice.is_empty() && slice.len() == left.len() {
            note(connection, FILED, self.run)?;
        }
        Ok(slice.len())
    }

    /// What was filed and what came new is committed.
    pub fn committed(&mut self, pieces: &[Piece], filed: usize, new: impl IntoIterator<Item = (Key, Seen)>) {
        for (key, seen) in new {
            self.newest = self.newest.max(seen.message);
            self.recent.insert(key, seen);
        }
        self.unsaved.pop_front();
        self.drop_filters_of_forgotten(pieces);
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
            if self.run > self.through {
                let is_new =
                    |piece: &&Piece| is_closed(pieces, **piece, self.run) && !is_closed(pieces, **piece, self.through);
                self.unsaved.extend(pieces.iter().filter(is_new).map(|piece| piece.number));
                self.through = self.run;
            }
            self.filed = 0;
            self.filing.clear();
            if self.recent.len() >= self.recent_max {
                self.filing.extend(self.recent.drain());
                self.filing.sort_unstable_by_key(|(key, _)| *key);
                self.run = self.filing.iter().map(|(_, seen)| seen.message).max().unwrap_or(0);
            }
        }
    }
}

impl Repeats {
    /// Of pieces that hold no key any more that is remembered, no filter is kept, nor made.
    fn drop_filters_of_forgotten(&mut self, pieces: &[Piece]) {
        let forgotten = first_key_at(time_of_key(self.newest).minus(IDEMPOTENCY_MEMORY));
        let Some(oldest_wanted) = piece_of(pieces, forgotten) else { return };
        self.filters = self.filters.split_off(&oldest_wanted.number);
        self.unfiltered_through = self.unfiltered_through.max(oldest_wanted.number - 1);
    }
}

/// Whether all keys of the piece are among those of messages up to this one.
fn is_closed(pieces: &[Piece], piece: Piece, through: i64) -> bool {
    pieces.iter().any(|later| later.number > piece.number && later.first_key <= through)
}

fn saved_filter(connection: &Connection, piece: Piece) -> rusqlite::Result<Option<Filter>> {
    let saved = connection
        .prepare_cached("SELECT repeats FROM piece WHERE number = ?1")?
        .query_row([piece.number], |row| Ok(row.get_ref(0)?.as_bytes_or_null()?.and_then(Filter::from_bytes)));
    Ok(super::optional(saved)?.flatten())
}

/// Looks into the runs of a piece.
pub fn filed(connection: &Connection, piece: Piece, key: &Key) -> rusqlite::Result<Option<Seen>> {
    let mut run = i64::MAX;
    let mut next_run = piece.prepare(connection, "SELECT max(run) FROM idempotency_{n} WHERE run < ?1")?;
    let mut find =
        piece.prepare(connection, "SELECT message, request FROM idempotency_{n} WHERE run = ?1 AND key = ?2")?;
    while let Some(older) = next_run.query_row([run], |row| row.get::<_, Option<i64>>(0))? {
        let seen = |row: &rusqlite::Row<'_>| Ok(Seen { message: row.get(0)?, request: row.get(1)? });
        let found = super::optional(find.query_row((older, key), seen))?;
        if found.is_some() {
            return Ok(found);
        }
        run = older;
    }
    Ok(None)
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
