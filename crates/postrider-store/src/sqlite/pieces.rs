//! Which stretch of time lies in which tables.

pub use postrider_engine::keys::{first_key_at, time_of_key};
use rusqlite::{CachedStatement, Connection};
use std::{fmt::Write, sync::Arc};

/// A stretch of history with tables of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub number: i64,
    /// No message in here has a smaller key.
    pub first_key: i64,
}

/// All pieces, oldest first. There is always one.
pub type Pieces = Arc<Vec<Piece>>;

impl Piece {
    /// A statement on this piece's tables. Only the piece's own number is put into the text.
    pub fn prepare<'c>(&self, connection: &'c Connection, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        let mut parts = sql.split('{');
        let mut text = String::with_capacity(sql.len() + NUMBER_LEN_MAX);
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let rest = part.strip_prefix("n}").expect("the statements have braces for nothing else");
            write!(text, "{}{rest}", self.number).expect("a string takes what is written");
        }
        connection.prepare_cached(&text)
    }
}

/// A statement that is used again and again, mostly on the same piece's tables.
pub struct OnPieces<'c> {
    connection: &'c Connection,
    sql: &'static str,
    prepared: Option<(i64, CachedStatement<'c>)>,
}

impl<'c> OnPieces<'c> {
    pub fn new(connection: &'c Connection, sql: &'static str) -> Self {
        Self { connection, sql, prepared: None }
    }

    pub fn on(&mut self, piece: Piece) -> rusqlite::Result<&mut CachedStatement<'c>> {
        let prepared = match self.prepared.take() {
            Some((number, statement)) if number == piece.number => statement,
            _ => piece.prepare(self.connection, self.sql)?,
        };
        Ok(&mut self.prepared.insert((piece.number, prepared)).1)
    }
}

/// Of a piece, wherever it stands in a statement.
const NUMBER_LEN_MAX: usize = 40;

/// The piece that holds a message of this key, if it was ever accepted.
pub fn piece_of(pieces: &[Piece], message: i64) -> Option<Piece> {
    let after = pieces.partition_point(|piece| piece.first_key <= message);
    after.checked_sub(1).map(|index| pieces[index])
}

/// The pieces that can hold keys of the open interval, oldest first.
pub fn within(pieces: &[Piece], low: i64, high: i64) -> Vec<Piece> {
    let first = pieces.partition_point(|piece| piece.first_key <= low.saturating_add(1)).saturating_sub(1);
    pieces[first..].iter().filter(|piece| piece.first_key < high).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_in_the_last_piece_that_begins_before_it() {
        let pieces = [(1, 0), (2, 100), (3, 200)].map(|(number, first_key)| Piece { number, first_key });
        for (key, number) in [(0, 1), (99, 1), (100, 2), (199, 2), (200, 3), (i64::MAX, 3)] {
            assert_eq!(piece_of(&pieces, key).map(|piece| piece.number), Some(number), "key {key}");
        }
        assert_eq!(piece_of(&pieces[1..], 5), None, "dropped with its piece");
    }
}
