//! The 1 KiB body that every scenario sends, the floor included.
//!
//! Run, sequence number and send time sit at fixed places, so that the receiver reads them without a JSON parser
//! and compares all other bytes with what was sent: a server that prints the payload anew is found out.

use std::io::Write;
use std::sync::LazyLock;

pub const LEN: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Which measurement the message belongs to.
    pub run: u16,
    /// Which message of that measurement.
    pub seq: u32,
    /// When it was sent, or should have been, by [`crate::clock::monotonic_ns`].
    pub sent_ns: u64,
}

impl Stamp {
    /// Appends the body to `out`.
    pub fn write_to(self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&*TEMPLATE);
        let body = &mut out[start..];
        write!(&mut body[RUN], "{:04x}", self.run).expect("four hex digits fit");
        write!(&mut body[SEQ], "{:08x}", self.seq).expect("eight hex digits fit");
        write!(&mut body[SENT], "{:016x}", self.sent_ns).expect("sixteen hex digits fit");
    }

    /// `None` if any byte is not as it was sent.
    pub fn read_from(body: &[u8]) -> Option<Stamp> {
        let template: &[u8] = &*TEMPLATE;
        let untouched = body.len() == LEN
            && [0..RUN.start, RUN.end..SEQ.start, SEQ.end..SENT.start, SENT.end..LEN]
                .into_iter()
                .all(|part| body[part.clone()] == template[part]);
        if !untouched {
            return None;
        }
        Some(Stamp {
            run: u16::try_from(hex(&body[RUN])?).ok()?,
            seq: u32::try_from(hex(&body[SEQ])?).ok()?,
            sent_ns: hex(&body[SENT])?,
        })
    }
}

fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value: u64, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

const RUN: std::ops::Range<usize> = 8..12;
const SEQ: std::ops::Range<usize> = 21..29;
const SENT: std::ops::Range<usize> = 37..53;

static TEMPLATE: LazyLock<[u8; LEN]> = LazyLock::new(|| {
    let head = br#"{"run":"0000","seq":"00000000","at":"0000000000000000","pad":""#;
    let tail = br#""}"#;
    let words = b"the quick brown rider jumps over the lazy queue, ";
    let mut body = [0; LEN];
    body[..head.len()].copy_from_slice(head);
    let pad = &mut body[head.len()..LEN - tail.len()];
    pad.iter_mut().zip(words.iter().cycle()).for_each(|(byte, letter)| *byte = *letter);
    body[LEN - tail.len()..].copy_from_slice(tail);
    body
});

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { run: 0x12, seq: 0xdead_beef, sent_ns: u64::MAX - 1 };

    #[test]
    fn a_stamp_comes_back_from_its_body() {
        let mut body = Vec::new();
        STAMP.write_to(&mut body);
        assert_eq!(body.len(), LEN);
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok(), "the body is JSON");
        assert_eq!(Stamp::read_from(&body), Some(STAMP));
    }

    #[test]
    fn a_body_changed_anywhere_is_not_read() {
        let mut body = Vec::new();
        STAMP.write_to(&mut body);
        for place in [0, RUN.start, RUN.end, SEQ.start, SEQ.end, SENT.start, SENT.end, LEN / 2, LEN - 1] {
            let mut changed = body.clone();
            changed[place] = b'~';
            assert_eq!(Stamp::read_from(&changed), None, "byte {place}");
        }
        assert_eq!(Stamp::read_from(&body[..LEN - 1]), None, "cut short");
    }
}
