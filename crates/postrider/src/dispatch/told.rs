//! What is told of one attempt: a line in the log, and a span of its message's trace.
//!
//! Everything that a person asks about an attempt is in them, by the same words as in the API; nothing of the payload, of headers
//! or of URLs, which may hold secrets. The line has a target of its own. While that is filtered out, as it is by default, it
//! costs one look at a number; what goes into it is not even put together.

use super::{delivery::Cargo, meters::Lateness};
use crate::{
    ids::IdCodec,
    telemetry::traces::Traced,
    words::{class_name, death_name, held_name, rule_name},
};
use opentelemetry::KeyValue;
use postrider_engine::{
    Timestamp, Trigger,
    lanes::Parcel,
    policy::{Class, DeathReason, Delay, Next, Verdict},
};
use postrider_store::{AttemptRecord, TraceContext};
use std::time::Duration;

/// An attempt that was made, or was to be.
pub struct Told<'a> {
    pub parcel: &'a Parcel<Cargo>,
    pub verdict: &'a Verdict,
    /// `None`: we could not even try.
    pub attempt: Option<&'a AttemptRecord>,
    pub lateness: Lateness,
    /// What the receiver was told.
    pub trace: Option<&'a TraceContext>,
}

impl Told<'_> {
    pub fn log(&self, ids: &IdCodec) {
        let Self { parcel, verdict, attempt, lateness, trace } = self;
        tracing::debug!(
            target: "postrider::attempts",
            message_id = ids.id_of(parcel.id.message),
            application_id = ids.id_of(parcel.cargo.app),
            endpoint_id = ids.id_of(parcel.id.endpoint),
            event_type = parcel.cargo.event_type,
            attempt = verdict.progress.attempts,
            cycle = parcel.cycle,
            trigger = trigger_name(parcel.id.trigger),
            class = class_name(verdict.class),
            rule = rule_name(verdict.rule),
            status = attempt.and_then(|attempt| attempt.status),
            duration_ms = attempt.map(|attempt| millis(attempt.duration)),
            late_ours_ms = millis(lateness.ours),
            late_theirs_ms = millis(lateness.theirs),
            held_by = parcel.held.map(|held| held_name(held.by)),
            next = next_name(verdict.next),
            next_at = due(verdict.next),
            wait_ms = attempt.and_then(|attempt| wait(attempt, verdict.next)).map(millis),
            backoff_ms = delay(verdict.next).map(|delay| millis(delay.backoff)),
            retry_after_ms = delay(verdict.next).and_then(|delay| delay.retry_after).map(millis),
            death = death(verdict.next),
            trace_id = trace.and_then(trace_id),
            "attempt"
        );
    }

    pub fn end(&self, span: Traced, ids: &IdCodec, at: Timestamp) {
        let Self { parcel, verdict, attempt, lateness, trace: _ } = self;
        let number = |duration| i64::try_from(millis(duration)).unwrap_or(i64::MAX);
        let status = attempt.and_then(|attempt| attempt.status);
        let known = [
            KeyValue::new("http.request.method", "POST"),
            KeyValue::new("messaging.message.id", ids.id_of(parcel.id.message)),
            KeyValue::new("postrider.application", ids.id_of(parcel.cargo.app)),
            KeyValue::new("postrider.endpoint", ids.id_of(parcel.id.endpoint)),
            KeyValue::new("postrider.event_type", parcel.cargo.event_type.clone()),
            KeyValue::new("postrider.attempt", i64::from(verdict.progress.attempts)),
            KeyValue::new("postrider.class", class_name(verdict.class)),
            KeyValue::new("postrider.rule", rule_name(verdict.rule)),
            KeyValue::new("postrider.next", next_name(verdict.next)),
            KeyValue::new("postrider.late.ours_ms", number(lateness.ours)),
            KeyValue::new("postrider.late.theirs_ms", number(lateness.theirs)),
        ];
        let answered = status.map(|status| KeyValue::new("http.response.status_code", i64::from(status)));
        let next_at = due(verdict.next).map(|due| KeyValue::new("postrider.next_at", due));
        let failed = match verdict.class {
            Class::Delivered => None,
            Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone => Some(rule_name(verdict.rule)),
        };
        span.end(at, failed, known.into_iter().chain(answered).chain(next_at));
    }
}

/// A delivery that ended although nobody was called.
pub fn log_untried(ids: &IdCodec, parcel: &Parcel<Cargo>, reason: DeathReason) {
    tracing::debug!(
        target: "postrider::attempts",
        message_id = ids.id_of(parcel.id.message),
        application_id = ids.id_of(parcel.cargo.app),
        endpoint_id = ids.id_of(parcel.id.endpoint),
        event_type = parcel.cargo.event_type,
        attempt = parcel.progress.attempts,
        cycle = parcel.cycle,
        next = "dead",
        death = death_name(reason),
        "ended without an attempt"
    );
}

fn trigger_name(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Scheduled => "scheduled",
        Trigger::Manual => "manual",
    }
}

fn next_name(next: Next) -> &'static str {
    match next {
        Next::Delivered => "delivered",
        Next::Retry { .. } => "retry",
        Next::Dead(_) => "dead",
        Next::Nothing => "nothing",
        Next::Postponed { .. } => "postponed",
    }
}

fn due(next: Next) -> Option<String> {
    let (Next::Retry { due, .. } | Next::Postponed { due }) = next else { return None };
    Some(jiff::Timestamp::from_millisecond(due.as_millis()).ok()?.to_string())
}

/// From the end of the attempt.
fn wait(attempt: &AttemptRecord, next: Next) -> Option<Duration> {
    match next {
        Next::Retry { due, .. } => Some(due.since(attempt.started_at.plus(attempt.duration))),
        Next::Delivered | Next::Dead(_) | Next::Nothing | Next::Postponed { .. } => None,
    }
}

fn delay(next: Next) -> Option<Delay> {
    match next {
        Next::Retry { delay, .. } => Some(delay),
        Next::Delivered | Next::Dead(_) | Next::Nothing | Next::Postponed { .. } => None,
    }
}

fn death(next: Next) -> Option<&'static str> {
    match next {
        Next::Dead(reason) => Some(death_name(reason)),
        Next::Delivered | Next::Retry { .. } | Next::Nothing | Next::Postponed { .. } => None,
    }
}

/// Its second part.
fn trace_id(trace: &TraceContext) -> Option<&str> {
    trace.parent.split('-').nth(1)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
