//! `postrider serve`: settings from everywhere, logs, and then the server.

use super::on_runtime;
use crate::{
    config::{Settings, SettingsError, Sources, default_file},
    confine::{Confinement, confine},
    keyring::make_folder,
    telemetry,
};
use anyhow::Context;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider serve
  postrider serve --data /var/lib/postrider --listen 0.0.0.0:8071 --public-url https://hooks.example.com
  POSTRIDER_DATABASE_URL=postgres://... postrider serve --node-name one
  postrider serve --allow-subnet 127.0.0.0/8      to try things out on one machine

Every setting can also stand in postrider.toml or in a variable: docs/guide/settings.md")]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
    /// The address and port to serve the API on [default: 127.0.0.1:8071]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// By what name this node is shown to the others [default: the host's]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// How long a node that the others do not hear of keeps its lanes [default: 5s]
    #[arg(long, value_name = "DURATION")]
    lease: Option<String>,
    /// The address by which others reach this server
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Let deliveries go to this private or otherwise special range (repeatable)
    #[arg(long = "allow-subnet", value_name = "CIDR")]
    allow_subnets: Vec<String>,
    /// Let endpoints have this port besides the usual ones (repeatable)
    #[arg(long = "allow-port", value_name = "PORT")]
    allow_ports: Vec<String>,
    /// Refuse endpoints whose URL is not https
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    https_only: Option<String>,
    /// How long the payloads of messages are kept [default: 90d]
    #[arg(long, value_name = "DURATION")]
    retention_payloads: Option<String>,
    /// How long attempts are kept, with what was answered [default: 90d]
    #[arg(long, value_name = "DURATION")]
    retention_attempts: Option<String>,
    /// How long a dead letter can be found and replayed [default: 30d]
    #[arg(long, value_name = "DURATION")]
    retention_dead_letters: Option<String>,
    /// Take events over from the outbox in this producer's database (repeatable)
    #[arg(long = "outbox", value_name = "URL")]
    outboxes: Vec<String>,
    /// What is logged: a level, or levels by module [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// `text` or `json` [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// How long attempts under way may take to end once the server stops [default: 30s]
    #[arg(long, value_name = "DURATION")]
    shutdown_grace: Option<String>,
}

/// Which deployment on this machine is meant.
#[derive(clap::Args)]
pub struct PlaceFlags {
    /// The settings file [default: postrider.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "POSTRIDER_CONFIG")]
    config: Option<PathBuf>,
    /// The folder with the database and the keys [default: ./postrider-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<String>,
    /// A PostgreSQL database in place of the one in the folder; better given as POSTRIDER_DATABASE_URL
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

impl PlaceFlags {
    pub fn settings(&self, mut flags: Vec<(&'static str, String)>) -> Result<Settings, SettingsError> {
        let place = [("data", &self.data), ("database_url", &self.database_url)];
        flags.extend(place.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))));
        let mut sources = Sources::default().with_variables(std::env::vars_os())?.with_flags(flags);
        if let Some(path) = self.config.clone().or_else(default_file) {
            sources = sources.with_file(&path)?;
        }
        Settings::load(&sources)
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let confinement = if settings.landlock { Some(confined(&settings)?) } else { None };
    let _lines = telemetry::start_logs(&settings.log, settings.log_format)?;
    match confinement {
        Some(Confinement::Whole | Confinement::Partial) => {}
        Some(Confinement::None) => {
            tracing::warn!("this kernel has no Landlock; the file system is as open to the server as to its user")
        }
        None => tracing::warn!("Landlock is switched off; the file system is as open to the server as to its user"),
    }
    on_runtime(crate::serve::run(settings))
}

/// Before the first thread is begun: those that there are already would not be held by it.
fn confined(settings: &Settings) -> anyhow::Result<Confinement> {
    make_folder(&settings.data).with_context(|| format!("could not write {}", settings.data.display()))?;
    confine(settings)
}

impl Args {
    fn settings(&self) -> Result<Settings, SettingsError> {
        let single = [
            ("listen", &self.listen),
            ("node_name", &self.node_name),
            ("lease", &self.lease),
            ("public_url", &self.public_url),
            ("https_only", &self.https_only),
            ("retention_payloads", &self.retention_payloads),
            ("retention_attempts", &self.retention_attempts),
            ("retention_dead_letters", &self.retention_dead_letters),
            ("log", &self.log),
            ("log_format", &self.log_format),
            ("shutdown_grace", &self.shutdown_grace),
        ];
        let single = single.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
        let subnets = self.allow_subnets.iter().map(|subnet| ("allow_subnets", subnet.clone()));
        let ports = self.allow_ports.iter().map(|port| ("allow_ports", port.clone()));
        let outboxes = self.outboxes.iter().map(|url| ("outboxes", url.clone()));
        self.place.settings(single.chain(subnets).chain(ports).chain(outboxes).collect())
    }
}
