//! What the world does to a node's way to its database, and what is drawn for each step of it.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// How a node and its database get on. The world changes it while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// How long a question takes, there and back: at least and at most.
    pub read: (Duration, Duration),
    /// How long a commit takes.
    pub write: (Duration, Duration),
    /// Of 10,000 commits, so many are refused before anything is written.
    pub fails: u32,
    /// Of 10,000 commits, so many are carried out while their answer is lost. What became of it is asked for again, and
    /// nobody waits in vain unless the process dies. Only over a network: a database of one's own does not lose answers.
    pub answer_lost: u32,
    /// There is no room left: whatever is written is refused.
    pub full: bool,
    /// Nothing reaches the database. Only over a network.
    pub cut: bool,
    /// What is asked arrives, and the answers do not. Only over a network.
    pub deaf: bool,
    /// The process is frozen: nothing of it proceeds until this is cleared.
    pub stalled: bool,
    /// How long it takes until a node hears that there are news.
    pub news_delay: Duration,
    /// Of 10,000 calls to look for news, so many are lost. The next heartbeat looks anyway.
    pub news_lost: u32,
}

/// The weather of one node, with its own chance.
pub struct Sky {
    pub weather: Weather,
    chance: ChaCha8Rng,
}

impl Sky {
    pub fn new(seed: u64, node: usize) -> Self {
        let mut mixed = ChaCha8Rng::seed_from_u64(seed ^ 0x706f_7374_7269_6465);
        mixed.set_stream(node as u64);
        Self { weather: Weather::default(), chance: mixed }
    }

    /// The ways there and back of a question.
    pub fn read(&mut self) -> (Duration, Duration) {
        self.ways(self.weather.read)
    }

    /// Until a commit is carried out, and until that is known.
    pub fn write(&mut self) -> (Duration, Duration) {
        self.ways(self.weather.write)
    }

    fn ways(&mut self, (least, most): (Duration, Duration)) -> (Duration, Duration) {
        let whole = self.between(least, most);
        let there = self.between(Duration::ZERO, whole);
        (there, whole - there)
    }

    /// In whole milliseconds, by which timers go.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (millis(least), millis(most.max(least)));
        Duration::from_millis(if least == most { least } else { self.chance.random_range(least..=most) })
    }

    pub fn happens(&mut self, of_ten_thousand: u32) -> bool {
        of_ten_thousand > 0 && self.chance.next_u32() % 10_000 < of_ten_thousand
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
