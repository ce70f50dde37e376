//! Looking back: messages, attempts, dead letters, and how deliveries fare.

use super::{
    settings::on_page,
    tables::{DeadRow, MessageRow, Standing, Tables, scheduled},
};
use postrider_engine::{
    AppKey, AttemptKey, EndpointKey, MessageKey, Timestamp,
    keys::first_key_at,
    policy::{Class, DeathReason},
};
use postrider_store::{
    Attempt, AttemptFilter, AttemptsOf, By, Content, DeadFilter, DeadKey, DeadLetter, DeliveryState, Message,
    MessageFilter, OPERATIONAL, Page, Search, Searched, StateKind, Stats,
};
use std::collections::BTreeMap;

pub fn message(tables: &Tables, app: AppKey, by: By<MessageKey>) -> Option<Message> {
    let key = match by {
        By::Key(key) => key,
        By::Uid(event_id) => *tables.event_ids.get(&app)?.get(&event_id)?,
    };
    tables.messages.get(&key).filter(|row| row.app == app).map(MessageRow::message)
}

pub fn messages(tables: &Tables, app: AppKey, filter: &MessageFilter, page: &Page<MessageKey>) -> Vec<Message> {
    let is_shown =
        |(key, row): &(&MessageKey, &MessageRow)| row.app == app && is_wanted(filter, key.raw(), &row.content);
    on_page(&tables.messages, page, is_shown).into_iter().map(|(_, row)| row.message()).collect()
}

fn is_wanted(filter: &MessageFilter, key: i64, content: &Content) -> bool {
    is_in_time(filter, key) && has_wanted(filter, content)
}

fn is_in_time(filter: &MessageFilter, key: i64) -> bool {
    filter.after.is_none_or(|after| key >= first_key_at(after))
        && filter.before.is_none_or(|before| key < first_key_at(before))
}

fn has_wanted(filter: &MessageFilter, content: &Content) -> bool {
    (filter.event_types.is_empty() || filter.event_types.contains(&content.event_type))
        && filter.channel.as_ref().is_none_or(|wanted| content.channels.contains(wanted))
        && filter.tag.as_ref().is_none_or(|wanted| content.tags.contains(wanted))
}

pub fn messages_of_endpoint(
    tables: &Tables,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &MessageFilter,
    states: &[StateKind],
    page: &Page<MessageKey>,
) -> Vec<(Message, DeliveryState)> {
    let is_shown = |(key, row): &(&MessageKey, &MessageRow)| {
        row.app == app
            && row.owed.contains(&endpoint)
            && is_wanted(filter, key.raw(), &row.content)
            && (states.is_empty() || states.contains(&kind(state(tables, row, endpoint))))
    };
    let found = on_page(&tables.messages, page, is_shown);
    found.into_iter().map(|(_, row)| (row.message(), state(tables, row, endpoint))).collect()
}

pub fn search(tables: &Tables, app: Option<AppKey>, search: &Search) -> Searched {
    let (mut found, mut looked, mut last) = (Vec::new(), 0, search.past);
    let is_meant = |row: &MessageRow| app.is_none_or(|app| row.app == app);
    for (key, row) in tables.messages.iter().rev().filter(|(_, row)| is_meant(row)) {
        if !is_in_time(&search.filter, key.raw()) || search.past.is_some_and(|past| *key >= past) {
            continue;
        }
        if found.len() == search.limit || looked >= search.look_max {
            return Searched { found, until: last };
        }
        (looked, last) = (looked + 1, Some(*key));
        if app.is_none() && row.app == OPERATIONAL {
            continue;
        }
        let Some(concerned) = search.concerned(&row.owed).filter(|_| has_wanted(&search.filter, &row.content)) else {
            continue;
        };
        looked += concerned.len().saturating_sub(1);
        let states: Vec<_> = concerned.into_iter().map(|endpoint| (endpoint, state(tables, row, endpoint))).collect();
        if search.finds(&states) {
            found.push((row.message(), states));
        }
    }
    Searched { found, until: None }
}

pub fn kind(state: DeliveryState) -> StateKind {
    match state {
        DeliveryState::Pending { .. } => StateKind::Pending,
        DeliveryState::Sending { .. } => StateKind::Sending,
        DeliveryState::Delivered => StateKind::Delivered,
        DeliveryState::Dead { reason: DeathReason::Cancelled, .. } => StateKind::Cancelled,
        DeliveryState::Dead { .. } => StateKind::Dead,
    }
}

/// A success once is a success for good; otherwise what waits counts, then what is dead.
pub fn state(tables: &Tables, row: &MessageRow, endpoint: EndpointKey) -> DeliveryState {
    if row.has_arrived_at(endpoint) {
        return DeliveryState::Delivered;
    }
    if let Some(waits) = tables.waiting(scheduled(endpoint, row.key())) {
        return match waits.progress.attempts > 0 || waits.cycle > 0 {
            true => DeliveryState::Sending { due: waits.due },
            false => DeliveryState::Pending { due: Some(waits.due) },
        };
    }
    match tables.dead.get(&(endpoint, row.key())) {
        Some(DeadRow { standing: Standing::Listed | Standing::Retired, at, reason, .. }) => {
            DeliveryState::Dead { at: *at, reason: *reason }
        }
        Some(DeadRow { standing: Standing::Over, .. }) | None => DeliveryState::Pending { due: None },
    }
}

pub fn deliveries(tables: &Tables, message: MessageKey) -> Vec<(EndpointKey, DeliveryState)> {
    let Some(row) = tables.messages.get(&message) else { return Vec::new() };
    let mut owed = row.owed.to_vec();
    owed.sort_unstable();
    owed.into_iter().map(|endpoint| (endpoint, state(tables, row, endpoint))).collect()
}

pub fn stats(tables: &Tables, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Stats {
    let mut stats = Stats::default();
    let (from, to) = (MessageKey::new(first_key_at(since)), MessageKey::new(first_key_at(until)));
    if from >= to {
        return stats;
    }
    for (_, row) in tables.messages.range(from..to).filter(|(_, row)| row.owed.contains(&endpoint)) {
        match kind(state(tables, row, endpoint)) {
            StateKind::Delivered => stats.success += 1,
            StateKind::Pending => stats.pending += 1,
            StateKind::Sending => stats.sending += 1,
            StateKind::Dead => stats.fail += 1,
            StateKind::Cancelled => stats.canceled += 1,
        }
    }
    stats
}

pub fn attempt(tables: &Tables, message: MessageKey, key: AttemptKey) -> Option<Attempt> {
    tables.messages.get(&message)?.attempts.iter().find(|attempt| attempt.key == key).cloned()
}

pub fn attempts(tables: &Tables, of: AttemptsOf, filter: &AttemptFilter, page: &Page<AttemptKey>) -> Vec<Attempt> {
    let all: BTreeMap<AttemptKey, &Attempt> = match of {
        AttemptsOf::Message(message) => {
            let row = tables.messages.get(&message);
            row.into_iter().flat_map(|row| &row.attempts).map(|attempt| (attempt.key, attempt)).collect()
        }
        AttemptsOf::Endpoint(_, endpoint) => {
            let all = tables.messages.values().flat_map(|row| &row.attempts);
            all.filter(|attempt| attempt.id.endpoint == endpoint).map(|attempt| (attempt.key, attempt)).collect()
        }
    };
    let is_shown = |(key, attempt): &(&AttemptKey, &&Attempt)| {
        let status_class = attempt.record.status.map_or(0, |status| status / 100);
        filter.endpoint.is_none_or(|endpoint| endpoint == attempt.id.endpoint)
            && filter.succeeded.is_none_or(|wanted| wanted == (attempt.record.class == Class::Delivered))
            && filter.status_class.is_none_or(|class| class == status_class)
            && is_in_time(&filter.message, key.raw())
            && has_wanted(&filter.message, &tables.messages[&attempt.id.message].content)
    };
    on_page(&all, page, is_shown).into_iter().map(|(_, attempt)| Attempt::clone(attempt)).collect()
}

pub fn dead_letters(tables: &Tables, app: AppKey, filter: &DeadFilter, page: &Page<DeadKey>) -> Vec<DeadLetter> {
    let all: BTreeMap<DeadKey, &DeadRow> = listed(tables, app, None, None).collect();
    let found = on_page(&all, page, |(key, row)| is_dead_wanted(tables, filter, **key, row));
    found.into_iter().filter_map(|(key, row)| letter(tables, app, *key, row)).collect()
}

/// The dead letters of an application, of messages past `low` and before `high`.
pub fn listed(
    tables: &Tables,
    app: AppKey,
    low: Option<i64>,
    high: Option<i64>,
) -> impl Iterator<Item = (DeadKey, &DeadRow)> {
    let bound = |message: i64, endpoint: i64| {
        (app, DeadKey { message: MessageKey::new(message), endpoint: EndpointKey::new(endpoint) })
    };
    let from = low.map_or(bound(i64::MIN, i64::MIN), |low| bound(low, i64::MAX));
    let to = high.map_or(bound(i64::MAX, i64::MAX), |high| bound(high, i64::MIN));
    let keys = (from < to).then(|| tables.dead_listed.range(from..to)).into_iter().flatten();
    keys.map(move |(_, key)| (*key, &tables.dead[&(key.endpoint, key.message)]))
}

pub fn count_dead_letters(tables: &Tables, app: AppKey, filter: &DeadFilter, limit: u64) -> u64 {
    let wanted = listed(tables, app, None, None).filter(|(key, row)| is_dead_wanted(tables, filter, *key, row));
    wanted.take(usize::try_from(limit).unwrap_or(usize::MAX)).count() as u64
}

pub fn dead_letter(tables: &Tables, app: AppKey, key: DeadKey) -> Option<DeadLetter> {
    let row = tables.dead.get(&(key.endpoint, key.message))?;
    let is_shown = row.app == app && row.standing != Standing::Retired;
    is_shown.then(|| letter(tables, app, key, row)).flatten()
}

/// Whether a dead letter fits what the filter says about the row, its message and its last attempt.
pub fn is_dead_wanted(tables: &Tables, filter: &DeadFilter, key: DeadKey, row: &DeadRow) -> bool {
    let at = row.at.as_millis();
    let by_itself = filter.endpoint.is_none_or(|endpoint| endpoint == key.endpoint.raw())
        && (filter.messages.is_empty() || filter.messages.contains(&key.message.raw()))
        && filter.reason.is_none_or(|reason| DeathReason::from(reason) == row.reason)
        && !(filter.but_cancelled && filter.reason.is_none() && row.reason == DeathReason::Cancelled)
        && filter.since.is_none_or(|since| at >= since)
        && filter.until.is_none_or(|until| at < until);
    let Some(message) = tables.messages.get(&key.message).filter(|_| by_itself) else { return false };
    (filter.event_types.is_empty() || filter.event_types.contains(&message.content.event_type))
        && filter.status.is_none_or(|status| last_status(message, key.endpoint) == status)
}

/// The status of the last answer; 0 if the last try got none, or if there was no try.
pub fn last_status(message: &MessageRow, endpoint: EndpointKey) -> u16 {
    let last = message.attempts.iter().rev().find(|attempt| attempt.id.endpoint == endpoint);
    last.and_then(|attempt| attempt.record.status).unwrap_or(0)
}

fn letter(tables: &Tables, app: AppKey, key: DeadKey, row: &DeadRow) -> Option<DeadLetter> {
    let message = tables.messages.get(&key.message).filter(|message| message.app == app)?;
    let attempts = || message.attempts.iter().filter(|attempt| attempt.id.endpoint == key.endpoint);
    Some(DeadLetter {
        message: message.message(),
        endpoint: key.endpoint,
        reason: row.reason,
        at: row.at,
        cycle: row.cycle,
        replayed_at: row.replayed_at,
        attempts: u32::try_from(attempts().count()).unwrap_or(u32::MAX),
        last_attempt: attempts().next_back().cloned(),
    })
}
