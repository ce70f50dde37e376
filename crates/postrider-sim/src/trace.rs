//! Everything that happens, line by line: always into a hash, and into memory if it is asked for.
//!
//! Two runs of a seed are the same if their hashes are. Lines are numbers, and become words only when somebody reads them.

use std::fmt;

/// Who a line is about when it is not a node.
pub const NOBODY: i8 = -1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// True time, in milliseconds since the world began.
    pub at: i64,
    pub node: i8,
    pub kind: Kind,
    /// The message first and the endpoint second, where there are such.
    pub args: [i64; 4],
}

macro_rules! kinds {
    ($($name:ident $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($name),* }

        impl Kind {
            fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

kinds! {
    Offered "offered: message number {3}, application {2}",
    AcceptedTo "answered 2xx: message {0}, number {3}, again {2}",
    Declined "answered no: number {3}, why {2}",
    Committed "message {0} committed: number {3}, owed {2}, order {1}",
    Begun "request begins: message {0}, endpoint {1}, attempt {2}, request {3}",
    Arrived "request arrived: message {0}, endpoint {1}, request {3}",
    Answered "request ends: message {0}, endpoint {1}, status or fault {2}, request {3}",
    Settled "settled: message {0}, endpoint {1}, attempts {2}, next {3}",
    Void "settled, but it had ended: message {0}, endpoint {1}, attempts {2}, next {3}",
    Spilled "given a row: message {0}, endpoint {1}",
    Queued "put on its way again: message {0}, endpoint {1}, cycle {2}, due {3}",
    Ended "ended: message {0}, endpoint {1}, why {2}",
    Refused "a write was refused: tenure {2}",
    HealthReset "health set back: endpoint {1}",
    Breaker "breaker of endpoint {1}: failures or trips {2}, open until {3}",
    EndpointPut "settings of endpoint {1} written: version {2}, parked {3}",
    EndpointGone "endpoint {1} deleted",
    Lease "lease: {2} of {3} shards, tenure {0}",
    Loaded "loaded: endpoint {1}, {2} deliveries",
    Weather "the store's weather bit: {2}",
    Fault "fault: {2}, for {3} ms",
    Person "a person did {2} to message {0}, endpoint {1}: {3}",
    Started "process started, incarnation {2}",
    Died "process died, incarnation {2}",
    Stopped "process stopped, incarnation {2}",
    ClockSet "clock set by {2} ms",
    Healed "all is mended",
    Checked "looked through: {2} deliveries, {3} open",
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9}.{:03}  ", self.at / 1_000, self.at % 1_000)?;
        match self.node {
            NOBODY => write!(f, "        ")?,
            node => write!(f, "node {node}  ")?,
        }
        let mut rest = self.kind.text();
        while let Some((before, after)) = rest.split_once('{') {
            let (place, after) = after.split_once('}').unwrap_or(("0", after));
            write!(f, "{before}{}", self.args[place.parse::<usize>().unwrap_or(0)])?;
            rest = after;
        }
        write!(f, "{rest}")
    }
}

#[derive(Debug, Default)]
pub struct Trace {
    hash: [u64; 2],
    lines: u64,
    kept: Option<Vec<Line>>,
}

impl Trace {
    pub fn new(keep: bool) -> Self {
        Self { hash: [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03], lines: 0, kept: keep.then(Vec::new) }
    }

    pub fn line(&mut self, at: i64, node: i8, kind: Kind, args: [i64; 4]) {
        self.lines += 1;
        self.mix(at.cast_unsigned() << 16 ^ (node.cast_unsigned() as u64) << 8 ^ kind as u64);
        for arg in args {
            self.mix(arg.cast_unsigned());
        }
        if let Some(kept) = &mut self.kept {
            kept.push(Line { at, node, kind, args });
        }
    }

    fn mix(&mut self, word: u64) {
        let [low, high] = self.hash;
        let product = u128::from(low ^ word) * u128::from(high | 1);
        self.hash = [product as u64 ^ high, (product >> 64) as u64 ^ word.rotate_left(23) ^ low];
    }

    pub fn hash(&self) -> u128 {
        u128::from(self.hash[0]) << 64 | u128::from(self.hash[1])
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }

    pub fn kept(&self) -> &[Line] {
        self.kept.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_a_sentence() {
        let line = Line { at: 61_007, node: 2, kind: Kind::Begun, args: [7, 3, 1, 99] };
        assert_eq!(
            line.to_string(),
            "       61.007  node 2  request begins: message 7, endpoint 3, attempt 1, request 99"
        );
    }

    #[test]
    fn any_change_of_any_line_changes_the_hash() {
        let hash = |lines: &[(i64, i8, [i64; 4])]| {
            let mut trace = Trace::new(false);
            for (at, node, args) in lines {
                trace.line(*at, *node, Kind::Begun, *args);
            }
            trace.hash()
        };
        let one = hash(&[(1, 0, [1, 2, 3, 4]), (2, 0, [0; 4])]);
        assert_eq!(one, hash(&[(1, 0, [1, 2, 3, 4]), (2, 0, [0; 4])]));
        for other in [
            hash(&[(2, 0, [0; 4]), (1, 0, [1, 2, 3, 4])]),
            hash(&[(1, 1, [1, 2, 3, 4]), (2, 0, [0; 4])]),
            hash(&[(1, 0, [1, 2, 4, 3]), (2, 0, [0; 4])]),
            hash(&[(1, 0, [1, 2, 3, 4])]),
        ] {
            assert_ne!(one, other);
        }
    }
}
