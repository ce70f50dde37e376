//! When to try again and when to give up, as people write it.

use crate::config::Span;
use postrider_engine::policy::{
    Layer,
    backoff::{AfterTable, Factor, Jitter, Shape},
    presets::{self, Preset},
    retry_after::RetryAfterMode,
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor},
};
use std::{fmt, time::Duration};
use utoipa::ToSchema;

/// A preset by name, fields of its own, or a preset with some fields changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "default")]
    preset: Option<PresetName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<Schedule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "equal")]
    jitter: Option<JitterIn>,
    /// Counts the first try.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// Since the first try.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "96h")]
    give_up_after: Option<Span>,
    /// The shorter leash of answers such as 404.
    #[serde(skip_serializing_if = "Option::is_none")]
    ambiguous: Option<AmbiguousIn>,
    /// How long a message that has not been tried may wait behind a paused or failing endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "14d")]
    hold_for: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<RetryAfterIn>,
    /// How many redirects (307 and 308) are followed; none by default, at most 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    follow_redirects: Option<u8>,
}

/// How the waits grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Schedule {
    /// `base`, `base * factor`, `base * factor^2`, ...
    Exponential {
        #[schema(value_type = String, example = "30s")]
        base: Span,
        /// From 1 to 100; 2 if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<f64>)]
        factor: Option<FactorIn>,
        /// No wait is longer, chance included. If not given: a day, or the longest delay where that is more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>, example = "1h")]
        cap: Option<Span>,
    },
    Fixed {
        #[schema(value_type = String, example = "10m")]
        interval: Span,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        cap: Option<Span>,
    },
    Table {
        #[schema(value_type = Vec<String>)]
        delays: Vec<Span>,
        /// What comes after the last delay.
        #[serde(default)]
        then: Then,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<String>)]
        cap: Option<Span>,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// It is repeated.
    #[default]
    Repeat,
    /// The message is given up.
    Stop,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with maxAttempts and giveUpAfter")]
pub struct AmbiguousIn {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    give_up_after: Option<Span>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with mode and cap")]
pub struct RetryAfterIn {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<RetryAfterModeIn>,
    /// No wish is followed further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "24h")]
    cap: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetryAfterModeIn {
    /// The later of the receiver's wish and our own wait.
    Longest,
    /// The wish in place of our own wait, also where it is shorter.
    Override,
}

impl RetryPolicy {
    /// Puts a table of delays, after which the message is given up, in the place of what was said about the schedule:
    /// the contract's retry schedule of an event type. `None` takes such a table away.
    pub fn with_table(self, delays: Option<Vec<Duration>>) -> Option<Self> {
        let mut policy = Self { schedule: None, max_attempts: None, give_up_after: None, ..self };
        if let Some(delays) = delays {
            let total: Duration = delays.iter().sum();
            policy.max_attempts = Some(u32::try_from(delays.len()).unwrap_or(u32::MAX).saturating_add(1));
            // Time for all of them, and for what receivers ask for besides.
            policy.give_up_after = Some(Span((total + DAY).clamp(4 * DAY, 30 * DAY)));
            policy.schedule = (!delays.is_empty()).then(|| Schedule::Table {
                delays: delays.into_iter().map(Span).collect(),
                then: Then::Stop,
                cap: None,
            });
        }
        (policy != Self::default()).then_some(policy)
    }

    /// The same back again; `None` if it says anything else about the schedule.
    pub fn as_table(&self) -> Option<Vec<Duration>> {
        let retries = self.max_attempts.map_or(usize::MAX, |attempts| attempts.saturating_sub(1) as usize);
        match (&self.schedule, self.max_attempts) {
            (Some(Schedule::Table { delays, then: Then::Stop, .. }), _) => {
                Some(delays.iter().take(retries).map(|span| span.0).collect())
            }
            (None, Some(1)) => Some(Vec::new()),
            (Some(_) | None, _) => None,
        }
    }

    pub fn fill(&self, layer: &mut Layer) {
        layer.preset = self.preset.as_ref().map(|name| name.0);
        if let Some(schedule) = &self.schedule {
            let (shape, cap) = schedule.shape();
            // A schedule brings its cap along: one of a level further away was meant for another schedule.
            layer.delay_cap = Some(cap.unwrap_or_else(|| longest(&shape).max(DAY)));
            layer.shape = Some(shape);
        }
        layer.jitter = self.jitter.map(|jitter| jitter.0);
        layer.attempts_max = self.max_attempts;
        layer.total_max = self.give_up_after.map(|span| span.0);
        if let Some(ambiguous) = &self.ambiguous {
            layer.ambiguous_attempts_max = ambiguous.max_attempts;
            layer.ambiguous_total_max = ambiguous.give_up_after.map(|span| span.0);
        }
        layer.hold_max = self.hold_for.map(|span| span.0);
        if let Some(wish) = &self.retry_after {
            layer.retry_after_cap = wish.cap.map(|span| span.0);
            layer.retry_after_mode = wish.mode.map(|mode| match mode {
                RetryAfterModeIn::Longest => RetryAfterMode::Longest,
                RetryAfterModeIn::Override => RetryAfterMode::Override,
            });
        }
        layer.redirects_max = self.follow_redirects;
    }
}

impl Schedule {
    fn shape(&self) -> (Shape, Option<Duration>) {
        match self {
            Self::Exponential { base, factor, cap } => (
                Shape::Exponential { base: base.0, factor: factor.map_or(Factor(2_000), |factor| factor.0) },
                cap.map(|span| span.0),
            ),
            Self::Fixed { interval, cap } => (Shape::Fixed { interval: interval.0 }, cap.map(|span| span.0)),
            Self::Table { delays, then, cap } => (
                Shape::Table {
                    delays: delays.iter().map(|span| span.0).collect(),
                    then: match then {
                        Then::Repeat => AfterTable::Repeat,
                        Then::Stop => AfterTable::End,
                    },
                },
                cap.map(|span| span.0),
            ),
        }
    }
}

/// The longest delay that a schedule names.
fn longest(shape: &Shape) -> Duration {
    match shape {
        Shape::Exponential { base, .. } => *base,
        Shape::Fixed { interval } => *interval,
        Shape::Table { delays, .. } => delays.iter().max().copied().unwrap_or_default(),
    }
}

const DAY: Duration = Duration::from_hours(24);

/// Text names a preset; an object says the rest.
impl<'de> Deserialize<'de> for RetryPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Fields {
            preset: Option<PresetName>,
            schedule: Option<Schedule>,
            jitter: Option<JitterIn>,
            max_attempts: Option<u32>,
            give_up_after: Option<Span>,
            ambiguous: Option<AmbiguousIn>,
            hold_for: Option<Span>,
            retry_after: Option<RetryAfterIn>,
            follow_redirects: Option<u8>,
        }

        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = RetryPolicy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a preset, or an object")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RetryPolicy, E> {
                let preset = PresetName::deserialize(de::value::StrDeserializer::new(name))?;
                Ok(RetryPolicy { preset: Some(preset), ..RetryPolicy::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RetryPolicy, A::Error> {
                let fields = Fields::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(RetryPolicy {
                    preset: fields.preset,
                    schedule: fields.schedule,
                    jitter: fields.jitter,
                    max_attempts: fields.max_attempts,
                    give_up_after: fields.give_up_after,
                    ambiguous: fields.ambiguous,
                    hold_for: fields.hold_for,
                    retry_after: fields.retry_after,
                    follow_redirects: fields.follow_redirects,
                })
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A preset that there is.
#[derive(Clone, Debug, PartialEq)]
pub struct PresetName(&'static Preset);

impl<'de> Deserialize<'de> for PresetName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        presets::find(&name).map(Self).ok_or_else(|| {
            let known: Vec<&str> = presets::all().iter().map(|preset| preset.name).collect();
            de::Error::custom(format_args!("there is no preset `{name}`; there are {}", known.join(", ")))
        })
    }
}

impl Serialize for PresetName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

/// A number with at most three decimals: schedules are computed without floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FactorIn(Factor);

impl<'de> Deserialize<'de> for FactorIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        let thousandths = (number * 1_000.0).round();
        if !(1_000.0..=100_000.0).contains(&thousandths) {
            return Err(de::Error::custom("must be a number from 1 to 100"));
        }
        if (number * 1_000.0 - thousandths).abs() > 1e-6 {
            return Err(de::Error::custom("may have at most three decimals"));
        }
        // Checked just above to be whole and small.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let thousandths = thousandths as u32;
        Ok(Self(Factor(thousandths)))
    }
}

impl Serialize for FactorIn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.0.is_multiple_of(1_000) {
            serializer.serialize_u32(self.0.0 / 1_000)
        } else {
            serializer.serialize_f64(f64::from(self.0.0) / 1_000.0)
        }
    }
}

/// `none`, `full`, `equal`, `decorrelated`, or `{"type": "proportional", "percent": 50}` and `additive` likewise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterIn(Jitter);

impl<'de> Deserialize<'de> for JitterIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = JitterIn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`none`, `full`, `equal`, `decorrelated`, or an object with `type` and `percent`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<JitterIn, E> {
                match name {
                    "none" => Ok(JitterIn(Jitter::None)),
                    "full" => Ok(JitterIn(Jitter::Full)),
                    "equal" => Ok(JitterIn(Jitter::Equal)),
                    "decorrelated" => Ok(JitterIn(Jitter::Decorrelated)),
                    "proportional" | "additive" => Err(E::custom(format_args!(
                        "`{name}` needs a percentage: {{\"type\": \"{name}\", \"percent\": 50}}"
                    ))),
                    other => Err(E::unknown_variant(
                        other,
                        &["none", "full", "equal", "decorrelated", "proportional", "additive"],
                    )),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JitterIn, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Fields {
                    r#type: String,
                    percent: Option<u8>,
                }
                let fields = Fields::deserialize(de::value::MapAccessDeserializer::new(map))?;
                match (fields.r#type.as_str(), fields.percent) {
                    ("proportional" | "additive", Some(101..)) => {
                        Err(de::Error::custom("`percent` must be from 0 to 100"))
                    }
                    ("proportional", Some(percent)) => Ok(JitterIn(Jitter::Proportional { percent })),
                    ("additive", Some(percent)) => Ok(JitterIn(Jitter::Additive { percent })),
                    ("none" | "full" | "equal" | "decorrelated", Some(_)) => {
                        Err(de::Error::custom(format_args!("`{}` has no percentage", fields.r#type)))
                    }
                    (name, _) => self.visit_str(name),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl Serialize for JitterIn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields {
            r#type: &'static str,
            percent: u8,
        }
        match self.0 {
            Jitter::None => serializer.serialize_str("none"),
            Jitter::Full => serializer.serialize_str("full"),
            Jitter::Equal => serializer.serialize_str("equal"),
            Jitter::Decorrelated => serializer.serialize_str("decorrelated"),
            Jitter::Proportional { percent } => Fields { r#type: "proportional", percent }.serialize(serializer),
            Jitter::Additive { percent } => Fields { r#type: "additive", percent }.serialize(serializer),
        }
    }
}
