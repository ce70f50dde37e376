//! What was promised and what came, for one measurement.
//!
//! The generator writes down every message that was answered 202, the receiver every arrival; afterwards the two are
//! compared delivery by delivery. Both sides write under load on the cores that are being measured, so each note is one
//! or two atomic stores into a table indexed by the message's number: no map, no lock, no allocation past each
//! table piece.

use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;

pub struct Ledger {
    pub run: u16,
    /// Deliveries per message: 1, or the number of endpoints that a message fans out to.
    width: usize,
    next_seq: AtomicU32,
    pieces: Box<[OnceLock<Piece>]>,
    first_send_ns: AtomicU64,
    last_accept_ns: AtomicU64,
    last_arrival_ns: AtomicU64,
    accepted: AtomicU64,
    owed: AtomicU64,
    arrived: AtomicU64,
    duplicated: AtomicU64,
    repeated: AtomicU64,
    excused_ns: OnceLock<Range<u64>>,
    refused: AtomicU64,
    broken: AtomicU64,
}

impl Ledger {
    pub fn new(run: u16, width: usize) -> Ledger {
        Ledger {
            run,
            width,
            next_seq: AtomicU32::new(0),
            pieces: (0..PIECES_MAX).map(|_| OnceLock::new()).collect(),
            first_send_ns: AtomicU64::new(u64::MAX),
            last_accept_ns: AtomicU64::new(0),
            last_arrival_ns: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            duplicated: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            excused_ns: OnceLock::new(),
            refused: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        }
    }

    /// The first of so many numbers that nobody else gets.
    pub fn next_seqs(&self, count: u32) -> u32 {
        self.next_seq.fetch_add(count, Relaxed)
    }

    pub fn note_sent(&self, at_ns: u64) {
        self.first_send_ns.fetch_min(at_ns, Relaxed);
    }

    /// The server answered 202 with this message id; `owed` deliveries of it must come.
    pub fn note_accepted(&self, seq: u32, message_id: &[u8], owed: u64, at_ns: u64) {
        self.accepted.fetch_add(1, Relaxed);
        self.last_accept_ns.fetch_max(at_ns, Relaxed);
        if owed > 0 {
            self.owed.fetch_add(owed, Relaxed);
            let (piece, place) = self.place(seq);
            piece.accepted[place].store(digest(message_id), Relaxed);
        }
    }

    /// 429 or 503: the server was full and said so.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// The connection failed under a request, so nobody knows whether it was accepted; it is asked again with the same key.
    pub fn note_broken(&self) {
        self.broken.fetch_add(1, Relaxed);
    }

    pub fn note_arrival(&self, seq: u32, column: usize, message_id: &[u8], sent_ns: u64, at_ns: u64) {
        let (piece, place) = self.place(seq);
        let arrival = &piece.arrivals[place * self.width + column % self.width];
        if arrival.message.swap(digest(message_id), Relaxed) != 0 {
            let first_ns = sent_ns + arrival.latency_ns.load(Relaxed);
            let is_excused = self.excused_ns.get().is_some_and(|excused| excused.contains(&first_ns));
            if is_excused { &self.repeated } else { &self.duplicated }.fetch_add(1, Relaxed);
            return;
        }
        arrival.latency_ns.store(at_ns.saturating_sub(sent_ns), Relaxed);
        self.last_arrival_ns.fetch_max(at_ns, Relaxed);
        self.arrived.fetch_add(1, Relaxed);
    }

    /// What first arrived in this time may come again: its sender was killed, perhaps before it had written down the answer.
    pub fn excuse(&self, arrived_ns: Range<u64>) {
        self.excused_ns.set(arrived_ns).expect("one node is killed in a measurement");
    }

    pub fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    pub fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    pub fn is_complete(&self) -> bool {
        self.arrived() >= self.owed.load(Relaxed)
    }

    /// Compares both sides, of those messages only that `keep` wants by their number.
    pub fn tally(&self, keep: impl Fn(u32) -> bool) -> Tally {
        let mut lost = 0;
        let mut misnamed = 0;
        let mut latencies = Histogram::<u64>::new_with_max(LATENCY_MAX_NS, 3)
            .expect("three digits up to ten minutes are within what a histogram offers");
        for (number, piece) in self.pieces.iter().enumerate() {
            let Some(piece) = piece.get() else { continue };
            for place in 0..PIECE_LEN {
                let seq = u32::try_from(number * PIECE_LEN + place).expect("the table ends below u32::MAX");
                if !keep(seq) {
                    continue;
                }
                let accepted = piece.accepted[place].load(Relaxed);
                for arrival in &piece.arrivals[place * self.width..][..self.width] {
                    let arrived = arrival.message.load(Relaxed);
                    if arrived != 0 {
                        latencies.saturating_record(arrival.latency_ns.load(Relaxed));
                    }
                    if accepted != 0 && arrived == 0 {
                        lost += 1;
                    } else if accepted != 0 && accepted != arrived {
                        misnamed += 1;
                    }
                }
            }
        }
        let since_first_send =
            |end_ns: u64| Duration::from_nanos(end_ns.saturating_sub(self.first_send_ns.load(Relaxed)));
        Tally {
            accepted: self.accepted(),
            arrived: self.arrived(),
            refused: self.refused.load(Relaxed),
            broken: self.broken.load(Relaxed),
            lost,
            duplicated: self.duplicated.load(Relaxed),
            repeated: self.repeated.load(Relaxed),
            misnamed,
            accepting: since_first_send(self.last_accept_ns.load(Relaxed)),
            arriving: since_first_send(self.last_arrival_ns.load(Relaxed)),
            latencies,
        }
    }

    fn place(&self, seq: u32) -> (&Piece, usize) {
        let seq = usize::try_from(seq).expect("a u32 fits");
        // A number past the table cannot come from us; the receiver only passes numbers from bodies it found untouched.
        let piece = self.pieces[seq / PIECE_LEN % PIECES_MAX].get_or_init(|| Piece::new(self.width));
        (piece, seq % PIECE_LEN)
    }
}

pub struct Tally {
    pub accepted: u64,
    pub arrived: u64,
    pub refused: u64,
    pub broken: u64,
    pub lost: u64,
    pub duplicated: u64,
    /// Arrived again, and could be excused.
    pub repeated: u64,
    /// Arrived under another id than the producer was told.
    pub misnamed: u64,
    /// First send to last 202.
    pub accepting: Duration,
    /// First send to last arrival, so that a backlog counts against the rate.
    pub arriving: Duration,
    pub latencies: Histogram<u64>,
}

struct Piece {
    /// Digest of the id in the 202, by message; 0: none.
    accepted: Box<[AtomicU64]>,
    arrivals: Box<[Arrival]>,
}

impl Piece {
    fn new(width: usize) -> Piece {
        Piece {
            accepted: (0..PIECE_LEN).map(|_| AtomicU64::new(0)).collect(),
            arrivals: (0..PIECE_LEN * width).map(|_| Arrival::default()).collect(),
        }
    }
}

#[derive(Default)]
struct Arrival {
    /// Digest of the `webhook-id` that came; 0: nothing came.
    message: AtomicU64,
    latency_ns: AtomicU64,
}

fn digest(message_id: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(message_id);
    hasher.finish() | 1
}

const LATENCY_MAX_NS: u64 = 600_000_000_000;
const PIECE_LEN: usize = 4096;
/// Room for 33 million messages in one measurement, several minutes at the floor's speed.
const PIECES_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_compared_with_what_was_promised() {
        let ledger = Ledger::new(1, 1);
        ledger.note_sent(1_000);
        for (seq, id) in [(0, b"msg_0"), (1, b"msg_1"), (2, b"msg_2"), (5_000, b"msg_9")] {
            ledger.note_accepted(seq, id, 1, 2_000);
        }
        ledger.note_arrival(0, 0, b"msg_0", 1_000, 4_000);
        ledger.note_arrival(0, 0, b"msg_0", 1_000, 5_000);
        ledger.note_arrival(1, 0, b"other", 1_000, 6_000);
        ledger.note_arrival(5_000, 0, b"msg_9", 1_000, 7_000);
        assert!(!ledger.is_complete());

        let tally = ledger.tally(|_| true);
        assert_eq!((tally.lost, tally.duplicated, tally.misnamed, tally.arrived), (1, 1, 1, 3));
        assert_eq!((tally.accepting, tally.arriving), (Duration::from_nanos(1_000), Duration::from_nanos(6_000)));
        let median_ns = tally.latencies.value_at_quantile(0.5);
        assert!((4_990..=5_010).contains(&median_ns), "{median_ns}");
        assert_eq!(ledger.tally(|seq| seq != 2).lost, 0, "a message that is not kept is not missed");
    }

    #[test]
    fn only_what_a_killed_node_had_under_way_may_come_again() {
        let ledger = Ledger::new(1, 1);
        for (seq, at_ns) in [(0, 2_000), (1, 3_000), (2, 4_000)] {
            ledger.note_arrival(seq, 0, b"msg", 1_000, at_ns);
        }
        ledger.excuse(2_500..3_500);
        for seq in 0..3 {
            ledger.note_arrival(seq, 0, b"msg", 1_000, 9_000);
        }
        let tally = ledger.tally(|_| true);
        assert_eq!((tally.repeated, tally.duplicated), (1, 2));
    }

    #[test]
    fn each_endpoint_of_a_fan_out_is_owed_its_own_delivery() {
        let ledger = Ledger::new(1, 3);
        ledger.note_accepted(0, b"msg_0", 3, 1);
        ledger.note_arrival(0, 0, b"msg_0", 1, 2);
        ledger.note_arrival(0, 2, b"msg_0", 1, 2);
        let tally = ledger.tally(|_| true);
        assert_eq!((tally.lost, tally.duplicated, tally.arrived), (1, 0, 2));
    }

    #[test]
    fn an_arrival_before_its_202_is_no_mistake() {
        let ledger = Ledger::new(1, 1);
        ledger.note_arrival(0, 0, b"msg_0", 1, 2);
        ledger.note_accepted(0, b"msg_0", 1, 3);
        let tally = ledger.tally(|_| true);
        assert_eq!((tally.lost, tally.duplicated, tally.misnamed), (0, 0, 0));
    }
}
