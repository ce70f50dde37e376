//! The command line.
//!
//! Its words, exit codes and what it prints on standard output are an interface: scripts rely on them.
//! Results go to standard output, everything said to a person goes to standard error.

mod alerts;
mod api_keys;
mod audit;
mod backup;
mod client;
mod completion;
mod dead_letters;
mod demo;
mod doctor;
mod drill;
mod endpoints;
mod events;
mod flags;
mod keys;
mod man;
mod messages;
mod migrate;
mod moving;
mod outbox;
mod pollers;
mod print;
mod receive;
mod receiver;
mod replay;
mod schedule;
mod script;
mod send;
mod send_many;
mod serve;
mod sources;
mod tail;
mod tasks;
mod token;
mod verify;

use crate::{config::SettingsError, telemetry};
use anyhow::Context;
use clap::{Parser, Subcommand, error::ErrorKind};
use std::{ffi::OsString, future::Future, io, process::ExitCode};

#[derive(Parser)]
#[command(
    name = "postrider",
    version,
    about = "Delivers webhooks: accepted durably, signed, retried, and never lost",
    after_help = "\
Examples:
  postrider demo
  postrider serve --data /var/lib/postrider
  postrider send --app shop --event-type order.paid '{\"order\": 42}'
  postrider tail --app shop

Exit codes: 0 done, 1 failed, 2 wrong usage or settings"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::Args),
    /// Try it out: a server, a receiver that misbehaves on purpose, and traffic
    Demo(demo::Args),
    /// Print an API token for this deployment
    Token(token::Args),
    /// Bring the tables of a database up to date
    Migrate(migrate::Args),
    /// Look for what is wrong with a deployment, and say what to do
    Doctor(doctor::Args),
    /// Copy the database of a data folder while the server runs
    Backup(backup::Args),
    /// Move a deployment from its data folder to PostgreSQL
    Move(moving::Args),
    /// Change the key that seals endpoints' secrets
    Keys(keys::Args),
    /// Make, list, end and rotate API keys that are limited to what they are for
    ApiKeys(api_keys::Args),
    /// Show who changed what by the API
    Audit(audit::Args),
    /// Try whether those who should be told of trouble can be
    Alerts(alerts::Args),
    /// Send a message through a running server
    Send(send::Args),
    /// Follow the attempts of applications as they are made
    Tail(tail::Args),
    /// Look at messages, why they wait, and call them back
    Messages(messages::Args),
    /// Add, list, look at, pause and resume endpoints
    Endpoints(endpoints::Args),
    /// Make pollers, for those who fetch instead of being sent to, and fetch by one
    Pollers(pollers::Args),
    /// Make and list sources, whose URLs other services send to, and see what they refused
    Sources(sources::Args),
    /// Look at what was given up, and why
    DeadLetters(dead_letters::Args),
    /// Send again what did not arrive, or what is asked for
    Replay(replay::Args),
    /// Look at long work of the server, and end it
    Tasks(tasks::Args),
    /// Make an outbox in a producer's database, and look after it
    Outbox(outbox::Args),
    /// Show when each attempt of a preset, of rules or to an endpoint would run
    Schedule(schedule::Args),
    /// Run a test receiver that verifies and shows what arrives, and fails on purpose
    Receive(receive::Args),
    /// Say whether a request that was kept is believed, and if not, why
    Verify(verify::Args),
    /// Play failures through a running deployment, and compare what happens with what should
    Drill(drill::Args),
    /// Print what a shell needs to complete these commands
    Completion(completion::Args),
    /// Print the manual, or write its pages
    Man(man::Args),
}

pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    telemetry::hide_values_in_panics();
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(shown) => {
            // A closed pipe is no reason to fail while printing help.
            let _ = shown.print();
            return match shown.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    let done = match command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) => on_runtime(demo::run(args)),
        Command::Token(args) => token::run(&args),
        Command::Migrate(args) => on_runtime(migrate::run(args)),
        Command::Doctor(args) => on_runtime(doctor::run(args)),
        Command::Backup(args) => on_runtime(backup::run(args)),
        Command::Move(args) => on_runtime(moving::run(args)),
        Command::Keys(args) => on_runtime(keys::run(args)),
        Command::ApiKeys(args) => on_runtime(api_keys::run(args)),
        Command::Audit(args) => on_runtime(audit::run(args)),
        Command::Alerts(args) => on_runtime(alerts::run(args)),
        Command::Send(args) => on_runtime(send::run(args)),
        Command::Tail(args) => on_runtime(tail::run(args)),
        Command::Messages(args) => on_runtime(messages::run(args)),
        Command::Endpoints(args) => on_runtime(endpoints::run(args)),
        Command::Pollers(args) => on_runtime(pollers::run(args)),
        Command::Sources(args) => on_runtime(sources::run(args)),
        Command::DeadLetters(args) => on_runtime(dead_letters::run(args)),
        Command::Replay(args) => on_runtime(replay::run(args)),
        Command::Tasks(args) => on_runtime(tasks::run(args)),
        Command::Outbox(args) => on_runtime(outbox::run(args)),
        Command::Schedule(args) => on_runtime(schedule::run(args)),
        Command::Receive(args) => on_runtime(receive::run(args)),
        Command::Verify(args) => verify::run(&args),
        Command::Drill(args) => on_runtime(drill::run(args)),
        Command::Completion(args) => completion::run(&args),
        Command::Man(args) => man::run(&args),
    };
    done.map_or_else(|error| report(&error), |()| ExitCode::SUCCESS)
}

/// A mistake in how the command was called, found after its arguments were read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn on_runtime(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?.block_on(work)
}

fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        // Whoever read us has seen enough.
        return ExitCode::SUCCESS;
    }
    print::tell(&format!("postrider: {}", print::escaped(&format!("{error:#}"))));
    if error.is::<Usage>() || error.is::<SettingsError>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<print::OutputError>().is_some_and(|error| error.0.kind() == io::ErrorKind::BrokenPipe)
}

const USAGE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    /// All commands that do something themselves, by what one types for them.
    fn leaves(command: &clap::Command, typed: &str, found: &mut Vec<(String, clap::Command)>) {
        let typed = format!("{typed}{}", command.get_name());
        let mut below = command.get_subcommands().filter(|command| command.get_name() != "help").peekable();
        if below.peek().is_none() {
            found.push((typed, command.clone()));
            return;
        }
        below.for_each(|command| leaves(command, &format!("{typed} "), found));
    }

    #[test]
    fn every_command_shows_an_example_of_itself_and_what_prints_results_can_print_json() {
        let mut found = Vec::new();
        leaves(&Cli::command(), "", &mut found);
        assert!(found.len() > 40, "{}", found.len());
        for (typed, command) in found {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example") && help.contains(&typed), "{typed} has no example: {help}");
            // These run until they are ended, or print what is not for reading.
            let prints_no_results = matches!(
                typed.as_str(),
                "postrider serve" | "postrider demo" | "postrider completion" | "postrider man"
            );
            let has_json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            assert_eq!(has_json, !prints_no_results, "{typed}");
        }
    }
}
