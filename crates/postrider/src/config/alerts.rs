//! When operators are told that something is wrong, and by what mail.

use super::{Hidden, Refusal};
use crate::ids::is_name;
use lettre::Address;
use std::{collections::BTreeMap, time::Duration};
use url::Url;

/// What is not set is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertRules {
    /// In hundredths of a per cent.
    pub success_rate_min: Option<u64>,
    /// Of fewer attempts nothing is said.
    pub attempts_min: u64,
    /// What "lately" means.
    pub window: Duration,
    pub backlog_growth: Option<u64>,
    pub dead_letters_growth: Option<u64>,
    pub breakers_open: Option<u64>,
    /// How long work may be due while nothing is done.
    pub oldest_due_max: Option<Duration>,
}

/// Where alerts are mailed to, and by whom.
#[derive(Clone)]
pub struct MailSettings {
    pub server: MailServer,
    pub from: Address,
    pub to: Vec<Address>,
    /// Who is told of his own application, by its uid or id.
    pub owners: BTreeMap<String, Vec<Address>>,
}

#[derive(Clone)]
pub struct MailServer {
    pub host: String,
    pub port: u16,
    pub tls: MailTls,
    pub user: Option<(String, Hidden)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailTls {
    /// From the first byte (`smtps://`).
    Always,
    /// Begun with STARTTLS, without which nothing is sent (`smtp://`).
    Started,
    /// In the clear (`smtp+plain://`): for a server on this machine.
    None,
}

/// As they were written.
pub struct RawAlerts {
    pub success_rate: u32,
    pub attempts_min: u64,
    pub window: Duration,
    pub backlog_growth: u64,
    pub dead_letters_growth: u64,
    pub breakers_open: u64,
    pub oldest_due: Duration,
    pub mail_server: Option<Hidden>,
    pub mail_from: Option<String>,
    pub mail_to: Vec<String>,
    pub mail_owners: Vec<String>,
}

impl RawAlerts {
    pub fn rules(&self) -> Result<AlertRules, Refusal> {
        if self.success_rate > 100 {
            return Err(("alert_success_rate", "must be between 0 and 100; 0 turns it off".to_owned()));
        }
        if self.attempts_min == 0 {
            return Err(("alert_attempts_min", "must be at least 1".to_owned()));
        }
        if !WINDOW_RANGE.contains(&self.window) {
            return Err(("alert_window", "must be between 1s and 24h".to_owned()));
        }
        let oldest = self.oldest_due;
        if !oldest.is_zero() && oldest < OLDEST_DUE_MIN {
            return Err(("alert_oldest_due", "must be at least 1s; 0s turns it off".to_owned()));
        }
        let unless_zero = |count: u64| (count > 0).then_some(count);
        Ok(AlertRules {
            success_rate_min: unless_zero(u64::from(self.success_rate) * 100),
            attempts_min: self.attempts_min,
            window: self.window,
            backlog_growth: unless_zero(self.backlog_growth),
            dead_letters_growth: unless_zero(self.dead_letters_growth),
            breakers_open: unless_zero(self.breakers_open),
            oldest_due_max: (!oldest.is_zero()).then_some(oldest),
        })
    }

    pub fn mail(&self) -> Result<Option<MailSettings>, Refusal> {
        let Some(url) = &self.mail_server else {
            if self.mail_from.is_some() {
                return Err(("alert_mail_from", "is of no effect without `alert_mail_server`".to_owned()));
            }
            for (key, given) in [("alert_mail_to", &self.mail_to), ("alert_mail_owners", &self.mail_owners)] {
                if !given.is_empty() {
                    return Err((key, "is of no effect without `alert_mail_server`".to_owned()));
                }
            }
            return Ok(None);
        };
        let server = read_server(url.reveal()).map_err(|reason| ("alert_mail_server", reason.to_owned()))?;
        let Some(from) = self.mail_from.clone() else {
            return Err(("alert_mail_server", "needs alert_mail_from beside it".to_owned()));
        };
        if self.mail_to.is_empty() {
            return Err(("alert_mail_server", "needs alert_mail_to beside it".to_owned()));
        }
        let read = |key, text: &String| {
            text.parse::<Address>().map_err(|reason| (key, format!("`{text}` is not an address: {reason}")))
        };
        let from = read("alert_mail_from", &from)?;
        let to = self.mail_to.iter().map(|to| read("alert_mail_to", to)).collect::<Result<_, Refusal>>()?;
        let mut owners = BTreeMap::<String, Vec<Address>>::new();
        for owner in &self.mail_owners {
            let (app, address) = owner.split_once('=').filter(|(app, _)| is_name(app)).ok_or_else(|| {
                ("alert_mail_owners", format!("`{owner}` must be an application's uid or id, `=` and an address"))
            })?;
            owners.entry(app.to_owned()).or_default().push(read("alert_mail_owners", &address.to_owned())?);
        }
        Ok(Some(MailSettings { server, from, to, owners }))
    }
}

/// Nothing of it goes into the reason.
fn read_server(text: &str) -> Result<MailServer, &'static str> {
    let url: Url = text.parse().map_err(|_| FORM)?;
    let (tls, default_port) = match url.scheme() {
        "smtps" => (MailTls::Always, 465),
        "smtp" => (MailTls::Started, 587),
        "smtp+plain" => (MailTls::None, 25),
        _ => return Err(FORM),
    };
    let is_plain = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    let host = url.host_str().filter(|host| !host.is_empty() && is_plain).ok_or(FORM)?.to_owned();
    let decoded = |text: &str| {
        percent_encoding::percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| FORM)
    };
    let user = match (url.username(), url.password()) {
        ("", None) => None,
        (user, Some(password)) if !user.is_empty() => Some((decoded(user)?, Hidden::new(decoded(password)?))),
        _ => return Err("needs both a user name and a password, or neither"),
    };
    Ok(MailServer { host, port: url.port().unwrap_or(default_port), tls, user })
}

const FORM: &str = "must be smtps://user:password@host, smtp://... (with STARTTLS) or smtp+plain://... (in the clear)";
const WINDOW_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);
const OLDEST_DUE_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_named_with_their_applications() {
        let read = |owners: &[&str], server: Option<&str>| {
            let raw = RawAlerts {
                success_rate: 90,
                attempts_min: 1,
                window: Duration::from_mins(1),
                backlog_growth: 1,
                dead_letters_growth: 1,
                breakers_open: 1,
                oldest_due: Duration::ZERO,
                mail_server: server.map(|server| Hidden::new(server.to_owned())),
                mail_from: server.map(|_| "from@example.com".to_owned()),
                mail_to: server.map(|_| "to@example.com".to_owned()).into_iter().collect(),
                mail_owners: owners.iter().map(|&owner| owner.to_owned()).collect(),
            };
            raw.mail().map(|mail| mail.map(|mail| mail.owners)).map_err(|(key, reason)| format!("{key} {reason}"))
        };
        let server = Some("smtps://mail.example.com");
        let owners = read(&["acme=a@example.com", "acme=b@example.com", "other=c@example.com"], server);
        let owners = owners.expect("fine").expect("mail");
        assert_eq!((owners["acme"].len(), owners["other"].len(), owners.len()), (2, 1, 2));
        for (wrong, server, word) in [
            ("acme", server, "`acme` must be an application's uid or id"),
            ("=a@example.com", server, "must be an application's uid or id"),
            ("a b=a@example.com", server, "must be an application's uid or id"),
            ("acme=nobody", server, "`nobody` is not an address"),
            ("acme=a@example.com", None, "is of no effect without `alert_mail_server`"),
        ] {
            let refused = read(&[wrong], server).expect_err(wrong);
            assert!(refused.starts_with("alert_mail_owners ") && refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn a_mail_server_is_read_and_its_password_stays_hidden() {
        for (text, host, port, tls, user) in [
            ("smtps://mail.example.com", "mail.example.com", 465, MailTls::Always, None),
            ("smtp://mail.example.com:2525", "mail.example.com", 2525, MailTls::Started, None),
            ("smtp+plain://127.0.0.1:1025", "127.0.0.1", 1025, MailTls::None, None),
            ("smtps://a%40b:p%2Fw@mail.example.com/", "mail.example.com", 465, MailTls::Always, Some(("a@b", "p/w"))),
        ] {
            let read = read_server(text).expect(text);
            assert_eq!((read.host.as_str(), read.port, read.tls), (host, port, tls), "{text}");
            let found = read.user.as_ref().map(|(name, password)| (name.as_str(), password.reveal()));
            assert_eq!(found, user, "{text}");
        }
        for text in [
            "",
            "mail.example.com",
            "http://mail.example.com",
            "smtps://canary@host",
            "smtps://u:canary@",
            "smtp://h/x",
        ] {
            let refused = read_server(text).err().expect(text);
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
