//! What became of an effect that may happen once only.

/// What [`process`](crate::Inbox::process) has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processed<T> {
    /// The effect is in the caller's transaction, and the record of it, too: both or neither are committed.
    Ran(T),
    /// The effect of this event was committed before. Nothing was called.
    SeenBefore,
}

impl<T> Processed<T> {
    pub fn ran(self) -> Option<T> {
        match self {
            Self::Ran(value) => Some(value),
            Self::SeenBefore => None,
        }
    }
}
