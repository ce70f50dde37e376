//! How an endpoint is to be treated, in plain numbers: what the world writes down as JSON for the real code to read, and what
//! the checker computes with.

use crate::chance::Chance;
use std::fmt::Write;

/// All times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub ordering: Order,
    pub in_flight_max: usize,
    /// Requests per second.
    pub rate: Option<u32>,
    pub breaker: Option<BreakerPlan>,
    pub shape: Shape,
    pub cap: i64,
    pub jitter: Jitter,
    pub attempts_max: u32,
    pub give_up: i64,
    pub ambiguous_attempts: u32,
    pub ambiguous_give_up: i64,
    pub hold: i64,
    pub wish_replaces: bool,
    pub wish_cap: i64,
    pub failing_for: Option<i64>,
    pub streak: Option<u32>,
    pub timeout: i64,
    pub redirects: u8,
    pub not_found: Option<Treatment>,
    pub server_error: Option<Treatment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Free,
    Keyed,
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPlan {
    pub failures: u32,
    pub cool_down: i64,
    pub cool_down_max: i64,
    pub buries: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Exponential { base: i64, thousandths: i64 },
    Fixed(i64),
    Table { delays: Vec<i64>, ends: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    None,
    Full,
    Equal,
    Decorrelated,
    Proportional(i64),
    Additive(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    Success,
    Retry,
    Permanent,
}

impl Settings {
    pub fn draw(chance: &mut Chance, long: bool) -> Self {
        let far = if long { 20 } else { 1 };
        let shape = match chance.below(4) {
            0 | 1 => Shape::Exponential {
                base: chance.spread(200, 20_000 * far),
                thousandths: chance.pick(&[1_000, 1_500, 2_000, 2_000, 3_250, 10_000]),
            },
            2 => Shape::Fixed(chance.spread(500, 30_000 * far)),
            _ => Shape::Table {
                delays: (0..chance.between(1, 7)).map(|_| chance.spread(200, 60_000 * far)).collect(),
                ends: chance.percent(50),
            },
        };
        let jitter = match chance.below(6) {
            0 => Jitter::None,
            1 => Jitter::Full,
            2 => Jitter::Equal,
            3 => Jitter::Decorrelated,
            4 => Jitter::Proportional(chance.between(0, 100)),
            _ => Jitter::Additive(chance.between(0, 100)),
        };
        let treatment = |chance: &mut Chance| {
            chance.percent(15).then(|| chance.pick(&[Treatment::Retry, Treatment::Permanent, Treatment::Success]))
        };
        Self {
            ordering: chance.pick(&[Order::Free, Order::Free, Order::Keyed, Order::Keyed, Order::Fifo]),
            in_flight_max: chance.pick(&[1, 2, 3, 5, 10, 10, 10, 32, 100]),
            rate: chance.percent(35).then(|| chance.spread(2, 200) as u32),
            breaker: chance.percent(75).then(|| BreakerPlan {
                failures: chance.between(1, 20) as u32,
                cool_down: chance.spread(300, 20_000),
                cool_down_max: chance.spread(20_000, 120_000),
                buries: chance.percent(15),
            }),
            shape,
            cap: chance.spread(5_000, 300_000 * far),
            jitter,
            attempts_max: chance.between(1, 12) as u32,
            give_up: chance.spread(5_000, 1_200_000 * far),
            ambiguous_attempts: chance.between(1, 6) as u32,
            ambiguous_give_up: chance.spread(5_000, 600_000),
            hold: chance.spread(60_000, 3_600_000),
            wish_replaces: chance.percent(25),
            wish_cap: chance.spread(10_000, 1_200_000),
            failing_for: chance.percent(25).then(|| chance.spread(20_000, 600_000)),
            streak: chance.percent(35).then(|| chance.between(2, 40) as u32),
            timeout: chance.spread(500, 8_000),
            redirects: chance.pick(&[0, 0, 0, 1, 3]),
            not_found: treatment(chance),
            server_error: treatment(chance).filter(|treatment| *treatment != Treatment::Success),
        }
    }

    /// As the API would have stored it.
    pub fn json(&self) -> String {
        let mut text = String::from("{\"retryPolicy\":{\"schedule\":{");
        let cap = self.cap;
        let _ = match &self.shape {
            Shape::Exponential { base, thousandths } => write!(
                text,
                "\"type\":\"exponential\",\"base\":\"{base}ms\",\"factor\":{}.{:03},\"cap\":\"{cap}ms\"",
                thousandths / 1_000,
                thousandths % 1_000
            ),
            Shape::Fixed(interval) => {
                write!(text, "\"type\":\"fixed\",\"interval\":\"{interval}ms\",\"cap\":\"{cap}ms\"")
            }
            Shape::Table { delays, ends } => {
                let delays: Vec<String> = delays.iter().map(|delay| format!("\"{delay}ms\"")).collect();
                let then = if *ends { "stop" } else { "repeat" };
                write!(
                    text,
                    "\"type\":\"table\",\"delays\":[{}],\"then\":\"{then}\",\"cap\":\"{cap}ms\"",
                    delays.join(",")
                )
            }
        };
        let jitter = match self.jitter {
            Jitter::None => "\"none\"".to_owned(),
            Jitter::Full => "\"full\"".to_owned(),
            Jitter::Equal => "\"equal\"".to_owned(),
            Jitter::Decorrelated => "\"decorrelated\"".to_owned(),
            Jitter::Proportional(percent) => format!("{{\"type\":\"proportional\",\"percent\":{percent}}}"),
            Jitter::Additive(percent) => format!("{{\"type\":\"additive\",\"percent\":{percent}}}"),
        };
        let _ = write!(
            text,
            "}},\"jitter\":{jitter},\"maxAttempts\":{},\"giveUpAfter\":\"{}ms\",\"ambiguous\":{{\"maxAttempts\":{},\
             \"giveUpAfter\":\"{}ms\"}},\"holdFor\":\"{}ms\",\"retryAfter\":{{\"mode\":\"{}\",\"cap\":\"{}ms\"}},\
             \"followRedirects\":{}}}",
            self.attempts_max,
            self.give_up,
            self.ambiguous_attempts,
            self.ambiguous_give_up,
            self.hold,
            if self.wish_replaces { "override" } else { "longest" },
            self.wish_cap,
            self.redirects
        );
        let said = |treatment: Treatment| match treatment {
            Treatment::Success => "success",
            Treatment::Retry => "retry",
            Treatment::Permanent => "permanent",
        };
        let overrides: Vec<String> = [("404", self.not_found), ("5xx", self.server_error)]
            .into_iter()
            .filter_map(|(subject, treatment)| Some(format!("\"{subject}\":\"{}\"", said(treatment?))))
            .collect();
        if !overrides.is_empty() {
            let _ = write!(text, ",\"statusOverrides\":{{{}}}", overrides.join(","));
        }
        let timeout = self.timeout;
        let _ = write!(
            text,
            ",\"timeouts\":{{\"connect\":\"{timeout}ms\",\"firstByte\":\"{timeout}ms\",\"total\":\"{timeout}ms\"}}"
        );
        let _ = match self.breaker {
            None => write!(text, ",\"circuitBreaker\":false"),
            Some(plan) => write!(
                text,
                ",\"circuitBreaker\":{{\"failures\":{},\"coolDown\":\"{}ms\",\"coolDownMax\":\"{}ms\",\
                 \"whileOpen\":\"{}\"}}",
                plan.failures,
                plan.cool_down,
                plan.cool_down_max,
                if plan.buries { "dead-letter" } else { "hold" }
            ),
        };
        let ordering = match self.ordering {
            Order::Free => "none",
            Order::Keyed => "key",
            Order::Fifo => "fifo",
        };
        let failing = self.failing_for.map_or("false".to_owned(), |after| format!("\"{after}ms\""));
        let streak = self.streak.map_or("false".to_owned(), |streak| streak.to_string());
        let _ = write!(
            text,
            ",\"maxInFlight\":{},\"ordering\":\"{ordering}\",\"autoDisable\":{{\"failingFor\":{failing},\
             \"permanentStreak\":{streak}}}}}",
            self.in_flight_max
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_code_reads_what_the_world_writes() {
        let mut chance = Chance::new(1, "settings", 0);
        for long in [false, true].repeat(500) {
            let settings = Settings::draw(&mut chance, long);
            let read = postrider::rules::Rules::read(Some(&settings.json())).expect("rules");
            let rules = postrider_engine::policy::Rules::resolve([&read.layer()]);
            assert_eq!(rules.policy.budget.attempts_max, settings.attempts_max);
            assert_eq!(rules.policy.hold_max.as_millis() as i64, settings.hold);
            assert_eq!(rules.policy.backoff.cap.as_millis() as i64, settings.cap);
            assert_eq!(rules.in_flight_max.0, settings.in_flight_max);
            assert_eq!(rules.breaker.is_some(), settings.breaker.is_some());
            assert_eq!(rules.disable.permanent_streak, settings.streak);
            assert_eq!(rules.timeouts.total.as_millis() as i64, settings.timeout);
        }
    }
}
