//! `postrider alerts`: whether those who should be told of trouble can be.

use super::{
    client::{Client, OutputFlags, ServerFlags},
    print::{self, Form},
};
use serde::Deserialize;
use serde_json::json;

#[derive(clap::Args)]
#[command(after_help = "\
Example:
  postrider alerts test

Whoever calls must hold a token for everything, or a key with the scope admin.
Exit codes: 0 done, 1 not done, 2 wrong usage or settings")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Send a test alert through every channel, and show what came of each
    #[command(after_help = "\
Examples:
  postrider alerts test
  postrider alerts test --json

Exit codes: 0 no channel failed, 1 one did or was not tried in time, 2 wrong usage or settings")]
    Test(Test),
}

#[derive(clap::Args)]
struct Test {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Test(args) => test(args).await,
    }
}

async fn test(args: Test) -> anyhow::Result<()> {
    let answer = Client::new(&args.server)?.post(&["alert", "test"], &json!({})).await?;
    let came: Came = answer.read()?;
    let channels = came.channels();
    match args.output.form() {
        Form::Json => print::say(&print::json_line(answer.raw()?.get()))?,
        Form::Text => print::rows(&HEAD, channels.iter().map(Channel::row).collect(), "there are no channels")?,
    }
    let failed = channels.iter().filter(|channel| channel.has_failed()).count();
    anyhow::ensure!(failed == 0, "{failed} of {} channels did not take the test alert", channels.len());
    Ok(())
}

/// What the server answers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Came {
    log: String,
    mail: Mail,
    webhooks: Vec<Webhook>,
}

#[derive(Deserialize)]
struct Mail {
    status: String,
    detail: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Webhook {
    endpoint_id: String,
    status: String,
    response_status_code: Option<u16>,
}

struct Channel {
    name: String,
    status: String,
    detail: String,
}

impl Came {
    fn channels(&self) -> Vec<Channel> {
        let log = Channel::new("log", &self.log, "");
        let mail = Channel::new(
            "mail",
            &self.mail.status,
            match &self.mail.detail {
                Some(detail) => detail,
                None if self.mail.status == "off" => "no mail server is set",
                None => "",
            },
        );
        let webhooks = self.webhooks.iter().map(|webhook| {
            let answered = webhook.response_status_code.map(|status| format!("answered {status}"));
            let detail = match webhook.status.as_str() {
                "failed" => answered.unwrap_or_else(|| "nobody answered".to_owned()),
                "waiting" => "not tried within five seconds".to_owned(),
                _ => answered.unwrap_or_default(),
            };
            Channel::new(&format!("webhook {}", webhook.endpoint_id), &webhook.status, &detail)
        });
        [log, mail].into_iter().chain(webhooks).collect()
    }
}

impl Channel {
    fn new(name: &str, status: &str, detail: &str) -> Self {
        Self { name: name.to_owned(), status: status.to_owned(), detail: detail.to_owned() }
    }

    /// What is off, or disabled, was not asked to take it.
    fn has_failed(&self) -> bool {
        matches!(self.status.as_str(), "failed" | "waiting")
    }

    fn row(&self) -> Vec<String> {
        [(&self.name, 100), (&self.status, 20), (&self.detail, 500)]
            .map(|(text, chars_max)| print::escaped_word(text, chars_max))
            .to_vec()
    }
}

const HEAD: [&str; 3] = ["CHANNEL", "STATUS", "DETAIL"];
