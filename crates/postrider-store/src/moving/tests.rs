//! The conformance suite again, with a move wherever a store is stopped or dies: what was done on SQLite goes on, on
//! PostgreSQL, as if nothing had happened.

use super::*;
use crate::{
    PostgresStore, SqliteOptions, SqliteStore, Store,
    conformance::{Grain, Harness, fixtures::*},
};
use async_trait::async_trait;
use postrider_testbed::Cluster;
use std::time::Duration;
use tempfile::TempDir;

enum Moving {
    Before { store: SqliteStore, folder: TempDir, grain: Grain },
    After { store: PostgresStore, url: Box<DatabaseUrl>, options: PostgresOptions },
}

fn new_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(place).expect("a temporary folder can be made")
}

async fn fresh_url() -> DatabaseUrl {
    Cluster::shared().fresh_database().await.parse().expect("the testbed gives proper addresses")
}

async fn open(url: DatabaseUrl, now: Timestamp, options: PostgresOptions) -> Moving {
    let store = PostgresStore::open(&url, now, options.clone()).await.expect("the store opens");
    Moving::After { store, url: Box::new(url), options }
}

async fn move_from(folder: &Path, now: Timestamp, grain: Grain) -> Moving {
    let piece_span = match grain {
        Grain::Usual => Duration::from_hours(24),
        Grain::Fine => Duration::from_millis(1),
    };
    let options = PostgresOptions { own_at_once: true, piece_span, ..PostgresOptions::default() };
    let url = fresh_url().await;
    let (mut last, mut is_committing) = (None, false);
    let told = |step| match step {
        Step::Copying(progress) => last = Some(progress),
        Step::Committing => is_committing = true,
    };
    let moved = move_to_postgres(folder, &url, &options, now, told).await.expect("everything moves");
    assert!(matches!(moved, Moved::Now(tables) if tables.len() == TABLES.len()));
    assert!(is_committing);
    if let Some(Progress { done, total, .. }) = last {
        assert_eq!(done, total);
    }
    open(url, now, options).await
}

#[async_trait]
impl Harness for Moving {
    /// Each takes about a second.
    const SEQUENCES: u32 = 20;

    async fn fresh(grain: Grain) -> Self {
        let options = match grain {
            Grain::Usual => SqliteOptions::default(),
            Grain::Fine => SqliteOptions {
                piece_messages_max: 3,
                note_every: Duration::ZERO,
                repeats_recent_max: 2,
                listed_recent_max: 3,
                ..SqliteOptions::default()
            },
        };
        let folder = new_folder();
        let store = SqliteStore::open_with(folder.path(), START, options).expect("the store opens");
        Self::Before { store, folder, grain }
    }

    fn store(&self) -> &dyn Store {
        match self {
            Self::Before { store, .. } => store,
            Self::After { store, .. } => store,
        }
    }

    async fn reopen(self, now: Timestamp) -> Self {
        self.store().close().await;
        match self {
            Self::Before { store, folder, grain } => {
                drop(store);
                move_from(folder.path(), now, grain).await
            }
            after @ Self::After { .. } => after.crash(now).await,
        }
    }

    async fn crash(self, now: Timestamp) -> Self {
        match self {
            Self::Before { folder, grain, .. } => {
                let left = new_folder();
                for name in ["postrider.db", "postrider.db-wal"] {
                    std::fs::copy(folder.path().join(name), left.path().join(name)).expect("the files can be copied");
                }
                move_from(left.path(), now, grain).await
            }
            Self::After { store, url, options } => {
                drop(store);
                end_leases(&url, &options).await;
                open(*url, now, options).await
            }
        }
    }
}

async fn end_leases(url: &DatabaseUrl, options: &PostgresOptions) {
    let db = url.pool(options, 1).expect("a pool").get().await.expect("a connection");
    db.batch_execute("DELETE FROM lease").await.expect("written");
}

// Those that stop or kill their store, but for one which wants nothing to be left to tidy after that: the partitions it is
// moved to are finer than the pieces, so that there is.
crate::conformance! { @rooms Moving;
    accept {
        what_was_accepted_comes_back_the_same
        idempotency_outlives_restarts_and_pieces
        an_event_id_stays_taken_across_restarts_and_pieces
    }
    callers {
        what_is_known_of_callers_outlives_a_restart_and_a_crash
    }
    deliveries {
        a_resend_that_arrives_tells_the_lane_what_it_ended
    }
    reopening {
        a_crash_after_accept_loses_no_delivery
        a_clean_stop_loses_no_delivery
        after_a_crash_only_the_unsettled_come_back
        what_a_resend_delivered_does_not_come_back_after_a_crash
        deliveries_come_back_from_every_piece
        retries_keep_their_time_across_a_crash
        a_second_crash_finds_the_same_deliveries
        many_callers_at_once_lose_nothing
        keys_grow_even_when_the_clock_goes_back
        keys_of_attempts_grow_across_a_crash_with_the_clock_set_back
        notes_are_kept_and_replaced
    }
    settings {
        a_repeated_put_gets_the_first_answer
        an_answer_alone_is_remembered
        settings_outlive_a_restart_and_a_crash
        what_waits_for_a_deleted_endpoint_becomes_dead_letters
    }
    health {
        how_an_endpoint_fares_is_kept_with_the_outcome
    }
    order {
        order_outlives_a_restart_and_a_crash
        what_is_ordered_is_counted_without_gaps
        what_is_to_be_delivered_later_waits_for_its_time
    }
    history {
        an_expunged_payload_is_gone_for_good
        attempts_come_back_as_they_were_settled
    }
    dead {
        a_replay_begins_a_new_cycle
    }
    cancel {
        a_backlog_is_what_would_be_delivered
        a_cancelled_delivery_is_brought_back_by_its_arrival_only
        cancelling_a_message_ends_what_is_not_finished
    }
    tasks {
        a_cancel_ends_what_waits_and_what_is_on_its_way
        a_great_replay_of_dead_letters_takes_each_once
        a_purge_removes_all_contents_of_the_application
        a_recovery_goes_on_after_a_restart
        a_replay_of_what_was_missed_takes_what_is_not_owed
    }
    tidy {
        a_dead_letter_keeps_its_message_to_the_end
        a_great_history_is_forgotten_in_parts
        a_payload_expires_at_its_time
        a_payload_that_is_needed_outlives_its_time
        an_idle_store_forgets_too
        attempts_go_before_the_rest_if_asked
        dead_letters_go_with_their_messages
        forgetting_goes_on_after_a_crash
        payloads_go_before_the_rest_if_asked
        what_still_waits_is_kept_however_old
    }
}

#[test]
fn random_sequences_agree_with_the_model() {
    crate::conformance::sequences::agree_with_the_model::<Moving>();
}

async fn filled_folder() -> TempDir {
    let folder = new_folder();
    let store = SqliteStore::open(folder.path(), START).unwrap();
    add_application(&store, Some("acme")).await;
    store.close().await;
    folder
}

#[tokio::test]
async fn a_database_that_holds_something_is_left_as_it_is() {
    let (folder, url, options) = (filled_folder().await, fresh_url().await, PostgresOptions::default());
    let moved = move_to_postgres(folder.path(), &url, &options, START, |_| {}).await.unwrap();
    assert!(matches!(moved, Moved::Now(tables) if tables[0] == ("application", 1)));
    let other = filled_folder().await;
    let refused = move_to_postgres(other.path(), &url, &options, LATER, |_| {}).await.unwrap_err();
    assert!(matches!(refused, MoveError::NotEmpty { table: "application", .. }), "{refused}");
    assert!(SqliteStore::open(other.path(), START).is_ok(), "it is still where it was");
}

#[tokio::test]
async fn a_database_that_nodes_use_is_left_as_it_is() {
    let (folder, url) = (filled_folder().await, fresh_url().await);
    let options = PostgresOptions { own_at_once: true, ..PostgresOptions::default() };
    let node = PostgresStore::open(&url, START, options.clone()).await.unwrap();
    let refused = move_to_postgres(folder.path(), &url, &options, START, |_| {}).await.unwrap_err();
    assert!(matches!(refused, MoveError::InUse { .. }), "{refused}");
    drop(node);
    end_leases(&url, &options).await;
    move_to_postgres(folder.path(), &url, &options, START, |_| {}).await.expect("a dead one is nobody");
}

#[tokio::test]
async fn what_fails_half_way_leaves_nothing_behind_and_can_be_done_again() {
    let folder = filled_folder().await;
    let raw = rusqlite::Connection::open(folder.path().join(SqliteStore::FILE)).unwrap();
    raw.execute("UPDATE application SET name = 'a' || char(0) || 'b'", []).unwrap();
    let (url, options) = (fresh_url().await, PostgresOptions::default());
    let refused = move_to_postgres(folder.path(), &url, &options, START, |_| {}).await.unwrap_err();
    assert!(matches!(refused, MoveError::Write(_)), "{refused}");
    assert!(SqliteStore::open(folder.path(), START).is_ok(), "it is still where it was");
    raw.execute("UPDATE application SET name = 'ab'", []).unwrap();
    move_to_postgres(folder.path(), &url, &options, START, |_| {}).await.unwrap();
}

#[tokio::test]
async fn no_server_is_started_on_what_was_moved() {
    let (folder, options) = (filled_folder().await, PostgresOptions::default());
    assert!(!sqlite::was_moved(folder.path()).unwrap());
    move_to_postgres(folder.path(), &fresh_url().await, &options, START, |_| {}).await.unwrap();
    assert!(sqlite::was_moved(folder.path()).unwrap());
    let refused = SqliteStore::open(folder.path(), START).err().unwrap();
    assert!(matches!(refused, sqlite::OpenError::Moved { .. }), "{refused}");
    let found = sqlite::examine(folder.path(), START, Duration::from_secs(600));
    assert!(found.iter().any(|finding| finding.words.starts_with("it was moved to PostgreSQL")), "{found:?}");
    // Two copies would deliver everything twice.
    let refused = move_to_postgres(folder.path(), &fresh_url().await, &options, LATER, |_| {}).await.unwrap_err();
    assert!(matches!(refused, MoveError::From(sqlite::OpenError::Moved { .. })), "{refused}");
}

fn is_being_moved(folder: &Path) -> bool {
    let found = sqlite::examine(folder, START, Duration::from_secs(600));
    let is_told = found.iter().any(|finding| finding.words.starts_with("it was being moved to PostgreSQL"));
    let refused = SqliteStore::open(folder, START).err();
    is_told && matches!(refused, Some(sqlite::OpenError::BeingMoved { .. }))
}

#[tokio::test]
async fn who_dies_after_the_commit_leaves_a_folder_that_knows_where_to_look() {
    let (folder, url, options) = (filled_folder().await, fresh_url().await, PostgresOptions::default());
    move_to_postgres(folder.path(), &url, &options, START, |_| {}).await.unwrap();
    let raw = rusqlite::Connection::open(folder.path().join(SqliteStore::FILE)).unwrap();
    raw.execute("DELETE FROM note WHERE name = 'moved'", []).unwrap();
    assert!(is_being_moved(folder.path()));
    let refused = move_to_postgres(folder.path(), &fresh_url().await, &options, LATER, |_| {}).await.unwrap_err();
    assert!(matches!(refused, MoveError::From(sqlite::OpenError::BeingMoved { .. })), "{refused}");
    // Also if somebody has started a server there meanwhile.
    let node =
        PostgresStore::open(&url, START, PostgresOptions { own_at_once: true, ..options.clone() }).await.unwrap();
    let ended = move_to_postgres(folder.path(), &url, &options, LATER, |_| {}).await.unwrap();
    assert_eq!(ended, Moved::Before);
    assert!(sqlite::was_moved(folder.path()).unwrap());
    node.close().await;
}

#[tokio::test]
async fn who_dies_before_the_commit_can_move_again_to_the_same_place() {
    let (folder, url, options) = (filled_folder().await, fresh_url().await, PostgresOptions::default());
    let raw = rusqlite::Connection::open(folder.path().join(SqliteStore::FILE)).unwrap();
    let ticket = format!("{} {url}", START.as_millis());
    raw.execute("INSERT INTO note VALUES ('moving', ?1)", [ticket.as_bytes()]).unwrap();
    assert!(is_being_moved(folder.path()));
    let moved = move_to_postgres(folder.path(), &url, &options, LATER, |_| {}).await.unwrap();
    assert!(matches!(moved, Moved::Now(_)), "{moved:?}");
    assert!(sqlite::was_moved(folder.path()).unwrap());
}

const LATER: Timestamp = Timestamp::from_millis(1_800_000_060_000);
