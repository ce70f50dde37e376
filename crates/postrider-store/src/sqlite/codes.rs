//! Enums as the small integers that stand for them in a row. A code is never reused for something else.

use postrider_engine::{
    Trigger,
    policy::{Class, DeathReason, Rule},
};
use rusqlite::types::{FromSqlError, FromSqlResult};

/// Pairs each variant with its code, so that writing and reading cannot drift apart.
macro_rules! codes {
    ($kind:ty, $encode:ident, $decode:ident, { $($variant:pat => $value:expr, $code:literal;)+ }) => {
        pub fn $encode(value: $kind) -> i64 {
            match value { $($variant => $code,)+ }
        }

        pub fn $decode(code: i64) -> FromSqlResult<$kind> {
            match code {
                $($code => Ok($value),)+
                other => Err(FromSqlError::OutOfRange(other)),
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
});

codes!(DeathReason, death_code, death_of, {
    Permanent = 0,
    Exhausted = 1,
    Expired = 2,
    EndpointGone = 3,
});
