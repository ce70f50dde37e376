//! By what messages and attempts are listed: by their application, and by their endpoint.
//!
//! An index that is kept in place costs every commit a page for each application and each endpoint that it has something
//! of: with thousands of them that is nearly all it writes. So what is new is remembered here, and filed later, sorted, a
//! slice with each commit: a page then takes many entries at once. Up to which message everything is filed is noted;
//! what came after it is read again at a start.
//!
//! Who lists looks into both, and the note says which of the two counts: the tables for messages up to it, memory for those
//! past it. It has to look into memory first. What is filed meanwhile is then found in memory, and in the tables it is
//! passed over.

use super::{
    SqliteOptions,
    pieces::{OnPieces, Piece, Pieces, piece_of},
    writer::{note, noted},
};
use crate::{Order, rows::paging::Span};
use postrider_engine::{AppKey, EndpointKey, MessageKey};
use rusqlite::{Connection, Row};
use std::{
    ops::{ControlFlow, Range},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageEntry {
    pub app: i64,
    pub message: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptEntry {
    pub endpoint: i64,
    pub key: i64,
    pub message: i64,
    /// As it is stored.
    pub class: i64,
}

impl AttemptEntry {
    fn as_row(self) -> [i64; 4] {
        [self.endpoint, self.key, self.message, self.class]
    }
}

/// What a commit brings.
#[derive(Default)]
pub struct New {
    pub messages: Vec<MessageEntry>,
    pub attempts: Vec<AttemptEntry>,
}

impl New {
    fn len(&self) -> usize {
        self.messages.len() + self.attempts.len()
    }
}

/// What is not filed, as it is shown to readers.
#[derive(Default)]
pub struct Unfiled(Mutex<Behind>);

#[derive(Default)]
struct Behind {
    /// Every message up to this one is filed, with all its attempts.
    through: i64,
    /// By their keys.
    messages: Vec<MessageEntry>,
    attempts: Vec<AttemptEntry>,
    /// The greatest key of an attempt that was told. One that is in the tables, and is greater, has come since: to list it
    /// before all of its commit can be listed would be to leave out what lies between.
    newest_attempt: i64,
}

/// Every message up to this one is filed, with all its attempts.
#[derive(Clone, Copy, Debug)]
pub struct FiledThrough(i64);

/// What one application or one endpoint has of it.
pub struct Recent<T> {
    through: i64,
    newest_attempt: i64,
    entries: Vec<T>,
}

impl Unfiled {
    pub fn of_app(&self, app: AppKey) -> Recent<i64> {
        let behind = self.lock();
        let own = behind.messages.iter().filter(|entry| entry.app == app.raw());
        let entries = own.map(|entry| entry.message).collect();
        Recent { through: behind.through, newest_attempt: behind.newest_attempt, entries }
    }

    pub fn of_endpoint(&self, endpoint: EndpointKey) -> Recent<AttemptEntry> {
        let behind = self.lock();
        let own = behind.attempts.iter().filter(|entry| entry.endpoint == endpoint.raw());
        let entries = own.copied().collect();
        Recent { through: behind.through, newest_attempt: behind.newest_attempt, entries }
    }

    pub fn filed_through(&self) -> FiledThrough {
        FiledThrough(self.lock().through)
    }

    /// No message that is listed from now on, and is not yet, has a smaller key.
    pub fn newest_message(&self) -> MessageKey {
        let behind = self.lock();
        MessageKey::new(behind.messages.last().map_or(behind.through, |newest| newest.message))
    }

    fn lock(&self) -> MutexGuard<'_, Behind> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent<i64> {
    /// What the commit that is under way has accepted so far comes last.
    pub fn and(mut self, new: &New, app: AppKey) -> Self {
        let own = new.messages.iter().filter(|entry| entry.app == app.raw());
        self.entries.extend(own.map(|entry| entry.message));
        self
    }

    fn in_span(&self, span: &Span) -> Vec<i64> {
        let mut keys: Vec<i64> =
            self.entries.iter().copied().filter(|key| span.low < *key && *key < span.high).collect();
        if span.reading == Order::Descending {
            keys.reverse();
        }
        keys
    }
}

/// Walks an application's messages in the order of the span until told to stop, and shows these columns of each.
pub fn each_message(
    connection: &Connection,
    pieces: &[Piece],
    (app, recent): (AppKey, &Recent<i64>),
    span: &Span,
    columns: &'static str,
    mut visit: impl FnMut(Piece, &Row<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let filed = Span { high: span.high.min(recent.through.saturating_add(1)), ..*span };
    let in_tables = format!(
        "SELECT {columns} FROM by_app_{{n}} CROSS JOIN message_{{n}} ON key = listed
         WHERE owner = ?1 AND listed > ?2 AND listed < ?3 ORDER BY listed {}",
        span.direction()
    );
    let by_key = format!("SELECT {columns} FROM message_{{n}} WHERE key = ?1");
    let look_into_tables = |visit: &mut dyn FnMut(Piece, &Row<'_>) -> rusqlite::Result<ControlFlow<()>>| {
        for piece in in_reading_order(pieces, &filed) {
            let mut select = piece.prepare(connection, &in_tables)?;
            let mut rows = select.query((app.raw(), filed.low, filed.high))?;
            while let Some(row) = rows.next()? {
                if visit(piece, row)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok::<_, rusqlite::Error>(ControlFlow::Continue(()))
    };
    if span.reading == Order::Ascending && look_into_tables(&mut visit)?.is_break() {
        return Ok(());
    }
    for key in recent.in_span(span) {
        // Forgotten since.
        let Some(piece) = piece_of(pieces, key) else { continue };
        let mut select = piece.prepare(connection, &by_key)?;
        let mut rows = select.query([key])?;
        if let Some(row) = rows.next()?
            && visit(piece, row)?.is_break()
        {
            return Ok(());
        }
    }
    if span.reading == Order::Descending {
        let _ = look_into_tables(&mut visit)?;
    }
    Ok(())
}

/// How many messages of an application there are in the span, counted up to a limit.
pub fn count_messages(
    connection: &Connection,
    pieces: &[Piece],
    (app, recent): (AppKey, &Recent<i64>),
    span: &Span,
    limit: u64,
) -> rusqlite::Result<u64> {
    let filed = Span { high: span.high.min(recent.through.saturating_add(1)), ..*span };
    let mut counted = recent.in_span(span).len() as u64;
    for piece in in_reading_order(pieces, &filed) {
        if counted >= limit {
            break;
        }
        let sql = "SELECT count(*) FROM
            (SELECT 1 FROM by_app_{n} WHERE owner = ?1 AND listed > ?2 AND listed < ?3 LIMIT ?4)";
        let found: u64 =
            piece.prepare(connection, sql)?.query_row((app.raw(), filed.low, filed.high, limit), |row| row.get(0))?;
        counted += found;
    }
    Ok(counted)
}

/// The pieces that can hold keys of the span, in the order in which to read them.
pub fn in_reading_order(pieces: &[Piece], span: &Span) -> Vec<Piece> {
    let mut chosen: Vec<Piece> = pieces
        .iter()
        .enumerate()
        .filter(|(index, piece)| {
            let ends_before = pieces.get(index + 1).is_some_and(|next| next.first_key <= span.low);
            !ends_before && piece.first_key < span.high
        })
        .map(|(_, piece)| *piece)
        .collect();
    if span.reading == Order::Descending {
        chosen.reverse();
    }
    chosen
}

/// Walks an endpoint's attempts: those of each piece in the order of the span, until told to go on with the next, and those in
/// memory. An attempt lies with its message, so that the order is not one over all of them.
pub fn each_attempt(
    connection: &Connection,
    pieces: &[Piece],
    (endpoint, recent): (EndpointKey, &Recent<AttemptEntry>),
    span: &Span,
    columns: &'static str,
    mut visit: impl FnMut(Run, Piece, &Row<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let high = span.high.min(recent.newest_attempt.saturating_add(1));
    let in_tables = format!(
        "SELECT {columns} FROM by_endpoint_{{n}} CROSS JOIN attempt_{{n}} ON message = listed_message AND key = listed
         WHERE owner = ?1 AND listed > ?2 AND listed < ?3 AND listed_message <= ?4 ORDER BY listed {}",
        span.direction()
    );
    for piece in pieces.iter().filter(|piece| piece.first_key <= recent.through) {
        let mut select = piece.prepare(connection, &in_tables)?;
        let mut rows = select.query((endpoint.raw(), span.low, high, recent.through))?;
        while let Some(row) = rows.next()? {
            if visit(Run::Piece(piece.number), *piece, row)?.is_break() {
                break;
            }
        }
    }
    let by_key = format!("SELECT {columns} FROM attempt_{{n}} WHERE message = ?1 AND key = ?2");
    let mut entries: Vec<&AttemptEntry> =
        recent.entries.iter().filter(|entry| span.low < entry.key && entry.key < span.high).collect();
    entries.sort_unstable_by_key(|entry| entry.key);
    if span.reading == Order::Descending {
        entries.reverse();
    }
    for entry in entries {
        let Some(piece) = piece_of(pieces, entry.message) else { continue };
        let mut select = piece.prepare(connection, &by_key)?;
        let mut rows = select.query((entry.message, entry.key))?;
        if let Some(row) = rows.next()?
            && visit(Run::Recent, piece, row)?.is_break()
        {
            break;
        }
    }
    Ok(())
}

/// Attempts that come in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    Piece(i64),
    Recent,
}

/// Of how many messages with keys in `from..to` there is such an attempt by this endpoint, in a snapshot that is no older than `filed`.
pub fn count_messages_tried(
    snapshot: &Connection,
    pieces: &[Piece],
    (endpoint, FiledThrough(filed)): (EndpointKey, FiledThrough),
    (from, to): (i64, i64),
    class: i64,
) -> rusqlite::Result<u64> {
    let in_lists = "SELECT count(DISTINCT listed_message) FROM by_endpoint_{n}
        WHERE owner = ?1 AND listed >= ?2 AND listed_class = ?4 AND listed_message >= ?2 AND listed_message < ?3";
    // Few enough to look at all: they fit into memory.
    let past_them = "SELECT count(DISTINCT message) FROM attempt_{n}
        WHERE endpoint = ?1 AND message >= ?2 AND message < ?3 AND class = ?4";
    let mut counted = 0;
    for (sql, from, to) in
        [(in_lists, from, to.min(filed.saturating_add(1))), (past_them, from.max(filed.saturating_add(1)), to)]
    {
        let span = Span { low: from - 1, high: to, reading: Order::Ascending };
        for piece in in_reading_order(pieces, &span) {
            let found: u64 =
                piece.prepare(snapshot, sql)?.query_row((endpoint.raw(), from, to, class), |row| row.get(0))?;
            counted += found;
        }
    }
    Ok(counted)
}

const FILED: &str = "listed_through";

/// Files what is new; the writer's own.
pub struct Listing {
    /// So many are remembered before they are filed. The more, the fewer pages each slice of them touches.
    recent_max: usize,
    slice: usize,
    /// As they were when last something was committed.
    pieces: Pieces,
    through: i64,
    /// What is being filed are the messages up to this one, and their attempts. Those that come later are filed at once.
    filing_through: i64,
    /// Sorted, and filed from the front: first these, then the attempts.
    messages: Vec<MessageEntry>,
    attempts: Vec<AttemptEntry>,
    filed: usize,
}

impl Listing {
    /// Reads again what came in and was not filed when the last run ended.
    pub fn recall(
        connection: &Connection,
        pieces: &Pieces,
        minted: i64,
        options: SqliteOptions,
        unfiled: &Unfiled,
    ) -> rusqlite::Result<Self> {
        let through = noted(connection, FILED)?.unwrap_or(0);
        let mut new = New::default();
        for (index, piece) in pieces.iter().enumerate() {
            if pieces.get(index + 1).is_some_and(|next| next.first_key <= through) {
                continue;
            }
            let mut select =
                piece.prepare(connection, "SELECT app, key FROM message_{n} WHERE key > ?1 ORDER BY key")?;
            let mut rows = select.query([through])?;
            while let Some(row) = rows.next()? {
                new.messages.push(MessageEntry { app: row.get(0)?, message: row.get(1)? });
            }
            let sql = "SELECT endpoint, key, message, class FROM attempt_{n} WHERE message > ?1";
            let mut select = piece.prepare(connection, sql)?;
            let mut rows = select.query([through])?;
            while let Some(row) = rows.next()? {
                let (endpoint, key, message, class) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                new.attempts.push(AttemptEntry { endpoint, key, message, class });
            }
        }
        let mut listing = Self {
            recent_max: options.listed_recent_max,
            slice: options.filed_at_once,
            pieces: Arc::clone(pieces),
            through,
            filing_through: through,
            messages: Vec::new(),
            attempts: Vec::new(),
            filed: 0,
        };
        let mut behind = unfiled.lock();
        (behind.through, behind.newest_attempt) = (through, minted);
        drop(behind);
        listing.committed(unfiled, pieces, 0, new, i64::MAX);
        Ok(listing)
    }

    /// Files an attempt of a message that the filing has passed.
    pub fn file_if_passed(&self, connection: &Connection, piece: Piece, entry: AttemptEntry) -> rusqlite::Result<()> {
        if entry.message <= self.filing_through {
            piece.prepare(connection, FILE_ATTEMPT)?.execute(entry.as_row())?;
        }
        Ok(())
    }

    /// Files the next slice and tells how many that were. `new`: what this commit brings.
    pub fn file(&self, connection: &Connection, pieces: &Pieces, new: &New) -> rusqlite::Result<usize> {
        let left = self.len() - self.filed;
        let slice = self.filed..self.filed + left.min(self.slice.max(2 * new.len()));
        let of_attempts = |index: usize| index.saturating_sub(self.messages.len());
        let mut insert = OnPieces::new(connection, "INSERT OR IGNORE INTO by_app_{n} VALUES (?1, ?2)");
        for entry in &self.messages[slice.start.min(self.messages.len())..slice.end.min(self.messages.len())] {
            if let Some(piece) = piece_of(pieces, entry.message) {
                insert.on(piece)?.execute([entry.app, entry.message])?;
            }
        }
        let mut insert = OnPieces::new(connection, FILE_ATTEMPT);
        for entry in &self.attempts[of_attempts(slice.start)..of_attempts(slice.end)] {
            if let Some(piece) = piece_of(pieces, entry.message) {
                insert.on(piece)?.execute(entry.as_row())?;
            }
        }
        if !slice.is_empty() && slice.end == self.len() {
            note(connection, FILED, self.filing_through)?;
        }
        Ok(slice.len())
    }

    /// What was filed and what came new is committed. First attempts of messages from `owed_from` on are still to come: they are
    /// left for the next time, if that is not most of it, because an attempt that comes after its message was filed has to be
    /// filed by itself.
    pub fn committed(&mut self, unfiled: &Unfiled, pieces: &Pieces, filed: usize, new: New, owed_from: i64) {
        let mut behind = unfiled.lock();
        let through = self.through;
        behind.newest_attempt =
            new.attempts.last().map_or(behind.newest_attempt, |newest| newest.key.max(behind.newest_attempt));
        behind.messages.extend(new.messages);
        behind.attempts.extend(new.attempts.into_iter().filter(|entry| entry.message > through));
        self.filed += filed;
        let hidden = hidden(&self.pieces, pieces);
        if !hidden.is_empty() {
            self.forget(&mut behind, |message| hidden.iter().any(|keys| keys.contains(&message)));
        }
        self.pieces = Arc::clone(pieces);
        if self.filed == self.len() && self.filing_through > self.through {
            self.through = self.filing_through;
            (self.filed, self.messages, self.attempts) = (0, Vec::new(), Vec::new());
            let through = self.through;
            behind.through = through;
            behind.messages.retain(|entry| entry.message > through);
            behind.attempts.retain(|entry| entry.message > through);
        }
        let is_idle = self.filing_through == self.through;
        if is_idle && behind.messages.len() + behind.attempts.len() >= self.recent_max && !behind.messages.is_empty() {
            let tried = behind.messages.partition_point(|entry| entry.message < owed_from);
            let count = if 2 * tried > behind.messages.len() { tried } else { behind.messages.len() };
            let through = behind.messages[count - 1].message;
            self.filing_through = through;
            self.messages = behind.messages[..count].to_vec();
            self.attempts = behind.attempts.iter().copied().filter(|entry| entry.message <= through).collect();
            drop(behind);
            self.messages.sort_unstable();
            self.attempts.sort_unstable();
        }
    }

    /// Drops what lay in a piece that is gone: it would be counted, and be filed with the piece before.
    fn forget(&mut self, behind: &mut Behind, is_gone: impl Fn(i64) -> bool) {
        behind.messages.retain(|entry| !is_gone(entry.message));
        behind.attempts.retain(|entry| !is_gone(entry.message));
        let messages_filed = self.filed.min(self.messages.len());
        self.messages.drain(..messages_filed);
        self.attempts.drain(..self.filed - messages_filed);
        self.filed = 0;
        self.messages.retain(|entry| !is_gone(entry.message));
        self.attempts.retain(|entry| !is_gone(entry.message));
    }

    fn len(&self) -> usize {
        self.messages.len() + self.attempts.len()
    }
}

/// The keys of messages in pieces that were there before and are no more.
fn hidden(before: &Pieces, now: &Pieces) -> Vec<Range<i64>> {
    if Arc::ptr_eq(before, now) {
        return Vec::new();
    }
    let is_gone = |(_, piece): &(usize, &Piece)| now.iter().all(|kept| kept.number != piece.number);
    let keys = |(index, piece): (usize, &Piece)| {
        piece.first_key..before.get(index + 1).map_or(i64::MAX, |next| next.first_key)
    };
    before.iter().enumerate().filter(is_gone).map(keys).collect()
}

const FILE_ATTEMPT: &str = "INSERT OR IGNORE INTO by_endpoint_{n} VALUES (?1, ?2, ?3, ?4)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_owed_is_left_for_the_next_time_unless_that_is_most_of_it() {
        let pieces: Pieces = Arc::new(vec![Piece { number: 1, first_key: 0 }]);
        for (owed_from, filed_through) in [(i64::MAX, 6), (5, 4), (4, 6), (1, 6), (0, 6)] {
            let mut listing = Listing {
                recent_max: 12,
                slice: 1,
                pieces: Arc::clone(&pieces),
                through: 0,
                filing_through: 0,
                messages: Vec::new(),
                attempts: Vec::new(),
                filed: 0,
            };
            let messages = (1..=6).map(|message| MessageEntry { app: 1, message }).collect();
            let attempt = |message| AttemptEntry { endpoint: 2, key: 10 + message, message, class: 0 };
            let attempts = (1..=6).map(attempt).collect();
            listing.committed(&Unfiled::default(), &pieces, 0, New { messages, attempts }, owed_from);
            let last = (listing.messages.last().map(|entry| entry.message), listing.attempts.len() as i64);
            assert_eq!((listing.filing_through, last), (filed_through, (Some(filed_through), filed_through)));
        }
    }
}
