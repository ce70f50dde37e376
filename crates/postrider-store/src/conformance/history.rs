//! Looking back: lists, filters, counts, and what was removed on request.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    AppKey, AttemptKey, MessageKey, Timestamp,
    lanes::{Held, HeldBy},
    policy::{DeathReason, Next, Ordering, Progress},
};
use std::time::Duration;

pub async fn messages_are_paged_both_ways<H: Harness>() {
    page_messages(Stage::<H>::set(1).await).await;
}

pub async fn messages_are_paged_both_ways_over_many_pieces<H: Harness>() {
    page_messages(Stage::<H>::set_with(Grain::Fine, 1).await).await;
}

async fn page_messages<H: Harness>(stage: Stage<H>) {
    let other = add_application(stage.store(), None).await.key;
    let mut keys = Vec::new();
    for hour in 0..11 {
        keys.push(stage.accept(at(hour * HOUR)).await);
        accept(stage.store(), message(other, at(hour * HOUR))).await;
    }
    let fetch = async |page| stage.store().messages(stage.app, MessageFilter::default(), page).await.unwrap();
    check_paging(&keys, fetch, |found| found.key).await;
    let fetch = async |page| {
        let of = (stage.app, stage.endpoints[0]);
        stage.store().messages_of_endpoint(of.0, of.1, MessageFilter::default(), vec![], page).await.unwrap()
    };
    check_paging(&keys, fetch, |found| found.0.key).await;
    let filter = MessageFilter { after: Some(at(3 * HOUR)), before: Some(at(8 * HOUR)), ..MessageFilter::default() };
    let fetch = async |page| stage.store().messages(stage.app, filter.clone(), page).await.unwrap();
    check_paging(&keys[3..8], fetch, |found| found.key).await;
}

pub async fn messages_are_filtered<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut keys = Vec::new();
    for (event_type, channels, tags) in [
        ("a.b", vec!["red"], vec![]),
        ("a.b", vec!["red", "blue"], vec!["t"]),
        ("a.c", vec![], vec!["t", "u"]),
        ("a.d", vec!["blue"], vec![]),
        ("a", vec![], vec![]),
    ] {
        let content = Content {
            event_type: event_type.to_owned(),
            channels: channels.into_iter().map(str::to_owned).collect(),
            tags: tags.into_iter().map(str::to_owned).collect(),
            ..content(b"{}")
        };
        let millis = HOUR * keys.len() as i64;
        keys.push(accept(stage.store(), NewMessage { content, ..stage.message(at(millis)) }).await);
    }
    let none = MessageFilter::default;
    let types =
        |names: &[&str]| MessageFilter { event_types: names.iter().map(|&name| name.into()).collect(), ..none() };
    let channel = |name: &str| MessageFilter { channel: Some(name.to_owned()), ..none() };
    let tag = |name: &str| MessageFilter { tag: Some(name.to_owned()), ..none() };
    for (filter, expected) in [
        (none(), vec![0, 1, 2, 3, 4]),
        (types(&["a.b"]), vec![0, 1]),
        (types(&["a.c", "a.d", "x"]), vec![2, 3]),
        (types(&["x"]), vec![]),
        (channel("blue"), vec![1, 3]),
        (channel("bl"), vec![]),
        (tag("t"), vec![1, 2]),
        (MessageFilter { after: Some(at(2 * HOUR)), ..none() }, vec![2, 3, 4]),
        (MessageFilter { before: Some(at(2 * HOUR)), ..none() }, vec![0, 1]),
        (MessageFilter { after: Some(at(HOUR)), before: Some(at(HOUR)), ..none() }, vec![]),
        (MessageFilter { after: Some(at(HOUR)), before: Some(at(HOUR + 1)), ..none() }, vec![1]),
        (MessageFilter { channel: Some("blue".to_owned()), tag: Some("t".to_owned()), ..types(&["a.b"]) }, vec![1]),
        (MessageFilter { after: Some(Timestamp::from_millis(i64::MIN)), ..none() }, vec![0, 1, 2, 3, 4]),
        (MessageFilter { before: Some(Timestamp::from_millis(i64::MAX)), ..none() }, vec![0, 1, 2, 3, 4]),
    ] {
        let expected: Vec<MessageKey> = expected.into_iter().map(|index: usize| keys[index]).collect();
        let found = stage.store().messages(stage.app, filter.clone(), whole()).await.unwrap();
        assert_eq!(found.iter().map(|found| found.key).collect::<Vec<_>>(), expected, "{filter:?}");
        let lane = stage.endpoints[0];
        let found = stage.store().messages_of_endpoint(stage.app, lane, filter.clone(), vec![], whole()).await.unwrap();
        assert_eq!(found.iter().map(|found| found.0.key).collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

pub async fn attempts_come_back_as_they_were_settled<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let progress = |attempts| Progress { attempts, ..Progress::default() };
    let retry = Settlement { progress: progress(1), cycle: 4, ..failed(id, at(1), at(90)) };
    let held = Some(Held { by: HeldBy::Breaker, late: Duration::from_millis(1_234) });
    let none = bytes::Bytes::new();
    let no_answer =
        AttemptRecord { response: "connection refused".into(), held, headers: none, ..record(at(90), None) };
    let last = Settlement {
        progress: progress(2),
        cycle: 4,
        attempt: Some(no_answer),
        next: Next::Dead(DeathReason::Exhausted),
        ..stored(refused(id, at(91)))
    };
    stage.settle(retry.clone()).await;
    stage.settle(last.clone()).await;
    let stage = stage.crash(at(100)).await;
    let found = attempts_of(stage.store(), id.message).await;
    assert_eq!(found.len(), 2);
    for (attempt, settlement) in found.into_iter().zip([retry, last]) {
        let (next, death) = match settlement.next {
            Next::Retry { due, delay } => (Some((due, delay)), None),
            Next::Dead(reason) => (None, Some(reason)),
            Next::Delivered | Next::Nothing | Next::Postponed { .. } => (None, None),
        };
        let expected = Attempt {
            key: attempt.key,
            id,
            cycle: 4,
            number: settlement.progress.attempts,
            record: settlement.attempt.expect("it was tried"),
            expunged: false,
            next,
            death,
        };
        assert_eq!(attempt, expected);
        assert_eq!(stage.store().attempt(id.message, attempt.key).await.unwrap(), Some(attempt));
    }
    assert_eq!(stage.store().attempt(id.message, AttemptKey::new(1)).await.unwrap(), None);
    assert_eq!(stage.store().attempt(MessageKey::new(1), AttemptKey::new(1)).await.unwrap(), None);
}

pub async fn attempts_are_paged_both_ways<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let messages = stage.accept_many(7, START).await;
    // Each round tries all messages, so that the attempts of one piece lie between those of others.
    for round in 1..3 {
        for message in &messages {
            for lane in &stage.endpoints {
                stage.settle(failed(scheduled(*lane, *message), at(round * 10), at(round * 10))).await;
            }
        }
    }
    let mut of_first = Vec::new();
    for message in &messages {
        let attempts = attempts_of(stage.store(), *message).await;
        assert_eq!(attempts.len(), 4);
        of_first.extend(attempts.iter().filter(|found| found.id.endpoint == stage.endpoints[0]).map(|found| found.key));
        let of = AttemptsOf::Message(*message);
        let keys: Vec<_> = attempts.iter().map(|found| found.key).collect();
        let fetch = async |page| stage.store().attempts(of, AttemptFilter::default(), page).await.unwrap();
        check_paging(&keys, fetch, |found| found.key).await;
    }
    of_first.sort_unstable();
    let of = AttemptsOf::Endpoint(stage.app, stage.endpoints[0]);
    let fetch = async |page| stage.store().attempts(of, AttemptFilter::default(), page).await.unwrap();
    check_paging(&of_first, fetch, |found| found.key).await;
}

pub async fn attempts_are_filtered<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let mut settled = Vec::new();
    for (status, hour) in [Some(200), Some(204), Some(301), Some(404), Some(503), None].into_iter().zip(1..) {
        let content = Content {
            event_type: if hour % 2 == 0 { "even" } else { "odd" }.to_owned(),
            channels: vec![format!("c{hour}")],
            tags: vec![format!("t{hour}")],
            ..content(b"{}")
        };
        let message = accept(stage.store(), NewMessage { content, ..stage.message(START) }).await;
        for lane in &stage.endpoints {
            let attempt = Some(record(at(hour * HOUR), status));
            stage.settle(Settlement { attempt, ..delivered(scheduled(*lane, message), at(hour * HOUR)) }).await;
        }
        settled.push(message);
    }
    let none = AttemptFilter::default;
    let of_message = |message| AttemptFilter { message, ..none() };
    let all = MessageFilter::default;
    for (filter, expected) in [
        (none(), vec![0, 1, 2, 3, 4, 5]),
        (AttemptFilter { succeeded: Some(true), ..none() }, vec![0, 1]),
        (AttemptFilter { succeeded: Some(false), ..none() }, vec![2, 3, 4, 5]),
        (AttemptFilter { status_class: Some(2), ..none() }, vec![0, 1]),
        (AttemptFilter { status_class: Some(5), ..none() }, vec![4]),
        (AttemptFilter { status_class: Some(0), ..none() }, vec![5]),
        (AttemptFilter { status_class: Some(1), ..none() }, vec![]),
        (of_message(MessageFilter { event_types: vec!["even".to_owned()], ..all() }), vec![1, 3, 5]),
        (of_message(MessageFilter { channel: Some("c3".to_owned()), ..all() }), vec![2]),
        (of_message(MessageFilter { tag: Some("t4".to_owned()), ..all() }), vec![3]),
        (of_message(MessageFilter { after: Some(at(5 * HOUR)), ..all() }), vec![4, 5]),
        (of_message(MessageFilter { before: Some(at(2 * HOUR)), ..all() }), vec![0]),
    ] {
        let expected: Vec<MessageKey> = expected.into_iter().map(|index: usize| settled[index]).collect();
        let of = AttemptsOf::Endpoint(stage.app, stage.endpoints[1]);
        let found = stage.store().attempts(of, filter.clone(), whole()).await.unwrap();
        assert_eq!(found.iter().map(|found| found.id.message).collect::<Vec<_>>(), expected, "{filter:?}");
        assert!(found.iter().all(|found| found.id.endpoint == stage.endpoints[1]));
        for message in &settled {
            let filter = AttemptFilter { endpoint: Some(stage.endpoints[0]), ..filter.clone() };
            let found = stage.store().attempts(AttemptsOf::Message(*message), filter, whole()).await.unwrap();
            assert_eq!(found.len(), usize::from(expected.contains(message)));
            assert!(found.iter().all(|found| found.id == scheduled(stage.endpoints[0], *message)));
        }
    }
}

pub async fn messages_of_an_endpoint_are_listed_with_their_states<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let messages = stage.accept_many(6, START).await;
    let ids: Vec<_> = messages.iter().map(|message| stage.first(*message)).collect();
    let elsewhere = NewMessage { owed: vec![stage.endpoints[1]], ..stage.message(START) };
    accept(stage.store(), elsewhere).await;
    stage.store().spill(stage.store().tenure(), unordered(vec![ids[1]]), at(5)).await.unwrap();
    settle(stage.store(), vec![failed(ids[2], at(1), at(7)), delivered(ids[3], at(1)), refused(ids[4], at(1))]).await;
    let dead = DeliveryState::Dead { at: at(1), reason: DeathReason::Permanent };
    let all = [
        DeliveryState::Pending { due: None },
        DeliveryState::Pending { due: Some(at(5)) },
        DeliveryState::Sending { due: at(7) },
        DeliveryState::Delivered,
        dead,
        DeliveryState::Pending { due: None },
    ];
    for (states, expected) in [
        (vec![], vec![0, 1, 2, 3, 4, 5]),
        (vec![StateKind::Pending], vec![0, 1, 5]),
        (vec![StateKind::Sending], vec![2]),
        (vec![StateKind::Delivered], vec![3]),
        (vec![StateKind::Dead], vec![4]),
        (vec![StateKind::Dead, StateKind::Pending], vec![0, 1, 4, 5]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|index: usize| (messages[index], all[index])).collect();
        let (filter, lane) = (MessageFilter::default(), stage.endpoints[0]);
        let fetch = async |page| {
            stage.store().messages_of_endpoint(stage.app, lane, filter.clone(), states.clone(), page).await.unwrap()
        };
        let found: Vec<_> = fetch(whole()).await.into_iter().map(|(message, state)| (message.key, state)).collect();
        assert_eq!(found, expected, "{states:?}");
        let keys: Vec<_> = expected.iter().map(|(key, _)| *key).collect();
        check_paging(&keys, fetch, |found| found.0.key).await;
    }
}

pub async fn a_search_finds_by_state_and_endpoint<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let messages = stage.accept_many(5, START).await;
    let ids: Vec<_> = messages.iter().map(|message| stage.first(*message)).collect();
    let elsewhere = NewMessage { owed: vec![stage.endpoints[1]], ..stage.message(at(HOUR)) };
    let elsewhere = accept(stage.store(), elsewhere).await;
    let to_nobody = NewMessage { owed: Vec::new(), ..stage.message(at(2 * HOUR)) };
    let to_nobody = accept(stage.store(), to_nobody).await;
    accept(stage.store(), message(add_application(stage.store(), None).await.key, at(HOUR))).await;
    settle(stage.store(), vec![failed(ids[1], at(1), at(7)), delivered(ids[2], at(1)), refused(ids[3], at(1))]).await;
    let all = [&messages[..], &[elsewhere, to_nobody]].concat();
    let [one, other] = [stage.endpoints[0], stage.endpoints[1]];
    for (endpoint, states, expected) in [
        (None, vec![], vec![6, 5, 4, 3, 2, 1, 0]),
        (None, vec![StateKind::Dead], vec![3]),
        (None, vec![StateKind::Sending, StateKind::Delivered], vec![2, 1]),
        (None, vec![StateKind::Pending], vec![5, 4, 3, 2, 1, 0]),
        (None, vec![StateKind::Cancelled], vec![]),
        (Some(one), vec![], vec![4, 3, 2, 1, 0]),
        (Some(one), vec![StateKind::Pending], vec![4, 0]),
        (Some(other), vec![StateKind::Dead], vec![]),
        (Some(other), vec![StateKind::Pending], vec![5, 4, 3, 2, 1, 0]),
    ] {
        let search = Search { endpoint, states: states.clone(), limit: 50, look_max: 50, ..Search::default() };
        let searched = stage.store().search(Some(stage.app), search).await.unwrap();
        let found: Vec<_> = searched.found.iter().map(|(message, _)| message.key).collect();
        let expected: Vec<_> = expected.into_iter().map(|index: usize| all[index]).collect();
        assert_eq!((found, searched.until), (expected, None), "{endpoint:?} {states:?}");
        for (message, found) in searched.found {
            let known = stage.store().deliveries(message.key).await.unwrap();
            let known: Vec<_> = known.into_iter().filter(|(key, _)| endpoint.is_none_or(|it| it == *key)).collect();
            assert_eq!(found, known);
        }
    }
}

pub async fn a_search_says_how_far_it_looked<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut rare = Vec::new();
    for hour in 0..23 {
        let tags = if hour % 10 == 0 { vec!["rare".to_owned()] } else { Vec::new() };
        let content = Content { tags, ..content(b"{}") };
        let key = accept(stage.store(), NewMessage { content, ..stage.message(at(hour * HOUR)) }).await;
        rare.extend((hour % 10 == 0).then_some(key));
    }
    rare.reverse();
    let filter = MessageFilter { tag: Some("rare".to_owned()), ..MessageFilter::default() };
    for (limit, look_max) in [(50, 50), (1, 50), (2, 4), (50, 1), (50, 23)] {
        let mut search = Search { filter: filter.clone(), limit, look_max, ..Search::default() };
        let (mut found, mut looks) = (Vec::new(), 0);
        loop {
            let searched = stage.store().search(Some(stage.app), search.clone()).await.unwrap();
            assert!(searched.found.len() <= limit);
            found.extend(searched.found.into_iter().map(|(message, _)| message.key));
            looks += 1;
            let Some(until) = searched.until else { break };
            assert!(search.past.is_none_or(|past| until < past), "it goes on");
            search.past = Some(until);
        }
        assert_eq!(found, rare, "{limit} {look_max}");
        assert!(looks >= 23 / look_max, "it looked at no more than it was allowed to: {looks}");
    }
    let two = Stage::<H>::set(2).await;
    two.accept_many(4, START).await;
    let search = Search { states: vec![StateKind::Dead], limit: 50, look_max: 4, ..Search::default() };
    let searched = two.store().search(Some(two.app), search).await.unwrap();
    assert!(searched.until.is_some(), "four messages for two endpoints each are more than four looks");
    let within = MessageFilter { after: Some(at(5 * HOUR)), before: Some(at(15 * HOUR)), ..filter };
    let search = Search { filter: within, limit: 50, look_max: 50, ..Search::default() };
    let searched = stage.store().search(Some(stage.app), search).await.unwrap();
    assert_eq!(searched.found.into_iter().map(|(message, _)| message.key).collect::<Vec<_>>(), [rare[1]]);
}

pub async fn a_search_goes_over_all_applications_but_the_operational_one<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let store = stage.store();
    let other = add_application(store, None).await.key;
    store.put_application(application(OPERATIONAL, None), Expect::Absent, None).await.expect("it is put");
    let mut all = Vec::new();
    for (hour, app) in [stage.app, other, OPERATIONAL, stage.app, other].into_iter().enumerate() {
        let owed = if app == stage.app { stage.endpoints.clone() } else { Vec::new() };
        let new = NewMessage { owed, ..message(app, at(hour as i64 * HOUR)) };
        all.push((app, accept(store, new).await));
    }
    all.reverse();
    let of = |app: Option<AppKey>| {
        let kept = all.iter().filter(move |(of, _)| app.map_or(*of != OPERATIONAL, |app| *of == app));
        kept.map(|(_, key)| *key).collect::<Vec<_>>()
    };
    for (app, limit, look_max) in [(None, 50, 50), (None, 1, 50), (None, 50, 2), (Some(other), 50, 1)] {
        let mut search = Search { limit, look_max, ..Search::default() };
        let mut found = Vec::new();
        loop {
            let searched = store.search(app, search.clone()).await.unwrap();
            found.extend(searched.found.into_iter().map(|(message, _)| message.key));
            let Some(until) = searched.until else { break };
            search.past = Some(until);
        }
        assert_eq!(found, of(app), "{app:?} {limit} {look_max}");
    }
    let sent = Search { states: vec![StateKind::Pending], limit: 50, look_max: 50, ..Search::default() };
    let found = store.search(None, sent).await.unwrap().found;
    assert!(
        found.iter().all(|(message, _)| message.app == stage.app) && found.len() == 2,
        "what is owed to nobody is not pending"
    );
}

pub async fn a_message_belongs_to_its_application<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let message = stage.accept(START).await;
    let other = add_application(stage.store(), None).await.key;
    assert_eq!(stage.store().message(other, By::Key(message)).await.unwrap(), None);
    assert_eq!(stage.store().message(stage.app, By::Key(MessageKey::new(1))).await.unwrap(), None);
    assert!(!stage.store().expunge_message(other, message).await.unwrap());
    assert!(!stage.store().message(stage.app, By::Key(message)).await.unwrap().expect("it is there").payload_gone);
    let of_other =
        stage.store().messages_of_endpoint(other, stage.endpoints[0], MessageFilter::default(), vec![], whole());
    assert_eq!(of_other.await.unwrap(), []);
}

pub async fn statistics_look_at_the_time_of_acceptance<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let mut ids = Vec::new();
    for hour in 0..8 {
        ids.push(stage.first(stage.accept(at(hour * HOUR)).await));
    }
    let when = at(100 * HOUR);
    for pair in ids.chunks(2) {
        settle(stage.store(), vec![delivered(pair[0], when), failed(pair[1], when, when)]).await;
    }
    for (since, until, success, sending) in [
        (at(0), at(8 * HOUR), 4, 4),
        (at(2 * HOUR), at(5 * HOUR), 2, 1),
        (at(2 * HOUR), at(2 * HOUR), 0, 0),
        (at(2 * HOUR + 1), at(3 * HOUR + 1), 0, 1),
        (at(8 * HOUR), at(200 * HOUR), 0, 0),
        (Timestamp::from_millis(i64::MIN), Timestamp::from_millis(i64::MAX), 4, 4),
    ] {
        let expected = Stats { success, sending, ..Stats::default() };
        let found = stage.store().stats(stage.endpoints[0], since, until).await.unwrap();
        assert_eq!(found, expected, "{since:?} to {until:?}");
        let other = stage.store().stats(stage.endpoints[1], since, until).await.unwrap();
        assert_eq!(other, Stats { pending: success + sending, ..Stats::default() }, "nothing has happened there");
    }
}

pub async fn an_expunged_payload_is_gone_for_good<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let message = stage.accept(START).await;
    stage.store().spill(stage.store().tenure(), unordered(vec![stage.first(message)]), at(1)).await.unwrap();
    assert!(stage.store().expunge_message(stage.app, message).await.unwrap());
    assert!(!stage.store().expunge_message(stage.app, MessageKey::new(1)).await.unwrap());
    let stage = stage.crash(at(2)).await;
    let found = stage.store().message(stage.app, By::Key(message)).await.unwrap().expect("the record stays");
    assert!(found.payload_gone);
    assert_eq!((found.content.payload.len(), found.owed.len()), (0, 1));
    let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(9), 10).await.unwrap();
    assert_eq!(loaded.deliveries[0].letter.payload, None);
}

pub async fn an_expunged_response_is_gone_for_good<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let message = stage.accept(START).await;
    stage.settle(delivered(stage.first(message), at(1))).await;
    let before = attempts_of(stage.store(), message).await.remove(0);
    assert!(stage.store().expunge_attempt(message, before.key).await.unwrap());
    assert!(!stage.store().expunge_attempt(message, AttemptKey::new(1)).await.unwrap());
    assert!(!stage.store().expunge_attempt(MessageKey::new(1), before.key).await.unwrap());
    let after = stage.store().attempt(message, before.key).await.unwrap().expect("the record stays");
    let gone = bytes::Bytes::new();
    let record = AttemptRecord { response: gone.clone(), headers: gone, ..before.record.clone() };
    assert_eq!(after, Attempt { expunged: true, record, ..before });
}

pub async fn an_empty_page_is_empty<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let message = stage.accept(START).await;
    stage.settle(delivered(stage.first(message), at(1))).await;
    let (store, app, lane) = (stage.store(), stage.app, stage.endpoints[0]);
    let all = MessageFilter::default;
    assert_eq!(store.applications(Page { limit: 0, ..whole::<AppKey>() }).await.unwrap(), []);
    assert_eq!(store.messages(app, all(), Page { limit: 0, ..whole() }).await.unwrap(), []);
    let owed = store.messages_of_endpoint(app, lane, all(), vec![], Page { limit: 0, ..whole() }).await;
    assert_eq!(owed.unwrap(), []);
    for of in [AttemptsOf::Message(message), AttemptsOf::Endpoint(app, lane)] {
        let attempts = store.attempts(of, AttemptFilter::default(), Page { limit: 0, ..whole() }).await;
        assert_eq!(attempts.unwrap(), []);
    }
}
