//! Holds the doors between the rooms shut, by reading what manifests and sources ask for.
//!
//! The compiler lets any module of a crate call any other, and a dependency is one line away. What is
//! written in ARCHITECTURE.md about who may know whom stays true only if something reads along.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[test]
fn only_the_store_speaks_to_a_database() {
    // The testbed starts databases; that is all it is for. The inbox is no part of the server: it is a library for receivers,
    // and keeps what it takes in in a database of theirs. The benchmark has a server of its own to compare with, which keeps rows.
    let free = ["postrider-store", "postrider-testbed", "postrider-inbox", "postrider-bench"];
    let may = |folder: &&PathBuf| free.iter().any(|name| folder.ends_with(name));
    for folder in files_in(&crates()).iter().filter(|folder| !may(folder)) {
        for driver in ["rusqlite", "libsqlite3-sys", "tokio-postgres", "postgres", "sqlx", "diesel"] {
            assert!(
                !listed(folder, "dependencies]").contains(driver),
                "{} depends on {driver}: whatever is stored goes through the verbs of `postrider_store::Store`, so that \
                 a second store can take the place of the first",
                folder.display()
            );
        }
    }
}

#[test]
fn the_engine_touches_nothing() {
    let engine = crates().join("postrider-engine");
    let (all, for_tests) = (listed(&engine, "dependencies]"), listed(&engine, "[dev-dependencies]"));
    assert_eq!(
        all.difference(&for_tests).collect::<Vec<_>>(),
        ["httpdate", "rand", "rustc-hash"],
        "the engine decides and does nothing else: a new dependency must do no IO, and then be named here"
    );
    for (path, code) in sources(&engine.join("src")) {
        // Tests may compare a page with what it was made from.
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        for touch in [
            "std::fs",
            "std::net",
            "std::thread",
            "std::process",
            "std::env",
            "tokio",
            "async ",
            ".await",
            "SystemTime::now",
            "Instant",
            "SysRng",
        ] {
            assert!(
                !code.contains(touch),
                "{} has `{touch}`: time, chance and what happened are handed to the engine, so that every decision \
                 can be made again in a test",
                path.display()
            );
        }
    }
}

#[test]
fn only_the_clock_reads_the_time() {
    for name in ["postrider", "postrider-engine", "postrider-signature", "postrider-store"] {
        for (path, code) in sources(&crates().join(name).join("src")) {
            for clock in ["SystemTime::now", "Timestamp::now", "Zoned::now"] {
                assert!(
                    !code.contains(clock) || path.ends_with("postrider/src/clock.rs"),
                    "{} calls {clock}: ask `postrider::clock`, or better be handed the time",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn what_is_said_on_the_wire_stays_in_http() {
    let shell = crates().join("postrider/src");
    for (path, code) in sources(&shell) {
        let inside = path.strip_prefix(&shell).expect("it was found there");
        let room = inside.components().next().and_then(|room| Path::new(room.as_os_str()).file_stem()?.to_str());
        // The pages are a client of the API (decision 18).
        if matches!(room, Some("http" | "cli" | "dashboard" | "serve" | "main")) {
            continue;
        }
        for closed in ["http", "cli", "dashboard"] {
            assert!(
                !rooms_entered(&code).contains(closed),
                "{} enters crate::{closed}: the API and the commands call the rest and are called by none of it, so \
                 that the wire can change without it (and `dispatch` runs without either)",
                path.display()
            );
        }
    }
}

/// Values go to a database as parameters. What may stand in the text itself is written by us: names of tables and columns,
/// directions, conditions and numbers, each of them in these lists.
#[test]
fn no_value_becomes_part_of_sql() {
    let mut seen = 0;
    for (path, code) in sources(&crates().join("postrider-store/src")) {
        let is_test = path.ends_with("tests.rs") || path.iter().any(|part| part == "tests" || part == "conformance");
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        for Text { text, behind } in texts(code).into_iter().filter(|text| !is_test && is_sql(text.text)) {
            seen += 1;
            let hint = "hand it over as a parameter; if it is a name that we wrote, enter it in the list";
            assert!(!text.contains("'{"), "{}: a value between quotes in {text:?}; {hint}", path.display());
            for name in holes(text) {
                let is_ours = match name {
                    "" => WRITTEN_BY_US.iter().any(|ours| behind.starts_with(ours)),
                    name => name.chars().all(|letter| !letter.is_lowercase()) || NAMES_OF_OURS.contains(&name),
                };
                assert!(is_ours, "{}: `{{{name}}}` in {text:?}; {hint}", path.display());
            }
        }
    }
    assert!(seen > 300, "only {seen} texts look like SQL: are they found?");
}

struct Text<'a> {
    text: &'a str,
    /// What stands behind it, without space and the comma.
    behind: &'a str,
}

/// Every string literal.
fn texts(code: &str) -> Vec<Text<'_>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find('"') {
        let mut is_escaped = false;
        let is_end = |letter: char| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            ends
        };
        let Some(length) = rest[start + 1..].find(is_end) else { break };
        let (text, behind) = (&rest[start + 1..start + 1 + length], &rest[start + 2 + length..]);
        found.push(Text { text, behind: behind.trim_start_matches([',', ' ', '\n']) });
        rest = behind;
    }
    found
}

fn is_sql(text: &str) -> bool {
    ["SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM ", "WHERE ", "LISTEN ", " TABLE "]
        .iter()
        .any(|word| text.contains(word))
}

/// The names within single braces.
fn holes(text: &str) -> Vec<&str> {
    let text = text.split("{{").flat_map(|part| part.split("}}"));
    text.flat_map(|part| part.split('{').skip(1))
        .map(|hole| hole.split(['}', ':']).next().unwrap_or_default())
        .collect()
}

const NAMES_OF_OURS: [&str; 24] = [
    "n",
    "table",
    "direction",
    "number",
    "key",
    "from",
    "column",
    "columns",
    "comparison",
    "comes_later",
    "first_key",
    "end_key",
    "condition",
    "names",
    "inbox",
    "letters",
    "asked_for",
    "waits",
    "source",
    "whose",
    "schema",
    "choice",
    "asked",
    "quoted",
];
const WRITTEN_BY_US: [&str; 8] = [
    "span.direction()",
    "self.span.direction()",
    "news::channel(node), news::EVERYONE)",
    "schema::MIGRATION_LOCK",
    "table.name)",
    "inbox(table), table.name)",
    "columns.join(",
    "self.remembered_from)",
];

#[test]
fn a_value_in_sql_is_seen() {
    let code = r#"format!("SELECT 1 FROM {table} WHERE a = '{name}' AND b = {}", value); "no {hole}""#;
    let found = texts(code);
    assert_eq!(found.iter().filter(|text| is_sql(text.text)).count(), 1);
    assert_eq!(holes(found[0].text), ["table", "name", ""]);
    assert!(found[0].text.contains("'{") && found[0].behind.starts_with("value)"));
    assert_eq!(holes("message_{{n}} {a:?}"), ["a"]);
}

#[test]
fn a_room_is_seen_however_it_is_entered() {
    for (code, rooms) in [
        ("use crate::http::Api;", &["http"][..]),
        ("use crate::{\n    clock,\n    http::{self, auth::{A, B}},\n};", &["clock", "http"]),
        ("let api = crate::http::router(api);", &["http"]),
        ("use super::{delivery, http};", &["delivery", "http"]),
        ("use http::{HeaderMap, header};", &[]),
    ] {
        assert_eq!(rooms_entered(code), rooms.iter().map(|room| (*room).to_owned()).collect(), "{code}");
    }
}

/// The modules that `code` names by way of `crate::` or `super::`.
fn rooms_entered(code: &str) -> BTreeSet<String> {
    let code: String = code.split_whitespace().collect();
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut rooms = BTreeSet::new();
    for path in code.split("crate::").skip(1).chain(code.split("super::").skip(1)) {
        // In braces every name at their own depth is a room; without, only the first one.
        let mut depth = 0;
        let mut room = String::new();
        for letter in path.chars() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => drop(rooms.insert(std::mem::take(&mut room))),
                letter if depth <= 1 => room.push(letter),
                _ => {}
            }
            if depth == 0 && !is_name(letter) {
                break;
            }
        }
        rooms.insert(room);
    }
    let names = rooms.into_iter().map(|path| path.chars().take_while(|letter| is_name(*letter)).collect());
    names.filter(|room: &String| !room.is_empty()).collect()
}

/// The names in those sections of a crate's manifest whose headings end so.
fn listed(folder: &Path, heading: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("every crate has a manifest");
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with(heading);
        } else if let Some(name) = line.split(['.', '=', ' ']).next().filter(|name| inside && !name.is_empty()) {
            names.insert(name.to_owned());
        }
    }
    assert!(!names.is_empty(), "{} lists nothing under {heading}: is it read rightly?", folder.display());
    names
}

/// Every source file below `folder`, without its comments.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in files_in(folder) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("sources are text");
            let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            found.push((path, code.join("\n")));
        }
    }
    found
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("it can be listed").path()).collect()
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates lie side by side").to_owned()
}
