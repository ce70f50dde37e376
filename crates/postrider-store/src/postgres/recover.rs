//! Finds what was accepted and handed over but has no row of its own yet.
//!
//! A delivery that a message owes and that neither waits nor has ended nor was tried is in the memory of the node that
//! accepted the message. Each node notes with every commit up to which of its messages everything has a row, so that
//! only what came after that has to be looked through.

use super::{Db, Result};
use postrider_engine::{EndpointKey, MessageKey};

/// Whether the delivery is handed over, at whichever node, and has no row yet.
pub async fn is_handed(_db: &Db, _message: MessageKey, _endpoint: EndpointKey) -> Result<bool> {
    todo!()
}

/// The messages whose delivery to this endpoint is handed over and has no row yet, oldest first.
pub async fn handed_to(_db: &Db, _endpoint: EndpointKey) -> Result<Vec<MessageKey>> {
    todo!()
}

/// No message before this one has a delivery without a row. `None`: none has.
pub async fn oldest_handed(_db: &Db) -> Result<Option<i64>> {
    todo!()
}
