//! Requests, as they were begun, as receivers saw them and as they ended: I5, I6, I9, I13, I16, I17.

use super::{EPOCH, Judge, ledger::State};
use crate::{
    settings::Order,
    sometimes::Sometimes,
    temper::{Fault, Wish},
    trace::Kind,
};
use postrider_engine::policy::DeathReason;

pub type PostId = usize;

pub struct Post {
    pub delivery: usize,
    pub node: usize,
    pub life: u32,
    pub number: u32,
    /// True time.
    pub begun: i64,
    /// What the node's clock said then.
    pub engine_begun: i64,
    pub arrived: bool,
    pub ended: Option<(i64, Answered)>,
    pub recorded: bool,
    /// It is a resend, as far as can be told.
    pub resend: bool,
    /// What is wrong with it if it is none.
    pub only_as_resend: Option<String>,
    /// Its process died or lost its lanes before it could be recorded.
    pub abandoned: bool,
}

/// What became of a request, as the receiver knows it and the engine was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    pub kind: Answer,
    /// By the process's own count, in milliseconds.
    pub took: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Status { status: u16, wish: Option<Asked>, abort: bool, redirect_refused: bool },
    Failed(Fault),
    Reset,
    TimedOut,
}

/// A wish, with dates made certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Seconds(i64),
    /// Milliseconds since 1970, whole seconds.
    Date(i64),
    Nonsense,
}

impl Asked {
    pub fn of(wish: Wish, receiver_time: i64) -> Self {
        match wish {
            Wish::Seconds(seconds) => Self::Seconds(seconds),
            Wish::Two(one, other) => Self::Seconds(one.max(other)),
            Wish::Date(ahead) => Self::Date((receiver_time + ahead).div_euclid(1_000) * 1_000),
            // 23 digits are a number that fits into no clock: the longest wait that there is.
            Wish::Text(text) if text.len() > 19 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Self::Seconds(i64::MAX / 1_000)
            }
            Wish::Text(_) => Self::Nonsense,
        }
    }
}

impl Answered {
    /// A number for the trace.
    fn code(&self) -> i64 {
        match self.kind {
            Answer::Status { status, .. } => status.into(),
            Answer::Failed(fault) => -1 - fault as i64,
            Answer::Reset => -20,
            Answer::TimedOut => -21,
        }
    }
}

/// A request as it leaves the engine.
pub struct Begun {
    pub node: usize,
    /// The receiver's number.
    pub receiver: usize,
    /// What its id says; 0 if it says nothing.
    pub message: i64,
    /// What its body says.
    pub number: u64,
    pub same_bytes: bool,
    pub attempt: u32,
}

impl Judge {
    /// A request was begun. `None`: nothing is known of what it carries.
    pub fn begun(&mut self, begun: &Begun) -> Option<PostId> {
        let post = self.posts.len();
        let Some(endpoint) = self.endpoints.iter().find(|endpoint| endpoint.number == begun.receiver) else {
            self.object("I5", begun.message, 0, || {
                format!("a request to receiver {}, who has no endpoint", begun.receiver)
            });
            return None;
        };
        let key = endpoint.key;
        self.note(begun.node as i8, Kind::Begun, [begun.message, key, begun.attempt.into(), post as i64]);
        let known = self.by_number.get(&begun.number).map(|place| self.messages[*place as usize].key);
        if known != Some(begun.message) {
            self.object("I5", begun.message, key, || format!("it carries number {}, which is {known:?}", begun.number));
            return None;
        }
        if !begun.same_bytes {
            self.object("I6", begun.message, key, || "its bytes are not those that were offered".to_owned());
        }
        let Some(delivery) = self.delivery(begun.message, key) else {
            self.object("I5", begun.message, key, || "a request to an endpoint that it is not owed to".to_owned());
            return None;
        };
        let life = self.current_life(begun.node);
        let engine_begun = self.engine_time(begun.node);
        let resend = self.is_resend(delivery, begun.attempt, engine_begun);
        self.posts.push(Post {
            delivery,
            node: begun.node,
            life,
            number: begun.attempt,
            begun: self.now,
            engine_begun,
            arrived: false,
            ended: None,
            recorded: false,
            resend,
            only_as_resend: None,
            abandoned: false,
        });
        self.counts.attempts += 1;
        // Whether it can be anything but a resend depends on it, and all else on that.
        self.check_breaker(post);
        let resend = self.posts[post].resend;
        self.check_owner(post);
        self.check_state(post);
        self.check_alone(post);
        self.check_not_parked(post);
        self.check_cap(post);
        self.check_rates(post);
        if !resend {
            self.check_order(post);
            self.check_due(post);
            self.deliveries[delivery].last_post = Some(post);
        }
        self.deliveries[delivery].unrecorded += 1;
        let endpoint = self.deliveries[delivery].endpoint as usize;
        if !resend {
            self.check_in_time(post);
        }
        self.endpoints[endpoint].live.push(post);
        self.note_saturation(endpoint);
        Some(post)
    }

    /// A resend counts its attempts by itself: it is taken for one if one was asked for, and the number is the first.
    fn is_resend(&self, place: usize, attempt: u32, engine_begun: i64) -> bool {
        let delivery = &self.deliveries[place];
        let endpoint = &self.endpoints[delivery.endpoint as usize];
        if !self.may_be_resend(place, attempt) {
            return false;
        }
        let own_is_due = delivery.state == State::Open && delivery.attempts == 0 && engine_begun >= delivery.due;
        // It is not begun again before it is on record; what our own machine lacked never is.
        let own_is_under_way = delivery.last_post.is_some_and(|post| {
            let Post { resend, recorded, abandoned, ended, .. } = self.posts[post];
            let is_ours = ended.is_some_and(|(_, answered)| answered.kind == Answer::Failed(Fault::Local));
            !resend && !recorded && !abandoned && !is_ours
        });
        !own_is_due || own_is_under_way || endpoint.latest().ordering != Order::Free
    }

    pub(super) fn may_be_resend(&self, place: usize, attempt: u32) -> bool {
        let delivery = &self.deliveries[place];
        // Of two at a time, one is the resend and one is not.
        let is_under_way = || {
            self.endpoints[delivery.endpoint as usize].live.iter().any(|other| {
                let other = &self.posts[*other];
                other.delivery == place && other.resend && !other.abandoned
            })
        };
        delivery.resend && attempt == 1 && !is_under_way()
    }

    pub fn arrived(&mut self, post: PostId) {
        let Post { delivery, node, .. } = self.posts[post];
        self.posts[post].arrived = true;
        let (message, endpoint) = self.keys_of(delivery);
        self.note(node as i8, Kind::Arrived, [message, endpoint, 0, post as i64]);
    }

    /// It is over, for the receiver and for the engine.
    pub fn ended(&mut self, post: PostId, answered: Answered) {
        let Post { delivery, node, .. } = self.posts[post];
        let (message, endpoint) = self.keys_of(delivery);
        self.note(node as i8, Kind::Answered, [message, endpoint, answered.code(), post as i64]);
        self.posts[post].ended = Some((self.now, answered));
        self.off_the_wire(post);
        self.note_answer(self.deliveries[delivery].endpoint as usize, &answered);
        // What our own machine lacked is never on record.
        if answered.kind != Answer::Failed(Fault::Local) {
            self.endpoints[self.deliveries[delivery].endpoint as usize].answered.push(post);
        }
    }

    /// The process is gone, and the connection with it.
    pub fn cut_off(&mut self, post: PostId) {
        if self.posts[post].ended.is_none() {
            self.off_the_wire(post);
        }
    }

    fn off_the_wire(&mut self, post: PostId) {
        let endpoint = self.deliveries[self.posts[post].delivery].endpoint as usize;
        self.note_saturation(endpoint);
        self.endpoints[endpoint].live.retain(|live| *live != post);
    }

    pub(super) fn keys_of(&self, delivery: usize) -> (i64, i64) {
        let delivery = &self.deliveries[delivery];
        (self.messages[delivery.message as usize].key, self.endpoints[delivery.endpoint as usize].key)
    }

    /// A process died, or lost its lanes: what it had sent and not recorded will be sent again.
    pub(super) fn abandon(&mut self, life: u32) {
        for endpoint in 0..self.endpoints.len() {
            for place in 0..self.endpoints[endpoint].live.len() {
                let post = self.endpoints[endpoint].live[place];
                if self.posts[post].life == life {
                    self.posts[post].abandoned = true;
                }
            }
        }
        for endpoint in &mut self.endpoints {
            endpoint.answered.retain(|post| self.posts[*post].life != life);
        }
        // Those that were answered and not written down.
        for post in self.posts.iter_mut().rev().take(ABANDONED_LOOK) {
            if post.life == life && !post.recorded {
                post.abandoned = true;
            }
        }
    }

    /// I13, I17: what has come to its end is not sent again, unless a person asks. A lane hears a moment later of what a person
    /// ended, or a resend.
    fn check_state(&mut self, post: PostId) {
        let Post { delivery: place, resend, number, .. } = self.posts[post];
        let delivery = &self.deliveries[place];
        let ended = match delivery.state {
            State::Open => None,
            State::Delivered => Some("I17"),
            State::Dead(DeathReason::Permanent) => Some("I13"),
            State::Dead(_) => Some("I17"),
        };
        let Some(invariant) = ended.filter(|_| !resend) else {
            // I9, I14: the number that it carries is the number of attempts on record, and one.
            let expected = delivery.attempts + 1;
            // A lane may hold the cycle before until it hears of the new one.
            let begun_anew = delivery.requeued.is_some_and(|at| self.now - at <= self.news_slack);
            if !resend && number != expected && !begun_anew {
                self.object_to("I9", place, || format!("attempt {number} was begun, and it should be {expected}"));
            }
            return;
        };
        let since = self.now - delivery.changed;
        let slack = if delivery.recalled { self.news_slack } else { 0 };
        // A resend whose end was written a moment ago is told apart only by its number.
        if since > slack && !(delivery.resend && number == 1) {
            let state = delivery.state;
            self.object_to(invariant, place, || format!("begun {since} ms after it ended as {state:?}"));
        }
    }

    /// I16: of one delivery there is one request at a time, except for those of processes that lost it.
    fn check_alone(&mut self, post: PostId) {
        let Post { delivery: place, resend, life, .. } = self.posts[post];
        let endpoint = self.deliveries[place].endpoint as usize;
        let beside = self.endpoints[endpoint].live.iter().find(|other| {
            let other = &self.posts[**other];
            other.delivery == place && other.resend == resend && !other.abandoned
        });
        if let Some(other) = beside {
            let other = &self.posts[*other];
            // Another life's request may be on its way still if its lanes went over in good order? No: they come to rest first.
            let (began, whose) = (other.begun, if other.life == life { "the same process" } else { "another process" });
            self.object_to("I16", place, || format!("begun while a request of {whose} is under way, since {began} ms"));
        }
        let abandoned = self.endpoints[endpoint].live.iter().any(|other| {
            let other = &self.posts[*other];
            other.delivery == place && other.abandoned
        });
        if abandoned {
            self.met.met(Sometimes::RequestOfTheDeadStillOpen);
        }
    }

    /// I9, on the wire: whatever was begun is recorded, or there is a reason why it could not be. Looked at when all is quiet.
    pub(super) fn check_all_recorded(&mut self) {
        for post in 0..self.posts.len() {
            let Post { delivery, recorded, abandoned, ended, life, .. } = self.posts[post];
            let lost = self.lives[life as usize];
            let explained = recorded
                || abandoned
                || lost.ended.is_some_and(|_| !lost.gracefully)
                || ended.is_none_or(|(_, answered)| answered.kind == Answer::Failed(Fault::Local));
            if !explained {
                let begun = self.posts[post].begun;
                self.object_to("I9", delivery, || {
                    format!("request {post}, begun at {begun} ms, was never recorded, and nothing had happened to its process")
                });
            }
        }
    }
}

/// Requests that a process can have answered and not written down: far fewer, by the engine's own limits.
const ABANDONED_LOOK: usize = 20_000;

/// What a receiver's own clock says: it is right.
pub fn receiver_time(now: i64) -> i64 {
    EPOCH + now
}
