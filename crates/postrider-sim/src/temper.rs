//! How receivers behave.

use crate::chance::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temper {
    Healthy,
    /// Answers well, but takes its time.
    Slow,
    /// Well for a while and ill for a while.
    Flapping {
        every: i64,
    },
    /// Nobody listens.
    Dead,
    /// Takes the request and never answers.
    Hanging,
    /// 429 with a Retry-After, for most requests.
    RateLimiting,
    /// Retry-After values that no receiver should send.
    Lying,
    /// 400, 403, 501 for good.
    Refusing,
    /// 410.
    Gone,
    /// 404 now and then, or certificates in doubt.
    Ambiguous,
    /// Takes the request, and the answer is lost.
    Cutting,
    Redirecting,
    /// Fails with 500 and 503.
    Failing,
    /// Fails with every message of some keys, and takes all others.
    Poisoned,
    /// Asks to be left alone, or for one message to be dropped, in a header.
    Asking,
    /// A little of all.
    Moody,
}

impl Temper {
    pub const ALL: [Self; 16] = [
        Self::Healthy,
        Self::Slow,
        Self::Flapping { every: 4_000 },
        Self::Dead,
        Self::Hanging,
        Self::RateLimiting,
        Self::Lying,
        Self::Refusing,
        Self::Gone,
        Self::Ambiguous,
        Self::Cutting,
        Self::Redirecting,
        Self::Failing,
        Self::Poisoned,
        Self::Asking,
        Self::Moody,
    ];

    /// A life: what it is like from when on. Half of all endpoints are well most of the time.
    pub fn draw_all(chance: &mut Chance, horizon: i64) -> Vec<(i64, Self)> {
        if chance.percent(35) {
            return vec![(0, Self::Healthy)];
        }
        let mut at = 0;
        let mut life = Vec::new();
        while at < horizon * 2 && life.len() < 12 {
            let temper = if chance.percent(45) { Self::Healthy } else { chance.pick(&Self::ALL) };
            life.push((at, temper));
            at += chance.spread(3_000, horizon.max(6_000));
        }
        life
    }

    pub fn at(life: &[(i64, Self)], now: i64) -> Self {
        life.iter().rev().find(|(from, _)| *from <= now).map_or(Self::Healthy, |(_, temper)| *temper)
    }

    /// What is done with one request. `number`: of the message.
    pub fn react(self, chance: &mut Chance, now: i64, number: u64, timeout: i64) -> Reaction {
        let quick = |chance: &mut Chance| chance.pick(&[0, 1, 2, 5, 20]);
        let answer = |chance: &mut Chance, status| Reaction { after: quick(chance), what: What::status(status) };
        match self {
            Self::Healthy => {
                let status = if chance.percent(90) { 200 } else { chance.pick(&[201, 202, 204, 299]) };
                answer(chance, status)
            }
            Self::Slow => Reaction { after: chance.between(50, timeout * 5 / 4), what: What::status(200) },
            Self::Flapping { every } => {
                let status = if (now / every) % 2 == 0 { 200 } else { 503 };
                answer(chance, status)
            }
            Self::Dead => {
                let fault = chance.pick(&[Fault::Refused, Fault::Refused, Fault::Unreachable, Fault::Dns]);
                Reaction { after: quick(chance), what: What::Unheard(fault) }
            }
            Self::Hanging => Reaction { after: i64::MAX, what: What::Silence },
            Self::RateLimiting => {
                if chance.percent(25) {
                    return answer(chance, 200);
                }
                let wait = Wish::Seconds(chance.spread(1, 60));
                Reaction { after: quick(chance), what: What::busy(chance.pick(&[429, 429, 503, 408, 409, 425]), wait) }
            }
            Self::Lying => {
                let wish = match chance.below(9) {
                    0 => Wish::Text("-5"),
                    1 => Wish::Text("soon"),
                    2 => Wish::Text("1e3"),
                    3 => Wish::Text("Thu, 01 Jan 1970 00:00:00 GMT"),
                    4 => Wish::Text("99999999999999999999999"),
                    5 => Wish::Text(""),
                    6 => Wish::Date(chance.between(-5_000, 90_000)),
                    7 => Wish::Seconds(chance.spread(60, 100_000)),
                    _ => Wish::Two(chance.between(0, 5), chance.between(0, 20)),
                };
                Reaction { after: quick(chance), what: What::busy(chance.pick(&[429, 503, 500, 404, 200]), wish) }
            }
            Self::Refusing => {
                let status = chance.pick(&[400, 401, 403, 413, 422, 501, 302, 100]);
                answer(chance, status)
            }
            Self::Gone => {
                let status = if chance.one_in(3) { 410 } else { 400 };
                answer(chance, status)
            }
            Self::Ambiguous => {
                if chance.percent(30) {
                    let fault = chance.pick(&[Fault::WrongHost, Fault::Expired, Fault::Handshake, Fault::NotHttp]);
                    return Reaction { after: quick(chance), what: What::Unheard(fault) };
                }
                let status = if chance.percent(80) { 404 } else { 200 };
                answer(chance, status)
            }
            Self::Cutting => {
                if chance.percent(50) {
                    return answer(chance, 200);
                }
                Reaction { after: quick(chance), what: What::Cut { done: chance.percent(50) } }
            }
            Self::Redirecting => {
                Reaction { after: quick(chance), what: What::Redirect { hops: chance.between(1, 4) as u8 } }
            }
            Self::Failing => {
                let status = chance.pick(&[500, 502, 503, 504, 599, 999]);
                answer(chance, status)
            }
            Self::Poisoned => {
                let status = if number.is_multiple_of(7) { 500 } else { 200 };
                answer(chance, status)
            }
            Self::Asking => {
                let what = match chance.below(20) {
                    0 => What::Disable { status: chance.pick(&[200, 500]) },
                    1..=4 => What::Abort { status: chance.pick(&[200, 500, 429]) },
                    5..=9 => What::status(500),
                    _ => What::status(200),
                };
                Reaction { after: quick(chance), what }
            }
            Self::Moody => {
                let temper = loop {
                    match chance.pick(&Self::ALL) {
                        Self::Moody | Self::Gone | Self::Asking => {}
                        other => break other,
                    }
                };
                temper.react(chance, now, number, timeout)
            }
        }
    }
}

pub struct Reaction {
    /// So long after the request came.
    pub after: i64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Answer {
        status: u16,
        wish: Option<Wish>,
    },
    /// The request never arrived.
    Unheard(Fault),
    /// It arrived, and no answer came back. `done`: it counts as taken for the receiver.
    Cut {
        done: bool,
    },
    Silence,
    Redirect {
        hops: u8,
    },
    Disable {
        status: u16,
    },
    Abort {
        status: u16,
    },
}

impl What {
    fn status(status: u16) -> Self {
        Self::Answer { status, wish: None }
    }

    fn busy(status: u16, wish: Wish) -> Self {
        Self::Answer { status, wish: Some(wish) }
    }
}

/// What a receiver says about when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Seconds(i64),
    /// Milliseconds from now on, said as a date, and so rounded down to the second.
    Date(i64),
    /// Two values in one header; the longer one counts.
    Two(i64, i64),
    Text(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Refused,
    Unreachable,
    Dns,
    WrongHost,
    Expired,
    Handshake,
    NotHttp,
    /// Our own machine was short of something.
    Local,
}
