//! What is wrong with settings, in words that a person can act on.
//!
//! What one level says is checked by itself, so that a mistake is refused where it is made; what only comes about when
//! levels meet (a base that is over another level's cap) is checked in the rules that come of them.

use super::{
    backoff::{Factor, Jitter, Shape},
    rules::{BreakerLayer, Layer, Rules, SignatureForm, Switch},
    words::Spelt,
};
use std::{fmt, ops::RangeInclusive, time::Duration};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Such as `schedule.base`.
    pub field: &'static str,
    pub words: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.words)
    }
}

impl Layer {
    /// What is out of range in what this level says.
    pub fn check(&self) -> Vec<Flaw> {
        let mut flaws = Flaws::default();
        match &self.shape {
            Some(Shape::Exponential { base, factor }) => {
                flaws.time("schedule.base", Some(*base), DELAY);
                if !(Factor::MIN.0..=Factor::MAX.0).contains(&factor.0) {
                    flaws.add("schedule.factor", "must be from 1 to 100");
                }
            }
            Some(Shape::Fixed { interval }) => flaws.time("schedule.interval", Some(*interval), DELAY),
            Some(Shape::Table { delays, then: _ }) => {
                if delays.is_empty() {
                    flaws.add("schedule.delays", "must name at least one delay");
                }
                if delays.len() > TABLE_MAX {
                    flaws.add("schedule.delays", &format!("must not name more than {TABLE_MAX} delays"));
                }
                let longest = delays.iter().max().copied();
                flaws.time("schedule.delays", longest, Duration::ZERO..=DAYS_30);
            }
            None => {}
        }
        match self.jitter {
            Some(Jitter::Proportional { percent } | Jitter::Additive { percent }) => {
                flaws.count("schedule.jitter", Some(u64::from(percent)), 0..=100);
            }
            Some(Jitter::None | Jitter::Full | Jitter::Equal | Jitter::Decorrelated) | None => {}
        }
        flaws.time("schedule.cap", self.delay_cap, DELAY);
        flaws.count("budget.attempts", self.attempts_max.map(u64::from), ATTEMPTS);
        flaws.time("budget.total", self.total_max, DELAY);
        flaws.count("ambiguous.attempts", self.ambiguous_attempts_max.map(u64::from), ATTEMPTS);
        flaws.time("ambiguous.total", self.ambiguous_total_max, DELAY);
        flaws.time("hold", self.hold_max, MILLISECOND..=YEAR);
        flaws.time("retry_after.cap", self.retry_after_cap, Duration::ZERO..=DAYS_30);
        flaws.time("timeouts.connect", self.connect, TIMEOUT);
        flaws.time("timeouts.first_byte", self.first_byte, TIMEOUT);
        flaws.time("timeouts.total", self.total, TIMEOUT);
        flaws.count("redirects", self.redirects_max.map(u64::from), 0..=5);
        if let Some(BreakerLayer::On { failures, cool_down, cool_down_max, while_open: _ }) = &self.breaker {
            flaws.count("breaker.failures", failures.map(u64::from), 1..=10_000);
            flaws.time("breaker.cool_down", *cool_down, DELAY);
            flaws.time("breaker.cool_down_max", *cool_down_max, DELAY);
        }
        flaws.time("disable.after", self.disable_after.and_then(Switch::on), Duration::from_secs(1)..=YEAR);
        flaws.count("disable.streak", self.disable_streak.and_then(Switch::on).map(u64::from), 1..=1_000_000);
        let in_flight = self.in_flight_max.map(|max| u64::try_from(max.0).unwrap_or(u64::MAX));
        flaws.count("in_flight", in_flight, 1..=1_000);
        for (subject, treatment) in self.overrides.iter().filter(|(subject, treatment)| !subject.may_be(**treatment)) {
            flaws.add("overrides", &format!("{subject} cannot be {treatment}: there may have been no answer at all"));
        }
        flaws.signatures(self.signature.as_deref().unwrap_or_default());
        flaws.0
    }
}

impl Rules {
    /// What is out of range, and what contradicts itself.
    pub fn check(&self) -> Vec<Flaw> {
        let mut flaws = Flaws(self.spelt_out().check());
        for layer in &self.policy.overrides.0 {
            flaws.0.extend(Layer { overrides: layer.clone(), ..Layer::default() }.check());
        }
        let backoff = &self.policy.backoff;
        match &backoff.shape {
            Shape::Exponential { base, factor: _ } => {
                flaws.at_most("schedule.base", *base, "the cap", backoff.cap);
            }
            Shape::Fixed { interval } => flaws.at_most("schedule.interval", *interval, "the cap", backoff.cap),
            // A delay of a table that is over the cap is merely shortened; the preview says so.
            Shape::Table { .. } => {}
        }
        let timeouts = self.timeouts;
        flaws.at_most("timeouts.connect", timeouts.connect, "the timeout of the whole attempt", timeouts.total);
        flaws.at_most("timeouts.first_byte", timeouts.first_byte, "the timeout of the whole attempt", timeouts.total);
        if let Some(breaker) = self.breaker {
            flaws.at_most("breaker.cool_down", breaker.cool_down, "the longest cool-down", breaker.cool_down_max);
        }
        flaws.0
    }
}

#[derive(Default)]
struct Flaws(Vec<Flaw>);

impl Flaws {
    fn add(&mut self, field: &'static str, words: &str) {
        self.0.push(Flaw { field, words: words.to_owned() });
    }

    fn time(&mut self, field: &'static str, given: Option<Duration>, allowed: RangeInclusive<Duration>) {
        if let Some(given) = given.filter(|given| !allowed.contains(given)) {
            let (least, most) = (Spelt(*allowed.start()), Spelt(*allowed.end()));
            self.add(field, &format!("must be from {least} to {most}, and is {}", Spelt(given)));
        }
    }

    fn count(&mut self, field: &'static str, given: Option<u64>, allowed: RangeInclusive<u64>) {
        if let Some(given) = given.filter(|given| !allowed.contains(given)) {
            self.add(field, &format!("must be from {} to {}, and is {given}", allowed.start(), allowed.end()));
        }
    }

    fn at_most(&mut self, field: &'static str, given: Duration, name: &str, most: Duration) {
        if given > most {
            self.add(field, &format!("is {}, which is longer than {name} ({})", Spelt(given), Spelt(most)));
        }
    }

    fn signatures(&mut self, forms: &[SignatureForm]) {
        if forms.len() > SIGNATURES_MAX {
            self.add("signature", &format!("has {} forms; at most {SIGNATURES_MAX} are made at once", forms.len()));
        }
        let mut taken: Vec<&str> = Vec::new();
        for SignatureForm { header, .. } in forms {
            self.header("signature.header", header);
            if taken.iter().any(|other| other.eq_ignore_ascii_case(header)) {
                self.add("signature.header", "must not be the header of another signature");
            }
            taken.push(header);
        }
        for id_header in forms.iter().filter_map(|form| form.id_header.as_deref()) {
            self.header("signature.id_header", id_header);
            if taken.iter().any(|header| header.eq_ignore_ascii_case(id_header)) {
                self.add("signature.id_header", "must not be the header that carries the signature");
            }
        }
    }

    fn header(&mut self, field: &'static str, name: &str) {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || name.len() > 256 || !name.bytes().all(is_token) {
            self.add(field, "is not the name of a header");
        }
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const DAYS_30: Duration = Duration::from_hours(30 * 24);
const YEAR: Duration = Duration::from_hours(365 * 24);
const DELAY: RangeInclusive<Duration> = MILLISECOND..=DAYS_30;
const TIMEOUT: RangeInclusive<Duration> = MILLISECOND..=Duration::from_mins(1);
const ATTEMPTS: RangeInclusive<u64> = 1..=1_000;
const TABLE_MAX: usize = 1_000;
const SIGNATURES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::{
        super::{
            backoff::AfterTable,
            overrides::{Subject, Treatment},
            presets,
            rules::{InFlightMax, SignatureStyle},
        },
        *,
    };
    use std::collections::BTreeMap;

    const SECOND: Duration = Duration::from_secs(1);

    fn breaker(failures: u32, cool_down: Duration, cool_down_max: Duration) -> Option<BreakerLayer> {
        Some(BreakerLayer::On {
            failures: Some(failures),
            cool_down: Some(cool_down),
            cool_down_max: Some(cool_down_max),
            while_open: None,
        })
    }

    fn exponential(base: Duration, factor: u32) -> Option<Shape> {
        Some(Shape::Exponential { base, factor: Factor(factor) })
    }

    #[test]
    fn the_default_and_every_preset_are_without_flaw() {
        assert_eq!(Rules::default().check(), []);
        for preset in presets::all() {
            assert_eq!(preset.layer.check(), [], "{}", preset.name);
            assert_eq!(Rules::resolve([&preset.layer]).check(), [], "{}", preset.name);
        }
    }

    #[test]
    fn each_field_has_its_range() {
        let silent = Layer::default;
        let one_day_over = DAYS_30 + MILLISECOND;
        let table = |delays| Some(Shape::Table { delays, then: AfterTable::Repeat });
        let said = |subject, treatment| BTreeMap::from([(subject, treatment)]);
        let signed = |header: &str| {
            Some(vec![SignatureForm {
                style: SignatureStyle::Stripe,
                header: header.into(),
                id_header: Some("x-id".into()),
            }])
        };
        for (field, layer) in [
            ("schedule.base", Layer { shape: exponential(Duration::ZERO, 2_000), ..silent() }),
            ("schedule.base", Layer { shape: exponential(one_day_over, 2_000), delay_cap: Some(DAYS_30), ..silent() }),
            ("schedule.factor", Layer { shape: exponential(SECOND, 999), ..silent() }),
            ("schedule.factor", Layer { shape: exponential(SECOND, 100_001), ..silent() }),
            ("schedule.interval", Layer { shape: Some(Shape::Fixed { interval: Duration::ZERO }), ..silent() }),
            ("schedule.delays", Layer { shape: table(vec![]), ..silent() }),
            ("schedule.delays", Layer { shape: table(vec![SECOND, one_day_over]), ..silent() }),
            ("schedule.delays", Layer { shape: table(vec![SECOND; TABLE_MAX + 1]), ..silent() }),
            ("schedule.cap", Layer { delay_cap: Some(Duration::MAX), ..silent() }),
            ("schedule.jitter", Layer { jitter: Some(Jitter::Proportional { percent: 101 }), ..silent() }),
            ("schedule.jitter", Layer { jitter: Some(Jitter::Additive { percent: 255 }), ..silent() }),
            ("budget.attempts", Layer { attempts_max: Some(0), ..silent() }),
            ("budget.attempts", Layer { attempts_max: Some(1_001), ..silent() }),
            ("budget.total", Layer { total_max: Some(one_day_over), ..silent() }),
            ("budget.total", Layer { total_max: Some(Duration::ZERO), ..silent() }),
            ("ambiguous.attempts", Layer { ambiguous_attempts_max: Some(0), ..silent() }),
            ("ambiguous.total", Layer { ambiguous_total_max: Some(Duration::ZERO), ..silent() }),
            ("hold", Layer { hold_max: Some(Duration::MAX), ..silent() }),
            ("retry_after.cap", Layer { retry_after_cap: Some(one_day_over), ..silent() }),
            ("timeouts.connect", Layer { connect: Some(Duration::ZERO), ..silent() }),
            ("timeouts.first_byte", Layer { first_byte: Some(Duration::ZERO), ..silent() }),
            ("timeouts.total", Layer { total: Some(61 * SECOND), ..silent() }),
            ("redirects", Layer { redirects_max: Some(6), ..silent() }),
            ("breaker.failures", Layer { breaker: breaker(0, SECOND, SECOND), ..silent() }),
            ("breaker.failures", Layer { breaker: breaker(10_001, SECOND, SECOND), ..silent() }),
            ("breaker.cool_down", Layer { breaker: breaker(1, Duration::ZERO, SECOND), ..silent() }),
            ("breaker.cool_down_max", Layer { breaker: breaker(1, SECOND, one_day_over), ..silent() }),
            ("disable.after", Layer { disable_after: Some(Switch::On(Duration::ZERO)), ..silent() }),
            ("disable.streak", Layer { disable_streak: Some(Switch::On(0)), ..silent() }),
            ("in_flight", Layer { in_flight_max: Some(InFlightMax(0)), ..silent() }),
            ("in_flight", Layer { in_flight_max: Some(InFlightMax(1_001)), ..silent() }),
            ("overrides", Layer { overrides: said(Subject::Network, Treatment::Success), ..silent() }),
            ("signature.header", Layer { signature: signed("not a header"), ..silent() }),
            ("signature.header", Layer { signature: signed(""), ..silent() }),
        ] {
            let fields = |flaws: Vec<Flaw>| flaws.iter().map(|flaw| flaw.field).collect::<Vec<_>>();
            assert_eq!(fields(layer.check()), [field], "{layer:?}");
            assert!(fields(Rules::resolve([&layer]).check()).contains(&field), "{layer:?}");
        }
    }

    #[test]
    fn levels_that_are_fine_by_themselves_may_contradict_one_another() {
        let hour = Duration::from_hours(1);
        for (field, far, near) in [
            (
                "schedule.base",
                Layer { delay_cap: Some(SECOND), ..Layer::default() },
                Layer { shape: exponential(hour, 2_000), ..Layer::default() },
            ),
            (
                "schedule.interval",
                Layer { shape: Some(Shape::Fixed { interval: hour }), ..Layer::default() },
                Layer { delay_cap: Some(SECOND), ..Layer::default() },
            ),
            (
                "timeouts.connect",
                Layer { connect: Some(30 * SECOND), ..Layer::default() },
                Layer { total: Some(20 * SECOND), ..Layer::default() },
            ),
            (
                "timeouts.first_byte",
                Layer { first_byte: Some(30 * SECOND), ..Layer::default() },
                Layer { total: Some(20 * SECOND), ..Layer::default() },
            ),
            ("breaker.cool_down", Layer::default(), Layer { breaker: breaker(5, hour, SECOND), ..Layer::default() }),
        ] {
            assert_eq!((far.check(), near.check()), (vec![], vec![]));
            let flaws = Rules::resolve([&far, &near]).check();
            assert_eq!(flaws.iter().map(|flaw| flaw.field).collect::<Vec<_>>(), [field], "{flaws:?}");
        }
    }

    #[test]
    fn a_flaw_says_what_is_allowed_and_what_was_given() {
        let layer = Layer { total: Some(90 * SECOND), redirects_max: Some(9), ..Layer::default() };
        let words: Vec<String> = layer.check().iter().map(Flaw::to_string).collect();
        assert_eq!(
            words,
            [
                "timeouts.total: must be from 1 ms to 1 min, and is 1 min 30 s",
                "redirects: must be from 0 to 5, and is 9"
            ]
        );
    }
}
