//! Copies the database while a server uses it.
//!
//! `VACUUM INTO` and not SQLite's page-by-page backup: that one begins again whenever another process writes, and on a busy
//! server it never ends. This one reads a single state of the database, whatever is written meanwhile.

use super::{OpenError, READER_CACHE_KIB, SqliteStore, connect, list_pieces, schema};
use rusqlite::{Connection, InterruptHandle, OpenFlags};
use std::path::Path;

pub struct Backup {
    connection: Connection,
}

/// What a copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    pub messages: u64,
    pub waiting: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the database could not be copied")]
    Copy(#[source] rusqlite::Error),
    #[error("the copy is damaged ({0}); look at both disks, and copy again")]
    Damaged(String),
}

impl Backup {
    pub fn of(folder: &Path) -> Result<Self, OpenError> {
        let file = folder.join(SqliteStore::FILE);
        if !file.exists() {
            return Err(OpenError::Empty { folder: folder.to_owned() });
        }
        Ok(Self { connection: open(&file)? })
    }

    /// What the copy will come to, about.
    pub fn bytes(&self) -> rusqlite::Result<u64> {
        let ask = |what| self.connection.query_row(&format!("PRAGMA {what}"), [], |row| row.get::<_, u64>(0));
        let pages = ask("page_count")?.saturating_sub(ask("freelist_count")?);
        Ok(pages.saturating_mul(ask("page_size")?))
    }

    /// For ending it early, from another thread.
    pub fn stopper(&self) -> InterruptHandle {
        self.connection.get_interrupt_handle()
    }

    /// Writes the copy to a file that is not there yet, or is empty. It is not on the disk for certain until the caller
    /// has flushed it.
    pub fn write(&self, to: &Path) -> Result<(), BackupError> {
        let to = to.to_string_lossy();
        self.connection.execute("VACUUM INTO ?1", [&*to]).map(drop).map_err(BackupError::Copy)
    }
}

/// Looks through a copy that nobody uses.
pub fn verify(file: &Path) -> Result<Contents, BackupError> {
    let damaged = |error: rusqlite::Error| BackupError::Damaged(error.to_string());
    let connection = open(file).map_err(damaged)?;
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(damaged)?;
    if found != "ok" {
        return Err(BackupError::Damaged(found));
    }
    if schema::version(&connection).map_err(damaged)? == 0 {
        return Err(BackupError::Damaged("it has no tables".to_owned()));
    }
    count(&connection).map_err(damaged)
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    connect(file, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX, READER_CACHE_KIB)
}

fn count(connection: &Connection) -> rusqlite::Result<Contents> {
    let mut messages = 0;
    for piece in list_pieces(connection)? {
        let mut count = piece.prepare(connection, "SELECT count(*) FROM message_{n}")?;
        messages += count.query_row([], |row| row.get::<_, u64>(0))?;
    }
    let waiting = connection.query_row("SELECT count(*) FROM waiting", [], |row| row.get(0))?;
    Ok(Contents { messages, waiting })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use postrider_engine::Timestamp;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[tokio::test]
    async fn a_copy_of_a_store_in_use_opens_and_has_what_it_had() {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(matches!(Backup::of(folder.path()), Err(OpenError::Empty { .. })));
        let store = SqliteStore::open(folder.path(), NOW).unwrap();
        store.put_note("mine", vec![1, 2]).await.unwrap();
        let backup = Backup::of(folder.path()).unwrap();
        assert!(backup.bytes().unwrap() > 0);
        let to = copy.path().join(SqliteStore::FILE);
        backup.write(&to).unwrap();
        store.put_note("mine", vec![3]).await.unwrap();
        assert_eq!(verify(&to).unwrap(), Contents { messages: 0, waiting: 0 });
        assert!(matches!(backup.write(&to), Err(BackupError::Copy(_))), "never over something else");
        let restored = SqliteStore::open(copy.path(), NOW).unwrap();
        assert_eq!(restored.note("mine").await.unwrap(), Some(vec![1, 2]));
    }

    #[test]
    fn a_copy_that_is_none_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("copy");
        for bytes in [&b""[..], b"not a database at all, but long enough to be looked at as if it were one of them"] {
            std::fs::write(&file, bytes).unwrap();
            assert!(matches!(verify(&file), Err(BackupError::Damaged(_))));
        }
    }
}
