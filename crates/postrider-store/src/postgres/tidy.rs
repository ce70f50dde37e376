//! Forgetting what is past its time.

use super::{Result, writer::Turn};
use crate::Retention;
use postrider_engine::{AppKey, AttemptKey, MessageKey, Timestamp};

pub async fn tidy(_turn: &mut Turn, _now: Timestamp, _retention: Retention) -> Result<bool> {
    todo!()
}

/// Removes a payload for good. False if there is no such message.
pub async fn expunge(_turn: &Turn, _app: AppKey, _message: MessageKey) -> Result<bool> {
    todo!()
}

/// Removes the kept response for good. False if there is no such attempt.
pub async fn expunge_attempt(_turn: &Turn, _message: MessageKey, _attempt: AttemptKey) -> Result<bool> {
    todo!()
}

/// A message is put on its way again. If the forgetting has passed it, its new attempts would never be forgotten.
pub async fn expect_attempts(_turn: &Turn, _message: MessageKey) -> Result<()> {
    todo!()
}
