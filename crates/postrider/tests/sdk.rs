//! The real binary, driven through the official SDK. Whatever arrives is checked by the official verifiers.

mod support;

use http::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};
use support::{
    PATIENCE, eventually,
    receiver::{Answer, Arrival, Receiver},
    server::Server,
    stores::{StoreKind, on_both_stores},
};
use svix::{
    Svix,
    api::*,
    error::Error,
    models::{
        AppPortalAccessIn, AppPortalCapability, AppUsageStatsIn, ApplicationIn, ApplicationTokenExpireIn,
        BackgroundTaskStatus, BackgroundTaskType, BulkExpungeContentsIn, BulkExpungeStatus, BulkReplayIn,
        EndpointHeadersIn, EndpointHeadersPatchIn, EndpointIn, EndpointPatch, EndpointSecretRotateIn, EndpointStats,
        EndpointUpsertIn, EventExampleIn, EventTypeIn, EventTypePatch, EventTypeUpsertIn, MessageAttemptOut,
        MessageAttemptTriggerType, MessageEndpointOut, MessageIn, MessageOut, MessageStatus, MessageStatusText,
        Ordering, RecoverIn, ReplayIn, StatusCodeClass,
    },
};

async fn an_application_is_made_found_changed_and_deleted(store: StoreKind) {
    let world = World::start_on(store);
    let applications = world.svix.application();

    let wanted = ApplicationIn {
        uid: Some("shop".to_owned()),
        metadata: Some(map([("plan", "gold")])),
        ..ApplicationIn::new("Shop".to_owned())
    };
    let shop = applications.create(wanted.clone(), None).await.expect("created");
    assert!(shop.id.starts_with("app_") && shop.id.len() == 31, "{}", shop.id);
    assert_eq!((shop.name.as_str(), shop.uid.as_deref()), ("Shop", Some("shop")));
    assert_eq!(shop.metadata, map([("plan", "gold")]));
    assert_eq!(refused(applications.create(wanted.clone(), None).await), (409, "conflict".to_owned()));
    assert_eq!(applications.get_or_create(wanted.clone(), None).await.expect("found"), shop);
    for name in ["shop", &shop.id] {
        assert_eq!(applications.get(name.to_owned()).await.expect("found"), shop);
    }

    let renamed = ApplicationIn { uid: wanted.uid, ..ApplicationIn::new("Store".to_owned()) };
    let renamed = applications.upsert("shop".to_owned(), renamed).await.expect("updated");
    assert_eq!((&renamed.id, renamed.name.as_str()), (&shop.id, "Store"));
    assert_eq!(renamed.metadata, map([]), "what an update leaves out is taken away");
    let made = ApplicationIn { uid: Some("made".to_owned()), ..ApplicationIn::new("Made".to_owned()) };
    assert_ne!(applications.upsert("made".to_owned(), made).await.expect("created").id, shop.id);

    let patched = applications.patch("shop".to_owned(), patch(json!({"throttleRate": 7}))).await.expect("patched");
    assert_eq!(
        (patched.name.as_str(), patched.uid.as_deref(), patched.throttle_rate),
        ("Store", Some("shop"), Some(7))
    );
    let patched = applications.patch("shop".to_owned(), patch(json!({"uid": null}))).await.expect("patched");
    assert_eq!((patched.uid.as_deref(), patched.throttle_rate), (None, Some(7)));
    assert_eq!(refused(applications.get("shop".to_owned()).await), (404, "not_found".to_owned()));

    applications.delete(shop.id.clone()).await.expect("deleted");
    assert_eq!(refused(applications.delete(shop.id).await), (404, "not_found".to_owned()));
}

async fn lists_of_applications_are_walked_to_the_end_and_back(store: StoreKind) {
    let world = World::start_on(store);
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(world.application(&format!("n{n}")).await);
    }
    for (order, expected) in [
        (None, ids.clone()),
        (Some(Ordering::Ascending), ids.clone()),
        (Some(Ordering::Descending), ids.iter().rev().cloned().collect()),
    ] {
        walk(&expected, async |iterator| {
            let options = ApplicationListOptions { limit: Some(2), iterator, order, ..Default::default() };
            page!(world.svix.application().list(Some(options)).await, id)
        })
        .await;
    }
    let wrong = ApplicationListOptions { iterator: Some("app_nowhere".to_owned()), ..Default::default() };
    assert_eq!(refused(world.svix.application().list(Some(wrong)).await), (422, "query.iterator".to_owned()));
    let greedy = ApplicationListOptions { limit: Some(251), ..Default::default() };
    assert_eq!(refused(world.svix.application().list(Some(greedy)).await), (422, "query.limit".to_owned()));
}

async fn an_event_type_is_made_found_changed_archived_and_expunged(store: StoreKind) {
    let world = World::start_on(store);
    let types = world.svix.event_type();
    let schemas = json!({"1": {"type": "object", "examples": [{"total": 12}]}});

    let wanted = EventTypeIn {
        schemas: Some(schemas.clone()),
        group_name: Some("billing".to_owned()),
        ..EventTypeIn::new("invoice.paid".to_owned(), "Paid".to_owned())
    };
    let made = types.create(wanted.clone(), None).await.expect("created");
    assert_eq!((made.name.as_str(), made.archived, made.deprecated), ("invoice.paid", Some(false), false));
    assert_eq!((&made.schemas, made.group_name.as_deref()), (&Some(schemas.clone()), Some("billing")));
    assert_eq!(refused(types.create(wanted.clone(), None).await), (409, "event_type_exists".to_owned()));
    assert_eq!(types.get("invoice.paid".to_owned()).await.expect("found"), made);

    let changed = EventTypeUpsertIn::new("Paid in full".to_owned());
    let changed = types.upsert("invoice.paid".to_owned(), changed).await.expect("updated");
    assert_eq!((changed.description.as_str(), changed.schemas), ("Paid in full", None));
    let fresh = EventTypeUpsertIn::new("Sent".to_owned());
    assert_eq!(types.upsert("invoice.sent".to_owned(), fresh).await.expect("created").name, "invoice.sent");

    let back: EventTypePatch = patch(json!({"schemas": schemas, "deprecated": true}));
    let back = types.patch("invoice.paid".to_owned(), back).await.expect("patched");
    assert_eq!((back.description.as_str(), &back.schemas), ("Paid in full", &Some(schemas)));
    assert!(back.deprecated);
    let bare = types.patch("invoice.paid".to_owned(), patch(json!({"schemas": null}))).await.expect("patched");
    assert_eq!((bare.description.as_str(), bare.schemas), ("Paid in full", None));

    types.delete("invoice.paid".to_owned(), None).await.expect("archived");
    let names = async |include_archived| {
        let options = EventTypeListOptions { include_archived, ..Default::default() };
        page!(types.list(Some(options)).await, name).ids
    };
    assert_eq!(names(None).await, ["invoice.sent"]);
    assert_eq!(names(Some(true)).await, ["invoice.paid", "invoice.sent"]);
    assert_eq!(types.get("invoice.paid".to_owned()).await.expect("archived, not gone").archived, Some(true));
    assert_eq!(types.create(wanted, None).await.expect("an archived one comes back").archived, Some(false));

    let expunge = EventTypeDeleteOptions { expunge: Some(true) };
    types.delete("invoice.paid".to_owned(), Some(expunge)).await.expect("expunged");
    assert_eq!(refused(types.get("invoice.paid".to_owned()).await), (404, "not_found".to_owned()));
    assert_eq!(names(Some(true)).await, ["invoice.sent"]);
}

async fn lists_of_event_types_are_walked_to_the_end_and_back_and_show_schemas_on_demand(store: StoreKind) {
    let world = World::start_on(store);
    let types = world.svix.event_type();
    let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
    for name in &names {
        let wanted = EventTypeIn {
            schemas: Some(json!({"1": {"title": name}})),
            ..EventTypeIn::new(name.clone(), "A letter".to_owned())
        };
        types.create(wanted, None).await.expect("created");
    }
    walk(&names, async |iterator| {
        let options = EventTypeListOptions { limit: Some(2), iterator, ..Default::default() };
        page!(types.list(Some(options)).await, name)
    })
    .await;
    for (with_content, expected) in [(None, None), (Some(true), Some(json!({"1": {"title": "a"}})))] {
        let options = EventTypeListOptions { with_content, ..Default::default() };
        assert_eq!(types.list(Some(options)).await.expect("listed").data[0].schemas, expected);
    }
}

async fn an_endpoint_is_made_found_changed_and_deleted(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoints = world.svix.endpoint();
    for name in ["invoice.paid", "invoice.sent"] {
        world.svix.event_type().create(EventTypeIn::new(name.to_owned(), String::new()), None).await.expect("created");
    }

    let wanted = EndpointIn {
        uid: Some("books".to_owned()),
        description: Some("Bookkeeping".to_owned()),
        throttle_rate: Some(100),
        event_types: Some(set(["invoice.paid"])),
        channels: Some(set(["north"])),
        secret: Some("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".to_owned()),
        metadata: Some(map([("team", "a")])),
        ..EndpointIn::new(world.receiver.url("/books"))
    };
    let made = endpoints.create(app.clone(), wanted.clone(), None).await.expect("created");
    assert!(made.id.starts_with("ep_") && made.id.len() == 30, "{}", made.id);
    assert_eq!(made.url, wanted.url);
    assert_eq!((made.uid.as_deref(), made.description.as_str()), (Some("books"), "Bookkeeping"));
    assert_eq!((made.throttle_rate, made.disabled), (Some(100), Some(false)));
    assert_eq!((&made.event_types, &made.channels), (&wanted.event_types, &wanted.channels));
    assert_eq!(made.metadata, map([("team", "a")]));
    let secret = endpoints.get_secret(app.clone(), "books".to_owned()).await.expect("a secret");
    assert_eq!(Some(secret.key), wanted.secret);
    assert_eq!(refused(endpoints.create(app.clone(), wanted, None).await), (409, "conflict".to_owned()));
    for name in ["books", &made.id] {
        assert_eq!(endpoints.get("shop".to_owned(), name.to_owned()).await.expect("found"), made);
    }

    let change = async |change: Value| endpoints.patch(app.clone(), made.id.clone(), patch(change)).await;
    let patched = change(json!({"disabled": true, "eventTypes": ["invoice.sent"]})).await.expect("patched");
    assert_eq!((patched.disabled, patched.event_types), (Some(true), Some(set(["invoice.sent"]))));
    assert_eq!((patched.uid.as_deref(), patched.throttle_rate), (Some("books"), Some(100)), "absent means unchanged");
    let patched = change(json!({"eventTypes": null, "channels": null, "throttleRate": null})).await.expect("patched");
    assert_eq!((patched.event_types, patched.channels, patched.throttle_rate), (None, None, None));
    assert_eq!((patched.uid.as_deref(), patched.disabled), (Some("books"), Some(true)));
    assert_eq!(patched.metadata, map([("team", "a")]));
    assert_eq!(refused(change(json!({"eventTypes": ["no.such"]})).await), (422, "body.eventTypes".to_owned()));
    assert_eq!(refused(change(json!({"url": "ftp://example.com"})).await), (422, "body.url".to_owned()));

    let upserted =
        EndpointUpsertIn { uid: Some("books".to_owned()), ..EndpointUpsertIn::new(world.receiver.url("/b2")) };
    let updated = endpoints.upsert(app.clone(), "books".to_owned(), upserted.clone()).await.expect("updated");
    assert_eq!((&updated.id, updated.description.as_str()), (&made.id, ""));
    assert_eq!((updated.url, updated.metadata), (world.receiver.url("/b2"), map([])));
    let fresh = EndpointUpsertIn { uid: Some("fresh".to_owned()), ..upserted };
    let fresh = endpoints.upsert(app.clone(), "fresh".to_owned(), fresh).await.expect("created");
    assert_ne!(fresh.id, made.id);

    endpoints.delete(app.clone(), "fresh".to_owned()).await.expect("deleted");
    assert_eq!(refused(endpoints.get(app.clone(), fresh.id).await), (404, "not_found".to_owned()));
    let mut ids = vec![made.id];
    for n in 0..4 {
        ids.push(world.endpoint(&app, &format!("/{n}")).await);
    }
    for (order, expected) in
        [(None, ids.iter().rev().cloned().collect::<Vec<_>>()), (Some(Ordering::Ascending), ids.clone())]
    {
        walk(&expected, async |iterator| {
            let options = EndpointListOptions { limit: Some(2), iterator, order };
            page!(endpoints.list(app.clone(), Some(options)).await, id)
        })
        .await;
    }
}

async fn an_endpoints_headers_go_with_every_request(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoints = world.svix.endpoint();
    let endpoint = world
        .endpoint_with(&app, "/", |new| new.headers = Some(map([("x-first", "1"), ("authorization", "Bearer hush")])))
        .await;
    let shown = async || {
        let shown = endpoints.get_headers(app.clone(), endpoint.clone()).await.expect("headers");
        (shown.headers, shown.sensitive)
    };
    assert_eq!(shown().await, (map([("x-first", "1")]), set(["authorization"])));

    world.send(&app, "ping", json!({})).await;
    let first = &world.arrivals("/", 1).await[0];
    assert_eq!((first.header("x-first"), first.header("authorization")), ("1", "Bearer hush"));

    let change = EndpointHeadersPatchIn {
        delete_headers: Some(vec!["x-first".to_owned()]),
        ..EndpointHeadersPatchIn::new(map([("x-second", "2")]))
    };
    endpoints.patch_headers(app.clone(), endpoint.clone(), change).await.expect("patched");
    assert_eq!(shown().await, (map([("x-second", "2")]), set(["authorization"])));
    world.send(&app, "ping", json!({})).await;
    let second = &world.arrivals("/", 2).await[1];
    assert_eq!((second.header("x-second"), second.header("authorization")), ("2", "Bearer hush"));
    assert!(second.headers.get("x-first").is_none(), "{second:?}");

    let only = EndpointHeadersIn::new(map([("x-third", "3")]));
    endpoints.set_headers(app.clone(), endpoint.clone(), only).await.expect("set");
    assert_eq!(shown().await, (map([("x-third", "3")]), set([])));
    world.send(&app, "ping", json!({})).await;
    let third = &world.arrivals("/", 3).await[2];
    assert_eq!(third.header("x-third"), "3");
    assert!(third.headers.get("authorization").is_none() && third.headers.get("x-second").is_none(), "{third:?}");

    let forged = EndpointHeadersIn::new(map([("svix-signature", "v1,AAAA")]));
    let refusal = refused(endpoints.set_headers(app.clone(), endpoint.clone(), forged).await);
    assert_eq!(refusal, (422, "body.headers.svix-signature".to_owned()));
}

async fn a_rotated_secret_goes_on_signing_beside_the_new_one_for_its_grace(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoints = world.svix.endpoint();
    let endpoint = world.endpoint(&app, "/").await;
    let secret = async || endpoints.get_secret(app.clone(), endpoint.clone()).await.expect("a secret").key;
    let rotate = async |wanted| endpoints.rotate_secret(app.clone(), endpoint.clone(), wanted, None).await;

    let old = secret().await;
    let new = rotate(EndpointSecretRotateIn::new()).await.expect("rotated").key;
    assert_ne!(old, new);
    assert_eq!(secret().await, new);
    world.send(&app, "ping", json!({"n": 1})).await;
    let arrival = &world.arrivals("/", 1).await[0];
    assert_eq!(arrival.header("webhook-signature").split(' ').count(), 2, "{arrival:?}");
    verify(arrival, &old).expect("the old secret is in its grace");
    verify(arrival, &new).expect("the new secret signs at once");

    let chosen = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".to_owned();
    let wanted = EndpointSecretRotateIn { key: Some(chosen.clone()), grace_period_seconds: Some(0) };
    assert_eq!(rotate(wanted).await.expect("rotated").key, chosen);
    world.trust("/", &chosen);
    world.send(&app, "ping", json!({"n": 2})).await;
    let arrival = &world.arrivals("/", 2).await[1];
    verify(arrival, &chosen).expect("the chosen secret signs");
    verify(arrival, &new).expect_err("without grace a secret is worthless at once");
    verify(arrival, &old).expect("the grace that was given before goes on");

    let short = EndpointSecretRotateIn { key: None, grace_period_seconds: Some(1) };
    let last = rotate(short).await.expect("rotated").key;
    world.trust("/", &last);
    let mut sent = 2;
    eventually("the end of a grace", async || {
        world.send(&app, "ping", json!({"n": 3})).await;
        sent += 1;
        let arrival = &world.arrivals("/", sent).await[sent - 1];
        verify(arrival, &last).expect("the newest secret signs");
        verify(arrival, &chosen).is_err().then_some(())
    })
    .await;

    let weak = EndpointSecretRotateIn { key: Some("whsec_AAAA".to_owned()), grace_period_seconds: None };
    assert_eq!(refused(rotate(weak).await), (422, "body.key".to_owned()));
}

async fn a_message_reaches_those_that_listen_and_is_found_again(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let messages = world.svix.message();
    for name in ["invoice.paid", "invoice.sent"] {
        world.svix.event_type().create(EventTypeIn::new(name.to_owned(), String::new()), None).await.expect("created");
    }
    world.endpoint(&app, "/all").await;
    world.endpoint_with(&app, "/paid", |new| new.event_types = Some(set(["invoice.paid"]))).await;
    world.endpoint_with(&app, "/north", |new| new.channels = Some(set(["north"]))).await;

    let payload = json!({"total": 12, "text": "caf\u{e9} \u{1f600}", "deep": {"list": [1, null, true]}});
    let wanted = MessageIn {
        event_id: Some("event-1".to_owned()),
        channels: Some(set(["north", "west"])),
        tags: Some(set(["blue"])),
        ..MessageIn::new("invoice.paid".to_owned(), payload.clone())
    };
    let paid = messages.create(app.clone(), wanted.clone(), None).await.expect("accepted");
    assert!(paid.id.starts_with("msg_") && paid.id.len() == 31, "{}", paid.id);
    assert_eq!((paid.event_type.as_str(), paid.event_id.as_deref()), ("invoice.paid", Some("event-1")));
    assert_eq!((&paid.channels, &paid.tags), (&wanted.channels, &wanted.tags));
    assert_eq!(paid.payload, json!({}), "the SDK asks for no content unless told to");
    assert_eq!(refused(messages.create(app.clone(), wanted, None).await), (409, "conflict".to_owned()));
    let sent = world.send(&app, "invoice.sent", json!({"n": 2})).await;
    let unknown = world.send(&app, "no.such.type", json!({"n": 3})).await;

    for (path, expected) in
        [("/all", vec![&paid.id, &sent.id, &unknown.id]), ("/paid", vec![&paid.id]), ("/north", vec![&paid.id])]
    {
        let arrivals = world.arrivals(path, expected.len()).await;
        let ids: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.header("webhook-id")).collect();
        assert_eq!(ids, expected.into_iter().map(String::as_str).collect(), "{path}");
    }
    let arrival = &world.arrivals("/paid", 1).await[0];
    assert_eq!(arrival.body, payload.to_string().as_bytes());
    assert_eq!(arrival.method, "POST");
    assert_eq!((arrival.header("content-type"), arrival.header("webhook-attempt")), ("application/json", "1"));
    assert!(arrival.header("user-agent").starts_with("Postrider/"), "{arrival:?}");

    for name in ["event-1", &paid.id] {
        let with = Some(MessageGetOptions { with_content: Some(true) });
        let found = messages.get(app.clone(), name.to_owned(), with).await.expect("found");
        assert_eq!((&found.id, found.payload), (&paid.id, payload.clone()));
        let found = messages.get(app.clone(), name.to_owned(), None).await.expect("found");
        assert_eq!((found.payload, found.timestamp), (json!({}), paid.timestamp));
    }
    let list = async |options| page!(messages.list(app.clone(), Some(options)).await, id).ids;
    let all = MessageListOptions::default;
    for (options, expected) in [
        (all(), vec![&unknown.id, &sent.id, &paid.id]),
        (MessageListOptions { channel: Some("west".to_owned()), ..all() }, vec![&paid.id]),
        (MessageListOptions { channel: Some("east".to_owned()), ..all() }, vec![]),
        (MessageListOptions { tag: Some("blue".to_owned()), ..all() }, vec![&paid.id]),
        (
            MessageListOptions { event_types: Some(set(["invoice.sent", "no.such.type"])), ..all() },
            vec![&unknown.id, &sent.id],
        ),
        (MessageListOptions { before: Some(paid.timestamp), ..all() }, vec![]),
        (MessageListOptions { after: Some(unknown.timestamp + PATIENCE), ..all() }, vec![]),
        (MessageListOptions { after: Some(paid.timestamp - PATIENCE), ..all() }, vec![&unknown.id, &sent.id, &paid.id]),
    ] {
        assert_eq!(list(options).await.iter().collect::<Vec<_>>(), expected);
    }
    walk(&[unknown.id, sent.id, paid.id.clone()], async |iterator| {
        page!(messages.list(app.clone(), Some(MessageListOptions { limit: Some(2), iterator, ..all() })).await, id)
    })
    .await;
    let full = MessageListOptions { with_content: Some(true), tag: Some("blue".to_owned()), ..all() };
    assert_eq!(messages.list(app.clone(), Some(full)).await.expect("listed").data[0].payload, payload);

    messages.expunge_content(app.clone(), paid.id.clone()).await.expect("expunged");
    let with = Some(MessageGetOptions { with_content: Some(true) });
    let found = messages.get(app.clone(), paid.id.clone(), with).await.expect("still known");
    assert_eq!(found.payload, json!({"expired": true}));
    let destinations =
        world.svix.message_attempt().list_attempted_destinations(app.clone(), paid.id.clone(), None).await;
    let endpoint = destinations.expect("destinations").data[0].id.clone();
    let refusal = refused(world.svix.message_attempt().resend(app, paid.id, endpoint, None).await);
    assert_eq!(refusal, (400, "missing_payload".to_owned()));
}

async fn a_repeated_request_makes_one_message(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.endpoint(&app, "/").await;
    let send = async |key: &str, n: u32| {
        let options = MessageCreateOptions { idempotency_key: Some(key.to_owned()), with_content: Some(true) };
        world
            .svix
            .message()
            .create(app.clone(), MessageIn::new("ping".to_owned(), json!({"n": n})), Some(options))
            .await
    };
    let first = send("once", 1).await.expect("accepted");
    assert_eq!(send("once", 1).await.expect("remembered"), first);
    assert_eq!(refused(send("once", 2).await), (409, "conflict".to_owned()));
    let second = send("twice", 1).await.expect("accepted");
    assert_ne!(first.id, second.id);
    let automatic = send("auto_1", 1).await.expect("accepted");
    assert_eq!(send("auto_1", 2).await.expect("a key that no one chose gets the first answer"), automatic);

    let created = ApplicationCreateOptions { idempotency_key: Some("app".to_owned()) };
    let again = ApplicationCreateOptions { idempotency_key: Some("app".to_owned()) };
    let wanted = ApplicationIn { uid: Some("kiosk".to_owned()), ..ApplicationIn::new("Kiosk".to_owned()) };
    let made = world.svix.application().create(wanted.clone(), Some(created)).await.expect("created");
    assert_eq!(world.svix.application().create(wanted, Some(again)).await.expect("remembered"), made);

    let arrivals = world.arrivals("/", 3).await;
    let ids: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.header("webhook-id")).collect();
    assert_eq!(ids, [&*first.id, &*second.id, &*automatic.id].into());
    assert_eq!(world.listed_messages(&app).await, 3);
}

async fn a_raw_payload_arrives_byte_for_byte_under_its_own_content_type(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.endpoint(&app, "/").await;
    let texts = ["{ \"b\" : 1.50,\n\t\"a\":1e400 }", "<order total=\"12\"/>\r\n", "caf\u{e9} \u{1f600} \u{0}", ""];
    for (n, text) in texts.into_iter().enumerate() {
        let raw = MessageIn::new_raw_payload("ping".to_owned(), text.to_owned());
        let (raw, content_type) = match n {
            0 => (raw, "application/json"),
            _ => (raw.with_content_type("text/xml; charset=utf-8".to_owned()), "text/xml; charset=utf-8"),
        };
        let made = world.svix.message().create(app.clone(), raw, None).await.expect(text);
        let arrival = &world.arrivals("/", n + 1).await[n];
        assert_eq!(arrival.header("svix-id"), made.id);
        assert_eq!(arrival.body, text.as_bytes());
        assert_eq!(arrival.header("content-type"), content_type);
        let with = Some(MessageGetOptions { with_content: Some(true) });
        let found = world.svix.message().get(app.clone(), made.id, with).await.expect("found");
        assert_eq!(found.payload, json!({"rawPayload": text}));
    }
}

async fn a_message_can_limit_the_life_of_its_payload_and_bring_its_application(store: StoreKind) {
    let world = World::start_on(store);
    let plain = || MessageIn::new("ping".to_owned(), json!({"n": 1}));
    let wanted = MessageIn {
        application: Some(ApplicationIn { uid: Some("new".to_owned()), ..ApplicationIn::new("New".to_owned()) }),
        payload_retention_period: Some(5),
        ..plain()
    };
    let made = world.svix.message().create("new".to_owned(), wanted, None).await.expect("accepted");
    let found = world.svix.message().get("new".to_owned(), made.id.clone(), None).await.expect("found");
    assert_eq!(found, made);
    for (wrong, loc) in [
        (MessageIn { payload_retention_period: Some(91), ..plain() }, "body.payloadRetentionPeriod"),
        (MessageIn { payload_retention_hours: Some(0), ..plain() }, "body.payloadRetentionHours"),
        (MessageIn { deliver_at: Some(made.timestamp - 2_881 * PATIENCE), ..plain() }, "body.deliverAt"),
        (MessageIn { deliver_at: Some(made.timestamp + 2_881 * PATIENCE), ..plain() }, "body.deliverAt"),
    ] {
        let answer = world.svix.message().create("new".to_owned(), wrong, None).await;
        assert_eq!(refused(answer), (422, loc.to_owned()));
    }
}

async fn a_failing_endpoint_is_tried_again_with_a_fresh_signature(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.script("/", [busy()], Answer::Status(204));
    let endpoint = world.endpoint(&app, "/").await;
    let attempts = world.svix.message_attempt();
    let payload = json!({"n": 1});
    let sent = world.send(&app, "ping", payload.clone()).await;

    let waiting = world.settled(&app, &sent.id, &endpoint, MessageStatus::Sending).await;
    assert_eq!(waiting.status_text, MessageStatusText::Sending);
    let next = waiting.next_attempt.expect("a time for the next attempt");
    assert!(next >= sent.timestamp + PAUSE && next < sent.timestamp + PATIENCE, "{next}");
    let owed = attempts.list_attempted_messages(app.clone(), endpoint.clone(), None).await.expect("listed").data;
    assert_eq!((owed.len(), &owed[0].id, owed[0].next_attempt), (1, &sent.id, Some(next)));
    assert_eq!(world.stats(&app, &endpoint).await, EndpointStats { sending: 1, ..nothing() });

    let done = world.settled(&app, &sent.id, &endpoint, MessageStatus::Success).await;
    assert_eq!((done.status_text, done.next_attempt), (MessageStatusText::Success, None));
    assert_eq!(world.stats(&app, &endpoint).await, EndpointStats { success: 1, ..nothing() });
    let arrivals = world.arrivals("/", 2).await;
    let [first, second] = &arrivals[..] else { panic!("two attempts, and not {}", arrivals.len()) };
    for (arrival, number) in [(first, "1"), (second, "2")] {
        assert_eq!((arrival.header("webhook-id"), arrival.header("webhook-attempt")), (&*sent.id, number));
        assert_eq!(arrival.body, payload.to_string().as_bytes());
    }
    let stamp = |arrival: &Arrival| arrival.header("webhook-timestamp").parse::<u64>().expect("seconds");
    assert!(stamp(second) - stamp(first) >= PAUSE.as_secs(), "the receiver's Retry-After is honoured");
    assert_ne!(first.header("webhook-signature"), second.header("webhook-signature"));

    let with = MessageAttemptListByMsgOptions { with_content: Some(true), ..Default::default() };
    let listed = attempts.list_by_msg(app.clone(), sent.id.clone(), Some(with)).await.expect("listed").data;
    let [newest, oldest] = &listed[..] else { panic!("two attempts, and not {}", listed.len()) };
    assert_eq!((newest.status, newest.response_status_code), (MessageStatus::Success, 204));
    assert_eq!((oldest.status, oldest.response_status_code), (MessageStatus::Fail, 503));
    assert_eq!((oldest.status_text, &*oldest.response), (MessageStatusText::Fail, "come back"));
    assert_eq!((&oldest.msg_id, &oldest.endpoint_id), (&sent.id, &endpoint));
    assert_eq!((oldest.trigger_type, &oldest.url), (MessageAttemptTriggerType::Scheduled, &world.receiver.url("/")));
    assert!(oldest.timestamp >= sent.timestamp && oldest.timestamp < newest.timestamp);
    assert_eq!(&attempts.get(app.clone(), sent.id.clone(), oldest.id.clone(), None).await.expect("found"), oldest);

    attempts.expunge_content(app.clone(), sent.id.clone(), oldest.id.clone()).await.expect("expunged");
    let expunged = attempts.get(app.clone(), sent.id.clone(), oldest.id.clone(), None).await.expect("still known");
    assert_eq!(expunged.response, "EXPUNGED");
}

async fn attempts_are_found_by_endpoint_by_message_and_by_what_became_of_them(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.always("/good", Answer::Full { status: 200, headers: Vec::new(), body: "thanks".into() });
    world.receiver.always("/bad", Answer::Status(400));
    let good = world.endpoint(&app, "/good").await;
    let bad = world.endpoint(&app, "/bad").await;
    let attempts = world.svix.message_attempt();

    let mut sent = Vec::new();
    for n in 0..3 {
        let wanted = MessageIn {
            channels: Some(set([["even", "odd"][n % 2]])),
            tags: Some(set([&*format!("t{n}")])),
            ..MessageIn::new(format!("type.{n}"), json!({"n": n}))
        };
        let made = world.svix.message().create(app.clone(), wanted, None).await.expect("accepted");
        world.settled(&app, &made.id, &good, MessageStatus::Success).await;
        world.settled(&app, &made.id, &bad, MessageStatus::Fail).await;
        sent.push(made);
    }
    let newest_first: Vec<String> = sent.iter().rev().map(|message| message.id.clone()).collect();

    let by_endpoint = async |endpoint: &str, options| {
        let listed = attempts.list_by_endpoint(app.clone(), endpoint.to_owned(), Some(options)).await;
        listed.expect("listed").data
    };
    let all = MessageAttemptListByEndpointOptions::default;
    let messages_of = |list: Vec<MessageAttemptOut>| list.into_iter().map(|attempt| attempt.msg_id).collect::<Vec<_>>();
    for (options, expected) in [
        (all(), &newest_first[..]),
        (MessageAttemptListByEndpointOptions { status: Some(MessageStatus::Success), ..all() }, &newest_first[..]),
        (MessageAttemptListByEndpointOptions { status: Some(MessageStatus::Fail), ..all() }, &[]),
        (
            MessageAttemptListByEndpointOptions { status_code_class: Some(StatusCodeClass::Code2xx), ..all() },
            &newest_first[..],
        ),
        (MessageAttemptListByEndpointOptions { status_code_class: Some(StatusCodeClass::Code4xx), ..all() }, &[]),
        (MessageAttemptListByEndpointOptions { channel: Some("odd".to_owned()), ..all() }, &newest_first[1..2]),
        (MessageAttemptListByEndpointOptions { tag: Some("t0".to_owned()), ..all() }, &newest_first[2..]),
        (
            MessageAttemptListByEndpointOptions { event_types: Some(set(["type.1", "type.2"])), ..all() },
            &newest_first[..2],
        ),
        (MessageAttemptListByEndpointOptions { before: Some(sent[0].timestamp), ..all() }, &[]),
    ] {
        assert_eq!(messages_of(by_endpoint(&good, options).await), expected);
    }
    let rich =
        MessageAttemptListByEndpointOptions { with_content: Some(true), with_msg: Some(true), limit: Some(1), ..all() };
    let rich = &by_endpoint(&good, rich).await[0];
    assert_eq!((&*rich.response, rich.response_status_code), ("thanks", 200));
    let message = rich.msg.as_ref().expect("the message was asked for");
    assert_eq!((&message.id, &message.payload), (&newest_first[0], &json!({})));
    assert_eq!(by_endpoint(&good, all()).await[0].response, "{}", "no content was asked for");
    walk(&by_endpoint(&bad, all()).await.into_iter().map(|attempt| attempt.id).collect::<Vec<_>>(), async |iterator| {
        let options = MessageAttemptListByEndpointOptions { limit: Some(2), iterator, ..all() };
        page!(attempts.list_by_endpoint(app.clone(), bad.clone(), Some(options)).await, id)
    })
    .await;

    let by_message = async |options| {
        let listed = attempts.list_by_msg(app.clone(), sent[0].id.clone(), Some(options)).await;
        listed.expect("listed").data.into_iter().map(|attempt| attempt.endpoint_id).collect::<BTreeSet<_>>()
    };
    let all = MessageAttemptListByMsgOptions::default;
    for (options, expected) in [
        (all(), set([&*good, &*bad])),
        (MessageAttemptListByMsgOptions { endpoint_id: Some(bad.clone()), ..all() }, set([&*bad])),
        (MessageAttemptListByMsgOptions { status: Some(MessageStatus::Success), ..all() }, set([&*good])),
    ] {
        assert_eq!(by_message(options).await, expected);
    }

    let all = MessageAttemptListAttemptedMessagesOptions::default;
    for (options, expected) in [
        (all(), &newest_first[..]),
        (MessageAttemptListAttemptedMessagesOptions { status: Some(MessageStatus::Fail), ..all() }, &newest_first[..]),
        (MessageAttemptListAttemptedMessagesOptions { status: Some(MessageStatus::Success), ..all() }, &[]),
        (MessageAttemptListAttemptedMessagesOptions { tag: Some("t2".to_owned()), ..all() }, &newest_first[..1]),
    ] {
        let listed = attempts.list_attempted_messages(app.clone(), bad.clone(), Some(options)).await;
        assert_eq!(page!(listed, id).ids, expected);
    }
    walk(&newest_first, async |iterator| {
        let options = MessageAttemptListAttemptedMessagesOptions { limit: Some(2), iterator, ..all() };
        page!(attempts.list_attempted_messages(app.clone(), bad.clone(), Some(options)).await, id)
    })
    .await;
    walk(&[good.clone(), bad.clone()], async |iterator| {
        let options = MessageAttemptListAttemptedDestinationsOptions { limit: Some(1), iterator };
        page!(attempts.list_attempted_destinations(app.clone(), sent[0].id.clone(), Some(options)).await, id)
    })
    .await;
    assert_eq!(world.stats(&app, &good).await, EndpointStats { success: 3, ..nothing() });
    assert_eq!(world.stats(&app, &bad).await, EndpointStats { fail: 3, ..nothing() });
    let span = EndpointGetStatsOptions { since: None, until: Some(sent[0].timestamp) };
    assert_eq!(
        world.svix.endpoint().get_stats(app.clone(), good.clone(), Some(span)).await.expect("stats"),
        nothing(),
        "the span ends before the first message"
    );
}

async fn what_was_refused_for_good_is_recovered_once_the_receiver_is_healed(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.script("/", [Answer::Status(204)], Answer::Status(400));
    let endpoint = world.endpoint(&app, "/").await;
    let fine = world.send(&app, "ping", json!({"n": 0})).await;
    world.settled(&app, &fine.id, &endpoint, MessageStatus::Success).await;
    let mut failed = Vec::new();
    for n in 1..=3 {
        let sent = world.send(&app, "ping", json!({"n": n})).await;
        let dead = world.settled(&app, &sent.id, &endpoint, MessageStatus::Fail).await;
        assert_eq!((dead.status_text, dead.next_attempt), (MessageStatusText::Fail, None));
        failed.push(sent);
    }
    assert_eq!(world.stats(&app, &endpoint).await, EndpointStats { success: 1, fail: 3, ..nothing() });

    world.receiver.always("/", Answer::Status(200));
    let recover = async |wanted| world.svix.endpoint().recover(app.clone(), endpoint.clone(), wanted, None).await;
    let since = failed[1].timestamp;
    let task = recover(RecoverIn::new(since)).await.expect("taken on");
    assert!(task.id.starts_with("qtask_"), "{}", task.id);
    assert_eq!((task.task, task.status), (BackgroundTaskType::EndpointRecover, BackgroundTaskStatus::Running));
    for sent in &failed[1..] {
        world.settled(&app, &sent.id, &endpoint, MessageStatus::Success).await;
    }
    assert_eq!(world.stats(&app, &endpoint).await, EndpointStats { success: 3, fail: 1, ..nothing() });
    recover(RecoverIn::new(fine.timestamp)).await.expect("taken on");
    world.settled(&app, &failed[0].id, &endpoint, MessageStatus::Success).await;

    let arrivals = world.arrivals("/", 7).await;
    let count = |id: &str| arrivals.iter().filter(|arrival| arrival.header("webhook-id") == id).count();
    assert_eq!(count(&fine.id), 1, "what was delivered is not sent again");
    assert_eq!(failed.iter().map(|sent| count(&sent.id)).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(refused(recover(RecoverIn::new(since + PATIENCE)).await), (422, "body.since".to_owned()));
}

async fn replays_are_tasks_that_can_be_watched(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoint = world.endpoint(&app, "/").await;
    let mut sent = Vec::new();
    for event_type in ["a", "b"] {
        let message = world.send(&app, event_type, json!({"n": 1})).await;
        world.settled(&app, &message.id, &endpoint, MessageStatus::Success).await;
        sent.push(message);
    }
    let tasks = world.svix.background_task();
    let ended = async |id: String| {
        eventually("the end of a task", async || {
            let task = tasks.get(id.clone()).await.expect("a task");
            (task.status != BackgroundTaskStatus::Running).then_some(task)
        })
        .await
    };

    let wanted = BulkReplayIn {
        event_types: Some(set(["b"])),
        status: Some(MessageStatus::Success),
        ..BulkReplayIn::new(sent[0].timestamp)
    };
    let bulk = world.svix.endpoint().bulk_replay(app.clone(), endpoint.clone(), wanted, None).await.expect("taken on");
    assert_eq!(bulk.task, BackgroundTaskType::EndpointBulkReplay);
    let bulk = ended(bulk.id).await;
    assert_eq!((bulk.status, &bulk.data["messages_sent"]), (BackgroundTaskStatus::Finished, &json!(1)), "{bulk:?}");
    assert_eq!(bulk.data["endp_id"], endpoint);
    let arrivals = world.arrivals("/", 3).await;
    assert_eq!((arrivals[2].header("webhook-id"), &arrivals[2].body), (&*sent[1].id, &arrivals[1].body));

    let late = world.endpoint(&app, "/late").await;
    let wanted = ReplayIn::new(sent[0].timestamp);
    let missing = world.svix.endpoint().replay_missing(app.clone(), late.clone(), wanted, None).await;
    let missing = missing.expect("taken on");
    assert_eq!(missing.task, BackgroundTaskType::EndpointReplay);
    assert_eq!(ended(missing.id.clone()).await.data["messages_sent"], 2);
    world.arrivals("/late", 2).await;

    let all = tasks.list(None).await.expect("a list");
    assert_eq!(all.data.iter().map(|task| &task.id).collect::<Vec<_>>(), [&missing.id, &bulk.id], "newest first");
    let only = |options| async { page!(tasks.list(Some(options)).await, id).ids };
    let options = BackgroundTaskListOptions::default;
    let replays = BackgroundTaskListOptions { task: Some(BackgroundTaskType::EndpointReplay), ..options() };
    assert_eq!(only(replays).await, [&*missing.id]);
    let running = BackgroundTaskListOptions { status: Some(BackgroundTaskStatus::Running), ..options() };
    assert_eq!(only(running).await, [""; 0]);
    let unknown = BackgroundTaskListOptions { task: Some(BackgroundTaskType::SdkGenerate), ..options() };
    assert_eq!(only(unknown).await, [""; 0], "of this kind there are none here");
    walk(&[missing.id, bulk.id], async |iterator| {
        page!(tasks.list(Some(BackgroundTaskListOptions { limit: Some(1), iterator, ..options() })).await, id)
    })
    .await;
    assert_eq!(refused(tasks.get("qtask_nothing".to_owned()).await), (404, "not_found".to_owned()));
}

/// Counts are written every ten seconds.
async fn what_applications_use_is_counted(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let idle = world.application("idle").await;
    world.receiver.script("/", [Answer::Status(204)], Answer::Status(400));
    let endpoint = world.endpoint(&app, "/").await;
    let mut first = None;
    for (number, status) in [MessageStatus::Success, MessageStatus::Fail].into_iter().enumerate() {
        let sent = world.send(&app, "ping", json!({"n": number})).await;
        world.settled(&app, &sent.id, &endpoint, status).await;
        first.get_or_insert(sent.timestamp);
    }
    eventually("counts of both attempts", async || {
        let stats = world.svix.endpoint().get_attempt_stats(app.clone(), endpoint.clone(), None).await.expect("stats");
        ((stats.success, stats.fail, stats.canceled) == (1, 1, 0)).then_some(())
    })
    .await;

    let since = first.expect("a message");
    let wanted = AppUsageStatsIn::new(since, since + Duration::from_secs(60));
    let all = world.svix.statistics().aggregate_app_stats(wanted.clone(), None).await.expect("counted");
    assert_eq!((all.task, all.unresolved_app_ids), (BackgroundTaskType::ApplicationStats, BTreeSet::new()));
    let task = world.svix.background_task().get(all.id).await.expect("a task");
    assert_eq!(task.status, BackgroundTaskStatus::Finished);
    let told = json!([
        {"appId": app, "appUid": "shop", "messageDestinations": 2},
        {"appId": idle, "appUid": "idle", "messageDestinations": 0},
    ]);
    assert_eq!(task.data["appStats"], told);
    let named = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        AppUsageStatsIn { app_ids: Some(names), ..wanted.clone() }
    };
    let some = world.svix.statistics().aggregate_app_stats(named(&["idle", "nobody"]), None).await.expect("counted");
    assert_eq!(some.unresolved_app_ids, BTreeSet::from(["nobody".to_owned()]));
    let refusal = refused(world.svix.statistics().aggregate_app_stats(named(&["nobody"]), None).await);
    assert_eq!(refusal, (422, "body.appIds".to_owned()));
    let backwards = AppUsageStatsIn { since: wanted.until, until: wanted.since, ..wanted.clone() };
    let refusal = refused(world.svix.statistics().aggregate_app_stats(backwards, None).await);
    assert_eq!(refusal, (400, "invalid_range".to_owned()));

    for name in ["a", "b"] {
        let wanted = EventTypeIn::new(name.to_owned(), String::new());
        world.svix.event_type().create(wanted, None).await.expect("created");
    }
    let narrow = EndpointIn {
        event_types: Some(BTreeSet::from(["b".to_owned(), "a".to_owned()])),
        ..EndpointIn::new(world.receiver.url("/narrow"))
    };
    world.svix.endpoint().create(idle.clone(), narrow, None).await.expect("created");
    let types = world.svix.statistics().aggregate_event_types().await.expect("found out");
    assert_eq!(types.task, BackgroundTaskType::EventTypeAggregate);
    let task = world.svix.background_task().get(types.id).await.expect("a task");
    let told = json!([
        {"appId": app, "explicitlySubscribedEventTypes": [], "hasCatchAllEndpoint": true},
        {"appId": idle, "explicitlySubscribedEventTypes": ["a", "b"], "hasCatchAllEndpoint": false},
    ]);
    assert_eq!(task.data["event_types"], told);
}

async fn contents_are_removed_for_good(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.endpoint(&app, "/").await;
    let mut sent = Vec::new();
    for n in 0..3 {
        sent.push(world.send(&app, "ping", json!({"n": n})).await.id);
    }
    let messages = world.svix.message();
    let payload = async |id: &String| {
        let with = Some(MessageGetOptions { with_content: Some(true) });
        messages.get(app.clone(), id.clone(), with).await.expect("still known").payload
    };
    world.arrivals("/", 3).await;
    let wanted = BulkExpungeContentsIn { ids: Some(set([&sent[0], "msg_nothing"])) };
    let results = messages.bulk_expunge_content(app.clone(), wanted, None).await.expect("done").results;
    let (done, unknown) = (BulkExpungeStatus::Expunged, BulkExpungeStatus::NotFound);
    assert_eq!(results, [(sent[0].clone(), done), ("msg_nothing".to_owned(), unknown)].into());
    assert_eq!(payload(&sent[0]).await, json!({"expired": true}));
    assert_eq!(payload(&sent[1]).await, json!({"n": 1}));

    let task = messages.expunge_all_contents(app.clone(), None).await.expect("taken on");
    assert_eq!(task.task, BackgroundTaskType::ApplicationPurgeContent);
    eventually("the end of the task", async || {
        let task = world.svix.background_task().get(task.id.clone()).await.expect("a task");
        (task.status == BackgroundTaskStatus::Finished).then_some(())
    })
    .await;
    for id in &sent {
        assert_eq!(payload(id).await, json!({"expired": true}));
    }
}

async fn what_was_called_back_is_shown_as_canceled(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoint = world.endpoint_with(&app, "/", |new| new.disabled = Some(true)).await;
    let sent = world.send(&app, "ping", json!({})).await;
    let mut client = support::api::Client::new(world.server.address(), world.server.token());
    // An operation of ours, which the SDK does not know.
    client.create(&format!("/api/v1/app/{app}/msg/{}/cancel", sent.id), &json!({})).await;
    let shown = world.settled(&app, &sent.id, &endpoint, MessageStatus::Canceled).await;
    assert_eq!(shown.status_text, MessageStatusText::Canceled);
    assert_eq!(world.stats(&app, &endpoint).await, EndpointStats { canceled: 1, ..nothing() });
    let options =
        MessageAttemptListAttemptedMessagesOptions { status: Some(MessageStatus::Canceled), ..Default::default() };
    let listed = world.svix.message_attempt().list_attempted_messages(app, endpoint, Some(options)).await;
    assert_eq!(listed.expect("a list").data[0].id, sent.id);
}

async fn an_endpoint_that_is_gone_is_disabled(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.always("/", Answer::Status(410));
    let endpoint = world.endpoint(&app, "/").await;
    let sent = world.send(&app, "ping", json!({})).await;
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Fail).await;
    eventually("the endpoint to be disabled", async || {
        let shown = world.svix.endpoint().get(app.clone(), endpoint.clone()).await.expect("found");
        (shown.disabled == Some(true)).then_some(())
    })
    .await;
    let held = world.send(&app, "ping", json!({"n": 2})).await;
    world.settled(&app, &held.id, &endpoint, MessageStatus::Pending).await;
    world.receiver.always("/", Answer::Status(204));
    let enable: EndpointPatch = patch(json!({"disabled": false}));
    world.svix.endpoint().patch(app.clone(), endpoint.clone(), enable).await.expect("enabled");
    world.settled(&app, &held.id, &endpoint, MessageStatus::Success).await;
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Fail).await;
}

async fn a_disabled_endpoint_holds_its_messages_until_it_is_enabled(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoint = world.endpoint_with(&app, "/", |new| new.disabled = Some(true)).await;
    let witness = world.endpoint(&app, "/witness").await;
    let sent = world.send(&app, "ping", json!({"n": 1})).await;
    // When the other one has it, this one would have had it too.
    world.settled(&app, &sent.id, &witness, MessageStatus::Success).await;
    let held = world.settled(&app, &sent.id, &endpoint, MessageStatus::Pending).await;
    assert_eq!((held.status_text, held.disabled), (MessageStatusText::Pending, Some(true)));
    assert_eq!(world.stats(&app, &endpoint).await, EndpointStats { pending: 1, ..nothing() });
    assert_eq!(world.receiver.arrivals_at("/").len(), 0);

    let enable: EndpointPatch = patch(json!({"disabled": false}));
    world.svix.endpoint().patch(app.clone(), endpoint.clone(), enable).await.expect("enabled");
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Success).await;
    assert_eq!(world.arrivals("/", 1).await[0].header("webhook-id"), sent.id);
}

async fn a_resend_is_one_more_attempt_whatever_came_before(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.script("/", [Answer::Status(400), Answer::Status(500)], Answer::Status(204));
    let endpoint = world.endpoint(&app, "/").await;
    let sent = world.send(&app, "ping", json!({"n": 1})).await;
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Fail).await;
    let attempts = world.svix.message_attempt();
    let resend = async || attempts.resend(app.clone(), sent.id.clone(), endpoint.clone(), None).await;
    let tried = async |count| {
        eventually("an attempt by hand", async || {
            let listed = attempts.list_by_msg(app.clone(), sent.id.clone(), None).await.expect("listed").data;
            (listed.len() >= count).then_some(listed)
        })
        .await
    };

    resend().await.expect("resent");
    let newest = &tried(2).await[0];
    assert_eq!((newest.trigger_type, newest.status), (MessageAttemptTriggerType::Manual, MessageStatus::Fail));
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Fail).await;
    resend().await.expect("resent");
    let newest = &tried(3).await[0];
    assert_eq!((newest.trigger_type, newest.status), (MessageAttemptTriggerType::Manual, MessageStatus::Success));
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Success).await;
    resend().await.expect("what was delivered can be resent as well");
    tried(4).await;

    let arrivals = world.arrivals("/", 4).await;
    assert!(arrivals.iter().all(|arrival| arrival.header("webhook-id") == sent.id));
    // A message from before the endpoint was made was never owed to it, and can be sent to it all the same.
    let later = world.endpoint(&app, "/later").await;
    attempts.resend(app.clone(), sent.id.clone(), later, None).await.expect("resent");
    assert_eq!(world.arrivals("/later", 1).await[0].body, arrivals[0].body);
}

async fn a_resend_to_a_disabled_endpoint_waits_for_it(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoint = world.endpoint(&app, "/").await;
    let sent = world.send(&app, "ping", json!({"n": 1})).await;
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Success).await;
    let switch = async |disabled: bool| {
        let wanted: EndpointPatch = patch(json!({"disabled": disabled}));
        world.svix.endpoint().patch(app.clone(), endpoint.clone(), wanted).await.expect("patched");
    };
    switch(true).await;
    world.svix.message_attempt().resend(app.clone(), sent.id, endpoint.clone(), None).await.expect("taken on");
    // Only a later message to another endpoint can show that this one was passed over.
    world.endpoint(&app, "/witness").await;
    world.send(&app, "ping", json!({"n": 2})).await;
    world.arrivals("/witness", 1).await;
    world.arrivals("/", 1).await;
    switch(false).await;
    world.arrivals("/", 3).await;
}

async fn what_is_deleted_gets_nothing_more_and_frees_its_name(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.always("/", busy());
    let endpoint = world.endpoint_with(&app, "/", |new| new.uid = Some("books".to_owned())).await;
    let sent = world.send(&app, "ping", json!({"n": 1})).await;
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Sending).await;
    world.svix.endpoint().delete(app.clone(), "books".to_owned()).await.expect("deleted");
    let again = world.endpoint_with(&app, "/again", |new| new.uid = Some("books".to_owned())).await;
    assert_ne!(again, endpoint);
    let listed = world.svix.message_attempt().list_attempted_destinations(app.clone(), sent.id.clone(), None).await;
    assert_eq!(page!(listed, id).ids, Vec::<String>::new(), "what was owed is forgotten with who was owed it");
    let next = world.send(&app, "ping", json!({"n": 2})).await;
    world.settled(&app, &next.id, &again, MessageStatus::Success).await;
    world.arrivals("/", 1).await;

    world.svix.application().delete("shop".to_owned()).await.expect("deleted");
    let answer =
        world.svix.message().create("shop".to_owned(), MessageIn::new("ping".to_owned(), json!({})), None).await;
    assert_eq!(refused(answer), (404, "not_found".to_owned()));
    assert_eq!(refused(world.svix.message().get(app.clone(), next.id, None).await), (404, "not_found".to_owned()));
    assert_ne!(world.application("shop").await, app);
    assert_eq!(world.listed_messages("shop").await, 0, "the new one has nothing of the old");
}

async fn a_throttled_endpoint_gets_no_more_than_its_rate(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.endpoint_with(&app, "/", |new| new.throttle_rate = Some(2)).await;
    world.endpoint(&app, "/free").await;
    for n in 0..6 {
        world.send(&app, "ping", json!({"n": n})).await;
    }
    world.arrivals("/free", 6).await;
    let opened: Vec<Instant> = world.arrivals("/", 6).await.iter().map(|arrival| arrival.opened).collect();
    // Two at once and then two a second make two seconds; the rest is for a first one that came late.
    let took = opened[5] - opened[0];
    assert!(took >= Duration::from_millis(1_500), "{took:?}");
}

async fn repetitions_that_race_make_one_message(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    world.endpoint(&app, "/").await;
    let racing: Vec<_> = (0..20)
        .map(|_| {
            let (svix, app) = (world.svix.clone(), app.clone());
            tokio::spawn(async move {
                let wanted = MessageIn::new("ping".to_owned(), json!({"n": 1}));
                let options = MessageCreateOptions { idempotency_key: Some("once".to_owned()), with_content: None };
                svix.message().create(app, wanted, Some(options)).await.expect("accepted, now or before").id
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for one in racing {
        ids.insert(one.await.expect("no panic"));
    }
    assert_eq!(ids.len(), 1);
    world.arrivals("/", 1).await;
    assert_eq!(world.listed_messages(&app).await, 1);
}

async fn an_example_goes_to_one_endpoint(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    let endpoint = world.endpoint(&app, "/").await;
    world.endpoint(&app, "/other").await;
    let wanted = EventTypeIn {
        schemas: Some(json!({"1": {"type": "object", "examples": [{"total": 1}, {"total": 2}]}})),
        ..EventTypeIn::new("invoice.paid".to_owned(), String::new())
    };
    world.svix.event_type().create(wanted, None).await.expect("created");
    let example = async |name: &str, example_index| {
        let wanted = EventExampleIn { example_index, ..EventExampleIn::new(name.to_owned()) };
        world.svix.endpoint().send_example(app.clone(), endpoint.clone(), wanted, None).await
    };
    for (n, (name, index, payload)) in [
        ("svix.ping", None, json!({"success": true})),
        ("invoice.paid", None, json!({"total": 1})),
        ("invoice.paid", Some(1), json!({"total": 2})),
    ]
    .into_iter()
    .enumerate()
    {
        let made = example(name, index).await.expect(name);
        assert_eq!((made.event_type.as_str(), &made.payload), (name, &payload));
        let arrival = &world.arrivals("/", n + 1).await[n];
        assert_eq!((arrival.header("webhook-id"), arrival.body.as_ref()), (&*made.id, payload.to_string().as_bytes()));
    }
    assert_eq!(refused(example("no.such", None).await), (422, "body.eventType".to_owned()));
    assert_eq!(world.receiver.arrivals_at("/other").len(), 0);
}

async fn a_portal_token_opens_one_application_and_no_other(store: StoreKind) {
    let world = World::start_on(store);
    let (own, other) = (world.application("own").await, world.application("other").await);
    let endpoint = world.endpoint(&own, "/").await;
    let access =
        async |wanted| world.svix.authentication().app_portal_access(own.clone(), wanted, None).await.expect("access");

    let access_out = access(AppPortalAccessIn::new()).await;
    let path = access_out.url.strip_prefix(&world.server.url()).expect("a page of this server");
    let (path, key) = path.split_once('#').expect("a token after the path");
    assert!(key.contains(&access_out.token), "the page is told the token");
    assert!(world.server.page(path).contains("<html"));

    let owner = world.svix.with_token(access_out.token);
    assert_eq!(owner.application().get(own.clone()).await.expect("its own").id, own);
    assert_eq!(owner.endpoint().list(own.clone(), None).await.expect("its own").data[0].id, endpoint);
    owner.endpoint().get_secret(own.clone(), endpoint.clone()).await.expect("its own secret");
    owner.event_type().list(None).await.expect("event types are for all");
    for refusal in [
        refused(owner.application().get(other.clone()).await),
        refused(owner.endpoint().list(other.clone(), None).await),
        refused(owner.application().list(None).await),
        refused(owner.application().create(ApplicationIn::new("Mine".to_owned()), None).await),
        refused(owner.event_type().create(EventTypeIn::new("mine".to_owned(), String::new()), None).await),
        refused(owner.message().create(own.clone(), MessageIn::new("ping".to_owned(), json!({})), None).await),
        refused(owner.authentication().app_portal_access(own.clone(), AppPortalAccessIn::new(), None).await),
    ] {
        assert!(matches!(refusal.0, 403 | 404), "{refusal:?}");
    }

    let looking =
        AppPortalAccessIn { capabilities: Some([AppPortalCapability::ViewBase].into()), ..AppPortalAccessIn::new() };
    let looker = world.svix.with_token(access(looking).await.token);
    looker.endpoint().get(own.clone(), endpoint.clone()).await.expect("may look");
    assert_eq!(refused(looker.endpoint().get_secret(own.clone(), endpoint.clone()).await).0, 403);
    assert_eq!(refused(looker.endpoint().delete(own.clone(), endpoint).await).0, 403);

    let of_session = AppPortalAccessIn { session_id: Some("one".to_owned()), ..AppPortalAccessIn::new() };
    let visitor = world.svix.with_token(access(of_session).await.token);
    let end = async |wanted| world.svix.authentication().expire_all(own.clone(), wanted, None).await.expect("ended");
    end(ApplicationTokenExpireIn { expiry: None, session_ids: Some(vec!["one".to_owned()]) }).await;
    assert_eq!(refused(visitor.application().get(own.clone()).await).0, 401);
    looker.authentication().logout(None).await.expect("logged out");
    assert_eq!(refused(looker.application().get(own.clone()).await).0, 401);
    owner.application().get(own.clone()).await.expect("not meant so far");
    end(ApplicationTokenExpireIn { expiry: Some(0), session_ids: None }).await;
    assert_eq!(refused(owner.application().get(own.clone()).await).0, 401);
}

async fn refusals_can_be_read_by_the_sdk(store: StoreKind) {
    let world = World::start_on(store);
    let app = world.application("shop").await;
    for token in ["", "nonsense", "eyJhbGciOiJub25lIn0.e30."] {
        let stranger = world.svix.with_token(token.to_owned());
        assert_eq!(refused(stranger.application().list(None).await), (401, "authentication_failed".to_owned()));
    }
    for refusal in [
        refused(world.svix.application().get("app_000000000000000000000000000".to_owned()).await),
        refused(world.svix.endpoint().get(app.clone(), "no-such".to_owned()).await),
        refused(world.svix.message().get(app.clone(), "no-such".to_owned(), None).await),
        refused(world.svix.message_attempt().list_by_msg(app.clone(), "no-such".to_owned(), None).await),
        refused(
            world.svix.message().create("no-such".to_owned(), MessageIn::new("a".to_owned(), json!({})), None).await,
        ),
        refused(world.svix.event_type().get("a b/../c".to_owned()).await),
    ] {
        assert_eq!(refusal, (404, "not_found".to_owned()));
    }
    for (wanted, loc) in [
        (MessageIn::new("not a name".to_owned(), json!({})), "body.eventType"),
        (MessageIn::new("a".to_owned(), json!([])), "body.payload"),
        (
            MessageIn { event_id: Some("msg_mine".to_owned()), ..MessageIn::new("a".to_owned(), json!({})) },
            "body.eventId",
        ),
    ] {
        assert_eq!(refused(world.svix.message().create(app.clone(), wanted, None).await), (422, loc.to_owned()));
    }
    for url in ["", "example.com", "http://user:password@10.0.0.1/", "http://10.0.0.1/", "http://[::1]/"] {
        let answer = world.svix.endpoint().create(app.clone(), EndpointIn::new(url.to_owned()), None).await;
        assert_eq!(refused(answer), (422, "body.url".to_owned()), "{url}");
    }
    let span = EndpointGetStatsOptions { since: Some(Default::default()), until: None };
    let endpoint = world.endpoint(&app, "/").await;
    let answer = world.svix.endpoint().get_stats(app.clone(), endpoint, Some(span)).await;
    assert_eq!(refused(answer), (400, "invalid_range".to_owned()));
    world.svix.health().get().await.expect("healthy");
    assert_eq!(refused(world.svix.authentication().logout(None).await).0, 403, "a product does not log itself out");
}

async fn everything_is_there_after_a_restart(store: StoreKind) {
    let mut world = World::start_on(store);
    let app = world.application("shop").await;
    world.receiver.script("/", [busy()], Answer::Status(204));
    let endpoint = world.endpoint(&app, "/").await;
    let secret = world.svix.endpoint().get_secret(app.clone(), endpoint.clone()).await.expect("a secret");
    let sent = world.send(&app, "ping", json!({"n": 1})).await;
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Sending).await;

    assert!(world.server.stop().success());
    world.server.start_again();
    assert_eq!(world.svix.endpoint().get_secret(app.clone(), endpoint.clone()).await.expect("a secret"), secret);
    world.settled(&app, &sent.id, &endpoint, MessageStatus::Success).await;
    let numbers: Vec<String> =
        world.arrivals("/", 2).await.iter().map(|arrival| arrival.header("webhook-attempt").to_owned()).collect();
    assert_eq!(numbers, ["1", "2"]);
}

#[test]
fn no_operation_that_the_open_server_has_goes_missing() {
    let server = Server::start();
    let document: Value = serde_json::from_str(&server.page("/openapi.json")).expect("JSON");
    for (method, path, id) in OPERATIONS {
        let operation = &document["paths"][path][method];
        assert!(operation.is_object(), "{method} {path} is missing");
        if let Some(id) = id {
            assert_eq!(operation["operationId"], *id, "{method} {path}");
        }
    }
}

/// A server, a receiver, and the SDK between them. Before it goes, everything that arrived is verified.
struct World {
    svix: Svix,
    receiver: Receiver,
    server: Server,
    /// By path, those of which one must verify what comes there.
    secrets: Mutex<HashMap<String, Vec<String>>>,
}

impl World {
    fn start_on(store: StoreKind) -> Self {
        let server = Server::start_on(store, &[]);
        let options = SvixOptions { server_url: Some(server.url()), ..Default::default() };
        let svix = Svix::new(server.token().to_owned(), Some(options));
        Self { svix, receiver: Receiver::start(), server, secrets: Mutex::default() }
    }

    async fn application(&self, uid: &str) -> String {
        let wanted = ApplicationIn { uid: Some(uid.to_owned()), ..ApplicationIn::new(uid.to_owned()) };
        self.svix.application().create(wanted, None).await.expect("an application").id
    }

    async fn endpoint(&self, app: &str, path: &str) -> String {
        self.endpoint_with(app, path, |_| ()).await
    }

    async fn endpoint_with(&self, app: &str, path: &str, change: impl FnOnce(&mut EndpointIn)) -> String {
        let mut wanted = EndpointIn::new(self.receiver.url(path));
        change(&mut wanted);
        let id = self.svix.endpoint().create(app.to_owned(), wanted, None).await.expect("an endpoint").id;
        let secret = self.svix.endpoint().get_secret(app.to_owned(), id.clone()).await.expect("a secret");
        self.trust(path, &secret.key);
        id
    }

    fn trust(&self, path: &str, secret: &str) {
        let mut secrets = self.secrets.lock().expect("no one panics while holding them");
        secrets.entry(path.to_owned()).or_default().push(secret.to_owned());
    }

    async fn send(&self, app: &str, event_type: &str, payload: Value) -> MessageOut {
        let wanted = MessageIn::new(event_type.to_owned(), payload);
        self.svix.message().create(app.to_owned(), wanted, None).await.expect("a message")
    }

    /// Waits for `count` requests to `path`.
    async fn arrivals(&self, path: &str, count: usize) -> Vec<Arrival> {
        let arrivals = self.receiver.wait_for(path, count).await;
        assert_eq!(arrivals.len(), count, "more came to {path} than was sent there");
        arrivals
    }

    /// Waits until the delivery of a message to an endpoint stands like this.
    async fn settled(&self, app: &str, message: &str, endpoint: &str, status: MessageStatus) -> MessageEndpointOut {
        eventually(&format!("{message} to become {status:?} at {endpoint}"), async || {
            let attempts = self.svix.message_attempt();
            let listed = attempts.list_attempted_destinations(app.to_owned(), message.to_owned(), None).await;
            let mut all = listed.expect("destinations").data.into_iter();
            all.find(|destination| destination.id == endpoint && destination.status == status)
        })
        .await
    }

    async fn stats(&self, app: &str, endpoint: &str) -> EndpointStats {
        self.svix.endpoint().get_stats(app.to_owned(), endpoint.to_owned(), None).await.expect("stats")
    }

    async fn listed_messages(&self, app: &str) -> usize {
        self.svix.message().list(app.to_owned(), None).await.expect("messages").data.len()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let secrets = self.secrets.lock().expect("no one panics while holding them");
        for arrival in self.receiver.arrivals() {
            let known = secrets.get(&arrival.path).expect("only what we made an endpoint of is called");
            let verified: Vec<_> = known.iter().map(|secret| verify(&arrival, secret)).collect();
            assert!(verified.iter().any(Result::is_ok), "{verified:?} for {arrival:?}");
        }
    }
}

/// Both verifiers, each with the headers of its own name only: either set must do.
fn verify(arrival: &Arrival, secret: &str) -> Result<(), String> {
    let only = |prefix| -> HeaderMap {
        let named = arrival.headers.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        named.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let standard = standardwebhooks::Webhook::new(secret).expect("a secret of the right form");
    standard.verify(&arrival.body, &only("webhook-")).map_err(|error| format!("webhook-*: {error}"))?;
    let svix = svix::webhooks::Webhook::new(secret).expect("a secret of the right form");
    svix.verify(&arrival.body, &only("svix-")).map_err(|error| format!("svix-*: {error}"))
}

/// One page of a list, whatever is listed.
struct Page {
    ids: Vec<String>,
    iterator: Option<String>,
    prev_iterator: Option<String>,
    done: bool,
}

macro_rules! page {
    ($listed:expr, $id:ident) => {{
        let list = $listed.expect("a list");
        let ids = list.data.into_iter().map(|item| item.$id).collect();
        Page { ids, iterator: list.iterator, prev_iterator: list.prev_iterator, done: list.done }
    }};
}
use page;

on_both_stores! {
    async
    an_application_is_made_found_changed_and_deleted,
    lists_of_applications_are_walked_to_the_end_and_back,
    an_event_type_is_made_found_changed_archived_and_expunged,
    lists_of_event_types_are_walked_to_the_end_and_back_and_show_schemas_on_demand,
    an_endpoint_is_made_found_changed_and_deleted,
    an_endpoints_headers_go_with_every_request,
    a_rotated_secret_goes_on_signing_beside_the_new_one_for_its_grace,
    a_message_reaches_those_that_listen_and_is_found_again,
    a_repeated_request_makes_one_message,
    a_raw_payload_arrives_byte_for_byte_under_its_own_content_type,
    a_message_can_limit_the_life_of_its_payload_and_bring_its_application,
    a_failing_endpoint_is_tried_again_with_a_fresh_signature,
    attempts_are_found_by_endpoint_by_message_and_by_what_became_of_them,
    what_was_refused_for_good_is_recovered_once_the_receiver_is_healed,
    replays_are_tasks_that_can_be_watched,
    what_applications_use_is_counted,
    contents_are_removed_for_good,
    what_was_called_back_is_shown_as_canceled,
    an_endpoint_that_is_gone_is_disabled,
    a_disabled_endpoint_holds_its_messages_until_it_is_enabled,
    a_resend_is_one_more_attempt_whatever_came_before,
    a_resend_to_a_disabled_endpoint_waits_for_it,
    what_is_deleted_gets_nothing_more_and_frees_its_name,
    a_throttled_endpoint_gets_no_more_than_its_rate,
    repetitions_that_race_make_one_message,
    an_example_goes_to_one_endpoint,
    a_portal_token_opens_one_application_and_no_other,
    refusals_can_be_read_by_the_sdk,
    everything_is_there_after_a_restart,
}

/// Follows a list page by page to its end, and back to its beginning.
async fn walk(expected: &[String], list: impl AsyncFn(Option<String>) -> Page) {
    let mut pages = vec![list(None).await];
    while let Some(Page { done: false, iterator, .. }) = pages.last() {
        let iterator = iterator.clone().expect("a list that is not done goes on");
        pages.push(list(Some(iterator)).await);
        assert!(pages.len() <= expected.len() + 1, "the list has no end");
    }
    assert_eq!(pages.iter().flat_map(|page| &page.ids).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    let mut back = pages.pop().and_then(|last| last.prev_iterator);
    for forward in pages.iter().rev() {
        let page = list(Some(back.expect("a page that is not the first has a way back"))).await;
        assert_eq!(page.ids, forward.ids);
        back = page.prev_iterator;
    }
}

/// The status and the code, or for a flaw in the request its place.
fn refused<T: Debug>(answer: svix::Result<T>) -> (u16, String) {
    match answer.expect_err("a refusal") {
        Error::Http(refusal) => (refusal.status.as_u16(), refusal.payload.expect("a body that the SDK can read").code),
        Error::Validation(refusal) => {
            let flaws = refusal.payload.expect("a body that the SDK can read").detail;
            (refusal.status.as_u16(), flaws.first().expect("at least one flaw").loc.join("."))
        }
        other @ (Error::Generic(_) | Error::Timeout { .. }) => panic!("no answer: {other}"),
    }
}

/// The SDK's three-state fields are of a type that it does not export; read from JSON they are what they say.
fn patch<T: DeserializeOwned>(members: Value) -> T {
    serde_json::from_value(members).expect("a patch")
}

fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn set<const N: usize>(entries: [&str; N]) -> BTreeSet<String> {
    entries.map(str::to_owned).into()
}

/// Fails, and leaves enough time to look at the delivery while it waits for its next try.
fn busy() -> Answer {
    let headers = vec![("retry-after", PAUSE.as_secs().to_string())];
    Answer::Full { status: 503, headers, body: "come back".into() }
}

fn nothing() -> EndpointStats {
    EndpointStats { success: 0, pending: 0, sending: 0, fail: 0, canceled: 0 }
}

const PAUSE: Duration = Duration::from_secs(4);

/// Method, path and operation of all that the open-source server of the contract offers.
const OPERATIONS: &[(&str, &str, Option<&str>)] = &[
    ("get", "/api/v1/app", Some("v1.application.list")),
    ("post", "/api/v1/app", Some("v1.application.create")),
    ("delete", "/api/v1/app/{app_id}", Some("v1.application.delete")),
    ("get", "/api/v1/app/{app_id}", Some("v1.application.get")),
    ("patch", "/api/v1/app/{app_id}", Some("v1.application.patch")),
    ("put", "/api/v1/app/{app_id}", Some("v1.application.upsert")),
    ("get", "/api/v1/app/{app_id}/attempt/endpoint/{endpoint_id}", Some("v1.message-attempt.list-by-endpoint")),
    ("get", "/api/v1/app/{app_id}/attempt/msg/{msg_id}", Some("v1.message-attempt.list-by-msg")),
    ("get", "/api/v1/app/{app_id}/endpoint", Some("v1.endpoint.list")),
    ("post", "/api/v1/app/{app_id}/endpoint", Some("v1.endpoint.create")),
    ("delete", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", Some("v1.endpoint.delete")),
    ("get", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", Some("v1.endpoint.get")),
    ("patch", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", Some("v1.endpoint.patch")),
    ("put", "/api/v1/app/{app_id}/endpoint/{endpoint_id}", Some("v1.endpoint.upsert")),
    ("get", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", Some("v1.endpoint.get-headers")),
    ("patch", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", Some("v1.endpoint.patch-headers")),
    ("put", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers", Some("v1.endpoint.set-headers")),
    ("get", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/msg", Some("v1.message-attempt.list-attempted-messages")),
    ("post", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/recover", Some("v1.endpoint.recover")),
    ("get", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret", Some("v1.endpoint.get-secret")),
    ("post", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate", Some("v1.endpoint.rotate-secret")),
    ("post", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/send-example", Some("v1.endpoint.send-example")),
    ("get", "/api/v1/app/{app_id}/endpoint/{endpoint_id}/stats", Some("v1.endpoint.get-stats")),
    ("get", "/api/v1/app/{app_id}/msg", Some("v1.message.list")),
    ("post", "/api/v1/app/{app_id}/msg", Some("v1.message.create")),
    ("get", "/api/v1/app/{app_id}/msg/{msg_id}", Some("v1.message.get")),
    ("get", "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}", Some("v1.message-attempt.get")),
    (
        "delete",
        "/api/v1/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content",
        Some("v1.message-attempt.expunge-content"),
    ),
    ("delete", "/api/v1/app/{app_id}/msg/{msg_id}/content", Some("v1.message.expunge-content")),
    ("get", "/api/v1/app/{app_id}/msg/{msg_id}/endpoint", Some("v1.message-attempt.list-attempted-destinations")),
    ("post", "/api/v1/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend", Some("v1.message-attempt.resend")),
    ("post", "/api/v1/auth/app-portal-access/{app_id}", Some("v1.authentication.app-portal-access")),
    ("post", "/api/v1/auth/logout", Some("v1.authentication.logout")),
    ("get", "/api/v1/event-type", Some("v1.event-type.list")),
    ("post", "/api/v1/event-type", Some("v1.event-type.create")),
    ("delete", "/api/v1/event-type/{event_type_name}", Some("v1.event-type.delete")),
    ("get", "/api/v1/event-type/{event_type_name}", Some("v1.event-type.get")),
    ("patch", "/api/v1/event-type/{event_type_name}", Some("v1.event-type.patch")),
    ("put", "/api/v1/event-type/{event_type_name}", Some("v1.event-type.upsert")),
    ("get", "/api/v1/health", Some("v1.health.get")),
    ("get", "/api/v1/health/ping", None),
];
