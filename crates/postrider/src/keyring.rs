//! The deployment's own secrets: made at first start, kept beside the data, needed for ever after.
//!
//! One file and not rows of the database: whoever copies the database alone gets sealed boxes without
//! their key, and `postrider token` works while the server holds the database.

use crate::config::readable_by_all;
use base64::{Engine, prelude::BASE64_STANDARD};
use figment::providers::{Format, Toml};
use postrider_store::step;
use rand::{TryRng, rngs::SysRng};
use serde::Deserialize;
use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

pub struct Keyring {
    /// The current one first.
    encryption: Vec<[u8; 32]>,
    ids: [u8; 16],
    tokens: [u8; 32],
}

impl Keyring {
    pub const FILE: &str = "keys.toml";

    pub fn open_or_create(folder: &Path) -> Result<Self, KeyringError> {
        match Self::open(folder) {
            Err(KeyringError::Missing { .. }) => {}
            opened => return opened,
        }
        make_folder(folder).map_err(|source| KeyringError::Write { path: folder.to_owned(), source })?;
        refuse_orphaned_data(folder)?;
        let fresh = Self::draw()?;
        step!("keys.drawn");
        let path = folder.join(Self::FILE);
        match fresh.write(folder, &path) {
            Ok(()) => Ok(fresh),
            // Another process was first; its keys are the keys.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::open(folder),
            Err(source) => Err(KeyringError::Write { path, source }),
        }
    }

    pub fn open(folder: &Path) -> Result<Self, KeyringError> {
        let path = folder.join(Self::FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(KeyringError::Missing { folder: folder.to_owned() });
            }
            Err(source) => return Err(KeyringError::Read { path, source }),
        };
        match readable_by_all(&path) {
            Ok(false) => {}
            Ok(true) => return Err(KeyringError::TooOpen { path }),
            Err(source) => return Err(KeyringError::Read { path, source }),
        }
        Self::parse(&text).map_err(|reason| KeyringError::Malformed { path, reason })
    }

    /// Seal endpoints' secrets and headers: the current one first, then those that what was sealed before may still need.
    pub fn encryption(&self) -> &[[u8; 32]] {
        &self.encryption
    }

    /// Those of the settings, where they name some.
    pub fn with_encryption(self, given: Option<&[[u8; 32]]>) -> Self {
        let encryption = given.map_or(self.encryption, <[_]>::to_vec);
        Self { encryption, ..self }
    }

    /// Puts a new key behind the others, in the file: nothing is sealed with it, and what is can be opened.
    pub fn stage(folder: &Path) -> Result<Self, KeyringError> {
        let mut keyring = Self::open(folder)?;
        if keyring.encryption.len() >= ENCRYPTION_KEYS_MAX {
            return Err(KeyringError::TooMany { folder: folder.to_owned() });
        }
        keyring.encryption.push(random()?);
        keyring.replace(folder)?;
        Ok(keyring)
    }

    /// Puts the last key before the others, in the file.
    pub fn promote(folder: &Path) -> Result<Self, KeyringError> {
        let mut keyring = Self::open(folder)?;
        if keyring.encryption.len() < 2 {
            return Err(KeyringError::NothingStaged { folder: folder.to_owned() });
        }
        keyring.encryption.rotate_right(1);
        keyring.replace(folder)?;
        Ok(keyring)
    }

    /// Takes all keys but the current one out of the file.
    pub fn forget_old(folder: &Path) -> Result<Self, KeyringError> {
        let mut keyring = Self::open(folder)?;
        keyring.encryption.truncate(1);
        keyring.replace(folder)?;
        Ok(keyring)
    }

    /// Turns integer keys into public ids and back.
    pub fn ids(&self) -> &[u8; 16] {
        &self.ids
    }

    /// Signs API tokens, unless the settings name another secret.
    pub fn tokens(&self) -> &[u8; 32] {
        &self.tokens
    }

    fn draw() -> Result<Self, KeyringError> {
        Ok(Self { encryption: vec![random()?], ids: random()?, tokens: random()? })
    }

    fn parse(text: &str) -> Result<Self, String> {
        // The parser's own display quotes the line, and the line holds a key.
        let file: KeysFile = Toml::from_str(text).map_err(|error| error.message().to_owned())?;
        Ok(Self {
            encryption: file.encryption.keys()?,
            ids: decode("ids", &file.ids)?,
            tokens: decode("tokens", &file.tokens)?,
        })
    }

    fn text(&self) -> String {
        format!(
            "# The secrets of this deployment. Keep a copy in a safe place, apart from copies of the database:\n\
             # without this file the database cannot be used, and with both everything can be read.\n\
             encryption = {}\nids = \"{}\"\ntokens = \"{}\"\n",
            self.encryption_text(),
            BASE64_STANDARD.encode(self.ids),
            BASE64_STANDARD.encode(self.tokens),
        )
    }

    fn encryption_text(&self) -> String {
        let quoted: Vec<String> =
            self.encryption.iter().map(|key| format!("\"{}\"", BASE64_STANDARD.encode(key))).collect();
        match quoted.as_slice() {
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        }
    }

    /// In the place of the file that there is. Whoever reads it finds the old one or the new one.
    fn replace(&self, folder: &Path) -> Result<(), KeyringError> {
        let path = folder.join(Self::FILE);
        let draft = folder.join(format!(".{}.{}", Self::FILE, std::process::id()));
        let replaced = (|| {
            let mut file = create_private(&draft)?;
            file.write_all(self.text().as_bytes())?;
            file.sync_all()?;
            // The group that may read it, if any, is to go on doing so.
            fs::set_permissions(&draft, fs::metadata(&path)?.permissions())?;
            fs::rename(&draft, &path)?;
            File::open(folder)?.sync_all()
        })();
        replaced.map_err(|source| {
            let _ = fs::remove_file(&draft);
            KeyringError::Write { path, source }
        })
    }

    /// Puts the whole file in place at once, or fails with `AlreadyExists`.
    fn write(&self, folder: &Path, path: &Path) -> io::Result<()> {
        let draft = folder.join(format!(".{}.{}", Self::FILE, std::process::id()));
        let written = create_private(&draft)
            .and_then(|mut file| file.write_all(self.text().as_bytes()).and_then(|()| file.sync_all()))
            .inspect(|()| step!("keys.drafted"))
            // A link and not a rename: it never replaces keys that another process put there meanwhile.
            .and_then(|()| fs::hard_link(&draft, path))
            .inspect(|()| step!("keys.in_place"));
        let _ = fs::remove_file(&draft);
        written?;
        File::open(folder)?.sync_all()
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(***)")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error("{} has no {}; it is made when the server first starts there: postrider serve --data {}", folder.display(), Keyring::FILE, folder.display())]
    Missing { folder: PathBuf },
    #[error(
        "{} holds data but no {}, and without the keys that it was written with the data cannot be used; restore the file from your copy",
        folder.display(), Keyring::FILE
    )]
    Lost { folder: PathBuf },
    #[error("{} can be read by every user of this machine; run: chmod 600 {}", path.display(), path.display())]
    TooOpen { path: PathBuf },
    #[error("{}: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error(
        "{} has {ENCRYPTION_KEYS_MAX} encryption keys already; run `postrider keys forget-old` once the server has sealed \
         everything with the newest",
        folder.join(Keyring::FILE).display()
    )]
    TooMany { folder: PathBuf },
    #[error("{} has one encryption key only; run `postrider keys stage` first", folder.join(Keyring::FILE).display())]
    NothingStaged { folder: PathBuf },
    #[error("could not read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("could not write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the system gave no random numbers")]
    Random(#[source] rand::rngs::SysError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    encryption: OneOrSeveral,
    ids: String,
    tokens: String,
}

/// Several while one takes the place of another.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

impl OneOrSeveral {
    fn keys(&self) -> Result<Vec<[u8; 32]>, String> {
        let texts = match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Several(texts) => texts.as_slice(),
        };
        if !(1..=ENCRYPTION_KEYS_MAX).contains(&texts.len()) {
            return Err(format!("`encryption` has {} keys; there must be 1 to {ENCRYPTION_KEYS_MAX}", texts.len()));
        }
        texts.iter().map(|text| decode("encryption", text)).collect()
    }
}

fn random<const N: usize>() -> Result<[u8; N], KeyringError> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(KeyringError::Random)?;
    Ok(bytes)
}

fn decode<const N: usize>(name: &str, text: &str) -> Result<[u8; N], String> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| format!("`{name}` is not base64"))?;
    let found = bytes.len();
    bytes.try_into().map_err(|_| format!("`{name}` has {found} bytes where {N} are needed"))
}

/// New keys beside old data would lock its owner out, silently at first.
fn refuse_orphaned_data(folder: &Path) -> Result<(), KeyringError> {
    let read = |source| KeyringError::Read { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("db" | "sqlite" | "sqlite3")) {
            return Err(KeyringError::Lost { folder: folder.to_owned() });
        }
    }
    Ok(())
}

pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(folder)
}

fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path)
}

/// More than anybody changes within a day.
const ENCRYPTION_KEYS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder for the test")
    }

    fn same(a: &Keyring, b: &Keyring) -> bool {
        (&a.encryption, a.ids, a.tokens) == (&b.encryption, b.ids, b.tokens)
    }

    #[test]
    fn the_first_start_makes_keys_and_later_ones_read_them() {
        let folder = folder();
        let inside = folder.path().join("not/yet/there");
        let made = Keyring::open_or_create(&inside).expect("made");
        assert!(same(&made, &Keyring::open_or_create(&inside).expect("read back")));
        assert!(same(&made, &Keyring::open(&inside).expect("read back")));
        let names: Vec<_> =
            fs::read_dir(&inside).expect("listed").map(|entry| entry.expect("entry").file_name()).collect();
        assert_eq!(names, [Keyring::FILE]);
    }

    #[test]
    fn a_new_key_comes_first_and_the_old_one_stays_until_it_is_forgotten() {
        let folder = folder();
        let made = Keyring::open_or_create(folder.path()).expect("made");
        assert!(matches!(Keyring::promote(folder.path()), Err(KeyringError::NothingStaged { .. })));
        let staged = Keyring::stage(folder.path()).expect("staged");
        assert_eq!((staged.encryption.len(), &staged.encryption[..1]), (2, &made.encryption[..]));
        let rotated = Keyring::promote(folder.path()).expect("promoted");
        assert_eq!((rotated.encryption.len(), &rotated.encryption[1..]), (2, &made.encryption[..]));
        assert!(same(&rotated, &Keyring::open(folder.path()).expect("read back")));
        assert_eq!((rotated.ids, rotated.tokens), (made.ids, made.tokens));
        let left = Keyring::forget_old(folder.path()).expect("forgotten");
        assert_eq!(left.encryption, &rotated.encryption[..1]);
        assert!(same(&left, &Keyring::open(folder.path()).expect("read back")));
        for _ in 1..ENCRYPTION_KEYS_MAX {
            Keyring::stage(folder.path()).expect("staged");
        }
        assert!(matches!(Keyring::stage(folder.path()), Err(KeyringError::TooMany { .. })));
        let names = fs::read_dir(folder.path()).expect("listed").count();
        assert_eq!(names, 1, "no draft is left");
    }

    #[test]
    fn two_folders_have_different_keys() {
        let (a, b) = (folder(), folder());
        let (a, b) =
            (Keyring::open_or_create(a.path()).expect("made"), Keyring::open_or_create(b.path()).expect("made"));
        assert!(a.encryption != b.encryption && a.ids != b.ids && a.tokens != b.tokens);
    }

    #[test]
    fn who_comes_second_at_the_first_start_does_not_replace_the_keys() {
        let folder = folder();
        let first = Keyring::open_or_create(folder.path()).expect("made");
        let late = Keyring::draw().expect("random");
        let refused = late.write(folder.path(), &folder.path().join(Keyring::FILE)).expect_err("does not replace");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(same(&first, &Keyring::open_or_create(folder.path()).expect("read")));
    }

    #[test]
    fn a_damaged_file_says_what_is_wrong_and_shows_no_key() {
        let folder = folder();
        let good = Keyring::open_or_create(folder.path()).expect("made").text();
        let path = folder.path().join(Keyring::FILE);
        let line = |name: &str| good.lines().find(|line| line.starts_with(name)).expect("present").to_owned();
        for (text, expected) in [
            (String::new(), "missing field `encryption`"),
            (good.replace(&line("ids"), ""), "missing field `ids`"),
            (good.replace(&line("ids"), "ids = \"AAAA\""), "`ids` has 3 bytes where 16 are needed"),
            (good.replace(&line("tokens"), "tokens = \"%%%\""), "`tokens` is not base64"),
            (good.replace(&line("tokens"), "tokens = 7"), "invalid type"),
            (format!("{good}\nextra = 1"), "unknown field `extra`"),
            (good.trim_end().trim_end_matches('"').to_owned(), "keys.toml: "),
        ] {
            fs::write(&path, &text).expect("written");
            let error = Keyring::open_or_create(folder.path()).expect_err(expected);
            let told = format!("{error} {error:?}");
            assert!(told.contains(expected), "{told}");
            assert!(!told.contains(line("encryption").trim_start_matches("encryption = ").trim_matches('"')));
            assert!(!told.contains(line("tokens").trim_start_matches("tokens = ").trim_matches('"')));
        }
    }

    #[test]
    fn data_without_its_keys_is_not_given_new_ones() {
        let folder = folder();
        fs::write(folder.path().join("postrider.db"), "x").expect("written");
        assert!(matches!(Keyring::open_or_create(folder.path()), Err(KeyringError::Lost { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_private_and_refused_when_it_is_not() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder();
        Keyring::open_or_create(folder.path()).expect("made");
        let path = folder.path().join(Keyring::FILE);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        for (mode, refused) in [(0o644, true), (0o604, true), (0o640, false), (0o400, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
            match Keyring::open_or_create(folder.path()) {
                Err(KeyringError::TooOpen { .. }) => assert!(refused, "{mode:o}"),
                other => assert!(!refused && other.is_ok(), "{mode:o}"),
            }
        }
    }

    #[test]
    fn keys_do_not_show() {
        let folder = folder();
        assert_eq!(format!("{:?}", Keyring::open_or_create(folder.path()).expect("made")), "Keyring(***)");
    }
}
