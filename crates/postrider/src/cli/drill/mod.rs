//! `postrider drill`: plays failures through a running deployment, and compares what happens with what should.
//!
//! It brings what it needs: an application of its own, which it removes again, and a receiver in this process that fails as
//! each story wants it to. The stories run side by side, each with an endpoint and a channel of its own.

mod stage;
mod stories;

use super::{
    Usage,
    client::{OutputFlags, ServerFlags},
    print::{self, Colour, Form, paint},
    receive::stop_signal,
};
use crate::config::show_duration;
use anyhow::{Context, anyhow};
use futures_util::{StreamExt, stream::FuturesUnordered};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use stage::Stage;
use std::{net::SocketAddr, time::Duration};
use stories::{STORIES, Story};
use tokio::time::Instant;
use url::Url;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider drill
  postrider drill --story retries --story breaker
  postrider drill --listen 10.0.0.5:9000 --receiver-url http://drill.internal:9000
  postrider drill --list

The server must be able to reach the receiver, and must be allowed to: for one on this machine it is started with
  postrider serve --allow-subnet 127.0.0.0/8

Exit codes: 0 everything was as it should be, 1 something was not, or it failed, 2 wrong usage")]
pub struct Args {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Only this story (repeatable) [default: all]
    #[arg(long = "story", value_name = "NAME")]
    stories: Vec<String>,
    /// Name all stories
    #[arg(long, conflicts_with = "stories")]
    list: bool,
    /// The address and port that the drill's own receiver listens on; port 0: a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The URL by which the server reaches that [default: http:// and the address it listens on]
    #[arg(long, value_name = "URL")]
    receiver_url: Option<Url>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    what: &'static str,
    expected: String,
    seen: String,
    is_right: bool,
}

impl Check {
    pub fn equal<T: PartialEq + std::fmt::Display>(what: &'static str, expected: T, seen: T) -> Self {
        let is_right = expected == seen;
        Self { what, expected: expected.to_string(), seen: seen.to_string(), is_right }
    }

    /// For what is known only as being right or not.
    pub fn that(what: &'static str, expected: impl Into<String>, seen: impl Into<String>, is_right: bool) -> Self {
        Self { what, expected: expected.into(), seen: seen.into(), is_right }
    }
}

struct Played {
    story: &'static Story,
    took: Duration,
    /// Or why it could not be played to its end.
    checks: anyhow::Result<Vec<Check>>,
}

impl Played {
    fn is_right(&self) -> bool {
        self.checks.as_ref().is_ok_and(|checks| checks.iter().all(|check| check.is_right))
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let form = args.output.form();
    if args.list {
        return list(form);
    }
    let chosen = choose(&args.stories)?;
    let stage = Stage::open(&args.server, args.listen, args.receiver_url.as_ref()).await?;
    let played = tokio::select! {
        played = play(&stage, &chosen, form) => played,
        stopped = stop_signal() => {
            stopped?;
            Err(anyhow!("ended early"))
        }
    };
    // Whatever happened: nothing is left behind.
    let closed = stage.close().await;
    let differing = played?;
    closed.context("the drill's application could not be deleted; do so by hand")?;
    match differing {
        0 => Ok(()),
        1 => Err(anyhow!("one story did not go as it should")),
        several => Err(anyhow!("{several} stories did not go as they should")),
    }
}

fn choose(named: &[String]) -> anyhow::Result<Vec<&'static Story>> {
    if named.is_empty() {
        return Ok(STORIES.iter().collect());
    }
    let find = |name: &String| {
        STORIES.iter().find(|story| story.name == name).ok_or_else(|| {
            let nearest = STORIES.iter().min_by_key(|story| strsim::damerau_levenshtein(name, story.name));
            let nearest = nearest.map_or("", |story| story.name);
            Usage(format!("there is no story `{name}`; did you mean `{nearest}`? --list names all of them")).into()
        })
    };
    named.iter().map(find).collect()
}

fn list(form: Form) -> anyhow::Result<()> {
    match form {
        Form::Json => STORIES.iter().try_for_each(|story| {
            print::say(&print::json_line(&json!({ "story": story.name, "about": story.about }).to_string()))
        })?,
        Form::Text => {
            let rows = STORIES.iter().map(|story| vec![story.name.to_owned(), story.about.to_owned()]);
            print::rows(&["STORY", "ABOUT"], rows.collect(), "no stories")?;
        }
    }
    Ok(())
}

/// Plays them side by side and shows each as it ends; tells how many did not go as they should.
async fn play(stage: &Stage, chosen: &[&'static Story], form: Form) -> anyhow::Result<usize> {
    let bar = match form {
        Form::Text => ProgressBar::new(chosen.len() as u64),
        Form::Json => ProgressBar::hidden(),
    };
    bar.set_style(
        ProgressStyle::with_template("{bar:40} {pos} of {len} stories, {elapsed}").context("drawing the bar")?,
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let begun = Instant::now();
    let mut playing: FuturesUnordered<_> = chosen
        .iter()
        .map(|&story| async move {
            let checks = (story.play)(stage).await;
            Played { story, took: begun.elapsed(), checks }
        })
        .collect();
    let mut differing = 0;
    while let Some(played) = playing.next().await {
        differing += usize::from(!played.is_right());
        // The bar must not be drawn between the lines.
        bar.suspend(|| show(&played, form))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if form == Form::Text {
        print::say(&match differing {
            0 => paint(Colour::Green, &format!("{} of {} stories went as they should.", chosen.len(), chosen.len())),
            _ => paint(
                Colour::Red,
                &format!("{} of {} stories went as they should.", chosen.len() - differing, chosen.len()),
            ),
        })?;
    }
    Ok(differing)
}

fn show(played: &Played, form: Form) -> Result<(), print::OutputError> {
    match form {
        Form::Json => print::say(&print::json_line(&as_json(played).to_string())),
        Form::Text => print::say(&block(played)),
    }
}

fn as_json(Played { story, took, checks }: &Played) -> serde_json::Value {
    let (error, checks) = match checks {
        Ok(checks) => (None, checks.as_slice()),
        Err(error) => (Some(format!("{error:#}")), &[][..]),
    };
    let checks_out: Vec<_> = checks
        .iter()
        .map(|check| {
            json!({
                "check": check.what, "expected": check.expected, "seen": check.seen, "ok": check.is_right,
            })
        })
        .collect();
    json!({
        "story": story.name, "about": story.about, "ok": error.is_none() && checks.iter().all(|check| check.is_right),
        "tookMs": u64::try_from(took.as_millis()).unwrap_or(u64::MAX), "error": error, "checks": checks_out,
    })
}

fn block(played: &Played) -> String {
    let Played { story, took, checks } = played;
    let mark = if played.is_right() { paint(Colour::Green, "ok") } else { paint(Colour::Red, "DIFFERS") };
    let took = show_duration(Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(0)));
    let mut lines = vec![format!("{}  {mark}  {took}", paint(Colour::Bold, story.name)), format!("  {}", story.about)];
    match checks {
        Err(error) => {
            let words = print::escaped_word(&format!("{error:#}"), 1_000);
            lines.push(format!("  {} {words}", paint(Colour::Red, "could not be played to its end:")));
        }
        Ok(checks) => {
            let width = checks.iter().map(|check| check.what.chars().count()).max().unwrap_or(0);
            lines.extend(checks.iter().map(|check| line(check, width)));
        }
    }
    lines.join("\n") + "\n"
}

fn line(Check { what, expected, seen, is_right }: &Check, width: usize) -> String {
    let seen = print::escaped_word(seen, 300);
    match is_right {
        true => format!("  {}  {what:width$}  {seen}", paint(Colour::Green, "+")),
        false => {
            let expected = print::escaped_word(expected, 300);
            format!("  {}  {what:width$}  {seen}, and should be {expected}", paint(Colour::Red, "-"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn played(checks: anyhow::Result<Vec<Check>>) -> Played {
        Played { story: &STORIES[0], took: Duration::from_millis(1_200), checks }
    }

    #[test]
    fn what_was_seen_stands_beside_what_should_be() {
        let good = Check::equal("requests", 1, 1);
        let bad = Check::that("the gap", "3s at least", "1s", false);
        let told = block(&played(Ok(vec![good.clone(), bad.clone()])));
        assert!(told.starts_with("healthy  DIFFERS  1s200ms\n"), "{told}");
        assert!(told.ends_with("  +  requests  1\n  -  the gap   1s, and should be 3s at least\n"), "{told}");
        assert!(block(&played(Ok(vec![good.clone()]))).starts_with("healthy  ok  "));
        let failed = block(&played(Err(anyhow!("no server"))));
        assert!(failed.contains("DIFFERS") && failed.contains("could not be played to its end: no server"), "{failed}");
        assert_eq!(as_json(&played(Ok(vec![good.clone(), bad])))["ok"], false);
        assert_eq!(as_json(&played(Ok(vec![good])))["ok"], true);
        assert_eq!(as_json(&played(Err(anyhow!("x"))))["ok"], false);
    }

    #[test]
    fn stories_are_chosen_by_name() {
        let names: BTreeSet<&str> = STORIES.iter().map(|story| story.name).collect();
        assert_eq!(names.len(), STORIES.len(), "each has a name of its own");
        assert_eq!(choose(&[]).expect("all").len(), STORIES.len());
        assert_eq!(choose(&["breaker".to_owned()]).expect("one")[0].name, "breaker");
        let told = choose(&["braker".to_owned()]).err().expect("none").to_string();
        assert!(told.contains("did you mean `breaker`?"), "{told}");
    }
}
