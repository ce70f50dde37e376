//! Keeps the partitions that history lies in.
//!
//! A piece holds the messages of a span of time and their attempts. It is made before its first message comes, and
//! dropped whole.

use super::{Db, Result};

/// A stretch of history with partitions of its own: keys in `[first_key, end_key)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub number: i64,
    pub first_key: i64,
    pub end_key: i64,
}

/// All pieces, oldest first.
pub async fn list(_db: &Db) -> Result<Vec<Piece>> {
    todo!()
}

/// Drops a piece with all that lies in it.
pub async fn discard(_db: &Db, _piece: Piece) -> Result<()> {
    todo!()
}
