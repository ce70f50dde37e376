//! A script as people write it: a file in TOML, read strictly.

use super::{Act, RetryAfter, RetryAfterForm, Rule, Script, When};
use crate::config::Span;
use bytes::Bytes;
use http::{HeaderName, StatusCode};
use serde::Deserialize;
use std::time::Duration;

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ScriptError {
    /// With the place, as the parser tells it.
    #[error("{0}")]
    Syntax(String),
    #[error("{place}unknown key `{key}`; did you mean `{nearest}`?")]
    Unknown { place: Where, key: String, nearest: &'static str },
    #[error("{place}{reason}")]
    Wrong { place: Where, reason: String },
    #[error("there is no [[rule]] in it")]
    Empty,
}

/// Which rule, counted from 1; 0: outside of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where(usize);

impl std::fmt::Display for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            rule => write!(f, "rule {rule}: "),
        }
    }
}

#[derive(Deserialize)]
struct RuleForm {
    path: Option<String>,
    header: Option<String>,
    from: Option<Span>,
    until: Option<Span>,
    skip: Option<u64>,
    count: Option<u64>,
    share: Option<f64>,
    #[serde(default, rename = "do")]
    verb: Verb,
    status: Option<u16>,
    delay: Option<Span>,
    retry_after: Option<Span>,
    retry_after_form: Option<FormName>,
    body: Option<String>,
    every: Option<Span>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    #[default]
    Answer,
    Hang,
    Reset,
    Drip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FormName {
    Seconds,
    Date,
}

impl Script {
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| ScriptError::Syntax(error.to_string()))?;
        refuse_unknown(&table, &["rule", "seed"], Where(0))?;
        let seed = match table.get("seed") {
            None => None,
            Some(value) => {
                let seed = value.as_integer().and_then(|seed| u64::try_from(seed).ok());
                Some(seed.ok_or_else(|| wrong(0, "`seed` must be a whole number from 0"))?)
            }
        };
        let rules = match table.get("rule") {
            None => return Err(ScriptError::Empty),
            Some(toml::Value::Array(rules)) if !rules.is_empty() => rules,
            Some(toml::Value::Array(_)) => return Err(ScriptError::Empty),
            Some(_) => return Err(wrong(0, "write each rule under [[rule]], with two brackets")),
        };
        let rules = rules.iter().enumerate().map(|(index, rule)| read(rule, index + 1)).collect::<Result<_, _>>()?;
        Ok(Self { seed, ..Self::new(rules) })
    }
}

fn read(value: &toml::Value, number: usize) -> Result<Rule, ScriptError> {
    let table = value.as_table().ok_or_else(|| wrong(number, "must be a table"))?;
    refuse_unknown(table, &KEYS, Where(number))?;
    let form = RuleForm::deserialize(value.clone()).map_err(|error| wrong(number, error.message()))?;
    Ok(Rule { when: form.when(number)?, then: form.act(number)? })
}

fn refuse_unknown(table: &toml::Table, known: &[&'static str], place: Where) -> Result<(), ScriptError> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let nearest = known.iter().min_by_key(|known| strsim::damerau_levenshtein(key, known)).copied();
            Err(ScriptError::Unknown { place, key: key.clone(), nearest: nearest.unwrap_or_default() })
        }
    }
}

impl RuleForm {
    fn when(&self, number: usize) -> Result<When, ScriptError> {
        let (from, until) = (self.from.map_or(Duration::ZERO, |span| span.0), self.until.map(|span| span.0));
        if until.is_some_and(|until| until <= from) {
            return Err(wrong(number, "`until` must be later than `from`"));
        }
        let share = self.share.unwrap_or(1.0);
        if !(share > 0.0 && share <= 1.0) {
            return Err(wrong(number, "`share` must be above 0 and at most 1"));
        }
        if self.path.as_ref().is_some_and(|path| !path.starts_with('/')) {
            return Err(wrong(number, "`path` must begin with a slash"));
        }
        let header = self.header.as_deref().map(|header| {
            let (name, value) = match header.split_once(':') {
                None => (header, None),
                Some((name, value)) => (name, Some(value.trim().to_owned())),
            };
            let name = HeaderName::try_from(name.trim());
            name.map(|name| (name, value)).map_err(|_| wrong(number, "`header` must be a name, or `name: value`"))
        });
        let header = header.transpose()?;
        Ok(When {
            path: self.path.clone(),
            header,
            from,
            until,
            skip: self.skip.unwrap_or(0),
            count: self.count,
            share,
        })
    }

    fn act(&self, number: usize) -> Result<Act, ScriptError> {
        let given = [
            ("status", self.status.is_some()),
            ("delay", self.delay.is_some()),
            ("retry_after", self.retry_after.is_some()),
            ("retry_after_form", self.retry_after_form.is_some()),
            ("body", self.body.is_some()),
            ("every", self.every.is_some()),
        ];
        let allowed: &[&str] = match self.verb {
            Verb::Answer => &["status", "delay", "retry_after", "retry_after_form", "body"],
            Verb::Hang => &[],
            Verb::Reset => &["delay"],
            Verb::Drip => &["status", "delay", "every"],
        };
        if let Some((name, _)) = given.iter().find(|(name, given)| *given && !allowed.contains(name)) {
            let verb = format!("{:?}", self.verb).to_lowercase();
            return Err(wrong(number, format!("`{name}` is of no effect with do = \"{verb}\"")));
        }
        let status = match self.status {
            None => StatusCode::NO_CONTENT,
            Some(code @ 200..=599) => StatusCode::from_u16(code).map_err(|_| wrong(number, STATUS))?,
            Some(_) => return Err(wrong(number, STATUS)),
        };
        let delay = self.delay.map_or(Duration::ZERO, |span| span.0);
        Ok(match self.verb {
            Verb::Hang => Act::Hang,
            Verb::Reset => Act::Reset { delay },
            Verb::Drip => {
                let every = self.every.map_or(DRIP_EVERY, |span| span.0);
                if every.is_zero() {
                    return Err(wrong(number, "`every` must be above 0"));
                }
                // An answer without content has nothing to drip.
                Act::Drip { status: if self.status.is_none() { StatusCode::OK } else { status }, delay, every }
            }
            Verb::Answer => {
                let form = match (self.retry_after, self.retry_after_form) {
                    (None, Some(_)) => return Err(wrong(number, "`retry_after_form` needs `retry_after`")),
                    (_, None | Some(FormName::Seconds)) => RetryAfterForm::Seconds,
                    (_, Some(FormName::Date)) => RetryAfterForm::Date,
                };
                let retry_after = self.retry_after.map(|span| RetryAfter { wait: span.0, form });
                let body = Bytes::from(self.body.clone().unwrap_or_default());
                if !body.is_empty() && status == StatusCode::NO_CONTENT {
                    return Err(wrong(number, "`body` does not go with status 204; write status = 200"));
                }
                Act::Answer { status, delay, retry_after, body }
            }
        })
    }
}

fn wrong(rule: usize, reason: impl Into<String>) -> ScriptError {
    ScriptError::Wrong { place: Where(rule), reason: reason.into() }
}

const KEYS: [&str; 14] = [
    "path",
    "header",
    "from",
    "until",
    "skip",
    "count",
    "share",
    "do",
    "status",
    "delay",
    "retry_after",
    "retry_after_form",
    "body",
    "every",
];
const STATUS: &str = "`status` must be from 200 to 599";
pub const DRIP_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = r#"
            seed = 7
            [[rule]]
            path = "/a*"
            header = "x-kind: slow"
            from = "10s"
            until = "1m"
            skip = 1
            count = 2
            share = 0.5
            status = 429
            delay = "20ms"
            retry_after = "5s"
            retry_after_form = "date"
            body = "later"
            [[rule]]
            do = "hang"
            [[rule]]
            do = "reset"
            delay = "1s"
            [[rule]]
            do = "drip"
            every = "2s"
        "#;
        let script = Script::parse(text).expect("a script");
        assert_eq!(script.seed, Some(7));
        let rules: Vec<Rule> = script.rules.into_iter().map(|(rule, _)| rule).collect();
        let when = When {
            path: Some("/a*".to_owned()),
            header: Some((HeaderName::from_static("x-kind"), Some("slow".to_owned()))),
            from: Duration::from_secs(10),
            until: Some(Duration::from_secs(60)),
            skip: 1,
            count: Some(2),
            share: 0.5,
        };
        let then = Act::Answer {
            status: StatusCode::TOO_MANY_REQUESTS,
            delay: Duration::from_millis(20),
            retry_after: Some(RetryAfter { wait: Duration::from_secs(5), form: RetryAfterForm::Date }),
            body: Bytes::from_static(b"later"),
        };
        let plain = |then| Rule { when: When::default(), then };
        assert_eq!(rules[0], Rule { when, then });
        assert_eq!(rules[1], plain(Act::Hang));
        assert_eq!(rules[2], plain(Act::Reset { delay: Duration::from_secs(1) }));
        let every = Duration::from_secs(2);
        assert_eq!(rules[3], plain(Act::Drip { status: StatusCode::OK, delay: Duration::ZERO, every }));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (text, expected) in [
            ("", "there is no [[rule]] in it"),
            ("rule = []", "there is no [[rule]] in it"),
            ("[rule]\nstatus = 500", "two brackets"),
            ("[[rule]]\nstatsu = 500", "rule 1: unknown key `statsu`; did you mean `status`?"),
            ("[[rule]]\n[[rule]]\nretry = \"1s\"", "rule 2: unknown key `retry`; did you mean `"),
            ("[[rules]]\n", "unknown key `rules`; did you mean `rule`?"),
            ("sead = 1\n[[rule]]", "unknown key `sead`; did you mean `seed`?"),
            ("seed = -1\n[[rule]]", "`seed` must be a whole number"),
            ("[[rule]]\nstatus = 99", "rule 1: `status` must be from 200 to 599"),
            ("[[rule]]\nstatus = \"503\"", "rule 1: invalid type"),
            ("[[rule]]\ndelay = \"5\"", "has no unit"),
            ("[[rule]]\nshare = 1.5", "`share` must be above 0 and at most 1"),
            ("[[rule]]\nshare = 0.0", "`share` must be above 0"),
            ("[[rule]]\nfrom = \"5s\"\nuntil = \"5s\"", "`until` must be later than `from`"),
            ("[[rule]]\npath = \"a\"", "`path` must begin with a slash"),
            ("[[rule]]\nheader = \"a b\"", "`header` must be a name"),
            ("[[rule]]\ndo = \"hang\"\nstatus = 500", "`status` is of no effect with do = \"hang\""),
            ("[[rule]]\ndo = \"drip\"\nretry_after = \"1s\"", "`retry_after` is of no effect with do = \"drip\""),
            ("[[rule]]\ndo = \"drip\"\nevery = \"0s\"", "`every` must be above 0"),
            ("[[rule]]\ndo = \"fly\"", "unknown variant `fly`"),
            ("[[rule]]\nretry_after_form = \"date\"", "needs `retry_after`"),
            ("[[rule]]\nbody = \"x\"", "does not go with status 204"),
            ("[[rule]\n", "line 1"),
        ] {
            let told = Script::parse(text).expect_err(text).to_string();
            assert!(told.contains(expected), "{text}: {told}");
        }
    }
}
