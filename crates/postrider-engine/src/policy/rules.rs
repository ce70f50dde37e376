//! The rules by which one endpoint's deliveries live, and how several levels of settings become one set of rules.
//!
//! The server, the application, the endpoint and the event type may each say something; the nearest one wins, field by
//! field. A level that names a preset starts from that preset and forgets what the levels further away said.

use super::{
    backoff::{AfterTable, Backoff, DEFAULT_DELAYS, Jitter, Shape},
    breaker::{BreakerRules, WhileOpen},
    budget::{Budget, Leash, Progress},
    health::DisableRules,
    overrides::{Overrides, Subject, Treatment},
    presets::Preset,
    retry_after::{RetryAfterMode, RetryAfterRule},
};
use crate::{
    outcome::Timeouts,
    planted::{Bug, planted},
    time::Timestamp,
};
use std::{collections::BTreeMap, time::Duration};

/// Everything that decides how an endpoint is treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What an outcome means and when to try again. An event type may differ in this from its endpoint.
    pub policy: Policy,
    /// `None`: there is no breaker.
    pub breaker: Option<BreakerRules>,
    pub disable: DisableRules,
    pub in_flight_max: InFlightMax,
    pub ordering: Ordering,
    pub timeouts: Timeouts,
    /// Redirects that are followed; none, if 0.
    pub redirects_max: u8,
    /// Besides the headers of Standard Webhooks, which are always there.
    pub signature: Vec<SignatureForm>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            breaker: Some(BreakerRules::default()),
            disable: DisableRules::default(),
            in_flight_max: InFlightMax::default(),
            ordering: Ordering::default(),
            timeouts: Timeouts::default(),
            redirects_max: 0,
            signature: Vec::new(),
        }
    }
}

impl Rules {
    /// The rules that come of all levels together, the furthest first.
    pub fn resolve<'l>(layers: impl IntoIterator<Item = &'l Layer>) -> Self {
        let mut rules = Self::default();
        for layer in layers {
            layer.apply(&mut rules);
        }
        rules
    }

    /// The same as one layer that leaves nothing out, but for the overrides of its levels.
    pub(super) fn spelt_out(&self) -> Layer {
        let Policy { backoff, budget, ambiguous, hold_max, retry_after, overrides: _ } = &self.policy;
        let switch = |on: Option<Duration>| on.map_or(Switch::Off, Switch::On);
        Layer {
            preset: None,
            shape: Some(backoff.shape.clone()),
            delay_cap: Some(backoff.cap),
            jitter: Some(backoff.jitter),
            attempts_max: Some(budget.attempts_max),
            total_max: Some(budget.total_max),
            ambiguous_attempts_max: Some(ambiguous.attempts_max),
            ambiguous_total_max: Some(ambiguous.total_max),
            hold_max: Some(*hold_max),
            retry_after_mode: Some(retry_after.mode),
            retry_after_cap: Some(retry_after.cap),
            overrides: BTreeMap::new(),
            connect: Some(self.timeouts.connect),
            first_byte: Some(self.timeouts.first_byte),
            total: Some(self.timeouts.total),
            redirects_max: Some(self.redirects_max),
            breaker: Some(self.breaker.map_or(BreakerLayer::Off, |rules| BreakerLayer::On {
                failures: Some(rules.failures),
                cool_down: Some(rules.cool_down),
                cool_down_max: Some(rules.cool_down_max),
                while_open: Some(rules.while_open),
            })),
            disable_after: Some(switch(self.disable.failing_for)),
            disable_streak: Some(self.disable.permanent_streak.map_or(Switch::Off, Switch::On)),
            in_flight_max: Some(self.in_flight_max),
            ordering: Some(self.ordering),
            signature: Some(self.signature.clone()),
        }
    }
}

/// The rules of one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub backoff: Backoff,
    pub budget: Budget,
    /// The shorter leash of `Class::Ambiguous`.
    pub ambiguous: Leash,
    /// How long a delivery that has not been tried yet may wait behind a paused, disabled or tripped endpoint.
    pub hold_max: Duration,
    pub retry_after: RetryAfterRule,
    pub overrides: Overrides,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            backoff: Backoff {
                shape: Shape::Table { delays: DEFAULT_DELAYS.to_vec(), then: AfterTable::Repeat },
                cap: Duration::from_hours(24),
                jitter: Jitter::Equal,
            },
            budget: Budget { attempts_max: 10, total_max: Duration::from_hours(96) },
            ambiguous: Leash { attempts_max: 5, total_max: Duration::from_hours(1) },
            hold_max: Duration::from_hours(14 * 24),
            retry_after: RetryAfterRule { mode: RetryAfterMode::Longest, cap: Duration::from_hours(24) },
            overrides: Overrides::default(),
        }
    }
}

impl Policy {
    /// Its time ran out while it waited: no further attempt may start.
    pub fn is_expired(&self, progress: Progress, queued_at: Timestamp, now: Timestamp) -> bool {
        let over_at = progress.give_up_at.unwrap_or_else(|| queued_at.plus(self.hold_max));
        now >= over_at && !planted(Bug::GiveUpIgnored)
    }
}

/// Requests at a time to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightMax(pub usize);

impl Default for InFlightMax {
    fn default() -> Self {
        Self(10)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// Ordering keys are not looked at.
    None,
    /// Deliveries with the same ordering key go one after the other; all others side by side.
    #[default]
    Keyed,
    /// One after the other, all of them.
    Fifo,
}

/// One more header with a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureForm {
    pub style: SignatureStyle,
    pub header: String,
    /// Carries the message's id.
    pub id_header: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureStyle {
    /// `t=<unix>,v1=<hex>` over `<unix>.<body>`.
    Stripe,
    /// `scheme=v1,ts=<unix>,sig=<hex>` over `<unix>.<body>`.
    Scheme,
    /// `sha256=<hex>` over the body.
    GitHub,
}

/// What one level says. What is `None` is left to the levels further away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    pub preset: Option<&'static Preset>,
    pub shape: Option<Shape>,
    pub delay_cap: Option<Duration>,
    pub jitter: Option<Jitter>,
    pub attempts_max: Option<u32>,
    pub total_max: Option<Duration>,
    pub ambiguous_attempts_max: Option<u32>,
    pub ambiguous_total_max: Option<Duration>,
    pub hold_max: Option<Duration>,
    pub retry_after_mode: Option<RetryAfterMode>,
    pub retry_after_cap: Option<Duration>,
    pub overrides: BTreeMap<Subject, Treatment>,
    pub connect: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub total: Option<Duration>,
    pub redirects_max: Option<u8>,
    pub breaker: Option<BreakerLayer>,
    pub disable_after: Option<Switch<Duration>>,
    pub disable_streak: Option<Switch<u32>>,
    pub in_flight_max: Option<InFlightMax>,
    pub ordering: Option<Ordering>,
    pub signature: Option<Vec<SignatureForm>>,
}

impl Layer {
    /// Says what it has to say, over what levels further away have said.
    pub fn apply(&self, rules: &mut Rules) {
        if let Some(preset) = self.preset {
            *rules = Rules::default();
            preset.layer.apply(rules);
        }
        let Rules { policy, breaker, disable, in_flight_max, ordering, timeouts, redirects_max, signature } = rules;
        let Policy { backoff, budget, ambiguous, hold_max, retry_after, overrides } = policy;
        set(&mut backoff.shape, &self.shape);
        set(&mut backoff.cap, &self.delay_cap);
        set(&mut backoff.jitter, &self.jitter);
        set(&mut budget.attempts_max, &self.attempts_max);
        set(&mut budget.total_max, &self.total_max);
        set(&mut ambiguous.attempts_max, &self.ambiguous_attempts_max);
        set(&mut ambiguous.total_max, &self.ambiguous_total_max);
        set(hold_max, &self.hold_max);
        set(&mut retry_after.mode, &self.retry_after_mode);
        set(&mut retry_after.cap, &self.retry_after_cap);
        if !self.overrides.is_empty() {
            overrides.0.insert(0, self.overrides.clone());
        }
        set(&mut timeouts.connect, &self.connect);
        set(&mut timeouts.first_byte, &self.first_byte);
        set(&mut timeouts.total, &self.total);
        set(redirects_max, &self.redirects_max);
        if let Some(layer) = &self.breaker {
            *breaker = layer.over(*breaker);
        }
        if let Some(switch) = self.disable_after {
            disable.failing_for = switch.on();
        }
        if let Some(switch) = self.disable_streak {
            disable.permanent_streak = switch.on();
        }
        set(in_flight_max, &self.in_flight_max);
        set(ordering, &self.ordering);
        set(signature, &self.signature);
    }
}

fn set<T: Clone>(field: &mut T, said: &Option<T>) {
    if let Some(value) = said {
        field.clone_from(value);
    }
}

/// A setting that can also be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch<T> {
    Off,
    On(T),
}

impl<T> Switch<T> {
    pub fn on(self) -> Option<T> {
        match self {
            Self::Off => None,
            Self::On(value) => Some(value),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerLayer {
    Off,
    /// What is `None` comes from the level further away, or from the default where that one has no breaker.
    On {
        failures: Option<u32>,
        cool_down: Option<Duration>,
        cool_down_max: Option<Duration>,
        while_open: Option<WhileOpen>,
    },
}

impl BreakerLayer {
    fn over(&self, further: Option<BreakerRules>) -> Option<BreakerRules> {
        match *self {
            Self::Off => None,
            Self::On { failures, cool_down, cool_down_max, while_open } => {
                let further = further.unwrap_or_default();
                Some(BreakerRules {
                    failures: failures.unwrap_or(further.failures),
                    cool_down: cool_down.unwrap_or(further.cool_down),
                    cool_down_max: cool_down_max.unwrap_or(further.cool_down_max),
                    while_open: while_open.unwrap_or(further.while_open),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::presets, *};

    const MINUTE: Duration = Duration::from_mins(1);

    fn preset(name: &str) -> Layer {
        Layer { preset: Some(presets::find(name).expect(name)), ..Layer::default() }
    }

    #[test]
    fn silence_leaves_the_default() {
        assert_eq!(Rules::resolve([]), Rules::default());
        assert_eq!(Rules::resolve(&[Layer::default(), Layer::default()]), Rules::default());
        assert_eq!(Rules::default().breaker, Some(BreakerRules::default()));
    }

    #[test]
    fn the_nearest_level_wins_field_by_field() {
        let server = Layer { attempts_max: Some(7), total_max: Some(MINUTE), ..Layer::default() };
        let endpoint = Layer { attempts_max: Some(3), redirects_max: Some(5), ..Layer::default() };
        let rules = Rules::resolve([&server, &endpoint]);
        assert_eq!(rules.policy.budget, Budget { attempts_max: 3, total_max: MINUTE });
        assert_eq!(rules.redirects_max, 5);
        assert_eq!(rules.policy.backoff, Policy::default().backoff);
    }

    #[test]
    fn every_field_of_a_layer_arrives() {
        let changed = Rules {
            policy: Policy {
                backoff: Backoff {
                    shape: Shape::Fixed { interval: MINUTE },
                    cap: 2 * MINUTE,
                    jitter: Jitter::Additive { percent: 20 },
                },
                budget: Budget { attempts_max: 3, total_max: 3 * MINUTE },
                ambiguous: Leash { attempts_max: 2, total_max: 4 * MINUTE },
                hold_max: 5 * MINUTE,
                retry_after: RetryAfterRule { mode: RetryAfterMode::Override, cap: 6 * MINUTE },
                overrides: Overrides::default(),
            },
            breaker: Some(BreakerRules {
                failures: 5,
                cool_down: 7 * MINUTE,
                cool_down_max: 8 * MINUTE,
                while_open: WhileOpen::DeadLetter,
            }),
            disable: DisableRules { failing_for: Some(9 * MINUTE), permanent_streak: None },
            in_flight_max: InFlightMax(11),
            ordering: Ordering::Fifo,
            timeouts: Timeouts { connect: MINUTE / 4, first_byte: MINUTE / 3, total: MINUTE / 2 },
            redirects_max: 4,
            signature: vec![SignatureForm {
                style: SignatureStyle::Scheme,
                header: "x-signature".into(),
                id_header: None,
            }],
        };
        assert_eq!(Rules::resolve([&changed.spelt_out()]), changed);
        assert_eq!(Rules::resolve([&changed.spelt_out(), &Rules::default().spelt_out()]), Rules::default());
    }

    #[test]
    fn a_preset_forgets_what_was_said_further_away_and_its_own_level_refines_it() {
        let server = Layer { attempts_max: Some(7), redirects_max: Some(3), ..Layer::default() };
        let endpoint = Layer { total_max: Some(MINUTE), ..preset("webhook-actions") };
        let rules = Rules::resolve([&server, &endpoint]);
        assert_eq!(rules.policy.budget, Budget { attempts_max: 5, total_max: MINUTE });
        assert_eq!(rules.redirects_max, 0);
        let back_to_default = Rules::resolve([&server, &endpoint, &preset("default")]);
        assert_eq!(back_to_default, Rules::default());
    }

    #[test]
    fn overrides_are_kept_level_by_level_the_nearest_first() {
        let said = |status, treatment| BTreeMap::from([(Subject::Status(status), treatment)]);
        let server = Layer { overrides: said(404, Treatment::Retry), ..Layer::default() };
        let endpoint = Layer { overrides: said(404, Treatment::Success), ..Layer::default() };
        let rules = Rules::resolve([&server, &Layer::default(), &endpoint]);
        assert_eq!(rules.policy.overrides.0, [said(404, Treatment::Success), said(404, Treatment::Retry)]);
        let with_preset = Layer { overrides: said(404, Treatment::Success), ..preset("stripe") };
        let levels = Rules::resolve([&server, &with_preset]).policy.overrides.0;
        assert_eq!(levels.len(), 2, "its own and the preset's");
        assert_eq!(levels[0], said(404, Treatment::Success));
    }

    #[test]
    fn a_breaker_is_turned_off_and_on_again() {
        let off = Layer { breaker: Some(BreakerLayer::Off), ..Layer::default() };
        let on = |failures| Layer {
            breaker: Some(BreakerLayer::On { failures, cool_down: None, cool_down_max: None, while_open: None }),
            ..Layer::default()
        };
        assert_eq!(Rules::resolve([&off]).breaker, None);
        assert_eq!(Rules::resolve([&off, &on(None)]).breaker, Some(BreakerRules::default()));
        let five = Some(BreakerRules { failures: 5, ..BreakerRules::default() });
        assert_eq!(Rules::resolve([&on(Some(5)), &on(None)]).breaker, five);
    }

    #[test]
    fn disabling_is_turned_off_and_on_again() {
        let off = Layer { disable_after: Some(Switch::Off), disable_streak: Some(Switch::Off), ..Layer::default() };
        let on = Layer { disable_streak: Some(Switch::On(3)), ..Layer::default() };
        let none = DisableRules { failing_for: None, permanent_streak: None };
        assert_eq!(Rules::resolve([&off]).disable, none);
        assert_eq!(Rules::resolve([&off, &on]).disable, DisableRules { permanent_streak: Some(3), ..none });
    }
}
