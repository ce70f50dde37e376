//! What must come of an attempt, computed from the settings alone and without the engine's code: I10, I11, I12.

use super::wire::{Answer, Answered, Asked};
use crate::{
    settings::{Jitter, Settings, Shape, Treatment},
    temper::Fault,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Delivered,
    Transient,
    Ambiguous,
    Permanent,
    Gone,
    /// Our own trouble.
    Ours,
}

pub fn class_of(answered: &Answered, settings: &Settings) -> Class {
    match answered.kind {
        Answer::Failed(Fault::Local) => Class::Ours,
        Answer::Failed(Fault::WrongHost) => Class::Ambiguous,
        Answer::Failed(_) | Answer::Reset | Answer::TimedOut => Class::Transient,
        Answer::Status { status, abort, redirect_refused, .. } => {
            if (200..300).contains(&status) {
                return Class::Delivered;
            }
            if abort || redirect_refused {
                return Class::Permanent;
            }
            let treated = match status {
                404 => settings.not_found,
                500..=599 => settings.server_error,
                _ => None,
            };
            match (treated, status) {
                (Some(Treatment::Success), _) => Class::Delivered,
                (Some(Treatment::Retry), _) => Class::Transient,
                (Some(Treatment::Permanent), _) => Class::Permanent,
                (None, 408 | 409 | 425 | 429) => Class::Transient,
                (None, 404) => Class::Ambiguous,
                (None, 410) => Class::Gone,
                (None, 501) => Class::Permanent,
                (None, 500..) => Class::Transient,
                (None, _) => Class::Permanent,
            }
        }
    }
}

/// Whether it counts as a failure for the breaker: the receiver was not there, or did not know what it did.
pub fn is_failure(answered: &Answered, class: Class) -> bool {
    let busy = matches!(answered.kind, Answer::Status { status: 408 | 409 | 425 | 429, .. });
    matches!(class, Class::Transient | Class::Ambiguous) && !busy
}

/// How far a delivery had come, the attempt in question included.
pub struct Standing {
    pub attempts: u32,
    pub give_up: i64,
    pub ambiguous: u32,
    pub ambiguous_since: i64,
    pub last_wait: Option<i64>,
    /// When the attempt ended, by the engine's clock.
    pub ended: i64,
}

/// What may come of a failed attempt.
#[derive(Debug, Default)]
pub struct Allowed {
    pub exhausted: bool,
    pub expired: bool,
    /// Another try, from and until when.
    pub retry: Option<(i64, i64)>,
    /// The bounds of our own wait, before the receiver's wish.
    pub own: (i64, i64),
    /// What the receiver asked for, within the cap.
    pub wish: Option<i64>,
}

pub fn allowed(settings: &Settings, class: Class, standing: &Standing, answered: &Answered) -> Allowed {
    let on_leash = class == Class::Ambiguous;
    let leash_wait = settings.ambiguous_give_up / i64::from(settings.ambiguous_attempts.max(1));
    let cap = if on_leash { settings.cap.min(leash_wait) } else { settings.cap };
    let exhausted = Allowed { exhausted: true, ..Allowed::default() };
    let Some((least, most)) = bounds(settings, standing.attempts, standing.last_wait, cap) else { return exhausted };
    let asked = match answered.kind {
        Answer::Status { wish: Some(Asked::Seconds(seconds)), .. } => Some(seconds.saturating_mul(1_000)),
        // A date that has passed asks for nothing.
        Answer::Status { wish: Some(Asked::Date(at)), .. } => Some(at - standing.ended).filter(|ahead| *ahead > 0),
        Answer::Status { .. } | Answer::Failed(_) | Answer::Reset | Answer::TimedOut => None,
    };
    let wish = asked.map(|asked| asked.min(settings.wish_cap));
    let (from, until) = match wish {
        None => (least, most),
        Some(wish) if !settings.wish_replaces => (least.max(wish), least.max(wish) + (most - least)),
        Some(0) => (least, most),
        Some(wish) => (wish, wish),
    };
    if standing.attempts >= settings.attempts_max {
        return Allowed { own: (least, most), wish, ..exhausted };
    }
    let (from, until) = (standing.ended.saturating_add(from), standing.ended.saturating_add(until));
    let mut allowed = Allowed { own: (least, most), wish, expired: until >= standing.give_up, ..Allowed::default() };
    let mut latest = until.min(standing.give_up - 1);
    if from > latest {
        return allowed;
    }
    if on_leash {
        if standing.ambiguous >= settings.ambiguous_attempts {
            allowed.exhausted = true;
            return allowed;
        }
        let end = standing.ambiguous_since + settings.ambiguous_give_up;
        allowed.expired |= until >= end;
        latest = latest.min(end - 1);
    }
    allowed.retry = (from <= latest).then_some((from, latest));
    allowed
}

/// The least and the most that is waited by ourselves; `None`: the table is used up.
fn bounds(settings: &Settings, retry: u32, previous: Option<i64>, cap: i64) -> Option<(i64, i64)> {
    let nominal = |retry: u32| -> Option<i64> {
        let wait = match &settings.shape {
            Shape::Fixed(interval) => *interval,
            Shape::Exponential { base, thousandths } => grown(*base, *thousandths, retry - 1, cap),
            Shape::Table { delays, ends } => match delays.get(retry as usize - 1) {
                Some(delay) => *delay,
                None if *ends => return None,
                None => *delays.last()?,
            },
        };
        Some(wait.min(cap))
    };
    let wait = nominal(retry)?;
    let part = |percent: i64| wait * percent / 100;
    Some(match settings.jitter {
        Jitter::None => (wait, wait),
        Jitter::Full => (0, wait),
        Jitter::Equal => (wait / 2, wait),
        Jitter::Decorrelated => {
            let base = nominal(1)?;
            let most = (previous.unwrap_or(base) * 3).min(cap);
            (base, most.max(base))
        }
        Jitter::Proportional(percent) => (wait - part(percent), (wait + part(percent)).min(cap)),
        Jitter::Additive(percent) => (wait, (wait + part(percent)).min(cap)),
    })
}

/// By the definition, in billionths, so that small bases grow as well; rounding is down, as in the schedule's preview.
fn grown(base: i64, thousandths: i64, times: u32, cap: i64) -> i64 {
    let mut value = i128::from(base) * 1_000_000;
    let end = i128::from(cap) * 1_000_000;
    for _ in 0..times {
        if value >= end {
            return cap;
        }
        value = value * i128::from(thousandths) / 1_000;
    }
    (value.min(end) / 1_000_000) as i64
}
