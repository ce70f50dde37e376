//! What an operator may choose: from a file, then variables, then flags; the last wins.
//!
//! A setting that is misspelt, of the wrong type or out of range stops the start and is named together
//! with where it was written. A server that runs with other settings than its operator believes is worse
//! than one that does not run.

mod alerts;
mod in_effect;
mod keys;
mod outboxes;
mod sources;
mod values;

use alerts::RawAlerts;
pub use alerts::{AlertRules, MailServer, MailSettings, MailTls};
pub use in_effect::{InEffect, Showing};
pub use keys::reference;
pub use outboxes::OutboxSettings;
pub(crate) use sources::readable_by_all;
pub use sources::{Place, Sources};
pub use values::{DurationError, Span, parse_duration, parse_size, show_duration};

use crate::ingest::rates::RateLimits;
use crate::kept_headers::KeepHeaders;
use crate::rules::{Rules, path_of};
use crate::telemetry::TraceSettings;
use crate::transport::{EgressProxy, NotAProxy};
use base64::{Engine, prelude::BASE64_STANDARD};
use figment::Figment;
use ipnet::IpNet;
use keys::KEYS;
use outboxes::OutboxesSetting;
use postrider_engine::policy;
use postrider_store::postgres::{BadUrl, DatabaseUrl};
use serde::{Deserialize, Deserializer, de};
use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tracing_subscriber::EnvFilter;
use url::Url;
use values::{Port, Size};

#[derive(Clone)]
pub struct Settings {
    pub listen: SocketAddr,
    /// `None`: in the clear.
    pub tls: Option<TlsFiles>,
    pub data: PathBuf,
    /// PostgreSQL; `None`: the database in the data folder.
    pub database_url: Option<DatabaseUrl>,
    pub database_ca_file: Option<PathBuf>,
    pub node_name: String,
    /// How long a node that is not heard of keeps its lanes.
    pub lease: Duration,
    /// The address by which others reach this server; `None`: the one it listens on.
    pub public_url: Option<Url>,
    /// Sites that may show the portal in a frame.
    pub portal_frames: Vec<String>,
    /// Ranges that deliveries may go to although they are private or otherwise special.
    pub allow_subnets: Vec<IpNet>,
    /// Ports that endpoints may have besides the usual ones.
    pub allow_ports: Vec<u16>,
    pub https_only: bool,
    /// What is made for an endpoint that brings no secret.
    pub default_signature_type: SignatureType,
    /// All deliveries go out by way of it.
    pub egress_proxy: Option<EgressProxy>,
    /// Bytes of a request's body.
    pub body_max: usize,
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    /// Messages a second that are taken in.
    pub ingest_rates: RateLimits,
    pub retention_payloads: Duration,
    pub retention_attempts: Duration,
    pub retention_dead_letters: Duration,
    /// How endpoints are treated where nobody nearer says anything.
    pub rules: Rules,
    /// Producers' databases that events are taken over from.
    pub outboxes: Vec<OutboxSettings>,
    pub extra_ca_file: Option<PathBuf>,
    /// In the place of those in the data folder.
    pub encryption_keys: Option<EncryptionKeys>,
    /// Shut the file system to the server but for what it needs.
    pub landlock: bool,
    /// `None`: nothing is traced.
    pub traces: Option<TraceSettings>,
    /// Names of each kind that figures are kept for.
    pub metrics_top: usize,
    pub log: String,
    pub log_format: LogFormat,
    pub attempt_headers: KeepHeaders,
    pub shutdown_grace: Duration,
    pub tokens: TokenSettings,
    /// When operators are told that something is wrong.
    pub alerts: AlertRules,
    /// Alerts are sent by mail too.
    pub mail: Option<MailSettings>,
    /// All of them, as they may be shown.
    pub in_effect: Vec<InEffect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// In PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those between it and its authority.
    pub certificate: PathBuf,
    pub private_key: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureType {
    /// A secret that both ends have.
    Hmac256,
    /// A key of two halves, of which receivers get the public one.
    Ed25519,
}

#[derive(Clone)]
pub struct TokenSettings {
    pub algorithm: TokenAlgorithm,
    pub key: TokenKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum TokenAlgorithm {
    HS256,
    HS384,
    HS512,
    RS256,
    RS384,
    RS512,
    EdDSA,
}

impl TokenAlgorithm {
    /// The shortest secret that is no weaker than the hash (RFC 7518, 3.2); `None` for those with key pairs.
    pub fn secret_min(self) -> Option<usize> {
        match self {
            Self::HS256 => Some(32),
            Self::HS384 => Some(48),
            Self::HS512 => Some(64),
            Self::RS256 | Self::RS384 | Self::RS512 | Self::EdDSA => None,
        }
    }
}

impl TokenSettings {
    pub fn key_files(&self) -> Vec<&Path> {
        match &self.key {
            TokenKey::Keyring | TokenKey::Secret(_) => Vec::new(),
            TokenKey::Pair { public, private } => {
                [Some(public), private.as_ref()].into_iter().flatten().map(PathBuf::as_path).collect()
            }
        }
    }
}

#[derive(Clone)]
pub enum TokenKey {
    /// The secret made at first start.
    Keyring,
    Secret(Hidden),
    /// Without the private half, tokens come from elsewhere and this server only checks them.
    Pair {
        public: PathBuf,
        private: Option<PathBuf>,
    },
}

/// Text that no log, no error message and no answer may show: it has no `Debug`, no `Display` and no `Serialize`, so that
/// whatever would show it by mistake does not compile.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl Hidden {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// As `Hidden` is.
#[derive(Clone)]
pub struct EncryptionKeys(Vec<[u8; 32]>);

impl Settings {
    /// That take the place of those in the data folder, if any do.
    pub fn encryption_keys(&self) -> Option<&[[u8; 32]]> {
        self.encryption_keys.as_ref().map(|keys| keys.0.as_slice())
    }

    pub fn load(sources: &Sources) -> Result<Self, SettingsError> {
        let figment = sources.layers()?;
        refuse_unknown(&figment, sources)?;
        let raw: Raw = figment.extract().map_err(|error| wrong_value(error, sources))?;
        let settings = raw.check().map_err(|(key, reason)| SettingsError::Wrong {
            key: key.to_owned(),
            place: sources.place(key, figment.find_metadata(key)),
            reason,
        })?;
        for key in OF_NODES.iter().filter(|_| settings.database_url.is_none()) {
            match sources.place(key, figment.find_metadata(key)) {
                Place::Default => {}
                place @ (Place::File { .. } | Place::Variable(_) | Place::Flag(_)) => {
                    let reason = "is of no effect without `database_url`; set that, or leave this out".to_owned();
                    return Err(SettingsError::Wrong { key: (*key).to_owned(), place, reason });
                }
            }
        }
        for key in KEYS.iter().filter(|key| key.secret && figment.contains(key.name)) {
            sources.refuse_open_file(key.name, figment.find_metadata(key.name))?;
        }
        Ok(Self { in_effect: in_effect::in_effect(&figment, sources), ..settings })
    }

    /// Nothing chosen: no file, no variable, no flag.
    pub fn defaults() -> Self {
        Self::load(&Sources::default()).expect("the defaults of the table are valid, as a test holds")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("unknown setting `{key}` ({place}); did you mean `{nearest}`?")]
    Unknown { key: String, place: Place, nearest: &'static str },
    #[error("setting `{key}` ({place}): {reason}")]
    Wrong { key: String, place: Place, reason: String },
    #[error("{}, line {line}: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("could not read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} holds `{key}` and can be read by every user of this machine; run: chmod 640 {}",
        path.display(),
        path.display()
    )]
    TooOpen { path: PathBuf, key: &'static str },
}

fn refuse_unknown(figment: &Figment, sources: &Sources) -> Result<(), SettingsError> {
    let given = figment.extract::<figment::value::Dict>().map_err(|error| wrong_value(error, sources))?;
    match given.keys().find(|key| keys::find(key).is_none()) {
        None => Ok(()),
        Some(key) => Err(SettingsError::Unknown {
            key: key.clone(),
            place: sources.place(key, figment.find_metadata(key)),
            nearest: keys::nearest(key),
        }),
    }
}

fn wrong_value(error: figment::Error, sources: &Sources) -> SettingsError {
    let key = error.path.first().cloned().unwrap_or_default();
    // figment quotes the value it could not use, and this one must not be quoted.
    let reason = match keys::find(&key) {
        Some(known) if known.form == keys::Form::Outboxes => outboxes::EXPECTED.to_owned(),
        Some(known) if known.secret => "must be text".to_owned(),
        Some(_) | None => error.kind.to_string(),
    };
    SettingsError::Wrong { place: sources.place(&key, error.metadata.as_ref()), key, reason }
}

/// The settings as they were written, each of its type, not yet held against one another.
#[derive(Deserialize)]
struct Raw {
    listen: SocketAddr,
    tls_certificate_file: Option<PathBuf>,
    tls_private_key_file: Option<PathBuf>,
    data: PathBuf,
    database_url: Option<Hidden>,
    database_ca_file: Option<PathBuf>,
    node_name: Option<String>,
    lease: Span,
    public_url: Option<Url>,
    portal_frames: Vec<String>,
    allow_subnets: Vec<IpNet>,
    allow_ports: Vec<Port>,
    https_only: bool,
    default_signature_type: SignatureType,
    egress_proxy: Option<Hidden>,
    body_max: Size,
    connections_max: u32,
    connections_per_address_max: u32,
    ingest_rate_per_application: Option<u32>,
    ingest_rate_per_token: Option<u32>,
    retention_payloads: Span,
    retention_attempts: Span,
    retention_dead_letters: Span,
    rules: Option<RulesSetting>,
    outboxes: Option<OutboxesSetting>,
    extra_ca_file: Option<PathBuf>,
    encryption_keys: Vec<Hidden>,
    landlock: bool,
    metrics_top: u32,
    otlp_endpoint: Option<Url>,
    trace_sample: String,
    log: String,
    log_format: LogFormat,
    attempt_headers: KeepHeaders,
    shutdown_grace: Span,
    jwt_algorithm: TokenAlgorithm,
    jwt_secret: Option<Hidden>,
    jwt_public_key_file: Option<PathBuf>,
    jwt_private_key_file: Option<PathBuf>,
    alert_success_rate: u32,
    alert_attempts_min: u64,
    alert_window: Span,
    alert_backlog_growth: u64,
    alert_dead_letters_growth: u64,
    alert_breakers_open: u64,
    alert_oldest_due: Span,
    alert_mail_server: Option<Hidden>,
    alert_mail_from: Option<String>,
    alert_mail_to: Vec<String>,
    alert_mail_owners: Vec<String>,
}

/// A table in the file, or JSON text in a variable.
struct RulesSetting(Rules);

impl<'de> Deserialize<'de> for RulesSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = RulesSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of rules, or JSON")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RulesSetting, E> {
                serde_json::from_str(text).map(RulesSetting).map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RulesSetting, A::Error> {
                Rules::deserialize(de::value::MapAccessDeserializer::new(map)).map(RulesSetting)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

type Refusal = (&'static str, String);

impl Raw {
    fn check(mut self) -> Result<Settings, Refusal> {
        let database_url = self.database_url.as_ref().map(|url| read_database_url(url.reveal()));
        let database_url = database_url.transpose().map_err(|reason| ("database_url", reason))?;
        let node_name = self.node_name.clone().unwrap_or_else(host_name);
        if !(1..=NODE_NAME_MAX).contains(&node_name.chars().count()) || node_name.contains(char::is_control) {
            return Err(("node_name", format!("must be one line of up to {NODE_NAME_MAX} characters")));
        }
        if !LEASE_RANGE.contains(&self.lease.0) {
            return Err(("lease", "must be between 1s and 60s".to_owned()));
        }
        let tls = match (self.tls_certificate_file.take(), self.tls_private_key_file.take()) {
            (None, None) => None,
            (Some(certificate), Some(private_key)) => Some(TlsFiles { certificate, private_key }),
            (Some(_), None) => return Err(("tls_certificate_file", "needs tls_private_key_file beside it".to_owned())),
            (None, Some(_)) => return Err(("tls_private_key_file", "needs tls_certificate_file beside it".to_owned())),
        };
        let encryption_keys =
            read_encryption_keys(&self.encryption_keys).map_err(|reason| ("encryption_keys", reason))?;
        let egress_proxy = self.egress_proxy.as_ref().map(|url| url.reveal().parse());
        let egress_proxy =
            egress_proxy.transpose().map_err(|reason: NotAProxy| ("egress_proxy", reason.to_string()))?;
        if let Some(url) = &self.public_url {
            check_public_url(url).map_err(|reason| ("public_url", reason))?;
        }
        let is_secure = tls.is_some() || self.public_url.as_ref().is_some_and(|url| url.scheme() == "https");
        check_portal_frames(&self.portal_frames, is_secure).map_err(|reason| ("portal_frames", reason))?;
        if !BODY_RANGE.contains(&self.body_max.0) {
            return Err(("body_max", "must be between 1KiB and 64MiB".to_owned()));
        }
        if self.connections_max == 0 {
            return Err(("connections_max", "must be at least 1".to_owned()));
        }
        if self.connections_per_address_max == 0 {
            return Err(("connections_per_address_max", "must be at least 1".to_owned()));
        }
        for (name, rate) in [
            ("ingest_rate_per_application", self.ingest_rate_per_application),
            ("ingest_rate_per_token", self.ingest_rate_per_token),
        ] {
            if rate.is_some_and(|rate| !RATE_RANGE.contains(&rate)) {
                return Err((name, "must be between 1 and 1000000; leave it out for no limit".to_owned()));
            }
        }
        for (name, retention) in [
            ("retention_payloads", self.retention_payloads),
            ("retention_attempts", self.retention_attempts),
            ("retention_dead_letters", self.retention_dead_letters),
        ] {
            if retention.0 < RETENTION_MIN {
                return Err((name, "must be at least 1h".to_owned()));
            }
        }
        let rules = self.rules.as_ref().map(|rules| rules.0.clone()).unwrap_or_default();
        let layer = rules.layer();
        let flaws = layer.check().into_iter().chain(policy::Rules::resolve([&layer]).check());
        if let Some(flaw) = flaws.into_iter().next() {
            return Err(("rules", format!("{} {}", path_of(flaw.field).join("."), flaw.words)));
        }
        let sample = self.trace_sample.trim().parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        let sample =
            sample.ok_or_else(|| ("trace_sample", "must be a share between 0 and 1, such as 0.1".to_owned()))?;
        let traces = self.otlp_endpoint.take().map(|endpoint| TraceSettings { endpoint, sample });
        if let Some(TraceSettings { endpoint, .. }) = &traces
            && (!matches!(endpoint.scheme(), "http" | "https") || !endpoint.username().is_empty())
        {
            let reason = "must be http:// or https:// and the host of a collector, without a user name";
            return Err(("otlp_endpoint", reason.to_owned()));
        }
        if self.metrics_top > METRICS_TOP_MAX {
            return Err(("metrics_top", format!("must be at most {METRICS_TOP_MAX}")));
        }
        if self.shutdown_grace.0 > SHUTDOWN_GRACE_MAX {
            return Err(("shutdown_grace", "must be at most 1h".to_owned()));
        }
        EnvFilter::try_new(&self.log).map_err(|error| ("log", error.to_string()))?;
        let outboxes = self.outboxes.take().map(OutboxesSetting::check).transpose()?.unwrap_or_default();
        let alerts = RawAlerts {
            success_rate: self.alert_success_rate,
            attempts_min: self.alert_attempts_min,
            window: self.alert_window.0,
            backlog_growth: self.alert_backlog_growth,
            dead_letters_growth: self.alert_dead_letters_growth,
            breakers_open: self.alert_breakers_open,
            oldest_due: self.alert_oldest_due.0,
            mail_server: self.alert_mail_server.take(),
            mail_from: self.alert_mail_from.take(),
            mail_to: std::mem::take(&mut self.alert_mail_to),
            mail_owners: std::mem::take(&mut self.alert_mail_owners),
        };
        Ok(Settings {
            tokens: self.tokens()?,
            alerts: alerts.rules()?,
            mail: alerts.mail()?,
            in_effect: Vec::new(),
            listen: self.listen,
            tls,
            data: self.data,
            database_url,
            database_ca_file: self.database_ca_file,
            node_name,
            lease: self.lease.0,
            public_url: self.public_url,
            portal_frames: self.portal_frames,
            allow_subnets: self.allow_subnets,
            allow_ports: self.allow_ports.into_iter().map(|port| port.0).collect(),
            https_only: self.https_only,
            default_signature_type: self.default_signature_type,
            egress_proxy,
            body_max: usize::try_from(self.body_max.0).unwrap_or(usize::MAX),
            connections_max: usize::try_from(self.connections_max).unwrap_or(usize::MAX),
            connections_per_address_max: usize::try_from(self.connections_per_address_max).unwrap_or(usize::MAX),
            ingest_rates: RateLimits {
                per_application: self.ingest_rate_per_application,
                per_token: self.ingest_rate_per_token,
            },
            retention_payloads: self.retention_payloads.0,
            retention_attempts: self.retention_attempts.0,
            retention_dead_letters: self.retention_dead_letters.0,
            rules,
            outboxes,
            extra_ca_file: self.extra_ca_file,
            encryption_keys,
            landlock: self.landlock,
            traces,
            metrics_top: usize::try_from(self.metrics_top).unwrap_or(usize::MAX),
            log: self.log,
            log_format: self.log_format,
            attempt_headers: self.attempt_headers,
            shutdown_grace: self.shutdown_grace.0,
        })
    }

    fn tokens(&self) -> Result<TokenSettings, Refusal> {
        let algorithm = self.jwt_algorithm;
        let key = match (algorithm.secret_min(), &self.jwt_secret, &self.jwt_public_key_file) {
            (Some(_), _, Some(_)) => {
                return Err(("jwt_public_key_file", format!("{algorithm:?} takes a secret, not a key pair")));
            }
            (Some(_), None, None) => TokenKey::Keyring,
            (Some(bytes_min), Some(secret), None) => {
                if secret.reveal().len() < bytes_min {
                    return Err(("jwt_secret", format!("is too weak: {algorithm:?} needs at least {bytes_min} bytes")));
                }
                TokenKey::Secret(secret.clone())
            }
            (None, Some(_), _) => {
                return Err(("jwt_secret", format!("{algorithm:?} takes a key pair, not a secret")));
            }
            (None, None, None) => {
                return Err(("jwt_algorithm", format!("{algorithm:?} needs jwt_public_key_file")));
            }
            (None, None, Some(public)) => {
                TokenKey::Pair { public: public.clone(), private: self.jwt_private_key_file.clone() }
            }
        };
        match (&key, &self.jwt_private_key_file) {
            (TokenKey::Keyring | TokenKey::Secret(_), Some(_)) => {
                Err(("jwt_private_key_file", format!("{algorithm:?} takes a secret, not a key pair")))
            }
            (TokenKey::Keyring | TokenKey::Secret(_) | TokenKey::Pair { .. }, _) => {
                Ok(TokenSettings { algorithm, key })
            }
        }
    }
}

/// Nothing of them goes into the reason.
fn read_encryption_keys(texts: &[Hidden]) -> Result<Option<EncryptionKeys>, String> {
    let read = |text: &Hidden| BASE64_STANDARD.decode(text.reveal()).ok().and_then(|bytes| bytes.try_into().ok());
    let keys: Option<Vec<[u8; 32]>> = texts.iter().map(read).collect();
    let keys = keys.ok_or("each must be 32 bytes in base64 (`openssl rand -base64 32` makes one)")?;
    Ok((!keys.is_empty()).then_some(EncryptionKeys(keys)))
}

/// The reasons quote what stands behind the password, so that it must be clear where that is.
pub(crate) fn read_database_url(text: &str) -> Result<DatabaseUrl, String> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    if let Some((before, after)) = rest.split_once('@')
        && (before.contains(['/', '?', '#']) || after.contains('@'))
    {
        return Err("in the user's name and the password write @ as %40, / as %2F, ? as %3F and # as %23".to_owned());
    }
    text.parse().map_err(|error: BadUrl| error.to_string())
}

fn host_name() -> String {
    let found = ["/proc/sys/kernel/hostname", "/etc/hostname"].into_iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let name: String = text.trim().chars().take(NODE_NAME_MAX).collect();
        (!name.is_empty() && !name.contains(char::is_control)).then_some(name)
    });
    found.unwrap_or_else(|| "node".to_owned())
}

fn check_public_url(url: &Url) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("must be a plain address, without user, query or fragment".to_owned());
    }
    Ok(())
}

fn check_portal_frames(sites: &[String], is_secure: bool) -> Result<(), String> {
    for site in sites {
        let url = Url::parse(site).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https") && url.origin().ascii_serialization() == site.as_str()
        });
        let Some(url) = url else {
            return Err(format!("`{site}` is not a site such as https://app.example.com, with nothing behind it"));
        };
        if url.scheme() == "http" && !is_loopback(&url) {
            return Err(format!(
                "`{site}` must begin with https://: whoever is on the way could change a page without"
            ));
        }
    }
    match sites.is_empty() || is_secure {
        true => Ok(()),
        false => Err("needs TLS: set tls_certificate_file, or a public_url that begins with https://".to_owned()),
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Where `postrider.toml` is looked for when none is named.
pub fn default_file() -> Option<PathBuf> {
    let path = Path::new("postrider.toml");
    path.exists().then(|| path.to_path_buf())
}

/// What concerns only nodes that share a database.
const OF_NODES: [&str; 3] = ["database_ca_file", "node_name", "lease"];

/// With a word before it, this fits into what PostgreSQL shows of a connection.
const NODE_NAME_MAX: usize = 40;
const LEASE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
pub const BODY_RANGE: std::ops::RangeInclusive<u64> = 1024..=64 * 1024 * 1024;
/// Buckets count in microseconds.
const RATE_RANGE: std::ops::RangeInclusive<u32> = 1..=1_000_000;
const RETENTION_MIN: Duration = Duration::from_secs(3600);
const METRICS_TOP_MAX: u32 = 10_000;
const SHUTDOWN_GRACE_MAX: Duration = Duration::from_secs(3600);
