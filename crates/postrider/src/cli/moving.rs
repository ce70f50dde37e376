//! `postrider move`: from the database in a folder to one on PostgreSQL.

use super::{
    Usage,
    client::OutputFlags,
    print::{self, Form},
    receive::stop_signal,
    serve::PlaceFlags,
};
use crate::{
    clock,
    config::Settings,
    deployment::{VAULT_CHECK, check, postgres_options},
    keyring::Keyring,
    vault::Vault,
};
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use postrider_store::{
    Moved, PostgresOptions, Progress, Step, move_to_postgres,
    postgres::{DatabaseUrl, Visitor},
};
use serde_json::json;
use std::{cell::Cell, collections::BTreeMap};

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  POSTRIDER_DATABASE_URL=postgres://... postrider move --data /var/lib/postrider

The server must be stopped, and the database must hold nothing of Postrider's. Everything moves, or nothing does. A move
that was interrupted is ended by the same command.
Exit codes: 0 moved, 1 not moved, 2 wrong usage or settings")]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.place.settings(Vec::new())?;
    let Some(url) = &settings.database_url else {
        return Err(Usage("say where to: --database-url, or POSTRIDER_DATABASE_URL".to_owned()).into());
    };
    let options = postgres_options(&settings)?;
    refuse_other_keys(&settings, url, &options).await?;
    let bar = bar()?;
    let is_committing = Cell::new(false);
    let told = |step| match step {
        Step::Copying(progress) => draw(&bar, progress),
        Step::Committing => is_committing.set(true),
    };
    let moving = move_to_postgres(&settings.data, url, &options, clock::now(), told);
    tokio::pin!(moving);
    let moved = tokio::select! {
        moved = &mut moving => moved,
        stopped = stop_signal() => {
            stopped?;
            if !is_committing.get() {
                bar.finish_and_clear();
                return Err(anyhow!("ended early; nothing was moved"));
            }
            // It takes a moment, and only its end tells which side counts.
            moving.await
        }
    };
    bar.finish_and_clear();
    let data = settings.data.display();
    match moved? {
        Moved::Now(rows) => {
            let tables: Vec<_> = rows.into_iter().collect();
            let counted: BTreeMap<_, _> = tables.iter().map(|(table, rows)| (table.to_string(), *rows)).collect();
            let lines: Vec<_> =
                tables.into_iter().map(|(table, rows)| vec![table.to_string(), rows.to_string()]).collect();
            let shown = json!({ "moved": true, "rows": counted });
            print::result(args.output.form(), &shown, &print::table(&["TABLE", "ROWS"], &lines))?;
            print::tell(&format!("Moved to {url}; each table has as many rows there."));
        }
        Moved::Before => {
            if args.output.form() == Form::Json {
                print::say(&json!({ "moved": false }).to_string())?;
            }
            print::tell(&format!("It had been moved to {url} before; that is noted in {data} now."));
        }
    }
    print::tell(&format!(
        "The keys stay in {data}: start the server with the same folder and with database_url. postrider.db is not used any \
         more, and no server starts on it; remove it when you are sure."
    ));
    Ok(())
}

/// What a node with other keys has begun cannot be gone on with.
async fn refuse_other_keys(settings: &Settings, url: &DatabaseUrl, options: &PostgresOptions) -> anyhow::Result<()> {
    let folder = &settings.data;
    let vault = Vault::new(Keyring::open(folder)?.with_encryption(settings.encryption_keys()).encryption());
    match Visitor::connect(url, options).await?.note(VAULT_CHECK).await? {
        Some(sealed) if check(&vault, &sealed).is_err() => Err(anyhow!(
            "a server with other keys than those in {} was started on {url}; take a fresh database, or that one if there is \
             nothing in it and you make it anew",
            folder.display()
        )),
        Some(_) | None => Ok(()),
    }
}

/// Where standard error is no terminal, it draws nothing by itself.
fn bar() -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} rows, {msg}; {eta} left");
    Ok(ProgressBar::no_length().with_style(style.context("drawing the bar")?))
}

fn draw(bar: &ProgressBar, Progress { table, done, total }: Progress) {
    bar.set_length(total);
    bar.set_position(done);
    if bar.message() != table {
        bar.set_message(table);
    }
}
