//! Which lanes are this node's.

use super::{Db, Result};

/// The greatest key that any node has used.
pub async fn greatest_key(_db: &Db) -> Result<i64> {
    todo!()
}
