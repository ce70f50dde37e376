//! For tests that draw what happens: the seed, which can be given, and what is drawn with it.

use postrider::clock;
use rand::{Rng, RngExt};
use std::{env, ops::Range, str::FromStr, time::Duration};

/// As the variable says, or another one each time. It is printed, so that what failed can be drawn again.
pub fn seed(name: &str) -> u64 {
    let seed = variable(name).unwrap_or_else(|| clock::now().as_millis().unsigned_abs());
    println!("{name}={seed}");
    seed
}

pub fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

pub fn draw(millis: Range<u64>, rng: &mut impl Rng) -> Duration {
    Duration::from_millis(rng.random_range(millis))
}
