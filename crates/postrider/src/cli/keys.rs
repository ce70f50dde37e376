//! `postrider keys`: changes the key that seals endpoints' secrets and headers.

use super::{
    Usage,
    client::OutputFlags,
    print::{self, Form},
    serve::PlaceFlags,
};
use crate::{
    config::Settings,
    deployment::{VAULT_CHECK, postgres_options},
    keyring::Keyring,
    vault::{KeyId, Vault},
};
use anyhow::{Context, ensure};
use postrider_store::{postgres::Visitor, sqlite};
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider keys rotate --data /var/lib/postrider
  postrider keys forget-old --data /var/lib/postrider      once the server says that everything is sealed anew

A running server takes a changed keys.toml over within ten seconds. Where several nodes share a database, every one must
know a key before any of them uses it: `keys stage`, copy keys.toml to all nodes, `keys promote`, copy it again.
Exit codes: 0 done, 1 not done, 2 wrong usage or settings")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show which keys there are, by their names
    #[command(after_help = "Example:\n  postrider keys list --data /var/lib/postrider")]
    List(Flags),
    /// Make a new key and use it from now on
    #[command(after_help = "Example:\n  postrider keys rotate --data /var/lib/postrider")]
    Rotate(Flags),
    /// Make a new key that is not used yet
    #[command(after_help = "Example:\n  postrider keys stage --data /var/lib/postrider")]
    Stage(Flags),
    /// Use the key that was staged last
    #[command(after_help = "Example:\n  postrider keys promote --data /var/lib/postrider")]
    Promote(Flags),
    /// Drop all keys but the current one, if nothing is sealed with them any more
    #[command(after_help = "Example:\n  postrider keys forget-old --data /var/lib/postrider")]
    ForgetOld(Flags),
}

#[derive(clap::Args)]
struct Flags {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let (Command::List(flags)
    | Command::Rotate(flags)
    | Command::Stage(flags)
    | Command::Promote(flags)
    | Command::ForgetOld(flags)) = &args.command;
    let form = flags.output.form();
    let settings = flags.place.settings(Vec::new())?;
    let folder = &settings.data;
    if !matches!(args.command, Command::List(_)) && settings.encryption_keys().is_some() {
        return Err(Usage("the keys come from the setting encryption_keys; change them there".to_owned()).into());
    }
    let keyring = match &args.command {
        Command::List(_) => Keyring::open(folder)?.with_encryption(settings.encryption_keys()),
        Command::Rotate(_) if settings.database_url.is_some() => {
            let words = "several nodes may share this database, and all must know a key before one of them uses it: run \
                         `postrider keys stage`, copy keys.toml to every node, then `postrider keys promote`, and copy it again";
            return Err(Usage(words.to_owned()).into());
        }
        Command::Rotate(_) => {
            Keyring::stage(folder)?;
            Keyring::promote(folder)?
        }
        Command::Stage(_) => Keyring::stage(folder)?,
        Command::Promote(_) => Keyring::promote(folder)?,
        Command::ForgetOld(_) => {
            ensure!(
                is_all_current(&settings).await?,
                "not everything is sealed with the current key yet; let the server run until it says so"
            );
            Keyring::forget_old(folder)?
        }
    };
    let rows: Vec<Vec<String>> = keyring
        .encryption()
        .iter()
        .enumerate()
        .map(|(place, key)| vec![KeyId::of(key).to_string(), if place == 0 { "current" } else { "known" }.to_owned()])
        .collect();
    match form {
        Form::Text => print::say(&print::table(&["KEY", "USE"], &rows))?,
        Form::Json => {
            rows.iter().try_for_each(|row| print::say(&json!({ "key": row[0], "use": row[1] }).to_string()))?;
        }
    }
    match args.command {
        Command::Rotate(_) | Command::Promote(_) => {
            print::tell(
                "A running server seals everything anew now. Keep a copy of keys.toml, apart from copies of the database.",
            );
        }
        Command::Stage(_) => print::tell("Copy keys.toml to every node, then run: postrider keys promote"),
        Command::List(_) | Command::ForgetOld(_) => {}
    }
    Ok(())
}

/// The note is sealed anew after everything else.
async fn is_all_current(settings: &Settings) -> anyhow::Result<bool> {
    let noted = match &settings.database_url {
        None => sqlite::note(&settings.data, VAULT_CHECK).context("looking into the database")?,
        Some(url) => Visitor::connect(url, &postgres_options(settings)?).await?.note(VAULT_CHECK).await?,
    };
    let vault = Vault::new(Keyring::open(&settings.data)?.encryption());
    Ok(noted.is_none_or(|sealed| vault.is_current(&sealed)))
}
