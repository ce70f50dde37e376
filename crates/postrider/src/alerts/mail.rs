//! Alerts by mail: gathered for a moment, so that many at once are one letter, and tried again for a while.

use super::{Alert, Severity};
use crate::{
    clock::{self, Shown},
    config::{MailServer, MailSettings, MailTls},
};
use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::future::join_all;
use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport, Tokio1Executor,
    address::Envelope,
    transport::smtp::{
        authentication::Credentials,
        client::{Certificate, Tls, TlsParameters},
    },
};
use std::{error::Error, fmt::Write, io, iter, time::Duration};
use tokio::sync::mpsc;
use tracing::warn;

pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Address,
    to: Vec<Address>,
    /// Which deployment it is that tells.
    node: String,
}

impl Mailer {
    /// `extra_ca_pem`: authorities that the mail server's certificate may come from, besides the public ones.
    pub fn new(settings: &MailSettings, node: &str, extra_ca_pem: Option<&[u8]>) -> anyhow::Result<Self> {
        let MailServer { host, port, tls, user } = &settings.server;
        let parameters = || {
            let mut parameters = TlsParameters::builder(host.clone());
            if let Some(pem) = extra_ca_pem {
                let authorities = Certificate::from_pem(pem).context("reading the authorities for the mail server")?;
                parameters = parameters.add_root_certificate(authorities);
            }
            parameters.build_rustls().context("preparing TLS to the mail server")
        };
        let tls = match tls {
            MailTls::Always => Tls::Wrapper(parameters()?),
            MailTls::Started => Tls::Required(parameters()?),
            MailTls::None => Tls::None,
        };
        let mut transport = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host.as_str())
            .port(*port)
            .tls(tls)
            .timeout(Some(PATIENCE));
        if let Some((name, password)) = user {
            transport = transport.credentials(Credentials::new(name.clone(), password.reveal().to_owned()));
        }
        let (from, to) = (settings.from.clone(), settings.to.clone());
        Ok(Self { transport: transport.build(), from, to, node: node.to_owned() })
    }

    /// Sends one letter, and says what went wrong if something did. It ends in any case.
    pub async fn send(&self, subject: &str, text: String) -> Result<(), String> {
        let sending = self.to.iter().map(|to| self.send_to(to, subject, &text));
        let flaws: Vec<String> = join_all(sending).await.into_iter().filter_map(Result::err).map(|no| no.why).collect();
        if flaws.is_empty() { Ok(()) } else { Err(flaws.join("; ")) }
    }

    /// To one alone: a mail server that does not know one of several would take the letter for none of them.
    async fn send_to(&self, to: &Address, subject: &str, text: &str) -> Result<(), Refusal> {
        let open = |why: String| Refusal { why, is_final: false };
        let envelope = Envelope::new(Some(self.from.clone()), vec![to.clone()]).map_err(|no| open(no.to_string()))?;
        let letter = self.written(to, subject, text);
        match tokio::time::timeout(PATIENCE * 3, self.transport.send_raw(&envelope, letter.as_bytes())).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Refusal { is_final: error.is_permanent(), why: format!("{to}: {}", told(&error)) }),
            Err(_) => Err(open(format!("{to}: the mail server did not answer in time"))),
        }
    }

    /// As RFC 5322 and MIME write it: plain text, with whatever letters there are in names.
    fn written(&self, to: &Address, subject: &str, text: &str) -> String {
        let subject = encoded(&format!("[Postrider {}] {subject}", self.node));
        let date = jiff::Timestamp::from_millisecond(clock::now().as_millis()).unwrap_or_default();
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_string(&date).unwrap_or_default();
        let body = BASE64_STANDARD.encode(text);
        let lines: Vec<&str> = body.as_bytes().chunks(LINE_MAX).filter_map(|line| str::from_utf8(line).ok()).collect();
        format!(
            "From: Postrider <{}>\r\nTo: {to}\r\nSubject: {subject}\r\nDate: {date}\r\nMIME-Version: 1.0\r\n\
             Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n{}\r\n",
            self.from,
            lines.join("\r\n")
        )
    }
}

/// Why a letter was not taken.
struct Refusal {
    why: String,
    /// It will not be taken later either.
    is_final: bool,
}

/// What went wrong, for whoever can mend it.
fn told(error: &(dyn Error + 'static)) -> String {
    let mut causes = iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    let refused = causes.find_map(|cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match inner.and_then(|inner| inner.downcast_ref()).or_else(|| cause.downcast_ref()) {
            Some(rustls::Error::InvalidCertificate(flaw)) => Some(flaw.to_string()),
            _ => None,
        }
    });
    match refused {
        Some(flaw) => format!(
            "the mail server's certificate is not trusted ({flaw}); a private authority is named by `extra_ca_file`"
        ),
        None => error.to_string(),
    }
}

/// Text in a header, in words that are short enough each.
fn encoded(text: &str) -> String {
    let mut words = vec![String::new()];
    for letter in text.chars() {
        let last = words.last_mut().expect("there is always one");
        if last.len() + letter.len_utf8() <= WORD_MAX {
            last.push(letter);
        } else {
            words.push(letter.to_string());
        }
    }
    let words = words.iter().map(|word| format!("=?UTF-8?B?{}?=", BASE64_STANDARD.encode(word)));
    words.collect::<Vec<_>>().join("\r\n ")
}

/// Sends what is queued, for as long as the server runs.
pub struct Post {
    pub mailer: std::sync::Arc<Mailer>,
    pub queue: mpsc::Receiver<Alert>,
    pub pace: Pace,
}

/// How long letters are gathered, and when one is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub gather: Duration,
    pub retries: &'static [Duration],
}

impl Default for Pace {
    fn default() -> Self {
        const RETRIES: &[Duration] = &[
            Duration::from_secs(10),
            Duration::from_mins(1),
            Duration::from_mins(5),
            Duration::from_mins(15),
            Duration::from_hours(1),
        ];
        Self { gather: Duration::from_secs(5), retries: RETRIES }
    }
}

impl Post {
    /// Nobody waits for letters to another whose mail is not taken.
    pub async fn keep(mut self) {
        let mut desks = Vec::new();
        for to in self.mailer.to.clone() {
            let (desk, mut queue) = mpsc::channel(WAITING_MAX);
            let (mailer, pace) = (std::sync::Arc::clone(&self.mailer), self.pace);
            tokio::spawn(async move {
                while let Some(alerts) = gather(&mut queue, pace).await {
                    insist_on(&mailer, &to, &alerts, pace).await;
                }
            });
            desks.push(desk);
        }
        while let Some(alert) = self.queue.recv().await {
            for desk in &desks {
                if desk.try_send(alert.clone()).is_err() {
                    metrics::counter!("postrider_alerts_dropped_total").increment(1);
                }
            }
        }
    }
}

/// The first that comes, and what follows soon.
pub async fn gather(queue: &mut mpsc::Receiver<Alert>, pace: Pace) -> Option<Vec<Alert>> {
    let mut alerts = vec![queue.recv().await?];
    tokio::time::sleep(pace.gather).await;
    while alerts.len() < LETTER_MAX
        && let Ok(alert) = queue.try_recv()
    {
        alerts.push(alert);
    }
    Some(alerts)
}

/// Sends each of them a letter about these.
pub async fn insist(mailer: &Mailer, to: &[Address], alerts: &[Alert], pace: Pace) {
    join_all(to.iter().map(|to| insist_on(mailer, to, alerts, pace))).await;
}

/// Again and again for a while, unless it is refused for good.
async fn insist_on(mailer: &Mailer, to: &Address, alerts: &[Alert], pace: Pace) {
    let (subject, text) = letter(alerts);
    for pause in pace.retries.iter().map(Some).chain([None]) {
        let Err(Refusal { why, is_final }) = mailer.send_to(to, &subject, &text).await else {
            metrics::counter!("postrider_alert_mails_total", "outcome" => "sent").increment(1);
            return;
        };
        match pause {
            Some(pause) if !is_final => {
                warn!(error = why, "alerts could not be mailed; it is tried again");
                tokio::time::sleep(*pause).await;
            }
            Some(_) | None => {
                metrics::counter!("postrider_alert_mails_total", "outcome" => "given_up").increment(1);
                warn!(error = why, subject, "alerts could not be mailed, and it is given up");
                return;
            }
        }
    }
}

/// What is written about them.
fn letter(alerts: &[Alert]) -> (String, String) {
    let subject = match alerts {
        [only] => only.words.chars().filter(|letter| !letter.is_control()).take(SUBJECT_MAX).collect(),
        several => {
            let trouble = several.iter().filter(|alert| alert.severity == Severity::Trouble).count();
            format!("{} alerts, {trouble} of them new trouble", several.len())
        }
    };
    let mut text = String::new();
    for alert in alerts {
        let mark = match alert.severity {
            Severity::Trouble => "!",
            Severity::Relief => "ok",
        };
        writeln!(text, "{} {mark:>2}  {}", Shown(alert.at), alert.words).expect("writing to a string does not fail");
    }
    (subject, text)
}

/// For each step of the talk with the mail server.
const PATIENCE: Duration = Duration::from_secs(10);
const LETTER_MAX: usize = 500;
/// Alerts that wait for one who is written to.
const WAITING_MAX: usize = 1_000;
/// Of base64, as MIME wants it.
const LINE_MAX: usize = 76;
/// Encoded, a word has 75 letters at most.
const WORD_MAX: usize = 45;
const SUBJECT_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_any_text_in_short_words() {
        let text = "Größe: ".repeat(20);
        let header = encoded(&text);
        let mut read = String::new();
        for word in header.split("\r\n ") {
            assert!(word.len() <= 75 && word.is_ascii(), "{word}");
            let inside = word.strip_prefix("=?UTF-8?B?").and_then(|rest| rest.strip_suffix("?=")).expect("a word");
            read += str::from_utf8(&BASE64_STANDARD.decode(inside).expect("base64")).expect("whole letters");
        }
        assert_eq!(read, text);
    }
}
