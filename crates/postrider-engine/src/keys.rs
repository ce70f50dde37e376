//! The integer keys by which everything is stored. They grow with time, so that "newer" is "greater".

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
