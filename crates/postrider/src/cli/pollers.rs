//! `postrider pollers`: by which those fetch who cannot be sent to; and fetching itself.

use super::{
    client::{AppFlags, Client, InApp},
    flags::{limit, moment, said},
    print::{self, Form},
};
use crate::http::time::Time;
use serde_json::{Value, json, value::RawValue};
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider pollers create --app shop --uid till --event-type order.paid
  postrider pollers token --app shop till
  postrider pollers fetch --app shop till --consumer me --follow
  postrider pollers consumers --app shop till

Exit codes: 0 done, 1 not done, 2 wrong usage or settings")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a poller and print its id
    #[command(after_help = "Example:\n  postrider pollers create --app shop --uid till --event-type order.paid")]
    Create(Create),
    /// List an application's pollers
    #[command(after_help = "Example:\n  postrider pollers list --app shop")]
    List(AppFlags),
    /// Print the token that a poller is read with
    #[command(after_help = "\
Examples:
  postrider pollers token --app shop till
  postrider pollers token --app shop till --rotate --overlap 0")]
    Token(Token),
    /// Fetch messages, a line of JSON each, and say that they are dealt with once they are written out
    #[command(after_help = "\
Examples:
  postrider pollers fetch --app shop till --consumer me
  postrider pollers fetch --app shop till --consumer me --follow | jq .payload")]
    Fetch(Fetch),
    /// Show a poller's consumers, and where they are
    #[command(after_help = "Example:\n  postrider pollers consumers --app shop till")]
    Consumers(One),
    /// Set a consumer to a time
    #[command(after_help = "\
Examples:
  postrider pollers seek --app shop till --consumer me --after 2h
  postrider pollers seek --app shop till --consumer me --after 2026-11-01T00:00:00Z")]
    Seek(Seek),
    /// Forget a consumer's place
    #[command(after_help = "Example:\n  postrider pollers forget --app shop till --consumer me")]
    Forget(Named),
    /// Delete a poller with its token and its consumers' places; the messages stay
    #[command(after_help = "Example:\n  postrider pollers delete --app shop till")]
    Delete(One),
}

#[derive(clap::Args)]
struct Create {
    #[command(flatten)]
    in_app: AppFlags,
    /// A name of your own for it
    #[arg(long)]
    uid: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Only this type of event (repeatable; none: all)
    #[arg(long = "event-type", value_name = "NAME")]
    event_types: Vec<String>,
    /// Only what is on this channel (repeatable; none: all)
    #[arg(long = "channel", value_name = "NAME")]
    channels: Vec<String>,
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    in_app: AppFlags,
    /// The poller, by id or uid
    poller: String,
}

#[derive(clap::Args)]
struct Token {
    #[command(flatten)]
    one: One,
    /// Put a new one in the place of the one that there is
    #[arg(long)]
    rotate: bool,
    /// With --rotate: how long the old one still holds, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "rotate")]
    overlap: u32,
}

#[derive(clap::Args)]
struct Fetch {
    #[command(flatten)]
    one: One,
    /// Under which name; its place is kept
    #[arg(long, value_name = "NAME")]
    consumer: String,
    /// At most so many, and then end [default: all that there are]
    #[arg(long, value_name = "N", value_parser = limit)]
    limit: Option<usize>,
    /// Wait for more when there are none
    #[arg(long)]
    follow: bool,
}

#[derive(clap::Args)]
struct Named {
    #[command(flatten)]
    one: One,
    /// The consumer
    #[arg(long, value_name = "NAME")]
    consumer: String,
}

#[derive(clap::Args)]
struct Seek {
    #[command(flatten)]
    named: Named,
    /// From this time on (RFC 3339, or a span back such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    after: Time,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Create(args) => create(args).await,
        Command::List(args) => list(args).await,
        Command::Token(args) => token(args).await,
        Command::Fetch(args) => fetch(args).await,
        Command::Consumers(args) => consumers(args).await,
        Command::Seek(args) => seek(args).await,
        Command::Forget(args) => forget(args).await,
        Command::Delete(args) => delete(args).await,
    }
}

async fn create(args: Create) -> anyhow::Result<()> {
    let some = |list: Vec<String>| (!list.is_empty()).then(|| json!(list));
    let body = said([
        ("uid", args.uid.map(|uid| json!(uid))),
        ("description", args.description.map(|text| json!(text))),
        ("filterTypes", some(args.event_types)),
        ("channels", some(args.channels)),
    ]);
    let made = InApp::new(&args.in_app)?.post(&["poller"], &body).await?.value()?;
    print::result(args.in_app.output.form(), &made, made["id"].as_str().unwrap_or_default())?;
    Ok(())
}

async fn list(args: AppFlags) -> anyhow::Result<()> {
    let found = InApp::new(&args)?.list(&["poller"], &Vec::new(), usize::MAX).await?;
    match args.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "there are no pollers")?,
    }
    Ok(())
}

async fn token(args: Token) -> anyhow::Result<()> {
    let Token { one, rotate, overlap } = args;
    // It is not below the application's own path.
    let client = Client::new(&one.in_app.server)?;
    let path = ["auth", "app", &one.in_app.app, "poller", &one.poller, "token"];
    let shown = match rotate {
        false => client.get(&path, &[]).await?,
        true => client.post(&[&path[..], &["rotate"]].concat(), &json!({"oldTokenExpiry": overlap})).await?,
    };
    let shown = shown.value()?;
    print::result(one.in_app.output.form(), &shown, shown["token"].as_str().unwrap_or_default())?;
    Ok(())
}

async fn fetch(args: Fetch) -> anyhow::Result<()> {
    let in_app = InApp::new(&args.one.in_app)?;
    let path = ["poller", &args.one.poller, "consumer", &args.consumer];
    let (mut place, mut left) = (None, args.limit.unwrap_or(usize::MAX));
    loop {
        let mut query = vec![("limit", left.min(PAGE).to_string())];
        query.extend(place.map(|place| ("iterator", place)));
        let page: Page = in_app.get(&path, &query).await?.read()?;
        print::raw_rows(&page.data)?;
        left -= page.data.len().min(left);
        let is_over = left == 0 || page.done && !args.follow;
        if is_over {
            // What is written out is dealt with.
            if !page.data.is_empty() {
                in_app.post(&[&path[..], &["commit"]].concat(), &json!({"iterator": page.iterator})).await?;
            }
            return Ok(());
        }
        place = Some(page.iterator);
        if page.done {
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }
}

#[derive(serde::Deserialize)]
struct Page {
    data: Vec<Box<RawValue>>,
    iterator: String,
    done: bool,
}

async fn consumers(args: One) -> anyhow::Result<()> {
    let found = InApp::new(&args.in_app)?.get(&["poller", &args.poller, "consumer"], &Vec::new()).await?;
    #[derive(serde::Deserialize)]
    struct Found {
        data: Vec<Box<RawValue>>,
    }
    let Found { data } = found.read()?;
    match args.in_app.output.form() {
        Form::Json => print::raw_rows(&data)?,
        Form::Text => {
            let values = data.iter().map(|row| serde_json::from_str(row.get())).collect::<Result<Vec<Value>, _>>()?;
            let rows = values.iter().map(|consumer| columns(consumer, ["consumerId", "placeAt", "movedAt"])).collect();
            print::rows(&CONSUMERS_HEAD, rows, "nobody has fetched and said so")?;
        }
    }
    Ok(())
}

async fn seek(args: Seek) -> anyhow::Result<()> {
    let Named { one, consumer } = args.named;
    let path = ["poller", &one.poller, "consumer", &consumer, "seek"];
    let moved = InApp::new(&one.in_app)?.post(&path, &json!({"after": args.after})).await?.value()?;
    print::result(one.in_app.output.form(), &moved, moved["iterator"].as_str().unwrap_or_default())?;
    Ok(())
}

async fn forget(args: Named) -> anyhow::Result<()> {
    let Named { one, consumer } = args;
    let path = ["app", &one.in_app.app, "poller", &one.poller, "consumer", &consumer];
    Client::new(&one.in_app.server)?.delete(&path).await?;
    print::result(one.in_app.output.form(), &json!({"forgotten": consumer}), "forgotten")?;
    Ok(())
}

async fn delete(args: One) -> anyhow::Result<()> {
    Client::new(&args.in_app.server)?.delete(&["app", &args.in_app.app, "poller", &args.poller]).await?;
    print::result(args.in_app.output.form(), &json!({"deleted": args.poller}), "deleted")?;
    Ok(())
}

fn row(poller: &Value) -> Vec<String> {
    let list = |field: &str| match poller[field].as_array() {
        None => "all".to_owned(),
        Some(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            print::escaped_word(&names.join(","), 100)
        }
    };
    let [id, uid, description] = columns(poller, ["id", "uid", "description"]).try_into().expect("three");
    vec![id, uid, list("filterTypes"), list("channels"), description]
}

fn columns<const N: usize>(row: &Value, fields: [&str; N]) -> Vec<String> {
    fields.map(|field| print::escaped_word(row[field].as_str().unwrap_or("-"), 100)).to_vec()
}

const HEAD: [&str; 5] = ["ID", "UID", "EVENT TYPES", "CHANNELS", "DESCRIPTION"];
const CONSUMERS_HEAD: [&str; 3] = ["CONSUMER", "HAS DEALT WITH ALL UP TO", "SINCE"];
/// The most that the API gives at once.
const PAGE: usize = 250;
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
