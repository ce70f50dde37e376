use super::*;
use postrider_testbed::{Client, Cluster, connect as session};
use std::time::Duration;

/// A producer's database with an outbox, and a connection as the producer has it.
struct Producer {
    url: String,
    outbox: Outbox,
    client: Client,
}

impl Producer {
    async fn new() -> Self {
        let url = Cluster::shared().fresh_database().await;
        let outbox = connect(&url).await;
        outbox.install(&Installation::default()).await.expect("it can be installed");
        let client = session(&url).await;
        Self { url, outbox, client }
    }

    async fn send(&self, more: &str) -> Result<i64, String> {
        let sql = format!("SELECT postrider.send('acme', 'a.b', '{{}}'{more})");
        match self.client.query_one(&sql, &[]).await {
            Ok(row) => Ok(row.get(0)),
            Err(error) => Err(describe(&error)),
        }
    }

    async fn waiting(&self) -> Vec<Row> {
        self.rows(DAY).await
    }

    async fn rows(&self, known_for: Duration) -> Vec<Row> {
        let found = self.outbox.read(&self.ids().await, BYTES, known_for).await.expect("it can be read");
        found.into_iter().map(|row| row.expect("it is text")).collect()
    }

    async fn ids(&self) -> Vec<i64> {
        self.outbox.waiting(ROWS).await.expect("it can be read")
    }
}

async fn connect(url: &str) -> Outbox {
    let url = url.parse().expect("an address");
    Outbox::connect(&url, None, SchemaName::default(), "test").await.expect("the database is up")
}

const ROWS: i64 = 1_000;
const BYTES: i64 = 1 << 20;
const DAY: Duration = Duration::from_hours(24);

#[test]
fn a_schema_has_a_plain_name() {
    for (name, fine) in [
        ("postrider", true),
        ("_a9", true),
        (&*"a".repeat(63), true),
        (&*"a".repeat(64), false),
        ("", false),
        ("9a", false),
        ("pg_x", false),
        ("Postrider", false),
        ("a; drop", false),
        ("a\"b", false),
    ] {
        assert_eq!(name.parse::<SchemaName>().is_ok(), fine, "{name}");
    }
}

#[tokio::test]
async fn a_schema_is_not_called_like_a_word_of_sql() {
    let client = session(&Cluster::shared().fresh_database().await).await;
    let words = client.query("SELECT word::text FROM pg_get_keywords() WHERE catcode IN ('R', 'T')", &[]).await;
    for row in words.expect("a list") {
        assert!(row.get::<_, String>(0).parse::<SchemaName>().is_err(), "{row:?}");
    }
}

#[tokio::test]
async fn installing_again_keeps_identity_rows_and_numbers() {
    let producer = Producer::new().await;
    let before = producer.outbox.identity().await.expect("it is there");
    let first = producer.send("").await.expect("a row");
    let quiet = Installation { notify: Some(false), payload_max: Some(100), ..Installation::default() };
    // Who has rows in a transaction that is still open is not waited for.
    producer.client.batch_execute("BEGIN").await.expect("a transaction");
    producer.send("").await.expect("a row");
    for installation in [&quiet, &quiet, &Installation::default()] {
        producer.outbox.install(installation).await.expect("again");
        assert_eq!(producer.outbox.identity().await.expect("it is there"), before);
    }
    producer.client.batch_execute("ROLLBACK").await.expect("undone");
    let (one, other) = (connect(&producer.url).await, connect(&producer.url).await);
    let (one, other) = tokio::join!(one.install(&quiet), other.install(&quiet));
    one.and(other).expect("two at once");
    let second = producer.send("").await.expect("another row");
    assert_eq!(producer.ids().await, [first, second]);
}

#[tokio::test]
async fn what_was_chosen_stays_until_it_is_chosen_otherwise() {
    let producer = Producer::new().await;
    let payload = "x".repeat(101);
    let fits = async || {
        let sql = "SELECT postrider.send('acme', 'a.b', $1::text, content_type => 'text/plain')";
        producer.client.query(sql, &[&payload]).await.is_ok()
    };
    let rings = async || {
        let notify = producer.client.query_one("SELECT notify FROM postrider.about", &[]).await.expect("a look");
        notify.get::<_, bool>(0)
    };
    assert_eq!((fits().await, rings().await), (true, true));
    let small = Installation { payload_max: Some(100), notify: Some(false), ..Installation::default() };
    for installation in [small, Installation::default()] {
        producer.outbox.install(&installation).await.expect("again");
        assert_eq!((fits().await, rings().await), (false, false), "{installation:?}");
    }
    let large = Installation { payload_max: Some(200), ..Installation::default() };
    producer.outbox.install(&large).await.expect("again");
    assert_eq!((fits().await, rings().await), (true, false));
}

#[tokio::test]
async fn an_outbox_of_a_newer_version_is_left_alone() {
    let producer = Producer::new().await;
    producer.client.batch_execute("UPDATE postrider.about SET version = 1000").await.expect("a look into the future");
    assert!(matches!(producer.outbox.identity().await, Err(OutboxError::TooNew { found: 1000 })));
    assert!(producer.outbox.install(&Installation::default()).await.is_err());
}

#[tokio::test]
async fn a_database_without_an_outbox_says_so() {
    let outbox = connect(&Cluster::shared().fresh_database().await).await;
    assert!(matches!(outbox.identity().await, Err(OutboxError::NotInstalled(_))));
    assert!(matches!(outbox.uninstall(RowsThere::Keep).await, Err(OutboxError::NotInstalled(_))));
}

#[tokio::test]
async fn an_outbox_with_rows_is_removed_only_if_that_is_meant() {
    let producer = Producer::new().await;
    producer.send("").await.expect("a row");
    let kept = producer.outbox.uninstall(RowsThere::Keep).await;
    assert!(matches!(kept, Err(OutboxError::NotEmpty { waiting: 1, failed: 0 })), "{kept:?}");
    producer.outbox.uninstall(RowsThere::Discard).await.expect("it goes");
    let left =
        producer.client.query("SELECT FROM pg_namespace WHERE nspname = 'postrider'", &[]).await.expect("a look");
    assert!(left.is_empty(), "nothing of it is left");
    producer.outbox.install(&Installation::default()).await.expect("it can come back");
    producer.outbox.uninstall(RowsThere::Keep).await.expect("an empty one goes");
}

#[tokio::test]
async fn a_row_is_read_as_it_was_written() {
    let producer = Producer::new().await;
    let payload = r#"{ "n" : 1e400, "é":"\u00e9" ,"n":2}"#;
    for (expression, expected) in [
        (format!("'{payload}'"), payload),
        (format!("'{payload}'::json"), payload),
        (r#"'{"b":1,"a":[ ]}'::jsonb"#.to_owned(), r#"{"a": [], "b": 1}"#),
    ] {
        let sql = format!(
            "SELECT postrider.send('acme', 'a.b', {expression}, event_id => 'e-1', channels => '{{x,y}}',
                 tags => ARRAY['t/1#\\'], ordering_key => 'k é', deliver_at => now() + interval '1 hour')"
        );
        producer.client.query_one(&sql, &[]).await.expect(expected);
        let row = producer.waiting().await.pop().expect("a row");
        assert_eq!(row.payload, expected);
        assert_eq!((row.app.as_str(), row.event_type.as_str(), row.event_id.as_deref()), ("acme", "a.b", Some("e-1")));
        assert_eq!((row.channels, row.tags), (vec!["x".to_owned(), "y".to_owned()], vec![r"t/1#\".to_owned()]));
        assert_eq!(row.ordering_key.as_deref(), Some("k é"));
        assert!(row.deliver_at.is_some());
        assert_eq!((row.content_type, row.taken), (None, None));
    }
    producer.send(", content_type => 'text/plain; charset=utf-8'").await.expect("text");
    let row = producer.waiting().await.pop().expect("a row");
    assert_eq!(row.content_type.as_deref(), Some("text/plain; charset=utf-8"));
}

#[tokio::test]
async fn what_the_api_would_refuse_fails_in_the_producers_own_transaction() {
    let producer = Producer::new().await;
    let long = "x".repeat(257);
    let call = |app: &str, event_type: &str, payload: &str, more: &str| {
        format!("SELECT postrider.send('{app}', '{event_type}', '{payload}'{more})")
    };
    let with = |more: &str| call("acme", "a.b", "{}", more);
    for sql in [
        call("", "a.b", "{}", ""),
        call("a b", "a.b", "{}", ""),
        call("acme\n", "a.b", "{}", ""),
        call(&long, "a.b", "{}", ""),
        call("acme", "a/b", "{}", ""),
        call("acme", &long, "{}", ""),
        call("acme", "a.b", "", ""),
        call("acme", "a.b", "{", ""),
        call("acme", "a.b", "[]", ""),
        call("acme", "a.b", &format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 20)), ""),
        "SELECT postrider.send('acme', 'a.b', NULL::text)".to_owned(),
        "SELECT postrider.send(NULL, 'a.b', '{}')".to_owned(),
        with(", event_id => ''"),
        with(", event_id => 'msg_1'"),
        with(&format!(", event_id => '{long}'")),
        with(", ordering_key => ''"),
        with(&format!(", ordering_key => '{long}'")),
        with(", channels => '{}'"),
        with(", channels => '{a,NULL}'"),
        with(", channels => '{a b}'"),
        with(", channels => '{a,b,c,d,e,f,g,h,i,j,k}'"),
        with(", tags => '{a,b,c,d,e,f}'"),
        with(", tags => '{a:b}'"),
        with(", content_type => 'text'"),
        with(", content_type => 'text/pläin'"),
        with(", content_type => 'text/plain; a=é'"),
        with(", content_type => E'text/plain; a=\\n'"),
        with(", content_type => E'text/plain\\nx: y'"),
        with(", content_type => ''"),
        with(", deliver_at => 'infinity'"),
        with(", deliver_at => now() + interval '25 hours'"),
        with(", deliver_at => now() - interval '25 hours'"),
    ] {
        assert!(producer.client.query_one(&sql, &[]).await.is_err(), "{sql:.100}");
    }
    assert!(producer.ids().await.is_empty());
}

#[tokio::test]
async fn a_row_cannot_be_inserted_as_if_it_had_been_taken() {
    let producer = Producer::new().await;
    producer
        .client
        .batch_execute(
            "INSERT INTO postrider.outbox (id, app, event_type, payload, created_at, taken_at, taken_app, failed_at)
             VALUES (-5, 'acme', 'a.b', '{}', 'epoch', now(), 'x', now())",
        )
        .await
        .expect("a row");
    let rows = producer.waiting().await;
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].id > 0, &rows[0].taken), (true, &None));
    let standing = producer.outbox.standing().await.expect("it can be counted");
    assert!(standing.oldest.is_some_and(|age| age < DAY), "{standing:?}");
}

#[tokio::test]
async fn numbers_of_one_key_follow_the_order_of_commits() {
    let producer = Producer::new().await;
    let other = session(&producer.url).await;
    // The first one draws its number while the other transaction of the key is open, also by a plain insert.
    producer.client.batch_execute("BEGIN").await.expect("a transaction");
    let first = producer.send(", ordering_key => 'k'").await.expect("a row");
    let waits = tokio::spawn(async move {
        let sql =
            "INSERT INTO postrider.outbox (app, event_type, payload, ordering_key) VALUES ('acme', 'a.b', '{}', 'k')
                   RETURNING id";
        other.query_one(sql, &[]).await.map(|row| row.get::<_, i64>(0))
    });
    let third = session(&producer.url).await;
    // Another key, and another application, are not held up.
    for free in ["'acme', 'a.b', '{}', ordering_key => 'l'", "'other', 'a.b', '{}', ordering_key => 'k'"] {
        third.query_one(&format!("SELECT postrider.send({free})"), &[]).await.expect("nobody is in the way");
    }
    let held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database =
                    (SELECT oid FROM pg_database WHERE datname = current_database())";
    while !waits.is_finished() && third.query(held, &[]).await.expect("a look").is_empty() {
        tokio::task::yield_now().await;
    }
    producer.client.batch_execute("COMMIT").await.expect("committed");
    let second = waits.await.expect("no panic").expect("a row");
    let free = producer.ids().await[1..3].to_vec();
    assert!(first < free[0] && free[1] < second, "{first} {free:?} {second}");
}

#[tokio::test]
async fn a_row_that_was_committed_late_is_listed_before_the_next_of_its_key() {
    let producer = Producer::new().await;
    let other = session(&producer.url).await;
    producer.client.batch_execute("BEGIN").await.expect("a transaction");
    let late = producer.send(", ordering_key => 'k'").await.expect("a row");
    let sql = "SELECT postrider.send('acme', 'a.b', '{}', ordering_key => 'l')";
    let early: i64 = other.query_one(sql, &[]).await.expect("a row").get(0);
    let listed = producer.ids().await;
    producer.client.batch_execute("COMMIT").await.expect("committed");
    let next = producer.send(", ordering_key => 'k'").await.expect("a row");
    assert_eq!((listed, late < early), (vec![early], true));
    assert_eq!(producer.ids().await, [late, early, next]);
}

#[tokio::test]
async fn a_portion_is_bounded_by_rows_and_bytes_but_never_empty() {
    let producer = Producer::new().await;
    for size in [10, 2_000, 10, 10] {
        let payload = format!("{{\"a\":\"{}\"}}", "x".repeat(size));
        producer.client.query_one("SELECT postrider.send('acme', 'a.b', $1::text)", &[&payload]).await.expect("a row");
    }
    assert_eq!(producer.outbox.waiting(3).await.expect("it can be read").len(), 3);
    let ids = producer.ids().await;
    let count = async |ids: &[i64], bytes_max: i64| {
        producer.outbox.read(ids, bytes_max, DAY).await.expect("it can be read").len()
    };
    assert_eq!(count(&ids, 1 << 20).await, 4);
    assert_eq!(count(&ids[..3], 1 << 20).await, 3);
    assert_eq!(count(&ids, 100).await, 1);
    assert_eq!(count(&ids[1..], 100).await, 1, "too large for a portion, but alone");
    assert_eq!(count(&ids[1..], 2_100).await, 3);
    producer.outbox.remove(&ids[..2]).await.expect("gone");
    assert_eq!(count(&ids, 100).await, 2, "what is gone is no row");
}

#[tokio::test]
async fn what_was_taken_is_known_until_it_is_forgotten() {
    let producer = Producer::new().await;
    for _ in 0..3 {
        producer.send("").await.expect("a row");
    }
    let ids = producer.ids().await;
    let offered = [(ids[0], "app_1".to_owned()), (ids[1], "app_2".to_owned()), (99_999, "app_3".to_owned())];
    let mut there = producer.outbox.take(&offered, DAY).await.expect("written down");
    there.sort_unstable();
    assert_eq!(there, &ids[..2]);
    assert!(producer.outbox.take(&offered, DAY).await.expect("an answer").is_empty(), "once");
    let taken = producer.waiting().await.into_iter().map(|row| row.taken).collect::<Vec<_>>();
    let by = |app: &str, is_forgotten| Some(Taken { app: app.to_owned(), is_forgotten });
    assert_eq!(taken, [by("app_1", false), by("app_2", false), None]);
    // The store may remember for a shorter time now than it did when the row was taken, or the other way round.
    let back = "UPDATE postrider.outbox SET taken_at = taken_at - interval '2 hours'";
    producer.client.batch_execute(back).await.expect("time passes");
    assert_eq!(producer.rows(Duration::from_hours(1)).await[0].taken, by("app_1", true));
    let over = format!("UPDATE postrider.outbox SET known_until = now() - interval '1 second' WHERE id = {}", ids[1]);
    producer.client.batch_execute(&over).await.expect("time passes");
    let taken = producer.waiting().await.into_iter().map(|row| row.taken).collect::<Vec<_>>();
    assert_eq!(taken, [by("app_1", false), by("app_2", true), None]);
}

#[tokio::test]
async fn a_refused_row_is_set_aside_with_its_reason_until_somebody_decides() {
    let producer = Producer::new().await;
    for _ in 0..3 {
        producer.send("").await.expect("a row");
    }
    let ids = producer.ids().await;
    let offered: Vec<_> = ids.iter().map(|id| (*id, "app_1".to_owned())).collect();
    producer.outbox.take(&offered, DAY).await.expect("written down");
    let refusal = |id, sent| Refusal { id, error: "no".to_owned(), sent };
    producer.outbox.refuse(&[refusal(ids[0], Sent::No), refusal(ids[1], Sent::Maybe)]).await.expect("set aside");
    assert_eq!(producer.ids().await, &ids[2..]);
    let failed = producer.outbox.failed(10).await.expect("a list");
    let shown: Vec<_> = failed.iter().map(|row| (row.id, row.error.as_str(), row.sent)).collect();
    assert_eq!(shown, [(ids[0], "no", Sent::No), (ids[1], "no", Sent::Maybe)]);
    let standing = producer.outbox.standing().await.expect("it can be counted");
    assert_eq!((standing.waiting, standing.failed), (1, 2));
    assert_eq!(producer.outbox.retry(&Which::These(vec![ids[1], ids[2]])).await.expect("again"), &ids[1..2]);
    let rows = producer.waiting().await;
    assert_eq!(
        rows.iter().map(|row| (row.id, row.taken.is_some())).collect::<Vec<_>>(),
        [(ids[1], false), (ids[2], true)]
    );
    assert_eq!(producer.outbox.discard(&Which::All).await.expect("gone"), &ids[..1]);
    producer.outbox.remove(&ids).await.expect("gone");
    assert_eq!(producer.outbox.standing().await.expect("it can be counted"), Standing::default());
}

#[tokio::test]
async fn one_connection_relays_until_it_is_lost() {
    let producer = Producer::new().await;
    let identity = producer.outbox.identity().await.expect("it is there");
    let other = connect(&producer.url).await;
    assert!(producer.outbox.lead(&identity).await.expect("an answer"));
    assert!(!other.lead(&identity).await.expect("an answer"));
    drop(producer.outbox);
    while !other.lead(&identity).await.expect("an answer") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_commit_rings() {
    let producer = Producer::new().await;
    producer.outbox.listen().await.expect("it listens");
    producer.client.batch_execute("BEGIN").await.expect("a transaction");
    producer.send("").await.expect("a row");
    producer.send("").await.expect("a row");
    producer.client.batch_execute("COMMIT").await.expect("committed");
    tokio::time::timeout(Duration::from_secs(30), producer.outbox.rung()).await.expect("it rings");
}

#[tokio::test]
async fn what_cannot_be_granted_is_not_passed_over() {
    let url = Cluster::shared().fresh_database().await;
    let owner = session(&url).await;
    let create = "CREATE ROLE outbox_installer LOGIN; CREATE ROLE outbox_hopeful LOGIN; CREATE SCHEMA postrider;
        GRANT USAGE, CREATE ON SCHEMA postrider TO outbox_installer";
    owner.batch_execute(create).await.expect("roles");
    let installer = connect(&url.replace("postgres@", "outbox_installer@")).await;
    let hopeful = || vec!["outbox_hopeful".to_owned()];
    for installation in [
        Installation { senders: hopeful(), ..Installation::default() },
        Installation { relays: hopeful(), ..Installation::default() },
    ] {
        let refused = installer.install(&installation).await.expect_err("it is not the schema's owner").to_string();
        assert!(refused.contains("USAGE ON SCHEMA postrider; let the owner"), "{refused}");
    }
    owner.batch_execute("GRANT USAGE ON SCHEMA postrider TO outbox_hopeful").await.expect("granted");
    let installation = Installation { senders: hopeful(), relays: hopeful(), ..Installation::default() };
    installer.install(&installation).await.expect("the rest it may grant");
}

#[tokio::test]
async fn roles_can_send_or_relay_and_nothing_else() {
    let producer = Producer::new().await;
    // Roles belong to the whole cluster.
    let create = "DO $$ BEGIN
        CREATE ROLE outbox_sender LOGIN; CREATE ROLE outbox_relay LOGIN; CREATE ROLE outbox_stranger LOGIN;
    END $$";
    producer.client.batch_execute(create).await.expect("roles");
    let installation = Installation {
        senders: vec!["outbox_sender".to_owned()],
        relays: vec!["outbox_relay".to_owned()],
        ..Installation::default()
    };
    producer.outbox.install(&installation).await.expect("installed");
    let url_of = |role: &str| producer.url.replace("postgres@", &format!("{role}@"));
    let sender = session(&url_of("outbox_sender")).await;
    for sql in [
        "SELECT postrider.send('acme', 'a.b', '{}', ordering_key => 'k')",
        "SELECT postrider.send('acme', 'a.b', '{}'::jsonb)",
        "INSERT INTO postrider.outbox (app, event_type, payload) VALUES ('acme', 'a.b', '{}')",
    ] {
        sender.query(sql, &[]).await.expect(sql);
    }
    for sql in ["SELECT * FROM postrider.outbox", "DELETE FROM postrider.outbox", "SELECT * FROM postrider.about"] {
        assert!(sender.query(sql, &[]).await.is_err(), "{sql}");
    }
    let stranger = session(&url_of("outbox_stranger")).await;
    assert!(stranger.query("SELECT postrider.send('acme', 'a.b', '{}')", &[]).await.is_err());
    let relay = connect(&url_of("outbox_relay")).await;
    let identity = relay.identity().await.expect("it may know");
    relay.listen().await.expect("it may listen");
    assert!(relay.lead(&identity).await.expect("it may relay"));
    let ids = relay.waiting(ROWS).await.expect("it may look");
    assert_eq!(relay.read(&ids, BYTES, DAY).await.expect("and read").len(), 3);
    relay.take(&[(ids[0], "app_1".to_owned())], DAY).await.expect("it may mark");
    relay.refuse(&[Refusal { id: ids[0], error: "no".to_owned(), sent: Sent::No }]).await.expect("and refuse");
    relay.remove(&ids).await.expect("and remove");
    assert!(relay.install(&Installation::default()).await.is_err(), "but not change the outbox itself");
}
