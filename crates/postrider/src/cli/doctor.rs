//! `postrider doctor`: looks at everything that a deployment rests on, changes nothing, and says what to do.

use super::{
    client::{Client, OutputFlags},
    print::{self, Form},
    serve::PlaceFlags,
};
use crate::{
    clock,
    config::{OutboxSettings, Settings},
    deployment::{VAULT_CHECK, check, postgres_options, read_ca},
    expiry::{self, Soon},
    keyring::{Keyring, KeyringError},
    vault::Vault,
};
use anyhow::anyhow;
use postrider_engine::Timestamp;
use postrider_store::{
    Shard,
    doctor::{Finding, Verdict},
    outbox::{Outbox, Standing},
    postgres::{self, Visitor},
    sqlite,
};
use serde_json::json;
use std::{path::Path, process::Command, time::Duration};
use url::Url;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider doctor --data /var/lib/postrider
  postrider doctor --url http://127.0.0.1:8071 --token \"$POSTRIDER_TOKEN\" --json

Exit codes: 0 no problem was found (there may be warnings), 1 there is one, 2 wrong usage")]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// A running server to look at as well
    #[arg(long, value_name = "SERVER_URL", env = "POSTRIDER_URL")]
    url: Option<Url>,
    /// Its API token, to look at its metrics
    #[arg(long, env = "POSTRIDER_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let report = Report { form: args.output.form(), problems: 0 };
    let problems = report.fill(&args).await?;
    match problems {
        0 => Ok(()),
        1 => Err(anyhow!("there is a problem")),
        problems => Err(anyhow!("there are {problems} problems")),
    }
}

/// Findings are shown as they come: some take their time.
struct Report {
    form: Form,
    problems: usize,
}

impl Report {
    async fn fill(mut self, args: &Args) -> anyhow::Result<usize> {
        match args.place.settings(Vec::new()) {
            Ok(settings) => {
                self.add(Finding::fine(SETTINGS, "read; the data folder is ".to_owned() + &shown(&settings.data)))?;
                self.look_at_deployment(&settings).await?;
                for outbox in &settings.outboxes {
                    self.add(look_at_outbox(outbox).await)?;
                }
            }
            Err(error) => self.add(Finding::problem(SETTINGS, format!("{:#}", anyhow!(error))))?,
        }
        if let Some(url) = &args.url {
            self.look_at_server(url, args.token.as_deref()).await?;
        }
        Ok(self.problems)
    }

    fn add(&mut self, finding: Finding) -> anyhow::Result<()> {
        let Finding { what, verdict, words } = finding;
        let verdict_word = match verdict {
            Verdict::Fine => "ok",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        };
        self.problems += usize::from(verdict == Verdict::Problem);
        print::say(&match self.form {
            Form::Text => {
                let verdict = print::state(verdict_word, 8);
                format!("{verdict} {what:14} {}", print::escaped_word(&words, WORDS_MAX))
            }
            Form::Json => {
                print::json_line(&json!({ "check": what, "verdict": verdict_word, "words": words }).to_string())
            }
        })?;
        Ok(())
    }

    async fn look_at_deployment(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let folder = &settings.data;
        self.add(writable(folder))?;
        self.add(room(folder))?;
        if let Some(files) = &settings.tls {
            self.add(certificate(&files.certificate, clock::now()))?;
        }
        match &settings.database_url {
            None => {
                let noted = sqlite::note(folder, VAULT_CHECK).map_err(|error| error.to_string());
                self.add(keys(settings, noted, "restore the file from your copy"))?;
                let looked_at = folder.clone();
                let looking =
                    tokio::task::spawn_blocking(move || sqlite::examine(&looked_at, clock::now(), DAMAGE_LOOK_MAX));
                looking.await?.into_iter().try_for_each(|finding| self.add(finding))
            }
            Some(url) => {
                let options = match postgres_options(settings) {
                    Ok(options) => options,
                    Err(error) => return self.add(Finding::problem(SETTINGS, format!("{error:#}"))),
                };
                let findings = postgres::examine(url, &options, clock::now).await;
                let noted = match Visitor::connect(url, &options).await {
                    Ok(visitor) => visitor.note(VAULT_CHECK).await,
                    Err(error) => Err(error),
                };
                let noted = noted.map_err(|error| error.to_string());
                self.add(keys(settings, noted, "copy the file from another node, or from where you keep it"))?;
                findings.into_iter().try_for_each(|finding| self.add(finding))
            }
        }
    }

    async fn look_at_server(&mut self, url: &Url, token: Option<&str>) -> anyhow::Result<()> {
        let client = Client::with_token(url.clone(), token.unwrap_or_default().to_owned())?;
        if let Err(error) = client.get(&["health"], &[]).await {
            return self.add(Finding::problem(RUNNING, format!("{error:#}")));
        }
        self.add(Finding::fine(RUNNING, "it answers"))?;
        if token.is_none() {
            return Ok(());
        }
        match client.metrics().await {
            Ok(metrics) => {
                self.add(counted(&metrics))?;
                expiring(&metrics).map_or(Ok(()), |finding| self.add(finding))
            }
            Err(error) => self.add(Finding::problem(METRICS, format!("{error:#}"))),
        }
    }
}

/// Whether the keys are there, and are those of the database, which says so by a note. `remedy`: where to get them.
fn keys(settings: &Settings, noted: Result<Option<Vec<u8>>, String>, remedy: &str) -> Finding {
    let folder = &settings.data;
    let keyring = match (Keyring::open(folder), &noted) {
        (Ok(keyring), _) => keyring.with_encryption(settings.encryption_keys()),
        (Err(KeyringError::Missing { .. }), Ok(None)) => {
            return Finding::warning(KEYS, format!("there are none in {}; the first start makes them", shown(folder)));
        }
        (Err(KeyringError::Missing { .. }), Ok(Some(_))) => {
            return Finding::problem(KEYS, format!("those of the database are not in {}; {remedy}", shown(folder)));
        }
        (Err(KeyringError::Missing { .. }), Err(error)) => {
            let words = format!("there are none in {}, and whether the database wants any is not known", shown(folder));
            return Finding::warning(KEYS, format!("{words}: {error}"));
        }
        (Err(error), _) => return Finding::problem(KEYS, format!("{:#}", anyhow!(error))),
    };
    match noted {
        Ok(Some(sealed)) => match check(&Vault::new(keyring.encryption()), &sealed) {
            Ok(()) => Finding::fine(KEYS, "those of this database; keep a copy of keys.toml elsewhere"),
            Err(_) => Finding::problem(KEYS, format!("those of another database; {remedy}")),
        },
        Ok(None) => Finding::fine(KEYS, "readable; the database is not yet tied to any"),
        Err(error) => {
            Finding::warning(KEYS, format!("readable, but whether they are the database's is not known: {error}"))
        }
    }
}

async fn look_at_outbox(settings: &OutboxSettings) -> Finding {
    let OutboxSettings { name, url, schema, ca_file } = settings;
    let looked = async {
        let ca_pem = read_ca(ca_file.as_deref())?;
        let outbox = Outbox::connect(url, ca_pem.as_deref(), schema.clone(), "doctor").await?;
        outbox.identity().await?;
        anyhow::Ok(outbox.standing().await?)
    };
    match looked.await {
        Ok(standing) => judge_outbox(name, standing),
        Err(error) => Finding::problem(OUTBOX, format!("{name}: {error:#}")),
    }
}

fn judge_outbox(name: &str, Standing { waiting, oldest, failed }: Standing) -> Finding {
    let words = format!("{name}: {waiting} rows wait, {failed} cannot be sent");
    let late = oldest.map_or(0, |age| age.as_secs());
    match (late > LATE_SECONDS, failed) {
        (true, _) => {
            let words =
                format!("{words}; the oldest waits for {late} s: see in the log of a server why it is not taken over");
            Finding::warning(OUTBOX, words)
        }
        (false, 1..) => Finding::warning(OUTBOX, format!("{words}; `postrider outbox status` says why")),
        (false, 0) => Finding::fine(OUTBOX, words),
    }
}

fn writable(folder: &Path) -> Finding {
    if !folder.exists() {
        return Finding::warning(FOLDER, format!("{} is not there; the first start makes it", shown(folder)));
    }
    match tempfile::tempfile_in(folder) {
        Ok(_) => Finding::fine(FOLDER, "can be written to"),
        Err(error) => Finding::problem(
            FOLDER,
            format!("{} cannot be written to by this user: {error}; run as the user of the server", shown(folder)),
        ),
    }
}

/// By the system's own `df`: the standard library does not tell.
fn room(folder: &Path) -> Finding {
    let free_kib = Command::new("df").arg("-Pk").arg(folder).output().ok().and_then(|told| {
        let told = String::from_utf8(told.stdout).ok()?;
        told.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok()
    });
    match free_kib.map(|kib| kib / 1024) {
        None => Finding::fine(DISK, "how much is free is not known"),
        Some(mib @ ..ROOM_MIB_MIN) => {
            Finding::problem(DISK, format!("{mib} MiB are free; without room nothing is accepted: make some"))
        }
        Some(mib @ ROOM_MIB_MIN..ROOM_MIB) => Finding::warning(DISK, format!("{mib} MiB are free; make room in time")),
        Some(mib) => Finding::fine(DISK, format!("{} GiB are free", mib / 1024)),
    }
}

fn counted(metrics: &str) -> Finding {
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or("?").to_owned()
    };
    let [waiting, dead] = ["postrider_deliveries_waiting", "postrider_dead_letters"].map(value);
    // One of several nodes knows of its own part only.
    let part = match value("postrider_shards_owned").parse::<usize>() {
        Ok(owned) if owned < Shard::COUNT => format!(" in the {owned} of {} shards of this node", Shard::COUNT),
        Ok(_) | Err(_) => String::new(),
    };
    Finding::fine(METRICS, format!("{waiting} deliveries wait, {dead} dead letters{part}"))
}

/// Client certificates of endpoints, which the server looks at once a day. `None`: nothing is known of any.
fn expiring(metrics: &str) -> Option<Finding> {
    let count = |soon: Soon| {
        let name = format!("postrider_client_certificates_expiring{{within=\"{}\"}} ", soon.name());
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok())
    };
    let counts: Vec<(Soon, f64)> = Soon::ALL.into_iter().filter_map(|soon| Some((soon, count(soon)?))).collect();
    let said: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0.0)
        .map(|(soon, count)| format!("{count}: {}", soon.words()))
        .collect();
    match (counts.is_empty(), said.is_empty()) {
        (true, _) => None,
        (false, true) => Some(Finding::fine(CLIENTS, "none of the endpoints' certificates expires within thirty days")),
        (false, false) => {
            let words = format!("of the endpoints' certificates, {}; the log says whose they are", said.join(", "));
            Some(Finding::warning(CLIENTS, words))
        }
    }
}

/// What the API is served with.
fn certificate(file: &Path, now: Timestamp) -> Finding {
    let pem = match std::fs::read(file) {
        Ok(pem) => pem,
        Err(error) => return Finding::problem(TLS, format!("{}: {error}", shown(file))),
    };
    let Some(facts) = expiry::first_to_end(&pem) else {
        return Finding::problem(TLS, format!("{} holds no certificate that can be read", shown(file)));
    };
    match expiry::soon(facts.not_after, now) {
        None => Finding::fine(TLS, format!("the certificate in {} holds for more than thirty days", shown(file))),
        Some(Soon::Expired) => {
            Finding::problem(TLS, format!("the certificate in {} has expired; renew it", shown(file)))
        }
        Some(soon) => {
            Finding::warning(TLS, format!("the certificate in {} {}; renew it in time", shown(file), soon.words()))
        }
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

const SETTINGS: &str = "settings";
const FOLDER: &str = "data folder";
const DISK: &str = "disk";
const KEYS: &str = "keys";
const OUTBOX: &str = "outbox";
const RUNNING: &str = "api";
const METRICS: &str = "metrics";
const TLS: &str = "tls";
const CLIENTS: &str = "certificates";

const WORDS_MAX: usize = 1_000;
/// Long enough for some gigabytes. The log of a running server grows meanwhile.
const DAMAGE_LOOK_MAX: Duration = Duration::from_secs(60);
const LATE_SECONDS: u64 = 60;
const ROOM_MIB: u64 = 4 * 1024;
const ROOM_MIB_MIN: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_judged_by_whether_anything_was_written_with_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = Settings { data: folder.path().to_owned(), ..Settings::defaults() };
        let judged = |noted| keys(&settings, noted, "look for them").verdict;
        assert_eq!(judged(Ok(None)), Verdict::Warning, "a first start makes them");
        assert_eq!(judged(Ok(Some(vec![1]))), Verdict::Problem, "they are needed and not there");
        let words = keys(&settings, Ok(Some(vec![1])), "look for them").words;
        assert!(words.ends_with("; look for them"), "a start would be refused: {words}");
        assert_eq!(judged(Err("away".to_owned())), Verdict::Warning);
        Keyring::open_or_create(folder.path()).expect("made");
        assert_eq!(judged(Ok(None)), Verdict::Fine);
        assert_eq!(judged(Ok(Some(vec![1]))), Verdict::Problem, "they are others");
        assert_eq!(judged(Err("away".to_owned())), Verdict::Warning);
    }

    #[test]
    fn an_outbox_is_judged_by_what_waits_too_long_and_what_cannot_be_sent() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (standing, verdict) in [
            (Standing::default(), Verdict::Fine),
            (Standing { waiting: 9, oldest: seconds(60), failed: 0 }, Verdict::Fine),
            (Standing { waiting: 9, oldest: seconds(61), failed: 0 }, Verdict::Warning),
            (Standing { waiting: 0, oldest: None, failed: 1 }, Verdict::Warning),
        ] {
            assert_eq!(judge_outbox("shop", standing).verdict, verdict, "{standing:?}");
        }
    }

    #[test]
    fn a_certificate_is_judged_by_how_long_it_holds() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("certificate");
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2026, 3, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        let march = 1_772_323_200_000;
        for (days, verdict) in
            [(31, Verdict::Fine), (29, Verdict::Warning), (1, Verdict::Warning), (0, Verdict::Problem)]
        {
            let now = Timestamp::from_millis(march - days * 86_400_000);
            assert_eq!(certificate(&file, now).verdict, verdict, "{days} days before");
        }
        assert_eq!(certificate(&folder.path().join("none"), Timestamp::from_millis(0)).verdict, Verdict::Problem);
        std::fs::write(&file, "nothing").unwrap();
        assert_eq!(certificate(&file, Timestamp::from_millis(0)).verdict, Verdict::Problem);
    }

    #[test]
    fn certificates_of_endpoints_are_read_from_the_metrics() {
        let line =
            |within: &str, count| format!("postrider_client_certificates_expiring{{within=\"{within}\"}} {count}\n");
        assert!(expiring("postrider_dead_letters 3\n").is_none());
        let none = expiring(&(line("expired", 0) + &line("week", 0))).expect("something is known");
        assert_eq!(none.verdict, Verdict::Fine);
        let some = expiring(&(line("expired", 1) + &line("week", 2) + &line("month", 0))).expect("something is known");
        assert_eq!(some.verdict, Verdict::Warning);
        assert!(some.words.contains("1: has expired, 2: expires within a week;"), "{}", some.words);
    }

    #[test]
    fn the_disk_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(room(folder.path()).words.ends_with("free") || room(folder.path()).words.contains("MiB"));
        assert_eq!(writable(folder.path()).verdict, Verdict::Fine);
        assert_eq!(writable(&folder.path().join("nowhere")).verdict, Verdict::Warning);
    }

    #[test]
    fn what_waits_is_read_from_the_metrics() {
        let metrics = "# TYPE postrider_dead_letters gauge\npostrider_dead_letters 3\npostrider_deliveries_waiting 7\n";
        for (owned, expected) in [
            ("", "7 deliveries wait, 3 dead letters"),
            ("postrider_shards_owned 256\n", "7 deliveries wait, 3 dead letters"),
            ("postrider_shards_owned 85\n", "7 deliveries wait, 3 dead letters in the 85 of 256 shards of this node"),
        ] {
            assert_eq!(counted(&format!("{metrics}{owned}")).words, expected);
        }
    }
}
