//! `Retry-After`: never negative, never over the cap, and nothing made of what cannot be understood.

use super::draws::Draws;
use postrider_engine::policy::{
    backoff::Spread,
    retry_after::{RetryAfterMode, RetryAfterRule, parse},
};
use std::time::Duration;

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let now = draws.timestamp();
    let rule = RetryAfterRule {
        mode: draws.one_of(&[RetryAfterMode::Longest, RetryAfterMode::Override]),
        cap: draws.duration(),
    };
    let own = Spread { certain: draws.duration(), drawn: draws.duration() };
    let values: Vec<&[u8]> = draws.rest().split(|byte| *byte == b'\n').collect();

    let asked = parse(values.iter().copied(), now);
    assert_eq!(asked, values.iter().filter_map(|value| parse([*value], now)).max(), "the longest of all wishes");
    for value in &values {
        let understood = parse([*value], now);
        if !value.iter().any(u8::is_ascii_digit) || !value.is_ascii() || value.len() > 4_096 {
            assert_eq!(understood, None, "{value:?}");
        }
        if let Some(number) = seconds(value) {
            assert_eq!(understood, Some(Duration::from_secs(number)), "{value:?}");
        }
        if value.iter().any(|byte| matches!(byte, b'-' | b'+' | b'.'))
            && !value.contains(&b' ')
            && !value.contains(&b',')
        {
            assert!(understood.is_none() || value.iter().any(u8::is_ascii_alphabetic), "{value:?}");
        }
    }

    let wish = rule.wish(values.iter().copied(), now);
    assert_eq!(wish.map(|wish| wish.wait), asked.map(|asked| asked.min(rule.cap)));
    assert_eq!(wish.is_some_and(|wish| wish.capped), asked.is_some_and(|asked| asked > rule.cap));
    let waited = rule.reconcile(own, wish);
    match (rule.mode, wish) {
        (_, None) => assert_eq!(waited, own),
        (RetryAfterMode::Longest, Some(wish)) => {
            assert!(waited.certain >= own.certain && waited.certain >= wish.wait && waited.drawn == own.drawn);
        }
        (RetryAfterMode::Override, Some(wish)) if wish.wait.is_zero() => assert_eq!(waited, own),
        (RetryAfterMode::Override, Some(wish)) => assert_eq!(waited.total(), wish.wait),
    }
    assert!(now.plus(waited.total()) >= now);
}

/// A plain number that fits.
fn seconds(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
