//! Reads `Retry-After`: what the receiver wishes, if it can be understood.
//!
//! The grammar is strict on purpose. `1e3` or `+5` may be a typo for anything; our own back-off is always
//! a sane answer to something we cannot read.

use super::backoff::Spread;
use crate::{
    planted::{Bug, planted},
    time::Timestamp,
};
use std::time::{Duration, SystemTime};

/// What is made of a receiver's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfterRule {
    pub mode: RetryAfterMode,
    /// No wish is followed further than this.
    pub cap: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterMode {
    /// The later of the wish and our own back-off.
    Longest,
    /// The wish in place of our own back-off, also where it is shorter.
    Override,
}

/// A wish that could be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// As far as it is followed.
    pub wait: Duration,
    /// It asked for more than that.
    pub capped: bool,
}

impl RetryAfterRule {
    pub fn wish<'a>(&self, values: impl IntoIterator<Item = &'a [u8]>, now: Timestamp) -> Option<Wish> {
        let asked = parse(values, now)?;
        Some(Wish { wait: asked.min(self.cap), capped: asked > self.cap })
    }

    /// What is waited: our own back-off, the receiver's wish, or both.
    pub fn reconcile(&self, own: Spread, wish: Option<Wish>) -> Spread {
        match (wish.filter(|_| !planted(Bug::RetryAfterIgnored)), self.mode) {
            (Some(wish), _) if planted(Bug::JitterBelowRetryAfter) => {
                Spread { certain: own.certain.max(wish.wait.saturating_sub(own.drawn)), drawn: Duration::ZERO }
            }
            (None, RetryAfterMode::Longest | RetryAfterMode::Override) => own,
            // Chance is added on top of the wish, so that it never comes out early.
            (Some(wish), RetryAfterMode::Longest) => Spread { certain: own.certain.max(wish.wait), drawn: own.drawn },
            // "At once" is not a time to come back at: many receivers send 0 for want of anything better.
            (Some(wish), RetryAfterMode::Override) if wish.wait.is_zero() => own,
            (Some(wish), RetryAfterMode::Override) => Spread { certain: wish.wait, drawn: Duration::ZERO },
        }
    }
}

/// Values beyond this length are not read at all. The longest sensible one is a date of 29 characters.
const LENGTH_MAX: usize = 4_096;

/// The longest wait that any of the header's values asks for. `None` if there is no valid wish.
pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>, now: Timestamp) -> Option<Duration> {
    values.into_iter().filter_map(|value| parse_value(value, now)).max()
}

fn parse_value(value: &[u8], now: Timestamp) -> Option<Duration> {
    if value.len() > LENGTH_MAX {
        return None;
    }
    let text = std::str::from_utf8(value).ok().filter(|text| text.is_ascii())?.trim();
    // A date holds a comma of its own, so it is tried before the value is taken for a list.
    parse_date(text, now).or_else(|| text.split(',').filter_map(|part| parse_seconds(part.trim())).max())
}

fn parse_seconds(text: &str) -> Option<Duration> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds = text.bytes().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    Some(Duration::from_secs(seconds))
}

fn parse_date(text: &str, now: Timestamp) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let wait = Timestamp::from_millis(0).plus(since_epoch).since(now);
    (!wait.is_zero()).then_some(wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_445_412_420_000); // Wed, 21 Oct 2015 07:27:00 GMT

    fn read(value: &str) -> Option<Duration> {
        parse([value.as_bytes()], NOW)
    }

    #[test]
    fn digits_are_seconds_and_nothing_else_is() {
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(read("0"), Some(Duration::ZERO));
        for nonsense in ["120.5", "1e3", "0x10", "1_000", "+5", "-5", "NaN", "inf", "", " ", "\u{0661}", "12 0"] {
            assert_eq!(read(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_number_beyond_all_bounds_saturates() {
        assert_eq!(read("99999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(read(&"9".repeat(1_000)), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(read(&"9".repeat(8_192)), None, "too long to be read");
    }

    #[test]
    fn all_three_date_forms_are_understood() {
        for date in ["Wed, 21 Oct 2015 07:28:00 GMT", "Wednesday, 21-Oct-15 07:28:00 GMT", "Wed Oct 21 07:28:00 2015"] {
            assert_eq!(read(date), Some(Duration::from_secs(60)), "{date}");
        }
    }

    #[test]
    fn past_dates_and_foreign_zones_are_ignored() {
        for date in [
            "Wed, 21 Oct 2015 07:26:00 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Fri, 31 Dec 10000 23:59:59 GMT",
            "Wed, 21 Oct 2015 07:28:00 +0200",
        ] {
            assert_eq!(read(date), None, "{date}");
        }
        assert!(read("Fri, 31 Dec 9999 23:59:59 GMT").is_some());
    }

    #[test]
    fn of_several_wishes_the_longest_counts() {
        assert_eq!(read("120, 240"), Some(Duration::from_secs(240)));
        assert_eq!(read("120, soon"), Some(Duration::from_secs(120)));
        assert_eq!(parse([&b"5"[..], b"7", b"x"], NOW), Some(Duration::from_secs(7)));
        assert_eq!(parse([], NOW), None);
    }

    /// Every row of the table in the reliability catalogue (4.2), as the wait that comes of it where our own would be
    /// between 10 and 15 seconds.
    #[test]
    fn what_is_waited_for_each_value() {
        let own = Spread { certain: Duration::from_secs(10), drawn: Duration::from_secs(5) };
        let cap = Duration::from_hours(24);
        let day = 86_400;
        let long_number = "9".repeat(100);
        let too_long = "9".repeat(8_192);
        // The value, what is waited with the longest of both, what is waited with the wish alone, and whether it was cut.
        let table: &[(&str, u64, u64, bool)] = &[
            ("120", 125, 120, false),
            (" 120 ", 125, 120, false),
            ("7", 15, 7, false),
            ("0", 15, 15, false),
            ("120.5", 15, 15, false),
            ("1e3", 15, 15, false),
            ("0x10", 15, 15, false),
            ("1_000", 15, 15, false),
            ("+5", 15, 15, false),
            ("-5", 15, 15, false),
            ("NaN", 15, 15, false),
            ("inf", 15, 15, false),
            ("", 15, 15, false),
            ("86400", day + 5, day, false),
            ("86401", day + 5, day, true),
            ("99999999999999999999", day + 5, day, true),
            (&long_number, day + 5, day, true),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 65, 60, false),
            ("Wednesday, 21-Oct-15 07:28:00 GMT", 65, 60, false),
            ("Wed Oct 21 07:28:00 2015", 65, 60, false),
            ("Wed, 21 Oct 2015 07:26:00 GMT", 15, 15, false),
            ("Wed, 31 Dec 1969 23:59:59 GMT", 15, 15, false),
            ("Fri, 31 Dec 9999 23:59:59 GMT", day + 5, day, true),
            ("Fri, 31 Dec 10000 23:59:59 GMT", 15, 15, false),
            ("Wed, 21 Oct 2015 07:28:00 +0200", 15, 15, false),
            ("120, 240", 245, 240, false),
            ("120, soon", 125, 120, false),
            ("\u{661}\u{662}", 15, 15, false),
            (&too_long, 15, 15, false),
        ];
        for (value, longest, alone, capped) in table {
            for (mode, expected) in [(RetryAfterMode::Longest, longest), (RetryAfterMode::Override, alone)] {
                let rule = RetryAfterRule { mode, cap };
                let wish = rule.wish([value.as_bytes()], NOW);
                let waited = rule.reconcile(own, wish).total();
                assert_eq!(waited, Duration::from_secs(*expected), "{mode:?} of {value:.40?}");
                assert_eq!(wish.is_some_and(|wish| wish.capped), *capped, "{value:.40?}");
            }
        }
        let two_headers = RetryAfterRule { mode: RetryAfterMode::Longest, cap }.wish([&b"120"[..], b"240"], NOW);
        assert_eq!(two_headers, Some(Wish { wait: Duration::from_secs(240), capped: false }));
    }

    proptest! {
        #[test]
        fn neither_the_wish_nor_our_own_wait_is_undercut(wish: u64, cap: u64, certain: u64, drawn: u64) {
            let rule = RetryAfterRule { mode: RetryAfterMode::Longest, cap: Duration::from_secs(cap) };
            let own = Spread { certain: Duration::from_millis(certain), drawn: Duration::from_millis(drawn) };
            let understood = rule.wish([wish.to_string().as_bytes()], NOW);
            let waited = rule.reconcile(own, understood).total();
            prop_assert!(waited >= Duration::from_secs(wish.min(cap)));
            prop_assert!(waited >= own.total());
        }

        #[test]
        fn no_value_makes_it_panic(value: Vec<u8>, now: i64) {
            parse([value.as_slice()], Timestamp::from_millis(now));
        }
    }
}
