//! `postrider endpoints`: who gets an application's messages.

use super::{
    client::{Client, IfMissing, ServerFlags},
    print,
};
use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add an endpoint; prints its id and its secret
    Add(Add),
    /// List an application's endpoints
    List(InApp),
    /// Print an endpoint's secret
    Secret(One),
}

#[derive(clap::Args)]
struct InApp {
    #[command(flatten)]
    server: ServerFlags,
    /// The application, by id or uid
    #[arg(long)]
    app: String,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  postrider endpoints add --app shop --create-app http://127.0.0.1:9000/")]
struct Add {
    #[command(flatten)]
    in_app: InApp,
    /// Where to deliver
    #[arg(value_name = "ENDPOINT_URL")]
    endpoint_url: String,
    /// Deliver only this type of event (repeatable; none: all)
    #[arg(long = "event-type", value_name = "NAME")]
    event_types: Vec<String>,
    /// The signing secret, whsec_... [default: the server makes one]
    #[arg(long, env = "POSTRIDER_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// Make the application, with --app as its uid, if there is none
    #[arg(long)]
    create_app: bool,
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    in_app: InApp,
    /// The endpoint, by id or uid
    endpoint: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointIn<'a> {
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_types: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Add(args) => add(args).await,
        Command::List(args) => list(args).await,
        Command::Secret(args) => {
            let client = Client::new(&args.in_app.server)?;
            print::say(&secret(&client, &args.in_app.app, &args.endpoint).await?)?;
            Ok(())
        }
    }
}

async fn add(args: Add) -> anyhow::Result<()> {
    let client = Client::new(&args.in_app.server)?;
    let app = &args.in_app.app;
    let endpoint = EndpointIn {
        url: &args.endpoint_url,
        filter_types: (!args.event_types.is_empty()).then_some(&args.event_types),
        secret: args.secret.as_deref(),
    };
    let made = client.post_in_app(app, IfMissing::from_flag(args.create_app), "endpoint", &endpoint).await?;
    let id = made["id"].as_str().context("the answer has no endpoint id")?;
    let secret = secret(&client, app, id).await?;
    print::say(&format!("id      {}", print::escaped_word(id, 100)))?;
    print::say(&format!("secret  {secret}"))?;
    Ok(())
}

async fn list(args: InApp) -> anyhow::Result<()> {
    let client = Client::new(&args.server)?;
    let mut iterator = None;
    loop {
        let page = client.list(&["app", &args.app, "endpoint"], iterator.as_deref()).await?;
        for endpoint in page["data"].as_array().context("the answer has no list")? {
            print::say(&row(endpoint))?;
        }
        iterator = page["iterator"].as_str().map(str::to_owned);
        if page["done"] != Value::Bool(false) || iterator.is_none() {
            return Ok(());
        }
    }
}

fn row(endpoint: &Value) -> String {
    let text = |name: &str| print::escaped_word(endpoint[name].as_str().unwrap_or_default(), 500);
    let state = if endpoint["disabled"] == Value::Bool(true) { "disabled" } else { "enabled" };
    format!("{}  {state:8}  {}", text("id"), text("url"))
}

async fn secret(client: &Client, app: &str, endpoint: &str) -> anyhow::Result<String> {
    let answer = client.get(&["app", app, "endpoint", endpoint, "secret"]).await?;
    let key = answer["key"].as_str().context("the answer has no secret")?;
    Ok(print::escaped_word(key, 500))
}
