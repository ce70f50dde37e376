//! What a message may say, whichever way it comes in.

use memchr::memchr;
use std::time::Duration;

pub fn is_channel(text: &str) -> bool {
    (1..=WORD_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'+'))
}

pub fn is_tag(text: &str) -> bool {
    (1..=WORD_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || br"-_./\#".contains(&byte))
}

pub fn is_ordering_key(text: &str) -> bool {
    !text.is_empty() && is_text(text, 256)
}

pub fn is_text(text: &str, length_max: usize) -> bool {
    !text.contains('\0') && (text.len() <= length_max || text.chars().count() <= length_max)
}

pub fn is_content_type(text: &str) -> bool {
    let kind = text.split(';').next().unwrap_or_default().trim_end();
    let parts: Vec<&str> = kind.split('/').collect();
    let visible = text.len() <= CONTENT_TYPE_MAX && text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    visible && matches!(parts[..], [first, second] if is_token(first) && is_token(second))
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Says what is wrong with a payload that is to be a JSON object. `text` must have been parsed before.
pub fn check_object(text: &str) -> Result<(), &'static str> {
    if !text.starts_with('{') {
        return Err("must be a JSON object");
    }
    if has_lone_surrogate(text.as_bytes()) {
        return Err("has a string with half of a surrogate pair");
    }
    Ok(())
}

/// Whether a string in there has half of a surrogate pair, which is no character. `json` must have been
/// parsed before: what serde_json keeps raw, it does not look at so closely.
fn has_lone_surrogate(json: &[u8]) -> bool {
    let mut rest = json;
    // A backslash stands in strings only, so there is no need to know where they begin and end.
    while let Some(escape) = memchr(b'\\', rest).map(|at| &rest[at..]) {
        let length = match code_unit(escape) {
            None => 2,
            Some(0xD800..=0xDBFF) => match escape.get(6..).and_then(code_unit) {
                Some(0xDC00..=0xDFFF) => 12,
                _ => return true,
            },
            Some(0xDC00..=0xDFFF) => return true,
            Some(_) => 6,
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    false
}

/// The unit that an escape like `\u00e9` stands for, if `text` begins with one.
fn code_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(br"\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Where JSON is nested too deep. `serde_json` has a limit too, but not for values that it only skips.
pub fn too_deep(body: &[u8]) -> Option<usize> {
    // `[` and `{` differ in one bit. Where there are few of them, they cannot be nested deep, and
    // counting bytes is many times faster than following strings and escapes.
    if count_brackets(body) <= DEPTH_MAX {
        return None;
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, byte) in body.iter().enumerate() {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (true, b'"') => in_string = false,
            (true, _) => {}
            (false, b'"') => in_string = true,
            (false, b'[' | b'{') => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Some(at);
                }
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            (false, _) => {}
        }
    }
    None
}

/// By pieces whose count fits into a byte, of which a processor adds many at a time.
fn count_brackets(body: &[u8]) -> usize {
    let count = |piece: &[u8]| piece.iter().map(|byte| u8::from(*byte | 0x20 == b'{')).sum::<u8>();
    body.chunks(usize::from(u8::MAX)).map(|piece| usize::from(count(piece))).sum()
}

/// What our own structures and any sensible payload need; a stored payload must be shown again later.
pub const DEPTH_MAX: usize = 64;

pub const CHANNELS_MAX: usize = 10;
pub const TAGS_MAX: usize = 5;
/// Bytes of a channel or a tag.
const WORD_MAX: usize = 128;
const CONTENT_TYPE_MAX: usize = 256;

/// How far ahead a message may be handed in.
pub const DELIVER_AHEAD_MAX: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_a_surrogate_pair_is_no_character() {
        for (json, lone) in [
            (r#"["\ud83d\ude00"]"#, false),
            (r#"["\uD83D\uDE00 and \u00e9"]"#, false),
            (r#"["\u0000\n"]"#, false),
            (r#"["\\ud800"]"#, false),
            (r#"["\ud800"]"#, true),
            (r#"["\ud800\n"]"#, true),
            (r#"["\ud800\u0041"]"#, true),
            (r#"["\ude00"]"#, true),
            (r#"{"\ud800":1}"#, true),
        ] {
            assert_eq!(has_lone_surrogate(json.as_bytes()), lone, "{json}");
        }
    }

    proptest! {
        #[test]
        fn a_string_is_judged_as_serde_json_would(units: Vec<u16>, text in ".*") {
            let escaped: String = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
            let text = serde_json::to_string(&text).expect("strings can be written");
            let json = format!("{}{escaped}\"", &text[..text.len() - 1]);
            prop_assert_eq!(has_lone_surrogate(json.as_bytes()), serde_json::from_str::<String>(&json).is_err());
        }

        #[test]
        fn no_bytes_make_it_stumble(bytes: Vec<u8>) {
            has_lone_surrogate(&bytes);
        }
    }
}
