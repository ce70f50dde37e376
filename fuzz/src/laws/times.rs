//! Times, durations and sizes as people write them: what is read is written so that it reads the same.

use postrider::{
    config::{parse_duration, parse_size, show_duration},
    http::time::Time,
};
use std::time::Duration;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(duration) = parse_duration(text) {
        assert!(duration <= Duration::from_hours(36_525 * 24), "{text}");
        assert!(text.trim().ends_with(['s', 'm', 'h', 'd']), "{text}");
        let shown = show_duration(duration);
        assert_eq!(parse_duration(&shown), Ok(duration), "{text} is shown as {shown}");
        assert!(duration.is_zero() || !shown.starts_with('0'), "{shown}");
    }
    if let Some(bytes) = parse_size(text) {
        assert!(text.bytes().any(|byte| byte.is_ascii_digit()) && !text.contains('-'), "{text}");
        assert_eq!(parse_size(&bytes.to_string()), Some(bytes), "{text}");
    }
    if let Ok(time) = text.parse::<Time>() {
        let shown = time.to_string();
        assert_eq!(shown.parse::<Time>(), Ok(time), "{text} is shown as {shown}");
        let quoted = serde_json::to_string(&time).expect("text");
        assert_eq!(serde_json::from_str::<Time>(&quoted).ok(), Some(time), "{quoted}");
        assert!(text.len() >= 20 && text.is_ascii(), "{text}");
    }
}
