//! Finding PostgreSQL's programs, and running them as somebody they accept.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where `initdb`, `pg_ctl` and `postgres` are: what the path leads to, else the newest that Debian's packages brought.
pub fn folder() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).find(|folder| usable(folder).is_some());
    on_path
        .or_else(|| newest(Path::new("/usr/lib/postgresql")))
        .unwrap_or_else(|| panic!("PostgreSQL {VERSION_MIN} or newer is not installed: {REMEDY}"))
}

/// PgBouncer. Debian puts it where only root's path leads.
pub fn pooler() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found = env::split_paths(&path).chain(["/usr/sbin".into()]).map(|folder| folder.join("pgbouncer"));
    found.find(|program| program.is_file()).unwrap_or_else(|| panic!("PgBouncer is not installed: {POOLER_REMEDY}"))
}

/// A shell that runs `script`, with pipes to and from it.
pub fn shell(script: &str) -> Command {
    let mut command = if is_root() {
        // PostgreSQL refuses to run as root.
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--", "sh"]);
        command
    } else {
        Command::new("sh")
    };
    // In a group of its own: Ctrl-C is for the tests, not for what tidies up after them. In a folder that whoever it
    // runs as may enter. Its errors go where the tests' do, so that whoever reads those waits until all is tidy.
    command.args(["-c", script, "keeper"]).process_group(0).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn newest(versions: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(versions).ok()?.flatten().map(|version| version.path().join("bin"));
    let (_, folder) = folders.filter_map(|folder| Some((usable(&folder)?, folder))).max()?;
    Some(folder)
}

/// The version of the PostgreSQL in this folder, if it is whole and new enough.
fn usable(folder: &Path) -> Option<u32> {
    if !["initdb", "pg_ctl", "postgres"].iter().all(|program| folder.join(program).is_file()) {
        return None;
    }
    let output = Command::new(folder.join("postgres")).arg("--version").output().ok()?;
    major(&String::from_utf8_lossy(&output.stdout)).filter(|&version| version >= VERSION_MIN)
}

/// From `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`.
fn major(version: &str) -> Option<u32> {
    let (_, number) = version.split_once("(PostgreSQL) ")?;
    number.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("every Unix has `id`");
    output.stdout.trim_ascii() == b"0"
}

const VERSION_MIN: u32 = 15;
const POOLER_REMEDY: &str = "apt-get install pgbouncer; scripts/test does that";
const REMEDY: &str = "apt-get install postgresql-15; scripts/test does that";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_what_the_server_says() {
        for (said, expected) in [
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 9.6.24\n", Some(9)),
            ("postgres (PostgreSQL) devel\n", None),
            ("", None),
        ] {
            assert_eq!(major(said), expected, "{said:?}");
        }
    }
}
