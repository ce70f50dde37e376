//! Output that neither panics on a closed pipe nor lets foreign text steer the terminal.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

/// Standard output could not be written, which is not the same as any other broken pipe.
#[derive(Debug, thiserror::Error)]
#[error("could not write to standard output")]
pub struct OutputError(#[source] pub io::Error);

/// A result, on standard output.
pub fn say(line: &str) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(OutputError)
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
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => {
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

/// For a place in a line: no line breaks either, and not longer than `chars_max`.
pub fn escaped_word(text: &str, chars_max: usize) -> String {
    let safe = escaped(text).replace(['\n', '\t'], " ");
    match safe.char_indices().nth(chars_max) {
        None => safe,
        Some((cut, _)) => format!("{}...", &safe[..cut]),
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

    proptest! {
        #[test]
        fn no_body_makes_it_panic_or_lets_an_escape_through(bytes: Vec<u8>, text in ".*") {
            for shown in [body(&bytes), body(text.as_bytes())] {
                prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            }
        }
    }
}
