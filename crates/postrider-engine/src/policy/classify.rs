//! Tells what one outcome says about the delivery, and by which rule.
//!
//! When in doubt, retry: a message tried once too often is a nuisance, a message given up too early is a loss.

use crate::outcome::{Answer, Fault, Outcome, TimeoutPhase, TlsFault};

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
}

pub fn classify(outcome: &Outcome) -> (Class, Rule) {
    match outcome {
        Outcome::Answered(answer) => classify_answer(answer),
        Outcome::Failed(fault) => classify_fault(fault),
    }
}

fn classify_answer(answer: &Answer) -> (Class, Rule) {
    match answer.status {
        200..=299 => (Class::Delivered, Rule::Success),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16) -> Outcome {
        Outcome::Answered(Answer { status, ..Answer::default() })
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
                assert_eq!(classify(&answered(*status)).0, *expected, "status {status}");
            }
        }
    }

    #[test]
    fn no_answer_is_retried_and_a_doubtful_certificate_on_a_short_leash() {
        for fault in [
            Fault::Dns,
            Fault::Forbidden,
            Fault::Refused,
            Fault::Unreachable,
            Fault::Reset,
            Fault::Tls(TlsFault::Handshake),
            Fault::Tls(TlsFault::Expired),
            Fault::Tls(TlsFault::NotYetValid),
            Fault::Timeout(TimeoutPhase::Connect),
            Fault::Timeout(TimeoutPhase::FirstByte),
            Fault::Timeout(TimeoutPhase::Total),
            Fault::Protocol("not HTTP"),
            Fault::LocalResource,
        ] {
            assert_eq!(classify(&Outcome::Failed(fault.clone())).0, Class::Transient, "{fault:?}");
        }
        for fault in [TlsFault::UnknownIssuer, TlsFault::WrongHost] {
            assert_eq!(classify(&Outcome::Failed(Fault::Tls(fault))).0, Class::Ambiguous, "{fault:?}");
        }
    }

    #[test]
    fn every_status_there_can_be_has_a_class() {
        for status in 0..=u16::MAX {
            classify(&answered(status));
        }
    }
}
