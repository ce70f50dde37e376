//! What a test receiver does with each request: rules, of which the first that fits decides.
//!
//! Time and chance are handed in, so that a script can be played without a clock and without luck.

mod form;

use super::receiver::{Answer, Arrival, Reply};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use postrider_engine::Timestamp;
use rand::Rng;
use std::time::{Duration, SystemTime};

/// The rules, and how often each has fitted and decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    rules: Vec<(Rule, Counts)>,
    /// For the draws, so that they can be repeated.
    pub seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    fitted: u64,
    decided: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub when: When,
    pub then: Act,
}

/// Which requests a rule is for: those that meet all of it.
#[derive(Clone, Debug, PartialEq)]
pub struct When {
    /// The path, or how it begins if there is a `*` at the end.
    pub path: Option<String>,
    pub header: Option<(HeaderName, Option<String>)>,
    /// Since the receiver was started.
    pub from: Duration,
    pub until: Option<Duration>,
    /// So many requests that meet the rest are let pass first.
    pub skip: u64,
    /// It decides about so many, and no more.
    pub count: Option<u64>,
    /// By chance, of all that it could decide about; 1: all of them.
    pub share: f64,
}

impl Default for When {
    fn default() -> Self {
        Self { path: None, header: None, from: Duration::ZERO, until: None, skip: 0, count: None, share: 1.0 }
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Answer {
        status: StatusCode,
        delay: Duration,
        retry_after: Option<RetryAfter>,
        body: Bytes,
    },
    /// Takes the request and says nothing, until the sender gives up.
    Hang,
    /// Breaks the connection off.
    Reset {
        delay: Duration,
    },
    /// Begins an answer, and adds a byte to it now and then, without end.
    Drip {
        status: StatusCode,
        delay: Duration,
        every: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    pub wait: Duration,
    pub form: RetryAfterForm,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryAfterForm {
    #[default]
    Seconds,
    Date,
}

impl Act {
    pub fn status(status: StatusCode) -> Self {
        Self::Answer { status, delay: Duration::ZERO, retry_after: None, body: Bytes::new() }
    }

    pub fn reply(&self, at: Timestamp) -> Reply {
        match self {
            Self::Answer { status, delay, retry_after, body } => {
                let mut headers = HeaderMap::new();
                if let Some(retry_after) = retry_after {
                    headers.insert(header::RETRY_AFTER, retry_after.value(at));
                }
                Reply { delay: *delay, answer: Answer::Whole { status: *status, headers, body: body.clone() } }
            }
            Self::Hang => Reply { delay: Duration::ZERO, answer: Answer::None },
            Self::Reset { delay } => Reply { delay: *delay, answer: Answer::Reset },
            Self::Drip { status, delay, every } => {
                Reply { delay: *delay, answer: Answer::Drip { status: *status, every: *every } }
            }
        }
    }
}

impl RetryAfter {
    /// Rounded up to whole seconds, which are all that either form can say: whoever keeps to it is not too early.
    fn value(self, at: Timestamp) -> HeaderValue {
        match self.form {
            RetryAfterForm::Seconds => HeaderValue::from(self.wait.as_millis().div_ceil(1000) as u64),
            RetryAfterForm::Date => {
                let seconds = u64::try_from(at.plus(self.wait).as_millis()).unwrap_or(0).div_ceil(1000);
                let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
                HeaderValue::try_from(date).expect("a date is plain text")
            }
        }
    }
}

impl When {
    fn fits(&self, arrival: &Arrival, since_start: Duration) -> bool {
        let path = self.path.as_deref().is_none_or(|wanted| match wanted.strip_suffix('*') {
            Some(beginning) => arrival.path.starts_with(beginning),
            None => arrival.path == wanted,
        });
        let header = self.header.as_ref().is_none_or(|(name, value)| {
            let mut given = arrival.headers.get_all(name).iter();
            given.any(|given| value.as_ref().is_none_or(|value| given.as_bytes() == value.as_bytes()))
        });
        path && header && self.from <= since_start && self.until.is_none_or(|until| since_start < until)
    }
}

impl Script {
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules: rules.into_iter().map(|rule| (rule, Counts::default())).collect(), seed: None }
    }

    /// What becomes of a request. Without a rule for it: 204.
    pub fn choose(&mut self, arrival: &Arrival, since_start: Duration, chance: &mut impl Rng) -> Act {
        for (Rule { when, then }, counts) in &mut self.rules {
            if when.count.is_some_and(|count| counts.decided >= count) || !when.fits(arrival, since_start) {
                continue;
            }
            counts.fitted += 1;
            if counts.fitted > when.skip && (when.share >= 1.0 || draw(chance) < when.share) {
                counts.decided += 1;
                return then.clone();
            }
        }
        Act::status(StatusCode::NO_CONTENT)
    }
}

/// From 0 up to 1, without that.
fn draw(chance: &mut impl Rng) -> f64 {
    f64::from(chance.next_u32()) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::receiver::Signature;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn arrival(path: &str, header: Option<(&'static str, &'static str)>) -> Arrival {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Arrival {
            at: Timestamp::from_millis(1_700_000_000_001),
            path: path.to_owned(),
            headers,
            id: None,
            attempt: None,
            signature: Signature::Unverified,
            body: Bytes::new(),
        }
    }

    fn fail(when: When) -> Rule {
        Rule { when, then: Act::status(StatusCode::SERVICE_UNAVAILABLE) }
    }

    /// Which of the requests, one each second to `/a`, fail.
    fn failing(rules: Vec<Rule>, requests: u64) -> Vec<u64> {
        let (mut script, mut rng) = (Script::new(rules), ChaCha8Rng::seed_from_u64(1));
        (0..requests)
            .filter(|second| {
                let act = script.choose(&arrival("/a", None), Duration::from_secs(*second), &mut rng);
                act != Act::status(StatusCode::NO_CONTENT)
            })
            .collect()
    }

    #[test]
    fn a_rule_is_for_the_requests_that_meet_all_of_it() {
        let span = |from, until| When {
            from: Duration::from_secs(from),
            until: Some(Duration::from_secs(until)),
            ..When::default()
        };
        for (name, when, expected) in [
            ("all", When::default(), vec![0, 1, 2, 3, 4, 5]),
            ("by count", When { count: Some(2), ..When::default() }, vec![0, 1]),
            ("after some", When { skip: 1, count: Some(2), ..When::default() }, vec![1, 2]),
            ("by time", span(2, 4), vec![2, 3]),
            ("both", When { skip: 1, ..span(2, 5) }, vec![3, 4]),
            ("by path", When { path: Some("/a".to_owned()), ..When::default() }, vec![0, 1, 2, 3, 4, 5]),
            ("by its beginning", When { path: Some("/*".to_owned()), count: Some(1), ..When::default() }, vec![0]),
            ("another path", When { path: Some("/b".to_owned()), ..When::default() }, vec![]),
            ("none", When { count: Some(0), ..When::default() }, vec![]),
        ] {
            assert_eq!(failing(vec![fail(when)], 6), expected, "{name}");
        }
    }

    #[test]
    fn a_share_is_met_over_many_requests_and_repeats_with_its_seed() {
        let rule = || fail(When { share: 0.3, ..When::default() });
        let failed = failing(vec![rule()], 10_000);
        assert!((2_800..3_200).contains(&failed.len()), "{}", failed.len());
        assert_eq!(failed, failing(vec![rule()], 10_000));
        assert!(failing(vec![fail(When { share: 0.0, ..When::default() })], 1_000).is_empty());
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let gone = Rule { when: When { count: Some(1), ..When::default() }, then: Act::status(StatusCode::GONE) };
        let mut script = Script::new(vec![gone, Rule { when: When::default(), then: Act::Hang }]);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut next = || script.choose(&arrival("/", None), Duration::ZERO, &mut rng);
        assert_eq!([next(), next(), next()], [Act::status(StatusCode::GONE), Act::Hang, Act::Hang]);
    }

    #[test]
    fn a_header_can_be_there_or_say_something() {
        let name = HeaderName::from_static("x-kind");
        for (value, given, fits) in [
            (None, None, false),
            (None, Some(("x-kind", "slow")), true),
            (Some("slow"), Some(("x-kind", "slow")), true),
            (Some("slow"), Some(("x-kind", "fast")), false),
        ] {
            let when = When { header: Some((name.clone(), value.map(str::to_owned))), ..When::default() };
            assert_eq!(when.fits(&arrival("/", given), Duration::ZERO), fits, "{value:?} {given:?}");
        }
    }

    #[test]
    fn retry_after_is_told_in_both_forms_and_never_too_short() {
        let at = Timestamp::from_millis(784_111_775_001); // 1994-11-06T08:49:35.001Z
        let told = |millis, form| {
            let value = RetryAfter { wait: Duration::from_millis(millis), form }.value(at);
            value.to_str().expect("text").to_owned()
        };
        assert_eq!(told(5_000, RetryAfterForm::Seconds), "5");
        assert_eq!(told(1_001, RetryAfterForm::Seconds), "2");
        assert_eq!(told(1_000, RetryAfterForm::Date), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(told(999, RetryAfterForm::Date), "Sun, 06 Nov 1994 08:49:36 GMT");
    }
}
