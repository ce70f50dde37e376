//! `postrider backup`: a copy of the database in a folder, while the server runs on it.

use super::{Usage, client::OutputFlags, print, receive::stop_signal, serve::PlaceFlags};
use crate::keyring::Keyring;
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use postrider_store::sqlite::{Backup, BackupError, Contents, verify};
use serde_json::json;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::{Builder, NamedTempFile};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider backup --data /var/lib/postrider --to /backup/postrider-2026-01-31.db
  postrider backup --data /var/lib/postrider --to /backup/postrider-2026-01-31.db --with-keys

A database on PostgreSQL is backed up with PostgreSQL's own tools.
Exit codes: 0 done and checked, 1 failed, 2 wrong usage or a database on PostgreSQL")]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
    /// The file to write; there must be none of this name
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Copy keys.toml as well, to FILE with .keys.toml at its end
    #[arg(long)]
    with_keys: bool,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.place.settings(Vec::new())?;
    if settings.database_url.is_some() {
        return Err(Usage(POSTGRES.to_owned()).into());
    }
    let keys_to = args.with_keys.then(|| with_ending(&args.to, ".keys.toml"));
    for path in [Some(&args.to), keys_to.as_ref()].into_iter().flatten() {
        // A link that leads nowhere counts as well.
        if path.symlink_metadata().is_ok() {
            return Err(Usage(format!("{} is there already, and is not overwritten", path.display())).into());
        }
    }
    // Read before the copy, which is of no use without them.
    let keys = match &keys_to {
        Some(path) => Some((path, read_keys(&settings.data)?)),
        None => None,
    };
    let contents = copy(&settings.data, &args.to).await?;
    if let Some((path, keys)) = keys {
        write_keys(&keys, path)?;
    }
    let Contents { messages, waiting } = contents;
    let to = args.to.display().to_string();
    let shown = json!({ "file": to, "messages": messages, "waiting": waiting, "withKeys": keys_to.is_some() });
    let words = format!(
        "{}: {messages} messages, {waiting} deliveries that wait; read again and found sound",
        print::escaped_word(&to, PATH_MAX)
    );
    print::result(args.output.form(), &shown, &words)?;
    match keys_to {
        Some(path) => {
            print::tell(&format!("{} has the keys. Whoever has both files can read everything.", path.display()));
        }
        None => print::tell("It is of no use without keys.toml, of which you should have a copy elsewhere."),
    }
    Ok(())
}

/// The copy has its name only once it is whole, checked and on the disk.
async fn copy(data: &Path, to: &Path) -> anyhow::Result<Contents> {
    let folder = folder_of(to);
    let draft = Builder::new()
        .prefix(".postrider-backup-")
        .tempfile_in(&folder)
        .with_context(|| format!("writing to {}", folder.display()))?;
    let backup = Backup::of(data)?;
    let bar = bar(backup.bytes().context("reading the database")?)?;
    let (stopper, path) = (backup.stopper(), draft.path().to_owned());
    let mut copying = tokio::task::spawn_blocking(move || {
        backup.write(&path)?;
        drop(backup);
        verify(&path)
    });
    let mut beat = tokio::time::interval(DRAW_EVERY);
    let stop = stop_signal();
    tokio::pin!(stop);
    let copied = loop {
        tokio::select! {
            copied = &mut copying => break copied?,
            stopped = &mut stop => {
                stopped?;
                stopper.interrupt();
                let _ = copying.await;
                return Err(anyhow!("ended early; nothing was kept"));
            }
            _ = beat.tick() => bar.set_position(draft.as_file().metadata().map_or(0, |copy| copy.len())),
        }
    };
    bar.finish_and_clear();
    let contents = copied.map_err(|error: BackupError| anyhow!(error))?;
    keep(draft, to)?;
    Ok(contents)
}

fn read_keys(data: &Path) -> anyhow::Result<Vec<u8>> {
    let from = data.join(Keyring::FILE);
    fs::read(&from).with_context(|| format!("reading {}", from.display()))
}

fn write_keys(keys: &[u8], to: &Path) -> anyhow::Result<()> {
    let mut draft = NamedTempFile::new_in(folder_of(to))?;
    draft.write_all(keys).with_context(|| format!("writing {}", to.display()))?;
    keep(draft, to)
}

fn keep(draft: NamedTempFile, to: &Path) -> anyhow::Result<()> {
    let kept = || -> io::Result<()> {
        draft.as_file().sync_all()?;
        draft.persist_noclobber(to)?;
        File::open(folder_of(to))?.sync_all()
    };
    kept().with_context(|| format!("writing {}", to.display()))
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Where standard error is no terminal, it draws nothing by itself.
fn bar(bytes: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes} copied; {eta} left");
    Ok(ProgressBar::new(bytes).with_style(style.context("drawing the bar")?))
}

const POSTGRES: &str = "a database on PostgreSQL is backed up with PostgreSQL's own tools, while the nodes run:
  pg_dump --format=custom --file=postrider.dump \"$POSTRIDER_DATABASE_URL\"        one state of it
  pg_basebackup --pgdata=FOLDER --wal-method=stream --checkpoint=fast            the whole server
and keys.toml from the data folder of any node, once; see docs/operations/backup.md";
const DRAW_EVERY: Duration = Duration::from_millis(100);
const PATH_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_never_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("copy");
        let draft = || NamedTempFile::new_in(folder.path()).expect("a file");
        keep(draft(), &to).expect("there was none");
        assert!(keep(draft(), &to).is_err());
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 1, "nothing is left of the second");
    }

    #[test]
    fn a_name_alone_is_in_this_folder() {
        assert_eq!(folder_of(Path::new("a.db")), Path::new("."));
        assert_eq!(with_ending(Path::new("b/a.db"), ".keys.toml"), Path::new("b/a.db.keys.toml"));
    }
}
