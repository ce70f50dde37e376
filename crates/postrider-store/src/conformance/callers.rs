//! Who may call, who may no more, and who did.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{AppKey, Timestamp};
use std::time::Duration;

const ACME: AppKey = AppKey::new(7);
const OTHER: AppKey = AppKey::new(8);
const KEEP: Retention = Retention {
    payloads: Duration::from_hours(48),
    attempts: Duration::from_hours(48),
    dead_letters: Duration::from_hours(48),
    idempotency: Duration::from_hours(24),
};

fn api_key(key: i64) -> ApiKey {
    ApiKey {
        key: ApiKeyKey(key),
        hash: [u8::try_from(key % 251).unwrap_or(0); 32],
        name: "Nörd's \"key\"".to_owned(),
        scopes: vec!["ingest".to_owned(), "read".to_owned()],
        app: None,
        created_at: START,
        expires_at: None,
        revoked_at: None,
        used_at: None,
    }
}

fn entry(key: i64, at: Timestamp, actor: &str, operation: &str) -> AuditEntry {
    AuditEntry {
        key: AuditKey(key),
        at,
        actor: actor.to_owned(),
        token: None,
        operation: operation.to_owned(),
        objects: Metadata::new(),
        origin: None,
        status: 200,
    }
}

fn issued(id: u8, app: Option<AppKey>, session: Option<&str>, at: Timestamp) -> Issued {
    Issued { id: TokenId([id; 16]), app, session: session.map(str::to_owned), at }
}

/// At once.
fn all_until(app: AppKey, session: Option<&str>, until: Timestamp) -> Revocation {
    Revocation::Issued { app, session: session.map(str::to_owned), until, at: until, forget_at: None }
}

pub async fn an_api_key_comes_back_as_it_was_put<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let full = ApiKey {
        app: Some(ACME),
        scopes: Vec::new(),
        expires_at: Some(at(5)),
        revoked_at: Some(at(6)),
        used_at: Some(at(7)),
        hash: std::array::from_fn(|place| u8::try_from(place).unwrap_or(0)),
        ..api_key(2)
    };
    for expected in [api_key(1), full] {
        store.put_api_key(expected.clone()).await.unwrap();
        assert_eq!(store.api_key(expected.key).await.unwrap(), Some(expected));
    }
    assert_eq!(store.api_key(ApiKeyKey(3)).await.unwrap(), None);
    let again = ApiKey { name: "another".to_owned(), ..api_key(1) };
    assert!(matches!(store.put_api_key(again).await, Err(PutError::Taken)));
    assert_eq!(store.api_key(ApiKeyKey(1)).await.unwrap(), Some(api_key(1)));
}

pub async fn api_keys_are_paged_both_ways<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    for key in 1..=5 {
        store.put_api_key(api_key(key)).await.unwrap();
    }
    let keys = [1, 2, 3, 4, 5].map(ApiKeyKey);
    check_paging(&keys, async |page| store.api_keys(page).await.unwrap(), |found| found.key).await;
}

pub async fn a_revoked_api_key_stays_revoked<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    store.put_api_key(api_key(1)).await.unwrap();
    for later in [5, 9] {
        let told = store.revoke_api_key(ApiKeyKey(1), at(later)).await.unwrap();
        assert_eq!(told, Some(ApiKey { revoked_at: Some(at(5)), ..api_key(1) }), "the first time counts");
    }
    assert_eq!(store.revoke_api_key(ApiKeyKey(2), at(5)).await.unwrap(), None);
    let found = store.api_key(ApiKeyKey(1)).await.unwrap().unwrap();
    assert!(found.holds(at(4)) && !found.holds(at(5)));
}

pub async fn a_rotated_api_key_ends_after_the_overlap<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let new = |key, made| ApiKey { created_at: at(made), ..api_key(key) };
    store.put_api_key(api_key(1)).await.unwrap();
    store.rotate_api_key(ApiKeyKey(1), at(100), new(2, 10)).await.unwrap();
    let old = store.api_key(ApiKeyKey(1)).await.unwrap().unwrap();
    assert_eq!((old.revoked_at, old.holds(at(99)), old.holds(at(100))), (Some(at(100)), true, false));
    assert_eq!(old.expires_at, None, "how long it was to live is still known");
    assert_eq!(store.api_key(ApiKeyKey(2)).await.unwrap(), Some(new(2, 10)));

    let again = store.rotate_api_key(ApiKeyKey(1), at(500), new(3, 20)).await;
    assert!(matches!(again, Err(PutError::Changed)), "it has been replaced: {again:?}");
    let sooner = store.revoke_api_key(ApiKeyKey(1), at(60)).await.unwrap().unwrap();
    assert_eq!(sooner.revoked_at, Some(at(60)), "its end can be brought forward");
    let later = store.revoke_api_key(ApiKeyKey(1), at(70)).await.unwrap().unwrap();
    assert_eq!(later.revoked_at, Some(at(60)), "and is never put off");

    store.put_api_key(api_key(3)).await.unwrap();
    let taken = store.rotate_api_key(ApiKeyKey(2), at(50), new(3, 30)).await;
    assert!(matches!(taken, Err(PutError::Taken)), "{taken:?}");
    assert_eq!(store.api_key(ApiKeyKey(2)).await.unwrap().unwrap().revoked_at, None, "nothing has changed");
    store.revoke_api_key(ApiKeyKey(2), at(40)).await.unwrap();
    for (gone, now) in [(1, 100), (2, 40), (9, 10)] {
        let refused = store.rotate_api_key(ApiKeyKey(gone), at(900), new(4, now)).await;
        assert!(matches!(refused, Err(PutError::Changed)), "{gone}: {refused:?}");
    }
    assert_eq!(store.api_key(ApiKeyKey(4)).await.unwrap(), None);
}

pub async fn a_last_use_never_goes_back<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    store.put_api_key(api_key(1)).await.unwrap();
    store.put_api_key(api_key(2)).await.unwrap();
    let use_of = async |key| store.api_key(ApiKeyKey(key)).await.unwrap().unwrap().used_at;
    store.note_api_key_uses(vec![(ApiKeyKey(1), at(5)), (ApiKeyKey(9), at(5))]).await.unwrap();
    assert_eq!((use_of(1).await, use_of(2).await), (Some(at(5)), None));
    store.note_api_key_uses(vec![(ApiKeyKey(1), at(4)), (ApiKeyKey(2), at(4)), (ApiKeyKey(2), at(6))]).await.unwrap();
    assert_eq!((use_of(1).await, use_of(2).await), (Some(at(5)), Some(at(6))));
    store.note_api_key_uses(Vec::new()).await.unwrap();
}

pub async fn a_revoked_token_is_known_by_its_id<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let revoke = |id, from| Revocation::Token { id: TokenId([id; 16]), at: at(from), forget_at: at(HOUR) };
    store.revoke_tokens(vec![revoke(1, 10), revoke(2, 10)]).await.unwrap();
    store.revoke_tokens(vec![revoke(1, 20), revoke(2, 5)]).await.unwrap();
    for (id, now, revoked) in
        [(1, 9, false), (1, 10, true), (1, DAY, true), (2, 4, false), (2, 5, true), (3, DAY, false)]
    {
        for app in [None, Some(ACME)] {
            let token = issued(id, app, None, START);
            assert_eq!(store.is_revoked(token, at(now)).await.unwrap(), revoked, "{id} at {now}");
        }
    }
}

pub async fn what_was_issued_up_to_a_moment_is_revoked<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let is_revoked =
        async |app, session, made, now| store.is_revoked(issued(1, app, session, at(made)), at(now)).await.unwrap();
    assert!(!is_revoked(Some(ACME), None, 0, DAY).await);
    store.revoke_tokens(vec![all_until(ACME, Some("mine"), at(100))]).await.unwrap();
    for (app, session, made, now, revoked) in [
        (Some(ACME), Some("mine"), 0, 100, true),
        (Some(ACME), Some("mine"), 100, 100, true),
        (Some(ACME), Some("mine"), 101, 200, false),
        (Some(ACME), Some("mine"), 0, 99, false),
        (Some(ACME), Some("Mine"), 0, 100, false),
        (Some(ACME), None, 0, 100, false),
        (Some(OTHER), Some("mine"), 0, 100, false),
        (None, Some("mine"), 0, 100, false),
    ] {
        assert_eq!(is_revoked(app, session, made, now).await, revoked, "{app:?} {session:?} {made} {now}");
    }

    store.revoke_tokens(vec![all_until(ACME, None, at(200))]).await.unwrap();
    assert!(is_revoked(Some(ACME), None, 200, 200).await && is_revoked(Some(ACME), Some("any"), 200, 200).await);
    assert!(!is_revoked(Some(ACME), None, 201, 300).await && !is_revoked(Some(OTHER), None, 0, 300).await);

    // Those that end later do not put off the end of those that have ended.
    let later = Revocation::Issued { app: ACME, session: None, until: at(300), at: at(900), forget_at: None };
    store.revoke_tokens(vec![later]).await.unwrap();
    for (made, now, revoked) in [(200, 300, true), (250, 899, false), (250, 900, true), (301, 900, false)] {
        assert_eq!(is_revoked(Some(ACME), None, made, now).await, revoked, "{made} at {now}");
    }
    store.revoke_tokens(vec![all_until(ACME, None, at(400)), all_until(ACME, None, at(400))]).await.unwrap();
    assert!(is_revoked(Some(ACME), None, 250, 400).await);
}

pub async fn revocations_are_forgotten_once_nothing_needs_them<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let token = Revocation::Token { id: TokenId([1; 16]), at: at(10), forget_at: at(HOUR) };
    let session = Revocation::Issued {
        app: ACME,
        session: Some("mine".to_owned()),
        until: at(10),
        at: at(10),
        forget_at: Some(at(HOUR)),
    };
    store.revoke_tokens(vec![token, session, all_until(OTHER, None, at(10))]).await.unwrap();
    let all =
        [issued(1, None, None, START), issued(2, Some(ACME), Some("mine"), START), issued(3, Some(OTHER), None, START)];
    for (now, expected) in [(HOUR, [true, true, true]), (HOUR + 1, [false, false, true])] {
        tidy_up(store, at(now), KEEP).await;
        for (token, revoked) in all.iter().zip(expected) {
            assert_eq!(store.is_revoked(token.clone(), at(now)).await.unwrap(), revoked, "{token:?} at {now}");
        }
    }
}

pub async fn the_audit_log_is_filtered_and_paged<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let mut keys = Vec::new();
    for number in 0..6 {
        let made_at = at(number * HOUR);
        let key = store.mint(made_at).await.unwrap();
        let actor = if number % 2 == 0 { "even" } else { "odd" };
        let operation = if number < 3 { "v1.a" } else { "v1.b" };
        let plain = entry(key, made_at, actor, operation);
        let full = AuditEntry {
            token: Some("j\"ti".to_owned()),
            objects: [("app_id".to_owned(), "ä'".to_owned())].into(),
            origin: Some("2001:db8::".to_owned()),
            status: 599,
            ..plain.clone()
        };
        let added = if number == 0 { full } else { plain };
        store.add_to_audit(vec![added.clone()]).await.unwrap();
        keys.push(key);
        let page = Page { from: None, order: Order::Descending, limit: 1 };
        assert_eq!(store.audit(AuditFilter::default(), page).await.unwrap(), [added]);
    }
    let list = async |filter: AuditFilter, order| {
        let place = |entry: AuditEntry| keys.iter().position(|key| *key == entry.key.0).unwrap();
        let page = Page { from: None, order, limit: 100 };
        store.audit(filter, page).await.unwrap().into_iter().map(place).collect::<Vec<_>>()
    };
    let all = AuditFilter::default;
    assert_eq!(list(all(), Order::Descending).await, [5, 4, 3, 2, 1, 0]);
    let (even, b) = (Some("even".to_owned()), Some("v1.b".to_owned()));
    assert_eq!(list(AuditFilter { actor: even.clone(), ..all() }, Order::Ascending).await, [0, 2, 4]);
    assert_eq!(list(AuditFilter { operation: b.clone(), ..all() }, Order::Ascending).await, [3, 4, 5]);
    assert_eq!(list(AuditFilter { actor: even, operation: b, ..all() }, Order::Ascending).await, [4]);
    let between = AuditFilter { after: Some(at(HOUR)), before: Some(at(3 * HOUR)), ..all() };
    assert_eq!(list(between, Order::Ascending).await, [1, 2]);
    let page = Page { from: Some(Cut::Past(AuditKey(keys[4]))), order: Order::Descending, limit: 2 };
    let found = store.audit(all(), page).await.unwrap();
    assert_eq!(found.iter().map(|entry| entry.key.0).collect::<Vec<_>>(), [keys[3], keys[2]]);
}

pub async fn what_is_known_of_callers_outlives_a_restart_and_a_crash<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let added = {
        let store = harness.store();
        store.put_api_key(api_key(1)).await.unwrap();
        let token = Revocation::Token { id: TokenId([1; 16]), at: START, forget_at: at(HOUR) };
        store.revoke_tokens(vec![token, all_until(ACME, None, START)]).await.unwrap();
        let added = entry(store.mint(START).await.unwrap(), START, "someone", "v1.a");
        store.add_to_audit(vec![added.clone()]).await.unwrap();
        added
    };
    let harness = harness.reopen(at(1)).await.crash(at(2)).await;
    let store = harness.store();
    assert_eq!(store.api_key(ApiKeyKey(1)).await.unwrap(), Some(api_key(1)));
    for token in [issued(1, None, None, START), issued(2, Some(ACME), None, START)] {
        assert!(store.is_revoked(token, at(3)).await.unwrap());
    }
    let page = Page { from: None, order: Order::Ascending, limit: 10 };
    assert_eq!(store.audit(AuditFilter::default(), page).await.unwrap(), std::slice::from_ref(&added));
    assert!(store.mint(START).await.unwrap() > added.key.0, "a key of the log is not given out again");
}
