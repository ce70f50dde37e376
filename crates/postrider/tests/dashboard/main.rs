//! The pages for people, as a browser asks for them.

mod pollers;
mod sources;
#[path = "../support/mod.rs"]
mod support;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use support::{
    api::Client,
    receiver::{Answer, Receiver},
    server::Server,
    stores::{StoreKind, on_both_stores, spoil_source},
    world::{World, hasty},
};

on_both_stores! {
    async
    nobody_sees_a_page_without_signing_in,
    a_failed_delivery_can_be_understood_and_sent_again,
    some_dead_letters_are_sent_again_at_once,
    messages_are_found_by_how_they_stand,
    messages_of_all_applications_are_found_by_operators,
    sending_many_again_is_followed_where_it_was_begun,
    a_form_that_is_not_ours_does_nothing,
    a_token_for_one_application_leads_nowhere_else,
    pages_show_what_one_may_do_and_no_more,
    what_was_stored_is_shown_as_text,
    a_customer_adds_changes_and_deletes_an_endpoint,
    an_endpoint_s_rules_and_headers_are_set_in_its_form,
    what_was_done_is_counted_and_drawn,
    tasks_and_keys_are_seen_and_ended,
    nodes_and_settings_are_shown_to_operators,
    a_schedule_is_drawn_over_what_the_application_says,
    a_test_alert_tells_how_it_went,
}

/// What whoever runs it sees.
const OF_ALL: [&str; 12] = [
    "/overview",
    "/apps",
    "/messages",
    "/sources",
    "/event-types",
    "/tasks",
    "/schedule",
    "/alerts",
    "/nodes",
    "/settings",
    "/api-keys",
    "/audit",
];

/// A browser without JavaScript.
struct Visitor {
    world: World,
    cookie: Option<String>,
    app: String,
}

struct Page {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Page {
    fn leads_to(&self) -> &str {
        self.headers.get("location").map_or("nowhere", |place| place.to_str().expect("text"))
    }

    fn csrf(&self) -> &str {
        let (_, rest) = self.text.split_once(r#"name="csrf" value=""#).expect("a form");
        rest.split_once('"').expect("the end of it").0
    }
}

impl Visitor {
    async fn arrive(store: StoreKind) -> Self {
        let mut world = World::start_on(store).await;
        let app = world.get("").await["id"].as_str().expect("an id").to_owned();
        Self { world, cookie: None, app }
    }

    async fn sign_in(&mut self, token: &str) -> Page {
        let page = self.send("/sign-in", &[("token", token)]).await;
        if let Some(cookie) = page.headers.get("set-cookie") {
            let cookie = cookie.to_str().expect("text");
            assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
            assert!(!cookie.contains(token), "the token is sealed");
            self.cookie = Some(cookie.split(';').next().expect("a pair").to_owned());
        }
        page
    }

    async fn see(&mut self, path: &str) -> Page {
        self.ask(Method::GET, path, String::new(), &[]).await
    }

    async fn send(&mut self, path: &str, fields: &[(&str, &str)]) -> Page {
        self.send_from("same-origin", path, fields).await
    }

    async fn send_from(&mut self, site: &str, path: &str, fields: &[(&str, &str)]) -> Page {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let headers = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", site)];
        self.ask(Method::POST, path, body, &headers).await
    }

    async fn ask(&mut self, method: Method, path: &str, body: String, more: &[(&str, &str)]) -> Page {
        let cookie = self.cookie.clone().unwrap_or_default();
        let mut headers = vec![("cookie", &*cookie)];
        headers.extend(more);
        // The client shows its token, too. Pages do not look at that.
        let (head, body) = self.world.client.send_whole(method, path, &headers, &body).await.expect("an answer");
        Page {
            status: head.status.as_u16(),
            headers: head.headers,
            text: String::from_utf8(body.to_vec()).expect("text"),
        }
    }

    fn page(&self, rest: &str) -> String {
        format!("/apps/{}{rest}", self.app)
    }

    fn token(&self) -> String {
        self.world.server.token().to_owned()
    }
}

async fn nobody_sees_a_page_without_signing_in(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let app = visitor.app.clone();
    let pages =
        ["", "/messages", "/messages/x", "/endpoints/x", "/dead-letters", "/pollers", "/pollers/x", "/pollers/x/token"]
            .map(|rest| format!("/apps/{app}{rest}"));
    for path in pages.iter().map(String::as_str).chain(OF_ALL).chain(["/"]) {
        let page = visitor.see(path).await;
        assert_eq!((page.status, page.leads_to()), (303, "/sign-in"), "{path}");
    }
    let shown = visitor.see("/sign-in").await;
    assert_eq!(shown.status, 200);
    let policy = shown.headers["content-security-policy"].to_str().expect("text");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(shown.headers["cache-control"], "no-store");

    let refused = visitor.sign_in("nonsense").await;
    assert!(refused.text.contains("does not hold here") && visitor.cookie.is_none());
    assert!(visitor.sign_in(" ").await.text.contains("Paste a token first"));
    let token = visitor.token();
    let let_in = visitor.sign_in(&token).await;
    assert_eq!((let_in.status, let_in.leads_to()), (303, "/"));
    assert_eq!(visitor.see("/").await.leads_to(), "/overview");
    for path in OF_ALL {
        let page = visitor.see(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
    }
    for period in ["day", "week"] {
        assert_eq!(visitor.see(&format!("/overview?period={period}")).await.status, 200);
    }
    assert_eq!(visitor.see("/overview?period=century").await.status, 400);
    for path in &pages[..2] {
        assert_eq!(visitor.see(path).await.status, 200, "{path}");
    }
    assert_eq!(visitor.see(&pages[2]).await.status, 404);

    let csrf = visitor.see("/apps").await.csrf().to_owned();
    let left = visitor.send("/sign-out", &[("csrf", &csrf)]).await;
    let gone = left.headers["set-cookie"].to_str().expect("text");
    assert!(gone.starts_with("postrider_session=;") && gone.contains("Max-Age=0"), "{gone}");
}

async fn a_failed_delivery_can_be_understood_and_sent_again(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let words = "the shop is closed".to_owned();
    let refusal = Answer::Full { status: 503, headers: Vec::new(), body: words.clone().into() };
    visitor.world.receiver.always("/shop", refusal);
    visitor.world.endpoint("/shop", json!({"retryPolicy": hasty(2)})).await;
    let message = visitor.world.send_with("order.paid", json!({"payload": {"order": 17}})).await;
    assert_eq!(visitor.world.end(&message, "shop").await.0, "fail");

    let list = visitor.see(&visitor.page("/messages?type=order.paid")).await;
    assert!(list.text.contains(&message) && list.text.contains("order.paid"));
    assert!(!visitor.see(&visitor.page("/messages?type=other")).await.text.contains(&message));
    let found = visitor.see(&visitor.page(&format!("/messages?id={message}"))).await;
    assert_eq!(found.leads_to(), visitor.page(&format!("/messages/{message}")));
    let page = visitor.see(&visitor.page(&format!("/messages/{message}"))).await;
    for words in [&*words, "503", "attempt 2", "&quot;order&quot;: 17", "fail"] {
        let escaped = page.text.replace("&#34;", "&quot;");
        assert!(escaped.contains(words), "{words}: {}", page.text);
    }
    let dead = visitor.see(&visitor.page("/dead-letters?reason=exhausted")).await;
    assert!(dead.text.contains("1 in all") && dead.text.contains(&message), "{}", dead.text);
    assert!(visitor.see(&visitor.page("/dead-letters?reason=expired")).await.text.contains("none like that"));

    visitor.world.receiver.always("/shop", Answer::Full { status: 200, headers: Vec::new(), body: Bytes::new() });
    let mut deeds = dead.text.split(r#"action=""#).filter_map(|text| Some(text.split_once('"')?.0));
    let deed = deeds.find(|deed| deed.contains(&message)).expect("a button of its own").to_owned();
    let csrf = dead.csrf().to_owned();
    let done = visitor.send(&deed, &[("csrf", &csrf)]).await;
    assert_eq!(done.status, 303, "{}", done.text);
    let place = done.leads_to().to_owned();
    assert!(visitor.see(&place).await.text.contains("on its way again"));
    assert_eq!(visitor.world.end(&message, "shop").await.0, "success");
    assert!(visitor.see(&visitor.page("/dead-letters")).await.text.contains("There are none."));

    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    for (deed, notice, state) in [("pause", "Its messages wait", true), ("resume", "goes on", false)] {
        let done = visitor.send(&visitor.page(&format!("/endpoints/{endpoint}/{deed}")), &[("csrf", &csrf)]).await;
        let place = done.leads_to().to_owned();
        assert!(visitor.see(&place).await.text.contains(notice), "{deed}");
        assert_eq!(visitor.world.get("endpoint/shop").await["disabled"], state);
    }
    visitor.send(&visitor.page(&format!("/endpoints/{endpoint}/pause")), &[("csrf", &csrf)]).await;
    let resume = visitor.page(&format!("/endpoints/{endpoint}/resume"));
    let done = visitor.send(&resume, &[("csrf", &csrf), ("deliver", "none")]).await.leads_to().to_owned();
    assert!(visitor.see(&done).await.text.contains("is being sifted"));
    let asked = visitor.see(&visitor.page("/dead-letters/replay?type=a,b")).await;
    assert!(asked.text.contains("what a person called back"), "{}", asked.text);
    let all = visitor.send(&visitor.page("/dead-letters/replay"), &[("csrf", &csrf), ("type", "a, b")]).await;
    assert_eq!(all.status, 303, "{}", all.text);
    let unknown = visitor.send(&visitor.page(&format!("/endpoints/{endpoint}/destroy")), &[("csrf", &csrf)]).await;
    assert_eq!(unknown.status, 404);
}

async fn some_dead_letters_are_sent_again_at_once(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let answer = |status| Answer::Full { status, headers: Vec::new(), body: Bytes::new() };
    let mut messages = Vec::new();
    for path in ["/shop", "/gone"] {
        visitor.world.receiver.always(path, answer(500));
        let types = json!({"retryPolicy": hasty(1), "channels": [&path[1..]]});
        visitor.world.endpoint(path, types).await;
        for _ in 0..2 {
            let message = visitor.world.send_with("order.paid", json!({"channels": [&path[1..]]})).await;
            assert_eq!(visitor.world.end(&message, &path[1..]).await.0, "fail");
            messages.push(message);
        }
    }
    visitor.world.receiver.always("/shop", answer(200));
    let mut ids = Vec::new();
    for endpoint in ["shop", "gone"] {
        ids.push(visitor.world.get(&format!("endpoint/{endpoint}")).await["id"].as_str().expect("an id").to_owned());
    }
    visitor.world.call(Method::DELETE, "endpoint/gone", Value::Null).await;
    let list = visitor.see(&visitor.page("/dead-letters")).await;
    let (csrf, boxes) = (list.csrf().to_owned(), list.text.matches(r#"name="letter""#).count());
    assert_eq!((boxes, list.text.matches(" checked").count()), (4, 0), "{}", list.text);
    let (_, rest) = list.text.split_once(r#"<a href=""#).expect("links");
    assert!(rest.contains("tick=all"), "a way to choose all without JavaScript");
    let ticked = visitor.see(&visitor.page("/dead-letters?tick=all")).await;
    assert_eq!(ticked.text.matches(" checked").count(), 4);

    let deed = visitor.page("/dead-letters/replay-selected");
    assert_eq!(visitor.send(&deed, &[("csrf", &csrf)]).await.status, 400, "nothing is ticked");
    let chosen = |message: usize, endpoint: usize| format!("{} {}", messages[message], ids[endpoint]);
    let (first, gone) = (chosen(0, 0), chosen(2, 1));
    // The same one twice is one; what was never there is told by name.
    let fields =
        [("csrf", &*csrf), ("letter", &*first), ("letter", &*first), ("letter", &*gone), ("letter", "msg_x ep_x")];
    let done = visitor.send(&deed, &fields).await;
    assert!(done.status == 200 && done.text.contains("1 of 3 put on their way again"), "{}", done.text);
    assert!(done.text.contains("nowhere to send it") && done.text.contains(&messages[2]), "{}", done.text);
    assert!(done.text.contains("msg_x"), "{}", done.text);
    assert_eq!(visitor.world.end(&messages[0], "shop").await.0, "success");
    assert_eq!(visitor.world.end(&messages[1], "shop").await.0, "fail", "it was not ticked");
    let again = visitor.send(&deed, &[("csrf", &csrf), ("letter", &first)]).await;
    assert!(again.text.contains("0 of 1") && again.text.contains("had been put on their way before"), "{}", again.text);
    let forged = visitor.send(&deed, &[("csrf", "forged"), ("letter", &chosen(1, 0))]).await;
    assert_eq!(forged.status, 403);

    let access = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &json!({"readOnly": true})).await;
    let token = access["token"].as_str().expect("a token").to_owned();
    visitor.sign_in(&token).await;
    let csrf = visitor.see(&visitor.page("")).await.csrf().to_owned();
    assert_eq!(visitor.send(&deed, &[("csrf", &csrf), ("letter", &chosen(1, 0))]).await.status, 403);
    assert_eq!(visitor.world.status(&messages[1], "shop").await.expect("a status"), "fail");
}

async fn messages_of_all_applications_are_found_by_operators(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    assert!(visitor.see("/messages").await.text.contains("There are none yet"));
    let other = visitor.world.client.create("/api/v1/app", &json!({"name": "Other"})).await["id"].clone();
    let other = other.as_str().expect("an id").to_owned();
    let first = visitor.world.send_with("order.paid", json!({"tags": ["a"]})).await;
    let event = json!({"eventType": "order.sent", "eventId": "evt-1", "payload": {}, "tags": ["b"]});
    let second = visitor.world.client.create(&format!("/api/v1/app/{other}/msg"), &event).await["id"].clone();
    let second = second.as_str().expect("an id").to_owned();
    for (query, expected) in [("", [true, true]), ("?tag=a", [true, false]), ("?type=order.sent", [false, true])] {
        let page = visitor.see(&format!("/messages{query}")).await;
        assert_eq!([&first, &second].map(|id| page.text.contains(id.as_str())), expected, "{query}: {}", page.text);
    }
    let page = visitor.see("/messages").await;
    assert!(page.text.contains(&format!("href=\"/apps/{other}/messages/{second}\"")), "{}", page.text);
    assert_eq!(
        visitor.see(&format!("/messages?id={second}")).await.leads_to(),
        format!("/apps/{other}/messages/{second}")
    );
    for id in ["evt-1", "msg_0123456789012345678901234567"] {
        let page = visitor.see(&format!("/messages?id={id}")).await;
        assert!(page.status == 200 && page.text.contains("no message of this id"), "{}", page.text);
    }
    assert!(visitor.see("/messages?endpoint=nobody").await.text.contains("no such endpoint"));
    let found: Value = visitor.world.client.get("/api/v1/message-search?limit=1").await.expect("an answer");
    assert_eq!((&found["data"][0]["appId"], &found["done"]), (&json!(other), &json!(false)), "{found}");
    let found: Value = visitor.world.client.get(&format!("/api/v1/message/{first}")).await.expect("an answer");
    assert_eq!((&found["id"], &found["appId"]), (&json!(first), &json!(visitor.app)), "{found}");

    let made = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &json!({})).await;
    let token = made["token"].as_str().expect("a token").to_owned();
    visitor.sign_in(&token).await;
    for path in ["/messages".to_owned(), format!("/messages?id={first}")] {
        assert_eq!(visitor.see(&path).await.status, 403, "{path}");
    }
}

async fn sending_many_again_is_followed_where_it_was_begun(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    visitor.world.receiver.always("/shop", Answer::Status(400));
    visitor.world.endpoint("/shop", json!({})).await;
    for _ in 0..3 {
        let message = visitor.world.send("order.paid").await;
        assert_eq!(visitor.world.end(&message, "shop").await.0, "fail");
    }
    let here = visitor.page("/dead-letters");
    let before = visitor.see(&here).await;
    assert!(!before.text.contains("What is under way"));
    let csrf = before.csrf().to_owned();
    visitor.world.receiver.always("/shop", Answer::Status(204));
    let begun = visitor.send(&format!("{here}/replay"), &[("csrf", &csrf)]).await;
    assert_eq!(begun.status, 303, "{}", begun.text);
    let place = begun.leads_to().to_owned();
    assert!(place.starts_with(&format!("{here}?task=qtask_")), "{place}");
    let page = support::eventually("all of them to be sent", async || {
        let page = visitor.see(&place).await;
        page.text.contains("3 sent again").then_some(page)
    })
    .await;
    assert!(page.text.contains("3 of 3") && page.text.contains("finished"), "{}", page.text);
    assert!(!page.text.contains("data-refresh"), "there is nothing more to wait for");
    let task = place.split("task=").nth(1).and_then(|rest| rest.split('&').next()).expect("its id").to_owned();
    let ended = visitor.send(&format!("{here}/tasks/{task}/cancel"), &[("csrf", &csrf)]).await;
    assert_eq!(ended.status, 303, "{}", ended.text);
    assert!(visitor.see(ended.leads_to()).await.text.contains("3 sent again"), "what it has done stays done");
    assert_eq!(visitor.see(&format!("{here}?task=nonsense")).await.status, 200);
}

async fn messages_are_found_by_how_they_stand(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    assert!(visitor.see(&visitor.page("/messages")).await.text.contains("There are none yet"));
    for (path, status) in [("/shop", 200), ("/down", 500)] {
        visitor.world.receiver.always(path, Answer::Full { status, headers: Vec::new(), body: Bytes::new() });
        visitor.world.endpoint(path, json!({"retryPolicy": hasty(1), "channels": [&path[1..]]})).await;
    }
    let mut sent = Vec::new();
    for (channel, tag, status) in [("shop", "a", "success"), ("down", "a", "fail"), ("down", "b", "fail")] {
        let message = visitor.world.send_with("order.paid", json!({"channels": [channel], "tags": [tag]})).await;
        assert_eq!(visitor.world.end(&message, channel).await.0, status);
        sent.push(message);
    }
    for (query, expected) in [
        ("", &[0, 1, 2][..]),
        ("status=0", &[0]),
        ("status=2", &[1, 2]),
        ("status=4", &[]),
        ("endpoint=down", &[1, 2]),
        ("endpoint=shop&status=2", &[]),
        ("endpoint=down&status=2&tag=b", &[2]),
        ("from=2026-01-01T00:00&type=order.paid", &[0, 1, 2]),
        ("to=2026-01-01T00:00", &[]),
        ("status=2&tag=a", &[1]),
    ] {
        let page = visitor.see(&visitor.page(&format!("/messages?{query}"))).await;
        assert_eq!(page.status, 200, "{}", page.text);
        for (number, message) in sent.iter().enumerate() {
            assert_eq!(page.text.contains(message), expected.contains(&number), "{query} {number}: {}", page.text);
        }
    }
    let page = visitor.see(&visitor.page("/messages?status=2")).await;
    assert!(page.text.contains(r#"<option value="2" selected>"#), "what was asked for is there again: {}", page.text);
    for (query, words) in [("endpoint=nobody", "no such endpoint"), ("from=yesterday", "after"), ("status=9", "status")]
    {
        let page = visitor.see(&visitor.page(&format!("/messages?{query}"))).await;
        let fault =
            page.text.split_once(r#"role="alert">"#).map_or("", |(_, rest)| rest.split('<').next().unwrap_or(""));
        assert!(page.status == 200 && fault.contains(words), "{query}: {}", page.text);
    }
    let found = visitor.world.get("message-search?status=2&limit=1").await;
    assert_eq!((&found["data"][0]["id"], &found["done"]), (&json!(sent[2]), &json!(false)), "{found}");
    assert_eq!(found["data"][0]["statuses"], json!({"fail": 1}));
    let iterator = found["iterator"].as_str().expect("where to go on");
    let found = visitor.world.get(&format!("message-search?status=2&iterator={iterator}")).await;
    assert_eq!((&found["data"][0]["id"], &found["done"]), (&json!(sent[1]), &json!(true)), "{found}");
}

async fn a_form_that_is_not_ours_does_nothing(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    assert_eq!(visitor.send_from("cross-site", "/sign-in", &[("token", &token)]).await.status, 403);
    visitor.sign_in(&token).await;
    visitor.world.endpoint("/shop", json!({})).await;
    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    let pause = visitor.page(&format!("/endpoints/{endpoint}/pause"));
    let csrf = visitor.see("/apps").await.csrf().to_owned();
    for (site, fields) in [
        ("same-origin", &[][..]),
        ("same-origin", &[("csrf", "nonsense")]),
        ("cross-site", &[("csrf", &*csrf)]),
        ("same-site", &[("csrf", &*csrf)]),
    ] {
        let page = visitor.send_from(site, &pause, fields).await;
        assert_eq!(page.status, 403, "{site} {fields:?}");
        assert!(page.text.contains("Nothing was done"));
    }
    assert_eq!(visitor.world.get("endpoint/shop").await["disabled"], false);
    assert_eq!(visitor.see(&pause).await.status, 405, "a link does nothing either");
    assert_eq!(visitor.send(&pause, &[("csrf", &csrf)]).await.status, 303);
    assert_eq!(visitor.world.get("endpoint/shop").await["disabled"], true);
}

async fn a_token_for_one_application_leads_nowhere_else(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    visitor.world.endpoint("/shop", json!({})).await;
    let wanted = json!({"application": {"name": "Elsewhere", "uid": "elsewhere"}, "readOnly": true});
    let access = visitor.world.client.create("/api/v1/auth/app-portal-access/elsewhere", &wanted).await;
    let token = access["token"].as_str().expect("a token").to_owned();
    visitor.sign_in(&token).await;
    let home = visitor.see("/").await.leads_to().to_owned();
    let page = visitor.see(&home).await;
    assert!(page.status == 200 && page.text.contains("Elsewhere"), "{}", page.text);
    assert_eq!(visitor.see("/apps").await.status, 403);
    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    for rest in [String::new(), "/messages".to_owned(), "/dead-letters".to_owned(), format!("/endpoints/{endpoint}")] {
        assert_eq!(visitor.see(&visitor.page(&rest)).await.status, 404, "{rest}");
    }
    let csrf = page.csrf().to_owned();
    let pause = visitor.page(&format!("/endpoints/{endpoint}/pause"));
    assert_eq!(visitor.send(&pause, &[("csrf", &csrf)]).await.status, 404);
    assert_eq!(visitor.world.get("endpoint/shop").await["disabled"], false);
}

async fn pages_show_what_one_may_do_and_no_more(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    visitor.world.receiver.always("/shop", Answer::Full { status: 500, headers: Vec::new(), body: Bytes::new() });
    visitor.world.endpoint("/shop", json!({"retryPolicy": hasty(1)})).await;
    let message = visitor.world.send("order.paid").await;
    assert_eq!(visitor.world.end(&message, "shop").await.0, "fail");
    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    let own = [
        String::new(),
        format!("/endpoints/{endpoint}"),
        format!("/endpoints/{endpoint}/schedule"),
        "/messages".to_owned(),
        format!("/messages/{message}"),
        "/dead-letters".to_owned(),
        "/pollers".to_owned(),
        "/pollers/till".to_owned(),
    ];
    pollers::made_poller(&mut visitor, json!({"uid": "till"})).await;
    let pages: Vec<String> = own.iter().map(|rest| visitor.page(rest)).collect();
    let access = "/api/v1/auth/app-portal-access/acme";
    let wanted = json!({"name": "screen", "scopes": ["read"]});
    let key =
        visitor.world.client.create("/api/v1/api-key", &wanted).await["token"].as_str().expect("a key").to_owned();
    let portal = visitor.world.client.create(access, &json!({"readOnly": true})).await["token"].clone();
    for (token, who, others) in
        [(key, "API key screen", &OF_ALL[..8]), (portal.as_str().expect("it").to_owned(), "Acme", &[][..])]
    {
        visitor.sign_in(&token).await;
        for path in pages.iter().map(String::as_str).chain(others.iter().copied()) {
            let page = visitor.see(path).await;
            assert_eq!(page.status, 200, "{who} {path}: {}", page.text);
            assert!(page.text.contains(who) && page.text.contains(">read-only<"), "{who} {path}: {}", page.text);
            // The one form that changes something is the one that signs out.
            let posts = page.text.matches(r#"method="post""#).count();
            assert_eq!(posts, 1, "{who} {path}: {}", page.text);
            for words in [
                "formmethod",
                "new-endpoint",
                "new-poller",
                "/token\"",
                "/edit\"",
                "/delete\"",
                "/secret\"",
                "dead-letters/replay",
                "/api-keys",
                "/audit",
            ] {
                assert!(!page.text.contains(words), "{who} {path} {words}: {}", page.text);
            }
        }
        for rest in
            ["/new-endpoint".to_owned(), format!("/endpoints/{endpoint}/edit"), format!("/endpoints/{endpoint}/delete")]
        {
            let page = visitor.see(&visitor.page(&rest)).await;
            assert!(page.status == 403 && page.text.contains("You may not do that"), "{who} {rest}: {}", page.text);
        }
        let csrf = visitor.see(&pages[0]).await.csrf().to_owned();
        for rest in [
            format!("/endpoints/{endpoint}/pause"),
            format!("/messages/{message}/cancel"),
            "/dead-letters/replay".to_owned(),
        ] {
            let page = visitor.send(&visitor.page(&rest), &[("csrf", &csrf)]).await;
            assert_eq!(page.status, 403, "{who} {rest}: {}", page.text);
        }
    }
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let page = visitor.see(&pages[1]).await;
    assert!(page.text.contains("operator") && !page.text.contains(">read-only<"), "{}", page.text);
    assert!(page.text.contains("/api-keys") && page.text.contains("/edit\""), "{}", page.text);
    let wanted = json!({"capabilities": ["ViewBase", "CreateAttempts"]});
    let portal = visitor.world.client.create(access, &wanted).await["token"].as_str().expect("it").to_owned();
    visitor.sign_in(&portal).await;
    let page = visitor.see(&pages[1]).await;
    assert!(page.text.contains("/example") && !page.text.contains("/pause"), "{}", page.text);
    assert!(!page.text.contains(">read-only<"), "{}", page.text);
}

/// The link's page itself is opened by a script; what that does is done here by hand.
async fn a_customer_adds_changes_and_deletes_an_endpoint(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    for (path, words) in
        [("/portal", r#"action="/sign-in""#), ("/portal.js", "location.hash"), ("/dashboard.js", "time")]
    {
        let page = visitor.see(path).await;
        assert!(page.status == 200 && page.text.contains(words) && !page.text.contains("://"), "{path}: {}", page.text);
    }
    let wanted = json!({"capabilities": ["ViewBase", "ManageEndpoint", "CreateAttempts"]});
    let access = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &wanted).await;
    let token = access["token"].as_str().expect("a token").to_owned();
    visitor.sign_in(&token).await;
    let add = visitor.page("/new-endpoint");
    let form = visitor.see(&add).await;
    let csrf = form.csrf().to_owned();
    let url = visitor.world.receiver.url("/shop");
    for (fields, fault) in [
        ([("url", "http://10.0.0.1/"), ("types", ""), ("rate", "")], "url"),
        ([("url", &*url), ("types", "no.such.type"), ("rate", "")], "no event type"),
        ([("url", &*url), ("types", ""), ("rate", "many")], "must be a number"),
    ] {
        let page = visitor.send(&add, &[&[("csrf", &*csrf)], &fields[..]].concat()).await;
        assert_eq!(page.status, 200);
        assert!(page.text.contains(r#"role="alert""#) && page.text.contains(fault), "{fault}: {}", page.text);
        assert!(page.text.contains(fields[2].1), "what was filled in is there again");
    }
    assert_eq!(visitor.world.list("endpoint").await.len(), 0);
    let fields = [("csrf", &*csrf), ("url", &url), ("description", "The shop"), ("types", ""), ("rate", "20")];
    let added = visitor.send(&add, &fields).await.leads_to().to_owned();
    assert!(visitor.see(&added).await.text.contains("The endpoint was added."));
    let made = visitor.world.list("endpoint").await.remove(0);
    assert_eq!((&made["url"], &made["description"], &made["rateLimit"]), (&json!(url), &json!("The shop"), &json!(20)));
    let place = visitor.page(&format!("/endpoints/{}", made["id"].as_str().expect("an id")));

    let form = visitor.see(&format!("{place}/edit")).await;
    assert!(form.text.contains("The shop") && form.text.contains(r#"value="20""#), "{}", form.text);
    let fields = [("csrf", &*csrf), ("url", &url), ("description", ""), ("types", ""), ("rate", "")];
    assert_eq!(visitor.send(&format!("{place}/edit"), &fields).await.status, 303);
    let made = visitor.world.list("endpoint").await.remove(0);
    assert_eq!((&made["description"], &made["rateLimit"]), (&json!(""), &Value::Null));

    let secret = visitor.world.get(&format!("endpoint/{}/secret", made["id"].as_str().expect("an id"))).await;
    let shown = visitor.see(&format!("{place}/secret")).await;
    assert!(shown.text.contains(secret["key"].as_str().expect("a secret")));
    assert_eq!(visitor.send(&format!("{place}/example"), &[("csrf", &csrf)]).await.status, 303);
    visitor.world.receiver.wait_for("/shop", 1).await;

    let access = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &json!({"readOnly": true})).await;
    let token = access["token"].as_str().expect("a token").to_owned();
    let mine = visitor.cookie.clone();
    visitor.sign_in(&token).await;
    let reader = visitor.see(&place).await.csrf().to_owned();
    for deed in ["edit", "delete", "example", "pause"] {
        let page = visitor.send(&format!("{place}/{deed}"), &[("csrf", &reader), ("url", &url)]).await;
        assert_eq!(page.status, 403, "{deed}: {}", page.text);
    }
    assert_eq!(visitor.see(&format!("{place}/secret")).await.status, 403);
    visitor.cookie = mine;
    assert_eq!(visitor.send(&format!("{place}/delete"), &[("csrf", &csrf)]).await.status, 303);
    assert_eq!(visitor.world.list("endpoint").await.len(), 0);
}

async fn an_endpoint_s_rules_and_headers_are_set_in_its_form(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let add = visitor.page("/new-endpoint");
    let csrf = visitor.see(&add).await.csrf().to_owned();
    let url = visitor.world.receiver.url("/shop");
    let start = [("csrf", &*csrf), ("url", &*url), ("uid", "shop")];
    let rules = [
        ("channels", "eu, us"),
        ("in_flight", "3"),
        ("ordering", "key"),
        ("connect", "2s"),
        ("overrides", "404: retry\r\n5xx: permanent"),
        ("breaker", ""),
        ("failures", "4"),
        ("while_open", "dead-letter"),
        ("failing_for", "2d"),
        ("streak", "never"),
    ];
    for (field, value, fault) in [
        ("headers", "Authorization", "a name and a value"),
        ("headers", "Host: elsewhere", "cannot be set"),
        ("connect", "soon", "timeouts.connect"),
        ("total", "10m", "timeouts.total"),
        ("overrides", "404: maybe", "statusOverrides"),
        ("in_flight", "0", "maxInFlight"),
        ("breaker", "off", "turned off and has numbers"),
        ("streak", "some", "autoDisable"),
        ("channels", "no spaces!", "channels"),
    ] {
        let others = rules.iter().copied().filter(|(name, _)| *name != field);
        let fields: Vec<_> = start.iter().copied().chain(others).chain([(field, value)]).collect();
        let page = visitor.send(&add, &fields).await;
        let (_, rest) = page.text.split_once(r#"role="alert">"#).unwrap_or_else(|| panic!("{field}: {}", page.text));
        let told = rest.split("</p>").next().expect("its end");
        assert!(page.status == 200 && told.contains(fault) && told.contains("Nothing was changed"), "{field}: {told}");
        assert!(page.text.contains(r#"value="2d""#) || field == "failing_for", "what was filled in is there again");
    }
    assert_eq!(visitor.world.list("endpoint").await.len(), 0);
    let headers = [("headers", "X-Source: postrider\r\nAuthorization: Bearer secret-thing")];
    let fields: Vec<_> = start.iter().copied().chain(rules).chain(headers).collect();
    let added = visitor.send(&add, &fields).await;
    assert_eq!(added.status, 303, "{}", added.text);
    let made = visitor.world.get("endpoint/shop").await;
    for (field, value) in [
        ("channels", json!(["eu", "us"])),
        ("maxInFlight", json!(3)),
        ("ordering", json!("key")),
        ("timeouts", json!({"connect": "2s"})),
        ("statusOverrides", json!({"404": "retry", "5xx": "permanent"})),
        ("circuitBreaker", json!({"failures": 4, "whileOpen": "dead-letter"})),
        ("autoDisable", json!({"failingFor": "2d", "permanentStreak": false})),
    ] {
        assert_eq!(made[field], value, "{field}: {made}");
    }
    let place = visitor.page(&format!("/endpoints/{}", made["id"].as_str().expect("an id")));
    let shown = visitor.see(&place).await;
    assert!(shown.text.contains("failing for 2d") && shown.text.contains("no limit"), "{}", shown.text);

    // The retry policy, of which the form knows nothing, stays as it is; what is cleared goes.
    visitor.world.call(Method::PATCH, "endpoint/shop", json!({"retryPolicy": hasty(2)})).await;
    let form = visitor.see(&format!("{place}/edit")).await;
    for words in ["404: retry", r#"value="never""#, r#"<option value="key" selected>"#, "X-Source: postrider"] {
        assert!(form.text.contains(words), "{words}: {}", form.text);
    }
    assert!(!form.text.contains("secret-thing"), "{}", form.text);
    let changed =
        visitor.send(&format!("{place}/edit"), &[&start[..], &[("breaker", "off"), ("disable", "off")]].concat()).await;
    assert_eq!(changed.status, 303, "{}", changed.text);
    let made = visitor.world.get("endpoint/shop").await;
    assert_eq!((&made["circuitBreaker"], &made["autoDisable"]), (&json!(false), &json!(false)), "{made}");
    assert!(made["timeouts"].is_null() && made["channels"].is_null() && made["ordering"].is_null(), "{made}");
    assert_eq!(made["retryPolicy"]["maxAttempts"], 2);
    assert!(visitor.see(&place).await.text.contains("never by itself"));

    let bad = visitor.send(&format!("{place}/headers"), &[("csrf", &*csrf), ("headers", "Host: x\nX-B: 2")]).await;
    assert!(bad.text.contains("cannot be set") && bad.text.contains("X-B: 2"), "{}", bad.text);
    let of_endpoint = visitor.world.get("endpoint/shop/headers").await;
    assert_eq!(of_endpoint, json!({"headers": {"X-Source": "postrider"}, "sensitive": ["Authorization"]}));
    let saved = visitor.send(&format!("{place}/headers"), &[("csrf", &*csrf), ("headers", "X-B: 2")]).await;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let of_endpoint = visitor.world.get("endpoint/shop/headers").await;
    assert_eq!(
        of_endpoint,
        json!({"headers": {"X-B": "2"}, "sensitive": ["Authorization"]}),
        "what is not shown is kept"
    );
    let fields = [("csrf", &*csrf), ("headers", "X-B: 2"), ("remove", "Authorization")];
    assert_eq!(visitor.send(&format!("{place}/headers"), &fields).await.status, 303);
    assert_eq!(visitor.world.get("endpoint/shop/headers").await["sensitive"], json!([]));
}

async fn what_was_stored_is_shown_as_text(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let attack = r#"'"><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}"#;
    let refusal = Answer::Full { status: 400, headers: Vec::new(), body: attack.to_owned().into() };
    visitor.world.receiver.always("/shop", refusal);
    visitor.world.endpoint("/shop", json!({"description": attack, "retryPolicy": hasty(1)})).await;
    visitor.world.call(Method::PATCH, "", json!({"name": attack, "metadata": {"a": attack}})).await;
    let more = json!({"payload": {"text": attack}, "tags": ["a"], "eventId": "e-1"});
    let message = visitor.world.send_with("order.paid", more).await;
    visitor.world.end(&message, "shop").await;
    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    let rests =
        [String::new(), format!("/endpoints/{endpoint}"), format!("/messages/{message}"), "/dead-letters".to_owned()];
    for path in rests.map(|rest| visitor.page(&rest)).into_iter().chain(["/apps".to_owned()]) {
        let page = visitor.see(&path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        assert!(!page.text.contains("<script>alert") && !page.text.contains("<img"), "{path}: {}", page.text);
    }
    let query = url::form_urlencoded::Serializer::new(String::new()).append_pair("tag", attack).finish();
    let page = visitor.see(&visitor.page(&format!("/messages?{query}"))).await;
    assert!(!page.text.contains("<script>alert"), "{}", page.text);
}

/// Counts come within seconds.
async fn what_was_done_is_counted_and_drawn(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    visitor.world.receiver.always("/shop", Answer::Full { status: 500, headers: Vec::new(), body: Bytes::new() });
    visitor.world.endpoint("/shop", json!({"retryPolicy": hasty(2)})).await;
    let message = visitor.world.send("order.paid").await;
    assert_eq!(visitor.world.end(&message, "shop").await.0, "fail");
    // What is not written when it ends well is written then.
    visitor.world.server.stop();
    visitor.world.start_again();
    let overview: Value = visitor.world.client.get("/api/v1/stats/overview?period=hour").await.expect("an answer");
    let total = &overview["total"];
    assert_eq!((&total["accepted"], &total["failed"], &total["givenUp"]), (&json!(1), &json!(2), &json!(1)), "{total}");
    assert_eq!(overview["points"].as_array().expect("points").len(), 61);
    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    let stats = visitor.world.get("endpoint/shop/attempt-stats").await;
    assert_eq!(stats, json!({"success": 0, "fail": 2, "canceled": 0}));
    let history = visitor.world.get("endpoint/shop/attempt-history?period=week").await;
    assert_eq!((&history["total"]["status5xx"], &history["step"]), (&json!(2), &json!(3_600)), "{history}");
    assert_eq!(visitor.world.get("attempt-history").await["total"]["failed"], 2);
    for path in ["endpoint/shop/attempt-history?period=hour", "endpoint/shop/attempt-history?periode=day"] {
        assert_eq!(visitor.world.call(Method::GET, path, Value::Null).await.0, 400, "{path}");
    }
    let page = visitor.see("/overview").await;
    assert!(page.text.contains("0.0 %") && page.text.contains("0 delivered, 2 failed"), "{}", page.text);
    let page = visitor.see(&visitor.page(&format!("/endpoints/{endpoint}"))).await;
    assert!(page.text.contains("2 × 5xx"), "{}", page.text);
    let page = visitor.see(&visitor.page("")).await;
    assert!(page.text.contains("2 × 5xx") && page.text.contains("0 delivered, 2 failed"), "{}", page.text);
}

async fn tasks_and_keys_are_seen_and_ended(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    visitor.world.endpoint("/shop", json!({})).await;
    let (status, started) = visitor.world.post("endpoint/shop/recover", json!({"since": "2026-01-01T00:00:00Z"})).await;
    let task = visitor.world.end_of_task((status, started)).await;
    let page = visitor.see("/tasks").await;
    assert!(page.text.contains(task["id"].as_str().expect("an id")) && page.text.contains("finished"), "{}", page.text);
    let csrf = page.csrf().to_owned();
    // The contract's list of types is closed, and people want to see ours, too.
    let (status, _) =
        visitor.world.post("endpoint/shop/cancel-msgs", json!({"createdBefore": "2026-01-01T00:00:00Z"})).await;
    assert_eq!(status, 204);
    let mut called_back =
        visitor.world.client.list("/api/v1/background-task?task=endpoint.cancel").await.expect("a list");
    let canceled = called_back.remove(0);
    visitor.world.post("endpoint/shop/pause", Value::Null).await;
    let (status, started) = visitor.world.post("endpoint/shop/resume", json!({"deliver": "none"})).await;
    let resumed = visitor.world.end_of_task((status, started)).await;
    let page = visitor.see("/tasks").await;
    for (task, words) in [(&canceled, "endpoint.cancel"), (&resumed, "endpoint.resume")] {
        let id = task["id"].as_str().expect("an id");
        assert!(page.text.contains(id) && page.text.contains(words), "{words}: {}", page.text);
        let known: Value = visitor.world.client.get("/api/v1/background-task").await.expect("an answer");
        let all: Value = visitor.world.client.get("/api/v1/background-task?task=all").await.expect("an answer");
        let (known, all) = (known.to_string(), all.to_string());
        assert!(!known.contains(id) && all.contains(id), "{known} {all}");
    }

    let key = visitor.world.client.create("/api/v1/api-key", &json!({"name": "shop", "scopes": ["ingest"]})).await;
    let id = key["id"].as_str().expect("an id");
    assert!(visitor.see("/api-keys").await.text.contains(id));
    let done = visitor.send(&format!("/api-keys/{id}/revoke"), &[("csrf", &csrf)]).await;
    assert_eq!((done.status, done.leads_to()), (303, "/api-keys?done=revoked"), "{}", done.text);
    assert!(visitor.see("/api-keys").await.text.contains("revoked"));
    assert!(visitor.see("/audit?operation=v1.api-key.revoke").await.text.contains(id));
}

async fn nodes_and_settings_are_shown_to_operators(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let page = visitor.see("/nodes").await;
    assert!(page.text.contains("(this one)") && page.text.contains(">alive<"), "{}", page.text);
    assert!(page.text.contains(env!("CARGO_PKG_VERSION")), "{}", page.text);
    let nodes: Value = visitor.world.client.get("/api/v1/node").await.expect("an answer");
    let of_all: u64 = nodes["data"].as_array().expect("a list").iter().filter_map(|node| node["shards"].as_u64()).sum();
    assert_eq!((of_all, &nodes["shards"], &nodes["data"][0]["self"]), (256, &json!(256), &json!(true)), "{nodes}");

    let page = visitor.see("/settings").await;
    let address = visitor.world.server.address().to_string();
    for words in ["retention_payloads", "90d", "allow_subnets", "127.0.0.0/8", "flag --listen", &address] {
        assert!(page.text.contains(words), "{words}: {}", page.text);
    }
    let chosen = visitor.see("/settings?only=chosen").await;
    assert!(chosen.text.contains("allow_subnets") && !chosen.text.contains("retention_payloads"), "{}", chosen.text);
    if let StoreKind::Postgresql = store {
        assert!(
            page.text.contains(r#"<code>database_url</code></td>"#) && page.text.contains(">hidden<"),
            "{}",
            page.text
        );
        let settings: Value = visitor.world.client.get("/api/v1/settings").await.expect("an answer");
        let all = settings["data"].as_array().expect("a list");
        let address = all.iter().find(|one| one["name"] == "database_url").expect("it is there");
        assert_eq!((&address["value"], &address["hidden"]), (&Value::Null, &json!(true)), "{address}");
    }
    let access = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &json!({})).await;
    let token = access["token"].as_str().expect("a token").to_owned();
    visitor.sign_in(&token).await;
    for path in ["/nodes", "/settings"] {
        assert_eq!(visitor.see(path).await.status, 403, "{path}");
    }
}

async fn a_schedule_is_drawn_over_what_the_application_says(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    visitor.world.call(Method::PATCH, "", json!({"retryPolicy": {"maxAttempts": 4, "giveUpAfter": "2h"}})).await;
    visitor.world.endpoint("/shop", json!({"retryPolicy": null})).await;
    let endpoint = visitor.world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    let schedule = visitor.page(&format!("/endpoints/{endpoint}/schedule"));
    let told = |page: &Page| {
        let (_, rest) = page.text.split_once("<h2>").expect("what it comes to");
        rest.split(';').next().expect("a sentence").to_owned()
    };
    assert_eq!(told(&visitor.see(&schedule).await), "At most 4 attempts within 2h");
    let edited = visitor.see(&format!("{schedule}?edited=yes&time=1h")).await;
    assert_eq!(told(&edited), "At most 4 attempts within 1h", "as it would be once it is saved");
    let csrf = edited.csrf().to_owned();
    assert_eq!(visitor.send(&schedule, &[("csrf", &csrf), ("time", "1h")]).await.status, 303);
    assert_eq!(told(&visitor.see(&schedule).await), "At most 4 attempts within 1h");
    let alone = visitor.see("/schedule?time=1h").await;
    assert_ne!(told(&alone), "At most 4 attempts within 1h", "nobody's has no application");
}

async fn a_test_alert_tells_how_it_went(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let csrf = visitor.see("/alerts").await.csrf().to_owned();
    let page = visitor.send("/alerts", &[("csrf", &csrf)]).await;
    assert!(page.text.contains("none are set") && page.text.contains(">off<"), "{}", page.text);
    for (path, status) in [("/pager", 204), ("/chat", 500)] {
        visitor.world.receiver.always(path, Answer::Full { status, headers: Vec::new(), body: Bytes::new() });
        let body = json!({"url": visitor.world.receiver.url(path), "description": path});
        visitor.world.client.create("/api/v1/operational-webhook/endpoint", &body).await;
    }
    let page = visitor.send("/alerts", &[("csrf", &csrf)]).await;
    assert!(page.text.contains(">delivered<"), "{}", page.text);
    assert!(page.text.contains(">failed<") && page.text.contains("500"), "{}", page.text);
    assert_eq!(visitor.send("/alerts", &[("csrf", "forged")]).await.status, 403);
}

#[tokio::test]
async fn the_portal_may_be_framed_by_named_sites_and_nothing_else_may() {
    let mut server = Server::not_started(&["--public-url", "https://hooks.example"]);
    server.set_variables(&[("POSTRIDER_PORTAL_FRAMES", "https://app.example,https://b.example")]);
    server.start_again();
    server.take_token();
    let mut client = Client::new(server.address(), server.token());
    let app = client.create("/api/v1/app", &json!({"name": "Acme", "uid": "acme"})).await;
    let made = client.create("/api/v1/auth/app-portal-access/acme", &json!({})).await;
    let app = app["id"].as_str().expect("an id").to_owned();
    let world = World { server, receiver: Receiver::start(), client };
    let mut visitor = Visitor { world, cookie: None, app };
    let frames = |page: &Page| {
        let policy = page.headers["content-security-policy"].to_str().expect("text").to_owned();
        let (_, sites) = policy.rsplit_once("frame-ancestors ").expect("a word on frames");
        (sites.to_owned(), page.headers.contains_key("x-frame-options"))
    };
    let named = ("https://app.example https://b.example".to_owned(), false);
    let nobody = ("'none'".to_owned(), true);
    assert_eq!(frames(&visitor.see("/portal").await), named);
    assert_eq!(frames(&visitor.see("/sign-in").await), nobody);

    let cookies = |page: &Page| -> Vec<String> {
        page.headers.get_all("set-cookie").iter().map(|one| one.to_str().expect("text").to_owned()).collect()
    };
    let pair = |cookie: &str| cookie.split(';').next().expect("a pair").to_owned();
    let token = made["token"].as_str().expect("a token").to_owned();
    let entered = visitor.send("/sign-in", &[("token", &token)]).await;
    let [framed, ended] = &cookies(&entered)[..] else { panic!("one of each kind") };
    assert!(framed.starts_with("__Host-postrider_portal=") && framed.contains("SameSite=None; Secure; Partitioned"));
    assert!(ended.starts_with("__Host-postrider_session=;") && ended.contains("Max-Age=0"), "{ended}");
    visitor.cookie = Some(pair(framed));
    let page = visitor.see(&visitor.page("")).await;
    assert_eq!((page.status, frames(&page)), (200, named.clone()), "{}", page.text);
    let csrf = page.csrf().to_owned();

    let operator = visitor.token();
    let entered = visitor.send("/sign-in", &[("token", &operator)]).await;
    let [ended, plain] = &cookies(&entered)[..] else { panic!("one of each kind") };
    assert!(ended.starts_with("__Host-postrider_portal=;") && ended.contains("Partitioned"), "or it would stay there");
    assert!(plain.starts_with("__Host-postrider_session=") && plain.contains("SameSite=Strict; Secure"), "{plain}");
    // A browser that kept both: what it sees is the portal, and signing out ends both.
    visitor.cookie = Some(format!("{}; {}", pair(plain), pair(framed)));
    assert_eq!(frames(&visitor.see(&visitor.page("")).await), named);
    assert_eq!(visitor.see("/overview").await.status, 403);
    let left = cookies(&visitor.send("/sign-out", &[("csrf", &csrf)]).await);
    assert!(left.len() == 2 && left.iter().all(|one| one.contains("Max-Age=0")), "{left:?}");
    visitor.cookie = Some(pair(plain));
    assert_eq!(frames(&visitor.see("/overview").await), nobody);
    assert_eq!(frames(&visitor.see(&visitor.page("")).await), nobody);
}
