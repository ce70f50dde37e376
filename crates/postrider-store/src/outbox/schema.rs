//! What the outbox is in a producer's database: the script that makes it.
//!
//! A script and not a list of statements: a producer whose database changes only by its own migrations copies the
//! printed one, and gets exactly what `install` would have made.

use super::SchemaName;
use std::fmt::Write;

/// The outbox that this Postrider makes and understands.
pub const VERSION: i32 = 1;

/// Where rows are announced. Every outbox of a database rings here; a needless look costs little.
pub const CHANNEL: &str = "postrider_outbox";

/// How an outbox is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Bytes of a payload; larger ones are refused as they are inserted.
    pub payload_max: u64,
    /// Whether a commit rings at once. Without it, rows are found within a second.
    pub notify: bool,
    /// Roles that may send, and no more.
    pub senders: Vec<String>,
    /// Roles that Postrider may connect as.
    pub relays: Vec<String>,
}

impl Default for Installation {
    fn default() -> Self {
        Self { payload_max: 1 << 20, notify: true, senders: Vec::new(), relays: Vec::new() }
    }
}

/// The whole of it, to be run in one transaction.
pub fn script(schema: &SchemaName, installation: &Installation) -> String {
    let mut script = include_str!("install.sql")
        .replace("{schema}", schema.as_str())
        .replace("{version}", &VERSION.to_string())
        .replace("{payload_max}", &installation.payload_max.to_string())
        .replace("{notify}", if installation.notify { "true" } else { "false" });
    for role in &installation.senders {
        let role = quoted(role);
        grant(&mut script, &format!("USAGE ON SCHEMA {schema} TO {role}"));
        grant(&mut script, &format!("INSERT ON {schema}.outbox TO {role}"));
        grant(&mut script, &format!("EXECUTE ON FUNCTION {} TO {role}", send_functions(schema)));
    }
    for role in &installation.relays {
        let role = quoted(role);
        grant(&mut script, &format!("USAGE ON SCHEMA {schema} TO {role}"));
        grant(&mut script, &format!("SELECT ON {schema}.about TO {role}"));
        grant(&mut script, &format!("SELECT, UPDATE, DELETE ON {schema}.outbox TO {role}"));
    }
    script
}

fn grant(script: &mut String, what: &str) {
    writeln!(script, "GRANT {what};").expect("writing to a string does not fail");
}

fn send_functions(schema: &SchemaName) -> String {
    let rest = "text, text[], text[], text, timestamptz";
    format!(
        "{schema}.send(text, text, text, {rest}, text), {schema}.send(text, text, json, {rest}), \
         {schema}.send(text, text, jsonb, {rest})"
    )
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_nothing_left_to_fill_in() {
        let installation = Installation {
            senders: vec!["shop".to_owned(), "odd\"name".to_owned()],
            relays: vec!["postrider".to_owned()],
            ..Installation::default()
        };
        let script = script(&"hooks".parse().expect("a name"), &installation);
        assert!(!script.contains('{') && !script.contains('}'), "{script}");
        assert!(script.contains("GRANT INSERT ON hooks.outbox TO \"odd\"\"name\";"), "{script}");
        assert!(script.contains("GRANT SELECT, UPDATE, DELETE ON hooks.outbox TO \"postrider\";"), "{script}");
    }
}
