//! Which keys a page of a list shows, and in which order they are read.

use crate::records::{Cut, Order, Page};
use postrider_engine::{Timestamp, keys::first_key_at};

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
