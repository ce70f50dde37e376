//! Output that neither panics on a closed pipe nor lets foreign text steer the terminal.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

/// Standard output could not be written, which is not the same as any other broken pipe.
#[derive(Debug, thiserror::Error)]
#[error("could not write to standard output")]
pub struct OutputError(#[source] pub io::Error);

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Green,
    Yellow,
    Red,
    Dim,
    Bold,
}

/// In colour where standard output is a terminal that has some, and `NO_COLOR` is not set.
pub fn paint(colour: Colour, text: &str) -> String {
    // A test reads what is said, and may run on a terminal.
    if cfg!(test) || !console::colors_enabled() {
        return text.to_owned();
    }
    let style = console::Style::new();
    let style = match colour {
        Colour::Green => style.green(),
        Colour::Yellow => style.yellow(),
        Colour::Red => style.red(),
        Colour::Dim => style.dim(),
        Colour::Bold => style.bold(),
    };
    style.apply_to(text).to_string()
}

/// What the words mean that say how things stand, wherever they are shown.
fn colour_of(word: &str) -> Option<Colour> {
    match word {
        "success" | "delivered" | "healthy" | "closed" | "enabled" | "finished" | "ok" | "current" | "sent"
        | "written" => Some(Colour::Green),
        "pending" | "sending" | "waiting" | "running" | "warning" | "refusing" | "failing" | "probing"
        | "half-open" | "transient" | "ambiguous" => Some(Colour::Yellow),
        "fail" | "failed" | "dead" | "disabled" | "tripped" | "open" | "problem" | "ended early" | "permanent"
        | "gone" | "exhausted" | "expired" | "cancelled" | "canceled" | "breaker" | "endpoint-gone" => {
            Some(Colour::Red)
        }
        _ => None,
    }
}

/// A word that says how something stands, as wide as `width` at least, in its colour.
pub fn state(word: &str, width: usize) -> String {
    let padded = format!("{word:width$}");
    colour_of(word).map_or_else(|| padded.clone(), |colour| paint(colour, &padded))
}

/// A result, on standard output.
pub fn say(line: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(OutputError)
}

/// One result, in the form that was asked for. The text is escaped already.
pub fn result(form: Form, json: &serde_json::Value, text: &str) -> Result<(), OutputError> {
    match form {
        Form::Json => say(&json_line(&json.to_string())),
        Form::Text => say(text),
    }
}

/// A word to the person at the terminal, on standard error. If nobody listens, nothing is lost.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Control characters, and those that turn the direction of text, are shown as what they are.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(c),
            c if turns_text(c) => {
                let _ = write!(safe, "{}", c.escape_unicode());
            }
            c if c.is_control() => {
                let _ = write!(safe, "{}", c.escape_default());
            }
            c => safe.push(c),
        }
    }
    safe
}

fn turns_text(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

/// For a place in a line: no line breaks either, and not longer than `chars_max`.
pub fn escaped_word(text: &str, chars_max: usize) -> String {
    let safe = escaped(text).replace(['\n', '\t'], " ");
    match safe.char_indices().nth(chars_max) {
        None => safe,
        Some((cut, _)) => format!("{}...", &safe[..cut]),
    }
}

/// JSON on one line, with nothing in it that steers a terminal and otherwise as it came.
pub fn json_line(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // Inside strings these are escaped already, so here they only part one token from the next.
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() || turns_text(c) => {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line
}

/// Columns, each as wide as its widest cell; the cells are escaped already.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let width_of = |column: usize| {
        let cells = std::iter::once(&head).chain(rows).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width_of).collect();
    // The last cell is not padded, for there is nothing that it would keep in line.
    let line = |row: &Vec<String>, show: fn(&str, usize) -> String| {
        let used = row.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
        let width_at = |column| if column + 1 == used { 0 } else { widths.get(column).copied().unwrap_or(0) };
        let cells = row[..used].iter().enumerate().map(|(column, cell)| show(cell, width_at(column)));
        cells.collect::<Vec<_>>().join("  ")
    };
    let title = |word: &str, width: usize| paint(Colour::Bold, &format!("{word:width$}"));
    std::iter::once(line(&head, title)).chain(rows.iter().map(|row| line(row, state))).collect::<Vec<_>>().join("\n")
}

/// A list for people; `none` is what they are told if it is empty.
pub fn rows(head: &[&str], rows: Vec<Vec<String>>, none: &str) -> Result<(), OutputError> {
    if rows.is_empty() {
        tell(&format!("({none})"));
        return Ok(());
    }
    say(&table(head, &rows))
}

/// A list for machines, an object on each line.
pub fn raw_rows(rows: &[Box<serde_json::value::RawValue>]) -> Result<(), OutputError> {
    rows.iter().try_for_each(|row| say(&json_line(row.get())))
}

pub fn tell_of_more(more: bool) {
    if more {
        tell("(there are more; --limit shows them)");
    }
}

/// A body as a person wants to see it: JSON indented, everything else as it is, neither without end.
pub fn body(bytes: &[u8]) -> String {
    let Ok(text) = str::from_utf8(bytes) else {
        return format!("({} bytes that are not text)", bytes.len());
    };
    let is_json = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
    let shown = if is_json { indented(text) } else { text.to_owned() };
    let cut = shown.char_indices().nth(BODY_CHARS_MAX).map_or(shown.len(), |(at, _)| at);
    let mut safe = escaped(&shown[..cut]);
    if cut < shown.len() {
        let _ = write!(safe, "\n({} bytes in all)", bytes.len());
    }
    safe
}

/// Indents valid JSON and leaves every name, number and their order as they came, which parsing would not.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth: usize = 0;
    let mut in_string = false;
    let mut after_backslash = false;
    let mut characters = json.chars().peekable();
    while let Some(c) = characters.next() {
        if out.len() > BODY_CHARS_MAX * 8 {
            break;
        }
        if in_string {
            out.push(c);
            in_string = c != '"' || after_backslash;
            after_backslash = c == '\\' && !after_backslash;
            continue;
        }
        match c {
            '"' => {
                in_string = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while characters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                if let Some(end) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    break_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                break_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

fn break_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

const BODY_CHARS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_foreign_steers_the_terminal() {
        for (text, expected) in [
            ("plain \u{e9} \u{1f600}\ttab\nline", "plain \u{e9} \u{1f600}\ttab\nline"),
            ("\x1b[31mred", "\\u{1b}[31mred"),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("over\rwritten", "over\\rwritten"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
            ("\x7f", "\\u{7f}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
        assert_eq!(escaped_word("a\nb\x1b", 100), "a b\\u{1b}");
        assert_eq!(escaped_word("\u{e9}\u{e9}\u{e9}", 2), "\u{e9}\u{e9}...");
    }

    #[test]
    fn json_is_indented_and_otherwise_untouched() {
        for (bytes, expected) in [
            (
                &br#"{"b":1.50,"a":[1,{"x":"y, {z}"}],"e":{ },"f":[]}"#[..],
                "{\n  \"b\": 1.50,\n  \"a\": [\n    1,\n    {\n      \"x\": \"y, {z}\"\n    }\n  ],\n  \"e\": {},\n  \"f\": []\n}",
            ),
            (br#" "a\"b\\" "#, r#""a\"b\\""#),
            (b"not json {", "not json {"),
            (b"\xff\xfe", "(2 bytes that are not text)"),
            (b"", ""),
            (b"\x1b[2J", "\\u{1b}[2J"),
        ] {
            assert_eq!(body(bytes), expected);
        }
    }

    #[test]
    fn a_long_body_is_cut() {
        let shown = body(&vec![b'x'; 1 << 20]);
        assert!(shown.len() < 5000 && shown.ends_with("(1048576 bytes in all)"));
        let deep = [vec![b'['; 100], vec![b']'; 100]].concat();
        assert!(body(&deep).len() < 10_000);
    }

    #[test]
    fn json_stays_what_it_is_on_one_safe_line() {
        let json = "{\r\n\t\"n\": 1.50,\n \"text\": \"a\\nb \u{9b}31m \u{202e}\u{7f}\"}";
        let line = json_line(json);
        assert_eq!(line, "{   \"n\": 1.50,  \"text\": \"a\\nb \\u009b31m \\u202e\\u007f\"}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&line), read(json));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(
            table(&["id", "n"], &[row(["\u{e9}\u{e9}\u{e9}", "1"]), row(["a", ""])]),
            "id   n\n\u{e9}\u{e9}\u{e9}  1\na"
        );
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic_or_lets_an_escape_through(bytes: Vec<u8>, text in ".*") {
            for shown in [body(&bytes), body(text.as_bytes())] {
                prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            }
        }
    }
}
