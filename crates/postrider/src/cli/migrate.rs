//! `postrider migrate`: the step of an upgrade that a start would take as well, at a time of one's own choice.

use super::{print, serve::PlaceFlags};
use crate::deployment::postgres_options;
use postrider_store::{Migrated, postgres, sqlite};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.place.settings(Vec::new())?;
    let migrated = match &settings.database_url {
        Some(url) => postgres::migrate(url, &postgres_options(&settings)?).await?,
        None => {
            let folder = settings.data;
            tokio::task::spawn_blocking(move || sqlite::migrate(&folder)).await??
        }
    };
    print::say(&told(migrated))?;
    Ok(())
}

fn told(Migrated { from, to }: Migrated) -> String {
    match from {
        0 => format!("made the tables, in version {to}"),
        from if from == to => format!("the tables are in version {to} already; there was nothing to do"),
        from => format!("brought the tables from version {from} to version {to}"),
    }
}
