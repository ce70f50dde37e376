//! Why a request is not believed, and what whoever set the receiver up can do about it.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the header {name} is missing: is this the form that the sender signs in, and does every proxy in between pass it on?"
    )]
    MissingHeader { name: String },
    #[error("the header {header} does not hold {expected}: is this the form that the sender signs in?")]
    Unreadable { header: String, expected: String },
    #[error(
        "the body was changed before verification: {announced} bytes were announced, {received} received; verify the bytes as they came"
    )]
    BodyChanged { announced: u64, received: u64 },
    #[error(
        "it was signed {} before this machine's clock, and {} at most are allowed: it was kept and sent again, or a clock is wrong",
        shown(*.age), shown(*.allowed)
    )]
    TooOld { age: Duration, allowed: Duration },
    #[error(
        "it was signed {} ahead of this machine's clock, and {} at most are allowed: a clock is wrong",
        shown(*.ahead), shown(*.allowed)
    )]
    TooNew { ahead: Duration, allowed: Duration },
    #[error(
        "no signature matches any of {secrets} secrets: it is another secret, or the body is not the bytes that were signed (parsed and written again, or decoded)"
    )]
    NoMatch { secrets: usize },
    #[error("the sender signs where it sends to, and that is not known here")]
    UnknownUrl,
}

impl Refusal {
    pub(super) fn unreadable_time(header: &str) -> Self {
        Self::Unreadable { header: header.to_owned(), expected: "a time in unix seconds".to_owned() }
    }

    pub(super) fn untimely(signed_at: i64, now: i64, allowed: Duration) -> Self {
        let apart = Duration::from_secs(now.abs_diff(signed_at));
        if signed_at < now { Self::TooOld { age: apart, allowed } } else { Self::TooNew { ahead: apart, allowed } }
    }
}

fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
