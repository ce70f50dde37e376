//! What all pages have around them, and how they leave.

use super::{
    inside::{Fault, Path},
    session::Session,
    who::May,
};
use crate::http::{html, time::Time};
use askama::Template;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use postrider_engine::Timestamp;
use std::sync::LazyLock;

/// What every page shows besides its own.
pub struct Frame {
    pub csrf: String,
    /// The token is for all applications.
    pub sees_all: bool,
    /// Who is looking.
    pub who: String,
    pub may: May,
    /// When the session ends.
    pub until: String,
    pub until_shown: String,
    /// The first part of the page's path, by which it is found in the menu.
    pub here: String,
    /// What was just done.
    pub notice: Option<&'static str>,
}

impl Frame {
    pub fn new(session: &Session) -> Self {
        let until = Time(session.until()).to_string();
        Self {
            csrf: session.csrf().to_owned(),
            sees_all: session.sees_all(),
            who: session.who().name.clone(),
            may: session.who().may,
            until_shown: until.chars().skip("2026-11-16T".len()).take("09:30".len()).collect(),
            until,
            here: session.here().to_owned(),
            notice: None,
        }
    }

    /// `done`: a word that a page of ours was left with. Only what is known is shown, so that no link can put words here.
    pub fn after(session: &Session, done: Option<&str>) -> Self {
        let notice = DONE.iter().find(|(word, _)| Some(*word) == done).map(|(_, text)| *text);
        Self { notice, ..Self::new(session) }
    }
}

const DONE: [(&str, &str); 18] = [
    ("resent", "It is on its way again. The new attempt shows up below in a moment."),
    ("replayed", "The dead letter is on its way again."),
    ("replaying", "What matches is being put on its way again, a piece at a time."),
    ("added", "The endpoint was added."),
    ("changed", "The endpoint was changed. What goes out from now on follows it."),
    ("deleted", "The endpoint was deleted. What waited for it is among the dead letters."),
    ("example", "An example is on its way. What becomes of it shows up below in a moment."),
    ("paused", "The endpoint is paused. Its messages wait."),
    ("resumed", "The endpoint goes on, and what waited is delivered."),
    ("resuming", "What waits is being sifted. The endpoint goes on after that."),
    ("reset", "The breaker is closed, and the failures are forgotten."),
    ("ended", "The task is ended. What it has done so far stays done."),
    ("revoked", "The key is revoked."),
    ("source-made", "The source is there. Enter its URL at the service, and say below where to send what comes."),
    ("source-changed", "The source was changed. What comes from now on is read by it."),
    ("source-rotated", "The source has another URL. Enter it at the service: the one before is good for 24 hours."),
    ("source-deleted", "The source was deleted, with its endpoints."),
    ("canceled", "What had not been delivered was called back."),
];

/// A page that holds data: it is kept nowhere, loads nothing but our own files, and sends forms to nobody but us.
pub fn page(template: &impl Template) -> Response {
    shown(StatusCode::OK, template)
}

fn shown(status: StatusCode, template: &impl Template) -> Response {
    let Ok(html) = template.render() else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    // Not less: of a form that is sent without, browsers do not say where it comes from.
    html::page(status, &POLICY, "same-origin", html)
}

/// After something was done: the page is asked for anew, so that doing it again takes another click.
pub fn to(path: &Path) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(place) = HeaderValue::from_str(path.text()) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    title: String,
    detail: String,
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let (status, title, detail) = match self {
            Self::SignedOut => return to(&Path::page(&["sign-in"])),
            Self::Forged => (
                StatusCode::FORBIDDEN,
                "That did not come from a page of ours".to_owned(),
                "Nothing was done. Go back, load the page anew, and try again.".to_owned(),
            ),
            Self::Refused { status, detail } => {
                let title = match status {
                    StatusCode::NOT_FOUND => "There is no such thing".to_owned(),
                    StatusCode::FORBIDDEN => "You may not do that".to_owned(),
                    _ => format!("It did not work ({})", status.as_u16()),
                };
                (status, title, detail)
            }
        };
        shown(status, &ErrorPage { title, detail })
    }
}

/// `2026-11-16T09:30:12.345Z` as people read it.
pub fn moment(time: &str) -> String {
    let text = time.strip_suffix('Z').unwrap_or(time);
    let text = text.split_once('.').map_or(text, |(seconds, _)| seconds);
    text.replacen('T', " ", 1)
}

/// A sentence of the API's with its times as people read them.
pub fn readable(sentence: &str) -> String {
    let word = |word: &str| {
        let time = word.trim_end_matches([',', '.', ';', ':']);
        match time.parse::<Time>() {
            Ok(_) => format!("{}{}", moment(time), &word[time.len()..]),
            Err(_) => word.to_owned(),
        }
    };
    sentence.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// How long it is until then, to the two greatest units; `None` if it is past, or no time.
pub fn until(time: &str, now: Timestamp) -> Option<String> {
    let then: Time = time.parse().ok()?;
    let seconds = then.0.as_millis().checked_sub(now.as_millis()).filter(|millis| *millis > 0)? / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    Some(match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    })
}

/// JSON with lines and spaces, and otherwise as it is: numbers and the order of names are nobody's to change.
pub fn indented(json: &str) -> String {
    let (mut shown, mut depth, mut in_text, mut escaped) = (String::with_capacity(json.len() * 2), 0, false, false);
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        if in_text {
            shown.push(letter);
            in_text = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
            continue;
        }
        match letter {
            '"' => {
                in_text = true;
                shown.push(letter);
            }
            '{' | '[' => {
                while letters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                shown.push(letter);
                match letters.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => shown.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut shown, depth);
                    }
                }
            }
            '}' | ']' => {
                depth -= 1;
                new_line(&mut shown, depth);
                shown.push(letter);
            }
            ',' => {
                shown.push(letter);
                new_line(&mut shown, depth);
            }
            ':' => shown.push_str(": "),
            _ if letter.is_ascii_whitespace() => {}
            _ => shown.push(letter),
        }
    }
    shown
}

fn new_line(shown: &mut String, depth: usize) {
    shown.push('\n');
    // What is nested deeper than anyone looks is not pushed out of sight.
    shown.extend(std::iter::repeat_n("  ", depth.min(32)));
}

/// Which colour a status has.
pub fn tone(status: &str) -> &'static str {
    match status {
        "success" | "delivered" | "healthy" | "closed" | "finished" => "good",
        "pending" | "sending" | "probing" | "half-open" | "running" | "refusing" | "failing" => "wait",
        "fail" | "failed" | "tripped" | "open" => "bad",
        _ => "off",
    }
}

/// The same for a page that may be shown in frames of these sites.
pub fn policy_for(sites: &[String]) -> Option<HeaderValue> {
    let (rest, _) = POLICY.to_str().ok()?.rsplit_once("'none'")?;
    HeaderValue::from_str(&format!("{rest}{}", sites.join(" "))).ok().filter(|_| !sites.is_empty())
}

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = html::policy(&[script::DASHBOARD, script::LIVE, script::PORTAL], "'self'");
    HeaderValue::try_from(policy).expect("hashes and words")
});

/// What pages run. Each is named with its hash where it is loaded.
pub mod script {
    use crate::http::html;
    use std::sync::LazyLock;

    pub const DASHBOARD: &str = include_str!("assets/dashboard.js");
    pub const LIVE: &str = include_str!("assets/live.js");
    pub const PORTAL: &str = include_str!("assets/portal.js");

    pub static DASHBOARD_IS: LazyLock<String> = LazyLock::new(|| html::integrity(DASHBOARD));
    pub static LIVE_IS: LazyLock<String> = LazyLock::new(|| html::integrity(LIVE));
    pub static PORTAL_IS: LazyLock<String> = LazyLock::new(|| html::integrity(PORTAL));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_in_its_own_order() {
        let json = r#"{ "b":1.00,"a":[ ],"text":"{\"x\": [1,\\\\","list":[{"n":1e400},[1, 2]]}"#;
        let expected = r#"{
  "b": 1.00,
  "a": [],
  "text": "{\"x\": [1,\\\\",
  "list": [
    {
      "n": 1e400
    },
    [
      1,
      2
    ]
  ]
}"#;
        assert_eq!(indented(json), expected);
        for (plain, shown) in [("null", "null"), (r#""a b""#, r#""a b""#), ("{}", "{}")] {
            assert_eq!(indented(plain), shown);
        }
    }

    #[test]
    fn frames_are_for_the_sites_that_are_named() {
        assert!(POLICY.to_str().unwrap().ends_with("frame-ancestors 'none'"));
        assert_eq!(policy_for(&[]), None);
        let policy = policy_for(&["https://a.example".to_owned(), "https://b.example".to_owned()]).expect("a policy");
        assert!(policy.to_str().unwrap().ends_with("; frame-ancestors https://a.example https://b.example"));
    }

    #[test]
    fn times_are_shown_to_the_second() {
        assert_eq!(moment("2026-11-16T09:30:12.345Z"), "2026-11-16 09:30:12");
        assert_eq!(moment("2026-11-16T09:30:12Z"), "2026-11-16 09:30:12");
        assert_eq!(moment("nonsense"), "nonsense");
    }

    #[test]
    fn times_in_sentences_are_shown_alike() {
        let sentence = "Left alone until 2026-11-16T09:30:12.345Z. Not 2026, or 10:30";
        assert_eq!(readable(sentence), "Left alone until 2026-11-16 09:30:12. Not 2026, or 10:30");
    }

    #[test]
    fn a_countdown_is_told_in_its_greatest_units() {
        let now = "2026-11-16T09:00:00Z".parse::<Time>().unwrap().0;
        for (time, told) in [
            ("2026-11-19T13:30:00Z", Some("3 d 4 h")),
            ("2026-11-16T10:05:00Z", Some("1 h 5 min")),
            ("2026-11-16T09:07:30Z", Some("7 min")),
            ("2026-11-16T09:00:12.900Z", Some("12 s")),
            ("2026-11-16T09:00:00Z", None),
            ("2026-11-15T09:00:00Z", None),
            ("nonsense", None),
        ] {
            assert_eq!(until(time, now).as_deref(), told, "{time}");
        }
    }
}
