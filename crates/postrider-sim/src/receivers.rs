//! The other side of the network. Receivers know nothing of the engine: they take requests, answer as their temper is, and keep
//! a log.

use crate::{
    chance::Chance,
    checker::{Answer, Answered, Asked, Begun, PostId, number_in, receiver_time},
    producers::body,
    temper::{Fault, Reaction, Temper, What, Wish},
    world::World,
};
use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use postrider::transport::{ConnectionUse, Exchange, Post, Request};
use postrider_engine as engine;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

pub struct Receivers {
    lives: Vec<Vec<(i64, Temper)>>,
    chances: Vec<Chance>,
    all: Option<Temper>,
    one: Vec<Option<Temper>>,
    healed: bool,
    short: Vec<bool>,
    seed: u64,
}

impl Receivers {
    pub fn new(seed: u64, lives: Vec<Vec<(i64, Temper)>>, nodes: usize) -> Self {
        let count = lives.len();
        Self {
            chances: (0..count).map(|number| Chance::new(seed, "receiver", number as u64)).collect(),
            lives,
            all: None,
            one: vec![None; count],
            healed: false,
            short: vec![false; nodes],
            seed,
        }
    }

    /// One more, with the temper of another.
    pub fn add(&mut self, like: usize) -> usize {
        let number = self.lives.len();
        self.lives.push(self.lives[like].clone());
        self.chances.push(Chance::new(self.seed, "receiver", number as u64));
        self.one.push(None);
        number
    }

    pub fn all_are(&mut self, temper: Option<Temper>) {
        self.all = temper;
    }

    pub fn one_is(&mut self, receiver: usize, temper: Option<Temper>) {
        self.one[receiver] = temper;
    }

    pub fn short_of_handles(&mut self, node: usize, short: bool) {
        self.short[node] = short;
    }

    /// All are well from now on.
    pub fn heal(&mut self) {
        self.healed = true;
        self.short.fill(false);
    }

    fn react(&mut self, node: usize, receiver: usize, now: i64, number: u64, timeout: i64) -> Reaction {
        let chance = &mut self.chances[receiver];
        if self.short[node] && chance.percent(60) {
            return Reaction { after: 0, what: What::Unheard(Fault::Local) };
        }
        let temper = match (self.healed, self.one[receiver].or(self.all)) {
            (true, _) => Temper::Healthy,
            (false, Some(temper)) => temper,
            (false, None) => Temper::at(&self.lives[receiver], now),
        };
        temper.react(chance, now, number, timeout)
    }
}

/// One process's way to the receivers.
pub struct Wire {
    world: Arc<World>,
    node: usize,
    dead: AtomicBool,
}

impl Wire {
    pub fn new(world: Arc<World>, node: usize) -> Self {
        Self { world, node, dead: AtomicBool::new(false) }
    }

    /// The process is gone: none of its requests comes back to it. What has arrived is with the receiver, who goes on.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// A stopped process neither sends nor hears.
    async fn while_stopped(&self) {
        while self.world.is_stalled(self.node) {
            self.world.weather_changed().await;
        }
    }

    fn begin(&self, request: &Request<'_>) -> Option<PostId> {
        let headers = (request.headers)();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let message = header("webhook-id").and_then(|id| self.world.ids.key_of::<engine::MessageKey>(id));
        let number = number_in(&request.body);
        let begun = Begun {
            node: self.node,
            receiver: receiver_of(request.url.as_str()),
            message: message.map_or(0, engine::MessageKey::raw),
            number,
            same_bytes: request.body == body(number),
            attempt: header("webhook-attempt").and_then(|text| text.parse().ok()).unwrap_or(0),
        };
        self.world.judge().begun(&begun)
    }
}

#[async_trait]
impl Post for Wire {
    async fn post(&self, request: Request<'_>) -> Exchange {
        if self.dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        self.while_stopped().await;
        let began = Instant::now();
        let timeout = request.timeouts.total.as_millis() as i64;
        let (receiver, number) = (receiver_of(request.url.as_str()), number_in(&request.body));
        let post = self.begin(&request);
        let Reaction { after, what } =
            self.world.receivers().react(self.node, receiver, self.world.now(), number, timeout);
        let arrives = !matches!(what, What::Unheard(_));
        if let Some(post) = post.filter(|_| arrives) {
            self.world.judge().arrived(post);
        }
        let in_time = after < timeout;
        let wait = after.min(timeout).max(0);
        if wait > 0 {
            tokio::time::sleep(Duration::from_millis(wait.cast_unsigned())).await;
        }
        if self.dead.load(Ordering::Relaxed) {
            if let Some(post) = post {
                self.world.judge().cut_off(post);
            }
            return std::future::pending().await;
        }
        self.while_stopped().await;
        let took = began.elapsed().as_millis() as i64;
        let what = if in_time { what } else { What::Silence };
        let (kind, outcome, led_away) = told(what, request.redirects_max, self.world.now());
        if let Some(post) = post {
            self.world.judge().ended(post, Answered { kind, took });
        }
        // Or nobody could tell on record which of two requests at a time it was.
        let name = post.map(|post| post.to_string());
        Exchange {
            outcome,
            headers: HeaderMap::new(),
            body: name.clone().map(Bytes::from).unwrap_or_default(),
            body_cut: false,
            body_broken: false,
            detail: name,
            final_url: led_away.then(|| "https://elsewhere.example.com/".to_owned()),
            duration: Duration::from_millis(took.cast_unsigned()),
            connection: ConnectionUse::Fresh,
            is_untried: false,
        }
    }
}

/// What the judge is told, what the engine is told, and whether a redirect was followed.
fn told(what: What, redirects_max: u8, now: i64) -> (Answer, engine::Outcome, bool) {
    let status = |status: u16, wish: Option<Wish>, control: Option<engine::Control>, refused: bool| {
        let asked = wish.map(|wish| Asked::of(wish, receiver_time(now)));
        let retry_after = wish.map_or(Vec::new(), |wish| header_of(wish, asked));
        let abort = control == Some(engine::Control::AbortMessage);
        let answer = engine::Answer {
            status,
            retry_after,
            control,
            redirect_refused: refused,
            location: (300..400).contains(&status).then(|| "https://elsewhere.example.com/".to_owned()),
        };
        let seen = Answer::Status { status, wish: asked, abort, redirect_refused: refused };
        (seen, engine::Outcome::Answered(answer), false)
    };
    match what {
        What::Answer { status: code, wish } => status(code, wish, None, false),
        What::Disable { status: code } => status(code, None, Some(engine::Control::Disable), false),
        What::Abort { status: code } => status(code, None, Some(engine::Control::AbortMessage), false),
        What::Redirect { hops } if hops <= redirects_max => {
            let (seen, outcome, _) = status(200, None, None, false);
            (seen, outcome, true)
        }
        What::Redirect { .. } => status(307, None, None, redirects_max > 0),
        What::Cut { .. } => (Answer::Reset, engine::Outcome::Failed(engine::Fault::Reset), false),
        What::Silence => {
            let fault = engine::Fault::Timeout(engine::TimeoutPhase::FirstByte);
            (Answer::TimedOut, engine::Outcome::Failed(fault), false)
        }
        What::Unheard(fault) => (Answer::Failed(fault), engine::Outcome::Failed(fault_of(fault)), false),
    }
}

fn fault_of(fault: Fault) -> engine::Fault {
    match fault {
        Fault::Refused => engine::Fault::Refused,
        Fault::Unreachable => engine::Fault::Unreachable,
        Fault::Dns => engine::Fault::Dns,
        Fault::WrongHost => engine::Fault::Tls(engine::TlsFault::WrongHost),
        Fault::Expired => engine::Fault::Tls(engine::TlsFault::Expired),
        Fault::Handshake => engine::Fault::Tls(engine::TlsFault::Handshake),
        Fault::NotHttp => engine::Fault::Protocol("not HTTP"),
        Fault::Local => engine::Fault::LocalResource,
    }
}

fn header_of(wish: Wish, asked: Option<Asked>) -> Vec<Vec<u8>> {
    match (wish, asked) {
        (Wish::Two(one, other), _) => vec![one.to_string().into_bytes(), other.to_string().into_bytes()],
        (Wish::Text(text), _) => vec![text.as_bytes().to_vec()],
        (_, Some(Asked::Date(at))) => {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at.cast_unsigned());
            vec![httpdate::fmt_http_date(at).into_bytes()]
        }
        (Wish::Seconds(seconds), _) => vec![seconds.to_string().into_bytes()],
        (Wish::Date(_), _) => Vec::new(),
    }
}

pub fn url_of(receiver: usize) -> String {
    format!("https://r{receiver}.example.com/hook")
}

pub fn receiver_of(url: &str) -> usize {
    url.strip_prefix("https://r")
        .and_then(|rest| rest.split('.').next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(usize::MAX)
}
