//! `postrider token`: needs only the keys, so it works whether the server runs or not.

use super::{Usage, client::OutputFlags, print, serve::PlaceFlags};
use crate::{
    clock,
    config::parse_duration,
    ids::IdCodec,
    keyring::Keyring,
    tokens::{APPLICATION_TOKEN_LIFE, Access, ENVIRONMENT_TOKEN_LIFE, Tokens},
};
use postrider_engine::AppKey;
use serde_json::json;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  export POSTRIDER_TOKEN=\"$(postrider token)\"
  postrider token --data /var/lib/postrider --app app_... --read-only --expires-in 1h")]
pub struct Args {
    #[command(flatten)]
    place: PlaceFlags,
    /// Limit the token to one application, by its id
    #[arg(long, value_name = "APP_ID")]
    app: Option<String>,
    /// When the token ends [default: 3653d; 28d with --app]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    expires_in: Option<Duration>,
    /// Let it look and not change (with --app)
    #[arg(long, requires = "app")]
    read_only: bool,
    #[command(flatten)]
    output: OutputFlags,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let settings = args.place.settings(Vec::new())?;
    let keyring = Keyring::open(&settings.data)?;
    let ids = IdCodec::new(*keyring.ids());
    let tokens = Tokens::new(&settings.tokens, &keyring, ids.clone())?;
    let token = match &args.app {
        None => tokens.mint_environment(clock::now(), args.expires_in.unwrap_or(ENVIRONMENT_TOKEN_LIFE))?,
        Some(id) => {
            let app = ids.key_of::<AppKey>(id).ok_or_else(|| {
                Usage(format!(
                    "`{id}` is not the id of an application of this deployment (app_..., as the API shows it)"
                ))
            })?;
            let access = if args.read_only { Access::read_only() } else { Access::full() };
            tokens.mint_application(app, &access, clock::now(), args.expires_in.unwrap_or(APPLICATION_TOKEN_LIFE))?
        }
    };
    print::result(args.output.form(), &json!({ "token": token }), &token)?;
    Ok(())
}
