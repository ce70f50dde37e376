//! The page `docs/guide/presets.md`, written from the presets themselves.

use super::{Preset, READ, all};
use crate::{
    outcome::{Answer, Fault, Outcome, TimeoutPhase, TlsFault},
    policy::{
        breaker::WhileOpen,
        classify::{Class, classify},
        preview::{End, Planned, preview},
        retry_after::RetryAfterMode,
        rules::{Policy, Rules, SignatureForm, SignatureStyle},
        words::Spelt,
    },
};
use std::fmt::{self, Write};

pub fn reference() -> String {
    let mut page = String::from(PREFACE);
    for preset in all() {
        section(&mut page, preset).expect("writing to a string does not fail");
    }
    page
}

fn section(page: &mut String, preset: &Preset) -> fmt::Result {
    let rules = Rules::resolve([&preset.layer]);
    let policy = &rules.policy;
    let shown = preview(policy);
    let Preset { name, about, source, dated, .. } = preset;
    let when = if *dated == READ { format!("read on {dated}") } else { (*dated).to_owned() };
    writeln!(page, "\n## `{name}`\n\n{about}\n\nSource: {source}; {when}.\n")?;

    writeln!(page, "| attempt | earliest | nominal | latest |\n|---|---|---|---|")?;
    let rows = shown.attempts.len();
    for planned in shown.attempts.iter().take(if rows > ROWS_MAX { ROWS_MAX - 1 } else { rows }) {
        row(page, planned)?;
    }
    if rows > ROWS_MAX {
        writeln!(page, "| ... | | | |")?;
        row(page, &shown.attempts[rows - 1])?;
    }

    let budget = policy.budget;
    let ended = match shown.ends {
        End::Attempts => "the attempts end it",
        End::Time => "the time ends it",
        End::Chance => "either may end it, by chance",
        End::Unseen => "it goes on beyond what is shown here",
    };
    writeln!(page, "\n- Budget: {}; {ended}.", limits(budget.attempts_max, Spelt(budget.total_max)))?;
    outcomes(page, policy)?;
    let retry_after = match policy.retry_after.mode {
        RetryAfterMode::Longest => "the later of it and our own wait",
        RetryAfterMode::Override => "in place of our own wait",
    };
    writeln!(page, "- `Retry-After`: {retry_after}, up to {}.", Spelt(policy.retry_after.cap))?;
    let timeouts = rules.timeouts;
    writeln!(
        page,
        "- Timeouts: {} to connect, {} to the first byte, {} in all.",
        Spelt(timeouts.connect),
        Spelt(timeouts.first_byte),
        Spelt(timeouts.total)
    )?;
    match rules.redirects_max {
        0 => writeln!(page, "- Redirects are not followed.")?,
        hops => writeln!(page, "- Redirects are followed up to {hops} times (307 and 308).")?,
    }
    match rules.breaker {
        None => writeln!(page, "- No breaker.")?,
        Some(breaker) => {
            let waiting = match breaker.while_open {
                WhileOpen::Hold => "deliveries are held",
                WhileOpen::DeadLetter => "deliveries go to the dead letters",
            };
            let (first, longest) = (Spelt(breaker.cool_down), Spelt(breaker.cool_down_max));
            let growing = if first == longest { String::new() } else { format!(", doubled up to {longest}") };
            writeln!(
                page,
                "- Breaker: opens after {} failures in a row for {first}{growing}; meanwhile {waiting}.",
                breaker.failures
            )?;
        }
    }
    let failing = rules.disable.failing_for.map(|time| format!("after failing for {}", Spelt(time)));
    let refusing = rules.disable.permanent_streak.map(|streak| format!("after {streak} refusals in a row"));
    let disabled: Vec<String> = failing.into_iter().chain(refusing).collect();
    if !disabled.is_empty() {
        writeln!(page, "- Disabled {}.", disabled.join(" or "))?;
    }
    writeln!(page, "- At most {} requests at a time.", rules.in_flight_max.0)?;
    rules.signature.iter().try_for_each(|form| signature(page, form))
}

fn row(page: &mut String, planned: &Planned) -> fmt::Result {
    let Planned { attempt, earliest, nominal, latest, certain } = *planned;
    let by_chance = if certain { "" } else { " (by chance)" };
    writeln!(page, "| {attempt}{by_chance} | {} | {} | {} |", Spelt(earliest), Spelt(nominal), Spelt(latest))
}

fn limits(attempts_max: u32, total_max: Spelt) -> String {
    let attempts = if attempts_max == 1 { "attempt" } else { "attempts" };
    format!("{attempts_max} {attempts} within {total_max}")
}

/// Asks the classifier itself about every status and every fault, so that the page cannot say anything else.
fn outcomes(page: &mut String, policy: &Policy) -> fmt::Result {
    let Policy { overrides, ambiguous, budget, .. } = policy;
    let leash = limits(ambiguous.attempts_max, Spelt(ambiguous.total_max));
    let retried = if budget.attempts_max > 1 { "Retried" } else { "Given up, for want of another attempt" };
    for (class, words) in [
        (Class::Transient, retried.to_owned()),
        (Class::Ambiguous, format!("Retried on a short leash ({leash})")),
        (Class::Permanent, "Refused for good".to_owned()),
        (Class::Gone, "Refused for good, and the endpoint is disabled".to_owned()),
    ] {
        let of_class = |outcome: &Outcome| classify(outcome, overrides).0 == class;
        let statuses =
            (100..=599).filter(|status| of_class(&Outcome::Answered(Answer { status: *status, ..Answer::default() })));
        let faults: Vec<&str> = faults()
            .into_iter()
            .filter(|(_, fault)| of_class(&Outcome::Failed(fault.clone())))
            .map(|(words, _)| words)
            .collect();
        let faults = if faults.len() == self::faults().len() { vec!["everything without an answer"] } else { faults };
        let all: Vec<String> = ranges(statuses).into_iter().chain(faults.into_iter().map(str::to_owned)).collect();
        if !all.is_empty() {
            writeln!(page, "- {words}: {}.", all.join(", "))?;
        }
    }
    Ok(())
}

fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("no DNS answer", Fault::Dns),
        ("connection refused or broken", Fault::Reset),
        ("timeout", Fault::Timeout(TimeoutPhase::Total)),
        ("handshake failed", Fault::Tls(TlsFault::Handshake)),
        ("certificate expired or not yet valid", Fault::Tls(TlsFault::Expired)),
        ("certificate of another host or an unknown authority", Fault::Tls(TlsFault::WrongHost)),
        ("not HTTP", Fault::Protocol("")),
        ("a forbidden address", Fault::Forbidden),
    ]
}

/// `[400, 401, 402, 405]` as `400-402, 405`, and whole hundreds as `4xx`.
fn ranges(statuses: impl Iterator<Item = u16>) -> Vec<String> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for status in statuses {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == status && status % 100 != 0 => *end = status,
            Some(_) | None => runs.push((status, status)),
        }
    }
    let spelt = |(start, end): (u16, u16)| {
        if start % 100 == 0 && end % 100 == 99 {
            format!("{}xx", start / 100)
        } else if start == end {
            start.to_string()
        } else if start + 1 == end {
            format!("{start}, {end}")
        } else {
            format!("{start}-{end}")
        }
    };
    runs.into_iter().map(spelt).collect()
}

fn signature(page: &mut String, SignatureForm { style, header, id_header }: &SignatureForm) -> fmt::Result {
    let form = match style {
        SignatureStyle::Stripe => "t=...,v1=...",
        SignatureStyle::Scheme => "scheme=v1,ts=...,sig=...",
        SignatureStyle::GitHub => "sha256=...",
    };
    let id = id_header.as_ref().map_or_else(String::new, |name| format!(", and the message's id in `{name}`"));
    writeln!(page, "- Signed in `{header}` as `{form}`{id}, besides the headers of Standard Webhooks.")
}

/// Longer schedules are shown by their beginning and their end.
const ROWS_MAX: usize = 20;

const PREFACE: &str = "\
# Presets

<!-- Written from crates/postrider-engine/src/policy/presets; BLESS=1 cargo test -p postrider-engine --lib presets_page renews it. -->

A preset is a set of rules with a name: the schedule, budget and classification of a system that people know. It can
be chosen wherever rules can be set, and refined field by field. A level that names one starts from it, whatever levels
further away say. What a preset does not speak of is as in `default`.

Times count from the start of the first attempt, for a receiver that fails at once each time; \"nominal\" is without
chance. An attempt always counts the first try, a retry does not. Where a source is vague, the figures are chosen so that
the latest times fit into its window.
";

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn the_presets_page_says_what_the_presets_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/presets.md");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&path, reference()).expect("the page can be written");
        }
        let page = fs::read_to_string(&path).expect("the page exists");
        assert!(page == reference(), "docs/guide/presets.md is out of step; see its first lines");
    }

    #[test]
    fn statuses_are_gathered_into_ranges() {
        let gathered = |statuses: &[u16]| ranges(statuses.iter().copied()).join(", ");
        assert_eq!(gathered(&[400, 401, 402, 405]), "400-402, 405");
        assert_eq!(gathered(&[408, 409, 425]), "408, 409, 425");
        assert_eq!(ranges(400..=599).join(", "), "4xx, 5xx");
        assert_eq!(ranges(499..=600).join(", "), "499, 5xx, 600");
    }
}
