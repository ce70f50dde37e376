//! The pages of pollers.

use super::*;

on_both_stores! {
    async
    a_poller_is_made_changed_and_deleted_in_its_pages,
    a_pollers_consumers_are_shown_with_how_far_they_are_behind,
    a_pollers_token_is_shown_and_rotated_when_asked_for,
    pollers_are_shown_with_what_one_may_do_and_to_nobody_else,
}

/// What a form says is wrong with one of its fields.
fn beside<'a>(page: &'a Page, field: &str) -> &'a str {
    let start = format!(r#"id="{field}-fault""#);
    let (_, rest) = page.text.split_once(&start).unwrap_or_else(|| panic!("nothing beside {field}: {}", page.text));
    rest.split_once('>').and_then(|(_, rest)| rest.split_once('<')).expect("words").0
}

pub async fn made_poller(visitor: &mut Visitor, body: Value) -> String {
    let made = visitor.world.client.create("/api/v1/app/acme/poller", &body).await;
    made["id"].as_str().expect("an id").to_owned()
}

async fn a_poller_is_made_changed_and_deleted_in_its_pages(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let kind = json!({"name": "order.paid", "description": ""});
    visitor.world.client.create("/api/v1/event-type", &kind).await;
    let wanted = json!({"capabilities": ["ViewBase", "ManageEndpoint"]});
    let access = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &wanted).await;
    visitor.sign_in(access["token"].as_str().expect("a token")).await;
    let (list, add) = (visitor.page("/pollers"), visitor.page("/new-poller"));
    assert!(visitor.see(&visitor.page("")).await.text.contains(&format!(r#"href="{list}""#)), "a way to it");
    let empty = visitor.see(&list).await;
    assert!(empty.text.contains("There are none yet") && empty.text.contains("Make one, show its token"));
    assert!(empty.text.contains(&add), "{}", empty.text);
    let csrf = visitor.see(&add).await.csrf().to_owned();
    made_poller(&mut visitor, json!({"uid": "taken"})).await;
    let good = [("uid", "till"), ("description", "The \"shop\""), ("types", "order.paid"), ("channels", "eu, us")];
    for (field, value, fault) in [
        ("uid", "no spaces", "Must be 1 to 256 letters"),
        ("uid", "poll_1", "Must not begin with"),
        ("uid", "taken", "Another poller of this application has this uid"),
        ("types", "order.paid, no.such", "There is no event type `no.such`"),
        ("types", "a/b", "`a/b` must"),
        ("channels", "eu, <b>", "`&#60;b&#62;` must"),
    ] {
        let others = good.iter().copied().filter(|(name, _)| *name != field);
        let fields: Vec<_> = [("csrf", &*csrf), (field, value)].into_iter().chain(others).collect();
        let page = visitor.send(&add, &fields).await;
        assert_eq!(page.status, 200, "{value}: {}", page.text);
        assert!(beside(&page, field).starts_with(fault), "{value}: {}", beside(&page, field));
        assert!(page.text.contains("Nothing was changed") && !page.text.contains("<b>"), "{value}: {}", page.text);
        for (name, value) in fields.iter().skip(1) {
            let value = value.replace('"', "&#34;").replace('<', "&#60;").replace('>', "&#62;");
            let filled = format!(r#"name="{name}" value="{value}""#);
            assert!(page.text.contains(&filled), "what was filled in is there again: {filled}: {}", page.text);
        }
    }
    assert_eq!(visitor.world.list("poller").await.len(), 1, "nothing was made");
    let forged = visitor.send(&add, &[&[("csrf", "forged")], &good[..]].concat()).await;
    assert_eq!(forged.status, 403);

    let added = visitor.send(&add, &[&[("csrf", &*csrf)], &good[..]].concat()).await;
    assert_eq!(added.status, 303, "{}", added.text);
    let page = visitor.see(added.leads_to()).await;
    assert!(page.text.contains("The poller was made."), "{}", page.text);
    let made = visitor.world.list("poller").await.pop().expect("it");
    assert_eq!((&made["uid"], &made["description"]), (&json!("till"), &json!("The \"shop\"")), "{made}");
    assert_eq!((&made["filterTypes"], &made["channels"]), (&json!(["order.paid"]), &json!(["eu", "us"])), "{made}");
    let id = made["id"].as_str().expect("an id").to_owned();
    let place = visitor.page(&format!("/pollers/{id}"));
    let shown = visitor.see(&list).await;
    for words in [&*place, "till", &id, "order.paid", "eu, us", "The &#34;shop&#34;"] {
        assert!(shown.text.contains(words), "{words}: {}", shown.text);
    }
    let shown = visitor.see(&place).await;
    let fetch = format!(
        "{}/api/v1/app/{}/poller/{id}/consumer/worker-1",
        visitor.world.server.url().trim_end_matches('/'),
        visitor.app
    );
    for words in [&*fetch, "Authorization: Bearer $POLLER_TOKEN", "consumer_poll", "Nobody has a place here yet"] {
        assert!(shown.text.contains(words), "{words}: {}", shown.text);
    }
    assert!(!shown.text.contains("eyJ"), "no token by itself: {}", shown.text);
    assert_eq!(visitor.see(&visitor.page("/pollers/till")).await.status, 200, "by its uid, too");

    let edit = format!("{place}/edit");
    let form = visitor.see(&edit).await;
    for words in [r#"value="till""#, r#"value="order.paid""#, r#"value="eu, us""#] {
        assert!(form.text.contains(words), "{words}: {}", form.text);
    }
    let page = visitor.send(&edit, &[("csrf", &*csrf), ("uid", "taken"), ("description", "Till 2")]).await;
    assert!(beside(&page, "uid").starts_with("Another poller") && page.text.contains("Till 2"), "{}", page.text);
    let changed = visitor.send(&edit, &[("csrf", &*csrf), ("uid", "till-2")]).await;
    assert_eq!(changed.status, 303, "{}", changed.text);
    assert!(visitor.see(changed.leads_to()).await.text.contains("The poller was changed."));
    let made = visitor.world.list("poller").await.pop().expect("it");
    assert_eq!((&made["uid"], &made["description"], &made["channels"]), (&json!("till-2"), &json!(""), &Value::Null));

    let delete = format!("{place}/delete");
    let asked = visitor.see(&delete).await;
    assert!(asked.text.contains("Delete this poller?") && asked.text.contains("till-2"), "{}", asked.text);
    assert_eq!(visitor.send(&delete, &[("csrf", "forged")]).await.status, 403);
    assert_eq!(visitor.world.list("poller").await.len(), 2, "asking deletes nothing");
    let gone = visitor.send(&delete, &[("csrf", &csrf)]).await;
    assert_eq!(gone.status, 303, "{}", gone.text);
    assert!(visitor.see(gone.leads_to()).await.text.contains("The poller was deleted."));
    assert_eq!(visitor.world.list("poller").await.len(), 1);
    for path in [&place, &edit, &delete] {
        assert_eq!(visitor.see(path).await.status, 404, "{path}");
    }
    assert_eq!(visitor.send(&delete, &[("csrf", &csrf)]).await.status, 404);

    for number in 1..50 {
        made_poller(&mut visitor, json!({"uid": format!("p{number}")})).await;
    }
    let page = visitor.send(&add, &[&[("csrf", &*csrf)], &good[..]].concat()).await;
    assert!(page.text.contains("An application can have 50 pollers") && page.text.contains("eu, us"), "{}", page.text);
    assert!(visitor.see(&list).await.text.contains(">p49<"), "all of them are listed");
}

async fn a_pollers_consumers_are_shown_with_how_far_they_are_behind(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    for name in ["order.paid", "order.sent"] {
        visitor.world.client.create("/api/v1/event-type", &json!({"name": name, "description": ""})).await;
    }
    let attack = r#"'"><script>alert(1)</script><img src=x onerror=alert(1)>"#;
    let body = json!({"uid": "till", "description": attack, "filterTypes": ["order.paid"]});
    let poller = made_poller(&mut visitor, body).await;
    let (list, place) = (visitor.page("/pollers"), visitor.page(&format!("/pollers/{poller}")));
    // On PostgreSQL what was just sent is fetched a moment later.
    let fetched = async |visitor: &mut Visitor, sent: &str| {
        support::eventually("a message to fetch", async || {
            let read = visitor.world.get("poller/till").await;
            let found = read["data"].as_array().expect("a list").iter().any(|message| message["id"] == sent);
            found.then(|| read["iterator"].as_str().expect("an iterator").to_owned())
        })
        .await
    };
    let first = visitor.world.send("order.paid").await;
    let after_first = fetched(&mut visitor, &first).await;
    let commit = async |visitor: &mut Visitor, name: &str, iterator: &str| {
        let path = format!("poller/till/consumer/{name}/commit");
        let (status, answer) = visitor.world.post(&path, json!({"iterator": iterator})).await;
        assert_eq!(status, 200, "{answer}");
    };
    commit(&mut visitor, "slow", &after_first).await;
    let page = visitor.see(&place).await;
    assert!(page.text.contains("caught up") && !page.text.contains(" behind</span>"), "{}", page.text);
    visitor.world.send("order.sent").await;
    let second = visitor.world.send("order.paid").await;
    let after_second = fetched(&mut visitor, &second).await;
    commit(&mut visitor, "quick", &after_second).await;
    commit(&mut visitor, "twin", &after_second).await;
    let back = json!({"after": "2020-01-01T00:00:00Z"});
    assert_eq!(visitor.world.post("poller/till/consumer/new/seek", back).await.0, 200);

    let page = visitor.see(&place).await;
    let rows: Vec<&str> = page.text.split("<tr>").skip(2).collect();
    let row = |name: &str| {
        let wanted = format!("<code>{name}</code>");
        *rows.iter().find(|row| row.contains(&wanted)).unwrap_or_else(|| panic!("{name}: {}", page.text))
    };
    assert!(rows[0].contains("<code>new</code>"), "the furthest behind comes first: {}", page.text);
    for (name, next) in [("new", &first), ("slow", &second)] {
        let to = format!(r#"href="{}""#, visitor.page(&format!("/messages/{next}")));
        assert!(row(name).contains(" behind</span>") && row(name).contains(&to), "{name}: {}", row(name));
        assert!(row(name).contains("order.paid"), "{name}: {}", row(name));
    }
    for name in ["quick", "twin"] {
        assert!(row(name).contains("caught up"), "{name}: {}", row(name));
    }
    // What it does not let through makes nobody late.
    let other = visitor.world.send("order.sent").await;
    made_poller(&mut visitor, json!({"uid": "all"})).await;
    support::eventually("the other message", async || {
        let read = visitor.world.get("poller/all?after=2020-01-01T00:00:00Z").await;
        read.to_string().contains(&other).then_some(())
    })
    .await;
    let page = visitor.see(&place).await;
    assert_eq!(page.text.matches("caught up").count(), 2, "{}", page.text);
    let consumers = visitor.world.get("poller/till/consumer").await;
    let at = |name: &str, field: &str| {
        let all = consumers["data"].as_array().expect("a list");
        all.iter().find(|one| one["consumerId"] == name).expect("it")[field].as_str().expect("text").to_owned()
    };
    for field in ["placeAt", "movedAt"] {
        assert!(page.text.contains(&format!(r#"datetime="{}""#, at("slow", field))), "{field}: {}", page.text);
    }
    for path in [&list, &place, &format!("{place}/edit"), &format!("{place}/delete")] {
        let page = visitor.see(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        assert!(!page.text.contains("<script>alert") && !page.text.contains("<img"), "{path}: {}", page.text);
        assert!(page.text.contains("&#60;img") || page.text.contains("&lt;img"), "{path}: {}", page.text);
    }
    assert!(visitor.see(&list).await.text.contains(r#"data-label="Consumers">4<"#));
    assert!(visitor.see(&format!("{place}/delete")).await.text.contains("its 4 consumers"));
    let after = visitor.world.get("poller/till/consumer").await;
    assert_eq!(after, consumers, "looking moves nobody");
    let csrf = visitor.see(&place).await.csrf().to_owned();
    let forget = format!("{place}/consumers/twin/forget");
    assert!(visitor.see(&place).await.text.contains(&forget));
    assert_eq!(visitor.send(&forget, &[("csrf", "forged")]).await.status, 403);
    let done = visitor.send(&forget, &[("csrf", &csrf)]).await;
    assert_eq!(done.status, 303, "{}", done.text);
    let page = visitor.see(done.leads_to()).await;
    assert!(page.text.contains("is forgotten") && !page.text.contains("<code>twin</code>"), "{}", page.text);
    assert!(page.text.contains("<code>quick</code>"), "{}", page.text);
    assert_eq!(visitor.send(&forget, &[("csrf", &csrf)]).await.status, 404);
    let made = visitor.world.client.create("/api/v1/auth/app-portal-access/acme", &json!({"readOnly": true})).await;
    visitor.sign_in(made["token"].as_str().expect("a token")).await;
    let page = visitor.see(&place).await;
    assert!(page.text.contains("<code>quick</code>") && !page.text.contains("/forget"), "{}", page.text);
    let csrf = page.csrf().to_owned();
    assert_eq!(visitor.send(&forget.replace("twin", "quick"), &[("csrf", &csrf)]).await.status, 403);
}

async fn a_pollers_token_is_shown_and_rotated_when_asked_for(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let poller = made_poller(&mut visitor, json!({"uid": "till"})).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let place = visitor.page(&format!("/pollers/{poller}"));
    let (show, rotate) = (format!("{place}/token"), format!("{place}/rotate"));
    let token_path = "/api/v1/auth/app/acme/poller/till/token";
    let told = async |visitor: &mut Visitor| {
        let told: Value = visitor.world.client.get(token_path).await.expect("an answer");
        told["token"].as_str().expect("a token").to_owned()
    };
    let first = told(&mut visitor).await;
    let page = visitor.see(&place).await;
    assert!(!page.text.contains(&first), "{}", page.text);
    let csrf = page.csrf().to_owned();
    let linked = visitor.see(&show).await;
    assert_eq!((linked.status, linked.leads_to()), (303, &*place), "a link shows nothing");
    assert_eq!(visitor.send(&show, &[("csrf", "forged")]).await.status, 403);
    let page = visitor.send(&show, &[("csrf", &csrf)]).await;
    assert!(page.status == 200 && page.text.contains(&first), "{}", page.text);
    assert!(page.text.contains(r#"data-copy="token""#) && page.headers["cache-control"] == "no-store");
    assert!(visitor.see("/audit?operation=v1.authentication.get-poller-token").await.text.contains(&visitor.app));

    for (overlap, fault) in [("86401", "Must be at most 86400"), ("soon", "Invalid type"), ("", "Invalid type")] {
        let page = visitor.send(&rotate, &[("csrf", &csrf), ("overlap", overlap)]).await;
        assert_eq!(page.status, 200, "{overlap}");
        assert!(beside(&page, "overlap").starts_with(fault), "{overlap}: {}", beside(&page, "overlap"));
        assert!(page.text.contains(r#"<option value="300" selected>"#), "{overlap}: not the one that ends it at once");
    }
    assert_eq!(visitor.send(&rotate, &[("csrf", "forged"), ("overlap", "0")]).await.status, 403);
    assert_eq!(visitor.see(&rotate).await.status, 405);
    assert_eq!(told(&mut visitor).await, first, "nothing was changed");

    let opens = async |visitor: &Visitor, token: &str| {
        let mut client = Client::new(visitor.world.server.address(), token);
        client.send(Method::GET, "/api/v1/app/acme/poller/till", &[], "").await.expect("an answer").0.as_u16()
    };
    let done = visitor.send(&rotate, &[("csrf", &csrf), ("overlap", "3600")]).await;
    assert_eq!((done.status, done.leads_to()), (303, &*format!("{place}?done=rotated")), "{}", done.text);
    let page = visitor.see(&format!("{place}?done=rotated")).await;
    let second = told(&mut visitor).await;
    assert!(page.text.contains("There is a new token") && !page.text.contains(&second), "{}", page.text);
    assert_ne!(first, second);
    assert_eq!([opens(&visitor, &first).await, opens(&visitor, &second).await], [200, 200], "both hold for a while");
    visitor.send(&rotate, &[("csrf", &csrf), ("overlap", "0")]).await;
    let third = told(&mut visitor).await;
    let opened = [opens(&visitor, &first).await, opens(&visitor, &second).await, opens(&visitor, &third).await];
    assert_eq!(opened, [401, 401, 200], "all older ones ended at once");
    assert!(visitor.send(&show, &[("csrf", &csrf)]).await.text.contains(&third));
    for _ in 0..10 {
        assert_eq!(visitor.send(&rotate, &[("csrf", &csrf), ("overlap", "86400")]).await.status, 303);
    }
    let page = visitor.send(&rotate, &[("csrf", &csrf), ("overlap", "86400")]).await;
    assert!(beside(&page, "overlap").starts_with("Ten old tokens still hold"), "{}", page.text);
    assert!(page.text.contains(r#"<option value="86400" selected>"#), "what was chosen is chosen");
    let path = "/api/v1/auth/app/acme/expire-all";
    let ended = visitor.world.client.send(Method::POST, path, &[], r#"{"expiry": 0}"#).await.expect("an answer");
    assert!(ended.0.is_success(), "{ended:?}");
    let page = visitor.send(&show, &[("csrf", &csrf)]).await;
    assert!(beside(&page, "overlap").contains("token has ended"), "{}", page.text);
    assert!(!page.text.contains("eyJ"), "{}", page.text);
}

async fn pollers_are_shown_with_what_one_may_do_and_to_nobody_else(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let poller = made_poller(&mut visitor, json!({"uid": "till"})).await;
    let (list, place) = (visitor.page("/pollers"), visitor.page(&format!("/pollers/{poller}")));
    let access = "/api/v1/auth/app-portal-access/acme";
    let deeds = ["token", "rotate", "edit", "delete"].map(|deed| format!("{place}/{deed}"));
    let add = visitor.page("/new-poller");
    let [show, rotate, edit, delete] = &deeds;
    for (capabilities, words, works) in [
        (&["ViewBase"][..], "", &[][..]),
        (&["ViewBase", "CreateAttempts"], "", &[]),
        (&["ViewBase", "ViewEndpointSecret"], "token", &[show]),
        (&["ViewBase", "ManageEndpointSecret"], "token rotate", &[show, rotate]),
        (&["ViewBase", "ManageEndpoint"], "token rotate edit delete add", &[show, rotate, edit]),
    ] {
        let made = visitor.world.client.create(access, &json!({"capabilities": capabilities})).await;
        visitor.sign_in(made["token"].as_str().expect("a token")).await;
        let (all, one) = (visitor.see(&list).await, visitor.see(&place).await);
        assert_eq!((all.status, one.status), (200, 200), "{capabilities:?}");
        let shown = |deed: &str| {
            let page =
                if deed == "add" { (&all, &add) } else { (&one, deeds.iter().find(|it| it.ends_with(deed)).unwrap()) };
            page.0.text.contains(&format!(r#""{}""#, page.1))
        };
        let all_shown = ["token", "rotate", "edit", "delete", "add"].into_iter().filter(|deed| shown(deed));
        assert_eq!(all_shown.collect::<Vec<_>>().join(" "), words, "{capabilities:?}");
        let csrf = one.csrf().to_owned();
        for path in deeds.iter().chain([&add]) {
            let allowed = works.contains(&path) || words.contains("add");
            if !allowed {
                let fields = [("csrf", &*csrf), ("overlap", "0"), ("uid", "other")];
                let page = visitor.send(path, &fields).await;
                assert!(page.status == 403 && page.text.contains("You may not do that"), "{path}: {}", page.text);
            } else if works.contains(&path) {
                let fields = [("csrf", &*csrf), ("overlap", "300"), ("uid", "till")];
                assert!(visitor.send(path, &fields).await.status < 400, "{capabilities:?} {path}");
            }
        }
        for path in [edit, delete, &add] {
            let expected = if words.contains("add") { 200 } else { 403 };
            assert_eq!(visitor.see(path).await.status, expected, "{capabilities:?} {path}");
        }
    }
    let wanted = json!({"name": "screen", "scopes": ["read"]});
    let key = visitor.world.client.create("/api/v1/api-key", &wanted).await["token"].as_str().expect("it").to_owned();
    visitor.sign_in(&key).await;
    for path in [&list, &place] {
        let page = visitor.see(path).await;
        assert!(page.status == 200 && page.text.matches(r#"method="post""#).count() == 1, "{path}: {}", page.text);
    }

    // Of another application, and of this one under a name that is none: the same answer.
    let wanted = json!({"application": {"name": "Elsewhere", "uid": "elsewhere"}});
    let made = visitor.world.client.create("/api/v1/auth/app-portal-access/elsewhere", &wanted).await;
    visitor.sign_in(made["token"].as_str().expect("a token")).await;
    let home = visitor.see("/").await.leads_to().to_owned();
    let csrf = visitor.see(&home).await.csrf().to_owned();
    for rest in ["/pollers", "/pollers/till", "/new-poller", "/pollers/till/edit", "/pollers/till/delete"] {
        let (theirs, none) =
            (visitor.see(&visitor.page(rest)).await, visitor.see(&format!("/apps/nobody{rest}")).await);
        assert_eq!((theirs.status, none.status), (404, 404), "{rest}");
        assert_eq!(theirs.text, none.text, "{rest}");
    }
    assert_eq!(visitor.see(&format!("{home}/pollers/{poller}")).await.status, 404, "nor by its id from at home");
    for rest in
        ["/pollers/till/token", "/pollers/till/rotate", "/pollers/till/edit", "/pollers/till/delete", "/new-poller"]
    {
        let fields = [("csrf", &*csrf), ("overlap", "0"), ("uid", "stolen")];
        let page = visitor.send(&visitor.page(rest), &fields).await;
        assert!(page.status == 404 && !page.text.contains("eyJ"), "{rest}: {} {}", page.status, page.text);
        let page = visitor.send(&format!("{home}{}", rest.replace("till", &poller)), &fields).await;
        assert!(page.status == 404 || rest == "/new-poller", "{rest}: {} {}", page.status, page.text);
    }
    let pollers = visitor.world.list("poller").await;
    assert_eq!((pollers.len(), &pollers[0]["uid"]), (1, &json!("till")), "{pollers:?}");
}
