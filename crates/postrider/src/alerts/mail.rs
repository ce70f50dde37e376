//! Alerts by mail: gathered for a moment, so that many at once are one letter, and tried again for a while.

use super::{Alert, Severity};
use crate::{
    clock::Shown,
    config::{MailServer, MailSettings, MailTls},
};
use anyhow::Context;
use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::Mailbox,
    transport::smtp::{
        authentication::Credentials,
        client::{Tls, TlsParameters},
    },
};
use std::{fmt::Write, time::Duration};
use tokio::sync::mpsc;
use tracing::warn;

pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    to: Vec<Mailbox>,
    /// Which deployment it is that tells.
    node: String,
}

impl Mailer {
    pub fn new(settings: &MailSettings, node: &str) -> anyhow::Result<Self> {
        let MailServer { host, port, tls, user } = &settings.server;
        let parameters = || TlsParameters::new_rustls(host.clone()).context("preparing TLS to the mail server");
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
        let mailbox = |address: &String| address.parse::<Mailbox>().with_context(|| format!("reading {address}"));
        Ok(Self {
            transport: transport.build(),
            from: mailbox(&settings.from)?,
            to: settings.to.iter().map(mailbox).collect::<anyhow::Result<_>>()?,
            node: node.to_owned(),
        })
    }

    /// Sends one letter, and says what went wrong if something did. It ends in any case.
    pub async fn send(&self, subject: &str, text: String) -> Result<(), String> {
        let to = self.to.iter().fold(Message::builder().from(self.from.clone()), |letter, to| letter.to(to.clone()));
        let subject = format!("[Postrider {}] {subject}", self.node);
        let letter = to.subject(subject).body(text).map_err(|error| error.to_string())?;
        match tokio::time::timeout(PATIENCE * 3, self.transport.send(letter)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the mail server did not answer in time".to_owned()),
        }
    }
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
    pub async fn keep(mut self) {
        while let Some(first) = self.queue.recv().await {
            tokio::time::sleep(self.pace.gather).await;
            let mut alerts = vec![first];
            while alerts.len() < LETTER_MAX
                && let Ok(alert) = self.queue.try_recv()
            {
                alerts.push(alert);
            }
            let (subject, text) = letter(&alerts);
            self.insist(&subject, text).await;
        }
    }

    async fn insist(&self, subject: &str, text: String) {
        for pause in self.pace.retries.iter().map(Some).chain([None]) {
            let Err(error) = self.mailer.send(subject, text.clone()).await else {
                metrics::counter!("postrider_alert_mails_total", "outcome" => "sent").increment(1);
                return;
            };
            match pause {
                Some(pause) => {
                    warn!(error, "alerts could not be mailed; it is tried again");
                    tokio::time::sleep(*pause).await;
                }
                None => {
                    metrics::counter!("postrider_alert_mails_total", "outcome" => "given_up").increment(1);
                    warn!(error, subject, "alerts could not be mailed, and it is given up");
                }
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
const SUBJECT_MAX: usize = 120;
