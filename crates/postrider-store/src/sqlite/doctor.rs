//! A look at the database in a folder, whether a server runs there or not. Nothing is changed, and nobody waits for it.

use super::{
    READER_CACHE_KIB, SqliteStore, connect,
    moving::{Departure, departure},
    schema,
};
use crate::doctor::{self, Finding};
use postrider_engine::Timestamp;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::{path::Path, sync::mpsc, time::Duration};

/// `check_max`: so long the file is looked through for damage, and no longer.
pub fn examine(folder: &Path, now: Timestamp, check_max: Duration) -> Vec<Finding> {
    let file = folder.join(SqliteStore::FILE);
    if !file.exists() {
        return vec![doctor::no_database()];
    }
    match look(&file, now, check_max) {
        Ok(found) => found,
        Err(error) => vec![Finding::problem(DATABASE, format!("it cannot be read: {error}"))],
    }
}

/// What the store was told to remember. `None` also where there is no database.
pub fn note(folder: &Path, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let file = folder.join(SqliteStore::FILE);
    if !file.exists() {
        return Ok(None);
    }
    let connection = open(&file)?;
    if schema::version(&connection)? == 0 {
        return Ok(None);
    }
    super::optional(connection.query_row("SELECT value FROM note WHERE name = ?1", [name], |row| row.get(0)))
}

/// Whether the database in the folder is one that is left over.
pub fn was_moved(folder: &Path) -> rusqlite::Result<bool> {
    let connection = open(&folder.join(SqliteStore::FILE))?;
    Ok(schema::version(&connection)? > 0 && matches!(departure(&connection)?, Some(Departure::Done { .. })))
}

fn look(file: &Path, now: Timestamp, check_max: Duration) -> rusqlite::Result<Vec<Finding>> {
    let connection = open(file)?;
    let version = schema::version(&connection)?;
    let mut found = vec![doctor::tables(version, schema::VERSION), log_size(file), damage(&connection, check_max)?];
    match if version > 0 { departure(&connection)? } else { None } {
        None => {}
        Some(Departure::Done { place }) => {
            let words = format!("it was moved to PostgreSQL ({place}); name that database with database_url");
            found.push(Finding::problem(DATABASE, words));
        }
        Some(Departure::Begun(ticket)) => {
            let words = format!(
                "it was being moved to PostgreSQL ({}) when that was interrupted; run `postrider move` to there again, which \
                 finds out what came of it",
                ticket.place
            );
            found.push(Finding::problem(DATABASE, words));
        }
    }
    if version == schema::VERSION {
        found.push(doctor::lateness(oldest_due(&connection, now)?.map(|due| now.as_millis() - due)));
    }
    Ok(found)
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    connect(file, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX, READER_CACHE_KIB)
}

/// What is committed and not yet in the main file. It is kept short, unless somebody reads for long.
fn log_size(file: &Path) -> Finding {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    let mib = std::fs::metadata(name).map_or(0, |log| log.len()) / (1024 * 1024);
    if mib > LOG_MIB {
        let words = "the log beside it is long; does a backup or another reader run since long ago?";
        Finding::warning(DATABASE, format!("{words} ({mib} MiB in {}-wal)", SqliteStore::FILE))
    } else {
        Finding::fine(DATABASE, format!("readable; {mib} MiB in its log"))
    }
}

fn damage(connection: &Connection, check_max: Duration) -> rusqlite::Result<Finding> {
    let stop = connection.get_interrupt_handle();
    let (done, over) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if over.recv_timeout(check_max) == Err(mpsc::RecvTimeoutError::Timeout) {
            stop.interrupt();
        }
    });
    let looked: rusqlite::Result<Vec<String>> = connection
        .prepare("PRAGMA quick_check(5)")
        .and_then(|mut check| check.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>());
    drop(done);
    let _ = watch.join();
    let words = match looked {
        Ok(lines) if lines == ["ok"] => return Ok(Finding::fine(DAMAGE, "none found")),
        Ok(lines) => lines.join("; "),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                let seconds = check_max.as_secs();
                return Ok(Finding::fine(DAMAGE, format!("none found in {seconds} s, which was not enough for all")));
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => error.to_string(),
            _ => return Err(error),
        },
    };
    Ok(Finding::problem(DAMAGE, format!("{words}; copy the folder away, then restore a backup")))
}

/// Of those that neither a pause nor a breaker holds back, nor one before them.
fn oldest_due(connection: &Connection, now: Timestamp) -> rusqlite::Result<Option<i64>> {
    connection.query_row(
        "SELECT min((SELECT min(due) FROM waiting WHERE waiting.endpoint = endpoint.key AND place = front.place))
         FROM endpoint LEFT JOIN health ON health.endpoint = endpoint.key, (SELECT 0 AS place UNION SELECT 2) AS front
         WHERE deleted_at IS NULL AND disabled_at IS NULL AND coalesce(open_until, 0) <= ?1",
        [now.as_millis()],
        |row| row.get(0),
    )
}

const DATABASE: &str = "database";
const DAMAGE: &str = "damage";
const LOG_MIB: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use std::io::{Seek, SeekFrom, Write};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const LONG: Duration = Duration::from_secs(600);

    fn verdicts(found: &[Finding]) -> Vec<Verdict> {
        found.iter().map(|finding| finding.verdict).collect()
    }

    #[tokio::test]
    async fn a_sound_database_has_nothing_wrong_with_it_while_it_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(verdicts(&examine(folder.path(), NOW, LONG)), [Verdict::Warning], "there is none yet");
        let _store = SqliteStore::open(folder.path(), NOW).unwrap();
        let found = examine(folder.path(), NOW, LONG);
        assert_eq!(verdicts(&found), [Verdict::Fine; 4], "{found:?}");
        assert_eq!(note(folder.path(), "mine").unwrap(), None);
    }

    #[test]
    fn what_is_due_since_long_ago_is_told_unless_something_holds_it_back() {
        let folder = tempfile::tempdir().unwrap();
        drop(SqliteStore::open(folder.path(), NOW).unwrap());
        let raw = Connection::open(folder.path().join(SqliteStore::FILE)).unwrap();
        let due = NOW.as_millis() - 300_000;
        for (endpoint, disabled) in [(1, None), (2, Some(5)), (3, None)] {
            raw.execute(
                "INSERT INTO endpoint (key, app, version, url, description, metadata, sealed, created_at, updated_at,
                                       disabled_at) VALUES (?1, 1, 1, '', '', '', x'', 0, 0, ?2)",
                (endpoint, disabled),
            )
            .unwrap();
        }
        let wait = "INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, place)
                    VALUES (?1, 1, 0, ?2, 0, 0, 0)";
        raw.execute(wait, (2, due)).unwrap();
        raw.execute(wait, (3, due)).unwrap();
        raw.execute("INSERT INTO health VALUES (3, 9, ?1, 1, NULL, 0, 0)", [NOW.as_millis() + 1]).unwrap();
        assert_eq!(oldest_due(&raw, NOW).unwrap(), None, "one is paused, the other one's breaker is open");
        raw.execute(wait, (1, due)).unwrap();
        let found = examine(folder.path(), NOW, LONG);
        assert_eq!(found[3].verdict, Verdict::Warning);
        assert!(found[3].words.starts_with("the oldest due one is 300 s late"), "{found:?}");
    }

    #[test]
    fn damage_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SqliteStore::FILE);
        drop(super::super::connect_up_to_date(&path).unwrap());
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.seek(SeekFrom::Start(8_192)).unwrap();
        file.write_all(&vec![0xa5; usize::try_from(length).unwrap() - 8_192]).unwrap();
        let found = examine(folder.path(), NOW, LONG);
        assert!(found.iter().any(|finding| finding.verdict == Verdict::Problem), "{found:?}");
    }
}
