//! Situations that a full run must have met. A simulator that never gets anywhere interesting finds nothing.

macro_rules! situations {
    ($($name:ident $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sometimes { $($name),* }

        impl Sometimes {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

situations! {
    ProbeWhileNodeDies "a node dies while it probes a half-open breaker",
    RequestsWhileNodeDies "a node dies with requests under way",
    RequestOfTheDeadStillOpen "a delivery is sent again while the dead node's request is still open",
    StaleTenureRefused "a write of a tenure that is over is refused",
    BuriedAlive "a node that lives is declared dead",
    TakenOver "the lanes of a dead node are taken over",
    HandedOver "lanes are handed over in good order",
    Rebalanced "lanes are wanted by a node that came",
    KeyHeldAcrossTakeOver "an ordering key waits across a change of owners",
    KeyHeldByRetry "an ordering key waits for a retry",
    Replayed "a dead letter is put on its way again",
    ReplayDuringOpenBreaker "a dead letter is put on its way again while its endpoint's breaker is open",
    ResendEndsSchedule "a resend arrives before the delivery's own next try",
    SettledAfterItsEnd "an attempt ends after its delivery was ended",
    PersonClosesBreaker "a person sets back the health of an endpoint whose breaker is open",
    BreakerOpened "a breaker opens",
    ProbeFailed "a probe fails",
    ProbeClosedBreaker "a probe closes a breaker",
    BuriedByBreaker "a delivery is ended because a breaker is open",
    DisabledByRule "an endpoint is disabled by a rule",
    RetryAfterFollowed "a Retry-After is followed",
    RetryAfterCapped "a Retry-After is longer than is allowed",
    RetryAfterIgnored "a Retry-After makes no sense",
    RetryAfterBeyondGiveUp "a Retry-After lies beyond give-up",
    Exhausted "all attempts are used",
    ExpiredAfterAttempts "the time of a delivery runs out between attempts",
    ExpiredAtItsTurn "the time of a delivery is over when its turn comes",
    ExpiredWhileParked "the time of a delivery runs out behind a paused endpoint",
    RefusedForGood "a delivery is refused for good",
    DeliveredAfterRetries "a delivery arrives after retries",
    EndpointDeletedUnderIt "an endpoint is deleted with deliveries waiting",
    AtItsCap "an endpoint has as many requests as it may",
    AtItsRate "an endpoint is sent as much as it may be",
    RepeatRecognised "a repeated request is recognised",
    KeyReused "an idempotency key is used for another body",
    EventIdTaken "an event id is used twice",
    TurnedAway "a producer is turned away",
    CommittedUnanswered "a message is committed and its producer never hears of it",
    AnswerLostAndResolved "a commit's answer is lost, and what became of it is found out",
    AllEndedAfterHealing "everything has come to its end after all was mended",
}

#[derive(Clone, Debug)]
pub struct Tally(Vec<u64>);

impl Default for Tally {
    fn default() -> Self {
        Self(vec![0; Sometimes::ALL.len()])
    }
}

impl Tally {
    pub fn met(&mut self, situation: Sometimes) {
        self.0[situation as usize] += 1;
    }

    pub fn count(&self, situation: Sometimes) -> u64 {
        self.0[situation as usize]
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    pub fn never_met(&self) -> Vec<Sometimes> {
        Sometimes::ALL.iter().copied().filter(|situation| self.count(*situation) == 0).collect()
    }
}
