//! How often a stranger may be wrong about a token.
//!
//! No token can be guessed, but each guess costs us a signature to check. Whoever has been wrong too often waits; tokens that
//! have been seen to be good are let through meanwhile, for the stranger may share his address with honest people.

use postrider_engine::Timestamp;
use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// From where a request came: an address of IPv4, or a /64 of IPv6. Not there for loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub IpAddr);

/// Of those who come from one address, or who want to be taken for the holder of one key.
#[derive(Debug)]
pub struct Guesses<K> {
    /// When all of its mistakes will be forgotten, in milliseconds.
    forgotten_at: Mutex<HashMap<K, i64>>,
}

impl<K> Default for Guesses<K> {
    fn default() -> Self {
        Self { forgotten_at: Mutex::default() }
    }
}

impl<K: Copy + Eq + Hash> Guesses<K> {
    /// Or how long to wait.
    pub fn may_try(&self, who: K, now: Timestamp) -> Result<(), Duration> {
        let all = self.forgotten_at.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = all.get(&who).map_or(0, |at| at - now.as_millis());
        let excess = ahead - (MISTAKES_MAX - 1) * MISTAKE_MS;
        if excess > 0 { Err(Duration::from_millis(excess.cast_unsigned())) } else { Ok(()) }
    }

    pub fn was_wrong(&self, who: K, now: Timestamp) {
        let now = now.as_millis();
        let mut all = self.forgotten_at.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&who) {
            all.retain(|_, at| *at > now);
            if all.len() >= ADDRESSES_MAX {
                return;
            }
        }
        let at = all.entry(who).or_insert(now);
        // No further ahead than all of them, also after the clock was set.
        *at = ((*at).max(now) + MISTAKE_MS).min(now + MISTAKES_MAX * MISTAKE_MS);
    }
}

/// So many at once, and then one for each of these.
const MISTAKES_MAX: i64 = 100;
const MISTAKE_MS: i64 = 200;
/// Those past it are not counted: it takes as many addresses.
const ADDRESSES_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer(IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 7)));

    #[test]
    fn after_a_hundred_mistakes_there_is_one_try_in_a_while() {
        let (guesses, now) = (Guesses::default(), Timestamp::from_millis(1_000_000));
        for number in 0..MISTAKES_MAX {
            assert_eq!(guesses.may_try(PEER, now), Ok(()), "{number}");
            guesses.was_wrong(PEER, now);
        }
        assert_eq!(guesses.may_try(PEER, now), Err(Duration::from_millis(200)));
        assert_eq!(guesses.may_try(Peer("203.0.113.8".parse().unwrap()), now), Ok(()), "others are not meant");
        let later = now.plus(Duration::from_millis(200));
        assert_eq!(guesses.may_try(PEER, later), Ok(()));
        guesses.was_wrong(PEER, later);
        assert!(guesses.may_try(PEER, later).is_err());
        assert_eq!(guesses.may_try(PEER, now.plus(Duration::from_secs(60))), Ok(()));
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let (guesses, late) = (Guesses::default(), Timestamp::from_millis(9_000_000_000));
        for _ in 0..MISTAKES_MAX {
            guesses.was_wrong(PEER, late);
        }
        let early = Timestamp::from_millis(1_000_000);
        guesses.was_wrong(PEER, early);
        assert!(guesses.may_try(PEER, early).is_err_and(|wait| wait <= Duration::from_secs(1)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let guesses = Guesses::default();
        let now = Timestamp::from_millis(1_000);
        for bits in 0..u32::try_from(ADDRESSES_MAX).unwrap() + 10 {
            guesses.was_wrong(Peer(IpAddr::V4(bits.into())), now);
        }
        assert_eq!(guesses.forgotten_at.lock().unwrap().len(), ADDRESSES_MAX);
        guesses.was_wrong(Peer(IpAddr::V4(u32::MAX.into())), Timestamp::from_millis(2_000));
        assert_eq!(guesses.forgotten_at.lock().unwrap().len(), 1);
    }
}
