//! Why an attempt was judged as it was, in data and in words.
//!
//! An addition of ours to the contract's attempt: "why did it wait forty minutes?" must not need a look
//! into our source.

use super::time::Time;
pub use crate::words::death_name;
use crate::{
    config::show_duration,
    words::{class_name, held_name, rule_name},
};
use postrider_engine::{
    Timestamp, Trigger,
    lanes::HeldBy,
    policy::{Class, DeathReason, Delay, Rule},
};
use postrider_store::Attempt;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerdictOut {
    /// `delivered`, `transient`, `ambiguous`, `permanent` or `gone`.
    #[schema(example = "transient")]
    pub class: &'static str,
    /// Which rule chose the class.
    #[schema(example = "server-error")]
    pub rule: &'static str,
    /// The same in words.
    pub reason: String,
    /// Counts from 1 within its cycle.
    pub attempt_number: u32,
    /// Counts how often the delivery was begun anew by a recovery.
    pub cycle: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Time>,
    /// Of what parts the wait until then is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayOut>,
    /// How much later than it was due the attempt was made, where that was more than a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<u64>,
    /// What held it so long: `slots`, `rate`, `application-rate`, `breaker`, `pause`, `order` or `queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<&'static str>,
    /// Why the delivery ended here: `permanent`, `exhausted`, `expired`, `cancelled`, `breaker` or `endpoint-gone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub death: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DelayOut {
    /// The whole wait, from the end of this attempt. It is `backoffMs` and `jitterMs` together or, where the receiver's
    /// wish was the longer one, `retryAfterMs` and `jitterMs`.
    pub wait_ms: u64,
    /// What the schedule says, before chance.
    pub backoff_ms: u64,
    /// What chance made of it: less than the schedule says, or more.
    pub jitter_ms: i64,
    /// What the receiver asked for by `Retry-After`, after the cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The receiver asked for more than the cap.
    pub capped: bool,
}

impl VerdictOut {
    pub fn of(attempt: &Attempt) -> Self {
        let (class, rule) = (attempt.record.class, attempt.record.rule);
        Self {
            class: class_name(class),
            rule: rule_name(rule),
            reason: [lateness(attempt), Some(cause(rule, attempt.record.status)), Some(consequence(attempt))]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" "),
            attempt_number: attempt.number,
            cycle: attempt.cycle,
            next_attempt: attempt.next.map(|(due, _)| Time(due)),
            delay: attempt.next.map(|(due, delay)| DelayOut::of(attempt, due, delay)),
            late_ms: attempt.record.held.map(|held| millis(held.late)),
            held_by: attempt.record.held.map(|held| held_name(held.by)),
            death: attempt.death.map(death_name),
        }
    }
}

impl DelayOut {
    fn of(attempt: &Attempt, due: Timestamp, delay: Delay) -> Self {
        let ended = attempt.record.started_at.plus(attempt.record.duration);
        let wait = due.since(ended);
        let base = if is_by_wish(wait, delay) { delay.retry_after.unwrap_or_default() } else { delay.backoff };
        Self {
            wait_ms: millis(wait),
            backoff_ms: millis(delay.backoff),
            jitter_ms: signed(wait).saturating_sub(signed(base)),
            retry_after_ms: delay.retry_after.map(millis),
            capped: delay.capped,
        }
    }
}

/// Whether the wait follows the receiver's wish and not the schedule.
fn is_by_wish(wait: Duration, delay: Delay) -> bool {
    delay.retry_after.is_some_and(|wish| !wish.is_zero() && wait.saturating_sub(delay.jitter) <= wish)
}

fn signed(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn lateness(attempt: &Attempt) -> Option<String> {
    let held = attempt.record.held?;
    let cause = match held.by {
        HeldBy::Slots => "all of the endpoint's slots were taken",
        HeldBy::Rate => "the endpoint's rate is limited",
        HeldBy::AppRate => "the application's rate is limited",
        HeldBy::Breaker => "the endpoint's circuit breaker was open",
        HeldBy::Pause => "the endpoint was paused",
        HeldBy::Order => "an earlier message of the same order had to end first",
        HeldBy::Queue => "it stood in line, or the server was not running",
    };
    let late = Duration::from_secs(held.late.as_secs());
    Some(format!("It was made {} after it was due, because {cause}.", show_duration(late)))
}

fn cause(rule: Rule, status: Option<u16>) -> String {
    let answer = match status {
        Some(status) => format!("The receiver answered {status}"),
        None => "No answer came".to_owned(),
    };
    match rule {
        Rule::Success => format!("{answer}."),
        Rule::AskedToWait => format!("{answer}: it asks for another time."),
        Rule::ServerError => format!("{answer}: an error on its side, likely to pass."),
        Rule::NotFound => format!("{answer}: a passing fault or a wrong address, so it is tried a few times only."),
        Rule::Gone => format!("{answer}: the endpoint is no more, and is disabled."),
        Rule::Redirect => format!("{answer}: a redirect, and redirects are not followed."),
        Rule::ClientError => format!("{answer}: it would refuse the same request again."),
        Rule::NotImplemented => format!("{answer}: it does not support such requests."),
        Rule::ProtocolSwitch => format!("{answer}: it wants to speak another protocol."),
        Rule::Dns => "The name of the host could not be resolved.".to_owned(),
        Rule::ForbiddenAddress => "The address is one that must not be called.".to_owned(),
        Rule::Connection => "The connection was refused, or broke before an answer came.".to_owned(),
        Rule::Certificate => "The receiver's certificate could not be trusted.".to_owned(),
        Rule::Handshake => "The TLS handshake failed.".to_owned(),
        Rule::Timeout => "The receiver took too long.".to_owned(),
        Rule::NotHttp => "What came back is not HTTP, or breaks its limits.".to_owned(),
        Rule::Override => format!("{answer}: its owner has said how that is to be taken."),
        Rule::AbortAsked => format!("{answer}, and asked not to be sent this message again."),
        Rule::RedirectRefused => {
            format!("{answer}: a redirect that is not followed, because it is one too many or leads where it must not.")
        }
        Rule::NoToken => "No access token could be had, and without one the receiver is not called.".to_owned(),
        Rule::LocalResource => "This server was short of something; that is not the receiver's doing.".to_owned(),
    }
}

fn consequence(attempt: &Attempt) -> String {
    if let Some((due, delay)) = attempt.next {
        let parts = DelayOut::of(attempt, due, delay);
        let chance = match parts.jitter_ms {
            0 => String::new(),
            less @ ..0 => format!(", {} less by chance", spelt(less.unsigned_abs())),
            more @ 1.. => format!(", {} more by chance", spelt(more.unsigned_abs())),
        };
        let why =
            match (is_by_wish(due.since(attempt.record.started_at.plus(attempt.record.duration)), delay), delay.capped)
            {
                (false, _) => format!("{} by the schedule{chance}", spelt(parts.backoff_ms)),
                (true, false) => format!("{} as the receiver asked{chance}", spelt(parts.retry_after_ms.unwrap_or(0))),
                (true, true) => format!(
                    "{}, the most that is allowed where a receiver asks for more{chance}",
                    spelt(parts.retry_after_ms.unwrap_or(0))
                ),
            };
        return format!("The next attempt is due at {}: {why}.", Time(due));
    }
    let words = match (attempt.death, attempt.record.class, attempt.id.trigger) {
        (Some(DeathReason::Permanent), _, _) => "It is not tried again.",
        (Some(DeathReason::Exhausted), _, _) => "It was the last attempt allowed.",
        (Some(DeathReason::Expired), _, _) => "The next attempt would come after the time to deliver it.",
        (Some(DeathReason::EndpointGone), _, _) => "The endpoint was deleted.",
        (Some(DeathReason::Cancelled), _, _) => "It was cancelled.",
        (Some(DeathReason::Breaker), _, _) => "The endpoint's circuit breaker was open.",
        (None, Class::Delivered, _) => "The message is delivered.",
        (None, Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone, Trigger::Manual) => {
            "A resend is not repeated by itself; the delivery's own schedule goes on as it was."
        }
        (None, Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone, Trigger::Scheduled) => {
            "No further attempt was planned."
        }
    };
    words.to_owned()
}

fn spelt(millis: u64) -> String {
    show_duration(Duration::from_millis(if millis < 10_000 { millis } else { millis / 1_000 * 1_000 }))
}

/// Why a delivery was given up, in words.
pub fn death_words(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::Permanent => "The receiver refused it for good.",
        DeathReason::Exhausted => "All attempts were used, and none succeeded.",
        DeathReason::Expired => "The time to deliver it ran out.",
        DeathReason::EndpointGone => "Its endpoint was deleted.",
        DeathReason::Cancelled => "It was cancelled on request.",
        DeathReason::Breaker => "Its turn came while the endpoint's circuit breaker was open.",
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use postrider_engine::{AttemptKey, DeliveryId, EndpointKey, MessageKey, Timestamp};
    use postrider_store::AttemptRecord;

    fn attempt(class: Class, rule: Rule, status: Option<u16>) -> Attempt {
        let started_at = Timestamp::from_millis(0);
        Attempt {
            key: AttemptKey::new(3),
            id: DeliveryId { endpoint: EndpointKey::new(1), message: MessageKey::new(2), trigger: Trigger::Scheduled },
            cycle: 0,
            number: 2,
            record: AttemptRecord {
                started_at,
                duration: Duration::from_millis(7),
                url: "https://example.com/".into(),
                status,
                response: Bytes::new(),
                class,
                rule,
                held: None,
                headers: Default::default(),
            },
            expunged: false,
            next: None,
            death: None,
        }
    }

    fn waiting(due_ms: i64, delay: Delay) -> VerdictOut {
        let next = Some((Timestamp::from_millis(due_ms), delay));
        VerdictOut::of(&Attempt { next, ..attempt(Class::Transient, Rule::ServerError, Some(503)) })
    }

    #[test]
    fn a_wait_is_taken_apart() {
        let delay = Delay {
            backoff: Duration::from_secs(300),
            jitter: Duration::from_millis(1500),
            retry_after: Some(Duration::from_secs(86_400)),
            capped: true,
        };
        // The attempt ended seven milliseconds after it began.
        let verdict = serde_json::to_value(waiting(86_401_507, delay)).expect("can be written");
        assert_eq!(
            verdict,
            serde_json::json!({
                "class": "transient",
                "rule": "server-error",
                "reason": "The receiver answered 503: an error on its side, likely to pass. The next attempt is due at \
                           1970-01-02T00:00:01.507Z: 1d, the most that is allowed where a receiver asks for more, \
                           1s500ms more by chance.",
                "attemptNumber": 2,
                "cycle": 0,
                "nextAttempt": "1970-01-02T00:00:01.507Z",
                "delay": {
                    "waitMs": 86_401_500,
                    "backoffMs": 300_000,
                    "jitterMs": 1_500,
                    "retryAfterMs": 86_400_000,
                    "capped": true,
                },
            })
        );
    }

    #[test]
    fn the_parts_of_a_wait_add_up_to_it() {
        let schedule = Delay { backoff: Duration::from_secs(300), jitter: Duration::from_secs(20), ..Delay::default() };
        let asked = |secs| Delay { retry_after: Some(Duration::from_secs(secs)), ..schedule };
        for (due_ms, delay, parts, words) in [
            (170_007, schedule, (170_000, 300_000, -130_000), "5m by the schedule, 2m10s less by chance."),
            (330_007, schedule, (330_000, 300_000, 30_000), "5m by the schedule, 30s more by chance."),
            (300_007, schedule, (300_000, 300_000, 0), "5m by the schedule."),
            (170_007, asked(60), (170_000, 300_000, -130_000), "5m by the schedule, 2m10s less by chance."),
            (620_007, asked(600), (620_000, 300_000, 20_000), "10m as the receiver asked, 20s more by chance."),
        ] {
            let verdict = waiting(due_ms, delay);
            let shown = verdict.delay.expect("it waits");
            assert_eq!((shown.wait_ms, shown.backoff_ms, shown.jitter_ms), parts, "{due_ms} {delay:?}");
            assert!(verdict.reason.ends_with(words), "{} / {words}", verdict.reason);
        }
    }

    #[test]
    fn an_end_has_its_reason() {
        let manual =
            |attempt: Attempt| Attempt { id: DeliveryId { trigger: Trigger::Manual, ..attempt.id }, ..attempt };
        for (attempt, death, words) in [
            (attempt(Class::Delivered, Rule::Success, Some(204)), None, "answered 204. The message is delivered."),
            (
                Attempt {
                    death: Some(DeathReason::Permanent),
                    ..attempt(Class::Permanent, Rule::ClientError, Some(400))
                },
                Some("permanent"),
                "It is not tried again.",
            ),
            (
                Attempt { death: Some(DeathReason::Exhausted), ..attempt(Class::Transient, Rule::Timeout, None) },
                Some("exhausted"),
                "took too long. It was the last attempt allowed.",
            ),
            (manual(attempt(Class::Transient, Rule::Dns, None)), None, "A resend is not repeated by itself"),
        ] {
            let verdict = VerdictOut::of(&attempt);
            assert_eq!(verdict.death, death);
            assert!(verdict.reason.contains(words), "{}", verdict.reason);
        }
    }
}
