//! Which stretch of time lies in which tables.

use crate::records::{Cut, Order, Page};
use postrider_engine::Timestamp;
pub use postrider_engine::keys::{first_key_at, time_of_key};
use rusqlite::{CachedStatement, Connection};
use std::sync::Arc;

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
        connection.prepare_cached(&sql.replace("{n}", &self.number.to_string()))
    }
}

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

/// The open interval of keys that a page may show, `(low, high)`, and the direction in which to read it.
pub struct Span {
    pub low: i64,
    pub high: i64,
    pub reading: Order,
}

impl Span {
    pub fn of<K: Copy>(page: &Page<K>, raw: impl Fn(K) -> i64) -> Self {
        let (mut low, mut high) = (i64::MIN, i64::MAX);
        // Paging back reads against the list's order, starting at the cut; the caller turns the page round.
        let reading = match (&page.from, page.order) {
            (Some(Cut::Before(_)), Order::Ascending) => Order::Descending,
            (Some(Cut::Before(_)), Order::Descending) => Order::Ascending,
            (Some(Cut::Past(_)) | None, order) => order,
        };
        if let Some(Cut::Past(key) | Cut::Before(key)) = page.from {
            match reading {
                Order::Ascending => low = raw(key),
                Order::Descending => high = raw(key),
            }
        }
        Self { low, high, reading }
    }

    /// Narrows to keys made in `[after, before)`.
    pub fn within(mut self, after: Option<Timestamp>, before: Option<Timestamp>) -> Self {
        if let Some(after) = after {
            self.low = self.low.max(first_key_at(after) - 1);
        }
        if let Some(before) = before {
            self.high = self.high.min(first_key_at(before));
        }
        self
    }

    pub fn direction(&self) -> &'static str {
        match self.reading {
            Order::Ascending => "ASC",
            Order::Descending => "DESC",
        }
    }
}

/// Puts what was read back into the list's order.
pub fn in_list_order<K, T>(page: &Page<K>, mut rows: Vec<T>) -> Vec<T> {
    if matches!(page.from, Some(Cut::Before(_))) {
        rows.reverse();
    }
    rows
}

/// Makes keys that only ever grow, also when the clock does not.
#[derive(Debug)]
pub struct Minter(std::sync::atomic::AtomicI64);

impl Minter {
    pub fn starting_after(last: i64) -> Self {
        Self(last.into())
    }

    pub fn mint(&self, at: Timestamp) -> i64 {
        use std::sync::atomic::Ordering::Relaxed;
        let earliest = first_key_at(at);
        let step = |last: i64| Some(earliest.max(last + 1));
        let last = self.0.fetch_update(Relaxed, Relaxed, step).unwrap_or_else(|last| last);
        earliest.max(last + 1)
    }

    pub fn last(&self) -> i64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
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

    #[test]
    fn keys_grow_even_when_the_clock_goes_back() {
        let minter = Minter::starting_after(0);
        let late = minter.mint(Timestamp::from_millis(5_000));
        let early = minter.mint(Timestamp::from_millis(1_000));
        assert!(early > late);
        assert_eq!(time_of_key(early), Timestamp::from_millis(5_000));
    }
}
