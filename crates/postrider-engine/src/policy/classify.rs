//! Tells what one outcome says about the delivery, and by which rule.
//!
//! When in doubt, retry: a message tried once too often is a nuisance, a message given up too early is a loss.

use super::overrides::{Overrides, Treatment};
use crate::outcome::{Answer, Control, Fault, Outcome, TimeoutPhase, TlsFault};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Delivered,
    /// The trouble is likely to pass.
    Transient,
    /// It may pass or it may be a wrong address: worth a few tries, not four days of them.
    Ambiguous,
    /// The same request would be refused again.
    Permanent,
    /// The receiver says that this endpoint is no more (410): permanent, and the endpoint is paused.
    Gone,
}

/// Which rule chose the class. Kept with every attempt, so that "why did it stop?" has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    Success,
    /// 408, 409, 425 and 429: the receiver asks for another time.
    AskedToWait,
    ServerError,
    NotFound,
    Gone,
    Redirect,
    ClientError,
    NotImplemented,
    /// A final answer of 1xx: the receiver wants to speak another protocol.
    ProtocolSwitch,
    Dns,
    ForbiddenAddress,
    Connection,
    Certificate,
    Handshake,
    Timeout,
    NotHttp,
    LocalResource,
    /// The endpoint's owner, or someone further away, said how this outcome is to be taken.
    Override,
    /// The receiver asked us to end this delivery (`webhook-delivery: abort-message`).
    AbortAsked,
    /// More redirects than are followed, or one that must not be.
    RedirectRefused,
    /// No access token could be had, and without one the receiver is not called.
    NoToken,
}

pub fn classify(outcome: &Outcome, overrides: &Overrides) -> (Class, Rule) {
    let (class, rule) = match outcome {
        Outcome::Answered(answer) => classify_answer(answer),
        Outcome::Failed(fault) => classify_fault(fault),
    };
    // Our own shortage is nothing that a receiver's owner could speak about; the other two must not be retried whatever
    // is set: one was asked for in so many words, the other would go in a circle.
    if matches!(rule, Rule::LocalResource | Rule::AbortAsked | Rule::RedirectRefused) {
        return (class, rule);
    }
    let Some(treatment) = overrides.treatment(outcome, (class, rule)) else { return (class, rule) };
    let (class, rule) = treated(treatment, (class, rule));
    // A 2xx that someone calls a failure: what the receiver asked for in that case holds.
    if class != Class::Delivered && asks_to_abort(outcome) {
        return (Class::Permanent, Rule::AbortAsked);
    }
    (class, rule)
}

fn asks_to_abort(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(Answer { control: Some(Control::AbortMessage), .. }))
}

/// Where an override says no more than the rule did, the rule keeps its name: "retry 4xx" leaves a 429 one that asks us
/// to wait, and "4xx is permanent" leaves a 410 one that pauses the endpoint.
fn treated(treatment: Treatment, (class, rule): (Class, Rule)) -> (Class, Rule) {
    match (treatment, class) {
        (Treatment::Success, Class::Delivered)
        | (Treatment::Retry, Class::Transient)
        | (Treatment::Permanent, Class::Permanent | Class::Gone) => (class, rule),
        (Treatment::Success, Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone) => {
            (Class::Delivered, Rule::Override)
        }
        (Treatment::Retry, Class::Delivered | Class::Ambiguous | Class::Permanent | Class::Gone) => {
            (Class::Transient, Rule::Override)
        }
        (Treatment::Permanent, Class::Delivered | Class::Transient | Class::Ambiguous) => {
            (Class::Permanent, Rule::Override)
        }
    }
}

fn classify_answer(answer: &Answer) -> (Class, Rule) {
    match answer.status {
        200..=299 => (Class::Delivered, Rule::Success),
        // The header is more exact than any status: it speaks of this message, a 410 of the endpoint.
        _ if answer.control == Some(Control::AbortMessage) => (Class::Permanent, Rule::AbortAsked),
        _ if answer.redirect_refused => (Class::Permanent, Rule::RedirectRefused),
        408 | 409 | 425 | 429 => (Class::Transient, Rule::AskedToWait),
        404 => (Class::Ambiguous, Rule::NotFound),
        410 => (Class::Gone, Rule::Gone),
        501 => (Class::Permanent, Rule::NotImplemented),
        0..=199 => (Class::Permanent, Rule::ProtocolSwitch),
        300..=399 => (Class::Permanent, Rule::Redirect),
        400..=499 => (Class::Permanent, Rule::ClientError),
        // 600 and above exist only by mistake, and a mistake is more like a server's error than a refusal.
        500.. => (Class::Transient, Rule::ServerError),
    }
}

fn classify_fault(fault: &Fault) -> (Class, Rule) {
    match fault {
        Fault::Dns => (Class::Transient, Rule::Dns),
        // Judged again at each try, because the name may point elsewhere by then.
        Fault::Forbidden => (Class::Transient, Rule::ForbiddenAddress),
        Fault::Refused | Fault::Unreachable | Fault::Reset => (Class::Transient, Rule::Connection),
        Fault::Tls(TlsFault::UnknownIssuer | TlsFault::WrongHost) => (Class::Ambiguous, Rule::Certificate),
        Fault::Tls(TlsFault::Expired | TlsFault::NotYetValid) => (Class::Transient, Rule::Certificate),
        Fault::Tls(TlsFault::Handshake) => (Class::Transient, Rule::Handshake),
        Fault::Timeout(TimeoutPhase::Connect | TimeoutPhase::FirstByte | TimeoutPhase::Total) => {
            (Class::Transient, Rule::Timeout)
        }
        Fault::Protocol(_) => (Class::Transient, Rule::NotHttp),
        Fault::LocalResource => (Class::Transient, Rule::LocalResource),
        Fault::NoToken => (Class::Transient, Rule::NoToken),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::overrides::Subject, *};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn answered(status: u16) -> Outcome {
        Outcome::Answered(Answer { status, ..Answer::default() })
    }

    fn plain(outcome: &Outcome) -> (Class, Rule) {
        classify(outcome, &Overrides::default())
    }

    /// Levels of settings, the nearest first, as a person would write them: "404: retry, network: permanent".
    fn overrides(layers: &[&str]) -> Overrides {
        let layer = |text: &&str| {
            text.split(", ")
                .map(|entry| {
                    let (subject, treatment) = entry.split_once(": ").expect("a subject and a treatment");
                    (Subject::parse(subject).expect(subject), Treatment::parse(treatment).expect(treatment))
                })
                .collect::<BTreeMap<_, _>>()
        };
        Overrides(layers.iter().map(layer).collect())
    }

    fn every_fault() -> Vec<Fault> {
        let tls = [
            TlsFault::UnknownIssuer,
            TlsFault::WrongHost,
            TlsFault::Expired,
            TlsFault::NotYetValid,
            TlsFault::Handshake,
        ];
        let timeouts = [TimeoutPhase::Connect, TimeoutPhase::FirstByte, TimeoutPhase::Total];
        let others = [
            Fault::Dns,
            Fault::Forbidden,
            Fault::Refused,
            Fault::Unreachable,
            Fault::Reset,
            Fault::Protocol("not HTTP"),
            Fault::LocalResource,
            Fault::NoToken,
        ];
        others.into_iter().chain(tls.map(Fault::Tls)).chain(timeouts.map(Fault::Timeout)).collect()
    }

    #[test]
    fn a_status_tells_what_to_do_next() {
        use Class::*;
        let table: &[(&[u16], Class)] = &[
            (&[200, 201, 202, 204, 226, 299], Delivered),
            (&[408, 409, 425, 429, 500, 502, 503, 504, 511, 599, 600, 999], Transient),
            (&[404], Ambiguous),
            (&[400, 401, 402, 403, 405, 406, 411, 413, 414, 415, 418, 422, 451, 499, 501], Permanent),
            (&[300, 301, 302, 303, 304, 307, 308, 399], Permanent),
            (&[100, 101, 199], Permanent),
            (&[410], Gone),
        ];
        for (statuses, expected) in table {
            for status in *statuses {
                assert_eq!(plain(&answered(*status)).0, *expected, "status {status}");
            }
        }
    }

    #[test]
    fn no_answer_is_retried_and_a_doubtful_certificate_on_a_short_leash() {
        for fault in every_fault() {
            let doubtful = matches!(fault, Fault::Tls(TlsFault::UnknownIssuer | TlsFault::WrongHost));
            let expected = if doubtful { Class::Ambiguous } else { Class::Transient };
            assert_eq!(plain(&Outcome::Failed(fault.clone())).0, expected, "{fault:?}");
        }
    }

    #[test]
    fn every_status_there_can_be_has_a_class() {
        for status in 0..=u16::MAX {
            plain(&answered(status));
        }
    }

    #[test]
    fn an_override_moves_a_status_to_any_class() {
        for (said, status, expected) in [
            ("404: retry", 404, (Class::Transient, Rule::Override)),
            ("404: success", 404, (Class::Delivered, Rule::Override)),
            ("404: permanent", 404, (Class::Permanent, Rule::Override)),
            ("503: permanent", 503, (Class::Permanent, Rule::Override)),
            ("409: success", 409, (Class::Delivered, Rule::Override)),
            ("202: retry", 202, (Class::Transient, Rule::Override)),
            ("2xx: permanent", 204, (Class::Permanent, Rule::Override)),
            ("3xx: retry", 302, (Class::Transient, Rule::Override)),
            ("410: retry", 410, (Class::Transient, Rule::Override)),
            ("410: success", 410, (Class::Delivered, Rule::Override)),
            ("404: retry", 405, (Class::Permanent, Rule::ClientError)),
            ("ambiguous: permanent", 404, (Class::Permanent, Rule::Override)),
            ("ambiguous: permanent", 503, (Class::Transient, Rule::ServerError)),
        ] {
            assert_eq!(classify(&answered(status), &overrides(&[said])), expected, "{status} with {said}");
        }
    }

    #[test]
    fn an_override_that_changes_nothing_leaves_the_rule_its_name() {
        for (said, status, expected) in [
            ("410: permanent", 410, (Class::Gone, Rule::Gone)),
            ("4xx: permanent", 410, (Class::Gone, Rule::Gone)),
            ("4xx: retry", 429, (Class::Transient, Rule::AskedToWait)),
            ("4xx: permanent", 400, (Class::Permanent, Rule::ClientError)),
            ("2xx: success", 200, (Class::Delivered, Rule::Success)),
        ] {
            assert_eq!(classify(&answered(status), &overrides(&[said])), expected, "{status} with {said}");
        }
    }

    #[test]
    fn the_more_exact_word_counts_within_a_level_and_the_nearest_level_before_all() {
        let class = |layers: &[&str], outcome: &Outcome| classify(outcome, &overrides(layers)).0;
        let wrong_host = Outcome::Failed(Fault::Tls(TlsFault::WrongHost));
        assert_eq!(class(&["404: success, 4xx: permanent, ambiguous: retry"], &answered(404)), Class::Delivered);
        assert_eq!(class(&["4xx: permanent, ambiguous: retry"], &answered(404)), Class::Permanent);
        assert_eq!(class(&["certificate: permanent, network: retry"], &wrong_host), Class::Permanent);
        assert_eq!(class(&["network: retry, ambiguous: permanent"], &wrong_host), Class::Transient);
        assert_eq!(class(&["ambiguous: permanent"], &wrong_host), Class::Permanent);
        assert_eq!(class(&["4xx: retry", "404: permanent"], &answered(404)), Class::Transient, "nearer");
        assert_eq!(
            class(&["5xx: permanent", "404: permanent"], &answered(404)),
            Class::Permanent,
            "the nearer is silent"
        );
    }

    #[test]
    fn faults_are_spoken_of_by_the_rule_that_judged_them() {
        for (word, fault) in [
            ("dns", Fault::Dns),
            ("connection", Fault::Refused),
            ("connection", Fault::Unreachable),
            ("connection", Fault::Reset),
            ("certificate", Fault::Tls(TlsFault::Expired)),
            ("certificate", Fault::Tls(TlsFault::UnknownIssuer)),
            ("handshake", Fault::Tls(TlsFault::Handshake)),
            ("timeout", Fault::Timeout(TimeoutPhase::FirstByte)),
            ("protocol", Fault::Protocol("not HTTP")),
            ("forbidden-address", Fault::Forbidden),
        ] {
            let said = overrides(&[&format!("{word}: permanent")]);
            let judged = classify(&Outcome::Failed(fault.clone()), &said);
            assert_eq!(judged, (Class::Permanent, Rule::Override), "{word} for {fault:?}");
        }
    }

    #[test]
    fn nothing_makes_a_success_of_no_answer() {
        let every_word = super::super::overrides::WORDS.map(|(_, subject)| (subject, Treatment::Success));
        let said = Overrides(vec![BTreeMap::from(every_word)]);
        for fault in every_fault() {
            let outcome = Outcome::Failed(fault);
            assert_eq!(classify(&outcome, &said), plain(&outcome));
        }
    }

    #[test]
    fn our_own_shortage_cannot_be_overridden() {
        let outcome = Outcome::Failed(Fault::LocalResource);
        for said in ["network: permanent", "network: retry"] {
            assert_eq!(classify(&outcome, &overrides(&[said])), (Class::Transient, Rule::LocalResource));
        }
        let by_rule = BTreeMap::from([(Subject::Fault(Rule::LocalResource), Treatment::Permanent)]);
        assert_eq!(classify(&outcome, &Overrides(vec![by_rule])), (Class::Transient, Rule::LocalResource));
    }

    #[test]
    fn a_receiver_that_asks_to_end_a_delivery_is_obeyed_unless_it_took_it() {
        let said = overrides(&["3xx: retry, 4xx: retry, 5xx: success"]);
        for status in [101, 302, 404, 410, 429, 503, 999] {
            let answer = Answer { status, control: Some(Control::AbortMessage), ..Answer::default() };
            let judged = classify(&Outcome::Answered(answer), &said);
            assert_eq!(judged, (Class::Permanent, Rule::AbortAsked), "status {status}");
        }
        let taken = Answer { status: 200, control: Some(Control::AbortMessage), ..Answer::default() };
        let taken = Outcome::Answered(taken);
        assert_eq!(plain(&taken), (Class::Delivered, Rule::Success));
        assert_eq!(classify(&taken, &overrides(&["2xx: success"])), (Class::Delivered, Rule::Success));
        assert_eq!(classify(&taken, &overrides(&["2xx: retry"])), (Class::Permanent, Rule::AbortAsked));
        let disabling = Answer { status: 503, control: Some(Control::Disable), ..Answer::default() };
        assert_eq!(plain(&Outcome::Answered(disabling)), (Class::Transient, Rule::ServerError));
    }

    #[test]
    fn a_refused_redirect_is_not_retried_whatever_is_set() {
        let answer = Answer { status: 308, redirect_refused: true, ..Answer::default() };
        let judged = classify(&Outcome::Answered(answer), &overrides(&["308: retry, 3xx: success"]));
        assert_eq!(judged, (Class::Permanent, Rule::RedirectRefused));
    }

    proptest! {
        #[test]
        fn silent_levels_change_nothing(status: u16, silent in 0..4usize) {
            let said = Overrides(vec![BTreeMap::new(); silent]);
            prop_assert_eq!(classify(&answered(status), &said), plain(&answered(status)));
        }
    }
}
