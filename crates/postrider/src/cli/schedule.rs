//! `postrider schedule`: when each attempt would run, before anything depends on it.
//!
//! Presets and rules need no server. Only what really applies to an endpoint is asked of one, since levels meet there.

use super::{
    Usage,
    client::{Client, InApp, OutputFlags, ServerFlags},
    print::{self, Form},
};
use crate::{
    config::show_duration,
    rules::{self, RetryPolicy, Rules, preview::PreviewOut},
};
use anyhow::Context;
use postrider_engine::policy::{
    self, Layer,
    presets::{self, Preset},
};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use std::{collections::BTreeMap, fs};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider schedule stripe
  postrider schedule --rules '{\"schedule\": {\"type\": \"exponential\", \"base\": \"30s\"}, \"maxAttempts\": 8}'
  postrider schedule slack --rules @rules.json
  postrider schedule --app shop --endpoint billing")]
pub struct Args {
    /// The preset [default: default]
    preset: Option<String>,
    /// Fields on top of the preset: JSON or @FILE, a retryPolicy or a whole object of rules, as in the API
    #[arg(long, value_name = "JSON")]
    rules: Option<String>,
    /// Name all presets
    #[arg(long, conflicts_with_all = ["preset", "rules", "endpoint"])]
    list: bool,
    /// Ask a running server for an endpoint of this application, by id or uid
    #[arg(long, requires = "endpoint", conflicts_with_all = ["preset", "rules"])]
    app: Option<String>,
    /// The endpoint, by id or uid
    #[arg(long, requires = "app")]
    endpoint: Option<String>,
    /// For messages of this type
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    event_type: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let form = args.output.form();
    if args.list {
        return list(form);
    }
    let (title, preview) = match (&args.app, &args.endpoint) {
        (Some(app), Some(endpoint)) => {
            let title = format!("What applies to endpoint {endpoint} of application {app}");
            (title, of_endpoint(&args, app, endpoint).await?)
        }
        (_, _) => offline(args.preset.as_deref(), args.rules.as_deref())?,
    };
    print::say(&match form {
        Form::Json => print::json_line(&serde_json::to_string(&preview).context("writing JSON")?),
        Form::Text => described(&title, &preview),
    })?;
    Ok(())
}

async fn of_endpoint(args: &Args, app: &str, endpoint: &str) -> anyhow::Result<PreviewOut> {
    let client = InApp::of(Client::new(&args.server)?, app);
    let query = args.event_type.iter().map(|name| ("event_type", name.clone())).collect();
    client.get(&["endpoint", endpoint, "schedule"], &query).await?.read()
}

fn offline(name: Option<&str>, given: Option<&str>) -> anyhow::Result<(String, PreviewOut)> {
    let said = given.map(read_rules).transpose()?.unwrap_or_default().layer();
    let preset = match (name, said.preset) {
        (Some(_), Some(inner)) => {
            return Err(Usage(format!("the rules name the preset `{}` already; leave one out", inner.name)).into());
        }
        (Some(name), None) => find(name)?,
        (None, Some(inner)) => inner,
        (None, None) => find("default")?,
    };
    let named = Layer { preset: Some(preset), ..Layer::default() };
    let resolved = policy::Rules::resolve([&named, &said]);
    let flaws = said.check().into_iter().chain(resolved.check());
    let mut flaws: Vec<String> =
        flaws.map(|flaw| format!("{}: {}", rules::path_of(flaw.field).join("."), flaw.words)).collect();
    flaws.dedup();
    if !flaws.is_empty() {
        return Err(Usage(format!("--rules: {}", flaws.join("; "))).into());
    }
    let changed = if given.is_some() { ", with changes" } else { "" };
    let title =
        format!("Preset {}{changed}: {}\nSource: {} ({})", preset.name, preset.about, preset.source, preset.dated);
    Ok((title, PreviewOut::of(&resolved.policy)))
}

fn find(name: &str) -> anyhow::Result<&'static Preset> {
    presets::find(name).ok_or_else(|| {
        let nearest = presets::all().iter().min_by_key(|preset| strsim::damerau_levenshtein(name, preset.name));
        let nearest = nearest.map_or("default", |preset| preset.name);
        let known: Vec<&str> = presets::all().iter().map(|preset| preset.name).collect();
        Usage(format!("there is no preset `{name}`; did you mean `{nearest}`? There are: {}", known.join(", "))).into()
    })
}

/// A whole object of rules if one of its names is among them, otherwise a retry policy.
fn read_rules(given: &str) -> anyhow::Result<Rules> {
    let text = match given.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).with_context(|| format!("reading {path}"))?,
        None => given.to_owned(),
    };
    let names: BTreeMap<String, IgnoredAny> = serde_json::from_str(&text).unwrap_or_default();
    if names.keys().any(|name| NAMES_OF_RULES.contains(&name.as_str())) {
        return parse(&text);
    }
    Ok(Rules { retry_policy: Some(parse::<RetryPolicy>(&text)?), ..Rules::default() })
}

/// As strictly as the API, so that what is tried here is accepted there.
fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let fault = match serde_path_to_error::deserialize(&mut parser) {
        Ok(value) => match parser.end() {
            Ok(()) => return Ok(value),
            Err(tail) => tail.to_string(),
        },
        // Where the text ends too early, no path is known.
        Err(fault) => match fault.path().to_string().as_str() {
            "." | "?" => fault.inner().to_string(),
            path => format!("{path}: {}", fault.inner()),
        },
    };
    Err(Usage(format!("--rules: {fault}")).into())
}

fn list(form: Form) -> anyhow::Result<()> {
    let rows = presets::all().iter().map(|preset| {
        let budget = policy::Rules::resolve([&preset.layer]).policy.budget;
        (preset, budget.attempts_max, show_duration(budget.total_max))
    });
    match form {
        Form::Json => {
            for (preset, attempts_max, total_max) in rows {
                let shown = json!({
                    "name": preset.name, "about": preset.about, "source": preset.source, "dated": preset.dated,
                    "maxAttempts": attempts_max, "giveUpAfter": total_max,
                });
                print::say(&print::json_line(&shown.to_string()))?;
            }
        }
        Form::Text => {
            let rows = rows.map(|(preset, attempts_max, total_max)| {
                let gist = preset.about.split_inclusive(". ").next().unwrap_or_default().trim_end();
                vec![preset.name.to_owned(), attempts_max.to_string(), total_max, gist.to_owned()]
            });
            print::rows(&["PRESET", "ATTEMPTS", "WITHIN", "ABOUT"], rows.collect(), "no presets")?;
        }
    }
    Ok(())
}

fn described(title: &str, preview: &PreviewOut) -> String {
    let attempts = match preview.max_attempts {
        1 => "1 attempt".to_owned(),
        many => format!("{many} attempts"),
    };
    let mut text = format!(
        "{}\n\n{}\nAt most {attempts} within {}: it ends when {}.\n",
        print::escaped(title),
        preview.picture(PICTURE_WIDTH),
        show_duration(preview.give_up_after.0),
        print::escaped_word(&preview.ends, 500)
    );
    for warning in &preview.warnings {
        text += &format!("Note: {}\n", print::escaped_word(warning, 500));
    }
    text.trim_end().to_owned()
}

const NAMES_OF_RULES: [&str; 8] = [
    "retryPolicy",
    "statusOverrides",
    "timeouts",
    "circuitBreaker",
    "maxInFlight",
    "ordering",
    "signature",
    "autoDisable",
];
const PICTURE_WIDTH: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_rules_is_told_from_a_policys() {
        let all = r#"{"retryPolicy":"default","statusOverrides":{},"timeouts":{},"circuitBreaker":false,
            "maxInFlight":1,"ordering":"fifo","signature":{"style":"standard"},"autoDisable":false}"#;
        let rules: Rules = serde_json::from_str(all).expect("rules");
        let shown = serde_json::to_value(&rules).expect("JSON");
        let mut names: Vec<&str> = shown.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut known = NAMES_OF_RULES.to_vec();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn rules_and_policies_are_read_alike() {
        for given in [r#"{"maxAttempts":3}"#, r#"{"retryPolicy":{"maxAttempts":3},"maxInFlight":2}"#] {
            let (_, preview) = offline(Some("stripe"), Some(given)).expect(given);
            assert_eq!((preview.max_attempts, preview.attempts.len()), (3, 3), "{given}");
        }
        assert_eq!(
            offline(None, Some("\"slack\"")).expect("a name").1,
            offline(Some("slack"), None).expect("a name").1
        );
        for (name, given, expected) in [
            (None, "{\"maxAttempts\":0}", "retryPolicy.maxAttempts: "),
            (None, "{\"maxAttempt\":3}", "unknown field `maxAttempt`"),
            (None, "{\"retryPolicy\":{\"jitter\":7}}", "retryPolicy.jitter: "),
            (None, "{", "--rules: EOF"),
            (None, "{} {}", "trailing"),
            (Some("slack"), "{\"preset\":\"stripe\"}", "name the preset `stripe` already"),
            (Some("slak"), "{}", "did you mean `slack`?"),
        ] {
            let error = offline(name, Some(given)).map(|(title, _)| title).expect_err(given).to_string();
            assert!(error.contains(expected), "{given}: {error}");
        }
    }
}
