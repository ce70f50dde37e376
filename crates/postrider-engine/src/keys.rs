//! The integer keys by which everything is stored. They grow with time, so that "newer" is "greater".

use crate::time::Timestamp;

/// Keys carry the millisecond at which they were made, above 21 bits that tell those of one millisecond apart.
const SEQUENCE_BITS: u32 = 21;

/// The smallest key of a moment. Moments that no key can carry are brought to the nearest that one can.
pub fn first_key_at(at: Timestamp) -> i64 {
    at.as_millis().clamp(0, i64::MAX >> SEQUENCE_BITS) << SEQUENCE_BITS
}

pub fn time_of_key(key: i64) -> Timestamp {
    Timestamp::from_millis(key >> SEQUENCE_BITS)
}

/// Declares a key type: a positive integer that must not be mixed up with one of another kind.
macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i64);

        impl $name {
            pub const fn new(raw: i64) -> Self {
                Self(raw)
            }

            pub const fn raw(self) -> i64 {
                self.0
            }
        }
    };
}

key!(
    /// An application: a consumer of events.
    AppKey
);
key!(
    /// An endpoint: a URL that an application subscribed. Also names the endpoint's lane.
    EndpointKey
);
key!(
    /// A message: one event sent to an application.
    MessageKey
);
key!(
    /// An attempt: one request of one delivery.
    AttemptKey
);

key!(
    /// Which deliveries of a lane must keep their order: a hash of the ordering key. Two keys with the same hash merely
    /// wait for one another.
    OrderKey
);

impl OrderKey {
    /// FNV-1a. It is stored, so that it must be the same in every version.
    pub fn of(ordering_key: &str) -> Self {
        let hash = ordering_key
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Self(hash.cast_signed())
    }
}

/// One message owed to one endpoint, for one cause.
///
/// A delivery on its schedule and a resend that a person asked for may be under way at the same time;
/// they are told apart by what triggered them and never touch one another's schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId {
    pub endpoint: EndpointKey,
    pub message: MessageKey,
    pub trigger: Trigger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    Scheduled,
    Manual,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn moments_that_no_key_can_carry_are_brought_to_the_nearest() {
        assert_eq!(first_key_at(Timestamp::from_millis(-1)), 0);
        assert_eq!(first_key_at(Timestamp::from_millis(i64::MIN)), 0);
        let latest = first_key_at(Timestamp::from_millis(i64::MAX));
        assert!(latest > 0);
        assert_eq!(first_key_at(time_of_key(latest)), latest);
    }

    /// These are stored, so that they must be the same in every version. The hashes are FNV's own test vectors.
    #[test]
    fn the_hash_of_an_ordering_key_never_changes() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325_u64), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(OrderKey::of(text).raw(), hash.cast_signed(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_key_tells_its_time_and_grows_with_it(
            earlier in 0..1i64 << 42, later in 0..1i64 << 42, sequence in 0..1i64 << SEQUENCE_BITS,
        ) {
            let [earlier, later] = [earlier.min(later), earlier.max(later)].map(Timestamp::from_millis);
            prop_assert_eq!(time_of_key(first_key_at(earlier) + sequence), earlier);
            prop_assert!(first_key_at(earlier) <= first_key_at(later));
            prop_assert!(earlier == later || first_key_at(earlier) + sequence < first_key_at(later));
        }
    }
}
