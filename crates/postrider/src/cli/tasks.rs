//! `postrider tasks`: long work that was asked for, and waiting for its end.
//!
//! The server does the work and remembers it. Whoever waits here only watches: nothing is lost when they stop.

use super::{
    client::{Client, OutputFlags, Query, Rows, ServerFlags},
    flags::{LIMIT, limit},
    print::{self, Form},
    receive::stop_signal,
};
use crate::http::time::Time;
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{cmp::Reverse, time::Duration};
use tokio::time::sleep;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the tasks, the latest change first
    #[command(after_help = "Example:\n  postrider tasks list --status running")]
    List(List),
    /// Show how a task stands
    #[command(after_help = "Example:\n  postrider tasks show --wait qtask_...")]
    Show(Show),
    /// End a task early; what it has done stays done
    #[command(after_help = "Example:\n  postrider tasks cancel qtask_...")]
    Cancel(One),
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Only tasks that stand so
    #[arg(long, value_parser = ["running", "finished", "failed"])]
    status: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = limit, default_value = LIMIT)]
    limit: usize,
}

#[derive(clap::Args)]
struct Show {
    #[command(flatten)]
    one: One,
    /// Wait until the task has ended
    #[arg(long)]
    wait: bool,
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// The task, by its id (qtask_...)
    task: String,
}

/// Whether to stay until a task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    UntilDone,
    No,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    id: String,
    status: Status,
    task: String,
    data: Progress,
    updated_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Running,
    Finished,
    Failed,
}

/// The names with underscores are the contract's.
#[derive(Deserialize)]
struct Progress {
    endp_id: Option<String>,
    messages_sent: Option<u64>,
    messages_purged: Option<u64>,
    messages_canceled: Option<u64>,
    done: u64,
    total: Option<u64>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Show(Show { one, wait }) => {
            let client = Client::new(&one.server)?;
            if wait {
                return follow(&client, &one.task, one.output.form()).await;
            }
            show(&client.get(&path(&one.task), &[]).await?.raw()?, one.output.form())
        }
        Command::Cancel(one) => {
            let client = Client::new(&one.server)?;
            let answer = client.post(&["background-task", &one.task, "cancel"], &serde_json::json!({})).await?;
            show(&answer.raw()?, one.output.form())
        }
    }
}

/// Says that a task was taken on and, unless told otherwise, stays with it to its end.
pub async fn started(client: &Client, task: &RawValue, form: Form, wait: Wait) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct Taken {
        id: String,
    }
    let Taken { id } = serde_json::from_str(task.get()).context("the answer has no task id")?;
    match (wait, form) {
        (Wait::UntilDone, _) => follow(client, &id, form).await,
        (Wait::No, Form::Json) => Ok(print::say(&print::json_line(task.get()))?),
        (Wait::No, Form::Text) => Ok(print::say(&print::escaped_word(&id, 100))?),
    }
}

/// Watches a task until it has ended. Whoever interrupts it leaves the task as it is.
async fn follow(client: &Client, id: &str, form: Form) -> anyhow::Result<()> {
    let ended = tokio::select! {
        ended = watch(client, id, form) => ended.with_context(|| goes_on(id))?,
        stopped = stop_signal() => {
            stopped?;
            return Err(anyhow!("no longer waiting; {}", goes_on(id)));
        }
    };
    show(&ended, form)?;
    match read(&ended)?.status {
        Status::Finished | Status::Running => Ok(()),
        Status::Failed => Err(anyhow!("the task was ended early")),
    }
}

fn goes_on(id: &str) -> String {
    format!("task {id} goes on by itself: `postrider tasks show {id}` tells how it stands, `tasks cancel` ends it")
}

async fn watch(client: &Client, id: &str, form: Form) -> anyhow::Result<Box<RawValue>> {
    // Where standard error is no terminal, a bar draws nothing by itself.
    let bar = match form {
        Form::Text => ProgressBar::no_length(),
        Form::Json => ProgressBar::hidden(),
    };
    let mut pause = PAUSE_MIN;
    loop {
        let task = client.get(&path(id), &[]).await?.raw()?;
        let Task { status, data, .. } = read(&task)?;
        match status {
            Status::Finished | Status::Failed => {
                bar.finish_and_clear();
                return Ok(task);
            }
            Status::Running => draw(&bar, &data)?,
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn draw(bar: &ProgressBar, progress: &Progress) -> anyhow::Result<()> {
    let template = match progress.total {
        Some(total) => {
            bar.set_length(total);
            "{bar:40} {pos} of {len} looked at, {msg}; {eta} left"
        }
        None => "{spinner} {pos} looked at, {msg}",
    };
    bar.set_style(ProgressStyle::with_template(template).context("drawing the bar")?);
    bar.set_message(progress.words());
    bar.set_position(progress.done);
    bar.tick();
    Ok(())
}

impl Progress {
    /// What has come of it.
    fn words(&self) -> String {
        match (self.messages_sent, self.messages_canceled, self.messages_purged) {
            (Some(sent), _, _) => format!("{sent} put on their way"),
            (None, Some(canceled), _) => format!("{canceled} called back"),
            (None, None, Some(purged)) => format!("{purged} emptied"),
            (None, None, None) => "nothing changed".to_owned(),
        }
    }
}

async fn list(args: List) -> anyhow::Result<()> {
    let client = Client::new(&args.server)?;
    let mut found = Vec::new();
    let mut more = false;
    // Clients of the contract know a closed list of types, so that the server lists ours only by name.
    for kind in [None, Some("endpoint.resume"), Some("endpoint.cancel")] {
        let status = args.status.clone().map(|status| ("status", status));
        let query: Query = status.into_iter().chain(kind.map(|kind| ("task", kind.to_owned()))).collect();
        let Rows { rows, more: left, .. } = client.list(&["background-task"], &query, args.limit).await?;
        more |= left;
        found.extend(rows);
    }
    let mut tasks = found.into_iter().map(|raw| Ok((read(&raw)?, raw))).collect::<anyhow::Result<Vec<_>>>()?;
    tasks.sort_by_key(|(task, _)| Reverse(task.updated_at.0));
    more |= tasks.len() > args.limit;
    tasks.truncate(args.limit);
    match args.output.form() {
        Form::Json => {
            for (_, raw) in &tasks {
                print::say(&print::json_line(raw.get()))?;
            }
        }
        Form::Text => print::rows(&HEAD, tasks.iter().map(|(task, _)| row(task)).collect(), "no tasks")?,
    }
    print::tell_of_more(more);
    Ok(())
}

fn show(task: &RawValue, form: Form) -> anyhow::Result<()> {
    match form {
        Form::Json => print::say(&print::json_line(task.get()))?,
        Form::Text => print::say(&print::table(&HEAD, &[row(&read(task)?)]))?,
    }
    Ok(())
}

fn read(task: &RawValue) -> anyhow::Result<Task> {
    serde_json::from_str(task.get()).context("the server's answer is not a task")
}

fn row(task: &Task) -> Vec<String> {
    let status = match task.status {
        Status::Running => "running",
        Status::Finished => "finished",
        Status::Failed => "ended early",
    };
    let looked_at = match task.data.total {
        Some(total) => format!("{} of {total}", task.data.done),
        None => task.data.done.to_string(),
    };
    let endpoint = task.data.endp_id.as_deref().unwrap_or("-");
    vec![
        print::escaped_word(&task.id, 100),
        status.to_owned(),
        print::escaped_word(&task.task, 50),
        print::escaped_word(endpoint, 100),
        looked_at,
        task.data.words(),
        task.updated_at.to_string(),
    ]
}

fn path(id: &str) -> [&str; 2] {
    ["background-task", id]
}

const HEAD: [&str; 7] = ["TASK", "STATUS", "TYPE", "ENDPOINT", "LOOKED AT", "RESULT", "CHANGED"];
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
