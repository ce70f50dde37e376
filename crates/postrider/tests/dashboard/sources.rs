//! The pages of sources.

use super::*;

on_both_stores! {
    async
    sources_and_what_they_refused_are_shown_to_operators,
    a_source_is_made_changed_and_deleted_in_the_browser,
    what_is_wrong_with_a_source_stands_beside_its_field,
    a_source_that_cannot_be_read_is_shown_as_that,
    sources_are_changed_by_those_who_may_and_from_our_own_pages,
}

async fn sources_and_what_they_refused_are_shown_to_operators(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    assert!(visitor.see("/sources").await.text.contains("There are none yet"));
    let wanted = json!({"name": "<b>GitHub", "uid": "gh", "type": "github", "config": {"secret": "s"}});
    let source = visitor.world.client.create("/ingest/api/v1/source", &wanted).await;
    let text = |name: &str| source[name].as_str().expect("text").to_owned();
    let url = text("ingestUrl");
    let path = url.strip_prefix(&visitor.world.server.url()).expect("ours");
    let body = r#"{"a":"<script>alert(1)</script>"}"#;
    let sent = visitor.world.client.send(Method::POST, path, &[("x-seen", "<i>yes")], body).await.expect("an answer");
    assert_eq!(sent.0.as_u16(), 401);
    let page = visitor.see("/sources").await;
    let (log, app) = (format!("/sources/{}", text("id")), format!("/apps/{}", text("appId")));
    assert!(page.text.contains(&log) && page.text.contains(&app) && page.text.contains("github"), "{}", page.text);
    assert!(!page.text.contains(path) && !page.text.contains("<b>"), "neither its URL nor a tag: {}", page.text);
    let page = support::eventually("the log", async || {
        let page = visitor.see(&log).await;
        page.text.contains("x-hub-signature-256 is missing").then_some(page)
    })
    .await;
    assert!(page.text.contains("x-seen: ") && page.text.contains("alert(1)"), "{}", page.text);
    assert!(!page.text.contains("<i>") && !page.text.contains("<script>alert"), "{}", page.text);
    assert_eq!(visitor.see(&app).await.status, 200, "and its application has the usual pages");
    assert_eq!(visitor.see("/sources/nowhere").await.status, 404);
    let access = format!("/ingest/api/v1/source/{}/dashboard", text("id"));
    let portal = visitor.world.client.create(&access, &json!({})).await["token"].as_str().expect("it").to_owned();
    visitor.sign_in(&portal).await;
    for path in ["/sources", &log] {
        assert_eq!(visitor.see(path).await.status, 403, "{path}");
    }
    assert_eq!(visitor.see(&app).await.status, 200);
}

/// What stands between the two, the first time.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before} in {text}"));
    rest.split_once(after).expect("an end").0
}

async fn a_source_is_made_changed_and_deleted_in_the_browser(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    assert!(visitor.see("/sources").await.text.contains(r#"href="/sources/new""#));
    let choice = visitor.see("/sources/new").await;
    for kind in ["github", "stripe", "hmac", "generic-webhook"] {
        assert!(choice.text.contains(&format!("<option>{kind}</option>")), "{}", choice.text);
    }
    assert!(!choice.text.contains("config.secret"), "what is asked follows from the type");
    assert!(visitor.see("/sources/new?type=fax").await.text.contains("There is no such type"));
    let form = visitor.see("/sources/new?type=github").await;
    assert!(form.text.contains(r#"name="config.secret" type="password""#), "{}", form.text);
    let csrf = form.csrf().to_owned();
    let fields = [
        ("csrf", &*csrf),
        ("type", "github"),
        ("name", "Our <GitHub>"),
        ("uid", "gh"),
        ("config.secret", "canary"),
        ("passHeaders", "x-a, x-b"),
        ("idFrom", ""),
        ("typeFrom", "body:/kind"),
    ];
    let place = visitor.send("/sources/new", &fields).await.leads_to().to_owned();
    let place = place.strip_suffix("?done=source-made").expect("it was made").to_owned();
    let made = visitor.world.client.get::<Value>("/ingest/api/v1/source/gh").await.expect("it is there");
    assert_eq!((&made["name"], &made["verified"]), (&json!("Our <GitHub>"), &json!(true)));
    assert_eq!((&made["passHeaders"], &made["typeFrom"]), (&json!(["x-a", "x-b"]), &json!("body:/kind")));
    let shown = visitor.see(&format!("{place}?done=source-made")).await;
    let url = between(&shown.text, r#"<code id="ingest-url">"#, "</code>").to_owned();
    assert_eq!(made["ingestUrl"], url, "as the browser reached us");
    assert!(shown.text.contains(r#"data-copy="ingest-url""#) && shown.text.contains("The source is there."));
    assert!(!shown.text.contains("<GitHub>") && !shown.text.contains("canary"), "{}", shown.text);

    // Changed without the secret being known, and with what the form has no field for.
    let metadata = json!({"metadata": {"team": "a"}}).to_string();
    let patched = visitor.world.client.send(Method::PATCH, "/ingest/api/v1/source/gh", &[], &metadata).await;
    assert_eq!(patched.expect("an answer").0, 200);
    let edit = format!("{place}/edit");
    let form = visitor.see(&edit).await;
    assert!(!form.text.contains("canary") && form.text.contains("as it is"), "{}", form.text);
    assert!(form.text.contains(r#"value="gh""#) && form.text.contains("x-a, x-b"), "{}", form.text);
    let fields = [("csrf", &*csrf), ("type", "github"), ("name", "Code"), ("uid", "gh"), ("config.secret", "")];
    assert_eq!(visitor.send(&edit, &fields).await.leads_to(), format!("{place}?done=source-changed"));
    let changed = visitor.world.client.get::<Value>("/ingest/api/v1/source/gh").await.expect("it is there");
    assert_eq!(
        (&changed["name"], &changed["verified"], &changed["ingestUrl"]),
        (&json!("Code"), &json!(true), &json!(url))
    );
    assert_eq!((&changed["metadata"], &changed["passHeaders"]), (&json!({"team": "a"}), &Value::Null));
    let without = [&fields[..4], &[("remove", "config.secret")]].concat();
    assert_eq!(visitor.send(&edit, &without).await.status, 303);
    let page = visitor.see(&place).await;
    assert!(page.text.contains("whoever knows the URL is believed"), "{}", page.text);
    // Another type, with a secret that is not called that.
    let form = visitor.see(&format!("{edit}?type=twilio")).await;
    assert!(form.text.contains("config.authToken") && form.text.contains(r#"value="Code""#), "{}", form.text);
    let twilio =
        [("csrf", &*csrf), ("type", "twilio"), ("name", "Calls"), ("uid", "gh"), ("config.authToken", "canary")];
    assert_eq!(visitor.send(&edit, &twilio).await.status, 303);
    assert_eq!(visitor.send(&edit, &twilio[..4]).await.status, 303, "what is set stays, whatever it is called");
    let changed = visitor.world.client.get::<Value>("/ingest/api/v1/source/gh").await.expect("it is there");
    assert_eq!((&changed["type"], &changed["verified"]), (&json!("twilio"), &json!(true)));

    let asked = visitor.see(&format!("{place}/rotate")).await;
    assert!(asked.text.contains("24 hours") && asked.text.contains("Calls"), "{}", asked.text);
    let before = visitor.world.client.get::<Value>("/ingest/api/v1/source/gh").await.expect("it is there");
    assert_eq!(before["ingestUrl"], url, "asking changes nothing");
    let rotated = visitor.send(&format!("{place}/rotate"), &[("csrf", &csrf)]).await;
    assert_eq!(rotated.leads_to(), format!("{place}?done=source-rotated"));
    let page = visitor.see(&format!("{place}?done=source-rotated")).await;
    let another = between(&page.text, r#"<code id="ingest-url">"#, "</code>");
    let plain = visitor.see(&place).await;
    assert!(!plain.text.contains("/ingest/in/") && plain.text.contains("?show=url"), "{}", plain.text);
    assert!(visitor.see(&format!("{place}?show=url")).await.text.contains(another));
    assert!(another != url && another.starts_with(&format!("{}/ingest/in/", visitor.world.server.url())), "{another}");

    assert!(visitor.see(&format!("{place}/delete")).await.text.contains("Delete this source?"));
    let deleted = visitor.send(&format!("{place}/delete"), &[("csrf", &csrf)]).await;
    assert_eq!(deleted.leads_to(), "/sources?done=source-deleted");
    assert!(visitor.see("/sources?done=source-deleted").await.text.contains("There are none yet"));
    assert_eq!(visitor.see(&edit).await.status, 404);
}

async fn what_is_wrong_with_a_source_stands_beside_its_field(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let taken = json!({"name": "Any", "uid": "taken", "type": "generic-webhook"});
    visitor.world.client.create("/ingest/api/v1/source", &taken).await;
    let csrf = visitor.see("/sources/new").await.csrf().to_owned();
    let good = [
        ("name", "Ours"),
        ("uid", "ours"),
        ("config.secret", "canary"),
        ("config.header", "x-sig"),
        ("config.toleranceSeconds", ""),
        ("passHeaders", "x-kept"),
        ("idFrom", ""),
    ];
    for (name, value, words) in [
        ("name", "x", "2 to 256 characters"),
        ("uid", "a b", "letters, digits"),
        ("uid", "taken", "in use"),
        ("config.secret", "", "is missing"),
        ("config.header", "not a name", "the name of a header"),
        ("config.hash", "md5", "unknown variant"),
        ("config.toleranceSeconds", "long", "invalid type"),
        ("passHeaders", "cookie", "cannot be passed on"),
        ("idFrom", "anywhere", "header:"),
    ] {
        let start = [("csrf", &*csrf), ("type", "hmac")].into_iter();
        let mut fields: Vec<_> = start.chain(good.into_iter().filter(|(field, _)| *field != name)).collect();
        fields.push((name, value));
        let page = visitor.send("/sources/new", &fields).await;
        assert_eq!(page.status, 200, "{name}: {}", page.text);
        let flaw = between(&page.text, &format!(r#"id="{name}-flaw">"#), "</p>");
        assert!(flaw.contains(words), "{name}: {flaw}");
        assert!(!page.text.contains("canary"), "{name}: a secret is never shown");
        assert_eq!(page.text.contains("enter it again"), name != "config.secret", "{name}: {}", page.text);
        for (field, typed) in fields[2..].iter().filter(|(field, _)| !["config.secret", "config.hash"].contains(field))
        {
            assert!(page.text.contains(typed), "{name}: what was typed into {field} is there again: {}", page.text);
        }
    }
    let there = visitor.world.client.list::<Value>("/ingest/api/v1/source").await.expect("a list");
    assert_eq!(there.len(), 1, "nothing was made");
}

async fn a_source_that_cannot_be_read_is_shown_as_that(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    for name in ["Good", "<i>Spoiled"] {
        let wanted = json!({"name": name, "type": "generic-webhook"});
        visitor.world.client.create("/ingest/api/v1/source", &wanted).await;
    }
    visitor.world.server.stop();
    spoil_source(&visitor.world.server, "<i>Spoiled").await;
    visitor.world.start_again();
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let page = visitor.see("/sources").await;
    assert!(page.text.contains("cannot be read") && page.text.contains("Spoiled"), "{}", page.text);
    assert!(page.text.contains("Good") && !page.text.contains("<i>"), "{}", page.text);
    let deed = between(&page.text, r#"<a href="/sources/src_"#, "\"");
    assert!(deed.ends_with("/delete"), "{deed}");
    let deed = format!("/sources/src_{deed}");
    let asked = visitor.see(&deed).await;
    assert!(asked.status == 200 && asked.text.contains("Delete this source?"), "{}", asked.text);
    assert_eq!(visitor.send(&deed, &[("csrf", asked.csrf())]).await.status, 303);
    let page = visitor.see("/sources").await;
    assert!(!page.text.contains("cannot be read") && page.text.contains("Good"), "{}", page.text);
}

async fn sources_are_changed_by_those_who_may_and_from_our_own_pages(store: StoreKind) {
    let mut visitor = Visitor::arrive(store).await;
    let wanted = json!({"name": "Any", "uid": "any", "type": "generic-webhook"});
    let source = visitor.world.client.create("/ingest/api/v1/source", &wanted).await;
    let text = |name: &str| source[name].as_str().expect("text").to_owned();
    let place = format!("/sources/{}", text("id"));
    let deeds =
        ["/sources/new".to_owned(), format!("{place}/edit"), format!("{place}/rotate"), format!("{place}/delete")];
    let read = json!({"name": "screen", "scopes": ["read"]});
    let read = visitor.world.client.create("/api/v1/api-key", &read).await["token"].as_str().expect("it").to_owned();
    let access = format!("/ingest/api/v1/source/{}/dashboard", text("id"));
    let portal = visitor.world.client.create(&access, &json!({})).await["token"].as_str().expect("it").to_owned();
    for token in [read.clone(), portal] {
        visitor.sign_in(&token).await;
        let csrf = visitor.see("/").await.leads_to().to_owned();
        let csrf = visitor.see(&csrf).await.csrf().to_owned();
        for deed in &deeds {
            let page = visitor.see(deed).await;
            assert!(matches!(page.status, 403 | 404), "{deed}: {} {}", page.status, page.text);
            let fields = [("csrf", &*csrf), ("type", "generic-webhook"), ("name", "Other"), ("uid", "other")];
            let page = visitor.send(deed, &fields).await;
            assert!(matches!(page.status, 403 | 404), "{deed}: {} {}", page.status, page.text);
        }
    }
    visitor.sign_in(&read).await;
    for path in ["/sources", &*place] {
        let page = visitor.see(path).await;
        assert_eq!((page.status, page.text.matches(r#"method="post""#).count()), (200, 1), "{}", page.text);
        for words in ["/new\"", "/edit\"", "/rotate\"", "/delete\"", "/ingest/in/"] {
            assert!(!page.text.contains(words), "{path} {words}: {}", page.text);
        }
    }
    let token = visitor.token();
    visitor.sign_in(&token).await;
    let csrf = visitor.see("/sources").await.csrf().to_owned();
    for deed in &deeds {
        for (site, fields) in [
            ("same-origin", &[][..]),
            ("same-origin", &[("csrf", "nonsense")]),
            ("cross-site", &[("csrf", &*csrf), ("type", "generic-webhook"), ("name", "Other")]),
        ] {
            assert_eq!(visitor.send_from(site, deed, fields).await.status, 403, "{deed} {site} {fields:?}");
        }
    }
    let there = visitor.world.client.list::<Value>("/ingest/api/v1/source").await.expect("a list");
    assert_eq!(there, [source], "nothing was done");
}
