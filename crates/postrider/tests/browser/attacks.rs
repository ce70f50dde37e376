//! Attack strings wherever something can be stored or asked for: none of them runs, loads or becomes a part of a page.
//!
//! A string is a payload in a context: what would run, behind what would end the place that it is put into. The ordinary
//! run has every payload and every context once; `ATTACKS=200` (at most 500) has more of their pairs.

use crate::{
    answer, at,
    driver::{Browser, told_by},
    signed_in,
    support::{
        eventually,
        receiver::Answer,
        world::{World, hasty},
    },
};
use fantoccini::Locator;
use http::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn what_was_stored_never_runs() {
    let count = std::env::var("ATTACKS").map_or(PAYLOADS.len(), |count| count.parse().expect("a number"));
    let mut world = World::start().await;
    let attacks = family(count, &world.receiver.url(LOADED));
    let mut planted = Vec::new();
    for (number, attack) in attacks.iter().enumerate() {
        planted.push(plant(&mut world, number, attack).await);
    }
    let browser = signed_in(&world).await;
    let mut looks = Looks { browser: &browser, pages: 0, found: Vec::new() };
    for place in &planted {
        for path in place.pages() {
            looks.at(&at(&world, &path), &place.attack).await;
        }
    }
    for path in ["/overview", "/apps", "/sources", "/event-types", "/api-keys", "/audit", "/tasks", "/alerts"] {
        looks.at_all_of(&at(&world, path)).await;
    }
    watch_live(&mut world, &attacks, &mut looks).await;
    let Looks { pages, found, .. } = looks;
    let sum = |count: fn(&Place) -> usize| planted.iter().map(count).sum::<usize>();
    let (strings, stored, refused) = (attacks.len(), sum(|place| place.stored), sum(|place| place.refused));
    println!("{strings} attack strings: {stored} calls took one, {refused} refused it; looked at on {pages} pages");
    assert_eq!(found, Vec::<String>::new(), "on {pages} pages");
    assert_eq!(world.receiver.arrivals_at(LOADED).len(), 0, "nothing was loaded from elsewhere");
    browser.close().await;
}

/// Where one attack string was put.
struct Place {
    attack: String,
    app: String,
    endpoint: String,
    message: String,
    poller: String,
    /// Calls that took it, and those that do not take such a text.
    stored: usize,
    refused: usize,
}

/// Of each string: an application's name and metadata; an endpoint's address, description, metadata, and a header's value and
/// name; an event type's description, schema, group and name; a key's name; a message's payload (names and values), type, id,
/// order and tag; a poller's description, name and event type, and a consumer's name; an operational endpoint's description; the receiver's body and headers; a name in the audit log.
async fn plant(world: &mut World, number: usize, attack: &str) -> Place {
    let (mut stored, mut refused) = (0, 0);
    let mut put = async |method: Method, path: &str, body: Value| {
        let (status, answer) = world.client.send(method, path, &[], &body.to_string()).await.expect("an answer");
        let status = status.as_u16();
        assert!(status < 500, "{path} {body}: {status}");
        *if status < 400 { &mut stored } else { &mut refused } += 1;
        (status, serde_json::from_slice::<Value>(&answer).unwrap_or_default())
    };
    let id = |(status, made): (u16, Value)| {
        assert!(status < 300, "{status} {made}");
        made["id"].as_str().expect("an id").to_owned()
    };
    let app = json!({"name": attack, "metadata": {"note": attack}});
    let app = id(put(Method::POST, "/api/v1/app", app).await);
    let in_app = |rest: &str| format!("/api/v1/app/{app}/{rest}");
    let address = world.receiver.url(&format!("/shop/{number}?q={attack}"));
    let address = if url::Url::parse(&address).is_ok_and(|read| read.fragment().is_none()) {
        address
    } else {
        world.receiver.url(&format!("/shop/{number}?q={}", in_query(attack)))
    };
    let policy = hasty(1);
    let endpoint = json!({"url": address, "description": attack, "metadata": {"note": attack}, "retryPolicy": policy});
    let (_, made) = put(Method::POST, &in_app("endpoint"), endpoint).await;
    let endpoint = made["id"].as_str().unwrap_or_else(|| panic!("{attack}: {made}")).to_owned();
    let url = url::Url::parse(made["url"].as_str().expect("a URL")).expect("a URL");
    let visible: String = attack.chars().filter(|it| matches!(it, ' '..='~')).collect();
    world.receiver.always(
        &url[url::Position::BeforePath..],
        Answer::Full {
            status: 400,
            headers: vec![("x-attack", visible.clone()), ("location", visible.clone())],
            body: attack.to_owned().into(),
        },
    );
    let headers = in_app(&format!("endpoint/{endpoint}/headers"));
    put(Method::PUT, &headers, json!({"headers": {"x-note": visible}})).await;
    put(Method::PATCH, &headers, json!({"headers": {attack: "x"}})).await;
    let described =
        json!({"name": format!("attack.made{number}"), "description": attack, "schemas": {"1": {"title": attack}}});
    put(Method::POST, "/api/v1/event-type", described).await;
    put(Method::POST, "/api/v1/event-type", json!({"name": attack, "description": "x"})).await;
    let grouped = json!({"name": format!("attack.grouped{number}"), "description": attack, "groupName": attack});
    put(Method::POST, "/api/v1/event-type", grouped).await;
    put(Method::POST, "/api/v1/api-key", json!({"name": attack, "scopes": ["read"]})).await;
    let operational = json!({"url": world.receiver.url("/operational"), "description": attack, "disabled": true});
    put(Method::POST, "/api/v1/operational-webhook/endpoint", operational).await;
    put(Method::PATCH, &format!("/api/v1/app/{}", in_path(attack)), json!({"name": "x"})).await;
    for more in [json!({"eventId": attack}), json!({"tags": [attack]}), json!({"eventType": attack})] {
        let mut body = json!({"eventType": "attack.made", "payload": {"text": attack}});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        put(Method::POST, &in_app("msg"), body).await;
    }
    let message = json!({"eventType": "attack.made", "payload": {"text": attack, attack: 1}, "orderingKey": attack});
    let message = id(put(Method::POST, &in_app("msg"), message).await);
    let poller = id(put(Method::POST, &in_app("poller"), json!({"description": attack})).await);
    for refused in [json!({"uid": attack}), json!({"filterTypes": [attack]}), json!({"channels": [attack]})] {
        put(Method::POST, &in_app("poller"), refused).await;
    }
    let back = json!({"after": "2020-01-01T00:00:00Z"});
    for name in ["worker", &*in_path(attack)] {
        put(Method::POST, &in_app(&format!("poller/{poller}/consumer/{name}/seek")), back.clone()).await;
    }
    let dead = in_app(&format!("dead-letter/{message}/endpoint/{endpoint}"));
    eventually("the dead letter", async || {
        let (status, _) = world.client.send(Method::GET, &dead, &[], "").await.expect("an answer");
        status.is_success().then_some(())
    })
    .await;
    Place { attack: attack.to_owned(), app, endpoint, message, poller, stored, refused }
}

impl Place {
    fn pages(&self) -> Vec<String> {
        let Self { attack, app, endpoint, message, poller, .. } = self;
        let (asked, named) = (in_query(attack), in_path(attack));
        vec![
            format!("/apps/{app}"),
            format!("/apps/{app}/messages"),
            format!("/apps/{app}/messages/{message}"),
            format!("/apps/{app}/dead-letters"),
            format!("/apps/{app}/dead-letters/replay"),
            format!("/apps/{app}/new-endpoint"),
            format!("/apps/{app}/endpoints/{endpoint}"),
            format!("/apps/{app}/endpoints/{endpoint}/edit"),
            format!("/apps/{app}/endpoints/{endpoint}/schedule"),
            format!("/apps/{app}/endpoints/{endpoint}/secret"),
            format!("/apps/{app}/endpoints/{endpoint}/delete"),
            format!("/apps/{app}/pollers"),
            format!("/apps/{app}/pollers?done={asked}"),
            format!("/apps/{app}/new-poller"),
            format!("/apps/{app}/pollers/{poller}"),
            format!("/apps/{app}/pollers/{poller}/edit"),
            format!("/apps/{app}/pollers/{poller}/delete"),
            format!("/apps/{app}/pollers/{named}"),
            format!("/apps/{app}/messages?type={asked}&tag={asked}&channel={asked}&id={asked}"),
            format!("/apps/{app}/messages?type={asked}&tag={asked}&channel={asked}"),
            format!("/apps/{app}/dead-letters?type={asked}&endpoint={asked}&reason={asked}"),
            format!("/apps/{app}/live?type={asked}&endpoint={asked}"),
            format!("/apps/{app}?done={asked}&iterator={asked}"),
            format!("/apps/{named}"),
            format!("/apps/{named}/messages/{named}"),
            format!("/overview?period={asked}"),
            format!("/audit?actor={asked}&operation={asked}"),
            format!("/schedule?edited=yes&delays={asked}&jitter={asked}&attempts={asked}"),
            format!("/sign-in?fault={asked}"),
        ]
    }
}

/// What the browser makes of pages.
struct Looks<'a> {
    browser: &'a Browser,
    pages: usize,
    found: Vec<String>,
}

impl Looks<'_> {
    async fn at(&mut self, url: &str, attack: &str) {
        self.browser.go(url).await;
        self.judge(url, attack).await;
    }

    async fn judge(&mut self, url: &str, attack: &str) {
        self.pages += 1;
        // What a person would open, and what would be under his pointer or get his keys.
        let looked = told_by(self.browser, LOOK).await;
        if looked != json!({"hit": null, "grown": []}) {
            self.found.push(format!("{url}: {looked} by {attack}"));
        }
        let complaints = self.browser.complaints().await;
        let told = complaints.iter().filter(|line| line.contains("Content Security Policy"));
        self.found.extend(told.map(|line| format!("{url}: {line}")));
    }

    /// And at the pages after it.
    async fn at_all_of(&mut self, url: &str) {
        self.at(url, "any of them").await;
        while let Ok(more) = self.browser.client.find(Locator::Css(".more a")).await {
            more.click().await.expect("a link");
            self.judge(url, "any of them").await;
        }
    }
}

/// The page that changes by itself.
async fn watch_live(world: &mut World, attacks: &[String], looks: &mut Looks<'_>) {
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    // As many as the page shows.
    let shown = attacks.len().min(200);
    for (number, attack) in attacks.iter().take(shown).enumerate() {
        let url = world.receiver.url(&format!("/live/{number}?q={}", in_query(attack)));
        world.receiver.always(&format!("/live/{number}?q={}", in_query(attack)), answer(400, attack));
        let endpoint = json!({"url": url, "retryPolicy": hasty(1)});
        world.client.create("/api/v1/app/acme/endpoint", &endpoint).await;
    }
    let url = at(world, &format!("/apps/{app}/live"));
    looks.browser.go(&url).await;
    looks.browser.sees("Connected.").await;
    world.send_with("attack.made", json!({"payload": {"text": attacks.join(" ")}})).await;
    eventually("all attempts", async || {
        let rows = told_by(looks.browser, "return document.querySelectorAll('#live tr').length").await;
        (rows == shown).then_some(())
    })
    .await;
    looks.judge(&url, "any of them").await;
}

fn in_query(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn in_path(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The first `count` pairs, each payload and each context as soon as can be. `load`: what must never be asked for.
fn family(count: usize, load: &str) -> Vec<String> {
    assert!(count <= PAYLOADS.len() * CONTEXTS.len(), "there are no more");
    let pair = |number: usize| {
        let (turn, round) = (number % PAYLOADS.len(), number / PAYLOADS.len());
        let (payload, context) = (PAYLOADS[turn], CONTEXTS[(turn + round) % CONTEXTS.len()]);
        format!("{context}{}", payload.replace("RUN", &format!("window.hit={number}")).replace("LOAD", load))
    };
    let family: Vec<String> = (0..count).map(pair).collect();
    let different: std::collections::BTreeSet<&String> = family.iter().collect();
    assert_eq!(different.len(), count, "no pair twice");
    family
}

/// What would run. In a page `RUN` leaves a mark, and `LOAD` is a resource elsewhere.
const PAYLOADS: [&str; 25] = [
    "<script>RUN</script>",
    "<img src=x onerror=RUN>",
    "<svg onload=RUN>",
    "<svg><script>RUN</script></svg>",
    "<details open ontoggle=RUN>x</details>",
    "<input autofocus onfocus=RUN>",
    "<video><source onerror=RUN></video>",
    "<iframe srcdoc='<script>parent.RUN</script>'></iframe>",
    "<iframe src=javascript:parent.RUN></iframe>",
    "<a href=javascript:RUN>press me</a>",
    "<object data=javascript:RUN></object>",
    "<base href=LOAD>",
    "<meta http-equiv=refresh content='0;url=javascript:RUN'>",
    "<link rel=stylesheet href=LOAD>",
    "<style>@import url(LOAD);</style>",
    "<img src=LOAD>",
    "<form action=javascript:RUN><button>press me</button></form>",
    " autofocus onfocus=RUN onmouseover=RUN x=",
    "javascript:RUN",
    "data:text/html,<script>RUN</script>",
    "{{constructor.constructor('RUN')()}}${RUN}<%= RUN %>",
    "&lt;script&gt;RUN&lt;/script&gt;",
    "\\u003cscript\\u003eRUN\\u003c/script\\u003e",
    "\u{202e}\u{feff}<\u{2028}script>RUN</script>\u{ff1c}script\u{ff1e}RUN",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src=1 onerror=RUN>'>",
];

/// What would end the place that a text was put into.
const CONTEXTS: [&str; 20] = [
    "",
    "\">",
    "'>",
    "\" ",
    "' ",
    ">",
    "`>",
    "</title>",
    "</textarea>",
    "</script>",
    "</style>",
    "</pre></code>",
    "</select></option>",
    "</svg>",
    "-->",
    "]]>",
    "\\\"><",
    "');//",
    "\r\n\r\n",
    "%22%3E\">",
];

/// Opens and touches all there is, and says what should not be there. Pages have no inline scripts, handlers or frames.
const LOOK: &str = "
    document.querySelectorAll('details').forEach((one) => { one.open = true; });
    for (const one of document.querySelectorAll('input, a, button')) {
        one.focus();
        one.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
    }
    const grown = [...document.querySelectorAll('*')].filter((one) =>
        ['IFRAME', 'BASE', 'OBJECT', 'EMBED', 'MATH', 'VIDEO', 'STYLE', 'IMG'].includes(one.tagName.toUpperCase())
        || (one.tagName === 'SCRIPT' && !one.src)
        || (one.tagName === 'META' && one.httpEquiv)
        || /^(javascript|data):/i.test(one.getAttribute('href') ?? one.getAttribute('action') ?? '')
        || one.getAttributeNames().some((name) => name.startsWith('on')));
    return { hit: window.hit ?? null, grown: grown.map((one) => one.outerHTML.slice(0, 200)) };
";

/// Of the receiver.
const LOADED: &str = "/loaded";
