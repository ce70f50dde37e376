//! Each preset under a virtual clock, against what its source says: written down here a second time, as plain figures.

use super::*;
use crate::{
    keys::Trigger,
    outcome::{Answer, Fault, Outcome, TimeoutPhase, TlsFault},
    policy::{
        BreakerRules, DeathReason, Next, Progress, Rules, judge,
        preview::{End, preview},
    },
    time::Timestamp,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::ops::RangeInclusive;

struct Expected {
    name: &'static str,
    /// The waits in seconds, before chance; the last one repeats.
    waits: &'static [u64],
    /// What chance may make of each, in percent.
    spread: (u64, u64),
    attempts: RangeInclusive<usize>,
    ends: DeathReason,
    /// Statuses that are retried until the budget ends.
    retried: &'static [u16],
    /// Statuses that get five tries within an hour.
    doubted: &'static [u16],
    /// Statuses that end it at once.
    refused: &'static [u16],
    /// The same for a certificate of another host; all other failures without an answer are retried by every preset.
    wrong_host: Doubt,
    /// What a `Retry-After` of so many seconds makes of the first wait, in seconds; `None`: it ends the delivery.
    wishes: &'static [(u64, Option<(u64, u64)>)],
    /// Connect, first byte, total.
    timeouts: (u64, u64, u64),
}

#[derive(PartialEq)]
enum Doubt {
    Retried,
    ShortLeash,
}

const EVERY_KIND: &[u16] = &[101, 301, 302, 304, 307, 400, 401, 403, 404, 408, 409, 410, 422, 425, 429, 500, 501, 503];

impl Expected {
    fn holds(&self) {
        let preset = find(self.name).expect(self.name);
        let rules = Rules::resolve([&preset.layer]);
        let timeouts = (rules.timeouts.connect, rules.timeouts.first_byte, rules.timeouts.total);
        let (connect, first_byte, total) = self.timeouts;
        assert_eq!(timeouts, (secs(connect), secs(first_byte), secs(total)), "{}", self.name);

        for seed in 0..50 {
            let (waits, end) = self.run(&rules, &status(503), seed);
            self.is_retried_to_the_end("503", &waits, end);
        }
        for code in self.retried {
            let (waits, end) = self.run(&rules, &status(*code), 1);
            self.is_retried_to_the_end(&code.to_string(), &waits, end);
        }
        for fault in [Fault::Dns, Fault::Refused, Fault::Reset, Fault::Timeout(TimeoutPhase::Total)] {
            let (waits, end) = self.run(&rules, &Outcome::Failed(fault.clone()), 2);
            self.is_retried_to_the_end(&format!("{fault:?}"), &waits, end);
        }
        let (waits, end) = self.run(&rules, &Outcome::Failed(Fault::Tls(TlsFault::WrongHost)), 3);
        match self.wrong_host {
            Doubt::Retried => self.is_retried_to_the_end("wrong host", &waits, end),
            Doubt::ShortLeash => assert_eq!((waits.len() + 1, end), (5, Next::Dead(DeathReason::Exhausted))),
        }
        for code in self.doubted {
            let (waits, _) = self.run(&rules, &status(*code), 4);
            assert_eq!(waits.len() + 1, 5, "{} with {code}", self.name);
            assert!(waits.iter().sum::<Duration>() < hours(1));
        }
        for code in self.refused {
            let (waits, end) = self.run(&rules, &status(*code), 5);
            assert_eq!((waits.len(), end), (0, Next::Dead(DeathReason::Permanent)), "{} with {code}", self.name);
        }
        for code in [200, 201, 202, 204, 206, 299] {
            assert_eq!(self.run(&rules, &status(code), 6).1, Next::Delivered, "{} with {code}", self.name);
        }
        for (wish, expected) in self.wishes {
            for seed in 0..20 {
                let answer = Answer { status: 503, retry_after: vec![wish.to_string().into()], ..Answer::default() };
                let (waits, end) = self.run(&rules, &Outcome::Answered(answer), seed);
                match expected {
                    Some((least, most)) => {
                        let fits = (secs(*least)..=secs(*most)).contains(&waits[0]);
                        assert!(fits, "{} waited {:?} when asked for {wish} s", self.name, waits[0]);
                    }
                    None => assert_eq!((waits.len(), end), (0, Next::Dead(DeathReason::Expired)), "{}", self.name),
                }
            }
        }
    }

    fn is_retried_to_the_end(&self, what: &str, waits: &[Duration], end: Next) {
        let name = self.name;
        assert_eq!(end, Next::Dead(self.ends), "{name} with {what}");
        assert!(self.attempts.contains(&(waits.len() + 1)), "{name} with {what}: {} attempts", waits.len() + 1);
        for (index, waited) in waits.iter().enumerate() {
            let nominal = self.waits.get(index).or(self.waits.last()).expect("there are waits");
            let (least, most) = (nominal * 10 * self.spread.0, nominal * 10 * self.spread.1);
            let fits = (Duration::from_millis(least)..=Duration::from_millis(most)).contains(waited);
            assert!(fits, "{name} with {what}: wait {} is {waited:?}, nominally {nominal} s", index + 1);
        }
    }

    /// The waits between the attempts of one delivery, and its end.
    fn run(&self, rules: &Rules, outcome: &Outcome, seed: u64) -> (Vec<Duration>, Next) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut now, mut progress, mut waits) = (Timestamp::from_millis(0), Progress::default(), Vec::new());
        loop {
            let verdict = judge(&rules.policy, Trigger::Scheduled, progress, outcome, (now, now), &mut rng);
            progress = verdict.progress;
            match verdict.next {
                Next::Retry { due, .. } => {
                    waits.push(due.since(now));
                    now = due;
                }
                end @ (Next::Delivered | Next::Dead(_)) => return (waits, end),
                other @ (Next::Nothing | Next::Postponed { .. }) => panic!("unexpected {other:?}"),
            }
        }
    }
}

fn status(status: u16) -> Outcome {
    Outcome::Answered(Answer { status, ..Answer::default() })
}

/// A provider of which no more is known than that it retries whatever is not 2xx.
fn non_2xx(name: &'static str, timeout: u64) -> Expected {
    Expected {
        name,
        waits: &[],
        spread: (50, 100),
        attempts: 1..=1,
        ends: DeathReason::Exhausted,
        retried: EVERY_KIND,
        doubted: &[],
        refused: &[],
        wrong_host: Doubt::Retried,
        wishes: &[],
        timeouts: (timeout.min(5), timeout, timeout),
    }
}

#[test]
fn default_is_the_schedule_of_standard_webhooks() {
    Expected {
        name: "default",
        waits: &[5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400],
        spread: (50, 100),
        attempts: 10..=10,
        ends: DeathReason::Exhausted,
        retried: &[408, 409, 425, 429, 500, 502, 503, 504],
        doubted: &[404],
        refused: &[301, 307, 400, 401, 403, 405, 410, 411, 413, 414, 415, 422, 501],
        wrong_host: Doubt::ShortLeash,
        wishes: &[(0, Some((2, 5))), (600, Some((600, 603))), (200_000, Some((86_400, 86_403)))],
        timeouts: (5, 15, 15),
    }
    .holds();
    assert_eq!(Rules::resolve([&find("default").expect("there is one").layer]), Rules::default());
}

const RECURO: Expected = Expected {
    name: "recuro",
    waits: &[30, 60, 120, 240, 480, 960, 1_920, 3_840],
    spread: (0, 100),
    attempts: 9..=9,
    ends: DeathReason::Exhausted,
    retried: &[408, 429, 500, 501, 502, 503, 504],
    doubted: &[],
    refused: &[302, 400, 401, 403, 404, 409, 410, 422, 425],
    wrong_host: Doubt::Retried,
    wishes: &[(5, Some((5, 5))), (600, Some((600, 600))), (200_000, Some((86_400, 86_400))), (0, Some((0, 30)))],
    timeouts: (5, 30, 30),
};

#[test]
fn recuro_doubles_with_full_jitter() {
    RECURO.holds();
    for name in ["recuro", "recuro-table"] {
        let rules = Rules::resolve([&find(name).expect(name).layer]);
        let breaker =
            BreakerRules { failures: 5, cool_down: mins(5), cool_down_max: mins(5), while_open: WhileOpen::DeadLetter };
        assert_eq!((rules.breaker, rules.redirects_max), (Some(breaker), 5), "{name}");
    }
}

#[test]
fn recuro_table_waits_50_to_100_percent_of_its_table() {
    Expected {
        name: "recuro-table",
        waits: &[10, 30, 120, 600, 1_800, 7_200, 28_800, 86_400],
        spread: (50, 100),
        wishes: &[(7, Some((7, 7))), (600, Some((600, 600))), (0, Some((5, 10)))],
        ..RECURO
    }
    .holds();
}

#[test]
fn formspring_triples_give_or_take_half() {
    Expected {
        name: "formspring",
        waits: &[30, 90, 270, 810, 2_430, 7_290, 21_600],
        spread: (50, 150),
        attempts: 8..=8,
        ends: DeathReason::Exhausted,
        retried: &[500, 501, 502, 503, 504],
        doubted: &[],
        refused: &[301, 307, 400, 401, 403, 404, 408, 409, 410, 422, 425, 429],
        wrong_host: Doubt::Retried,
        wishes: &[(600, Some((600, 630)))],
        timeouts: (30, 60, 60),
    }
    .holds();
    let signature = SignatureForm {
        style: SignatureStyle::Stripe,
        header: "x-formspring-signature".to_owned(),
        id_header: Some("x-formspring-delivery".to_owned()),
    };
    assert_eq!(find("formspring").expect("there is one").layer.signature, Some(vec![signature]));
}

#[test]
fn retries_and_backoff_doubles_up_to_an_hour() {
    Expected {
        name: "retries-and-backoff",
        waits: &[60, 120, 240, 480, 960, 1_920, 3_600],
        spread: (50, 100),
        attempts: 16..=16,
        ends: DeathReason::Exhausted,
        retried: &[301, 404, 405, 408, 409, 415, 418, 425, 429, 500, 501, 502, 503, 504],
        doubted: &[],
        refused: &[400, 401, 403, 410, 422],
        wrong_host: Doubt::Retried,
        wishes: &[(10, Some((30, 60))), (600, Some((600, 630)))],
        timeouts: (5, 15, 15),
    }
    .holds();
    let rules = Rules::resolve([&find("retries-and-backoff").expect("there is one").layer]);
    assert_eq!((rules.in_flight_max, rules.disable.permanent_streak), (InFlightMax(10), Some(100)));
}

#[test]
fn webhook_actions_adds_up_to_a_fifth() {
    Expected {
        name: "webhook-actions",
        waits: &[30, 60, 120, 240],
        spread: (100, 120),
        attempts: 5..=5,
        ends: DeathReason::Exhausted,
        retried: &[429, 500, 501, 502, 503, 504],
        doubted: &[],
        refused: &[301, 302, 307, 400, 401, 403, 404, 408, 409, 410, 422, 425],
        wrong_host: Doubt::Retried,
        wishes: &[(10, Some((30, 36))), (600, Some((600, 606)))],
        timeouts: (5, 15, 15),
    }
    .holds();
}

const ASOASIS: Expected = Expected {
    name: "asoasis",
    waits: &[2, 4, 8, 16, 32, 64, 128, 256, 300],
    spread: (0, 100),
    attempts: 100..=100,
    ends: DeathReason::Exhausted,
    retried: &[408, 409, 425, 429, 500, 502, 503, 504, 599],
    doubted: &[],
    refused: &[301, 400, 401, 403, 404, 410, 415, 422, 501],
    wrong_host: Doubt::Retried,
    wishes: &[(1, Some((1, 1))), (60, Some((60, 60))), (600, Some((300, 300)))],
    timeouts: (5, 8, 8),
};

#[test]
fn asoasis_doubles_up_to_five_minutes() {
    ASOASIS.holds();
}

#[test]
fn asoasis_debug_is_the_same_each_time() {
    Expected {
        name: "asoasis-debug",
        waits: &[60, 120, 240, 480, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 57_600, 86_400],
        spread: (100, 100),
        attempts: 13..=13,
        ends: DeathReason::Expired,
        wishes: &[(7, Some((7, 7))), (600, Some((600, 600)))],
        ..ASOASIS
    }
    .holds();
}

#[test]
fn stripe_makes_15_retries_within_72_hours() {
    Expected {
        waits: &[30, 60, 120, 240, 480, 960, 1_920, 3_840, 7_680, 15_360, 30_720, 43_200],
        attempts: 16..=16,
        wishes: &[(600, Some((600, 615)))],
        ..non_2xx("stripe", 30)
    }
    .holds();
}

#[test]
fn github_makes_three_retries_in_four_hours() {
    Expected {
        waits: &[4_800],
        spread: (100, 100),
        attempts: 4..=4,
        wishes: &[(600, Some((4_800, 4_800))), (6_000, Some((6_000, 6_000))), (18_000, None)],
        ..non_2xx("github", 10)
    }
    .holds();
}

#[test]
fn github_2026_tries_once() {
    Expected { attempts: 1..=1, ..non_2xx("github-2026", 10) }.holds();
}

#[test]
fn shopify_makes_19_retries_within_48_hours() {
    Expected {
        waits: &[30, 60, 120, 240, 480, 960, 1_920, 3_840, 7_680, 14_400],
        attempts: 20..=20,
        wishes: &[(600, Some((600, 615)))],
        ..non_2xx("shopify", 5)
    }
    .holds();
}

#[test]
fn shopify_2024_makes_eight_retries_within_four_hours() {
    Expected {
        waits: &[56, 112, 224, 448, 896, 1_792, 3_584, 7_168],
        attempts: 9..=9,
        wishes: &[(600, Some((600, 628))), (14_400, None)],
        ..non_2xx("shopify-2024", 5)
    }
    .holds();
}

#[test]
fn twilio_makes_one_retry_after_15_seconds() {
    Expected {
        waits: &[15],
        spread: (100, 100),
        attempts: 2..=2,
        wishes: &[(20, Some((20, 20))), (60, None)],
        ..non_2xx("twilio", 15)
    }
    .holds();
}

#[test]
fn sendgrid_goes_on_for_72_hours() {
    Expected {
        waits: &[60, 120, 240, 480, 960, 1_920, 3_840, 7_680, 14_400],
        // By the longest waits and by the shortest.
        attempts: 25..=43,
        ends: DeathReason::Expired,
        wishes: &[(600, Some((600, 630)))],
        ..non_2xx("sendgrid", 10)
    }
    .holds();
}

#[test]
fn slack_makes_three_retries_within_half_an_hour() {
    Expected {
        waits: &[240, 480, 960],
        attempts: 4..=4,
        wishes: &[(600, Some((600, 720))), (1_800, None)],
        ..non_2xx("slack", 5)
    }
    .holds();
}

#[test]
fn paypal_goes_on_for_four_days() {
    Expected {
        waits: &[300, 900, 1_800, 3_600, 7_200, 14_400, 28_800, 43_200, 57_600, 86_400, 86_400],
        spread: (100, 100),
        attempts: 12..=12,
        ends: DeathReason::Expired,
        wishes: &[(600, Some((600, 600)))],
        ..non_2xx("paypal", 20)
    }
    .holds();
}

#[test]
fn discord_makes_five_retries_within_half_an_hour() {
    Expected {
        waits: &[50, 100, 200, 400, 800],
        attempts: 6..=6,
        wishes: &[(600, Some((600, 625)))],
        ..non_2xx("discord", 10)
    }
    .holds();
}

#[test]
fn every_system_of_the_mission_has_its_preset() {
    let names: Vec<&str> = all().iter().map(|preset| preset.name).collect();
    assert_eq!(
        names,
        [
            "default",
            "recuro",
            "recuro-table",
            "formspring",
            "retries-and-backoff",
            "webhook-actions",
            "asoasis",
            "asoasis-debug",
            "stripe",
            "github",
            "github-2026",
            "shopify",
            "shopify-2024",
            "twilio",
            "sendgrid",
            "slack",
            "paypal",
            "discord",
        ]
    );
    assert_eq!(find("nobody"), None);
}

#[test]
fn every_preset_says_where_and_when_it_was_read_and_stands_by_itself() {
    for preset in all() {
        assert!(!preset.about.is_empty() && !preset.source.is_empty(), "{}", preset.name);
        let date: Vec<usize> = preset.dated.split('-').map(str::len).collect();
        assert_eq!(date, [4, 2, 2], "{}", preset.name);
        assert_eq!(preset.layer.preset, None, "{} rests on another", preset.name);
    }
}

/// Requests take time as well: with each of them as slow as its timeout allows, all attempts must still be made.
#[test]
fn slow_failures_do_not_cost_a_preset_its_last_attempt() {
    for preset in all() {
        let rules = Rules::resolve([&preset.layer]);
        let shown = preview(&rules.policy);
        if shown.ends == End::Attempts {
            let last = shown.attempts.last().expect("there is a first attempt");
            let slowness = rules.timeouts.total * (last.attempt - 1);
            assert!(last.latest + slowness < rules.policy.budget.total_max, "{}", preset.name);
        }
    }
}
