//! Retry policies of systems that people know, by name.
//!
//! What a preset does not speak of is as in `default`. Where a source is vague ("exponential, about 15 in 72 hours"),
//! the figures are chosen so that the latest time of each attempt fits into the window, and `about` says so.

mod page;
#[cfg(test)]
mod tests;

use super::{
    backoff::{AfterTable, Factor, Jitter, Shape},
    breaker::WhileOpen,
    overrides::{Subject, Treatment},
    retry_after::RetryAfterMode,
    rules::{BreakerLayer, InFlightMax, Layer, SignatureForm, SignatureStyle, Switch},
};
use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

pub use page::reference;

/// A policy by name, with where it was read and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub name: &'static str,
    pub about: &'static str,
    pub source: &'static str,
    /// The day of what it copies, `YYYY-MM-DD`; for sources without a date, the day they were read.
    pub dated: &'static str,
    pub layer: Layer,
}

pub fn all() -> &'static [Preset] {
    &PRESETS
}

pub fn find(name: &str) -> Option<&'static Preset> {
    all().iter().find(|preset| preset.name == name)
}

static PRESETS: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    vec![
        Preset {
            name: "default",
            about: "The schedule that Standard Webhooks shows: ten attempts over a little more than three days.",
            source: "Standard Webhooks, the specification, \"Deliverability and reliability\"",
            dated: READ,
            layer: Layer::default(),
        },
        recuro(
            "recuro",
            "30 seconds doubled, eight times, each wait drawn from nothing up to its whole length. What comes up while \
             the breaker is open goes to the dead letters. Its breaker opens for five minutes each time.",
            doubled(secs(30)),
            Jitter::Full,
        ),
        recuro(
            "recuro-table",
            "The same with its table of delays instead of a formula, of each of which 50 to 100 % is waited.",
            table(&[10, 30, 120, 600, 1_800, 7_200, 28_800, 86_400]),
            Jitter::Equal,
        ),
        Preset {
            name: "formspring",
            about: "30 seconds tripled, but six hours at the end, give or take half. Only 5xx and network failures are \
                    retried. It allows 30 seconds to connect and 30 more to answer: a minute in all. The waits add up \
                    to nine hours, where the source says about 24.",
            source: "Formspring, \"Webhook retry strategies: exponential backoff explained\"",
            dated: "2026-05-07",
            layer: Layer {
                shape: table(&[30, 90, 270, 810, 2_430, 7_290, 21_600]),
                jitter: Some(Jitter::Proportional { percent: 50 }),
                attempts_max: Some(8),
                total_max: Some(hours(24)),
                overrides: said("3xx: permanent, 4xx: permanent, 5xx: retry, network: retry"),
                connect: Some(secs(30)),
                first_byte: Some(secs(60)),
                total: Some(secs(60)),
                signature: Some(vec![SignatureForm {
                    style: SignatureStyle::Stripe,
                    header: "x-formspring-signature".to_owned(),
                    id_header: Some("x-formspring-delivery".to_owned()),
                }]),
                ..Layer::default()
            },
        },
        Preset {
            name: "retries-and-backoff",
            about: "One minute doubled up to an hour, for at most 16 attempts and three days. Everything is retried \
                    that is not known to be final, 404 included. Unlike its sample code, any 2xx is a success and the first \
                    wait is one minute, as its table says.",
            source: "\"Retries and backoff\", a chapter of a guide to webhooks, without a date",
            dated: READ,
            layer: Layer {
                shape: doubled(mins(1)),
                delay_cap: Some(hours(1)),
                jitter: Some(Jitter::Equal),
                attempts_max: Some(16),
                total_max: Some(hours(72)),
                overrides: said(&format!(
                    "{NON_2XX}, 400: permanent, 401: permanent, 403: permanent, 410: permanent, 422: permanent"
                )),
                disable_streak: Some(Switch::On(100)),
                in_flight_max: Some(InFlightMax(10)),
                ..Layer::default()
            },
        },
        Preset {
            name: "webhook-actions",
            about: "30 seconds doubled up to an hour, and up to 20 % more by chance; five attempts.",
            source: "WP Webhooks, \"Webhook Retry Policy: Exponential Backoff & Schema\"",
            dated: "2026-06-19",
            layer: Layer {
                shape: doubled(secs(30)),
                delay_cap: Some(hours(1)),
                jitter: Some(Jitter::Additive { percent: 20 }),
                attempts_max: Some(5),
                overrides: said("3xx: permanent, 4xx: permanent, 429: retry, 5xx: retry, network: retry"),
                ..Layer::default()
            },
        },
        asoasis(
            "asoasis",
            "Two seconds doubled up to five minutes, each wait drawn from nothing up to its whole length; at most 100 \
             attempts and three days. A Retry-After comes first, up to the same five minutes.",
            Layer {
                shape: doubled(secs(2)),
                jitter: Some(Jitter::Full),
                delay_cap: Some(secs(300)),
                ..Layer::default()
            },
        ),
        asoasis(
            "asoasis-debug",
            "Its deterministic schedule for debugging: a table of delays up to a day, then daily, without jitter. The \
             time limit of three days ends it.",
            Layer {
                shape: table(&[60, 120, 240, 480, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 57_600, 86_400]),
                jitter: Some(Jitter::None),
                ..Layer::default()
            },
        ),
        provider(
            "stripe",
            "About 15 retries within 72 hours. The figures are chosen to fit: 30 seconds doubled up to 12 hours.",
            secs(30),
            Layer {
                shape: doubled(secs(30)),
                delay_cap: Some(hours(12)),
                jitter: Some(Jitter::Equal),
                attempts_max: Some(16),
                total_max: Some(hours(72)),
                ..Layer::default()
            },
        ),
        provider(
            "github",
            "Three retries at fixed intervals within about four hours: 80 minutes each. GitHub itself no longer does so; \
             see `github-2026`.",
            secs(10),
            Layer {
                shape: fixed(mins(80)),
                jitter: Some(Jitter::None),
                attempts_max: Some(4),
                total_max: Some(hours(5)),
                ..Layer::default()
            },
        ),
        Preset {
            source: "GitHub Docs, \"Handling failed webhook deliveries\"",
            dated: READ,
            ..provider(
                "github-2026",
                "One attempt: GitHub does not redeliver by itself.",
                secs(10),
                Layer { attempts_max: Some(1), ..Layer::default() },
            )
        },
        provider(
            "shopify",
            "19 retries within 48 hours. The figures are chosen to fit: 30 seconds doubled up to 4 hours. Shopify itself \
             has shortened it since; see `shopify-2024`.",
            secs(5),
            Layer {
                shape: doubled(secs(30)),
                delay_cap: Some(hours(4)),
                jitter: Some(Jitter::Equal),
                attempts_max: Some(20),
                total_max: Some(hours(48)),
                ..Layer::default()
            },
        ),
        Preset {
            source: "Shopify developer changelog, \"Updates to webhook retry mechanism\"",
            dated: "2024-09-10",
            ..provider(
                "shopify-2024",
                "Eight retries over 4 hours. The figures are chosen to fit: 56 seconds doubled.",
                secs(5),
                Layer {
                    shape: doubled(secs(56)),
                    jitter: Some(Jitter::Equal),
                    attempts_max: Some(9),
                    total_max: Some(hours(4)),
                    ..Layer::default()
                },
            )
        },
        provider(
            "twilio",
            "One retry after about 15 seconds.",
            secs(15),
            Layer {
                shape: fixed(secs(15)),
                jitter: Some(Jitter::None),
                attempts_max: Some(2),
                total_max: Some(mins(1)),
                ..Layer::default()
            },
        ),
        provider(
            "sendgrid",
            "Retries for 72 hours, their number is not told. The figures are chosen: one minute doubled up to 4 hours, \
             and the time limit ends it.",
            secs(10),
            Layer {
                shape: doubled(mins(1)),
                delay_cap: Some(hours(4)),
                jitter: Some(Jitter::Equal),
                attempts_max: Some(100),
                total_max: Some(hours(72)),
                ..Layer::default()
            },
        ),
        provider(
            "slack",
            "Three retries within about 30 minutes. The figures are chosen to fit: 4 minutes doubled.",
            secs(5),
            Layer {
                shape: doubled(mins(4)),
                jitter: Some(Jitter::Equal),
                attempts_max: Some(4),
                total_max: Some(mins(30)),
                ..Layer::default()
            },
        ),
        provider(
            "paypal",
            "Increasing intervals for four days, their number is not told. The figures are chosen: from 5 minutes to a \
             day, and the time limit ends it.",
            secs(20),
            Layer {
                shape: table(&[300, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 57_600, 86_400, 86_400]),
                jitter: Some(Jitter::None),
                attempts_max: Some(100),
                total_max: Some(hours(96)),
                ..Layer::default()
            },
        ),
        provider(
            "discord",
            "Five retries within about 30 minutes. The figures are chosen to fit: 50 seconds doubled.",
            secs(10),
            Layer {
                shape: doubled(secs(50)),
                jitter: Some(Jitter::Equal),
                attempts_max: Some(6),
                total_max: Some(mins(30)),
                ..Layer::default()
            },
        ),
    ]
});

fn recuro(name: &'static str, about: &'static str, shape: Option<Shape>, jitter: Jitter) -> Preset {
    Preset {
        name,
        about,
        source: "Recuro, \"Webhook Retry Patterns That Actually Work in Production\"",
        dated: "2026-03-22",
        layer: Layer {
            shape,
            jitter: Some(jitter),
            attempts_max: Some(9),
            retry_after_mode: Some(RetryAfterMode::Override),
            overrides: said("4xx: permanent, 408: retry, 429: retry, 5xx: retry, network: retry"),
            redirects_max: Some(5),
            breaker: Some(BreakerLayer::On {
                failures: Some(5),
                cool_down: Some(mins(5)),
                cool_down_max: Some(mins(5)),
                while_open: Some(WhileOpen::DeadLetter),
            }),
            ..timeout(secs(30))
        },
    }
}

fn asoasis(name: &'static str, about: &'static str, schedule: Layer) -> Preset {
    let Layer { connect, first_byte, total, .. } = timeout(secs(8));
    Preset {
        name,
        about,
        source: "ASOasis, \"Designing resilient REST API webhook retry mechanisms\", without a date",
        dated: READ,
        layer: Layer {
            attempts_max: Some(100),
            total_max: Some(hours(72)),
            retry_after_mode: Some(RetryAfterMode::Override),
            retry_after_cap: schedule.delay_cap,
            overrides: said("404: permanent, network: retry"),
            connect,
            first_byte,
            total,
            ..schedule
        },
    }
}

/// One of the providers in Recuro's table: any answer but 2xx is retried.
fn provider(name: &'static str, about: &'static str, timeout_total: Duration, schedule: Layer) -> Preset {
    let Layer { connect, first_byte, total, .. } = timeout(timeout_total);
    Preset {
        name,
        about,
        source: "Recuro, \"Webhook Retry Patterns That Actually Work in Production\", its table of providers",
        dated: "2026-03-22",
        layer: Layer { overrides: said(NON_2XX), connect, first_byte, total, ..schedule },
    }
}

fn timeout(total: Duration) -> Layer {
    Layer { connect: Some(total.min(secs(5))), first_byte: Some(total), total: Some(total), ..Layer::default() }
}

fn doubled(base: Duration) -> Option<Shape> {
    Some(Shape::Exponential { base, factor: Factor::DOUBLE })
}

fn fixed(interval: Duration) -> Option<Shape> {
    Some(Shape::Fixed { interval })
}

/// The last delay repeats: what ends a preset is its budget.
fn table(seconds: &[u64]) -> Option<Shape> {
    Some(Shape::Table { delays: seconds.iter().copied().map(secs).collect(), then: AfterTable::Repeat })
}

/// Overrides as settings have them: "404: retry, 5xx: permanent".
fn said(text: &str) -> BTreeMap<Subject, Treatment> {
    let entry = |entry: &str| -> Option<(Subject, Treatment)> {
        let (subject, treatment) = entry.split_once(": ")?;
        Some((Subject::parse(subject)?, Treatment::parse(treatment)?))
    };
    text.split(", ").map(|text| entry(text).expect("presets are spelt correctly, and a test reads them all")).collect()
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn mins(minutes: u64) -> Duration {
    Duration::from_mins(minutes)
}

const fn hours(hours: u64) -> Duration {
    Duration::from_hours(hours)
}

const NON_2XX: &str = "1xx: retry, 3xx: retry, 4xx: retry, 5xx: retry, network: retry";

/// When sources without a date of their own were read.
const READ: &str = "2026-11-15";
