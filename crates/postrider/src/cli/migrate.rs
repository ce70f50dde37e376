//! `postrider migrate`: the step of an upgrade that a start would take as well, at a time of one's own choice.

use super::{client::OutputFlags, print, serve::PlaceFlags};
use crate::deployment::postgres_options;
use indicatif::ProgressBar;
use postrider_store::{Migrated, postgres, sqlite};
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider migrate --data /var/lib/postrider
  POSTRIDER_DATABASE_URL=postgres://... postrider migrate --json")]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.place.settings(Vec::new())?;
    // How long it takes is not known beforehand.
    let bar = ProgressBar::new_spinner().with_message("bringing the tables up to date");
    bar.enable_steady_tick(Duration::from_millis(200));
    let migrated = match &settings.database_url {
        Some(url) => postgres::migrate(url, &postgres_options(&settings)?).await?,
        None => {
            let folder = settings.data;
            tokio::task::spawn_blocking(move || sqlite::migrate(&folder)).await??
        }
    };
    bar.finish_and_clear();
    let shown = json!({ "from": migrated.from, "to": migrated.to });
    print::result(args.output.form(), &shown, &told(migrated))?;
    Ok(())
}

fn told(Migrated { from, to }: Migrated) -> String {
    match from {
        0 => format!("made the tables, in version {to}"),
        from if from == to => format!("the tables are in version {to} already; there was nothing to do"),
        from => format!("brought the tables from version {from} to version {to}"),
    }
}
