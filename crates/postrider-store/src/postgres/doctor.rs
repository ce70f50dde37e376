//! A look at the database and at the nodes on it, by somebody who is none of them. Nothing is changed.

use super::{
    DatabaseUrl, Db, PostgresOptions, Result,
    connect::{NODE_CONNECTIONS, SERVER_MIN, careless_settings},
    describe,
    ears::Ears,
    leases, one, row, rows, schema, visit,
};
use crate::doctor::{self, Finding};
use postrider_engine::Timestamp;
use std::time::{Duration, Instant};

/// `clock`: what this machine believes the time to be.
pub async fn examine(url: &DatabaseUrl, options: &PostgresOptions, clock: fn() -> Timestamp) -> Vec<Finding> {
    // By a name of its own, so that it is not taken for the node that runs here.
    let options = &PostgresOptions { name: "doctor".to_owned(), ..options.clone() };
    let db = match visit::connect(url, options).await {
        Ok(db) => db,
        Err(error) => return vec![Finding::problem(DATABASE, error.to_string())],
    };
    let mut found = Vec::new();
    // One that cannot be looked at must not hide the others.
    let mut add = |what, looked: Result<Vec<Finding>>| match looked {
        Ok(findings) => found.extend(findings),
        Err(error) => found.push(Finding::problem(what, format!("could not be looked at: {}", describe(&error)))),
    };
    add(DATABASE, distance(&db).await);
    add(SERVER, server(&db).await);
    add(NOTIFICATIONS, notifications(url, options).await);
    add(CLOCK, clock_skew(&db, clock).await);
    add(DURABILITY, durability(&db).await);
    add(CHECKPOINTS, checkpoints(&db).await);
    add(CONNECTIONS, connections(&db).await);
    add(TRANSACTIONS, transactions(&db).await);
    let version = schema::version(&db).await;
    let is_ours = version.as_ref().is_ok_and(|version| *version == schema::VERSION);
    add(TABLES, version.map(|version| vec![doctor::tables(version, schema::VERSION)]));
    if is_ours {
        add(VACUUM, vacuum(&db).await);
        add(NODES, nodes(&db).await);
        add(LANES, lanes(&db).await);
        add(DELIVERIES, deliveries(&db).await);
    }
    found
}

/// Every commit takes at least so long.
async fn distance(db: &Db) -> Result<Vec<Finding>> {
    let mut nearest = Duration::MAX;
    for _ in 0..LOOKS {
        let asked = Instant::now();
        one(db, "SELECT 1", &[]).await?;
        nearest = nearest.min(asked.elapsed());
    }
    let words = format!("answers within {}.{:03} ms", nearest.as_millis(), nearest.as_micros() % 1_000);
    Ok(vec![if nearest > FAR {
        Finding::warning(DATABASE, format!("{words}, and every commit waits for that; bring the nodes nearer to it"))
    } else {
        Finding::fine(DATABASE, words)
    }])
}

async fn server(db: &Db) -> Result<Vec<Finding>> {
    let found = one(
        db,
        "SELECT current_setting('server_version_num')::bigint / 10000, current_setting('server_version'),
                pg_size_pretty(pg_database_size(current_database())), pg_is_in_recovery(),
                current_setting('default_transaction_read_only') = 'on'",
        &[],
    )
    .await?;
    let (major, version, size): (i64, &str, &str) = (found.get(0), found.get(1), found.get(2));
    let (is_standby, is_read_only): (bool, bool) = (found.get(3), found.get(4));
    Ok(vec![if major < SERVER_MIN {
        Finding::problem(SERVER, format!("PostgreSQL {version}; Postrider needs {SERVER_MIN} or later"))
    } else if is_standby {
        Finding::problem(SERVER, format!("PostgreSQL {version}, a standby, which takes no writes; name the primary"))
    } else if is_read_only {
        let words = "default_transaction_read_only = on, so that nothing can be written; turn it off for this role";
        Finding::problem(SERVER, format!("PostgreSQL {version}: {words}"))
    } else {
        Finding::fine(SERVER, format!("PostgreSQL {version}, {size} in this database"))
    }])
}

async fn notifications(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Vec<Finding>> {
    let mut ears = Ears::new(url.clone(), options.clone());
    Ok(vec![match ears.prove(NO_NODE).await {
        Ok(()) => Finding::fine(NOTIFICATIONS, "passed on"),
        Err(error) => Finding::problem(NOTIFICATIONS, error.to_string()),
    }])
}

async fn clock_skew(db: &Db, clock: fn() -> Timestamp) -> Result<Vec<Finding>> {
    let before = clock().as_millis();
    let theirs = leases::now(db).await?.as_millis();
    let ours = before + (clock().as_millis() - before) / 2;
    Ok(vec![judge_skew(ours - theirs)])
}

fn judge_skew(millis: i64) -> Finding {
    let words = match millis {
        0.. => format!("this machine's is {millis} ms ahead of the database's"),
        _ => format!("this machine's is {} ms behind the database's", millis.saturating_neg()),
    };
    let apart = millis.saturating_abs();
    if apart <= SKEW_MILLIS {
        Finding::fine(CLOCK, words)
    } else if apart <= SKEW_MILLIS_MAX {
        Finding::warning(CLOCK, format!("{words}; let NTP keep both"))
    } else {
        let danger = "receivers refuse signatures whose time is far off";
        Finding::problem(CLOCK, format!("{words}; let NTP keep both: {danger}"))
    }
}

async fn durability(db: &Db) -> Result<Vec<Finding>> {
    let careless = careless_settings(db).await?;
    if !careless.is_empty() {
        let told = |(name, value, danger): &(String, String, &str)| {
            Finding::problem(DURABILITY, format!("{name} = {value}: {danger}; set it to `on`"))
        };
        return Ok(careless.iter().map(told).collect());
    }
    let found =
        one(db, "SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')", &[])
            .await?;
    let (commit, standbys): (&str, &str) = (found.get(0), found.get(1));
    let reach = match (commit, standbys) {
        ("local", _) | (_, "") => "on its own disk",
        ("remote_write", _) => "on its own disk and in a standby's memory",
        (_, _) => "on its own disk and on a standby's",
    };
    Ok(vec![Finding::fine(DURABILITY, format!("a commit is {reach} before it is answered"))])
}

async fn checkpoints(db: &Db) -> Result<Vec<Finding>> {
    let version = one(db, "SELECT current_setting('server_version_num')::bigint", &[]).await?;
    let counts = if version.get::<_, i64>(0) >= 170_000 {
        "SELECT num_timed, num_requested, current_setting('max_wal_size') FROM pg_stat_checkpointer"
    } else {
        "SELECT checkpoints_timed, checkpoints_req, current_setting('max_wal_size') FROM pg_stat_bgwriter"
    };
    let found = one(db, counts, &[]).await?;
    Ok(vec![judge_checkpoints(found.get(0), found.get(1), found.get(2))])
}

/// Those that come by size come when most is written, and make it slow.
fn judge_checkpoints(timed: i64, requested: i64, wal_max: &str) -> Finding {
    if requested > timed && requested > CHECKPOINTS_FEW {
        let words = format!("{requested} of {} came by size and not by time", timed + requested);
        Finding::warning(CHECKPOINTS, format!("{words}; raise max_wal_size, which is {wal_max}"))
    } else {
        Finding::fine(CHECKPOINTS, format!("they come by time; max_wal_size is {wal_max}"))
    }
}

async fn connections(db: &Db) -> Result<Vec<Finding>> {
    // What others do is hidden from an ordinary role; how many they are is not.
    let found = one(
        db,
        "SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
                    - coalesce(current_setting('reserved_connections', true)::bigint, 0),
                (SELECT sum(numbackends)::bigint FROM pg_stat_database)",
        &[],
    )
    .await?;
    let (most, used): (i64, i64) = (found.get(0), found.get(1));
    let words = format!("{used} of {most} in use; a node takes up to {NODE_CONNECTIONS}");
    Ok(vec![if most - used < NODE_CONNECTIONS as i64 {
        Finding::warning(CONNECTIONS, format!("{words}, for which there is no room; raise max_connections"))
    } else {
        Finding::fine(CONNECTIONS, words)
    }])
}

async fn transactions(db: &Db) -> Result<Vec<Finding>> {
    let oldest = row(
        db,
        "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint,
                coalesce(nullif(application_name, ''), 'no name')
         FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
         ORDER BY xact_start LIMIT 1",
        &[],
    )
    .await?;
    Ok(vec![match oldest.map(|row| (row.get::<_, i32>(0), row.get::<_, i64>(1), row.get::<_, String>(2))) {
        Some((pid, seconds, name)) if seconds > OPEN_SECONDS => Finding::warning(
            TRANSACTIONS,
            format!(
                "one is open for {seconds} s (process {pid}, {name}); while it lasts, nothing is vacuumed and everything \
                 gets slower"
            ),
        ),
        Some(_) | None => {
            // What others get, who do not set it themselves as we do.
            let sql = "SELECT reset_val || unit FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'";
            let words = match one(db, sql, &[]).await?.get(0) {
                "0ms" => {
                    "and one that others leave open is never ended: idle_in_transaction_session_timeout is 0".to_owned()
                }
                limit => format!("and one that others leave open is ended after {limit}"),
            };
            Finding::fine(TRANSACTIONS, format!("none is open for long, {words}"))
        }
    }])
}

async fn vacuum(db: &Db) -> Result<Vec<Finding>> {
    if one(db, "SELECT current_setting('autovacuum')", &[]).await?.get::<_, &str>(0) == "off" {
        let words = "autovacuum is off, and what is deleted stays in the way for ever; turn it on";
        return Ok(vec![Finding::problem(VACUUM, words)]);
    }
    let found =
        row(db, "SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relid = 'waiting'::regclass", &[])
            .await?;
    let (live, dead): (i64, i64) = found.map_or((0, 0), |row| (row.get(0), row.get(1)));
    let words = format!("the table `waiting` has {live} rows and {dead} dead ones");
    Ok(vec![if dead > DEAD_ROWS.max(live) {
        Finding::warning(VACUUM, format!("{words}; see what holds autovacuum up, or run VACUUM waiting"))
    } else {
        Finding::fine(VACUUM, words)
    }])
}

async fn nodes(db: &Db) -> Result<Vec<Finding>> {
    let found = rows(
        db,
        "SELECT node.name, coalesce(extract(epoch FROM clock_timestamp() - lease.until), 0)::bigint,
                lease.until IS NULL OR lease.until < clock_timestamp(),
                (SELECT count(*) FROM shard WHERE shard.node = node.id),
                -- PostgreSQL shows other characters otherwise.
                node.name ~ '^[ -~]*$' AND NOT EXISTS (
                    SELECT 1 FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'postrider ' || node.name)
         FROM node LEFT JOIN lease ON lease.node = node.id ORDER BY node.id",
        &[],
    )
    .await?;
    if found.is_empty() {
        return Ok(vec![Finding::warning(NODES, "none is running, so that nothing is delivered; start one")]);
    }
    Ok(found
        .iter()
        .map(|row| {
            let (name, over, is_over, shards, is_away): (&str, i64, bool, i64, bool) =
                (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
            if is_away && !is_over {
                let words = "has a lease and no connection: it has lost it just now, or this is a copy of the database it runs on";
                Finding::warning(NODES, format!("{name} {words}"))
            } else if is_over {
                let words =
                    format!("{name} is not heard of since its lease ended {over} s ago; any other node takes over");
                Finding::warning(NODES, words)
            } else {
                Finding::fine(NODES, format!("{name} is alive, with {shards} of 256 shards"))
            }
        })
        .collect())
}

async fn lanes(db: &Db) -> Result<Vec<Finding>> {
    let found = one(
        db,
        "SELECT count(*) FROM shard WHERE node IS NULL OR NOT EXISTS
             (SELECT 1 FROM lease WHERE lease.node = shard.node AND lease.until > clock_timestamp())",
        &[],
    )
    .await?;
    Ok(vec![match found.get(0) {
        0_i64 => Finding::fine(LANES, "every shard has a node"),
        free => Finding::warning(
            LANES,
            format!(
                "{free} of 256 shards have no living node, so that nothing is sent from them; that passes within seconds \
                 while nodes come and go"
            ),
        ),
    }])
}

/// Of those that neither a pause nor a breaker holds back, nor one before them.
async fn deliveries(db: &Db) -> Result<Vec<Finding>> {
    let now = leases::now(db).await?.as_millis();
    let found = one(
        db,
        "SELECT min(first.due) FROM endpoint LEFT JOIN health ON health.endpoint = endpoint.key
         CROSS JOIN (VALUES (0::smallint), (2::smallint)) AS front (place)
         CROSS JOIN LATERAL (
             SELECT due FROM waiting WHERE waiting.endpoint = endpoint.key AND waiting.place = front.place
             ORDER BY due LIMIT 1) AS first
         WHERE deleted_at IS NULL AND disabled_at IS NULL AND coalesce(open_until, 0) <= $1",
        &[&now],
    )
    .await?;
    Ok(vec![doctor::lateness(found.get::<_, Option<i64>>(0).map(|due| now - due))])
}

const DATABASE: &str = "database";
const SERVER: &str = "server";
const NOTIFICATIONS: &str = "notifications";
const CLOCK: &str = "clock";
const DURABILITY: &str = "durability";
const CHECKPOINTS: &str = "checkpoints";
const CONNECTIONS: &str = "connections";
const TRANSACTIONS: &str = "transactions";
const TABLES: &str = "tables";
const VACUUM: &str = "vacuum";
const NODES: &str = "nodes";
const LANES: &str = "lanes";
const DELIVERIES: &str = "deliveries";

/// No node has this number, so that nobody is told anything.
const NO_NODE: i64 = 0;
const LOOKS: usize = 5;
const FAR: Duration = Duration::from_millis(10);
const SKEW_MILLIS: i64 = 1_000;
const SKEW_MILLIS_MAX: i64 = 60_000;
const OPEN_SECONDS: i64 = 300;
/// Making a database, or a backup, asks for one as well.
const CHECKPOINTS_FEW: i64 = 20;
const DEAD_ROWS: i64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PostgresStore, Store, doctor::Verdict, postgres::migrate};
    use postrider_testbed::Cluster;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn machine_time() -> Timestamp {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
    }

    fn of<'f>(what: &str, found: &'f [Finding]) -> Vec<(Verdict, &'f str)> {
        found.iter().filter(|finding| finding.what == what).map(|one| (one.verdict, &one.words[..])).collect()
    }

    #[tokio::test]
    async fn a_database_is_examined_before_during_and_after_it_is_used() {
        let url = Cluster::shared().fresh_database().await.parse().expect("an address");
        let lease = Duration::from_secs(600);
        let options = PostgresOptions { own_at_once: true, lease, ..PostgresOptions::default() };
        let found = examine(&url, &options, machine_time).await;
        assert!(found.iter().all(|finding| finding.verdict != Verdict::Problem), "{found:?}");
        assert_eq!(of(TABLES, &found)[0].0, Verdict::Warning, "there are none yet");

        migrate(&url, &options).await.unwrap();
        let found = examine(&url, &options, machine_time).await;
        assert_eq!((of(TABLES, &found)[0].0, of(NODES, &found)[0].0), (Verdict::Fine, Verdict::Warning));
        assert!(of(LANES, &found)[0].1.starts_with("256 of 256 shards"), "{found:?}");

        let store = PostgresStore::open(&url, NOW, options.clone()).await.unwrap();
        let found = examine(&url, &options, machine_time).await;
        assert_eq!(of(NODES, &found), [(Verdict::Fine, "node is alive, with 256 of 256 shards")]);
        // The others depend on what else this machine does.
        for what in [SERVER, NOTIFICATIONS, DURABILITY, TABLES, VACUUM, LANES, DELIVERIES] {
            assert_eq!(of(what, &found)[0].0, Verdict::Fine, "{found:?}");
        }
        store.close().await;
    }

    #[tokio::test]
    async fn what_is_careless_late_or_dead_is_told() {
        let url = Cluster::shared().fresh_database().await;
        let careless: DatabaseUrl = format!("{url}?options=-csynchronous_commit%3Doff").parse().expect("an address");
        let options = PostgresOptions::default();
        migrate(&careless, &options).await.unwrap();
        let db = visit::connect(&careless, &options).await.unwrap();
        db.batch_execute(
            "INSERT INTO node (id, batch, settled_through, minted, name, started_at) VALUES (7, 0, 0, 0, 'gone', now());
             INSERT INTO lease VALUES (7, clock_timestamp() - interval '90 seconds');
             INSERT INTO endpoint (key, app, version, url, description, metadata, sealed, created_at, updated_at)
                 VALUES (1, 1, 1, '', '', '', '', 0, 0);
             INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, place)
                 VALUES (1, 1, 0, (extract(epoch FROM now()) * 1000)::bigint - 300000, 0, 0, 0)",
        )
        .await
        .unwrap();
        let found = examine(&careless, &options, || NOW).await;
        assert_eq!(of(CLOCK, &found)[0].0, Verdict::Problem, "{found:?}");
        let (verdict, words) = of(DURABILITY, &found)[0];
        assert!(verdict == Verdict::Problem && words.starts_with("synchronous_commit = off"), "{words}");
        let (verdict, words) = of(NODES, &found)[0];
        assert!(verdict == Verdict::Warning && words.starts_with("gone is not heard of"), "{words}");
        assert_eq!((of(LANES, &found)[0].0, of(DELIVERIES, &found)[0].0), (Verdict::Warning, Verdict::Warning));
        // As in a copy that was made while the node ran.
        db.batch_execute("UPDATE lease SET until = clock_timestamp() + interval '600 seconds'").await.unwrap();
        let found = examine(&careless, &options, || NOW).await;
        let (verdict, words) = of(NODES, &found)[0];
        assert!(verdict == Verdict::Warning && words.starts_with("gone has a lease and no connection"), "{words}");
    }

    #[tokio::test]
    async fn a_database_that_takes_no_writes_is_a_problem() {
        let url = Cluster::shared().fresh_database().await;
        let read_only = format!("{url}?options=-cdefault_transaction_read_only%3Don").parse().expect("an address");
        let found = examine(&read_only, &PostgresOptions::default(), machine_time).await;
        // Whoever finds it out, at the door or inside.
        let mut problems = found.iter().filter(|finding| finding.verdict == Verdict::Problem);
        assert!(problems.any(|finding| [DATABASE, SERVER].contains(&finding.what)), "{found:?}");
    }

    #[test]
    fn checkpoints_should_come_by_time() {
        for (timed, requested, verdict) in
            [(0, 20, Verdict::Fine), (0, 21, Verdict::Warning), (50, 40, Verdict::Fine), (50, 51, Verdict::Warning)]
        {
            assert_eq!(judge_checkpoints(timed, requested, "1GB").verdict, verdict, "{timed} {requested}");
        }
    }

    #[tokio::test]
    async fn of_several_hosts_the_one_that_takes_writes_is_found() {
        let url = Cluster::shared().fresh_database().await;
        let url = url.replace("@", "@127.0.0.1:1,") + "?target_session_attrs=read-write";
        let found = examine(&url.parse().expect("an address"), &PostgresOptions::default(), machine_time).await;
        assert_ne!(of(DATABASE, &found)[0].0, Verdict::Problem, "{found:?}");
        assert_eq!(of(NOTIFICATIONS, &found)[0].0, Verdict::Fine, "{found:?}");
    }

    #[tokio::test]
    async fn one_that_is_not_there_is_a_problem() {
        let url = "postgres://u:secret@127.0.0.1:1/hooks".parse().expect("an address");
        let found = examine(&url, &PostgresOptions::default(), machine_time).await;
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Problem));
        assert!(!found[0].words.contains("secret"), "{found:?}");
    }

    #[test]
    fn clocks_may_differ_a_little() {
        for (millis, verdict) in [
            (0, Verdict::Fine),
            (-1_000, Verdict::Fine),
            (1_001, Verdict::Warning),
            (-60_000, Verdict::Warning),
            (60_001, Verdict::Problem),
            (i64::MIN, Verdict::Problem),
        ] {
            assert_eq!(judge_skew(millis).verdict, verdict, "{millis} ms");
        }
    }
}
