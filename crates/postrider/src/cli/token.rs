//! `postrider token`: needs only the keys, so it works whether the server runs or not.

use super::{Usage, client::OutputFlags, print, serve::PlaceFlags};
use crate::{
    clock,
    config::parse_duration,
    ids::IdCodec,
    keyring::Keyring,
    tokens::{APPLICATION_TOKEN_LIFE, Access, Capability, ENVIRONMENT_TOKEN_LIFE, Tokens},
};
use clap::ValueEnum;
use postrider_engine::AppKey;
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  export POSTRIDER_TOKEN=\"$(postrider token)\"
  postrider token --data /var/lib/postrider --app app_... --read-only --expires-in 1h
  postrider token --app app_... --scope create-attempts --scope view-endpoint-secret")]
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
    /// Let it do only this, and look (with --app; repeatable)
    #[arg(long = "scope", value_name = "SCOPE", requires = "app", conflicts_with = "read_only", value_enum)]
    scopes: Vec<Scope>,
    #[command(flatten)]
    output: OutputFlags,
}

/// What a token for one application may be limited to: the contract's capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scope {
    /// Look at everything but secrets; every token may
    View,
    /// Send again: resends, recoveries, replays
    CreateAttempts,
    /// Add, change and delete endpoints
    ManageEndpoint,
    /// See endpoints' signing secrets
    ViewEndpointSecret,
    /// Rotate endpoints' signing secrets
    ManageEndpointSecret,
}

impl Scope {
    fn capability(self) -> Capability {
        match self {
            Self::View => Capability::ViewBase,
            Self::CreateAttempts => Capability::CreateAttempts,
            Self::ManageEndpoint => Capability::ManageEndpoint,
            Self::ViewEndpointSecret => Capability::ViewEndpointSecret,
            Self::ManageEndpointSecret => Capability::ManageEndpointSecret,
        }
    }

    fn all_of(some: &[Self]) -> Vec<Capability> {
        let all: BTreeSet<Capability> =
            some.iter().map(|scope| scope.capability()).chain([Capability::ViewBase]).collect();
        all.into_iter().collect()
    }
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
            let access = match (args.read_only, &args.scopes[..]) {
                (true, _) => Access::read_only(),
                (false, []) => Access::full(),
                (false, some) => Access { capabilities: Scope::all_of(some), feature_flags: None, poller: None },
            };
            tokens.mint_application(app, &access, clock::now(), args.expires_in.unwrap_or(APPLICATION_TOKEN_LIFE))?
        }
    };
    print::result(args.output.form(), &json!({ "token": token }), &token)?;
    Ok(())
}
