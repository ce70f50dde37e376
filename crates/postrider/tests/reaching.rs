//! The real binary, and the ways to a PostgreSQL: encrypted, through a pooler, or not at all and with a reason.

mod support;

use postrider_testbed::{Cluster, Mode, PoolMode, Pooler, SimpleQueryMessage, connect};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use support::world::World;
use tempfile::TempDir;

/// A PostgreSQL that only takes encrypted connections, for the name `localhost`.
struct Secured {
    cluster: Cluster,
    databases: Vec<String>,
    folder: TempDir,
}

impl Secured {
    async fn start() -> Self {
        let cluster = Cluster::start();
        let mut databases = Vec::new();
        for _ in 0..MODES.len() {
            let url = cluster.fresh_database().await;
            databases.push(url.rsplit('/').next().expect("it ends with a name").to_owned());
        }
        let authority = authority("an authority of our own");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        cluster.write("server.crt", &params.signed_by(&key, &authority).expect("a certificate").pem());
        cluster.write("server.key", &key.serialize_pem());
        cluster.write("pg_hba.conf", "hostssl all all 127.0.0.1/32 trust");
        cluster.set("ssl = on");
        cluster.restart(Mode::Fast);
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.pem"), authority.pem()).expect("written");
        Self { cluster, databases, folder }
    }

    fn url(&self, host: &str, wishes: &str) -> String {
        self.url_of(0, host, wishes)
    }

    fn url_of(&self, database: usize, host: &str, wishes: &str) -> String {
        format!("postgres://postgres@{host}:{}/{}{wishes}", self.cluster.port(), self.databases[database])
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate")
}

const MODES: [&str; 2] = ["?sslmode=verify-full", "?sslmode=require"];

/// What `serve` says when it does not come to serving, on one line.
fn refusal(url: &str, ca: Option<&Path>) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data", "data"]).current_dir(folder.path()).env_clear();
    command.env("POSTRIDER_DATABASE_URL", url).stdin(Stdio::null()).stdout(Stdio::null());
    if let Some(ca) = ca {
        command.env("POSTRIDER_DATABASE_CA_FILE", ca);
    }
    let output = command.output().expect("the binary runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_ne!(output.status.code(), Some(0), "{said}");
    let inside = fs::read_dir(folder.path().join("data")).map(Iterator::count);
    assert_eq!(inside.unwrap_or(0), 0, "nothing was made but the folder: {said}");
    said
}

/// One message, through and written down.
async fn is_served(world: &mut World) {
    world.endpoint("/hooks", json!({})).await;
    let message = world.send("order.paid").await;
    let (status, _) = world.end(&message, "hooks").await;
    assert_eq!(status, "success");
}

#[tokio::test]
async fn a_server_whose_certificate_is_checked_is_served_and_any_other_is_refused() {
    let secured = Secured::start().await;
    let ca = secured.ca();
    let settings = secured.folder.path().join("settings.toml");
    fs::write(&settings, format!("database_ca_file = {ca:?}")).expect("written");
    for (number, mode) in MODES.into_iter().enumerate() {
        let url = secured.url_of(number, "localhost", mode);
        let flags = ["--config", settings.to_str().expect("text"), "--database-url", &url];
        let mut world = World::start_with(&flags).await;
        is_served(&mut world).await;
        assert!(world.server.stop().success());
    }

    let other = secured.folder.path().join("other.pem");
    for name in ["an authority of our own", "somebody else's"] {
        fs::write(&other, authority(name).pem()).expect("written");
        let said = refusal(&secured.url("localhost", "?sslmode=verify-full"), Some(&other));
        assert!(
            said.contains("name the certificate of the authority that signed it by the setting database_ca_file"),
            "{said}"
        );
    }
    for (host, wishes, ca, expected) in [
        ("localhost", "?sslmode=require", None, "by the setting database_ca_file"),
        ("127.0.0.1", "?sslmode=require", Some(&ca), "use the name that it is valid for in the address"),
        ("127.0.0.1", "?sslmode=verify-full", Some(&ca), "localhost"),
        ("localhost", "", Some(&ca), "if it wants encryption, write sslmode=verify-full in the address"),
        (
            "localhost",
            "?sslmode=disable",
            Some(&ca),
            "if it wants encryption, write sslmode=verify-full in the address",
        ),
        ("localhost", "?sslmode=prefer", Some(&ca), "sslmode=prefer encrypts only if the server likes to"),
        ("localhost", "?sslmode=allow", Some(&ca), "sslmode=allow encrypts only if the server likes to"),
        ("localhost", "?sslmode=verify-ca", Some(&ca), "sslmode=verify-ca does not check the server's name"),
    ] {
        let said = refusal(&secured.url(host, wishes), ca.map(PathBuf::as_path));
        assert!(said.contains(expected), "{host} {wishes}: {said}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_encrypt_is_refused_unless_the_address_does_without() {
    let url = Cluster::shared().fresh_database().await;
    let said = refusal(&format!("{url}?sslmode=require"), None);
    assert!(said.contains("turn `ssl` on there"), "{said}");
    let mut world = World::start_with(&["--database-url", &format!("{url}?sslmode=disable")]).await;
    is_served(&mut world).await;
}

#[tokio::test]
async fn a_pooler_that_lends_connections_out_is_refused_and_leaves_the_database_alone() {
    let cluster = Cluster::start();
    let url = cluster.fresh_database().await;
    for mode in [PoolMode::Transaction, PoolMode::Statement] {
        let pooler = Pooler::start(&cluster, mode);
        let said = refusal(&pooler.url(&cluster, &url), None);
        assert!(said.contains("a pooler in transaction mode stands before the database"), "{mode:?}: {said}");
        assert!(said.contains("connect to PostgreSQL directly, or let the pooler work in session mode"), "{said}");
        // Also for those who are lent the connection next.
        let lent = connect(&pooler.url(&cluster, &url)).await;
        let said = lent.simple_query("SHOW plan_cache_mode").await.expect("an answer");
        let unset =
            said.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("auto")));
        assert!(unset, "{said:?}");
    }
    let client = connect(&url).await;
    let tables = client.query_one("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", &[]).await;
    assert_eq!(tables.expect("an answer").get::<_, i64>(0), 0);
}

#[tokio::test]
async fn through_a_pooler_in_session_mode_all_is_as_usual() {
    let cluster = Cluster::start();
    let url = cluster.fresh_database().await;
    let pooler = Pooler::start(&cluster, PoolMode::Session);
    let mut world = World::start_with(&["--database-url", &pooler.url(&cluster, &url)]).await;
    is_served(&mut world).await;
    let client = connect(&url).await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'postrider %'";
    let connections = client.query_one(sql, &[]).await.expect("an answer").get::<_, i64>(0);
    assert!(connections > 0, "they bear the node's name");
    assert!(world.server.stop().success());
}
