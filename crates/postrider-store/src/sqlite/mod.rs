//! SQLite: one file in one folder, one writer, readers apart.

use postrider_engine::Timestamp;
use std::path::Path;

pub struct SqliteStore {}

impl SqliteStore {
    /// Opens the store in `folder`, which is made if it is missing.
    pub fn open(_folder: &Path, _now: Timestamp) -> Result<Self, OpenError> {
        Err(OpenError::Folder)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data folder cannot be used")]
    Folder,
}
