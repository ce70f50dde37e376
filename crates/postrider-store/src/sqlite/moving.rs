//! Reads all that is to be moved elsewhere.

use super::{
    FolderLock, OpenError, SqliteStore, accept::unpack, connect_up_to_date, greatest_key, optional, pieces::Piece,
    read_pieces, recover, writer,
};
use crate::{
    IDEMPOTENCY_MEMORY,
    moving::{BATCH_BYTES, BATCH_ROWS, Batch, Cell, Kind, Plan, TABLES, Table, Ticket},
    rows::Unreadable,
};
use postrider_engine::{
    Timestamp,
    keys::{first_key_at, time_of_key},
};
use rusqlite::{Connection, types::ValueRef};
use std::{path::Path, time::Duration};

pub(crate) struct Source {
    connection: Connection,
    pieces: Vec<Piece>,
    /// Requests for older messages are recognised no more.
    remembered_from: i64,
    _lock: FolderLock,
}

/// How far a database has gone away. On one that has, no server is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It was about to be committed elsewhere. Whether it was can be seen only there.
    Begun(Ticket),
    Done {
        place: String,
    },
}

pub fn departure(connection: &Connection) -> rusqlite::Result<Option<Departure>> {
    let begun = "SELECT value FROM note WHERE name = ?1";
    let ticket = optional(connection.query_row(begun, [MOVING], |row| row.get::<_, Vec<u8>>(0)))?;
    let ticket = ticket.map(|text| Ticket::read(&text));
    Ok(match (writer::noted(connection, MOVED)?, ticket) {
        (Some(_), ticket) => Some(Departure::Done { place: ticket.map_or_else(String::new, |ticket| ticket.place) }),
        (None, Some(ticket)) => Some(Departure::Begun(ticket)),
        (None, None) => None,
    })
}

impl Departure {
    pub fn refusal(self, folder: &Path) -> OpenError {
        let folder = folder.to_owned();
        match self {
            Self::Begun(Ticket { place, .. }) => OpenError::BeingMoved { folder, place },
            Self::Done { place } => OpenError::Moved { folder, place },
        }
    }
}

impl Ticket {
    fn read(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let (number, place) = text.split_once(' ').unwrap_or(("0", &text));
        Self { number: number.parse().unwrap_or(0), place: place.to_owned() }
    }
}

impl Source {
    /// With all that a crash left behind in order: what is owed has rows then.
    ///
    /// `place`: where it is to be moved. If a move to there was begun before, this one is taken for the same.
    pub fn open(folder: &Path, place: &str, now: Timestamp, span: Duration) -> Result<(Self, Plan), OpenError> {
        let file = folder.join(SqliteStore::FILE);
        if !file.exists() {
            return Err(OpenError::Empty { folder: folder.to_owned() });
        }
        let lock = FolderLock::take(folder)?;
        let (mut connection, _) = connect_up_to_date(&file)?;
        let ticket = match departure(&connection)? {
            None => Ticket { number: now.as_millis(), place: place.to_owned() },
            Some(Departure::Begun(ticket)) if ticket.place == place => ticket,
            Some(departure @ (Departure::Begun(_) | Departure::Done { .. })) => return Err(departure.refusal(folder)),
        };
        let pieces = read_pieces(&mut connection)?;
        recover::recover(&mut connection, &pieces, now)?;
        let remembered_from = first_key_at(now.minus(IDEMPOTENCY_MEMORY));
        let source = Self { connection, pieces, remembered_from, _lock: lock };
        let plan = Plan {
            rows: TABLES.iter().map(|table| Ok((table.name, source.count(table)?))).collect::<rusqlite::Result<_>>()?,
            spans: source.spans(span)?,
            minted: greatest_key(&source.connection, &source.pieces)?,
            ticket,
        };
        Ok((source, plan))
    }

    /// Reads table after table. `take` says whether to go on.
    pub fn read(&self, mut take: impl FnMut(Batch) -> bool) -> rusqlite::Result<()> {
        for table in TABLES {
            for from in self.places(table) {
                let columns: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
                let mut select = self.connection.prepare(&format!("SELECT {} FROM {from}", columns.join(", ")))?;
                let mut found = select.query([])?;
                let (mut rows, mut size) = (Vec::new(), 0);
                while let Some(row) = found.next()? {
                    let cells = table.columns.iter().enumerate();
                    let cells: Vec<Cell> = cells
                        .map(|(index, (_, kind))| Ok(cell(*kind, row.get_ref(index)?)?))
                        .collect::<rusqlite::Result<_>>()?;
                    size += cells.iter().map(Cell::size).sum::<usize>();
                    rows.push(cells);
                    if rows.len() == BATCH_ROWS || size >= BATCH_BYTES {
                        if !take(Batch { table, rows: std::mem::take(&mut rows) }) {
                            return Ok(());
                        }
                        size = 0;
                    }
                }
                if !rows.is_empty() && !take(Batch { table, rows }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// From now on no server is started on it, until it is known what came of the move.
    pub fn mark_as_moving(&self, ticket: &Ticket) -> rusqlite::Result<()> {
        let text = format!("{} {}", ticket.number, ticket.place);
        let sql = "INSERT OR REPLACE INTO note VALUES (?1, ?2)";
        self.connection.execute(sql, (MOVING, text.as_bytes())).map(drop)
    }

    pub fn mark_as_staying(&self) -> rusqlite::Result<()> {
        self.connection.execute("DELETE FROM note WHERE name = ?1", [MOVING]).map(drop)
    }

    pub fn mark_as_moved(&self, now: Timestamp) -> rusqlite::Result<()> {
        writer::note(&self.connection, MOVED, now.as_millis())
    }

    fn count(&self, table: &Table) -> rusqlite::Result<u64> {
        let mut rows = 0;
        for from in self.places(table) {
            rows +=
                self.connection.query_row(&format!("SELECT count(*) FROM {from}"), [], |row| row.get::<_, u64>(0))?;
        }
        Ok(rows)
    }

    /// What to read one after the other. Only numbers of ours are put into the text.
    fn places(&self, table: &Table) -> Vec<String> {
        if !table.from.contains("{n}") {
            return vec![table.from.to_owned()];
        }
        let each = self.pieces.iter().map(|piece| table.from.replace("{n}", &piece.number.to_string()));
        match table.repeats {
            true => each.map(|from| format!("{from} WHERE message >= {}", self.remembered_from)).collect(),
            false => each.collect(),
        }
    }

    /// One key of each span in which there is anything.
    fn spans(&self, span: Duration) -> rusqlite::Result<Vec<i64>> {
        let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1);
        let mut spans = Vec::new();
        for piece in &self.pieces {
            let mut next = piece.prepare(
                &self.connection,
                "SELECT min(key) FROM (SELECT min(key) AS key FROM message_{n} WHERE key >= ?1
                                       UNION SELECT min(message) FROM attempt_{n} WHERE message >= ?1)",
            )?;
            let mut reached = piece.first_key;
            while let Some(key) = next.query_row([reached], |row| row.get::<_, Option<i64>>(0))? {
                spans.push(key);
                let ends = (time_of_key(key).as_millis() / span).saturating_add(1).saturating_mul(span);
                reached = first_key_at(Timestamp::from_millis(ends)).max(key + 1);
            }
        }
        Ok(spans)
    }
}

/// When the database was moved away.
const MOVED: &str = "moved";
/// The ticket of a move that may have been committed.
const MOVING: &str = "moving";

fn cell(kind: Kind, value: ValueRef<'_>) -> Result<Cell, Unreadable> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|error| Unreadable(error.to_string()));
    Ok(match (kind, value) {
        (_, ValueRef::Null) => Cell::Null,
        (kind, ValueRef::Integer(value)) => Cell::number(kind, value)?,
        (Kind::Text, ValueRef::Text(bytes)) => Cell::Text(text(bytes)?),
        (Kind::Bytes, ValueRef::Blob(bytes)) => Cell::Bytes(bytes.to_vec()),
        (Kind::Keys, ValueRef::Blob(bytes)) => Cell::Keys(unpack(bytes).iter().map(|key| key.raw()).collect()),
        (kind, other) => return Err(Unreadable(format!("{} where {kind:?} was expected", other.data_type()))),
    })
}
