//! When each attempt would run, in JSON and as a picture.

use crate::config::{Span, show_duration};
use postrider_engine::policy::{
    Policy,
    preview::{End, Planned, preview},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewOut {
    pub attempts: Vec<PlannedOut>,
    pub max_attempts: u32,
    #[schema(value_type = String, example = "4d")]
    pub give_up_after: Span,
    /// Which limit ends it, in words.
    pub ends: String,
    /// What can never act, and other things that may not have been meant.
    pub warnings: Vec<String>,
}

/// Times since the first attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedOut {
    pub attempt: u32,
    #[schema(value_type = String, example = "2s500ms")]
    pub earliest: Span,
    /// Without chance.
    #[schema(value_type = String, example = "5s")]
    pub nominal: Span,
    #[schema(value_type = String, example = "5s")]
    pub latest: Span,
    /// False: it takes place only if chance makes the waits before it short enough.
    pub certain: bool,
}

impl PreviewOut {
    pub fn of(policy: &Policy) -> Self {
        let preview = preview(policy);
        let planned = |planned: &Planned| PlannedOut {
            attempt: planned.attempt,
            earliest: Span(planned.earliest),
            nominal: Span(planned.nominal),
            latest: Span(planned.latest),
            certain: planned.certain,
        };
        Self {
            attempts: preview.attempts.iter().map(planned).collect(),
            max_attempts: policy.budget.attempts_max,
            give_up_after: Span(policy.budget.total_max),
            ends: ends(preview.ends).to_owned(),
            warnings: preview.warnings.iter().map(ToString::to_string).collect(),
        }
    }

    /// A bar for each attempt, from the earliest to the latest moment, on a scale that makes seconds and days visible.
    pub fn picture(&self, width: usize) -> String {
        let place = |span: Span| {
            let last = self.attempts.last().map_or(1.0, |last| last.latest.0.as_secs_f64().max(1.0));
            let share = span.0.as_secs_f64().ln_1p() / last.ln_1p();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let column = (share.clamp(0.0, 1.0) * (width.saturating_sub(1)) as f64).round() as usize;
            column
        };
        let mut text = String::new();
        for planned in &self.attempts {
            let (from, to) = (place(planned.earliest), place(planned.latest));
            let bar: String = (0..width)
                .map(|column| match column {
                    _ if column == from && from == to => '|',
                    _ if (from..=to).contains(&column) => '=',
                    _ => ' ',
                })
                .collect();
            let when = if planned.earliest == planned.latest {
                show_duration(whole(planned.nominal))
            } else {
                format!("{} .. {}", show_duration(whole(planned.earliest)), show_duration(whole(planned.latest)))
            };
            let doubt = if planned.certain { "" } else { " (perhaps)" };
            text += &format!("{:>4}  {bar}  {when}{doubt}\n", planned.attempt);
        }
        text
    }
}

fn ends(end: End) -> &'static str {
    match end {
        End::Attempts => "all attempts are used",
        End::Time => "the time runs out",
        End::Chance => "all attempts are used or the time runs out, whichever chance brings first",
        End::Unseen => "there are more attempts than are shown",
    }
}

/// Nobody reads milliseconds of hours.
fn whole(span: Span) -> std::time::Duration {
    let secs = span.0.as_secs();
    match secs {
        0..60 => span.0,
        60..3_600 => std::time::Duration::from_secs(secs),
        3_600.. => std::time::Duration::from_secs(secs / 60 * 60),
    }
}
