//! A delivery from its first attempt to its end, under any rules: it ends within its budget, never comes back before
//! the receiver asked for it, and is charged for nothing that was not the receiver's doing.

use super::draws::Draws;
use postrider_engine::{
    Answer, Control, Fault, Outcome, TimeoutPhase, Timestamp, TlsFault, Trigger,
    policy::{Class, DeathReason, Next, Progress, Rule, judge, overrides::Overrides, retry_after::RetryAfterMode},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let mut rng = ChaCha8Rng::seed_from_u64(draws.any());
    let policy = draws.policy();
    let mut now = draws.timestamp();
    let mut progress = Progress::default();
    for _ in 0..24 {
        let outcome = outcome(&mut draws);
        let trigger = if draws.below(8) == 0 { Trigger::Manual } else { Trigger::Scheduled };
        let (started, ended) = (now, now.plus(Duration::from_millis(u64::from(draws.any::<u16>()))));
        let verdict = judge(&policy, trigger, progress, &outcome, (started, ended), &mut rng);
        let after = verdict.progress;

        assert_eq!(verdict.class == Class::Delivered, verdict.next == Next::Delivered, "{verdict:?}");
        if let Outcome::Failed(_) = outcome {
            assert_ne!(verdict.class, Class::Delivered, "no answer is no success: {verdict:?}");
        }
        if policy.overrides == Overrides::default() {
            assert_ne!(verdict.rule, Rule::Override);
        }
        if outcome == Outcome::Failed(Fault::LocalResource) {
            assert_eq!(after, progress, "charged to nobody");
            assert!(matches!(verdict.next, Next::Postponed { due } if due >= ended));
            continue;
        }
        assert_eq!(after.attempts, progress.attempts.saturating_add(1));
        assert!(progress.give_up_at.is_none() || after.give_up_at == progress.give_up_at, "the end never moves");
        let give_up_at = after.give_up_at.expect("fixed by the first attempt");
        assert!(after.ambiguous <= progress.ambiguous.saturating_add(1));
        match verdict.next {
            Next::Delivered => return,
            Next::Nothing => assert_eq!(trigger, Trigger::Manual),
            Next::Postponed { .. } => panic!("only for want of something of our own: {verdict:?}"),
            Next::Dead(reason) => {
                assert_eq!(trigger, Trigger::Scheduled);
                match reason {
                    DeathReason::Permanent => assert!(matches!(verdict.class, Class::Permanent | Class::Gone)),
                    DeathReason::Exhausted | DeathReason::Expired => {
                        assert!(matches!(verdict.class, Class::Transient | Class::Ambiguous));
                    }
                    DeathReason::EndpointGone | DeathReason::Cancelled | DeathReason::Breaker => panic!("{reason:?}"),
                }
                return;
            }
            Next::Retry { due, delay } => {
                assert_eq!(trigger, Trigger::Scheduled);
                assert!(matches!(verdict.class, Class::Transient | Class::Ambiguous), "{verdict:?}");
                assert!(ended <= due && due < give_up_at, "{verdict:?}");
                assert!(after.attempts < policy.budget.attempts_max, "{verdict:?}");
                assert!(delay.backoff <= policy.backoff.cap, "{verdict:?}");
                assert!(delay.jitter <= policy.backoff.cap, "{verdict:?}");
                if let Some(wish) = delay.retry_after {
                    assert!(wish <= policy.retry_after.cap, "{verdict:?}");
                    assert!(due >= ended.plus(wish), "earlier than was asked for: {verdict:?}");
                }
                if delay.retry_after.is_none() || policy.retry_after.mode == RetryAfterMode::Longest {
                    assert!(due >= ended.plus(delay.jitter), "{verdict:?}");
                }
                if verdict.class == Class::Ambiguous {
                    assert!(after.ambiguous < policy.ambiguous.attempts_max, "{verdict:?}");
                    let since = after.ambiguous_since.expect("fixed by the first one");
                    assert!(due < since.plus(policy.ambiguous.total_max), "{verdict:?}");
                }
                assert!(!policy.is_expired(after, started, ended), "{verdict:?}");
                now = due;
            }
        }
        progress = if trigger == Trigger::Manual { progress } else { after };
        now = now.max(ended).max(Timestamp::from_millis(i64::MIN + 1));
    }
}

fn outcome(draws: &mut Draws<'_>) -> Outcome {
    if draws.below(3) == 0 {
        return Outcome::Failed(draws.one_of(&[
            Fault::Dns,
            Fault::Forbidden,
            Fault::Refused,
            Fault::Unreachable,
            Fault::Reset,
            Fault::Tls(TlsFault::UnknownIssuer),
            Fault::Tls(TlsFault::WrongHost),
            Fault::Tls(TlsFault::Expired),
            Fault::Tls(TlsFault::NotYetValid),
            Fault::Tls(TlsFault::Handshake),
            Fault::Timeout(TimeoutPhase::Connect),
            Fault::Timeout(TimeoutPhase::FirstByte),
            Fault::Timeout(TimeoutPhase::Total),
            Fault::Protocol("anything"),
            Fault::LocalResource,
        ]));
    }
    let usual = draws.one_of(&[200, 204, 301, 308, 400, 404, 408, 410, 429, 500, 501, 503]);
    let wishes = draws.several(2, |draws| match draws.below(3) {
        0 => draws.any::<u16>().to_string().into_bytes(),
        1 => draws.any::<u64>().to_string().into_bytes(),
        _ => draws.text().into_bytes(),
    });
    Outcome::Answered(Answer {
        status: if draws.any() { usual } else { draws.any() },
        retry_after: wishes,
        location: None,
        control: draws.one_of(&[None, None, None, Some(Control::Disable), Some(Control::AbortMessage)]),
        redirect_refused: draws.below(8) == 0,
    })
}
