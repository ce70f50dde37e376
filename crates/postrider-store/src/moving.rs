//! Moves a deployment from the database in its folder to one on PostgreSQL.
//!
//! In one transaction: until all of it is there and was counted, nothing of it is, so that no half of a deployment can ever
//! be served. Whoever starts a node meanwhile waits for the end.

mod tables;

use crate::{
    postgres::{self, DatabaseUrl, PostgresOptions, moving::Target},
    rows::Unreadable,
    sqlite::{self, moving::Source},
};
use postrider_engine::Timestamp;
use std::path::{Path, PathBuf};
pub(crate) use tables::TABLES;
use tokio::sync::mpsc;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub table: &'static str,
    /// Rows, of all tables.
    pub done: u64,
    pub total: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    From(#[from] sqlite::OpenError),
    #[error(transparent)]
    To(#[from] postgres::OpenError),
    #[error("the database in the folder could not be read; nothing was moved")]
    Read(#[from] rusqlite::Error),
    #[error("the database on PostgreSQL could not be written, and nothing was moved: {0}")]
    Write(String),
    #[error(
        "the database on PostgreSQL did not confirm the move ({0}); run the same command again, which finds out what came \
         of it. Until then no server starts on the folder"
    )]
    Unconfirmed(String),
    #[error("{place} holds {table} already; a deployment is moved into a database of its own")]
    NotEmpty { place: String, table: &'static str },
    #[error("a node runs on {place}; stop all of them first")]
    InUse { place: String },
    #[error("{read} rows were read from `{table}` and {written} written; nothing was moved")]
    Differs { table: &'static str, read: u64, written: u64 },
    #[error("it could not be noted in {} that the database is being moved; nothing was moved", folder.display())]
    NotBegun { folder: PathBuf, source: rusqlite::Error },
    #[error(
        "the database was moved, but that could not be noted in {}; run the same command again. Until then no server starts \
         on the folder",
        folder.display()
    )]
    NotMarked { folder: PathBuf, source: rusqlite::Error },
}

/// What a caller is told meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Copying(Progress),
    /// All is there but the commit. From here on it must be waited for: who breaks off cannot know what came of it.
    Committing,
}

/// How a move ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// With so many rows in each table.
    Now(Vec<(&'static str, u64)>),
    /// An earlier one, which was interrupted, had been committed. That is written down now.
    Before,
}

/// Moves everything. No server may run on either side. The database in the folder stays as it is, but for a note that
/// keeps servers from being started on it.
///
/// The note is written before the commit and completed after it, so that there is no moment at which a server could be
/// started on both sides. Who dies in between leaves a folder on which none starts, and the same move, made again, looks
/// whether its ticket lies on the other side.
pub async fn move_to_postgres(
    folder: &Path,
    url: &DatabaseUrl,
    options: &PostgresOptions,
    now: Timestamp,
    mut told: impl FnMut(Step),
) -> Result<Moved, MoveError> {
    let (opened, place, span) = (folder.to_owned(), url.to_string(), options.piece_span);
    let opening = tokio::task::spawn_blocking(move || Source::open(&opened, &place, now, span));
    let (source, plan) = opening.await.expect("opening does not panic")?;
    let target = Target::open(url, options).await?;
    match target.make_room(&plan).await? {
        Room::Made => {}
        Room::TakenByThis => {
            let (_, marked) = noting(source, move |source| source.mark_as_moved(now)).await;
            return match marked {
                Ok(()) => Ok(Moved::Before),
                Err(source) => Err(MoveError::NotMarked { folder: folder.to_owned(), source }),
            };
        }
    }

    let (hand, batches) = mpsc::channel(BATCHES_AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        let read = source.read(|batch| hand.blocking_send(batch).is_ok());
        (source, read)
    });
    let written = write_all(&target, &plan, batches, &mut told).await;
    // Also after an error: whoever is told of it finds the folder free again.
    let (source, read) = reading.await.expect("reading does not panic");
    written?;
    // All that was read has been written; an error in between must not pass for the end.
    read?;
    let moved = target.compare(&plan).await?;
    told(Step::Committing);
    let ticket = plan.ticket.clone();
    let (source, marked) = noting(source, move |source| source.mark_as_moving(&ticket)).await;
    marked.map_err(|source| MoveError::NotBegun { folder: folder.to_owned(), source })?;
    match target.commit().await {
        Ok(()) => {}
        Err(error @ MoveError::Unconfirmed(_)) => return Err(error),
        Err(error) => {
            // If this fails as well, the next move finds out.
            let _ = noting(source, Source::mark_as_staying).await;
            return Err(error);
        }
    }
    let (_, marked) = noting(source, move |source| source.mark_as_moved(now)).await;
    marked.map_err(|source| MoveError::NotMarked { folder: folder.to_owned(), source })?;
    Ok(Moved::Now(moved))
}

/// Ends at once if something cannot be written, and so does who reads, with nobody left to take it.
async fn write_all(
    target: &Target,
    plan: &Plan,
    mut batches: mpsc::Receiver<Batch>,
    told: &mut impl FnMut(Step),
) -> Result<(), MoveError> {
    let total = plan.rows.iter().map(|(_, rows)| rows).sum();
    let mut done = 0;
    while let Some(Batch { table, rows }) = batches.recv().await {
        target.write(table, &rows).await?;
        done += rows.len() as u64;
        told(Step::Copying(Progress { table: table.name, done, total }));
    }
    Ok(())
}

async fn noting(
    source: Source,
    note: impl FnOnce(&Source) -> rusqlite::Result<()> + Send + 'static,
) -> (Source, rusqlite::Result<()>) {
    let noting = tokio::task::spawn_blocking(move || {
        let noted = note(&source);
        (source, noted)
    });
    noting.await.expect("noting does not panic")
}

/// What is to come.
pub(crate) struct Plan {
    /// By table, in the order of `TABLES`.
    pub rows: Vec<(&'static str, u64)>,
    /// One message of each span of history.
    pub spans: Vec<i64>,
    /// The greatest key that is in use.
    pub minted: i64,
    pub ticket: Ticket,
}

/// By what a move is recognised on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub number: i64,
    /// Where to.
    pub place: String,
}

/// What a move finds where it is to go.
pub(crate) enum Room {
    Made,
    /// The same move was committed before.
    TakenByThis,
}

pub(crate) struct Batch {
    pub table: &'static Table,
    pub rows: Vec<Vec<Cell>>,
}

pub(crate) struct Table {
    pub name: &'static str,
    pub columns: &'static [(&'static str, Kind)],
    /// What to read, in SQLite's words. With `{n}` in it, it is read from every piece of history.
    pub from: &'static str,
    /// Whether several rows may have the same key, of which the newest message's counts.
    pub repeats: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Small,
    Whole,
    Big,
    Flag,
    Text,
    Bytes,
    /// Keys side by side, eight bytes each.
    Keys,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Small(i16),
    Whole(i32),
    Big(i64),
    Flag(bool),
    Text(String),
    Bytes(Vec<u8>),
    Keys(Vec<i64>),
}

impl Cell {
    /// Of a column that holds numbers in SQLite.
    pub fn number(kind: Kind, value: i64) -> Result<Self, Unreadable> {
        let wide = || Unreadable(format!("{value} where {kind:?} was expected"));
        Ok(match kind {
            Kind::Small => Self::Small(value.try_into().map_err(|_| wide())?),
            Kind::Whole => Self::Whole(value.try_into().map_err(|_| wide())?),
            Kind::Big => Self::Big(value),
            Kind::Flag => Self::Flag(value != 0),
            Kind::Text | Kind::Bytes | Kind::Keys => return Err(wide()),
        })
    }

    /// About how much memory it takes.
    pub fn size(&self) -> usize {
        match self {
            Self::Null | Self::Small(_) | Self::Whole(_) | Self::Big(_) | Self::Flag(_) => 16,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Keys(keys) => keys.len() * 8,
        }
    }
}

/// Rows are handed on in batches of so many, or so much, whichever comes first.
pub(crate) const BATCH_ROWS: usize = 5_000;
pub(crate) const BATCH_BYTES: usize = 8 * 1024 * 1024;
const BATCHES_AHEAD: usize = 2;

#[cfg(test)]
mod tests;
