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

/// Words that no schema can be called without quotes, as `pg_get_keywords` tells.
pub const RESERVED: &str = "all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column \
     concurrently constraint create cross current_catalog current_date current_role current_schema current_time \
     current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze from \
     full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit \
     localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references \
     returning right select session_user similar some symmetric system_user table tablesample then to trailing true union \
     unique user using variadic verbose when where window with";

/// How an outbox is made. What is left open stays as it is, or is as usual where there is none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// Bytes of a payload; larger ones are refused as they are inserted. As usual: a mebibyte.
    pub payload_max: Option<u64>,
    /// Whether a commit rings at once, as usual. Otherwise rows are found within a second.
    pub notify: Option<bool>,
    /// Roles that may send, and no more.
    pub senders: Vec<String>,
    /// Roles that Postrider may connect as.
    pub relays: Vec<String>,
}

/// The whole of it, to be run in one transaction.
pub fn script(schema: &SchemaName, installation: &Installation) -> String {
    let Installation { payload_max, notify, senders, relays } = installation;
    let mut choices = String::new();
    let payload_max = payload_max.map(|bytes| format!("payload_max = {bytes}"));
    let notify = notify.map(|on| format!("notify = {on}"));
    for choice in [payload_max, notify].into_iter().flatten() {
        add(&mut choices, &format!("UPDATE {schema}.about SET {choice};"));
    }
    let mut grants = String::new();
    for role in senders {
        grant(&mut grants, role, &rights_to_send(schema));
    }
    for role in relays {
        grant(&mut grants, role, &rights_to_relay(schema));
    }
    include_str!("install.sql")
        .replace("{choices}", &choices)
        .replace("{grants}", &grants)
        .replace("{send_functions}", &send_functions(schema).join(", "))
        .replace("{schema}", schema.as_str())
        .replace("{version}", &VERSION.to_string())
}

/// The functions that an application calls, with the types of their arguments.
pub fn send_functions(schema: &SchemaName) -> [String; 3] {
    let rest = "text, text[], text[], text, timestamptz";
    [format!("text, {rest}, text"), format!("json, {rest}"), format!("jsonb, {rest}")]
        .map(|payload_and_rest| format!("{schema}.send(text, text, {payload_and_rest})"))
}

/// Something that can be granted.
struct Right {
    /// Where PostgreSQL can be asked whether somebody has it.
    asked: &'static str,
    what: &'static str,
    kind: &'static str,
    on: String,
}

fn rights_to_send(schema: &SchemaName) -> Vec<Right> {
    let functions = send_functions(schema).map(|on| Right {
        asked: "has_function_privilege",
        what: "EXECUTE",
        kind: "FUNCTION ",
        on,
    });
    let mut rights = vec![on_schema(schema), on_table(schema, "outbox", "INSERT")];
    rights.extend(functions);
    rights
}

fn rights_to_relay(schema: &SchemaName) -> Vec<Right> {
    let mut rights = vec![on_schema(schema), on_table(schema, "about", "SELECT")];
    rights.extend(["SELECT", "UPDATE", "DELETE"].map(|what| on_table(schema, "outbox", what)));
    rights
}

fn on_schema(schema: &SchemaName) -> Right {
    Right { asked: "has_schema_privilege", what: "USAGE", kind: "SCHEMA ", on: schema.to_string() }
}

fn on_table(schema: &SchemaName, table: &str, what: &'static str) -> Right {
    Right { asked: "has_table_privilege", what, kind: "", on: format!("{schema}.{table}") }
}

/// Grants rights, and makes sure of them: of what somebody may not grant, PostgreSQL only warns.
fn grant(script: &mut String, role: &str, rights: &[Right]) {
    let (named, quoted) = (format!("\"{}\"", role.replace('"', "\"\"")), format!("'{}'", role.replace('\'', "''")));
    add(script, "");
    for Right { what, kind, on, .. } in rights {
        add(script, &format!("GRANT {what} ON {kind}{on} TO {named};"));
    }
    let asked = rights.iter().map(|Right { asked, what, kind, on }| {
        format!("        ({asked}({quoted}, '{on}', '{what}'), '{what} ON {kind}{on}')")
    });
    let asked = asked.collect::<Vec<_>>().join(",\n");
    add(
        script,
        &format!(
            "DO $rights$
DECLARE
    missing text := (SELECT string_agg(what, '; ') FROM (VALUES
{asked}
    ) AS needed (there, what) WHERE NOT there);
BEGIN
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'this role may not grant to % what it needs: %; let the owner of the schema grant that', {quoted},
            missing USING ERRCODE = 'insufficient_privilege';
    END IF;
END $rights$;"
        ),
    );
}

fn add(script: &mut String, line: &str) {
    writeln!(script, "{line}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_nothing_left_to_fill_in() {
        let installation = Installation {
            payload_max: Some(2_048),
            notify: Some(false),
            senders: vec!["shop".to_owned(), "odd\"na'me".to_owned()],
            relays: vec!["postrider".to_owned()],
        };
        let script = script(&"hooks".parse().expect("a name"), &installation);
        assert!(!script.contains('{') && !script.contains('}'), "{script}");
        for line in [
            "UPDATE hooks.about SET payload_max = 2048;",
            "UPDATE hooks.about SET notify = false;",
            "GRANT INSERT ON hooks.outbox TO \"odd\"\"na'me\";",
            "GRANT DELETE ON hooks.outbox TO \"postrider\";",
            "        (has_table_privilege('odd\"na''me', 'hooks.outbox', 'INSERT'), 'INSERT ON hooks.outbox'),",
        ] {
            assert!(script.lines().any(|there| there == line), "{line} in {script}");
        }
    }
}
