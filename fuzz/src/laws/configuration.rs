//! Settings: any text gives settings within their ranges, or an error that names the setting or the line and quotes no
//! secret.
//!
//! The input is a file in TOML; what follows a line `---` is variables without their prefix, one a line.

use postrider::config::{Settings, SettingsError, Sources, reference};
use std::{ffi::OsString, path::Path, time::Duration};

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (file, variables) = text.split_once("\n---\n").unwrap_or((text, ""));
    let of_file = || Sources::default().with_file_text(Path::new("postrider.toml"), file.to_owned());
    let load = |sources: Sources, more: &[(&str, &str)]| {
        let lines = variables.lines().filter_map(|line| line.split_once('='));
        let pairs = lines.chain(more.iter().copied());
        let pairs = pairs.map(|(name, value)| (OsString::from(format!("POSTRIDER_{name}")), OsString::from(value)));
        sources.with_variables(pairs).and_then(|sources| Settings::load(&sources))
    };
    match load(of_file(), &[]) {
        Ok(settings) => in_range(&settings),
        Err(error) => names_its_place(&error, file),
    }

    // The same text as part of what nobody may read. The fuzzer learns the word, and may put it where it is no secret.
    if text.contains(SECRET) {
        return;
    }
    let secret = format!("{SECRET}{file}");
    let address = format!("postgres://user:{SECRET}%20{variables}@{file}");
    let table = format!("[{{\"url\": \"postgres://user:{SECRET}@{variables}\", \"name\": \"{file}\"}}]");
    for more in [("JWT_SECRET", secret.as_str()), ("DATABASE_URL", address.as_str()), ("OUTBOXES", table.as_str())] {
        let shown = match load(Sources::default(), &[more]) {
            // As a whole they have no `Debug`; of these parts that have one, neither shows it.
            Ok(settings) => format!("{:?} {:?}", settings.database_url, settings.outboxes),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

fn in_range(settings: &Settings) {
    assert!((1024..=64 * 1024 * 1024).contains(&settings.body_max));
    assert!(settings.connections_max > 0 && settings.shutdown_grace <= Duration::from_hours(1));
    assert!((Duration::from_secs(1)..=Duration::from_mins(1)).contains(&settings.lease));
    assert!(settings.retention_payloads >= Duration::from_hours(1));
    assert!(settings.retention_attempts >= Duration::from_hours(1));
    assert!(settings.retention_dead_letters >= Duration::from_hours(1));
    assert_eq!(settings.rules.layer().check(), []);
    for (at, outbox) in settings.outboxes.iter().enumerate() {
        assert!(!settings.outboxes[..at].iter().any(|other| other.name == outbox.name));
    }
}

fn names_its_place(error: &SettingsError, file: &str) {
    let shown = error.to_string();
    match error {
        SettingsError::Unknown { key, nearest, .. } => assert!(shown.contains(key) && is_setting(nearest), "{shown}"),
        SettingsError::Wrong { key, reason, .. } => {
            assert!(is_setting(key), "{shown}: a setting that there is");
            assert!(!reason.is_empty(), "{shown}");
        }
        SettingsError::Syntax { line, message, .. } => {
            assert!((1..=file.matches('\n').count() + 1).contains(line) && !message.is_empty(), "{shown}");
        }
        // There is no such file to look at.
        SettingsError::Read { .. } => {}
        SettingsError::TooOpen { key, .. } => assert!(is_setting(key), "{shown}"),
    }
}

fn is_setting(key: &str) -> bool {
    reference().contains(&format!("\n### `{key}`\n"))
}

const SECRET: &str = "nobody-may-read-this";
