//! Reading an application's messages on from a place, and the places that consumers have come to.

use crate::{Content, Message};
use postrider_engine::{AppKey, MessageKey, Timestamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PollerKey(pub i64);

/// What to read of an application's messages, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOn {
    /// Only what came after this one.
    pub past: MessageKey,
    /// The last one to read. Up to here nothing can be added any more: see `Store::horizon`.
    pub until: MessageKey,
    pub sieve: Sieve,
    /// How many to give at most.
    pub limit: usize,
    /// How many to look at.
    pub look_max: usize,
    /// How long the payloads may be together. One is given in any case.
    pub bytes_max: usize,
}

/// Which messages a poller lets through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sieve {
    /// `None`: every type.
    pub event_types: Option<Vec<String>>,
    /// Only what is on one of these. `None`: messages on any channel and on none.
    pub any_channel: Option<Vec<String>>,
    /// Only what is on this one as well.
    pub channel: Option<String>,
}

impl Sieve {
    /// Whether the rest has to be looked at.
    pub fn lets_type_through(&self, event_type: &str) -> bool {
        self.event_types.as_ref().is_none_or(|wanted| wanted.iter().any(|name| name == event_type))
    }

    pub fn asks_for_channels(&self) -> bool {
        self.any_channel.is_some() || self.channel.is_some()
    }

    pub fn lets_channels_through(&self, channels: &[String]) -> bool {
        self.any_channel.as_ref().is_none_or(|wanted| wanted.iter().any(|channel| channels.contains(channel)))
            && self.channel.as_ref().is_none_or(|wanted| channels.contains(wanted))
    }

    pub fn lets_through(&self, content: &Content) -> bool {
        self.lets_type_through(&content.event_type) && self.lets_channels_through(&content.channels)
    }
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasRead {
    pub messages: Vec<Message>,
    /// The last one that was looked at: the place to go on from.
    pub to: MessageKey,
    /// There is, or may be, more up to where it was to be read.
    pub more: bool,
}

/// Decides how far to read: each store shows it the messages in order, and stops when it says so.
pub struct Reading<'a> {
    wanted: &'a ReadOn,
    looked: usize,
    taken: usize,
    bytes: usize,
    to: MessageKey,
    stopped: bool,
}

/// What is to be done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Take,
    Skip,
    /// It is not looked at any more.
    Stop,
}

impl<'a> Reading<'a> {
    pub fn of(wanted: &'a ReadOn) -> Self {
        Self { wanted, looked: 0, taken: 0, bytes: 0, to: wanted.past, stopped: false }
    }

    /// How many more can be looked at.
    pub fn left(&self) -> usize {
        self.wanted.look_max - self.looked
    }

    /// `size`: of the payload, if the message fits.
    pub fn look(&mut self, key: MessageKey, size: Option<usize>) -> Look {
        let is_full = |size: usize| {
            self.taken == self.wanted.limit || self.taken > 0 && self.bytes.saturating_add(size) > self.wanted.bytes_max
        };
        if self.looked == self.wanted.look_max || size.is_some_and(is_full) {
            self.stopped = true;
            return Look::Stop;
        }
        self.looked += 1;
        self.to = key;
        let Some(size) = size else { return Look::Skip };
        self.taken += 1;
        self.bytes = self.bytes.saturating_add(size);
        Look::Take
    }

    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    pub fn end(self, messages: Vec<Message>) -> WasRead {
        WasRead { messages, to: self.to, more: self.stopped }
    }
}

/// Someone who reads by a poller and whose place is kept here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub name: String,
    /// He has dealt with everything up to here.
    pub place: MessageKey,
    /// How often he was set to another place.
    pub seeks: i64,
    pub moved_at: Timestamp,
}

/// A consumer has come to another place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stride {
    pub app: AppKey,
    pub poller: PollerKey,
    pub consumer: String,
    pub to: MessageKey,
    pub how: Way,
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Never back, and not by what was read before he was last set to another place, if it is known when that was: whoever
    /// says late what was said before undoes nothing.
    Forward {
        seeks: Option<i64>,
    },
    Anywhere,
}

impl Stride {
    /// Where he is afterwards, and `None` if he stays where he is.
    pub fn from(&self, found: Option<&Consumer>) -> Option<Consumer> {
        let seeks = match (found, self.how) {
            (None, Way::Forward { seeks }) => seeks.unwrap_or(0),
            (Some(found), Way::Forward { seeks }) => {
                let is_stale = seeks.is_some_and(|seeks| seeks != found.seeks);
                if is_stale || found.place >= self.to {
                    return None;
                }
                found.seeks
            }
            (found, Way::Anywhere) => found.map_or(0, |found| found.seeks) + 1,
        };
        Some(Consumer { name: self.consumer.clone(), place: self.to, seeks, moved_at: self.at })
    }
}

/// How many a poller can have.
pub const CONSUMERS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(limit: usize, look_max: usize, bytes_max: usize) -> ReadOn {
        let (past, until) = (MessageKey::new(10), MessageKey::new(99));
        ReadOn { past, until, sieve: Sieve::default(), limit, look_max, bytes_max }
    }

    /// What is made of messages 11, 12, … of these sizes (`None`: they do not fit), and how far it came.
    fn read(wanted: &ReadOn, sizes: &[Option<usize>]) -> (Vec<Look>, i64, bool) {
        let mut reading = Reading::of(wanted);
        let mut made = Vec::new();
        for (key, size) in (11..).zip(sizes) {
            made.push(reading.look(MessageKey::new(key), *size));
            if reading.has_stopped() {
                break;
            }
        }
        let read = reading.end(Vec::new());
        (made, read.to.raw(), read.more)
    }

    #[test]
    fn what_was_read_to_the_end_goes_on_from_the_last_one() {
        let all = wanted(9, 9, 1000);
        assert_eq!(read(&all, &[]), (vec![], 10, false), "who has seen nothing stays where he is");
        assert_eq!(read(&all, &[Some(1), None]), (vec![Look::Take, Look::Skip], 12, false));
    }

    #[test]
    fn reading_stops_at_each_of_its_limits_and_goes_on_from_the_last_one_it_looked_at() {
        use Look::{Skip, Stop, Take};
        let cases = [
            ("enough", wanted(1, 9, 1000), vec![Some(1), None, Some(1)], vec![Take, Skip, Stop], 12),
            ("looked", wanted(9, 2, 1000), vec![None, None, None], vec![Skip, Skip, Stop], 12),
            ("long", wanted(9, 9, 10), vec![Some(6), None, Some(5)], vec![Take, Skip, Stop], 12),
            ("one is given", wanted(9, 9, 10), vec![Some(60), Some(0)], vec![Take, Stop], 11),
        ];
        for (name, wanted, sizes, made, to) in cases {
            assert_eq!(read(&wanted, &sizes), (made, to, true), "{name}");
        }
        assert_eq!(read(&wanted(2, 9, 10), &[Some(5), Some(5), None]).1, 13, "what follows and does not fit is passed");
    }

    #[test]
    fn a_consumer_goes_forward_and_what_was_read_before_a_seek_does_not_count() {
        let stride = |to, how| Stride {
            app: AppKey::new(1),
            poller: PollerKey(1),
            consumer: "c".to_owned(),
            to: MessageKey::new(to),
            how,
            at: Timestamp::from_millis(5),
        };
        let at = |place, seeks| {
            let (name, moved_at) = ("c".to_owned(), Timestamp::from_millis(5));
            Consumer { name, place: MessageKey::new(place), seeks, moved_at }
        };
        let forward = |seeks| Way::Forward { seeks };
        for (found, to, how, expected) in [
            (None, 7, forward(None), Some((7, 0))),
            (None, 7, Way::Anywhere, Some((7, 1))),
            (Some((5, 2)), 7, forward(Some(2)), Some((7, 2))),
            (Some((5, 2)), 7, forward(None), Some((7, 2))),
            (Some((5, 2)), 7, forward(Some(1)), None),
            (Some((5, 2)), 5, forward(Some(2)), None),
            (Some((5, 2)), 3, forward(None), None),
            (Some((5, 2)), 3, Way::Anywhere, Some((3, 3))),
        ] {
            let found = found.map(|(place, seeks)| at(place, seeks));
            let expected = expected.map(|(place, seeks)| at(place, seeks));
            assert_eq!(stride(to, how).from(found.as_ref()), expected, "{found:?} {to} {how:?}");
        }
    }

    #[test]
    fn a_sieve_wants_one_of_its_channels_and_the_one_that_was_asked_for() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let sieve = Sieve { event_types: None, any_channel: Some(names(&["a", "b"])), channel: Some("c".to_owned()) };
        assert!(sieve.lets_channels_through(&names(&["b", "c"])));
        assert!(!sieve.lets_channels_through(&names(&["c"])));
        assert!(!sieve.lets_channels_through(&names(&["a"])));
        assert!(Sieve::default().lets_channels_through(&[]) && !Sieve::default().asks_for_channels());
        let typed = Sieve { event_types: Some(names(&["t"])), ..Sieve::default() };
        assert!(typed.lets_type_through("t") && !typed.lets_type_through("u"));
    }
}
