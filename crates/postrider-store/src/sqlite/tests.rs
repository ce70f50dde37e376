//! The conformance suite on SQLite, and what only SQLite has: a folder, a lock, a schema version.

use super::*;
use crate::conformance::{Grain, Harness, fixtures::*};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tempfile::TempDir;

struct Sqlite {
    store: SqliteStore,
    folder: TempDir,
    options: SqliteOptions,
}

#[async_trait]
impl Harness for Sqlite {
    async fn fresh(grain: Grain) -> Self {
        let options = match grain {
            Grain::Usual => SqliteOptions::default(),
            Grain::Fine => SqliteOptions {
                piece_messages_max: 3,
                note_every: Duration::ZERO,
                repeats_recent_max: 2,
                listed_recent_max: 3,
                filed_at_once: 2,
                ..SqliteOptions::default()
            },
        };
        let folder = new_folder();
        Self { store: open_with(folder.path(), START, options), folder, options }
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn reopen(self, now: Timestamp) -> Self {
        let Self { store, folder, options } = self;
        store.close().await;
        drop(store);
        Self { store: open_with(folder.path(), now, options), folder, options }
    }

    /// What lies on the disk while the store is open is what a killed process would leave. Without the index of
    /// the log, which a new process builds anew.
    async fn crash(self, now: Timestamp) -> Self {
        let left = new_folder();
        for name in ["postrider.db", "postrider.db-wal"] {
            std::fs::copy(self.folder.path().join(name), left.path().join(name)).expect("the files can be copied");
        }
        drop(self.store);
        Self { store: open_with(left.path(), now, self.options), folder: left, options: self.options }
    }
}

/// In memory where there is such a place: the suite asks what is written, not how fast a disk is.
fn new_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(place).expect("a temporary folder can be made")
}

fn open_with(folder: &Path, now: Timestamp, options: SqliteOptions) -> SqliteStore {
    SqliteStore::open_with(folder, now, options).expect("the store opens")
}

crate::conformance!(Sqlite);

#[test]
fn a_second_process_is_refused_and_told_who_holds_the_folder() {
    let folder = new_folder();
    let first = SqliteStore::open(folder.path(), START).expect("the store opens");
    let Err(refusal) = SqliteStore::open(folder.path(), START) else { panic!("two on one folder") };
    let holder = format!("process {}", std::process::id());
    assert!(matches!(&refusal, OpenError::Locked { holder: found, .. } if *found == holder), "{refusal:?}");
    assert!(refusal.to_string().contains(&holder), "{refusal}");
    drop(first);
    SqliteStore::open(folder.path(), START).expect("the folder is free again");
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_left_as_it_is() {
    let folder = new_folder();
    drop(SqliteStore::open(folder.path(), START).expect("the store opens"));
    let newer = schema::VERSION + 1;
    let file = folder.path().join("postrider.db");
    let raw = Connection::open(&file).expect("the file opens");
    raw.pragma_update(None, "user_version", newer).expect("the version is set");
    let Err(refusal) = SqliteStore::open(folder.path(), START) else { panic!("opened what it does not know") };
    assert!(
        matches!(refusal, OpenError::TooNew { found, known } if (found, known) == (newer, schema::VERSION)),
        "{refusal:?}"
    );
    assert_eq!(schema::version(&raw).expect("the version is read"), newer);
}

/// Killed at any point of its first start, the next start goes on from there.
#[tokio::test]
async fn a_half_made_database_is_finished() {
    let stopped_at: [fn(&mut Connection); 3] = [
        |_| {},
        |raw| raw.pragma_update(None, "journal_mode", "WAL").expect("the mode is set"),
        |raw| schema::migrate(raw).expect("the tables are made"),
    ];
    for stop in stopped_at {
        let folder = new_folder();
        let file = folder.path().join("postrider.db");
        std::fs::File::create(&file).expect("the file is made");
        stop(&mut Connection::open(&file).expect("the file opens"));
        let store = SqliteStore::open(folder.path(), START).expect("the store opens");
        let app = add_application(&store, None).await.key;
        let key = accept(&store, message(app, START)).await;
        assert_eq!(all_messages(&store, app).await, [key]);
    }
}

/// A migration is one commit: killed within it, the database is as before, and the next start runs it again.
#[test]
fn a_migration_that_was_cut_off_is_run_again() {
    let folder = new_folder();
    let file = folder.path().join("postrider.db");
    let raw = Connection::open(&file).expect("the file opens");
    let cut_off = raw.unchecked_transaction().expect("a transaction begins");
    cut_off.execute_batch("CREATE TABLE note (half TEXT)").expect("a table is made");
    drop(cut_off);
    drop(raw);
    let store = SqliteStore::open(folder.path(), START).expect("the store opens");
    drop(store);
    let raw = Connection::open(&file).expect("the file opens");
    assert_eq!(schema::version(&raw).expect("the version is read"), schema::VERSION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_search_the_lanes_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(folder.path(), Timestamp::from_millis(1)).unwrap());
    let searches: Vec<_> = (0..2 * SEARCHERS)
        .map(|_| {
            let store = Arc::clone(&store);
            let (release, released) = std::sync::mpsc::channel::<()>();
            let search = async move { store.searchers.run(move |_, _| Ok(released.recv().is_err())).await };
            (release, tokio::spawn(search))
        })
        .collect();
    let loaded = store.load(EndpointKey::new(1), Ordering::Keyed, Timestamp::from_millis(1), 10);
    let loaded = tokio::time::timeout(Duration::from_secs(10), loaded).await.expect("it does not wait for a search");
    assert!(loaded.unwrap().deliveries.is_empty());
    // All are released before any is waited for: they may have been queued in another order than they were begun.
    let (releases, searches): (Vec<_>, Vec<_>) = searches.into_iter().unzip();
    drop(releases);
    for search in searches {
        assert!(search.await.unwrap().unwrap());
    }
}

/// The writer's thread is held: whoever asked it for something would wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_through_a_lane_in_vain_does_not_ask_the_writer() {
    let folder = new_folder();
    let store = Arc::new(open_with(folder.path(), START, SqliteOptions::default()));
    let app = add_application(&*store, None).await.key;
    let lane = add_endpoint(&*store, app, None).await.key;
    let id = scheduled(lane, accept(&*store, NewMessage { owed: vec![lane], ..message(app, START) }).await);
    store.settle(store.tenure(), Arc::new(vec![failed(id, at(1), at(DAY))])).await.unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let held = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.writer.run(move |_| Ok(released.recv().is_err())).await }
    });
    let looked = store.expire(lane, None, START, at(2));
    let looked = tokio::time::timeout(Duration::from_secs(10), looked).await.expect("it does not wait for the writer");
    assert_eq!(looked.unwrap(), None);
    drop(release);
    assert!(held.await.unwrap().unwrap());
}

/// In pieces that are small, filed a few at a time.
const IN_SMALL_PARTS: SqliteOptions = SqliteOptions {
    piece_messages_max: 20,
    piece_age_max: Duration::from_hours(24),
    note_every: Duration::ZERO,
    repeats_recent_max: 8,
    listed_recent_max: 16,
    filed_at_once: 2,
};

/// What one application has, and what its endpoint got, by every list there is.
async fn check_lists(
    store: &SqliteStore,
    (app, lane): (AppKey, EndpointKey),
    messages: &[MessageKey],
    tried: &[MessageKey],
) {
    let listed = all_messages(store, app).await;
    assert_eq!(listed, messages);
    for order in [Order::Ascending, Order::Descending] {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let page = Page { from, order, limit: 3 };
            let messages = store.messages(app, MessageFilter::default(), page).await.unwrap();
            let Some(last) = messages.last() else { break };
            from = Some(Cut::Past(last.key));
            found.extend(messages.iter().map(|message| message.key));
        }
        if order == Order::Descending {
            found.reverse();
        }
        assert_eq!(found, messages, "{order:?}");
    }
    let of = AttemptsOf::Endpoint(app, lane);
    let attempts = store.attempts(of, AttemptFilter::default(), Page { limit: 1_000, ..whole() }).await.unwrap();
    assert!(attempts.is_sorted_by_key(|attempt| attempt.key));
    let mut found: Vec<_> = attempts.iter().map(|attempt| attempt.id.message).collect();
    found.sort_unstable();
    assert_eq!(found, tried);
    assert_eq!(stats(store, lane).await.success, tried.len() as u64);
    let horizon = store.horizon(START).await.unwrap();
    assert!(messages.iter().all(|message| *message <= horizon));
}

#[tokio::test]
async fn lists_are_whole_while_they_are_filed_and_after_a_crash() {
    let folder = new_folder();
    let store = open_with(folder.path(), START, IN_SMALL_PARTS);
    let mut harness = Sqlite { store, folder, options: IN_SMALL_PARTS };
    let store = &harness.store;
    let apps = [add_application(store, None).await.key, add_application(store, None).await.key];
    let lanes = [add_endpoint(store, apps[0], None).await.key, add_endpoint(store, apps[1], None).await.key];
    let (mut messages, mut tried) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..60_i64 {
        let store = &harness.store;
        for which in 0..2 {
            let new = NewMessage { owed: vec![lanes[which]], ..message(apps[which], at(round)) };
            messages[which].push(accept(store, new).await);
        }
        // Some arrive at once, the others when the filing may have passed them.
        let which = (round % 2) as usize;
        while tried[which].len() + usize::try_from(round % 7).unwrap() < messages[which].len() {
            let next = messages[which][tried[which].len()];
            settle(store, vec![delivered(scheduled(lanes[which], next), at(round))]).await;
            tried[which].push(next);
        }
        // At every point of a round of filing sooner or later.
        match round % 10 {
            3 => harness = harness.crash(at(round)).await,
            8 => harness = harness.reopen(at(round)).await,
            _ => {}
        }
        for which in 0..2 {
            check_lists(&harness.store, (apps[which], lanes[which]), &messages[which], &tried[which]).await;
        }
    }
    let raw = Connection::open(harness.folder.path().join("postrider.db")).unwrap();
    let filed = |table: &str| -> i64 {
        let pieces = list_pieces(&raw).unwrap();
        let count = |piece: &Piece| format!("(SELECT count(*) FROM {table}_{})", piece.number);
        let sum = pieces.iter().map(count).collect::<Vec<_>>().join(" + ");
        raw.query_row(&format!("SELECT {sum}"), [], |row| row.get(0)).unwrap()
    };
    assert!((80..=120).contains(&filed("by_app")), "most are filed, and none twice: {}", filed("by_app"));
    assert!((70..=120).contains(&filed("by_endpoint")), "{}", filed("by_endpoint"));
}

/// What is in memory moves into the tables while lists are read: nothing may be missing from them then, nor be there twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lists_are_whole_for_who_reads_them_while_they_are_filed() {
    let folder = new_folder();
    let store = Arc::new(open_with(folder.path(), START, IN_SMALL_PARTS));
    let app = add_application(&*store, None).await.key;
    let lane = add_endpoint(&*store, app, None).await.key;
    let done = Arc::new(Mutex::new(Vec::new()));
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = [Order::Ascending, Order::Descending, Order::Ascending, Order::Descending]
        .into_iter()
        .map(|order| {
            let (store, done, is_over) = (Arc::clone(&store), Arc::clone(&done), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut looks = 0;
                while !is_over.load(Relaxed) {
                    let known = done.lock().unwrap().clone();
                    let whole = Page { from: None, order, limit: 1_000 };
                    let listed = store.messages(app, MessageFilter::default(), whole).await.unwrap();
                    let listed = listed.into_iter().map(|message| message.key).collect();
                    let whole = Page { from: None, order, limit: 1_000 };
                    let of = AttemptsOf::Endpoint(app, lane);
                    let attempts = store.attempts(of, AttemptFilter::default(), whole).await.unwrap();
                    let tried = attempts.into_iter().map(|attempt| attempt.id.message).collect();
                    let delivered = stats(&*store, lane).await.success;
                    let then: Vec<MessageKey> = done.lock().unwrap().clone();
                    for found in [listed, tried] {
                        let mut found: Vec<MessageKey> = found;
                        if order == Order::Descending {
                            found.reverse();
                        }
                        assert!(found.is_sorted_by(|one, next| one < next), "{found:?}");
                        // One may be on its way.
                        assert!(
                            found.starts_with(&known) && found.len() <= then.len() + 1,
                            "{found:?} after {known:?}"
                        );
                    }
                    assert!((known.len()..=then.len() + 1).contains(&usize::try_from(delivered).unwrap()));
                    looks += 1;
                }
                looks
            })
        })
        .collect();
    for round in 0..400 {
        let key = accept(&*store, NewMessage { owed: vec![lane], ..message(app, at(round / 100)) }).await;
        settle(&*store, vec![delivered(scheduled(lane, key), at(round / 100))]).await;
        done.lock().unwrap().push(key);
    }
    is_over.store(true, Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
}

#[tokio::test]
async fn keys_of_requests_are_known_from_runs_and_filters_that_were_saved() {
    let folder = new_folder();
    let store = open_with(folder.path(), START, IN_SMALL_PARTS);
    let app = add_application(&store, None).await.key;
    let with_key = |key: u8| NewMessage { idempotency: Some(chosen(key, 1)), ..message(app, START) };
    let mut keys = Vec::new();
    for key in 0..100 {
        keys.push(accept(&store, with_key(key)).await);
    }
    store.close().await;
    drop(store);
    let raw = Connection::open(folder.path().join("postrider.db")).unwrap();
    let saved: Vec<bool> = raw
        .prepare("SELECT repeats IS NOT NULL FROM piece ORDER BY number")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    assert_eq!(saved, [true, true, true, true, true, false], "all but the last are full");
    let runs: i64 = raw.query_row("SELECT count(DISTINCT run) FROM idempotency_3", [], |row| row.get(0)).unwrap();
    assert!(runs > 1, "{runs}");
    drop(raw);
    let store = open_with(folder.path(), START, IN_SMALL_PARTS);
    for key in 0..100 {
        let again = store.accept(with_key(key)).await.unwrap();
        assert_eq!(again, Accepted::Before(keys[usize::from(key)]), "key {key}");
        let other = NewMessage { idempotency: Some(chosen(key, 2)), ..message(app, START) };
        assert!(matches!(store.accept(other).await, Err(AcceptError::KeyReused)), "key {key}");
    }
    let new = store.accept(with_key(200)).await.unwrap();
    assert!(matches!(new, Accepted::Now(_)));
}
