//! Enums as the small integers that stand for them in a row. A code is never reused for something else.

use super::Unreadable;
use crate::TaskStatus;
use postrider_engine::{
    Trigger,
    lanes::HeldBy,
    policy::{Class, DeathReason, DisableReason, Rule},
};

/// Where a waiting row stands.
///
/// Each place is a queue of its own in the index of due times. A load under an order reads the front only, so that a
/// million rows behind one that is not due cost it nothing and hide nobody; without an order it reads both. FIFO lanes
/// follow the primary key instead, whatever the ordering keys say. That the places are right is up to
/// `settle::start_waiting` and `settle::remove_waiting`, through which every row comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has no ordering key, or is the first of its key.
    Front,
    /// An earlier message of the same key waits too.
    Behind,
    /// A resend, which no order binds.
    Beside,
}

impl Place {
    pub fn code(self) -> i64 {
        match self {
            Self::Front => 0,
            Self::Behind => 1,
            Self::Beside => 2,
        }
    }
}

/// Pairs each variant with its code, so that writing and reading cannot drift apart.
macro_rules! codes {
    ($kind:ty, $encode:ident, $decode:ident, { $($variant:pat => $value:expr, $code:literal;)+ }) => {
        pub fn $encode(value: $kind) -> i64 {
            match value { $($variant => $code,)+ }
        }

        pub fn $decode(code: i64) -> Result<$kind, Unreadable> {
            match code {
                $($code => Ok($value),)+
                other => Err(Unreadable(format!("{other} stands for no {}", stringify!($kind)))),
            }
        }
    };
    ($kind:ident, $encode:ident, $decode:ident, { $($variant:ident = $code:literal),+ $(,)? }) => {
        codes!($kind, $encode, $decode, { $($kind::$variant => $kind::$variant, $code;)+ });
    };
}

codes!(Trigger, trigger_code, trigger_of, { Scheduled = 0, Manual = 1 });

codes!(Class, class_code, class_of, {
    Delivered = 0,
    Transient = 1,
    Ambiguous = 2,
    Permanent = 3,
    Gone = 4,
});

codes!(Rule, rule_code, rule_of, {
    Success = 0,
    AskedToWait = 1,
    ServerError = 2,
    NotFound = 3,
    Gone = 4,
    Redirect = 5,
    ClientError = 6,
    NotImplemented = 7,
    ProtocolSwitch = 8,
    Dns = 9,
    ForbiddenAddress = 10,
    Connection = 11,
    Certificate = 12,
    Handshake = 13,
    Timeout = 14,
    NotHttp = 15,
    LocalResource = 16,
    Override = 17,
    AbortAsked = 18,
    RedirectRefused = 19,
    NoToken = 20,
});

codes!(DeathReason, death_code, death_of, {
    Permanent = 0,
    Exhausted = 1,
    Expired = 2,
    EndpointGone = 3,
    Cancelled = 4,
    Breaker = 5,
});

codes!(DisableReason, disable_code, disable_of, {
    Manual = 0,
    Gone = 1,
    Failing = 2,
    Quarantined = 3,
    Asked = 4,
});

codes!(HeldBy, held_code, held_of, {
    Slots = 0,
    Rate = 1,
    AppRate = 2,
    Breaker = 3,
    Pause = 4,
    Order = 5,
    Queue = 6,
});

codes!(TaskStatus, status_code, status_of, { Running = 0, Finished = 1, Cancelled = 2 });
