//! Faults that are planted on purpose, to see whether the simulator finds them.
//!
//! A checker that has never found anything proves nothing by passing. Each of these is a mistake that somebody could
//! make, at the place where it would be made. Without the feature `planted`, which only the simulator asks for, none
//! can be switched on and nothing is left of them in the program.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal,)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        impl Bug {
            pub const ALL: &[Self] = &[$(Self::$bug),+];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }

            /// What is wrong with it, in a sentence.
            pub fn story(self) -> &'static str {
                match self {
                    $(Self::$bug => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    // When to try, and when to stop.
    /// One attempt more than the budget allows.
    OneAttemptTooMany = "one-attempt-too-many",
    /// Chance is taken off what the receiver asked for.
    JitterBelowRetryAfter = "jitter-below-retry-after",
    /// What the receiver asked for is forgotten.
    RetryAfterIgnored = "retry-after-ignored",
    /// The wait between two attempts is half of the shortest.
    BackoffHalved = "backoff-halved",
    /// The wait between two attempts is twice the longest.
    BackoffDoubled = "backoff-doubled",
    /// Nobody looks whether the time to give up has come.
    GiveUpIgnored = "give-up-ignored",
    /// The time to give up moves on with every attempt.
    GiveUpMovesOn = "give-up-moves-on",
    /// A refusal for good is tried again.
    PermanentRetried = "permanent-retried",
    /// A server's error counts as delivered.
    ErrorTakenForSuccess = "error-taken-for-success",
    /// A success counts as an error.
    SuccessTakenForError = "success-taken-for-error",
    /// What our own machine lacked is charged to the delivery.
    ShortageCharged = "shortage-charged",
    /// Trouble of our own between claim and record costs an attempt.
    TroubleCharged = "trouble-charged",

    // Breakers.
    /// A half-open breaker lets two probes through.
    TwoProbes = "two-probes",
    /// A breaker closes when something succeeds that was sent before it opened.
    ClosedByLateSuccess = "closed-by-late-success",
    /// A breaker lets requests through before its time is up.
    OpenTooShort = "open-too-short",
    /// Breakers are closed after a start.
    BreakerForgotten = "breaker-forgotten",
    /// Trouble of our own opens the breaker.
    ShortageTripsBreaker = "shortage-trips-breaker",

    // Limits.
    /// One request at a time more than allowed.
    OneInFlightTooMany = "one-in-flight-too-many",
    /// A rate limit is full again after a start or a take-over.
    RateRefilled = "rate-refilled",
    /// An endpoint's rate is not spent.
    RateNotSpent = "rate-not-spent",
    /// An application's rate is not spent.
    AppRateNotSpent = "app-rate-not-spent",

    // Order.
    /// What stands behind a delivery that is to be retried goes before it.
    OvertakenByRetry = "overtaken-by-retry",
    /// What is new goes before the rows of its key that were there at the start.
    OvertakenAfterCrash = "overtaken-after-crash",
    /// The rows of a key are not looked at in the order of their messages.
    NewestOfKeyFirst = "newest-of-key-first",
    /// A key stays taken when its delivery has ended.
    KeyNeverFreed = "key-never-freed",

    // Lanes.
    /// A lane is not woken when its next delivery falls due.
    LaneNeverWoken = "lane-never-woken",
    /// A lane does not look for what was given rows.
    SpilledForgotten = "spilled-forgotten",
    /// What is handed to a lane that is shut is dropped.
    HandedToShutLaneDropped = "handed-to-shut-lane-dropped",
    /// A load brings what is under way a second time.
    LoadedTwice = "loaded-twice",
    /// What was cancelled is sent all the same, if it is in memory.
    CancelIgnored = "cancel-ignored",
    /// A lane that is shut is loaded again and again.
    ShutLaneLoaded = "shut-lane-loaded",
    /// The dispatcher wakes every few milliseconds.
    NeverRests = "never-rests",
    /// A paused endpoint is called.
    PauseIgnored = "pause-ignored",

    // Owners.
    /// A node that is not sure of its lease sends.
    SendsWithoutLease = "sends-without-lease",
    /// An outcome of lanes that were lost is written under the new tenure.
    StaleOutcomeWritten = "stale-outcome-written",
    /// Shards are given up while requests of theirs are under way.
    GivenUpWhileBusy = "given-up-while-busy",

    // The simulated store, where the real ones could go wrong in the same way.
    /// A settlement is written whoever owns the lane by now.
    UnfencedSettlement = "unfenced-settlement",
    /// A lost answer makes a settlement be written twice.
    SettledTwice = "settled-twice",
    /// A message is answered for although its commit has failed.
    RefusedCommitAnswered = "refused-commit-answered",
    /// A message is stored without the last of those that it is owed to.
    FanOutCutShort = "fan-out-cut-short",
    /// A message is handed over and given rows as well.
    DoubleFanOut = "double-fan-out",
    /// Idempotency keys are forgotten by a crash.
    KeysForgotten = "keys-forgotten",
    /// An idempotency key that comes with another body is taken for the same request.
    KeyReuseAccepted = "key-reuse-accepted",
    /// What a dead node held in memory is not given rows.
    HandOffsLost = "hand-offs-lost",
    /// News whose call got lost are taken for read.
    LostNewsNeverFound = "lost-news-never-found",
    /// A delivery that has ended keeps its row.
    EndedRowStays = "ended-row-stays",
    /// A late failure undoes a delivery.
    DeliveredUndone = "delivered-undone",
    /// A dead letter that is replayed stays a dead letter as well.
    ReplayedTwice = "replayed-twice",
    /// A node is declared dead while its lease still runs.
    BuriedTooSoon = "buried-too-soon",
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Switches one on, for this thread alone, and all others off.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    use super::Bug;

    #[inline(always)]
    pub const fn planted(_: Bug) -> bool {
        false
    }
}

pub use switch::*;
