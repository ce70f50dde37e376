//! A bound on what waits to be written.

use crate::StoreError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Payload bytes that may be queued for the writer at once. Past it, whoever comes is asked to come again.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
const QUEUED_MESSAGES_MAX: usize = 20_000;

/// Counts what is on its way to the writer, so that a queue cannot grow without limit.
#[derive(Default)]
pub struct Queued {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

impl Queued {
    pub fn enter(&self, bytes: usize) -> Result<QueuedGuard<'_>, StoreError> {
        let messages = self.messages.fetch_add(1, Relaxed);
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let guard = QueuedGuard { queued: self, bytes };
        if messages >= QUEUED_MESSAGES_MAX || before + bytes > QUEUED_BYTES_MAX {
            Err(StoreError::Busy)
        } else {
            Ok(guard)
        }
    }
}

pub struct QueuedGuard<'q> {
    queued: &'q Queued,
    bytes: usize,
}

impl Drop for QueuedGuard<'_> {
    fn drop(&mut self) {
        self.queued.messages.fetch_sub(1, Relaxed);
        self.queued.bytes.fetch_sub(self.bytes, Relaxed);
    }
}
